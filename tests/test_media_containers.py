"""Pictures inside others, streams larger than they say: nothing is made that was not admitted."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from safelight import (
    DecodedBudget,
    HeaderError,
    ImageMediaIO,
    LimitError,
    MediaError,
    UnsupportedMediaError,
    probe,
)
from safelight.media import pillow_instance
from safelight.media.image import ALLOWED_IMAGE_FORMATS

# Under Pillow's own limit, so that it does not help; over those that the tests set.
SIDE = 3000
LIMIT = 20_000


def encoded(image_format: str, size: tuple[int, int] = (SIDE, SIDE), **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.new(options.pop("mode", "RGB"), size).save(buffer, image_format, **options)
    return buffer.getvalue()


def icns(inner: bytes, code: bytes = b"ic07") -> bytes:
    blocks = code + (8 + len(inner)).to_bytes(4, "big") + inner
    return b"icns" + (8 + len(blocks)).to_bytes(4, "big") + blocks


def ico(inner: bytes, size: int = 16, bits: int = 32) -> bytes:
    entry = struct.pack("<BBBBHHII", size, size, 0, 0, 1, bits, len(inner), 22)
    return struct.pack("<HHH", 0, 1, 1) + entry + inner


def dib(side: int, bits: int = 32) -> bytes:
    return struct.pack("<IiiHHIIiiII", 40, side, side * 2, 1, bits, 0, 0, 0, 0, 0, 0)


def field(record: int, tag: int, value: bytes) -> bytes:
    return bytes([28, record, tag]) + len(value).to_bytes(2, "big") + value


def iptc(width: int, height: int, inner: bytes) -> bytes:
    return (
        field(3, 60, b"\1\0")
        + field(3, 20, width.to_bytes(2, "big"))
        + field(3, 30, height.to_bytes(2, "big"))
        + field(3, 120, b"\5")
        + bytes([28, 8, 10, 132, 0])
        + len(inner).to_bytes(4, "big")
        + inner
        + bytes(5)
    )


def blp(inner: bytes) -> bytes:
    header = b"BLP1" + struct.pack("<iIIIiI", 0, 0, 16, 16, 5, 0)
    offsets = struct.pack("<16I", 160, *[0] * 15) + struct.pack("<16I", len(inner), *[0] * 15)
    return header + offsets + struct.pack("<I", 0) + inner


def tiff_of_one_tile(side: int) -> bytes:
    """A TIFF of 16 by 16 pixels in one deflated tile of `side` squared."""
    tile = zlib.compress(bytes(side * side), 9)
    entries = [(256, 16), (257, 16), (258, 8), (259, 8), (262, 1), (277, 1)]
    entries += [(322, side), (323, side), (324, 8), (325, len(tile))]
    start = 8 + len(tile) + len(tile) % 2
    directory = struct.pack("<H", len(entries))
    directory += b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries)
    return b"II*\0" + struct.pack("<I", start) + tile.ljust(start - 8, b"\0") + directory + bytes(4)


@pytest.fixture
def largest(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The most pixels of any image that a plug-in allocates, behind the guard."""
    seen = [0]
    core = pillow_instance.Image.core

    def watched(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(mode: str, size: tuple[int, int], *args: Any) -> Any:
            image = make(mode, size, *args)
            seen.append(size[0] * size[1])
            return image

        return made

    for name in ("new", "new_block", "fill"):
        monkeypatch.setattr(core, name, watched(getattr(core, name)))
    return lambda: max(seen)


# Made before images are watched.
JPEG2000 = encoded("JPEG2000", mode="L")
WEBP = encoded("WEBP")
AVIF = encoded("AVIF", speed=10)
CONTAINERS = {
    "PNG in ICNS": icns(encoded("PNG")),
    "JPEG 2000 in ICNS": icns(encoded("JPEG2000")),
    "PNG in ICO": ico(encoded("PNG")),
    "bitmap in ICO": ico(dib(SIDE)),
    "bitmap with a mask in ICO": ico(dib(SIDE, 24), bits=24),
}


@pytest.mark.parametrize("name", CONTAINERS)
@pytest.mark.parametrize("image_mode", ["RGB", None])
def test_an_inner_picture_is_held_to_the_limit(
    largest: Callable[[], int], name: str, image_mode: str | None
) -> None:
    media_io = ImageMediaIO(image_mode, max_image_pixels=LIMIT)
    with pytest.raises(LimitError):
        media_io.load_bytes(CONTAINERS[name])
    with pytest.raises(LimitError):
        media_io.load_bytes_ref(CONTAINERS[name]).decode()
    assert largest() <= LIMIT


@pytest.mark.parametrize("name", CONTAINERS)
def test_an_inner_picture_is_charged(largest: Callable[[], int], name: str) -> None:
    media_io = ImageMediaIO(decoded_budget=DecodedBudget(4 * LIMIT))
    with pytest.raises(LimitError):
        media_io.load_bytes(CONTAINERS[name])
    assert largest() <= LIMIT


@pytest.mark.parametrize("inner", ["PNG", "JPEG2000"])
def test_an_inner_picture_is_of_a_served_format(largest: Callable[[], int], inner: str) -> None:
    data = icns(encoded(inner, (128, 128), mode="RGBA"))
    assert ImageMediaIO().load_bytes(data).size == (128, 128)
    formats = [name for name in ALLOWED_IMAGE_FORMATS if name != inner]
    before = largest()
    with pytest.raises(MediaError, match=f"format {inner} is not served"):
        ImageMediaIO(formats=formats).load_bytes(data)
    assert largest() == before


def test_icons_as_they_are_made_are_served() -> None:
    for name in ("ICO", "ICNS"):
        image = Image.linear_gradient("L").convert("RGBA")
        buffer = io.BytesIO()
        image.save(buffer, name)
        with Image.open(io.BytesIO(buffer.getvalue())) as expected:
            decoded = ImageMediaIO(None).load_bytes(buffer.getvalue())
            assert decoded.tobytes() == expected.convert(decoded.mode).tobytes()


HELD = {
    "PNG in IPTC": lambda size: iptc(16, 16, encoded("PNG", size, mode="L")),
    "JPEG in BLP": lambda size: blp(encoded("JPEG", size)),
}


@pytest.mark.parametrize("name", HELD)
@pytest.mark.parametrize("side", [16, SIDE])
def test_containers_that_no_probe_judges_are_not_served(
    largest: Callable[[], int], name: str, side: int
) -> None:
    with pytest.raises(MediaError):
        ImageMediaIO(max_image_pixels=LIMIT).load_bytes(HELD[name]((side, side)))
    assert largest() == 0


@pytest.mark.parametrize("name", HELD)
def test_whoever_names_such_a_container_has_it_guarded(
    largest: Callable[[], int], name: str
) -> None:
    inner, outer = name.split(" in ")
    large, small = HELD[name]((SIDE, SIDE)), HELD[name]((16, 16))
    named = [outer, inner]
    assert ImageMediaIO(formats=named).load_bytes(small).size == (16, 16)
    for options in ({"max_image_pixels": LIMIT}, {"decoded_budget": DecodedBudget(4 * LIMIT)}):
        with pytest.raises(LimitError):
            ImageMediaIO(formats=named, **options).load_bytes(large)
    with pytest.raises(UnsupportedMediaError, match=inner):
        ImageMediaIO(formats=[outer]).load_bytes(small)
    assert largest() <= LIMIT


@pytest.mark.skipif(os.name != "posix", reason="the stub is a shell script")
def test_postscript_inside_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "started"
    stub = tmp_path / "gs"
    stub.write_text(f"#!/bin/sh\necho x > '{mark}'\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    postscript = (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 16 16\n%%EndComments\nshowpage\n%%EOF\n"
    )
    formats = [*ALLOWED_IMAGE_FORMATS, "IPTC", "BLP"]
    for data in (iptc(16, 16, postscript), icns(postscript), ico(postscript), postscript):
        for media_io in (ImageMediaIO(), ImageMediaIO(formats=formats)):
            with pytest.raises(MediaError):
                media_io.load_bytes(data)
    assert not mark.exists()


def test_a_stream_larger_than_its_box_is_not_decoded(largest: Callable[[], int]) -> None:
    data = bytearray(JPEG2000)
    start = data.index(b"ihdr") + 4
    data[start : start + 8] = struct.pack(">II", 16, 16)
    with pytest.raises(MediaError):
        ImageMediaIO(max_image_pixels=LIMIT).load_bytes(bytes(data))
    assert largest() <= LIMIT


@pytest.mark.parametrize("limit", [LIMIT, 0])
def test_an_av1_stream_larger_than_its_image_is_not_decoded(limit: int) -> None:
    data = bytearray(AVIF)
    start = data.index(b"ispe") + 8
    data[start : start + 8] = struct.pack(">II", 16, 16)
    # The stream is decoded whole and scaled, past every limit, once libavif begins with it.
    for decoder in ("native", "pillow"):
        media_io = ImageMediaIO(max_image_pixels=limit, decoder=decoder)
        with pytest.raises(LimitError if limit else HeaderError):
            media_io.load_bytes(bytes(data))
    with pytest.raises(HeaderError, match="larger than its image") as refused:
        probe(bytes(data))
    assert refused.value.size == (SIDE, SIDE)


@pytest.mark.parametrize("size", [(16, 16), (17, 3), (1, 1), (300, 200)])
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_av1_streams_as_they_are_made_are_served(size: tuple[int, int], mode: str) -> None:
    assert ImageMediaIO().load_bytes(encoded("AVIF", size, mode=mode)).size == size
    frames = [Image.new(mode, size, shade) for shade in ("red", "blue")]
    buffer = io.BytesIO()
    frames[0].save(buffer, "AVIF", save_all=True, append_images=frames[1:])
    assert ImageMediaIO().load_bytes(buffer.getvalue()).size == size


def test_a_tile_larger_than_its_image_is_held_to_the_limit() -> None:
    for options in ({"max_image_pixels": LIMIT}, {"decoded_budget": DecodedBudget(4 * LIMIT)}):
        with pytest.raises(LimitError):
            ImageMediaIO(decoder="pillow", **options).load_bytes(tiff_of_one_tile(4096))
    assert ImageMediaIO(decoder="pillow").load_bytes(tiff_of_one_tile(256)).size == (16, 16)


def test_what_allocates_when_it_is_opened_needs_a_header(largest: Callable[[], int]) -> None:
    with pytest.raises(LimitError):
        ImageMediaIO(max_image_pixels=LIMIT, decoder="pillow").load_bytes(WEBP)
    assert largest() == 0
