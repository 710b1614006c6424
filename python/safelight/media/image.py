"""`ImageMediaIO`: images, from bytes to a ref to pixels.

Owns the image entry points, their limits, and the decode itself in its fixed order: open behind
the allow-list, check the size, load (its errors are raised), turn upright, convert the mode. Must
never open a format outside the allow-list, nor touch a pixel before the limits are checked.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from PIL import Image, UnidentifiedImageError

from safelight.budget import DecodeCharge, DecodedBudget
from safelight.errors import (
    DecodeError,
    HeaderError,
    LimitError,
    MediaError,
    UnsupportedMediaError,
)
from safelight.key import derive_media_key
from safelight.media.base import MediaIO
from safelight.probe import ImageHeader, NeedMoreBytes, probe, probe_prefix
from safelight.ref import MediaRef
from safelight.spec import DecodeSpec

__all__ = ["ALLOWED_IMAGE_FORMATS", "DEFAULT_MAX_IMAGE_PIXELS", "ImageMediaIO"]

# A quarter of a GiB of RGB pixels, the limit that Pillow warns at.
DEFAULT_MAX_IMAGE_PIXELS = 178_956_970

# What Pillow may open, the common ones first because Pillow tries them in this order. Absent: EPS
# (may start Ghostscript), WMF, BUFR, GRIB, HDF5 and MPEG (stubs or native handlers), FITS (unpacks
# gzip without bound). MPO opens through JPEG.
ALLOWED_IMAGE_FORMATS = (
    "JPEG PNG WEBP GIF BMP TIFF AVIF BLP CUR DCX DDS DIB FLI FTEX GBR ICNS ICO IM IMT IPTC "
    "JPEG2000 MCIDAS MSP PCD PCX PIXAR PPM PSD QOI SGI SPIDER SUN TGA XBM XPM XVTHUMB"
).split()

# Four bytes a pixel, whatever the mode: what Pillow takes for RGB and RGBA alike.
_BYTES_PER_PIXEL = 4


class ImageMediaIO(MediaIO[Image.Image]):
    """Images as upright Pillow images in one mode.

    Args:
        image_mode: Pillow's name of the mode to convert to; None keeps the image's own.
        rgba_background_color: Three ints from 0 to 255: what a transparent image is pasted over
            when `image_mode` is ``"RGB"``.
        max_image_pixels: Width times height allowed; 0 is no limit of ours.
        decoded_budget: The request's budget; None is no budget.
        formats: Pillow's names of the formats to serve; None is `ALLOWED_IMAGE_FORMATS`.
        use_image_id: Whether a UUID in the EXIF tag ImageID stands for the payload in the key.
            Off by default, because it lets the maker of a file choose another item's identity.

    Raises:
        ValueError: An argument is out of its range.
    """

    def __init__(
        self,
        image_mode: str | None = "RGB",
        *,
        rgba_background_color: Sequence[int] = (255, 255, 255),
        max_image_pixels: int = DEFAULT_MAX_IMAGE_PIXELS,
        decoded_budget: DecodedBudget | None = None,
        formats: Collection[str] | None = None,
        use_image_id: bool = False,
    ) -> None:
        if not (
            isinstance(rgba_background_color, (list, tuple))
            and len(rgba_background_color) == 3
            and all(type(level) is int and 0 <= level <= 255 for level in rgba_background_color)
        ):
            raise ValueError("rgba_background_color must be three ints from 0 to 255")
        if max_image_pixels < 0:
            raise ValueError("max_image_pixels must not be negative")
        self.image_mode = image_mode
        self.rgba_background_color: tuple[int, int, int] = tuple(rgba_background_color)
        self.max_image_pixels = max_image_pixels
        self.decoded_budget = decoded_budget
        self.formats = tuple(ALLOWED_IMAGE_FORMATS if formats is None else formats)
        self.use_image_id = use_image_id
        settings: dict[str, Any] = {
            "image_mode": image_mode,
            "rgba_background_color": self.rgba_background_color,
        }
        # Options enter the spec when they are not the default, so that the default keys stay.
        if use_image_id:
            settings["use_image_id"] = True
        self._spec = DecodeSpec(settings)

    def get_decode_spec(self) -> DecodeSpec:
        """Image mode and background; limits and budgets change no pixel and are not in it."""
        return self._spec

    def check_prefix(self, data: bytes) -> NeedMoreBytes | None:
        """Judge an image by its first bytes: format and size.

        Raises:
            LimitError: The image is over `max_image_pixels`.
            UnsupportedMediaError: It is of a format that is not served.
        """
        try:
            header = probe_prefix(data)
        except UnsupportedMediaError:
            raise
        except MediaError:
            # Formats without a magic number, and damage that Pillow may see otherwise, are left
            # to the decode, which has the last word.
            return None
        if isinstance(header, NeedMoreBytes):
            # Format and size may be declared long before the header is whole.
            if header.format is not None:
                self._check_format(header.format)
            if header.size is not None:
                self._check_pixels(*header.size)
            return header
        self._check_format(header.format)
        self._check_pixels(header.width, header.height)
        return None

    def load_bytes(self, data: bytes) -> Image.Image:
        """Decode `data` now: an upright image in `image_mode`, its pixels loaded.

        Raises:
            HeaderError: It is no image, or its header is damaged.
            UnsupportedMediaError: It is of a format that is not served.
            LimitError: It is over `max_image_pixels` or the decode budget.
            DecodeError: Its pixels are damaged or cut short; a partial image is never returned.
        """
        return self.load_bytes_ref(data).decode()

    def load_bytes_ref(self, data: bytes) -> MediaRef[Image.Image]:
        """Return a ref that decodes `data` when asked, as `load_bytes` would.

        The header is read now. One that cannot be read leaves the verdict to the decode.

        Raises:
            LimitError: The image is over `max_image_pixels` or the decode budget.
        """
        data = bytes(data)
        try:
            header = probe(data)
        except MediaError:
            header = None
        charge = None
        if header is not None:
            self._check_pixels(header.width, header.height)
        if self.decoded_budget is not None:
            pixels = 0 if header is None else header.width * header.height
            charge = DecodeCharge(self.decoded_budget, pixels * _BYTES_PER_PIXEL)
        return MediaRef(
            partial(self._decode, data, charge),
            data,
            self._spec,
            key=self._image_id_key(header),
            header=header,
            charge=charge,
        )

    def _image_id_key(self, header: ImageHeader | None) -> bytes | None:
        """The key under a UUID-shaped ImageID, which replaces the payload; None for the default."""
        if not self.use_image_id or header is None or header.image_id is None:
            return None
        try:
            image_id = uuid.UUID(header.image_id)
        except ValueError:
            return None
        return derive_media_key(image_id.bytes, self._spec)

    def _check_format(self, name: str) -> None:
        # MPO is a JPEG with more pictures behind the first; Pillow opens it as one.
        if name not in self.formats and not (name == "MPO" and "JPEG" in self.formats):
            raise UnsupportedMediaError(f"image format {name} is not served")

    def _check_pixels(self, width: int, height: int) -> None:
        pixels = width * height
        if self.max_image_pixels and pixels > self.max_image_pixels:
            raise LimitError(
                f"image is {width}x{height} = {pixels} pixels, "
                f"over max_image_pixels {self.max_image_pixels}",
                limit=self.max_image_pixels,
                actual=pixels,
            )

    def _decode(self, data: bytes, charge: DecodeCharge | None) -> Image.Image:
        image = self._open(data)
        self._check_pixels(*image.size)
        if charge is not None:
            charge.settle(image.width * image.height * _BYTES_PER_PIXEL)
        try:
            image.load()
        except Exception as error:
            # Pillow's plugins raise OSError, SyntaxError, ValueError and more for damaged pixels.
            raise DecodeError("image cannot be decoded: its pixels are damaged") from error
        return self._convert(_upright(image))

    def _open(self, data: bytes) -> Image.Image:
        try:
            return Image.open(io.BytesIO(data), formats=self.formats)
        except Image.DecompressionBombError as error:
            raise LimitError(
                "image is over the limit that Pillow has", limit=Image.MAX_IMAGE_PIXELS
            ) from error
        except UnidentifiedImageError as error:
            raise self._unidentified(data) from error
        except Exception as error:
            raise HeaderError("image cannot be decoded: its header is damaged") from error

    def _unidentified(self, data: bytes) -> MediaError:
        """Say what the bytes are, where that can be told, if Pillow may not or cannot open them."""
        try:
            header = probe(data)
            self._check_format(header.format)
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
                background = Image.new("RGB", image.size, self.rgba_background_color)
                background.paste(image, mask=image.getchannel("A"))
                return background
            return image if image.mode == mode else image.convert(mode)
        except Exception as error:
            raise DecodeError(
                f"image cannot be decoded: mode {image.mode} does not convert to {mode}"
            ) from error


def _upright(image: Image.Image) -> Image.Image:
    """Turn `image` as its EXIF orientation says; unreadable EXIF leaves it as it is."""
    # Not at the top: it takes longer to import than everything else here.
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # noqa: BLE001 - pixels are loaded; damaged metadata must not lose them
        return image
