"""Pillow's decoders, whatever else the process has told Pillow, and no larger than was admitted.

Owns how a payload is opened and loaded by Pillow's plug-ins. Must never let a plug-in open a
picture inside another before its header has been judged, nor return a part of a picture.
"""

from __future__ import annotations

import io
import os
import struct
import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from PIL import GifImagePlugin, Image, ImageFile, TiffImagePlugin

from safelight.errors import (
    HeaderError,
    LimitError,
    MediaError,
    SafelightError,
    UnsupportedMediaError,
)
from safelight.probe import ImageHeader, probe

__all__ = ["judge_inner", "may_open", "open_image", "raise_unless_of_bytes", "undisturbed"]

T = TypeVar("T")

Judge = Callable[[str, int, int], None]
"""Called with Pillow's name of a format, width and height; raises to refuse."""

# Bytes that plug-ins look at to tell a format.
_MAGIC_BYTES = 16
_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_JPEG2000_MAGICS = (b"\xff\x4f\xff\x51", b"\r\n\x87\n", b"\0\0\0\x0cjP  \r\n\x87\n")

# Sizes of a bitmap's header: this one has sides of 16 bits, all others of 32.
_CORE_HEADER = 12
_BLP_OF_JPEG = bytes(4)
_TIFF_TILE = (322, 323)
# Tiles of so many pixels are common, also in small images.
_MAX_SPARE_PIXELS = 1 << 20
_MAX_ATTEMPTS = 3

# Pillow warns of an image of more pixels than the first, and refuses one of more than the second.
_PILLOWS_WARNING_PIXELS = 89_478_485
_PILLOWS_MAX_PIXELS = 2 * _PILLOWS_WARNING_PIXELS

# What changes Pillow's result for the whole process, with the values that Pillow itself gives it.
_SETTINGS: tuple[tuple[Any, str, Any], ...] = (
    (ImageFile, "LOAD_TRUNCATED_IMAGES", False),
    (GifImagePlugin, "LOADING_STRATEGY", GifImagePlugin.LoadingStrategy.RGB_AFTER_FIRST),
    (TiffImagePlugin, "READ_LIBTIFF", False),
    (Image, "MAX_IMAGE_PIXELS", _PILLOWS_WARNING_PIXELS),
)

# Plug-ins that allocate what no header of Pillow's tells, a canvas or a stream: only after ours.
_NEED_HEADER = frozenset(("AVIF", "WEBP"))


class _Settings:
    """Pillow's own settings for as long as anybody is inside; then those of the process again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._overridden: list[tuple[Any, str, Any]] = []

    @contextmanager
    def held(self) -> Iterator[None]:
        """Give the settings the values that Pillow has of itself."""
        with self._lock:
            self._users += 1
            # Also by those who come later: the process may have set one meanwhile.
            for module, name, value in _SETTINGS:
                if getattr(module, name) != value:
                    self._overridden.append((module, name, getattr(module, name)))
                    setattr(module, name, value)
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self.give_back()

    def give_back(self) -> None:
        """Set what was overridden to what the process had last."""
        for module, name, value in self._overridden:
            setattr(module, name, value)
        self._overridden.clear()


_settings = _Settings()
# Filters of warnings belong to the process: one thread at a time replaces them.
_warnings_lock = threading.Lock()


def _reset_after_fork() -> None:
    # A thread that was inside is not there: its lock may be held, its settings are overridden.
    global _settings, _warnings_lock
    _settings.give_back()
    _settings, _warnings_lock = _Settings(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def undisturbed(call: Callable[[], T]) -> T:
    """Return what `call` makes with Pillow, whatever the process has set.

    No setting of Pillow's for the whole process counts, and a warning that was made an error does
    not end the call: it is then called once more.
    """
    for _ in range(_MAX_ATTEMPTS):
        with _settings.held():
            try:
                result = call()
            except Warning:
                with _warnings_lock, warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    result = call()
            if all(getattr(module, name) == value for module, name, value in _SETTINGS):
                return result
    raise RuntimeError("the process changes Pillow's settings all the time")


def open_image(
    data: bytes, formats: Collection[str], header: ImageHeader | None
) -> Image.Image | None:
    """Open `data` by the first plug-in of `formats` that takes it; None if none does.

    As ``Image.open``, with the limit of pixels that Pillow has of itself, where it is an error.

    Args:
        data: The encoded image.
        formats: Pillow's names of the formats that may be opened, in the order of trying.
        header: What our probe said; None keeps out plug-ins that allocate before they are asked.

    Raises:
        HeaderError: A plug-in knows the format, and the header is damaged.
        LimitError: The image is over Pillow's limit.
    """
    Image.init()
    for name in formats:
        if name not in Image.OPEN or (header is None and name in _NEED_HEADER):
            continue
        factory, accept = Image.OPEN[name]
        try:
            if accept is not None and accept(data[:_MAGIC_BYTES]) is not True:
                continue
            image: Image.Image = factory(io.BytesIO(data), "")
        except (SyntaxError, IndexError, TypeError, struct.error):
            # Pillow takes these for the word of a plug-in that knows another format.
            continue
        except Exception as error:
            raise_unless_of_bytes(error)
            if isinstance(error, Image.DecompressionBombError):
                raise _over_pillows_limit(None) from error
            raise HeaderError("image cannot be decoded: its header is damaged") from error
        if image.width * image.height > _PILLOWS_MAX_PIXELS:
            raise _over_pillows_limit(image.width * image.height)
        return image
    return None


def _over_pillows_limit(pixels: int | None) -> LimitError:
    return LimitError(
        "image is over the limit that Pillow has", limit=_PILLOWS_MAX_PIXELS, actual=pixels
    )


def raise_unless_of_bytes(error: Exception) -> None:
    """Raise `error` unless damaged bytes may have caused it: the server's faults are its own."""
    is_runtimes = isinstance(error, RuntimeError) and not isinstance(
        error, (NotImplementedError, RecursionError)
    )
    if is_runtimes or isinstance(error, (MemoryError, Warning, SafelightError)):
        raise error


