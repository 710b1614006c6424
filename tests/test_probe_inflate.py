"""The probe's own inflater against zlib: it sees what Pillow sees in compressed PNG text."""

from __future__ import annotations

import re
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safelight import probe

STATED = b'<x tiff:Orientation="6"/>'


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def orientation_in(stream: bytes) -> int:
    """What the probe reads out of a PNG whose XMP is that zlib stream."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    text = chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + stream)
    return probe(b"\x89PNG\r\n\x1a\n" + header + text + chunk(b"IDAT", b"")).orientation


def expected(stream: bytes) -> int:
    try:
        packet = zlib.decompressobj().decompress(stream)
    except zlib.error:
        return 1
    found = re.search(rb'tiff:Orientation(="|>)([0-9])', packet)
    return int(found[2]) if found and found[2] in b"12345678" else 1


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """A zlib stream of any level, strategy and window, flushed in the middle or not."""
    words = draw(st.lists(st.binary(min_size=1, max_size=40), max_size=30))
    repeats = draw(st.integers(1, 12))
    packet = b"".join(words) * repeats + STATED
    packer = zlib.compressobj(
        draw(st.integers(0, 9)),
        zlib.DEFLATED,
        draw(st.sampled_from([9, 12, 15])),
        draw(st.integers(7, 9)),
        draw(st.integers(0, 4)),
    )
    half = len(packet) // 2
    stream = packer.compress(packet[:half])
    if draw(st.booleans()):
        stream += packer.flush(zlib.Z_FULL_FLUSH)
    return stream + packer.compress(packet[half:]) + packer.flush()


@given(streams())
def test_a_sound_stream_is_read_to_its_end(stream: bytes) -> None:
    assert orientation_in(stream) == expected(stream) == 6


@given(streams(), st.integers(0), st.integers(0, 7))
def test_a_damaged_stream_counts_where_it_does_for_zlib(stream: bytes, at: int, bit: int) -> None:
    damaged = bytearray(stream)
    damaged[at % len(damaged)] ^= 1 << bit
    assert orientation_in(bytes(damaged)) == expected(bytes(damaged))


@given(streams(), st.integers(0))
def test_a_cut_stream_gives_what_it_has(stream: bytes, at: int) -> None:
    cut = stream[: at % len(stream)]
    assert orientation_in(cut) == expected(cut)


@pytest.mark.parametrize("stream", [b"", b"x", b"x\x9c", b"\x78\x01\x07", bytes(64)])
def test_no_stream_at_all_is_no_harm(stream: bytes) -> None:
    assert orientation_in(stream) == 1
