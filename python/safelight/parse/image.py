"""Images as items: refs, Pillow images, arrays and tensors in one list, and their sizes.

Owns how an array of three axes is read. Must never let a text through, which a processor might
take for a path or URL, nor decode a ref whose header tells its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from safelight.errors import RequestError
from safelight.foreign import is_array, is_image
from safelight.orientation import stated_orientation, turned_size, upright
from safelight.parse.embeddings import check_dense
from safelight.parse.items import ProcessorBatchItems
from safelight.ref import MediaRef

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["HfImageItem", "ImageItem", "ImageProcessorItems", "ImageSize"]

HfImageItem: TypeAlias = "Image.Image | np.ndarray[Any, Any] | Any"
"""An image as a model's processor takes it: Pillow image, array or torch tensor."""

ImageItem: TypeAlias = "HfImageItem | MediaRef[Image.Image]"
"""An image of a request: decoded by the caller, or a ref."""

# What a last axis must measure to be taken for channels.
_CHANNELS = (1, 3, 4)
# What a first axis must measure for transformers to take it for channels, whatever the last is.
_HF_CHANNELS_FIRST = (1, 3)


class ImageSize(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int


class ImageProcessorItems(ProcessorBatchItems[HfImageItem]):
    """Images: refs, Pillow images, arrays and tensors in one list.

    Args:
        data: The images; None is one image that only its UUID stands for.

    Raises:
        RequestError: An item is none of these.
    """

    def __init__(self, data: Sequence[ImageItem | None] | None) -> None:
        items = [None] if data is None else data
        for index, item in enumerate(items):
            _check_image(item, index)
        super().__init__(items, "image")

    def get(self, index: int) -> HfImageItem:
        """An image as a processor takes it without mistake; decodes a ref.

        A Pillow image is upright, as its file would be when a ref decodes it.
        An array is writable, and its channels come first where a processor would take its height
        for them.
        """
        image: Any = super().get(index)
        if is_image(image):
            return upright(image)
        # Anything else is None, or what the model's own decoder makes.
        if not is_array(image):
            return image
        is_ndarray = isinstance(image, np.ndarray)
        if is_ndarray and not image.flags.writeable:
            image = image.copy()
        if _is_channels_last(image) and image.shape[0] in _HF_CHANNELS_FIRST:
            return image.transpose(2, 0, 1) if is_ndarray else image.permute(2, 0, 1)
        return image

    def get_image_size(self, index: int) -> ImageSize:
        """The upright size of an image; decodes only a ref whose header told nothing.

        Raises:
            RequestError: Only a UUID stands for the image.
        """
        image: Any = self.data[index]
        if isinstance(image, MediaRef):
            if image.header is not None:
                return ImageSize(*image.header.upright_size)
            image = image.decode()
        if image is None:
            raise RequestError(f"image {self.get_original_index(index)} has no media")
        if is_image(image):
            return ImageSize(*turned_size(image.size, stated_orientation(image)))
        if _is_channels_last(image):
            height, width, _ = image.shape
        else:
            _, height, width = image.shape
        return ImageSize(width, height)


def _is_channels_last(image: Any) -> bool:
    """Tell (height, width, channels) from CHW, by the last axis alone, as vLLM does."""
    is_last: bool = image.shape[-1] in _CHANNELS
    return is_last


def _check_image(item: Any, index: int) -> None:
    if item is None or isinstance(item, MediaRef) or is_image(item):
        return
    if isinstance(item, (str, bytes, bytearray, memoryview)):
        raise RequestError(
            f"image {index}: encoded or named images must be loaded into a ref first, "
            f"not passed as {type(item).__name__}"
        )
    if not is_array(item):
        raise RequestError(f"image {index}: an image cannot be a {type(item).__name__}")
    check_dense(item, "image")
    shape = tuple(item.shape)
    if len(shape) != 3 or 0 in shape:
        raise RequestError(
            f"image {index}: an array must have three axes, none of them empty, not shape {shape}"
        )
