"""Faults that people met in header probes elsewhere, each with the answer that is right.

The media are made here, from bytes up where a library would not write them.
"""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import pytest
from PIL import Image, ImageOps

from safelight import HeaderError, UnsupportedMediaError, probe, probe_prefix

XMP = (
    b"http://ns.adobe.com/xap/1.0/\0"
    b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
)
RED_AND_BLUE = bytes([255, 0, 0, 0, 0, 255, 0, 255, 0, 9, 9, 9])


def encode(image: Image.Image, format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def jpeg(size: tuple[int, int] = (16, 8), mode: str = "RGB") -> bytes:
    return encode(Image.radial_gradient("L").resize(size).convert(mode), "JPEG")


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body


def after_start(data: bytes, *parts: bytes) -> bytes:
    return data[:2] + b"".join(parts) + data[2:]


def exif(orientation: int, kind: int = 3, order: str = "<") -> bytes:
    """An EXIF block, with its prefix, that has an orientation alone."""
    value = bytes([orientation, 0, 0, 0])
    if kind != 1:
        layout, values = ("HH", (orientation, 0)) if kind == 3 else ("I", (orientation,))
        value = struct.pack(order + layout, *values)
    start = b"II" if order == "<" else b"MM"
    header = start + struct.pack(order + "HIH", 42, 8, 1)
    return b"Exif\0\0" + header + struct.pack(order + "HHI", 0x112, kind, 1) + value + bytes(4)


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(
    size: tuple[int, int],
    bits: int,
    color: int,
    raw: bytes,
    before: bytes = b"",
    behind: bytes = b"",
) -> bytes:
    header = struct.pack(">IIBBBBB", *size, bits, color, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + before
        + chunk(b"IDAT", zlib.compress(raw))
        + behind
        + chunk(b"IEND", b"")
    )


def gif(screen: tuple[int, int], *frames: tuple[int, int, int, int], clear: bool = False) -> bytes:
    data = b"GIF89a" + struct.pack("<HHBBB", *screen, 0x81, 0, 0) + RED_AND_BLUE
    for left, top, width, height in frames:
        data += b"!\xf9\x04" + bytes([clear, 0, 0, 3, 0])
        data += b"," + struct.pack("<HHHHB", left, top, width, height, 0) + b"\2"
        codes = [code for _ in range(width * height) for code in (4, 1)] + [5]
        packed = sum(code << 3 * place for place, code in enumerate(codes))
        lzw = packed.to_bytes((3 * len(codes) + 7) // 8, "little")
        for at in range(0, len(lzw), 255):
            data += bytes([len(lzw[at : at + 255])]) + lzw[at : at + 255]
        data += b"\0"
    return data + b";"


def bmp(bits: int, body: bytes, compression: int = 0, header: int = 40, rest: bytes = b"") -> bytes:
    offset = 14 + header
    fields = (header, 1, 1, 1, bits, compression, len(body), 0, 0, 0, 0)
    start = b"BM" + struct.pack("<IHHI", offset + len(body), 0, 0, offset)
    return start + struct.pack("<IiiHHIIiiII", *fields) + rest + body


# --- alpha and depth ---


def test_a_transparent_color_is_alpha() -> None:
    raw = b"\0" + bytes([255, 0, 0, 0, 0, 255])
    data = png((2, 1), 8, 2, raw, chunk(b"tRNS", struct.pack(">3H", 255, 0, 0)))
    assert (probe(data).mode, probe(data).has_alpha) == ("RGB", True)
    palette = chunk(b"PLTE", bytes([1, 2, 3, 4, 5, 6]))
    data = png((2, 1), 8, 3, b"\0\0\1", palette + chunk(b"tRNS", b"\x80"))
    assert (probe(data).mode, probe(data).has_alpha) == ("P", True)
    assert probe(png((2, 1), 8, 3, b"\0\0\1", palette)).has_alpha is False
    assert probe(gif((1, 1), (0, 0, 1, 1), clear=True)).has_alpha is True
    assert probe(gif((1, 1), (0, 0, 1, 1))).has_alpha is False


def test_depth_and_mode_of_deep_pictures() -> None:
    for mode, bits in (("I;16", 16), ("I", 32), ("F", 32), ("I;16B", 16)):
        header = probe(encode(Image.new(mode, (3, 2)), "TIFF"))
        assert (header.mode, header.bits) == (mode, bits)
    header = probe(png((1, 1), 16, 4, bytes(5)))
    assert (header.mode, header.bits, header.has_alpha) == ("RGBA", 16, True)


# --- JPEG ---


def test_grey_and_cmyk_keep_their_modes() -> None:
    assert probe(jpeg(mode="L")).mode == "L"
    assert probe(jpeg(mode="CMYK")).mode == "CMYK"


def test_several_pictures_make_an_mpo_and_a_gain_map_does_not() -> None:
    green = Image.new("RGB", (8, 8), (0, 255, 0))
    data = encode(Image.new("RGB", (8, 8)), "MPO", save_all=True, append_images=[green])
    header = probe(data)
    assert (header.format, header.frame_count, header.is_animated) == ("MPO", 2, True)
    assert header.mime_type == "image/jpeg"
    gain_map = segment(0xE1, b'http://ns.adobe.com/xap/1.0/\0<a hdrgm:Version="1.0"/>')
    at = data.index(b"\xff\xe2")
    header = probe(data[:at] + gain_map + data[at:])
    assert (header.format, header.frame_count) == ("JPEG", 1)


def test_a_jpeg_of_no_height_is_refused_even_with_a_line_count_behind() -> None:
    data = jpeg()
    data = data[:-2] + segment(0xDC, struct.pack(">H", 8)) + data[-2:]
    assert probe(data).height == 8
    at = data.index(b"\xff\xc0") + 5
    with pytest.raises(HeaderError):
        probe(data[:at] + b"\0\0" + data[at + 2 :])


def test_fill_bytes_and_zeros_between_segments_are_passed_over() -> None:
    data = jpeg()
    for odd in (data[:2] + b"\xff" * 7 + data[2:], data[:20] + bytes(3) + data[20:]):
        assert opened(odd).size == (16, 8)
        assert (probe(odd).width, probe(odd).height) == (16, 8)


def test_the_frame_of_a_thumbnail_is_not_the_frame() -> None:
    thumbnail = b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0" + jpeg((160, 120))
    header = probe(after_start(jpeg(), segment(0xE1, thumbnail)))
    assert (header.width, header.height) == (16, 8)


# --- GIF, WebP, BMP, AVIF, HEIC ---


def test_the_mode_is_that_of_the_first_frame() -> None:
    header = probe(gif((2, 1), (0, 0, 2, 1), (0, 0, 2, 1)))
    assert (header.mode, header.is_animated, header.frame_count) == ("P", True, None)


@pytest.mark.parametrize(
    ("screen", "frame", "size"),
    [((2, 1), (1, 0, 3, 1), (4, 1)), ((0, 0), (0, 0, 2, 1), (2, 1))],
)
def test_a_gif_canvas_grows_to_hold_its_first_frame(
    screen: tuple[int, int], frame: tuple[int, int, int, int], size: tuple[int, int]
) -> None:
    data = gif(screen, frame)
    assert opened(data).size == size
    assert (probe(data).width, probe(data).height) == size


def test_many_frames_of_a_large_canvas_cost_nothing() -> None:
    data = gif((9000, 9000), *[(0, 0, 1, 1)] * 200)
    header = probe(data)
    assert (header.width, header.height) == (9000, 9000)
    assert probe_prefix(data[:100]) == header


def test_an_animated_webp_has_the_size_of_its_canvas() -> None:
    colors = [(1, 2, 3, 0), (9, 9, 9, 255), (0, 200, 0, 128)]
    first, *others = [Image.new("RGBA", (20, 20), color) for color in colors]
    data = encode(first, "WEBP", save_all=True, append_images=others, lossless=True)
    header = probe(data)
    assert (header.width, header.height, header.mode) == (20, 20, "RGBA")
    assert (header.frame_count, header.is_animated) == (3, True)


def test_the_fourth_byte_of_a_bmp_is_alpha_only_where_a_mask_says_so() -> None:
    assert probe(bmp(32, b"\3\2\1\0")).mode == "RGB"
    masks = struct.pack("<5I", 0xFF0000, 0xFF00, 0xFF, 0xFF000000, 0) + bytes(48)
    header = probe(bmp(32, b"\3\2\1\x80", 3, 108, masks))
    assert (header.mode, header.has_alpha) == ("RGBA", True)


def test_avif_is_turned_by_its_boxes_once() -> None:
    data = encode(Image.new("RGB", (16, 8)), "AVIF", exif=exif(6))
    header = probe(data)
    assert (header.width, header.height, header.orientation) == (16, 8, 6)
    assert header.upright_size == ImageOps.exif_transpose(opened(data)).size == (8, 16)


def test_a_phone_picture_under_a_wrong_name_is_told_by_its_bytes() -> None:
    start = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"
    with pytest.raises(HeaderError, match="HEIF has no box meta"):
        probe(start + bytes(64))
    answer = probe_prefix(start)
    assert answer.format == "HEIF"


# --- EXIF and orientation ---


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_eight_orientations_in_both_byte_orders(orientation: int, order: str) -> None:
    data = after_start(jpeg((24, 16)), segment(0xE1, exif(orientation, 3, order)))
    header = probe(data)
    assert header.orientation == orientation
    assert header.upright_size == ImageOps.exif_transpose(opened(data)).size


@pytest.mark.parametrize(
    ("parts", "orientation"),
    [
        pytest.param([XMP, exif(3)], 3, id="EXIF behind XMP"),
        pytest.param([exif(1), XMP], 1, id="EXIF wins"),
        pytest.param([XMP], 6, id="XMP alone"),
        pytest.param([b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0", XMP], 6, id="EXIF without the tag"),
        pytest.param([exif(6), exif(3)], 6, id="the first of two EXIF"),
        pytest.param([exif(6, 4)], 6, id="a LONG counts"),
        pytest.param([exif(6, 1)], 1, id="a BYTE does not"),
        pytest.param([exif(6, 1), XMP], 1, id="a BYTE keeps XMP out"),
        pytest.param([exif(0)], 1, id="0 is none"),
        pytest.param([exif(9)], 1, id="9 is none"),
        pytest.param([b"Exif\0\0" + exif(6)], 6, id="prefix twice"),
        pytest.param([b"Exif\0\0junk", XMP], 1, id="junk keeps XMP out"),
        pytest.param([b"Exif\0\0", XMP], 6, id="empty EXIF does not"),
    ],
)
def test_who_states_the_orientation(parts: list[bytes], orientation: int) -> None:
    data = after_start(jpeg(), *[segment(0xE1, part) for part in parts])
    assert probe(data).orientation == orientation
    turned = ImageOps.exif_transpose(opened(data)) if b"junk" not in data else opened(data)
    assert probe(data).upright_size == turned.size


def test_exif_may_go_on_in_the_next_segment() -> None:
    entry = struct.pack("<HHHIHHI", 1, 0x112, 3, 1, 6, 0, 0)
    body = b"II*\0" + struct.pack("<I", 65600) + bytes(65592) + entry
    parts = [segment(0xE1, b"Exif\0\0" + part) for part in (body[:65000], body[65000:])]
    assert probe(after_start(jpeg(), *parts)).orientation == 6


@pytest.mark.parametrize(("keyword", "orientation"), [(b"exif", 6), (b"APP1", 1)])
def test_a_raw_profile_counts_under_its_own_keyword(keyword: bytes, orientation: int) -> None:
    profile = b"\nexif\n%8d\n" % len(exif(6)) + exif(6).hex().encode() + b"\n"
    for kind, text in ((b"zTXt", b"\0" + zlib.compress(profile)), (b"tEXt", profile)):
        text_chunk = chunk(kind, b"Raw profile type " + keyword + b"\0" + text)
        data = png((4, 2), 8, 2, bytes(26), text_chunk)
        assert probe(data).orientation == opened(data).getexif().get(0x112, 1) == orientation


@pytest.mark.parametrize("packed", [False, True])
def test_xmp_of_a_png_counts(packed: bool) -> None:
    packet = XMP.split(b"\0", 1)[1]
    text = b"\1\0\0\0" + zlib.compress(packet) if packed else b"\0\0\0\0" + packet
    data = png((4, 2), 8, 2, bytes(26), chunk(b"iTXt", b"XML:com.adobe.xmp\0" + text))
    assert probe(data).orientation == opened(data).getexif()[0x112] == 6


def test_a_directory_that_points_back_is_read_once() -> None:
    entries = struct.pack("<HHIHH", 0x112, 3, 1, 6, 0) + struct.pack("<HHII", 0x8769, 4, 1, 8)
    loop = b"Exif\0\0II" + struct.pack("<HIH", 42, 8, 2) + entries + struct.pack("<I", 8)
    assert probe(after_start(jpeg(), segment(0xE1, loop))).orientation == 6


def test_stored_and_upright_size_are_two_things() -> None:
    header = probe(after_start(jpeg((30, 10)), segment(0xE1, exif(6))))
    assert (header.width, header.height, header.upright_size) == (30, 10, (10, 30))
    turned = probe(encode(Image.new("L", (30, 10)), "TIFF", tiffinfo={0x112: 6}))
    assert (turned.width, turned.height, turned.upright_size) == (10, 30, (10, 30))


@pytest.mark.parametrize("block", [exif(6), exif(6)[6:]])
def test_exif_with_and_without_its_prefix(block: bytes) -> None:
    assert probe(encode(Image.new("RGB", (8, 4)), "WEBP", exif=block)).orientation == 6
    assert probe(png((4, 2), 8, 2, bytes(26), chunk(b"eXIf", block))).orientation == 6


# --- what is no image, and what is no harm ---


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xd8\xff",
        b"hello",
        b"\x89PNG\r\n\x1a\n",
        b"GIF89a",
        b"RIFF\0\0\0\0WEBP",
        b"BM",
        b"II*\0",
    ],
)
def test_what_ends_too_early_is_one_class_of_error(data: bytes) -> None:
    with pytest.raises(HeaderError):
        probe(data)
    assert probe_prefix(data).at_least is not None


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "EPS"),
        (b"%PDF-1.7", "PDF"),
        (b"SIMPLE  =                    T", "FITS"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
        (b"\0\0\0\x18ftypisom\0\0\0\0isommp41", "MP4"),
        (b"\x1aE\xdf\xa3\x9fB\x86\x81\x01B\xf7\x81\x01B\xf2\x81\x04B\x82\x84webm", "WebM"),
    ],
)
def test_a_refusal_says_what_it_was(data: bytes, name: str) -> None:
    with pytest.raises(UnsupportedMediaError, match=name):
        probe(data)


def test_text_that_inflates_without_end_is_not_inflated() -> None:
    for keyword in (b"c", b"Raw profile type exif", b"XML:com.adobe.xmp"):
        bomb = chunk(b"zTXt", keyword + b"\0\0" + zlib.compress(bytes(64 << 20)))
        data = png((1, 1), 8, 0, b"\0\0", bomb)
        assert len(data) < 70_000
        assert probe(data).orientation == 1


@pytest.mark.parametrize("size", [0, 1, 2, 7, 8, 0xFFFFFFFF])
def test_boxes_of_every_odd_size_end(size: int) -> None:
    jxl = b"\0\0\0\x0cJXL \r\n\x87\n" + struct.pack(">I4s", size, b"jxlp") + bytes(16)
    avif = b"\0\0\0\x14ftypavif\0\0\0\0avif" + struct.pack(">I4s", size, b"meta") + bytes(16)
    for data in (jxl, avif):
        with pytest.raises(HeaderError):
            probe(data)


def test_a_size_that_no_one_decodes_is_still_only_a_header() -> None:
    data = png((20000, 20000), 8, 2, b"\0")
    assert (probe(data).width, probe(data).height) == (20000, 20000)
