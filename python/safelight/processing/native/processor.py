"""`image_processor`: an image processor that is called as transformers' own, and runs in Rust.

Owns the call: which images and options go to Rust, and what comes back. Whatever is not understood
is transformers' own to do, or to refuse. Must never take a string for an image.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from safelight import _safelight
from safelight.errors import ConfigurationError
from safelight.foreign import is_array, is_image, is_tensor
from safelight.processing.native.declaration import Declaration, declare

__all__ = ["ImageLayout", "ImageProcessor", "image_processor"]


@dataclass(frozen=True)
class ImageLayout:
    """What one image comes to.

    Attributes:
        shapes: The shape of one image in each output.
        grid: Frames, rows and columns of patches; None for a family whose images are no grid.
        num_tokens: Prompt tokens of the image; None where the processor alone does not know.
    """

    shapes: Mapping[str, tuple[int, ...]]
    grid: tuple[int, int, int] | None
    num_tokens: int | None

    @property
    def grid_thw(self) -> tuple[int, int, int] | None:
        """The grid by the name that the Qwen-VL models have for it."""
        return self.grid


def image_processor(hf: Any, *, pixel_form: str = "float") -> ImageProcessor:
    """Wrap transformers' image processor `hf` in one that returns the same, and sooner.

    Args:
        hf: An image processor of transformers, of either backend. Settings that are changed
            later are followed.
        pixel_form: ``"float"``; or ``"uint8"``, the pixels before rescaling and normalization, in
            the same shapes, for servers that normalize on the device.

    Raises:
        ConfigurationError: `pixel_form` is neither, or transformers itself would have to run and
            has no such form.
    """
    if pixel_form not in {"float", "uint8"}:
        raise ConfigurationError("pixel_form must be float or uint8")
    processor = ImageProcessor(hf, pixel_form)
    if pixel_form == "uint8" and not processor.is_native:
        raise ConfigurationError("pixel_form uint8 needs a processor that is native")
    return processor


class ImageProcessor:
    """An image processor in Rust, in place of transformers' own; made by `image_processor`.

    Keys, shapes, dtypes and bytes of what it returns are those of transformers. Attributes that it
    has not are those of the processor that it wraps.
    """

    def __init__(self, hf: Any, pixel_form: str) -> None:
        self._hf = hf
        self._pixel_form = pixel_form

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_hf":  # asked for by copy and pickle, before `_hf` is
            raise AttributeError(name)
        return getattr(self._hf, name)

    @property
    def is_native(self) -> bool:
        """Whether Rust runs with the settings as they are; False where transformers does."""
        return declare(self._hf, self._resolve({})) is not None

    def __call__(self, images: Any, **options: Any) -> Mapping[str, Any]:
        """Process images as transformers does.

        Args:
            images: A Pillow image, an array or tensor, or a list of them.
            options: Those of transformers; each replaces a setting for this call.

        Returns:
            transformers' ``BatchFeature``: ``pixel_values`` and what else the family has, as numpy
            arrays or torch tensors (``return_tensors``).

        Raises:
            TypeError: Something is neither an image, an array nor a tensor.
            LimitError: An image is of a size that the model refuses.
            ConfigurationError: The options leave no uint8 form, and it was asked for.
        """
        _check_images(images)
        settings = self._resolve(options)
        declaration = declare(self._hf, settings)
        if declaration is not None and settings["return_tensors"] in {"np", "pt"}:
            pixels = [self._levels(image, settings) for image in self._flat(images)]
            if pixels and all(levels is not None for levels in pixels):
                return self._run(declaration, pixels, settings["return_tensors"])
        if self._pixel_form == "uint8":
            raise ConfigurationError("these images or options have no form of uint8")
        outputs: Mapping[str, Any] = self._hf(images=images, **options)
        return outputs

    preprocess = __call__

    def layout(self, width: int, height: int) -> ImageLayout:
        """What an image of this size comes to, without its pixels.

        Raises:
            LimitError: The model refuses the size.
            ConfigurationError: The processor is not native.
        """
        declaration = self._declaration()
        _, kept, grid = _compiled(declaration).layout(width, height)
        geometry = dict(declaration.geometry)
        if grid is None:
            return ImageLayout({"pixel_values": (3, kept[1], kept[0])}, None, None)
        patches = math.prod(grid)
        row = 3 * geometry["copies"] * geometry["patch"] ** 2
        shapes = {"pixel_values": (patches, row), "image_grid_thw": (3,)}
        return ImageLayout(shapes, (1, *grid), patches // geometry["merge"] ** 2)

    def expand(self, outputs: Any) -> Any:
        """Return the floats of uint8 outputs, fresh and writable, in the same kind of array.

        Args:
            outputs: What a call with ``pixel_form="uint8"`` returned, or its ``pixel_values``
                alone. Patches may come without their temporal copies, which are made here.

        Raises:
            ConfigurationError: The processor is not native.
            TypeError: The pixels are not of uint8.
            HeaderError: They are not whole rows of the processor's.
        """
        if isinstance(outputs, Mapping):
            expanded = self.expand(outputs["pixel_values"])
            return _batch({**outputs, "pixel_values": expanded})
        declaration = self._declaration()
        levels = np.ascontiguousarray(outputs)
        if levels.dtype != np.uint8:
            raise TypeError("pixels to expand are of uint8")
        geometry, shape = dict(declaration.geometry), levels.shape
        is_single = False
        if "patch" in geometry:
            row = 3 * geometry["patch"] ** 2
            is_single = shape[-1:] == (row,)
            shape = (*shape[:-1], row * geometry["copies"])
        pixels = np.asarray(_compiled(declaration).expand(levels, is_single)).reshape(shape)
        return _to_torch(pixels) if is_tensor(outputs) else pixels

    def _declaration(self) -> Declaration:
        declaration = declare(self._hf, self._resolve({}))
        if declaration is None:
            raise ConfigurationError("the image processor is not native")
        return declaration

    def _resolve(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """All settings of a call, validated and resolved as transformers does."""
        from huggingface_hub.dataclasses import validate_typed_dict

        hf = self._hf
        names = getattr(hf, "_valid_kwargs_names", None)
        if names is None or not hasattr(hf, "_standardize_kwargs"):
            return dict(options)
        validate_typed_dict(hf.valid_kwargs, dict(options))
        settings = {name: getattr(hf, name, None) for name in names}
        resolved: dict[str, Any] = hf._standardize_kwargs(**{**settings, **options})
        hf._validate_preprocess_kwargs(**resolved)
        return resolved

    def _flat(self, images: Any) -> list[Any]:
        flat: list[Any] = self._hf._prepare_images_structure(images)
        return flat

    def _levels(self, image: Any, settings: Mapping[str, Any]) -> Any:
        """RGB of one image as an array of uint8, rows by columns by three; None for no such."""
        if is_image(image) and image.mode == "RGB" and "transparency" not in image.info:
            return np.asarray(image)
        if (
            isinstance(image, np.ndarray)
            and image.dtype == np.uint8
            and image.ndim == 3
            and image.shape[2] == 3
            and image.shape[0] not in {1, 3, 4}  # taken for channels
            and settings.get("input_data_format") is None
        ):
            return np.ascontiguousarray(image)
        prepared = self._hf.process_image(
            image,
            do_convert_rgb=settings["do_convert_rgb"],
            input_data_format=settings.get("input_data_format"),
        )
        planes = np.asarray(prepared)
        if planes.dtype != np.uint8 or planes.ndim != 3 or planes.shape[0] != 3:
            return None
        return np.ascontiguousarray(np.moveaxis(planes, 0, -1))

    def _run(
        self, declaration: Declaration, pixels: list[Any], return_tensors: str
    ) -> Mapping[str, Any]:
        compiled = _compiled(declaration)
        form = self._pixel_form if declaration.is_float else "uint8"
        images = [(levels, levels.shape[1], levels.shape[0]) for levels in pixels]
        values = np.asarray(compiled.process(images, form))
        layouts = [compiled.layout(width, height) for _, width, height in images]
        outputs: dict[str, Any] = {}
        if layouts[0][2] is None:
            (width, height) = layouts[0][1]
            outputs["pixel_values"] = values.reshape(len(images), 3, height, width)
        else:
            outputs["pixel_values"] = values
            grids = [(1, *grid) for _, _, grid in layouts if grid is not None]
            outputs["image_grid_thw"] = np.array(grids, np.int64)
        if return_tensors == "pt":
            outputs = {name: _to_torch(array) for name, array in outputs.items()}
        return _batch(outputs)


def _check_images(images: Any) -> None:
    """Refuse what is no image, above all strings: transformers would download them."""
    if isinstance(images, (list, tuple)):
        for image in images:
            _check_images(image)
    elif not (is_image(images) or is_array(images)):
        raise TypeError("an image processor takes Pillow images, arrays and tensors")


@lru_cache(maxsize=256)
def _compiled(declaration: Declaration) -> _safelight.ImageProcessor:
    return _safelight.ImageProcessor(
        dict(declaration.geometry),
        declaration.filter,
        declaration.backend,
        declaration.rescale_factor,
        declaration.mean_and_std,
    )


def _batch(outputs: dict[str, Any]) -> Mapping[str, Any]:
    from transformers.image_processing_base import BatchFeature

    batch: Mapping[str, Any] = BatchFeature(outputs)
    return batch


def _to_torch(array: Any) -> Any:
    import torch

    return torch.from_numpy(array)