def judge_inner(image: Image.Image, data: bytes, judge: Judge) -> None:
    """Judge the pictures that the plug-in of `image` is going to open inside it.

    Args:
        image: An image that was opened and is not loaded.
        data: Its payload.
        judge: Called with format, width and height of each; raises to refuse.

    Raises:
        MediaError: One is refused, or its header cannot be read.
    """
    if image.format == "ICO":
        entry = image.ico.entry[image.ico.getentryindex(image.size)]  # type: ignore[attr-defined]
        inner = data[entry.offset :]
        if inner.startswith(_PNG_MAGIC):
            _judge_probed(inner, judge)
        else:
            judge("DIB", *_dib_size(inner))
    elif image.format == "ICNS":
        icns, size = image.icns, image.best_size  # type: ignore[attr-defined]
        for code, _ in icns.SIZES[size]:
            start, length = icns.dct.get(code, (0, 0))
            inner = data[start : start + length]
            if inner.startswith((_PNG_MAGIC, *_JPEG2000_MAGICS)):
                _judge_probed(inner, judge)
    elif image.format == "IPTC" or (image.format == "BLP" and data[4:8] == _BLP_OF_JPEG):
        # Opened whatever it is, by rules of the plug-in's own.
        raise UnsupportedMediaError(f"pictures inside {image.format} are not served")
    elif image.format == "TIFF":
        tile = [image.tag_v2.get(tag) for tag in _TIFF_TILE]  # type: ignore[attr-defined]
        if all(isinstance(side, int) for side in tile):
            width, height = tile
            # A tile is decoded whole, however little of it is in the image.
            if width * height > max(image.width * image.height, _MAX_SPARE_PIXELS):
                judge("TIFF", width, height)


def _judge_probed(inner: bytes, judge: Judge) -> None:
    header = probe(inner)
    judge(header.format, header.width, header.height)


def _dib_size(inner: bytes) -> tuple[int, int]:
    """Width and height of a bitmap in an icon, which has a mask of as many rows below it."""
    try:
        (size,) = struct.unpack_from("<I", inner)
        width, height = struct.unpack_from("<HH" if size == _CORE_HEADER else "<ii", inner, 4)
    except struct.error:
        raise HeaderError("image cannot be decoded: its header is damaged") from None
    return abs(width), abs(height) // 2


def may_open(prefix: bytes, formats: Collection[str]) -> bool:
    """Whether Pillow may open what begins with `prefix`, some kilobytes of a payload."""
    Image.init()
    openers = {name: Image.OPEN[name] for name in formats if name in Image.OPEN}
    # A magic number is enough: what stands behind it may lie far behind the prefix.
    if any(accept and accept(prefix[:_MAGIC_BYTES]) is True for _, accept in openers.values()):
        return True
    nameless = [name for name, (_, accept) in openers.items() if accept is None]
    try:
        return undisturbed(lambda: open_image(prefix, nameless, None)) is not None
    except MediaError:
        return True  # whatever it is, the whole payload may fare better
