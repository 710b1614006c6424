"""PNG against the installed Pillow: every type, depth and filter, and every rule about damage."""

from __future__ import annotations

import os
import random
import struct
import zlib

import pytest
from PIL import Image

from pixels_reference import (
    PNG_KINDS,
    assert_as_pillow,
    chunk,
    encode,
    has_unknown_codes,
    open_with_pillow,
    png,
    random_rows,
    stream_of_one_distance,
    with_right_checksums,
)
from safelight._safelight import DecodeRequest, decode_image

SIZES = [
    (1, 1),
    (2, 3),
    (3, 1),
    (1, 5),
    (5, 5),
    (7, 8),
    (8, 7),
    (9, 17),
    (16, 16),
    (33, 31),
    (65, 3),
]


def palette(source: random.Random, bits: int) -> bytes:
    return chunk(b"PLTE", source.randbytes(3 * (1 << bits)))


@pytest.mark.parametrize("is_interlaced", [False, True])
@pytest.mark.parametrize(("bits", "color_type", "samples"), PNG_KINDS)
def test_every_kind_with_every_filter(
    bits: int, color_type: int, samples: int, *, is_interlaced: bool
) -> None:
    source = random.Random(bits * 10 + color_type)
    for size in SIZES:
        raw = random_rows(source, size, bits, samples, is_interlaced=is_interlaced)
        before = palette(source, bits) if color_type == 3 else b""
        data = png(size, bits, color_type, raw, before=before, is_interlaced=is_interlaced)
        assert_as_pillow(data, is_served=True)


@pytest.mark.parametrize("unit", [3, 4])
@pytest.mark.parametrize("filter", range(5))
def test_every_filter_on_wide_rows(filter: int, unit: int) -> None:
    source = random.Random(unit)
    for width in (*range(1, 40), 255, 256, 1_001):
        rows = [bytes([filter]) + source.randbytes(width * unit) for _ in range(3)]
        assert_as_pillow(png((width, 3), 8, 2 if unit == 3 else 6, b"".join(rows)), is_served=True)


@pytest.mark.parametrize("unit", [3, 4])
def test_filters_over_runs_of_zeros(unit: int) -> None:
    source = random.Random(unit)
    for width in (5, 16, 17, 64, 300):
        rows = []
        for _ in range(24):
            row = bytearray(width * unit)
            for _ in range(source.randrange(4)):
                row[source.randrange(len(row))] = source.randrange(256)
            rows.append(bytes([source.choice((1, 2, 3, 4, 4, 4))]) + row)
        assert_as_pillow(png((width, 24), 8, 2 if unit == 3 else 6, b"".join(rows)), is_served=True)


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("sample", [0, 1, 3, 255, 256, 300, 0xFF01])
def test_transparent_gray(bits: int, sample: int) -> None:
    source = random.Random(bits)
    raw = random_rows(source, (40, 9), bits, 1, is_interlaced=False)
    data = png((40, 9), bits, 0, raw, before=chunk(b"tRNS", struct.pack(">H", sample)))
    assert_as_pillow(data, is_served=True)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("color", [(0, 0, 0), (255, 0, 0), (0x1FF, 0x200, 0x300)])
def test_transparent_color(bits: int, color: tuple[int, int, int]) -> None:
    pixel = struct.pack(">3H" if bits == 16 else ">3B", *(sample & 0xFF for sample in color))
    raw = b"\0" + pixel + bytes([1] * len(pixel)) + bytes([255] * len(pixel))
    data = png((3, 1), bits, 2, raw, before=chunk(b"tRNS", struct.pack(">3H", *color)))
    assert_as_pillow(data, is_served=True)


@pytest.mark.parametrize(
    "alphas",
    [
        b"\0",
        b"\xff\0",
        b"\xff\xff\0\xff",
        b"\x80",
        b"\0\0",
        b"\xff\xff",
        b"\0\x80\xff\7",
        bytes(16),
        b"",
    ],
)
@pytest.mark.parametrize("entries", [1, 3, 16])
def test_transparent_palette_entries(alphas: bytes, entries: int) -> None:
    source = random.Random(entries)
    raw = random_rows(source, (16, 16), 4, 1, is_interlaced=False)
    before = chunk(b"PLTE", source.randbytes(3 * entries)) + chunk(b"tRNS", alphas)
    assert_as_pillow(png((16, 16), 4, 3, raw, before=before), is_served=True)


def picture(mode: str = "RGB", size: tuple[int, int] = (32, 24)) -> bytes:
    image = Image.effect_noise(size, 60).convert("RGB")
    return encode(image.convert(mode), "PNG")


