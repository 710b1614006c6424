"""Rasterizing one image: native decoders where they are exact, Pillow elsewhere, one result.

Owns which decoder runs, the conversion of modes, and the form in which pixels come out. Which
decoder ran is not visible in the result. Must never open a format outside the allow-list, nor
touch a pixel before the caller has admitted the size.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from safelight._safelight import DecodeRequest, Pixels, check_jpeg_scans, decode_image
from safelight.errors import (
    DecodeError,
    HeaderError,
    MediaError,
    UnsupportedMediaError,
)
from safelight.media.pillow import (
    judge_inner,
    open_image,
    raise_unless_of_bytes,
    undisturbed,
)
from safelight.orientation import upright_copy
from safelight.probe import ImageHeader, probe

__all__ = ["Decoder", "Output", "Rasterizer", "Scale", "scale_divisor", "scaled_size"]

Output = Literal["pil", "numpy", "torch"]
"""A Pillow image; a writable uint8 array [height, width, channels]; or a tensor over one."""

Decoder = Literal["native", "pillow"]

Scale = Literal["1/2", "1/4", "1/8"]
"""The fraction of its size that a JPEG is decoded to."""

Admit = Callable[[int, int], None]
"""Called with width and height before a pixel is touched; raises to refuse."""

# Modes that native code converts to. Others, and None, are Pillow's.
_NATIVE_MODES = frozenset(("RGB", "RGBA", "L"))

_DIVISORS: Mapping[Scale | None, int] = {None: 1, "1/2": 2, "1/4": 4, "1/8": 8}

# JPEG, and what opens as one: decoded smaller for less work; others disregard the scale.
_JPEG_FORMATS = frozenset(("JPEG", "MPO"))

# What an icon and a TIFF file are made of, which no list has to allow.
_ALWAYS_INSIDE = frozenset(("DIB", "TIFF"))

_DECODER_VARIABLE = "SAFELIGHT_IMAGE_DECODER"


@dataclass(frozen=True)
class Rasterizer:
    """How the images of one `ImageMediaIO` are decoded.

    Attributes:
        image_mode: Pillow's name of the mode to convert to; None keeps the image's own.
        background: What a transparent image is pasted over when the mode is RGB.
        output: The form of the result.
        formats: Pillow's names of the formats that may be opened.
        decoder: Which decoder may run: for all formats, or by format; what is not named is native.
            The environment variable ``SAFELIGHT_IMAGE_DECODER`` (``pillow``, or
            ``JPEG=pillow,PNG=native``) overrides it; it is read here, not at each decode.
        scale: The divisor of the size of a JPEG: 1, 2, 4 or 8.
    """

    image_mode: str | None
    background: tuple[int, int, int]
    output: Output
    formats: tuple[str, ...]
    decoder: Decoder | Mapping[str, Decoder]
    scale: int = 1

    def __post_init__(self) -> None:
        override = os.environ.get(_DECODER_VARIABLE)
        if override:
            object.__setattr__(self, "decoder", _parse_override(override))

    def check_format(self, name: str) -> None:
        """Refuse a format that is not served.

        Raises:
            UnsupportedMediaError: `name` is not among `formats`.
        """
        # MPO is a JPEG with more pictures behind the first; Pillow opens it as one.
        if name not in self.formats and not (name == "MPO" and "JPEG" in self.formats):
            raise UnsupportedMediaError(f"image format {name} is not served")

    def rasterize(self, data: bytes, header: ImageHeader | None, admit: Admit) -> Any:
        """Decode `data` to an upright image in `image_mode`.

        Args:
            data: The encoded image.
            header: What a probe said of it, or None where it could not be read.
            admit: Called once with the full size, before a pixel is touched.

        Raises:
            MediaError: It cannot be decoded, or `admit` refused it.
        """
        if header is not None and self._is_native(header.format):
            self.check_format(header.format)
            admit(header.width, header.height)
            pixels = decode_image(data, self._request(header))
            if pixels is not None:
                return self.from_pixels(pixels)
        return self.rasterize_by_pillow(data, header, admit)

    def rasterize_by_pillow(self, data: bytes, header: ImageHeader | None, admit: Admit) -> Any:
        """As `rasterize`, of what native code does not decode."""
        return undisturbed(lambda: self._rasterize_by_pillow(data, header, admit))

    def _rasterize_by_pillow(self, data: bytes, header: ImageHeader | None, admit: Admit) -> Any:
        judged = []

        def judge(image_format: str, width: int, height: int) -> None:
            if image_format not in _ALWAYS_INSIDE:
                self.check_format(image_format)
            admit(width, height)
            judged.append(image_format)

        image = open_image(data, self.formats, header)
        if image is None:
            raise self._unidentified(data)
        image_format = image.format
        admit(*image.size)
        if image.format in _JPEG_FORMATS:
            check_jpeg_scans(data)
        try:
            judge_inner(image, data, judge)
            if self.scale > 1 and image.format in _JPEG_FORMATS:
                # Pillow takes the largest scale at which both sides are at least these.
                image.draft(
                    None, (max(1, image.width // self.scale), max(1, image.height // self.scale))
                )
            image.load()
        except Exception as error:
            # Pillow's plugins raise OSError, SyntaxError, ValueError and more for damaged pixels.
            raise_unless_of_bytes(error)
            raise DecodeError("image cannot be decoded: its pixels are damaged") from error
        if judged:
            # What is kept may be of another size than what was inside.
            admit(*image.size)
        orientation = None
        if header is not None and _is_same(header.format, image_format):
            orientation = header.orientation
        return self._from_pillow(self._convert(upright_copy(image, orientation)))

    def native_request(self, header: ImageHeader | None, admit: Admit) -> DecodeRequest | None:
        """What native code is to decode the image of `header` to.

        None where native code may not try, or where `rasterize` would refuse, which it then does.
        """
        if header is None or not self._is_native(header.format):
            return None
        try:
            self.check_format(header.format)
            admit(header.width, header.height)
        except MediaError:
            return None
        return self._request(header)

    def _request(self, header: ImageHeader) -> DecodeRequest:
        is_rgb = self.image_mode == "RGB"
        return DecodeRequest(
            # Pillow takes over memory as it is laid out in its own images.
            "RGBX" if is_rgb and self.output == "pil" else self.image_mode,
            self.background if is_rgb else None,
            header.width * header.height,
            header.orientation,
            self.scale,
        )

    def _is_native(self, image_format: str) -> bool:
        """Whether native code may try: it declines what it is not exact for."""
        if self.image_mode not in _NATIVE_MODES:
            return False
        decoder = self.decoder
        if not isinstance(decoder, str):
            decoder = decoder.get(image_format, "native")
        return decoder == "native"

    def _unidentified(self, data: bytes) -> MediaError:
        """Say what the bytes are, where that can be told, if Pillow may not or cannot open them."""
        try:
            header = probe(data)
            self.check_format(header.format)
        except UnsupportedMediaError as error:
            return error
        except MediaError:
            return HeaderError("not an image of any served format, or its header is damaged")
        return HeaderError(f"{header.format} image cannot be decoded: its header is damaged")

    def _convert(self, image: Image.Image) -> Image.Image:
        mode = self.image_mode
        if mode is None:
            return image
        try:
            if mode == "RGB" and (
                image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
            ):
                image = image.convert("RGBA")
                background = Image.new("RGB", image.size, self.background)
                background.paste(image, mask=image.getchannel("A"))
                return background
            if image.mode != mode:
                image = image.convert(mode)
        except Exception as error:
            raise_unless_of_bytes(error)
            raise DecodeError(
                f"image cannot be decoded: mode {image.mode} does not convert to {mode}"
            ) from error
        # Resolution, profiles and comments are of the file; native code does not carry them either.
        image.info.clear()
        return image

    def from_pixels(self, pixels: Pixels) -> Any:
        """Return what native code made, in the form of `output`."""
        if self.output != "pil":
            return _to_output(np.asarray(pixels), self.output)
        assert self.image_mode is not None
        # Over Arrow, which shares the memory instead of copying it with the interpreter held.
        return Image.fromarrow(pixels, self.image_mode, pixels.size)

    def copy(self, media: Any) -> Any:
        """Return a copy of media in the form of `output`, to be written to on its own."""
        return media.clone() if self.output == "torch" else media.copy()

    def _from_pillow(self, image: Image.Image) -> Any:
        return image if self.output == "pil" else _to_output(np.array(image), self.output)


def scale_divisor(scale: Scale | None) -> int:
    """Return what `scale` divides a side by; None is the full size.

    Raises:
        ValueError: It is no scale.
    """
    if scale not in _DIVISORS:
        raise ValueError("scale must be 1/2, 1/4, 1/8 or None")
    return _DIVISORS[scale]


def scaled_size(image_format: str, size: tuple[int, int], scale: int) -> tuple[int, int]:
    """Return the size that an image of `size` is decoded to at 1/`scale`."""
    if image_format not in _JPEG_FORMATS:
        return size
    while scale > min(size):
        scale //= 2
    return -(-size[0] // scale), -(-size[1] // scale)


def _is_same(probed: str, opened: str | None) -> bool:
    """Whether the probe and Pillow took a payload for the same format."""
    return probed == opened or {probed, opened} <= _JPEG_FORMATS


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
