"""Where the probe and the installed Pillow may differ, and why the probe's answer is the right one.

Everything else agrees: `test_probe_corpus.py` compares them over real files, without exceptions.

============================  ==========================  ======================================
What                          Pillow 13                   The probe, and its reason
============================  ==========================  ======================================
big-endian BigTIFF            read as classic TIFF        read as BigTIFF, which it is
compressed text over 64 KiB   read up to 1 MiB            its first 64 KiB, or 128 blocks, count
raw profile damaged later on  refused as a whole          read as far as its directories go
an id over 1024 bytes         any length                  no id: nobody's identity is a kilobyte
EXIF over 257 JPEG segments   joined                      the first 257 are joined (16 MiB)
first GIF frame over 8 MiB    walked to its end           ``is_animated`` is None
wrong checksums in PNG        refused                     not computed: a header has no pixels
PAM, colored PFM              refused                     sized: both are in use
============================  ==========================  ======================================
"""

from __future__ import annotations

import io
import struct
import zlib

import pytest
from PIL import Image, UnidentifiedImageError

from safelight import probe


def chunk(name: bytes, body: bytes, *, damage: int = 0) -> bytes:
    checksum = zlib.crc32(name + body) ^ damage
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", checksum)


def png(before: bytes = b"", behind: bytes = b"") -> bytes:
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 1, 8, 0, 0, 0, 0))
        + before
        + chunk(b"IDAT", zlib.compress(bytes(3)))
        + behind
        + chunk(b"IEND", b"")
    )


def exif(tag: int, kind: int, count: int, value: bytes) -> bytes:
    entry = struct.pack("<HHI", tag, kind, count)
    inline = value if len(value) == 4 else struct.pack("<I", 26)
    return b"II*\0" + struct.pack("<IH", 8, 1) + entry + inline + bytes(4) + value


ORIENTED = exif(0x112, 3, 1, b"\6\0\0\0")


def pillow(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


@pytest.mark.filterwarnings("ignore")  # Pillow warns of what it misreads
def test_a_big_endian_bigtiff_is_one() -> None:
    entries = [(256, 7), (257, 5), (258, 8), (262, 1), (273, 16)]
    data = b"MM" + struct.pack(">HHHQQ", 43, 8, 0, 16, len(entries))
    data += b"".join(struct.pack(">HHQQ", tag, 16, 1, value) for tag, value in entries) + bytes(8)
    with pytest.raises((UnidentifiedImageError, TypeError)):
        pillow(data)
    assert (probe(data).width, probe(data).height) == (7, 5)


def test_compressed_text_is_searched_within_a_bound() -> None:
    def text(padding: int) -> bytes:
        packet = b" " * padding + b'<x tiff:Orientation="6"/>'
        body = b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(packet)
        return png(chunk(b"iTXt", body))

    assert probe(text(60_000)).orientation == pillow(text(60_000)).getexif()[0x112] == 6
    assert pillow(text(70_000)).getexif()[0x112] == 6
    assert probe(text(70_000)).orientation == 1


def test_an_endless_id_is_none() -> None:
    for length, is_id in ((1024, True), (1025, False)):
        data = png(chunk(b"eXIf", exif(0x800D, 2, length, b"x" * length)))
        assert pillow(data).getexif()[0x800D] == "x" * length
        assert (probe(data).image_id is not None) is is_id


def test_checksums_are_left_to_the_decoder() -> None:
    data = png(chunk(b"tEXt", b"a\0b", damage=1))
    with pytest.raises(UnidentifiedImageError):
        pillow(data)
    assert probe(data).format == "PNG"


@pytest.mark.parametrize(
    "data",
    [
        b"P7\nWIDTH 2\nHEIGHT 1\nDEPTH 3\nMAXVAL 255\nTUPLTYPE RGB\nENDHDR\n" + bytes(6),
        b"PF\n2 1\n-1.0\n" + bytes(24),
    ],
)
def test_further_portable_maps_have_a_size(data: bytes) -> None:
    with pytest.raises(UnidentifiedImageError):
        pillow(data)
    assert (probe(data).format, probe(data).width, probe(data).height) == ("PPM", 2, 1)
