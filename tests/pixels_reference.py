"""What Pillow makes of an image file, and how to compare a native decode with it.

Owns the judgment of the `test_pixels*` modules and builders of raw files. Decodes nothing itself.
"""

from __future__ import annotations

import hashlib
import io
import random
import re
import struct
import warnings
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from safelight._safelight import DecodeRequest, Pixels, decode_image

WHITE = (255, 255, 255)
# An orientation that swaps the sides, and the transposition that undoes it.
TURNED = (6, Image.Transpose.ROTATE_270)

# Bit depth, color type and samples a pixel of every combination that PNG has.
PNG_KINDS = [
    *((bits, 0, 1) for bits in (1, 2, 4, 8, 16)),
    *((bits, 2, 3) for bits in (8, 16)),
    *((bits, 3, 1) for bits in (1, 2, 4, 8)),
    *((bits, 4, 2) for bits in (8, 16)),
    *((bits, 6, 4) for bits in (8, 16)),
]
ADAM7 = [
    (0, 0, 8, 8),
    (4, 0, 8, 8),
    (0, 4, 4, 8),
    (2, 0, 4, 4),
    (0, 2, 2, 4),
    (1, 0, 2, 2),
    (0, 1, 1, 2),
]


def encode(image: Image.Image, format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def open_with_pillow(data: bytes) -> Image.Image | None:
    """The loaded first frame; None where Pillow refuses the file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = Image.open(io.BytesIO(data))
            image.load()
        except Exception:
            return None
        return image


def over(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    """`image` as RGB, pasted over `background` where it has any transparency."""
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        clear = image.convert("RGBA")
        paper = Image.new("RGB", image.size, background)
        paper.paste(clear, mask=clear.getchannel("A"))
        return paper
    return image.convert("RGB")


def pixel_bytes(pixels: Pixels) -> bytes:
    """The pixels as `Image.tobytes` gives them."""
    array = np.asarray(pixels)
    return (np.packbits(array > 0, axis=1) if pixels.mode == "1" else array).tobytes()


def digest(pixels: Pixels) -> str:
    return hashlib.sha256(pixel_bytes(pixels)).hexdigest()


def native(data: bytes, mode: str | None, *options: Any, orientation: int = 1) -> Pixels:
    pixels = decode_image(data, DecodeRequest(mode, *(options or (None,)), 0, orientation))
    assert pixels is not None
    return pixels


def assert_as_pillow(data: bytes, *, is_served: bool | None = None) -> bool:
    """Compare every target mode with Pillow; whether native code served the file.

    A declined file is no difference, because Pillow then decodes it; `is_served` says that it
    must, or must not, be declined.
    """
    pixels = decode_image(data, DecodeRequest(None, None, 0))
    if is_served is not None:
        assert (pixels is not None) == is_served
    if pixels is None:
        return False
    image = open_with_pillow(data)
    if image is None:
        assert has_unknown_codes(data), "native code accepts what Pillow refuses"
        return True
    assert (pixels.mode, pixels.size) == (image.mode, image.size)
    assert pixel_bytes(pixels) == image.tobytes()
    assert pixels.transparency == image.info.get("transparency")
    if image.mode == "P":
        assert list(pixels.palette or b"") == image.getpalette()
    for mode in ("L", "RGB", "RGBA"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of alphas that the mode drops
            expected = image.convert(mode)
        assert pixel_bytes(native(data, mode)) == expected.tobytes(), mode
    for background in (WHITE, (10, 200, 77)):
        pasted = over(image, background)
        assert pixel_bytes(native(data, "RGB", background)) == pasted.tobytes()
    padded = np.asarray(native(data, "RGBX", WHITE))
    assert padded[..., :3].tobytes() == over(image, WHITE).tobytes()
    assert (padded[..., 3] == 255).all()
    orientation, method = TURNED
    turned = native(data, "RGB", WHITE, orientation=orientation)
    assert turned.size == (image.height, image.width)
    assert pixel_bytes(turned) == over(image.transpose(method), WHITE).tobytes()
    turned = native(data, None, orientation=orientation)
    assert pixel_bytes(turned) == image.transpose(method).tobytes()
    return True


# What zlib says of the streams under "What differs" in the README of safelight-pixels.
UNKNOWN_CODES = re.compile(
    "invalid (distance|literal/length) code|missing end-of-block|too many length or distance"
)


def has_unknown_codes(data: bytes) -> bool:
    """Whether a deflate stream of a PNG or TIFF has codes that libdeflate is known to let pass."""
    if data.startswith(b"\x89PNG"):
        streams = [b"".join(body for name, body in chunks(data) if name == b"IDAT")]
    elif data[:4] in (b"II*\0", b"MM\0*"):
        streams = list(deflated_strips(data))
    else:
        return False
    for stream in streams:
        try:
            zlib.decompress(stream)
        except zlib.error as error:
            if UNKNOWN_CODES.search(str(error)):
                return True
    return False


def deflated_strips(data: bytes) -> Iterator[bytes]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tags = Image.open(io.BytesIO(data)).tag_v2  # type: ignore[attr-defined]
            places = list(zip(tags[273], tags[279], strict=True))
        except Exception:
            return
    if tags.get(259) in (8, 32946):
        yield from (data[start : start + count] for start, count in places)


def chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The chunks of a PNG, as far as they are whole."""
    at = 8
    while at + 12 <= len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        body = data[at + 8 : at + 8 + length]
        if len(body) < length:
            return
        yield data[at + 4 : at + 8], body
        at += 12 + length


def with_right_checksums(data: bytes) -> bytes:
    """A PNG whose chunks all have the checksum of what they hold; its last may be cut off."""
    return data[:8] + b"".join(chunk(name, body) for name, body in chunks(data))


def upright(data: bytes) -> Image.Image:
    image = open_with_pillow(data)
    assert image is not None
    return ImageOps.exif_transpose(image)


def chunk(name: bytes, body: bytes, damage: int = 0) -> bytes:
    crc = zlib.crc32(name + body) ^ damage
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", crc)


def png(
    size: tuple[int, int],
    bits: int,
    color_type: int,
    raw: bytes,
    *,
    before: bytes = b"",
    after: bytes = b"",
    is_interlaced: bool = False,
    stream: bytes | None = None,
) -> bytes:
    """A PNG of filtered rows `raw`, with chunks `before` and `after` the pixels."""
    header = struct.pack(">IIBBBBB", *size, bits, color_type, 0, 0, is_interlaced)
    body = zlib.compress(raw, 1) if stream is None else stream
    parts = [chunk(b"IHDR", header), before, chunk(b"IDAT", body), after, chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def random_rows(
    source: random.Random, size: tuple[int, int], bits: int, samples: int, *, is_interlaced: bool
) -> bytes:
    """Filtered rows of random bytes, each with a random filter: every one is a valid picture."""
    width, height = size
    rows = []
    for left, top, across, down in ADAM7 if is_interlaced else [(0, 0, 1, 1)]:
        columns, lines = -(-(width - left) // across), -(-(height - top) // down)
        if columns <= 0 or lines <= 0:
            continue
        length = (columns * bits * samples + 7) // 8
        rows += [bytes([source.randrange(5)]) + source.randbytes(length) for _ in range(lines)]
    return b"".join(rows)


def stream_of_one_distance(bit: str) -> bytes:
    """259 zeros as one literal and one match, whose only distance has the code 0 in one bit."""

    def number(value: int, count: int) -> str:
        return f"{value:0{count}b}"[::-1]

    # Lengths of the codes of code lengths: one bit for a run of zeros (18), two for 2 and for 1.
    lengths = {2: 1, 15: 2, 17: 2}
    zeros, one, two = "0", "10", "11"
    bits = "1" + number(2, 2) + number(29, 5) + number(0, 5) + number(14, 4)
    bits += "".join(number(lengths.get(place, 0), 3) for place in range(18))
    bits += two + zeros + number(127, 7) + zeros + number(106, 7)  # literal 0, and no others
    bits += two + zeros + number(17, 7) + one  # end of block, and length 258
    bits += one  # distance 1
    bits += "10" + "0" + bit + "11"
    body = int(bits[::-1], 2).to_bytes(-(-len(bits) // 8), "little")
    return b"\x78\x01" + body + struct.pack(">I", zlib.adler32(bytes(259)))
