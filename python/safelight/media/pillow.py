"""Pillow's decoders, whatever the process has told Pillow, and no larger than was admitted.

Owns how a payload is opened, loaded and turned by Pillow's plug-ins, and which of their errors are
of the bytes. Must never open a picture, an outer or an inner one, of a format that is not served,
allocate one before its size was admitted, nor return a part of one.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Collection
from typing import Any

from PIL import Image, ImagePalette

from safelight._safelight import check_jpeg_scans
from safelight.errors import DecodeError, HeaderError, LimitError, MediaError, SafelightError
from safelight.orientation import upright_copy
from safelight.probe import ImageHeader

__all__ = ["Admit", "JPEG_FORMATS", "load_image", "may_open", "raise_unless_of_bytes"]

Admit = Callable[[int, int], None]
"""Called with width and height before as many pixels are made; raises to refuse."""

# JPEG, and what opens as one.
JPEG_FORMATS = frozenset(("JPEG", "MPO"))

# Bytes that plug-ins look at to tell a format.
_MAGIC_BYTES = 16

# What an icon is made of, which no list has to allow.
_ALWAYS_INSIDE = "DIB"

_TIFF_TILE = (322, 323)

# Tiles of so many pixels are common, also in smaller images.
_MAX_SPARE_PIXELS = 1 << 20

# Plug-ins that allocate what no header of Pillow's tells, a canvas or a stream: only after ours.
_NEED_HEADER = frozenset(("AVIF", "WEBP"))

# The limit that Pillow has of itself, whatever the process has made of it.
_PILLOWS_MAX_PIXELS = 2 * 89_478_485


class _Admission:
    """Admits what is larger than all before; what was admitted once is not asked for again."""

    def __init__(self, admit: Admit) -> None:
        self._admit = admit
        self.pixels = 0

    def __call__(self, width: int, height: int) -> None:
        pixels = width * height
        if pixels > self.pixels:
            self._admit(width, height)
            if pixels > _PILLOWS_MAX_PIXELS:
                raise LimitError(
                    f"image is {width}x{height} = {pixels} pixels, over the limit that Pillow has",
                    limit=_PILLOWS_MAX_PIXELS,
                    actual=pixels,
                )
            self.pixels = pixels


def load_image(
    data: bytes,
    header: ImageHeader | None,
    *,
    formats: Collection[str],
    check_format: Callable[[str], None],
    admit: Admit,
    scale: int = 1,
) -> Image.Image | None:
    """Decode `data`, upright, by the first plug-in of `formats` that takes it; None if none does.

    Args:
        data: The encoded image.
        header: What our probe said; None keeps out plug-ins that allocate before they are asked.
        formats: Pillow's names of the formats that may be opened, in the order of trying.
        check_format: Called with the format of a picture inside; raises to refuse.
        admit: Called before a picture is made that is larger than all before, and at last with the
            size of the image.
        scale: A JPEG is decoded to this part of its size: 1, 2, 4 or 8.

    Raises:
        HeaderError: A plug-in knows the format, and the header is damaged.
        DecodeError: The pixels are damaged.
        MediaError: As `check_format` and `admit`.
    """
    # Not at the top: it runs all of Pillow once more, which images of native code do without.
    from safelight.media.pillow_instance import Guard, guarded

    def check_inner(name: str) -> None:
        if name != _ALWAYS_INSIDE:
            check_format(name.upper())

    admission = _Admission(admit)
    with guarded(Guard(check_inner, admission)):
        if header is not None:
            admission(header.width, header.height)
        image = _open(data, formats, header)
        if image is None:
            return None
        admission(*image.size)
        image_format, is_jpeg = image.format, image.format in JPEG_FORMATS
        if is_jpeg:
            check_jpeg_scans(data)
        try:
            _load(image, admission, scale if is_jpeg else 1)
        except Exception as error:
            # Pillow's plug-ins raise OSError, SyntaxError, ValueError and more for damaged pixels.
            raise_unless_of_bytes(error, image_format)
            raise DecodeError("image cannot be decoded: its pixels are damaged") from error
        if not is_jpeg and admission.pixels != image.width * image.height:
            # What is kept is of another size than what was opened, or stood inside.
            admit(*image.size)
        is_same = header is not None and _is_same(header.format, image_format)
        orientation = header.orientation if header is not None and is_same else None
        return _published(upright_copy(image, orientation))


def _load(image: Any, admission: _Admission, scale: int) -> None:
    if image.format == "TIFF":
        tile = [image.tag_v2.get(tag) for tag in _TIFF_TILE]
        if all(isinstance(side, int) for side in tile):
            width, height = tile
            # A tile is decoded whole, however little of it is in the image.
            if width * height > max(image.width * image.height, _MAX_SPARE_PIXELS):
                admission(width, height)
    if scale > 1:
        # Pillow takes the largest scale at which both sides are at least these.
        image.draft(None, (max(1, image.width // scale), max(1, image.height // scale)))
    image.load()


def may_open(prefix: bytes, formats: Collection[str]) -> bool:
    """Whether Pillow may open what begins with `prefix`, some kilobytes of a payload."""
    from safelight.media.pillow_instance import Guard, guarded

    # A magic number is enough: what stands behind it may lie far behind the prefix.
    openers = {name: _opener(name) for name in formats}
    accepts = [opener[1] for opener in openers.values() if opener is not None and opener[1]]
    if any(accept(prefix[:_MAGIC_BYTES]) is True for accept in accepts):
        return True
    nameless = [name for name, opener in openers.items() if opener is not None and not opener[1]]
    try:
        with guarded(Guard(lambda _: None, _refuse)):
            return _open(prefix, nameless, None) is not None
    except MediaError:
        return True  # whatever it is, the whole payload may fare better


def raise_unless_of_bytes(error: Exception, image_format: str | None = None) -> None:
    """Raise `error` unless damaged bytes may have caused it: the server's faults are its own."""
    is_runtimes = isinstance(error, RuntimeError) and not isinstance(
        error, (NotImplementedError, RecursionError)
    )
    # This plug-in reports a stream that does not decode so; for lack of memory it has MemoryError.
    if image_format == "AVIF":
        is_runtimes = False
    if is_runtimes or isinstance(error, (MemoryError, SafelightError)):
        raise error


