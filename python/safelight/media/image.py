"""`ImageMediaIO`: images, from bytes to a ref to pixels.

Owns the image entry points, their options and limits, and the identity of what they give. How
pixels are made is `safelight.media.decode`'s. Must never decode while it makes a ref.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, get_args

from PIL import Image

from safelight.budget import Charge, DecodedBudget
from safelight.errors import HeaderError, LimitError, MediaError, UnsupportedMediaError
from safelight.foreign import is_image
from safelight.key import derive_media_key, derive_media_keys
from safelight.media.base import MediaIO, outcome
from safelight.media.decode import ImageDecode, Prepared, prepared, prepared_for
from safelight.media.form import Decoder, ImageForm, Output, Scale
from safelight.media.pillow import may_open
from safelight.media.plain import plain
from safelight.probe import ImageHeader, NeedMoreBytes, probe, probe_prefix
from safelight.ref import MediaRef
from safelight.spec import DecodeSpec

__all__ = ["ALLOWED_IMAGE_FORMATS", "DEFAULT_MAX_IMAGE_PIXELS", "ImageMediaIO"]

# A quarter of a GiB of RGB pixels, the limit that Pillow warns at.
DEFAULT_MAX_IMAGE_PIXELS = 178_956_970

# What Pillow may open, the common ones first because Pillow tries them in this order. Absent: EPS
# (may start Ghostscript), WMF, BUFR, GRIB, HDF5 and MPEG (stubs or native handlers), FITS (unpacks
# gzip without bound), MSP (unpacks rows without bound), and IPTC and BLP, which open a picture of
# any format and size that they hold. MPO opens through JPEG.
ALLOWED_IMAGE_FORMATS = (
    "JPEG PNG WEBP GIF BMP TIFF AVIF CUR DCX DDS DIB FLI FTEX GBR ICNS ICO IM IMT "
    "JPEG2000 MCIDAS PCD PCX PIXAR PPM PSD QOI SGI SPIDER SUN TGA XBM XPM XVTHUMB"
).split()

# What a payload that no probe knows is judged by: every format of the list shows itself before.
_UNKNOWN_BYTES = 4096


class ImageMediaIO(MediaIO[Any]):
    """Images as upright Pillow images in one mode.

    A subclass that overrides `load_bytes` is asked for the media of every ref, whoever decodes it;
    it may call ``super().load_bytes`` with the payload or another. One that overrides
    `_convert_image_mode` gets each image as Pillow decodes it. What its result depends on, it names
    in `get_decode_spec`.

    Args:
        image_mode: Pillow's name of the mode to convert to; None keeps the image's own.
        rgba_background_color: Three ints from 0 to 255: what a transparent image is pasted over
            when `image_mode` is ``"RGB"``.
        max_image_pixels: Width times height allowed; 0 is no limit of ours.
        decoded_budget: The request's budget; None is no budget.
        formats: Pillow's names of the formats to serve; None is `ALLOWED_IMAGE_FORMATS`.
        use_image_id: Whether a UUID in the EXIF tag ImageID stands for the payload in the key.
            Off by default, because it lets the maker of a file choose another item's identity.
        output: ``"pil"``, a Pillow image, which may share memory until it is first changed, as one
            that Pillow maps from a file (``load()`` gives access to read until then);
            ``"numpy"``, a writable C-contiguous uint8 array of shape ``[height, width, channels]``
            (``[height, width]`` for modes of one channel); or ``"torch"``, a tensor over such an
            array.
        decoder: ``"native"`` lets native code decode what it decodes exactly; ``"pillow"`` does
            not. For all formats, or a mapping by format. The result is the same.
        scale: ``"1/2"``, ``"1/4"`` or ``"1/8"`` decodes a JPEG to that part of its width and
            height, rounded up, as Pillow's ``draft`` does: for less work, and to other pixels than
            a resize gives. Other formats keep their size. None is the full size.

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
        output: Output = "pil",
        decoder: Decoder | Mapping[str, Decoder] = "native",
        scale: Scale | None = None,
    ) -> None:
        if not (
            isinstance(rgba_background_color, (list, tuple))
            and len(rgba_background_color) == 3
            and all(type(level) is int and 0 <= level <= 255 for level in rgba_background_color)
        ):
            raise ValueError("rgba_background_color must be three ints from 0 to 255")
        if max_image_pixels < 0:
            raise ValueError("max_image_pixels must not be negative")
        if output not in get_args(Output):
            raise ValueError(f"output must be one of {', '.join(get_args(Output))}")
        decoders = decoder.values() if isinstance(decoder, Mapping) else [decoder]
        if not all(name in get_args(Decoder) for name in decoders):
            raise ValueError(f"decoder must be one of {', '.join(get_args(Decoder))}")
        self.image_mode = image_mode
        self.rgba_background_color: tuple[int, int, int] = tuple(rgba_background_color)
        self.max_image_pixels = max_image_pixels
        self.decoded_budget = decoded_budget
        self.use_image_id = use_image_id
        settings: dict[str, Any] = {
            "image_mode": image_mode,
            "rgba_background_color": self.rgba_background_color,
        }
        # Options enter the spec when they are not the default, so that the default keys stay.
        served = tuple(ALLOWED_IMAGE_FORMATS if formats is None else formats)
        if served != tuple(ALLOWED_IMAGE_FORMATS):
            # One file may be of two formats, and the first that is served opens it.
            settings["formats"] = served
        if use_image_id:
            settings["use_image_id"] = True
        if output != "pil":
            settings["output"] = output
        if scale is not None:
            settings["scale"] = scale
        self._spec = DecodeSpec(settings)
        # Learnt at the first decode: whether an override of `load_bytes` never asks the default.
        self.decodes_itself = False
        self.form = ImageForm(
            image_mode=image_mode,
            background=self.rgba_background_color,
            output=output,
            formats=served,
            decoder=decoder,
            scale=scale,
        )

    def get_decode_spec(self) -> DecodeSpec:
        """Image mode and background, and what else changes pixels where it is not the default.

        Limits and budgets change no pixel and are not in it.
        """
        return self._spec

    def check_prefix(self, data: bytes) -> NeedMoreBytes | None:
        """Judge an image by its first bytes: format and size.

        Raises:
            LimitError: The image is over `max_image_pixels`.
            UnsupportedMediaError: It is of a format that is not served.
            HeaderError: It is no image at all.
        """
        try:
            header = probe_prefix(data)
        except MediaError as error:
            self._check_declared(error)
            # Not an answer yet: some formats have no magic number, some the probe knows by name
            # alone, and Pillow may see damage otherwise. It is asked once there is enough to go by.
            if len(data) < _UNKNOWN_BYTES:
                return NeedMoreBytes(_UNKNOWN_BYTES)
            if may_open(data, self.form.formats):
                return None
            if isinstance(error, UnsupportedMediaError):
                raise
            raise HeaderError("not an image of any served format") from error
        if isinstance(header, NeedMoreBytes):
            # Format and size may be declared long before the header is whole.
            if header.format is not None:
                self.form.check_format(header.format)
            if header.size is not None:
                self.check_pixels(*header.size)
            return header
        self.form.check_format(header.format)
        self.check_pixels(header.width, header.height)
        return None

    def load_bytes(self, data: bytes) -> Any:
        """Decode `data` now: an upright image in `image_mode`, in the form of `output`.

        Raises:
            HeaderError: It is no image, or its header is damaged.
            UnsupportedMediaError: It is of a format that is not served.
            LimitError: It is over `max_image_pixels` or the decode budget.
            DecodeError: Its pixels are damaged or cut short; a partial image is never returned.
        """
        # Without a ref, whose identity is a hash of all bytes.
        data = bytes(data)
        made = prepared_for(data)
        if made is not None and made.decode is not None:
            return made.decode.run(made)
        decode = self._judge(data, _probe(data))
        return decode.run(Prepared(data, decode=decode))

    def load_bytes_ref(self, data: bytes) -> MediaRef[Any]:
        """Return a ref that decodes `data` when asked, as `load_bytes` would.

        The header is read now. One that cannot be read leaves the verdict to the decode.

        Raises:
            LimitError: The image is over `max_image_pixels` or the decode budget.
        """
        data = bytes(data)
        made = prepared_for(data)
        if made is None:
            header = _probe(data)
            key = self._image_id_key(header)
        else:
            header, key = made.header, made.key
        decode = self._judge(data, header)
        return MediaRef(
            decode,
            data,
            self.get_decode_spec(),
            key=key,
            header=self._scaled(header),
            charge=decode.charge,
        )

    def load_bytes_refs(self, payloads: Sequence[bytes]) -> list[MediaRef[Any] | Exception]:
        """As `load_bytes_ref` for each; their keys are derived in one call, on several cores."""
        payloads = [bytes(data) for data in payloads]
        headers = [_probe(data) for data in payloads]
        keys = [self._image_id_key(header) for header in headers]
        unnamed = [data for data, key in zip(payloads, keys, strict=True) if key is None]
        derived = iter(derive_media_keys(unnamed, self.get_decode_spec()))
        refs: list[MediaRef[Any] | Exception] = []
        for data, header, image_id_key in zip(payloads, headers, keys, strict=True):
            key = next(derived) if image_id_key is None else image_id_key
            with prepared(Prepared(data, header, key)):
                refs.append(outcome(self.load_bytes_ref, data))
        return refs

    def copy(self, media: Any) -> Any:
        """Return a copy of decoded media, charged to the decode budget as a decode of it is.

        Raises:
            LimitError: The copy is over the decode budget.
        """
        if self.decoded_budget is None:
            return super().copy(media)
        width, height = media.size if is_image(media) else media.shape[1::-1]
        with Charge(self.decoded_budget, self.form.decoded_bytes(None, width, height)):
            return super().copy(media)

    def _judge(self, data: bytes, header: ImageHeader | None) -> ImageDecode:
        """Return the deferred decode of what is within the limits, charged to the budget."""
        charge = None
        if header is None:
            # The decode has the last word on what is damaged, but not on what is too large.
            try:
                probe(data)
            except MediaError as error:
                self._check_declared(error)
        else:
            self.check_pixels(header.width, header.height)
        if self.decoded_budget is not None:
            size = (0, 0) if header is None else (header.width, header.height)
            charge = Charge(self.decoded_budget, self.form.decoded_bytes(header, *size))
        return ImageDecode(self, data, header, charge)

    def _image_id_key(self, header: ImageHeader | None) -> bytes | None:
        """The key under a UUID-shaped ImageID, which replaces the payload; None for the default."""
        if not self.use_image_id or header is None or header.image_id is None:
            return None
        try:
            image_id = uuid.UUID(header.image_id)
        except ValueError:
            return None
        return derive_media_key(image_id.bytes, self.get_decode_spec())

    def _scaled(self, header: ImageHeader | None) -> ImageHeader | None:
        """`header` with the size that the decode gives, by which a ref is laid out undecoded."""
        if header is None:
            return header
        size = (header.width, header.height)
        width, height = self.form.scaled_size(header.format, size)
        if (width, height) == size:
            return header
        return ImageHeader(
            format=header.format,
            width=width,
            height=height,
            mode=header.mode,
            bits=header.bits,
            has_alpha=header.has_alpha,
            is_animated=header.is_animated,
            frame_count=header.frame_count,
            orientation=header.orientation,
            image_id=header.image_id,
            image_unique_id=header.image_unique_id,
        )

    @plain
    def _convert_image_mode(self, image: Image.Image) -> Image.Image:
        """Return a decoded image in `image_mode`. Where it is overridden, Pillow decodes."""
        return self.form.convert(image)

    def _check_declared(self, error: MediaError) -> None:
        """Refuse what had declared too large a size before its header failed with `error`."""
        if isinstance(error, (HeaderError, UnsupportedMediaError)) and error.size is not None:
            self.check_pixels(*error.size)

    def check_pixels(self, width: int, height: int) -> None:
        """Refuse an image of more than `max_image_pixels`.

        Raises:
            LimitError: It is.
        """
        pixels = width * height
        if self.max_image_pixels and pixels > self.max_image_pixels:
            raise LimitError(
                f"image is {width}x{height} = {pixels} pixels, "
                f"over max_image_pixels {self.max_image_pixels}",
                limit=self.max_image_pixels,
                actual=pixels,
            )


def _probe(data: bytes) -> ImageHeader | None:
    """The header, or None where it leaves the verdict to the decode."""
    try:
        return probe(data)
    except MediaError:
        return None
