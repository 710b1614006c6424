"""`ImageDecode`: the deferred decode of one image, by native code where it is exact, else Pillow.

Owns the order of a decode: format, limit and budget before a pixel is touched. Its media is what
``load_bytes`` of the decoder gives, which a subclass may override; what has been made for a payload
before an override is called waits here for the default. Must never decode but when it is called.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import EllipsisType
from typing import Any, Protocol

from PIL import Image

from safelight._safelight import DecodeRequest, Pixels, decode_image
from safelight.budget import Charge
from safelight.errors import HeaderError, MediaError, UnsupportedMediaError
from safelight.media.form import ImageForm
from safelight.media.pillow import load_image
from safelight.media.plain import is_plain
from safelight.probe import ImageHeader, probe

__all__ = ["ImageDecode", "ImageDecoder", "Prepared", "prepared", "prepared_for"]


class ImageDecoder(Protocol):
    """What a decode asks of the `ImageMediaIO` that it is of."""

    form: ImageForm
    decodes_itself: bool

    def check_pixels(self, width: int, height: int) -> None:
        """Refuse too large an image."""

    def load_bytes(self, data: bytes) -> Any:
        """Return the media of a payload."""

    def _convert_image_mode(self, image: Image.Image) -> Image.Image: ...


class ImageDecode:
    """The deferred decode of one image: a `NativeDecoder` and a `SharedDecoder`."""

    __slots__ = ("_header", "_io", "charge", "data")

    def __init__(
        self, io: ImageDecoder, data: bytes, header: ImageHeader | None, charge: Charge | None
    ) -> None:
        self._io = io
        self._header = header
        self.data = data
        self.charge = charge

    def __call__(self) -> Any:
        """As `NativeDecoder`."""
        return self._load(...)

    def finish(self, pixels: Pixels | None) -> Any:
        """As `NativeDecoder`."""
        return self._load(pixels)

    def _load(self, pixels: Pixels | EllipsisType | None) -> Any:
        made = Prepared(self.data, self._header, decode=self, pixels=pixels)
        with prepared(made):
            media = self._io.load_bytes(self.data)
        if not made.is_used:
            # A subclass decodes by itself: native code need not decode for it in vain.
            self._io.decodes_itself = True
        return media

    def run(self, made: Prepared) -> Any:
        """Decode as `ImageMediaIO` does, from what has been made already.

        Raises:
            MediaError: It cannot be decoded, or is over the limit or the budget.
        """
        made.is_used = True
        form, header, pixels = self._io.form, self._header, made.pixels
        if pixels is ...:
            request = None if header is None else self._native_request(header)
            pixels = None
            if header is not None and request is not None:
                form.check_format(header.format)
                self._admit(header.width, header.height)
                pixels = decode_image(self.data, request)
        if pixels is None:
            return self._run_by_pillow()
        assert header is not None
        self._admit(header.width, header.height)
        return form.from_pixels(pixels)

    def _run_by_pillow(self) -> Any:
        form = self._io.form
        image = load_image(
            self.data,
            self._header,
            formats=form.formats,
            check_format=form.check_format,
            admit=self._admit,
            scale=form.divisor,
        )
        if image is None:
            raise self._unidentified()
        return form.from_pillow(image, self._io._convert_image_mode)

    def _unidentified(self) -> MediaError:
        """Say what the bytes are, where that can be told, if Pillow may not or cannot open them."""
        try:
            header = probe(self.data)
            self._io.form.check_format(header.format)
        except UnsupportedMediaError as error:
            return error
        except MediaError:
            return HeaderError("not an image of any served format, or its header is damaged")
        return HeaderError(f"{header.format} image cannot be decoded: its header is damaged")

    def native_request(self) -> DecodeRequest | None:
        """As `NativeDecoder`; None also where the decode will refuse."""
        header = self._header
        if header is None or self._io.decodes_itself:
            return None
        request = self._native_request(header)
        if request is not None:
            try:
                self._io.form.check_format(header.format)
                self._reserve(header.width, header.height)
            except MediaError:
                return None
        return request

    def _native_request(self, header: ImageHeader) -> DecodeRequest | None:
        # Native code converts as it decodes; a conversion that is overridden needs what is before.
        if not is_plain(self._io._convert_image_mode):
            return None
        return self._io.form.native_request(header)

    @property
    def scope(self) -> object:
        """As `SharedDecoder`."""
        # Without a header nothing says what this ref would refuse.
        return None if self._header is None else type(self._io)

    def adopt(self, media: Any) -> Any:
        """As `SharedDecoder`."""
        assert self._header is not None
        self._io.form.check_format(self._header.format)
        self._admit(self._header.width, self._header.height)
        return self._io.form.copy(media)

    def _reserve(self, width: int, height: int) -> None:
        # Not for good: the job may be withdrawn.
        self._io.check_pixels(width, height)
        if self.charge is not None:
            self.charge.reserve(self._io.form.decoded_bytes(self._header, width, height))

    def _admit(self, width: int, height: int) -> None:
        self._io.check_pixels(width, height)
        if self.charge is not None:
            self.charge.settle(self._io.form.decoded_bytes(self._header, width, height))


class Prepared:
    """What has been made for one payload before a method that a subclass may override is called."""

    __slots__ = ("data", "decode", "header", "is_used", "key", "pixels")

    def __init__(
        self,
        data: bytes,
        header: ImageHeader | None = None,
        key: bytes | None = None,
        *,
        decode: ImageDecode | None = None,
        pixels: Pixels | EllipsisType | None = ...,
    ) -> None:
        self.data = data
        self.header = header
        self.key = key
        self.decode = decode
        # Of native code; None is that it declined, ... that it has not been asked.
        self.pixels = pixels
        self.is_used = False


_current: ContextVar[Prepared | None] = ContextVar("prepared", default=None)


def prepared_for(data: bytes) -> Prepared | None:
    """Return what has been made for `data` by a caller of this thread."""
    made = _current.get()
    # By identity: what a subclass makes of a payload is another payload.
    return made if made is not None and made.data is data else None


@contextmanager
def prepared(made: Prepared) -> Iterator[None]:
    """Let methods that are called in the ``with`` block find `made`."""
    token = _current.set(made)
    try:
        yield
    finally:
        _current.reset(token)
