"""Native decoders against the installed Pillow over generated files: sizes, kinds, cuts, damage.

The default takes one height for each width; a soak takes every pair.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from jpeg_writer import jpeg
from pixels_kinds import KINDS, PNG_CASES, SAMPLINGS, Size, picture, png_of
from pixels_reference import (
    assert_as_pillow,
    encode,
    has_unknown_codes,
    with_right_checksums,
)
from safelight import ImageMediaIO, LimitError, MediaError
from safelight._safelight import DecodeRequest, decode_image
from safelight.media.form import Decoder

HAS_JPEG = decode_image(encode(Image.new("L", (1, 1)), "JPEG"), DecodeRequest()) is not None
needs_jpeg = pytest.mark.skipif(not HAS_JPEG, reason="built without the feature jpeg")
FORMATS = [format for format in KINDS if HAS_JPEG or format != "jpeg"]


def diagonal(widths: int, heights: int) -> Iterator[Size]:
    """One height for each width, so that all of both occur."""
    return ((width, 1 + width * 37 % heights) for width in range(1, widths + 1))


def every_size(widths: int, heights: int) -> Iterator[Size]:
    return ((width, height) for width in range(1, widths + 1) for height in range(1, heights + 1))


# --- JPEG ---


def sweep_jpeg(sampling: str, sizes: Iterable[Size], *, is_progressive: bool) -> None:
    source = random.Random(sampling)
    for size in sizes:
        for interval in (0, 1 + sum(size) % 5):
            data = jpeg(
                source, size, SAMPLINGS[sampling], interval=interval, is_progressive=is_progressive
            )
            assert_as_pillow(data, is_served=True)


@needs_jpeg
@pytest.mark.parametrize("is_progressive", [False, True])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_jpeg_samplings_sizes_and_restarts(sampling: str, *, is_progressive: bool) -> None:
    sweep_jpeg(sampling, diagonal(70, 70), is_progressive=is_progressive)


@needs_jpeg
@pytest.mark.soak
@pytest.mark.parametrize("is_progressive", [False, True])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_jpeg_samplings_and_every_size(sampling: str, *, is_progressive: bool) -> None:
    sweep_jpeg(sampling, every_size(70, 70), is_progressive=is_progressive)


def sweep_encoded_jpeg(subsampling: str, sizes: Iterable[Size], *, is_progressive: bool) -> None:
    """As `sweep_jpeg`, with the refining scans and the statistics of a real encoder."""
    for size in sizes:
        data = encode(
            picture("RGB", size),
            "JPEG",
            quality=25 + size[0],
            subsampling=subsampling,
            progressive=is_progressive,
            restart_marker_blocks=sum(size) % 4,
        )
        assert_as_pillow(data, is_served=True)


@needs_jpeg
@pytest.mark.parametrize("is_progressive", [False, True])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_encoded_jpeg_samplings_and_sizes(subsampling: str, *, is_progressive: bool) -> None:
    sweep_encoded_jpeg(subsampling, diagonal(70, 70), is_progressive=is_progressive)


@needs_jpeg
@pytest.mark.soak
@pytest.mark.parametrize("is_progressive", [False, True])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_encoded_jpeg_samplings_and_every_size(subsampling: str, *, is_progressive: bool) -> None:
    sweep_encoded_jpeg(subsampling, every_size(70, 70), is_progressive=is_progressive)


# --- PNG ---


def sweep_png(kind: tuple[int, int, int], sizes: Iterable[Size], *, is_clear: bool) -> None:
    source = random.Random(str(kind))
    for size in sizes:
        for data in png_of(source, size, *kind, is_clear=is_clear):
            assert_as_pillow(data, is_served=True)


@pytest.mark.parametrize(("kind", "is_clear"), PNG_CASES)
def test_png_kinds_and_sizes(kind: tuple[int, int, int], *, is_clear: bool) -> None:
    sweep_png(kind, diagonal(40, 11), is_clear=is_clear)


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "is_clear"), PNG_CASES)
def test_png_kinds_and_every_size(kind: tuple[int, int, int], *, is_clear: bool) -> None:
    sweep_png(kind, every_size(70, 17), is_clear=is_clear)


# --- the other formats ---

ENCODINGS: list[tuple[str, str, dict[str, Any]]] = [
    *(("WEBP", mode, {"quality": 60, "method": 2}) for mode in ("RGB", "RGBA")),
    *(("WEBP", mode, {"lossless": True, "method": 1}) for mode in ("RGB", "RGBA")),
    *(("GIF", mode, {"interlace": interlace}) for mode in ("L", "P") for interlace in (0, 1)),
    *((name, mode, {}) for name in ("BMP", "DIB") for mode in ("1", "L", "P", "RGB", "RGBA")),
    *(("PPM", mode, {}) for mode in ("1", "L", "RGB")),
    *(("QOI", mode, {}) for mode in ("RGB", "RGBA")),
    *(("TIFF", mode, {}) for mode in ("1", "L", "P", "RGB", "RGBA", "CMYK")),
    *(("TIFF", mode, {"compression": "tiff_lzw"}) for mode in ("1", "P", "RGB")),
]


def sweep_encoding(format: str, mode: str, options: dict[str, Any], sizes: Iterable[Size]) -> None:
    for size in sizes:
        assert_as_pillow(encode(picture(mode, size), format, **options), is_served=True)


@pytest.mark.parametrize(("format", "mode", "options"), ENCODINGS)
def test_other_formats_and_sizes(format: str, mode: str, options: dict[str, Any]) -> None:
    sweep_encoding(format, mode, options, diagonal(70, 23))


@pytest.mark.soak
@pytest.mark.parametrize(("format", "mode", "options"), ENCODINGS)
def test_other_formats_and_every_size(format: str, mode: str, options: dict[str, Any]) -> None:
    sweep_encoding(format, mode, options, every_size(70, 23))


# --- one file of every kind, cut and damaged ---


def assert_damaged_as_pillow(data: bytes) -> None:
    """As `assert_as_pillow`, but for sizes that only take time."""
    try:
        decode_image(data, DecodeRequest(None, None, 1 << 20))
    except LimitError:
        return
    assert_as_pillow(data)


@pytest.mark.parametrize("format", FORMATS)
def test_every_kind_is_served(format: str) -> None:
    for name, data in KINDS[format].items():
        assert assert_as_pillow(data), name


@pytest.mark.parametrize("format", FORMATS)
def test_cuts_at_every_37th_byte(format: str) -> None:
    for data in KINDS[format].values():
        for length in range(0, len(data), 37):
            assert_damaged_as_pillow(data[:length])


@pytest.mark.soak
@pytest.mark.parametrize("format", FORMATS)
def test_cuts_at_every_byte(format: str) -> None:
    for data in KINDS[format].values():
        for length in range(len(data)):
            assert_damaged_as_pillow(data[:length])


@pytest.mark.parametrize("format", FORMATS)
def test_flipped_bits(format: str) -> None:
    source = random.Random(format)
    for data in KINDS[format].values():
        for _ in range(1_000 // len(KINDS[format])):
            damaged = bytearray(data)
            # Headers are where most verdicts are made.
            reach = len(data) if source.random() < 0.5 else min(len(data), 64)
            for _ in range(source.choice((1, 1, 2, 5))):
                damaged[source.randrange(reach)] ^= 1 << source.randrange(8)
            assert_damaged_as_pillow(bytes(damaged))


@pytest.mark.parametrize("format", FORMATS)
@given(drawn=st.data())
def test_drawn_damage(format: str, drawn: st.DataObject) -> None:
    data = drawn.draw(st.sampled_from(list(KINDS[format].values())))
    at = st.integers(0, len(data) - 1)
    for _ in range(drawn.draw(st.integers(1, 3))):
        start, count = drawn.draw(at), drawn.draw(st.integers(0, 40))
        change = drawn.draw(st.sampled_from(("overwrite", "remove", "repeat", "insert")))
        if change == "overwrite":
            body = drawn.draw(st.binary(min_size=1, max_size=4))
            data = data[:start] + body + data[start + len(body) :]
        elif change == "remove":
            data = data[:start] + data[start + count :]
        elif change == "repeat":
            data = data[: start + count] + data[start:]
        else:
            data = data[:start] + drawn.draw(st.binary(max_size=16)) + data[start:]
    assert_damaged_as_pillow(data)


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_with_the_rest_of_another(format: str) -> None:
    source = random.Random(format)
    files = list(KINDS[format].values())
    for _ in range(300):
        head, tail = source.choice(files), source.choice(files)
        at = source.randrange(len(head))
        assert_damaged_as_pillow(head[:at] + tail[min(at, len(tail) - 1) :])


def verdict(data: bytes, decoder: Decoder, mode: str) -> object:
    """The pixels, or the class of the error, as a caller of the library sees them."""
    media_io = ImageMediaIO(mode, decoder=decoder, max_image_pixels=1 << 20)
    try:
        image = media_io.load_bytes(data)
    except MediaError as error:
        return type(error)
    return image.mode, image.size, image.tobytes()


def assert_same_verdict(data: bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of what is damaged
        for mode in ("RGB", "RGBA", "L"):
            assert verdict(data, "native", mode) == verdict(data, "pillow", mode)


@pytest.mark.parametrize("format", FORMATS)
def test_damage_is_refused_with_the_same_error(format: str) -> None:
    source = random.Random(format)
    files = list(KINDS[format].values())
    for _ in range(120):
        damaged = bytearray(source.choice(files))
        for _ in range(source.choice((1, 3))):
            damaged[source.randrange(len(damaged))] = source.randrange(256)
        assert_same_verdict(bytes(damaged[: source.choice((len(damaged), 80))]))


@pytest.mark.soak
@pytest.mark.parametrize("folder", "bmp dib gif jpeg mpo png ppm qoi tiff webp".split())
def test_real_files_cut_and_damaged(corpus: Path, folder: str) -> None:
    source = random.Random(folder)
    for path in sorted((corpus / folder).iterdir()):
        data = path.read_bytes()
        for length in range(37, min(len(data), 1_000), 37):
            assert_damaged_as_pillow(data[:length])
        for _ in range(16):
            damaged = bytearray(data)
            reach = len(data) if source.random() < 0.5 else min(len(data), 200)
            damaged[source.randrange(reach)] ^= 1 << source.randrange(8)
            assert_damaged_as_pillow(bytes(damaged))
            assert_damaged_as_pillow(data[: source.randrange(len(data))])


@pytest.mark.soak
def test_what_the_fuzzer_found() -> None:
    folder = Path(__file__).parents[1] / "rust" / "fuzz" / "corpus" / "decode"
    if not folder.is_dir():
        pytest.skip("no inputs: make fuzz finds some")
    for path in folder.iterdir():
        data = path.read_bytes()
        if data.startswith(b"\x89PNG"):
            data = with_right_checksums(data)
        assert_damaged_as_pillow(data)
        if not has_unknown_codes(data):
            assert_same_verdict(data)
