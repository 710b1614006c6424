"""Damaged files: whatever Pillow still opens, the probe reads the same way.

Pillow refuses some that the probe answers, because it looks further; never the other way around.
"""

from __future__ import annotations

import functools
import io
import logging
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, TiffImagePlugin

from safelight import probe

# Values that mean something somewhere: types, counts, markers, lengths.
TELLING = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 40, 255]) | st.integers(0, 255)


def encode(image: Image.Image, format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def exif_block() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x800D] = "an id"
    exif[0x010F] = "a maker"
    exif.get_ifd(0x8769)[0xA420] = "a unique id"
    exif.get_ifd(0x8769)[0x927C] = b"a maker's note"
    return exif.tobytes()


@functools.cache
def sound_files() -> list[tuple[bytes, int]]:
    """Files, and how much of each is header."""
    frames = [Image.new("RGB", (8, 8), (9 * level, 0, 0)) for level in range(3)]
    several: dict[str, Any] = {"save_all": True, "append_images": frames[1:]}
    block = exif_block()
    webp: list[dict[str, Any]] = [{}, {"lossless": True}, {**several, "exif": block}]

    def made(modes: str, format: str, header: int, **options: Any) -> list[tuple[bytes, int]]:
        pictures = [Image.new(mode, (7, 5)) for mode in modes.split()]
        return [(encode(picture, format, **options), header) for picture in pictures]

    files = [
        *made("1 L P RGB RGBA", "BMP", 70),
        *made("L RGB CMYK", "JPEG", 400, exif=block),
        *made("1 L LA P RGBA I;16", "PNG", 200, exif=block),
        (encode(frames[0], "MPO", **several), 300),
        (encode(frames[0], "GIF", **several), 60),
        # Behind the first chunk libwebp resumes wherever a damaged frame happened to end.
        *[(encode(frames[0], "WEBP", **options), 30) for options in webp],
    ]
    modes = "1 L LA P RGB RGBA CMYK I;16 I F LAB"
    for compression in (None, "tiff_lzw", "packbits"):
        files += made(modes, "TIFF", 260, compression=compression, tiffinfo={274: 6})
    return files


def as_pillow_reads(data: bytes) -> tuple[object, ...] | None:
    """Format, size, mode, orientation and ids; None for what does not open."""
    try:
        image = Image.open(io.BytesIO(data))
    except Exception:
        return None
    facts: list[object] = [image.format, image.size, image.mode]
    try:
        exif = image.getexif()
        orientation, image_id = exif.get(0x0112, 1), exif.get(0x800D)
    except Exception:
        return (*facts, 1, None, None)
    try:
        unique_id = exif.get_ifd(0x8769).get(0xA420)
    except Exception:
        unique_id = None
    is_turn = not isinstance(orientation, (str, bytes, tuple)) and orientation in range(1, 9)
    texts = [text if isinstance(text, str) else None for text in (image_id, unique_id)]
    return (*facts, int(orientation) if is_turn else 1, *texts)


@pytest.fixture(autouse=True)
def silent_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TiffImagePlugin.logger, "level", logging.CRITICAL)


@given(
    which=st.integers(0, 1000),
    damage=st.lists(st.tuples(st.integers(0, 1000), TELLING), max_size=5),
    kept=st.none() | st.integers(0, 1000),
)
def test_what_pillow_opens_reads_the_same(
    which: int, damage: list[tuple[int, int]], kept: int | None
) -> None:
    sound, header = sound_files()[which % len(sound_files())]
    data = bytearray(sound)
    for at, value in damage:
        data[at % min(header, len(data))] = value
    if kept is not None:
        del data[kept % len(data) :]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = as_pillow_reads(bytes(data))
    if expected is not None:
        found = probe(data)
        size = (found.width, found.height)
        ids = (found.image_id, found.image_unique_id)
        assert (found.format, size, found.mode, found.orientation, *ids) == expected