def _open(data: bytes, formats: Collection[str], header: ImageHeader | None) -> Any:
    """As ``Image.open``, which tries formats in an order of its own."""
    for name in formats:
        opener = _opener(name)
        if opener is None or (header is None and name in _NEED_HEADER):
            continue
        factory, accept = opener
        try:
            if accept is None or accept(data[:_MAGIC_BYTES]) is True:
                return factory(io.BytesIO(data), "")
        except (SyntaxError, IndexError, TypeError, struct.error):
            # Pillow takes these for the word of a plug-in that knows another format.
            continue
        except Exception as error:
            raise_unless_of_bytes(error, name)
            raise HeaderError("image cannot be decoded: its header is damaged") from error
    return None


def _opener(name: str) -> tuple[Callable[..., Any], Callable[[bytes], Any] | None] | None:
    """Return the plug-in for `name` and its test of a magic number, where it has one."""
    from safelight.media import pillow_instance

    # A plug-in that is not Pillow's own is registered by the process, and used as it is.
    own: dict[str, Any] = pillow_instance.Image.OPEN
    opener: tuple[Callable[..., Any], Callable[[bytes], Any] | None] | None
    opener = own.get(name) or Image.OPEN.get(name)
    return opener


def _is_same(probed: str, opened: str | None) -> bool:
    """Whether the probe and Pillow took a payload for the same format."""
    return probed == opened or {probed, opened} <= JPEG_FORMATS


def _published(image: Any) -> Image.Image:
    """Return `image`, of our own Pillow, as one of everybody's, which has the same code."""
    published: Image.Image = image
    if not isinstance(image, Image.Image):
        image.__class__ = Image.Image
        # Read anew by whoever asks; the pixels are upright, and what is left is in `info`.
        image._exif = None
        if image.palette is not None:
            image.palette.__class__ = ImagePalette.ImagePalette
    return published


def _refuse(width: int, height: int) -> None:
    raise HeaderError(f"a picture of {width}x{height} pixels inside a header")