@pytest.mark.parametrize(
    "extra",
    [
        chunk(b"gAMA", b"\0\1"),
        chunk(b"gAMA", b"\0\1\2\3"),
        chunk(b"cHRM", bytes(31)),
        chunk(b"sRGB", b""),
        chunk(b"pHYs", bytes(8)),
        chunk(b"tEXt", b"transparency\0yes"),
        chunk(b"tEXt", b"interlace\0yes"),
        chunk(b"tEXt", b"Title\0a picture"),
        chunk(b"tEXt", b"Title"),
        chunk(b"tEXt", b""),
        chunk(b"zTXt", b"c\0\0" + zlib.compress(bytes(1 << 20))),
        chunk(b"zTXt", b"c\0\0" + zlib.compress(bytes((1 << 20) + 1))),
        chunk(b"zTXt", b"c\0\0" + zlib.compress(bytes(500))),
        chunk(b"zTXt", b"c\0\1abc"),
        chunk(b"zTXt", b"c\0\0abc"),
        chunk(b"zTXt", b"c"),
        chunk(b"iTXt", b"k\0\1\0en\0t\0" + zlib.compress(bytes(2 << 20))),
        chunk(b"iTXt", b"k\0\0\0en\0t\0text"),
        chunk(b"iTXt", b"k\0\1\1en\0t\0text"),
        chunk(b"iTXt", b"k\0"),
        chunk(b"iCCP", b"name\0\1" + zlib.compress(bytes(9))),
        chunk(b"iCCP", b"name\0\0" + zlib.compress(bytes(2_000_000))),
        chunk(b"iCCP", b"name\0\0" + zlib.compress(os.urandom(3_000))),
        chunk(b"iCCP", b"name"),
        chunk(b"eXIf", b"junk"),
        chunk(b"tIME", bytes(7)),
        chunk(b"abCd", b"private"),
        chunk(b"a Cd", b"no name"),
        chunk(b"gAMA", b"\0\1\2\3", damage=1),
        chunk(b"abCd", b"", damage=1),
        chunk(b"tRNS", b"\0"),
        chunk(b"IEND", b""),
        chunk(b"IDAT", b""),
        chunk(b"acTL", struct.pack(">II", 1, 0)),
        chunk(b"acTL", struct.pack(">II", 0, 0)),
        chunk(b"acTL", struct.pack(">II", 2, 0)),
        chunk(b"fcTL", struct.pack(">5I2H2B", 0, 32, 24, 0, 0, 1, 1, 0, 0)),
        chunk(b"fcTL", struct.pack(">5I2H2B", 1, 32, 24, 0, 0, 1, 1, 0, 0)),
        chunk(b"fcTL", struct.pack(">5I2H2B", 0, 9, 9, 3, 3, 1, 1, 0, 0)),
    ],
)
def test_chunks_that_may_change_the_verdict(extra: bytes) -> None:
    data = picture()
    before = data.index(b"IDAT") - 4
    assert_as_pillow(data[:before] + extra + data[before:])
    after = data.index(b"IEND") - 4
    assert_as_pillow(data[:after] + extra + data[after:])


def rows(count: int) -> bytes:
    return b"".join(b"\0" + bytes([index]) * 30 for index in range(count))


@pytest.mark.parametrize(
    "stream",
    [
        zlib.compress(rows(10)),
        zlib.compress(rows(10))[:-4] + b"abcd",
        zlib.compress(rows(10))[:-4],
        zlib.compress(rows(10))[:-5],
        zlib.compress(rows(10))[:30],
        zlib.compress(rows(5)),
        zlib.compress(rows(10) + b"\0"),
        zlib.compress(rows(20)),
        zlib.compress(rows(10)) + b"trailing",
        b"\x08\x1d" + zlib.compress(rows(10))[2:],
        zlib.compress(rows(9) + b"\7" + bytes(30)),
        b"",
        b"\x78\xbb" + bytes(40),
    ],
)
def test_streams_that_are_damaged_short_or_long(stream: bytes) -> None:
    assert_as_pillow(png((10, 10), 8, 2, b"", stream=stream))


def test_pixels_spread_over_many_chunks() -> None:
    raw = zlib.compress(rows(10))
    for damage in (0, 1):
        parts = [
            chunk(b"IDAT", raw[index : index + 3], damage=damage) for index in range(0, len(raw), 3)
        ]
        data = png((10, 10), 8, 2, b"", stream=b"", after=b"".join(parts))
        assert_as_pillow(data, is_served=not damage)


def test_a_code_that_its_table_leaves_out() -> None:
    sound, odd = (png((36, 7), 8, 0, b"", stream=stream_of_one_distance(bit)) for bit in ("0", "1"))
    assert_as_pillow(sound, is_served=True)
    # Listed as a difference: libdeflate takes either bit, and the checksum is right.
    assert open_with_pillow(odd) is None
    assert has_unknown_codes(odd)
    assert_as_pillow(odd)
    # Damage, not a strange encoder: the checksum of the chunk is that of the sound stream.
    place = next(at for at, pair in enumerate(zip(sound, odd, strict=True)) if len(set(pair)) > 1)
    assert_as_pillow(sound[:place] + odd[place : place + 1] + sound[place + 1 :], is_served=False)


def test_flipped_bits_of_pixels_show_in_the_checksum() -> None:
    data = picture("P", (16, 12))
    for place in range(8 * (data.index(b"IDAT") + 4), 8 * (data.index(b"IEND") - 8)):
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        assert_as_pillow(bytes(damaged), is_served=False)
        assert_as_pillow(with_right_checksums(bytes(damaged)))


@pytest.mark.parametrize("mode", ["RGB", "P"])
def test_every_cut(mode: str) -> None:
    data = picture(mode, (16, 12))
    for length in [*range(0, len(data), 7), *range(len(data) - 24, len(data))]:
        assert_as_pillow(data[:length])


def test_flipped_bits() -> None:
    source = random.Random(7)
    data = picture("P", (16, 12))
    for _ in range(600):
        damaged = bytearray(data)
        damaged[source.randrange(len(data))] ^= 1 << source.randrange(8)
        assert_as_pillow(bytes(damaged))


def test_apng_gives_its_first_frame() -> None:
    frames = [Image.effect_noise((20, 10), 50 + level).convert("RGBA") for level in range(3)]
    data = encode(frames[0], "PNG", save_all=True, append_images=frames[1:])
    assert_as_pillow(data, is_served=True)
    hidden = encode(frames[0], "PNG", save_all=True, append_images=frames[1:], default_image=True)
    assert_as_pillow(hidden, is_served=True)


def test_a_claim_of_pixels_that_are_not_there_takes_no_memory() -> None:
    data = png((13_000, 13_000), 16, 6, b"\0")
    assert decode_image(data, DecodeRequest()) is None
