"""The kinds of TIFF that native code serves, against the installed Pillow."""

from __future__ import annotations

import random
import struct

import pytest
from PIL import Image, TiffImagePlugin

from pixels_reference import (
    assert_as_pillow,
    encode,
    has_unknown_codes,
    open_with_pillow,
    stream_of_one_distance,
)

COMPRESSIONS = ["raw", "packbits", "tiff_lzw", "tiff_adobe_deflate"]
MODES = ["1", "L", "P", "RGB", "RGBA", "CMYK", "I;16"]


def picture(mode: str, size: tuple[int, int]) -> Image.Image:
    if mode == "I;16":
        values = random.Random(1).choices(range(1 << 16), k=size[0] * size[1])
        image = Image.new(mode, size)
        image.putdata(values)
        return image
    bands = [Image.radial_gradient("L").resize(size), Image.effect_noise(size, 30)] * 2
    if mode in ("RGBA", "CMYK"):
        return Image.merge(mode, bands)
    return Image.merge("RGB", bands[:3]).convert(mode)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("mode", MODES)
def test_every_kind_and_size(mode: str, compression: str) -> None:
    for size in [(1, 1), (3, 5), (17, 9), (70, 33), (256, 130)]:
        for rows in (1, 7, 1_000):
            # Long strips of long strings fill the table of LZW, which is Pillow's to judge.
            data = encode(
                picture(mode, size), "TIFF", compression=compression, tiffinfo={278: rows}
            )
            is_small = size[0] * rows < 2_000
            assert_as_pillow(data, is_served=True if is_small else None)


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_adobe_deflate"])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "I;16"])
def test_rows_of_differences(mode: str, compression: str) -> None:
    info = TiffImagePlugin.ImageFileDirectory_v2()
    info[317] = 2
    data = encode(picture(mode, (41, 20)), "TIFF", compression=compression, tiffinfo=info)
    assert_as_pillow(data, is_served=True)


def test_what_is_left_to_pillow() -> None:
    image = picture("RGB", (20, 10))
    for compression in ("jpeg", "group4"):
        mode = "1" if compression == "group4" else "RGB"
        assert_as_pillow(
            encode(image.convert(mode), "TIFF", compression=compression), is_served=False
        )
    for orientation in (2, 6):
        assert_as_pillow(encode(image, "TIFF", tiffinfo={274: orientation}), is_served=False)
    assert_as_pillow(encode(image, "TIFF", tiffinfo={700: b"<x/>"}), is_served=False)
    pages = encode(image, "TIFF", save_all=True, append_images=[image.rotate(180)])
    assert_as_pillow(pages, is_served=True)


def test_a_code_that_its_table_leaves_out() -> None:
    # Listed as a difference: libdeflate takes either bit, and the checksum is right.
    for bit in ("0", "1"):
        strip = stream_of_one_distance(bit)
        tags = {256: 37, 257: 7, 258: 8, 259: 8, 262: 1, 273: 110, 278: 7, 279: len(strip)}
        entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
        head = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4)
        data = head + strip
        assert len(head) == tags[273]
        assert_as_pillow(data, is_served=True)
        assert has_unknown_codes(data) == (open_with_pillow(data) is None) == (bit == "1")


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("mode", ["RGB", "P"])
def test_cuts_and_flipped_bits(mode: str, compression: str) -> None:
    source = random.Random(mode + compression)
    data = encode(picture(mode, (23, 14)), "TIFF", compression=compression, tiffinfo={278: 5})
    for length in range(0, len(data), 37):
        assert_as_pillow(data[:length])
    for _ in range(300):
        damaged = bytearray(data)
        damaged[source.randrange(len(data))] ^= 1 << source.randrange(8)
        assert_as_pillow(bytes(damaged))
