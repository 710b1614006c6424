"""Faults that people met in image decoders elsewhere, each with the answer that is right.

Every answer is asked of both decoders, native and Pillow. What headers say is in
`test_probe_reports`.
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from jpeg_writer import segment
from pixels_reference import chunk, encode, open_with_pillow, over, png
from safelight import DecodeError, HeaderError, ImageMediaIO, LimitError, MediaError
from safelight._safelight import DecodeRequest, decode_image

WHITE = (255, 255, 255)
RED_GREEN_BLUE = bytes([255, 0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0])


def decoded(data: bytes, mode: str | None = "RGB", **options: Any) -> Image.Image:
    """What both decoders make of `data`."""
    native, pillow = (
        ImageMediaIO(mode, decoder=decoder, **options).load_bytes(data)
        for decoder in ("native", "pillow")
    )
    assert (native.mode, native.size) == (pillow.mode, pillow.size)
    assert native.tobytes() == pillow.tobytes()
    image: Image.Image = native
    return image


def refused(data: bytes, mode: str = "RGB") -> type[MediaError]:
    """The class of error that both decoders refuse `data` with."""
    classes = []
    for decoder in ("native", "pillow"):
        with pytest.raises(MediaError) as caught:
            ImageMediaIO(mode, decoder=decoder).load_bytes(data)
        classes.append(type(caught.value))
    assert classes[0] is classes[1]
    return classes[0]


def row(data: bytes, mode: str = "RGB", **options: Any) -> list[Any]:
    image = decoded(data, mode, **options)
    return [image.getpixel((x, 0)) for x in range(image.width)]


def jpeg(size: tuple[int, int] = (16, 16), mode: str = "RGB", **options: Any) -> bytes:
    return encode(Image.radial_gradient("L").resize(size).convert(mode), "JPEG", **options)


def gif(
    screen: tuple[int, int], *frames: tuple[tuple[int, int, int, int], list[int], int | None]
) -> bytes:
    """A GIF of frames with a place, indices and a transparent index; index 2 is its background."""
    data = b"GIF89a" + struct.pack("<HHBBB", *screen, 0x81, 2, 0) + RED_GREEN_BLUE
    for place, indices, transparent in frames:
        control = bytes([transparent is not None, 0, 0, transparent or 0, 0])
        codes = [code for index in indices for code in (4, index)] + [5]
        bits = sum(code << 3 * position for position, code in enumerate(codes))
        stream = bits.to_bytes((3 * len(codes) + 7) // 8, "little")
        data += b"!\xf9\x04" + control + b"," + struct.pack("<HHHHB", *place, 0) + b"\2"
        data += bytes([len(stream)]) + stream + b"\0"
    return data + b";"


def bmp(size: tuple[int, int], bits: int, body: bytes, compression: int, rest: bytes) -> bytes:
    header = 108 if len(rest) == 68 else 40
    start = 54 + len(rest)
    info = struct.pack("<IiiHHIIiiII", header, *size, 1, bits, compression, len(body), 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", start + len(body), 0, 0, start) + info + rest + body


# --- alpha, palette, depth ---


def test_what_lies_under_transparency_does_not_show() -> None:
    image = Image.new("RGBA", (3, 1))
    image.putdata([(10, 20, 30, 0), (10, 20, 30, 127), (10, 20, 30, 255)])
    for format, options in (("PNG", {}), ("WEBP", {"lossless": True, "exact": True})):
        data = encode(image, format, **options)
        assert row(data) == [WHITE, (133, 138, 143), (10, 20, 30)]


def test_a_transparent_color_counts_in_the_mode_that_has_alpha() -> None:
    clear = chunk(b"tRNS", struct.pack(">3H", 255, 0, 0))
    data = png((2, 1), 8, 2, b"\0" + bytes([255, 0, 0, 0, 0, 255]), before=clear)
    assert row(data) == [WHITE, (0, 0, 255)]
    assert row(data, "RGBA") == [(255, 0, 0, 0), (0, 0, 255, 255)]


@pytest.mark.parametrize("mode", ["LA", "RGBA"])
def test_every_alpha_over_every_background(mode: str) -> None:
    color = (77,) if mode == "LA" else (200, 33, 77)
    image = Image.new(mode, (256, 1))
    image.putdata([(*color, alpha) for alpha in range(256)])
    for background in ((12, 200, 3), (0, 0, 0), WHITE):
        found = decoded(encode(image, "PNG"), rgba_background_color=background)
        assert found.tobytes() == over(image, background).tobytes()


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I", "F"])
def test_deep_gray_is_cut_to_eight_bits_as_pillow_cuts_it(mode: str) -> None:
    levels = {"I;16": "<u2", "I;16B": ">u2", "I": "<i4", "F": "<f4"}
    values = [-5.0, 0.5, 100.7, 255.9, 300.0] if mode == "F" else [0, 100, 255, 256, 300]
    array = np.array([values]).astype(levels[mode])
    image = Image.frombytes(mode, (5, 1), array.tobytes())
    expected = [0, 0, 100, 255, 255] if mode == "F" else [0, 100, 255, 255, 255]
    for format in ("TIFF", "PNG") if mode.startswith("I;16") else ("TIFF",):
        assert [pixel[0] for pixel in row(encode(image, format))] == expected
        assert row(encode(image, format), "L") == expected


def test_alphas_that_a_palette_does_not_have_are_opaque() -> None:
    before = chunk(b"PLTE", bytes([1, 2, 3, 4, 5, 6])) + chunk(b"tRNS", b"\x80")
    data = png((2, 1), 8, 3, b"\0\0\1", before=before)
    assert row(data, "RGBA") == [(1, 2, 3, 128), (4, 5, 6, 255)]
    assert row(data, rgba_background_color=(0, 0, 0)) == [(1, 1, 2), (4, 5, 6)]


# --- JPEG ---


def test_inverted_colors_stay_inverted() -> None:
    data = encode(Image.new("CMYK", (8, 8), (10, 20, 30, 40)), "JPEG", quality=100)
    start = data.index(b"Adobe")
    assert row(data)[0] == Image.new("CMYK", (1, 1), (10, 20, 30, 40)).convert("RGB").getpixel(
        (0, 0)
    )
    decoded(data[: start + 11] + b"\2" + data[start + 12 :])


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", None])
def test_four_components_decode_in_every_mode(mode: str | None) -> None:
    data = encode(Image.new("CMYK", (32, 32), (0, 255, 0, 0)), "JPEG")
    assert decoded(data, mode).mode == (mode or "CMYK")


def test_arithmetic_coding_over_other_data_ends() -> None:
    data = jpeg().replace(b"\xff\xc0", b"\xff\xc9", 1)
    if open_with_pillow(data) is None:
        assert refused(data) is DecodeError
    else:
        decoded(data)


def test_a_missing_end_marker_is_an_error_and_bytes_behind_it_are_none() -> None:
    data = jpeg((640, 480))
    assert refused(data[:-2]) is DecodeError
    assert decoded(data + b"junk" * 99).tobytes() == decoded(data).tobytes()


def test_the_first_of_several_pictures_needs_no_second() -> None:
    green = Image.new("RGB", (8, 8), (0, 255, 0))
    data = encode(
        Image.new("RGB", (8, 8), (255, 0, 0)), "MPO", save_all=True, append_images=[green]
    )
    for file in (data, data[: len(data) // 2 + 100]):
        red, *others = row(file)[0]
        assert red > 250
        assert max(others) < 5


def test_a_number_of_lines_behind_the_scan() -> None:
    data = jpeg()
    lines = segment(0xDC, struct.pack(">H", 16))
    assert decoded(data[:-2] + lines + data[-2:]).tobytes() == decoded(data).tobytes()
    height = data.index(b"\xff\xc0") + 5
    assert refused(data[:height] + b"\0\0" + data[height + 2 :]) is HeaderError


def test_gray_comes_in_as_many_channels_as_were_asked_for() -> None:
    gray = Image.radial_gradient("L").resize((20, 10))
    for format in ("JPEG", "PNG", "GIF", "BMP", "TIFF", "PPM"):
        data = encode(gray, format)
        array = ImageMediaIO(output="numpy").load_bytes(data)
        assert (array.shape, array.dtype) == ((10, 20, 3), np.uint8)
        assert array.flags.c_contiguous
        assert np.array_equal(array[..., 0], np.asarray(decoded(data, "L")))
        assert np.array_equal(array[..., 0], array[..., 2])


# --- PNG ---

ROWS = b"".join(b"\0" + bytes([y]) * 30 for y in range(10))


def streamed(stream: bytes, after: bytes = b"") -> bytes:
    return png((10, 10), 8, 2, b"", stream=stream, after=after)


def test_which_broken_streams_pass() -> None:
    stream = zlib.compress(ROWS)
    assert refused(streamed(stream[:-4] + b"abcd")) is DecodeError
    assert refused(streamed(stream[: len(stream) // 2])) is DecodeError
    half = decoded(streamed(zlib.compress(ROWS[: len(ROWS) // 2])))
    assert half.getpixel((0, 4)) == (4, 4, 4)
    assert half.getpixel((0, 9)) == (0, 0, 0)
    whole = decoded(streamed(stream)).tobytes()
    assert decoded(streamed(zlib.compress(ROWS + ROWS))).tobytes() == whole
    assert decoded(streamed(stream, after=chunk(b"IDAT", b""))).tobytes() == whole


def test_a_short_gamma_is_judged_as_pillow_does() -> None:
    data = png((1, 1), 8, 0, b"\0\0", before=chunk(b"gAMA", b"\0\1"))
    if open_with_pillow(data) is None:
        assert issubclass(refused(data), MediaError)
    else:
        decoded(data)


def test_a_wrong_checksum_of_the_pixels_is_refused() -> None:
    source = random.Random(1)
    rows = b"".join(b"\0" + source.randbytes(300) for _ in range(100))
    data = png((100, 100), 8, 2, b"", stream=zlib.compress(rows)[:-4] + b"\1\2\3\4")
    assert refused(data) is DecodeError


def test_a_window_that_is_declared_too_small_is_judged_as_pillow_does() -> None:
    compressor = zlib.compressobj(9, 8, -15)
    rows = b"".join(b"\0" + bytes(range(256)) * 3 for _ in range(256))
    body = compressor.compress(rows) + compressor.flush()
    stream = b"\x08\x1d" + body + struct.pack(">I", zlib.adler32(rows))
    data = png((256, 256), 8, 2, b"", stream=stream)
    if open_with_pillow(data) is None:
        assert refused(data) is DecodeError
    else:
        decoded(data)


# --- GIF, WebP, BMP, TIFF, AVIF, HEIC ---


def test_the_first_frame_has_the_shape_that_was_asked_for() -> None:
    frame = (0, 0, 2, 1)
    data = gif((2, 1), (frame, [0, 1], None), (frame, [1, 0], None))
    assert row(data) == [(255, 0, 0), (0, 255, 0)]
    assert ImageMediaIO(output="numpy").load_bytes(data).shape == (1, 2, 3)
    assert decoded(data, None).mode == "P"


def test_frames_beside_the_screen() -> None:
    assert decoded(gif((2, 1), ((1, 0, 3, 1), [0, 1, 2], None))).size == (4, 1)
    assert decoded(gif((0, 0), ((0, 0, 2, 1), [0, 1], None))).size == (2, 1)
    # What a frame does not cover is index 0, or its transparent index; never the background.
    assert row(gif((3, 1), ((1, 0, 1, 1), [1], None)))[0] == (255, 0, 0)
    clear = row(gif((3, 1), ((1, 0, 1, 1), [1], 3)), "RGBA")
    assert [pixel[3] for pixel in clear] == [0, 255, 0]


def test_the_first_frame_of_an_animated_webp_lies_on_its_canvas() -> None:
    colors = [(1, 2, 3, 0), (9, 9, 9, 255), (0, 200, 0, 128)]
    first, *others = [Image.new("RGBA", (20, 20), color) for color in colors]
    first.paste((90, 80, 70, 255), (5, 6, 12, 17))
    data = encode(first, "WEBP", save_all=True, append_images=others, lossless=True)
    found = decoded(data, "RGBA")
    assert found.size == (20, 20)
    assert found.getpixel((5, 6)) == (90, 80, 70, 255)
    assert found.getchannel("A").getpixel((0, 0)) == 0


def test_the_fourth_byte_of_a_bmp_is_alpha_only_where_a_mask_says_so() -> None:
    assert row(bmp((1, 1), 32, b"\3\2\1\0", 0, b"")) == [(1, 2, 3)]
    masks = struct.pack("<5I", 0xFF0000, 0xFF00, 0xFF, 0xFF000000, 0) + bytes(48)
    assert row(bmp((1, 1), 32, b"\3\2\1\x80", 3, masks), "RGBA") == [(1, 2, 3, 128)]


def test_run_length_coding_of_bmp_is_left_to_pillow() -> None:
    palette = bytes([0, 0, 0, 0, 255, 255, 255, 0]) * 128
    data = bmp((4, 2), 8, b"\2\1\0\0\2\1\0\1", 1, palette)
    assert decode_image(data, DecodeRequest()) is None
    if open_with_pillow(data) is None:
        assert refused(data) is DecodeError
    else:
        decoded(data)


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw", "jpeg"])
def test_luma_and_chroma_of_a_tiff_are_left_to_pillow(compression: str) -> None:
    image = Image.effect_noise((32, 32), 60).convert("RGB")
    if compression != "jpeg":
        image = image.convert("YCbCr")
    data = encode(image, "TIFF", compression=compression)
    assert decode_image(data, DecodeRequest()) is None
    decoded(data)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_avif_is_turned_once(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.new("RGB", (16, 8), (255, 0, 0))
    image.paste((0, 0, 255), (0, 0, 4, 4))
    data = encode(image, "AVIF", exif=exif)
    opened = open_with_pillow(data)
    assert opened is not None
    assert decoded(data).tobytes() == ImageOps.exif_transpose(opened).tobytes()


def test_heic_without_a_plugin_is_an_error_of_ours() -> None:
    assert issubclass(refused(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(64)), MediaError)


# --- limits, bombs, hostile files ---


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read there")
def test_what_is_not_pixels_is_not_inflated() -> None:
    script = """
        import struct, zlib
        from pathlib import Path
        from pixels_reference import chunk, png
        from safelight import ImageMediaIO, MediaError
        def peak():
            status = Path("/proc/self/status").read_text()
            return int(status.split("VmHWM:")[1].split()[0]) >> 10
        bomb = zlib.compress(bytes(256 << 20))
        bombs = [
            chunk(b"zTXt", b"c\\0\\0" + bomb),
            chunk(b"zTXt", b"Raw profile type exif\\0\\0" + bomb),
            chunk(b"iTXt", b"XML:com.adobe.xmp\\0\\1\\0\\0\\0" + bomb),
            chunk(b"iCCP", b"name\\0\\0" + bomb),
        ]
        ImageMediaIO().load_bytes(png((1, 1), 8, 0, b"\\0\\0"))
        Path("/proc/self/clear_refs").write_text("5")
        before = peak()
        for before_pixels in bombs:
            for place in ("before", "after"):
                data = png((1, 1), 8, 0, b"\\0\\0", **{place: before_pixels})
                try:
                    ImageMediaIO().load_bytes(data)
                except MediaError:
                    pass
        # More pixels than the picture has.
        try:
            ImageMediaIO().load_bytes(png((4, 4), 8, 0, b"", stream=bomb))
        except MediaError:
            pass
        print(peak() - before)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    assert result.returncode == 0, result.stderr
    # Pillow inflates a megabyte of text, and 64 kB of pixels at a time.
    assert int(result.stdout) < 16


def test_many_large_frames_are_one() -> None:
    data = gif((9_000, 9_000), *[((0, 0, 1, 1), [0], None)] * 200)
    limited = ImageMediaIO(max_image_pixels=10_000_000)
    with pytest.raises(LimitError):
        limited.check_prefix(data[:100])
    with pytest.raises(LimitError):
        limited.load_bytes_ref(data)
    small = gif((900, 900), *[((0, 0, 1, 1), [1], None)] * 200)
    assert row(small)[:2] == [(0, 255, 0), (255, 0, 0)]


@pytest.mark.parametrize("size", [0, 1, 2, 7, 8, 0xFFFFFFFF])
def test_boxes_of_every_odd_size_end(size: int) -> None:
    avif = b"\0\0\0\x14ftypavif\0\0\0\0avif" + struct.pack(">I4s", size, b"meta") + bytes(16)
    jxl = b"\0\0\0\x0cJXL \r\n\x87\n" + struct.pack(">I4s", size, b"jxlp") + bytes(16)
    for data in (avif, jxl):
        assert issubclass(refused(data), MediaError)
