"""What `probe` and `probe_prefix` promise, on media made here and judged by Pillow."""

from __future__ import annotations

import functools
import io
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from safelight import (
    HeaderError,
    ImageHeader,
    MediaError,
    NeedMoreBytes,
    UnsupportedMediaError,
    probe,
    probe_files,
    probe_prefix,
)


def encode(image: Image.Image, format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def exif_block(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif[0x800D] = "0b9c1f6e-7a3f-4c55-9a86-3f5f0d1c2b3a"
    exif.get_ifd(0x8769)[0xA420] = "0123456789abcdef"
    return exif.tobytes()


CASES = [
    pytest.param(mode, format, options, id=f"{format}-{mode}")
    for format, modes, options in [
        ("JPEG", ["L", "RGB", "CMYK"], {}),
        ("PNG", ["1", "L", "LA", "I;16", "P", "RGB", "RGBA"], {}),
        ("WEBP", ["RGB", "RGBA"], {}),
        ("WEBP", ["RGB", "RGBA"], {"lossless": True}),
        ("GIF", ["L", "P"], {}),
    ]
    for mode in modes
]


def assert_agrees(header: ImageHeader, data: bytes) -> None:
    with Image.open(io.BytesIO(data)) as image:
        assert (header.format, header.mode) == (image.format, image.mode)
        assert (header.width, header.height) == image.size
        exif = image.getexif()
        assert header.orientation == exif.get(0x0112, 1)
        assert header.image_id == exif.get(0x800D)
        assert header.image_unique_id == exif.get_ifd(0x8769).get(0xA420)
        assert header.upright_size == ImageOps.exif_transpose(image).size


@pytest.mark.parametrize(("mode", "format", "options"), CASES)
def test_every_mode_reads_as_pillow_opens_it(
    mode: str, format: str, options: dict[str, Any]
) -> None:
    data = encode(Image.new(mode, (21, 13)), format, **options)
    header = probe(data)
    assert_agrees(header, data)
    assert header.is_animated is False


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_orientation_and_ids_come_from_exif(format: str, orientation: int) -> None:
    data = encode(Image.new("RGB", (24, 16)), format, exif=exif_block(orientation))
    header = probe(data)
    assert header.orientation == orientation
    assert header.image_id == "0b9c1f6e-7a3f-4c55-9a86-3f5f0d1c2b3a"
    assert header.image_unique_id == "0123456789abcdef"
    assert_agrees(header, data)


@pytest.mark.parametrize("format", ["PNG", "WEBP", "GIF"])
def test_animation_is_seen(format: str) -> None:
    frames = [Image.new("RGB", (8, 8), (level, 0, 0)) for level in (0, 100, 200)]
    data = encode(frames[0], format, save_all=True, append_images=frames[1:])
    header = probe(data)
    assert header.is_animated is True
    assert header.frame_count == (None if format == "GIF" else 3)


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xd8\xff", b"hello", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF\0\0\0\0WEBP"]
)
def test_what_is_no_image_is_a_header_error(data: bytes) -> None:
    with pytest.raises(HeaderError):
        probe(data)


@pytest.mark.parametrize(("mode", "format", "options"), CASES)
def test_a_prefix_needs_more_or_answers_as_the_whole(
    mode: str, format: str, options: dict[str, Any]
) -> None:
    image = Image.new(mode, (21, 13))
    if format == "JPEG":
        options = {**options, "exif": exif_block(6)}
    data = encode(image, format, **options)
    whole = probe(data)
    has_answered = False
    for length in range(len(data) + 1):
        answer = probe_prefix(data[:length])
        if isinstance(answer, NeedMoreBytes):
            assert not has_answered
            assert answer.at_least is None or length < answer.at_least <= len(data)
        else:
            has_answered = True
            assert answer == whole
    assert has_answered


def test_an_oversize_image_is_seen_before_its_header_is_complete() -> None:
    data = encode(Image.new("RGB", (300, 200)), "WEBP", exif=exif_block(6))
    answer = probe_prefix(data[:64])
    assert isinstance(answer, NeedMoreBytes)
    assert (answer.format, answer.size) == ("WEBP", (300, 200))


def test_payloads_may_be_any_buffer() -> None:
    data = encode(Image.new("RGB", (4, 3)), "PNG")
    assert probe(bytearray(data)) == probe(memoryview(data)) == probe(data)
    with pytest.raises(TypeError):
        probe("text")  # type: ignore[arg-type]


def test_answers_are_values() -> None:
    data = encode(Image.new("RGB", (30, 10)), "JPEG", exif=exif_block(6))
    header = probe(data)
    for value in (header, probe_prefix(data[:20]), probe_prefix(b"")):
        copy = pickle.loads(pickle.dumps(value))
        assert copy == value
        assert hash(copy) == hash(value)
    assert header != probe(encode(Image.new("RGB", (30, 10)), "JPEG"))
    assert "width=30" in repr(header)
    with pytest.raises(AttributeError):
        header.width = 1  # type: ignore[misc]


def test_a_frame_header_of_no_height_is_refused() -> None:
    data = encode(Image.new("RGB", (8, 8)), "JPEG")
    at = data.index(b"\xff\xc0") + 5
    with pytest.raises(HeaderError):
        probe(data[:at] + struct.pack(">H", 0) + data[at + 2 :])


@given(
    case=st.sampled_from(["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "ICO", "PPM"]),
    damage=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, 2000),
)
def test_damage_is_a_media_error_or_an_answer(
    case: str, damage: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(made(case))
    for at, value in damage:
        data[at % len(data)] = value
    try:
        whole = probe(data)
    except MediaError:
        whole = None
    try:
        answer = probe_prefix(data[:cut])
    except MediaError:
        assert whole is None
    else:
        assert isinstance(answer, NeedMoreBytes) or answer == whole


@functools.cache
def made(format: str) -> bytes:
    return encode(Image.new("RGB", (16, 16)), format)


def test_files_are_probed_one_by_one(tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(encode(Image.new("RGB", (40, 30)), "PNG") + bytes(1 << 20))
    page = tmp_path / "page.png"
    page.write_text("<!DOCTYPE html>")
    empty = tmp_path / "empty"
    empty.touch()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    answers = probe_files([picture, str(page), empty, pipe, tmp_path, tmp_path / "missing"])
    assert answers[0] == probe(picture.read_bytes())
    kinds = [type(answer) for answer in answers[1:]]
    assert kinds == [UnsupportedMediaError, HeaderError, OSError, OSError, FileNotFoundError]
    assert not any(str(tmp_path) in str(answer) for answer in answers)


@pytest.mark.timeout(60)
def test_a_header_far_into_a_file_is_found(tmp_path: Path) -> None:
    comment = b"\xff\xfe\xff\xff" + bytes(0xFFFD)
    data = encode(Image.new("RGB", (40, 30)), "JPEG")
    path = tmp_path / "long.jpg"
    path.write_bytes(data[:2] + comment * 100 + data[2:])
    assert probe_files([path]) == [probe(data)]


def test_a_header_can_be_made_by_hand() -> None:
    data = encode(Image.new("L", (10, 10)), "TIFF", tiffinfo={0x0112: 6})
    assert pickle.loads(pickle.dumps(probe(data))) == probe(data)
    header = ImageHeader(format="JPEG", width=30, height=10, orientation=6)
    assert (header.upright_size, header.mode, header.has_alpha) == ((10, 30), None, None)
    for wrong in ({"format": "JPG"}, {"mode": "XYZ"}, {"orientation": 9}, {"upright_size": (1, 2)}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ImageHeader(**{"format": "JPEG", "width": 30, "height": 10, **wrong})
