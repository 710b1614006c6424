"""What an image is decoded to: the options of a decode, and the last step to its result.

Owns the conversion of modes, the form in which pixels come out, and which decoder may run. Must
never show in a result which decoder ran.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageMode

from safelight._safelight import DecodeRequest, Pixels
from safelight.errors import DecodeError, UnsupportedMediaError
from safelight.media.pillow import JPEG_FORMATS, raise_unless_of_bytes
from safelight.probe import ImageHeader

__all__ = ["Decoder", "ImageForm", "Output", "Scale"]

Output = Literal["pil", "numpy", "torch"]
"""A Pillow image; a writable uint8 array [height, width, channels]; or a tensor over one."""

Decoder = Literal["native", "pillow"]

Scale = Literal["1/2", "1/4", "1/8"]
"""The fraction of its size that a JPEG is decoded to."""

# Modes that native code converts to. Others, and None, are Pillow's.
_NATIVE_MODES = frozenset(("RGB", "RGBA", "L"))

_DIVISORS: Mapping[Scale | None, int] = {None: 1, "1/2": 2, "1/4": 4, "1/8": 8}

# Four bytes a pixel, whatever the mode: what Pillow takes for RGB and RGBA alike.
_BYTES_PER_PIXEL = 4

_DECODER_VARIABLE = "SAFELIGHT_IMAGE_DECODER"


@dataclass(frozen=True)
class ImageForm:
    """What the images of one `ImageMediaIO` are decoded to, and from.

    Attributes:
        image_mode: Pillow's name of the mode to convert to; None keeps the image's own.
        background: What a transparent image is pasted over when the mode is RGB.
        output: The form of the result.
        formats: Pillow's names of the formats that may be opened.
        decoder: Which decoder may run: for all formats, or by format; what is not named is native.
            The environment variable ``SAFELIGHT_IMAGE_DECODER`` (``pillow``, or
            ``JPEG=pillow,PNG=native``) overrides it; it is read here, not at each decode.
        scale: The part of its size that a JPEG is decoded to.

    Raises:
        ValueError: The mode or the scale does not exist.
    """

    image_mode: str | None
    background: tuple[int, int, int]
    output: Output
    formats: tuple[str, ...]
    decoder: Decoder | Mapping[str, Decoder]
    scale: Scale | None = None

    def __post_init__(self) -> None:
        if self.scale not in _DIVISORS:
            raise ValueError("scale must be 1/2, 1/4, 1/8 or None")
        try:
            ImageMode.getmode(self.image_mode or "RGB")
        except KeyError:
            raise ValueError("image_mode must be a mode that Pillow has, or None") from None
        override = os.environ.get(_DECODER_VARIABLE)
        if override:
            object.__setattr__(self, "decoder", _parse_override(override))

    @property
    def divisor(self) -> int:
        """What a side of a JPEG is divided by: 1, 2, 4 or 8."""
        return _DIVISORS[self.scale]

    def check_format(self, name: str) -> None:
        """Refuse a format that is not served.

        Raises:
            UnsupportedMediaError: `name` is not among `formats`.
        """
        # MPO is a JPEG with more pictures behind the first; Pillow opens it as one.
        if name not in self.formats and not (name == "MPO" and "JPEG" in self.formats):
            raise UnsupportedMediaError(f"image format {name} is not served")

    def scaled_size(self, image_format: str, size: tuple[int, int]) -> tuple[int, int]:
        """Return the size that an image of `size` is decoded to."""
        divisor = self.divisor
        if divisor == 1 or image_format not in JPEG_FORMATS:
            return size
        while divisor > min(size):
            divisor //= 2
        return -(-size[0] // divisor), -(-size[1] // divisor)

    def decoded_bytes(self, header: ImageHeader | None, width: int, height: int) -> int:
        """Return the bytes that an image of `header`, and of that size, is charged for."""
        if header is not None:
            width, height = self.scaled_size(header.format, (width, height))
        return width * height * _BYTES_PER_PIXEL

    def native_request(self, header: ImageHeader) -> DecodeRequest | None:
        """What native code is to decode the image of `header` to; None where it may not try."""
        decoder = self.decoder
        if not isinstance(decoder, str):
            decoder = decoder.get(header.format, "native")
        if decoder != "native" or self.image_mode not in _NATIVE_MODES:
            return None
        is_rgb = self.image_mode == "RGB"
        return DecodeRequest(
            # Pillow takes over memory as it is laid out in its own images.
            "RGBX" if is_rgb and self.output == "pil" else self.image_mode,
            self.background if is_rgb else None,
            header.width * header.height,
            header.orientation,
            self.divisor,
        )

    def from_pixels(self, pixels: Pixels) -> Any:
        """Return what native code made, in the form of `output`."""
        if self.output != "pil":
            return _to_output(np.asarray(pixels), self.output)
        assert self.image_mode is not None
        # Over Arrow, which shares the memory instead of copying it with the interpreter held.
        return Image.fromarrow(pixels, self.image_mode, pixels.size)

    def from_pillow(self, image: Image.Image, convert: Callable[[Image.Image], Image.Image]) -> Any:
        """Return an upright image as `convert` gives it, in the form of `output`.

        Raises:
            DecodeError: Its mode does not convert.
        """
        try:
            image = convert(image)
        except Exception as error:
            raise_unless_of_bytes(error)
            raise DecodeError(
                f"image cannot be decoded: mode {image.mode} does not convert to {self.image_mode}"
            ) from error
        if self.image_mode is not None:
            # Resolution, profiles and comments are of the file; native code carries none either.
            image.info.clear()
        return image if self.output == "pil" else _to_output(np.array(image), self.output)

    def convert(self, image: Image.Image) -> Image.Image:
        """Return `image` in the mode, for RGB with the background under what is transparent."""
        mode = self.image_mode
        if mode == "RGB" and (image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info):
            image = image.convert("RGBA")
            background = Image.new("RGB", image.size, self.background)
            background.paste(image, mask=image.getchannel("A"))
            return background
        return image if mode is None or image.mode == mode else image.convert(mode)

    def copy(self, media: Any) -> Any:
        """Return a copy of media in the form of `output`, to be written to on its own."""
        return media.clone() if self.output == "torch" else media.copy()


def _to_output(array: npt.NDArray[Any], output: Output) -> Any:
    if output == "numpy":
        return array
    import torch

    return torch.from_numpy(array)


def _parse_override(text: str) -> Decoder | Mapping[str, Decoder]:
    """Return what the environment variable says; anything but ``pillow`` is native."""
    if "=" not in text:
        return "pillow" if text.strip().lower() == "pillow" else "native"
    pairs = (part.partition("=") for part in text.split(","))
    return {
        name.strip().upper(): "pillow" if decoder.strip().lower() == "pillow" else "native"
        for name, _, decoder in pairs
    }
