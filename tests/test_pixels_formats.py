"""WebP, GIF, BMP, DIB, PNM and QOI against the installed Pillow."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from PIL import Image

from pixels_reference import assert_as_pillow, encode


def picture(mode: str, size: tuple[int, int]) -> Image.Image:
    bands = [
        Image.effect_noise(size, 80),
        Image.radial_gradient("L").resize(size),
        Image.linear_gradient("L").resize(size),
        Image.effect_noise(size, 120),
    ]
    if mode in ("1", "L", "P"):
        return Image.merge("RGB", bands[:3]).convert(mode)
    return Image.merge(mode, bands[: len(mode)])


SIZES = [(1, 1), (2, 1), (3, 5), (16, 16), (17, 9), (70, 33)]

KINDS: list[tuple[str, str, dict[str, Any]]] = [
    *(("WEBP", mode, {"quality": quality}) for mode in ("RGB", "RGBA") for quality in (10, 80)),
    *(("WEBP", mode, {"lossless": True}) for mode in ("RGB", "RGBA")),
    ("GIF", "L", {}),
    ("GIF", "P", {"interlace": 0}),
    ("GIF", "P", {"interlace": 1}),
    ("GIF", "P", {"transparency": 3}),
    *((name, mode, {}) for name in ("BMP", "DIB") for mode in ("1", "L", "P", "RGB", "RGBA")),
    *(("PPM", mode, {}) for mode in ("1", "L", "RGB")),
    *(("QOI", mode, {}) for mode in ("RGB", "RGBA")),
]


@pytest.mark.parametrize(("format", "mode", "options"), KINDS)
def test_every_kind_and_size(format: str, mode: str, options: dict[str, Any]) -> None:
    for size in SIZES:
        assert_as_pillow(encode(picture(mode, size), format, **options), is_served=True)


@pytest.mark.parametrize(("format", "mode", "options"), KINDS)
def test_cuts_and_flipped_bits(format: str, mode: str, options: dict[str, Any]) -> None:
    source = random.Random(format + mode)
    data = encode(picture(mode, (23, 14)), format, **options)
    for length in [*range(0, len(data), 37), *range(max(0, len(data) - 6), len(data))]:
        assert_as_pillow(data[:length])
    for _ in range(150):
        damaged = bytearray(data)
        # Headers are where most verdicts are made.
        reach = len(data) if source.random() < 0.5 else min(len(data), 64)
        damaged[source.randrange(reach)] ^= 1 << source.randrange(8)
        if header_size(bytes(damaged), format) <= 1 << 22:
            assert_as_pillow(bytes(damaged))


def header_size(data: bytes, format: str) -> int:
    """Pixels that a damaged header claims: huge ones only take time."""
    if format in ("BMP", "DIB"):
        start = 18 if format == "BMP" else 4
        width, height = struct.unpack("<ii", data[start : start + 8])
        return abs(int(width * height))
    if format == "QOI":
        width, height = struct.unpack(">II", data[4:12])
        return int(width * height)
    return 0


def test_webp_animation_gives_its_first_frame_on_the_canvas() -> None:
    colors = [(1, 2, 3, 0), (9, 9, 9, 255), (0, 200, 0, 128)]
    frames = [Image.new("RGBA", (20, 20), color) for color in colors]
    frames[0].paste((90, 80, 70, 200), (5, 6, 12, 17))
    for options in ({"lossless": True}, {"quality": 60}, {"minimize_size": True}):
        data = encode(frames[0], "WEBP", save_all=True, append_images=frames[1:], **options)
        assert_as_pillow(data, is_served=True)
    opaque = [picture("RGB", (21, 9)) for _ in range(3)]
    data = encode(opaque[0], "WEBP", save_all=True, append_images=opaque[1:])
    assert_as_pillow(data, is_served=True)


def test_webp_with_trailing_bytes_and_metadata() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(picture("RGB", (20, 10)), "WEBP", exif=exif, icc_profile=b"profile", xmp=b"xmp")
    assert_as_pillow(data, is_served=True)
    assert_as_pillow(data + b"trailing")
    assert_as_pillow(data[:4] + struct.pack("<I", len(data)) + data[8:])


RED_GREEN_BLUE = bytes([255, 0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0])
GRAY = bytes([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3])


def gif(
    screen: tuple[int, int],
    place: tuple[int, int, int, int],
    indices: list[int],
    *,
    transparent: int | None = None,
    palette: bytes = RED_GREEN_BLUE,
    local: bytes = b"",
    is_interlaced: bool = False,
    end: int = 5,
    before: bytes = b"",
) -> bytes:
    """A GIF of one frame whose every code is a clear code or a sample."""
    flags = 0x81 if palette else 0
    head = b"GIF89a" + struct.pack("<HHBBB", *screen, flags, 2, 0) + palette + before
    control = b"!\xf9\x04" + bytes([int(transparent is not None), 0, 0, transparent or 0, 0])
    frame = (
        b"," + struct.pack("<HHHHB", *place, (0x81 if local else 0) | is_interlaced << 6) + local
    )
    codes = [code for index in indices for code in (4, index)] + [end]
    bits = sum(code << 3 * position for position, code in enumerate(codes))
    stream = bits.to_bytes((3 * len(codes) + 7) // 8, "little")
    blocks = [stream[start : start + 255] for start in range(0, len(stream), 255)]
    body = b"\2" + b"".join(bytes([len(block)]) + block for block in blocks) + b"\0"
    return head + control + frame + body + b";"


@pytest.mark.parametrize("transparent", [None, 0, 3])
@pytest.mark.parametrize("palette", [RED_GREEN_BLUE, GRAY, b""])
@pytest.mark.parametrize("local", [b"", RED_GREEN_BLUE[::-1], GRAY])
def test_gif_frames_beside_and_beyond_the_screen(
    transparent: int | None, palette: bytes, local: bytes
) -> None:
    options: dict[str, Any] = {"transparent": transparent, "palette": palette, "local": local}
    for screen in ((0, 0), (2, 1), (9, 9)):
        for place in ((0, 0, 2, 1), (1, 0, 2, 1), (3, 2, 2, 1)):
            # Pillow decodes a gray frame as gray, then shows it in the colors of the screen.
            is_mixed = palette == RED_GREEN_BLUE and local == GRAY
            assert_as_pillow(gif(screen, place, [1, 2], **options), is_served=not is_mixed)


def test_gif_rows_in_every_interlaced_order() -> None:
    for height in range(1, 20):
        indices = [row % 4 for row in range(height) for _ in range(3)]
        data = gif((3, height), (0, 0, 3, height), indices, is_interlaced=True)
        assert_as_pillow(data, is_served=True)


def test_gif_streams_that_end_early_late_or_wrongly() -> None:
    full = (0, 0, 3, 2)
    assert_as_pillow(gif((3, 2), full, [0, 1, 2, 3, 0, 1]), is_served=True)
    assert_as_pillow(gif((3, 2), full, [0, 1, 2]), is_served=False)
    assert_as_pillow(gif((3, 2), full, [0, 1, 2, 3, 0, 1, 2, 3]), is_served=True)
    assert_as_pillow(gif((3, 2), full, [0, 1, 2, 3, 0, 1], end=7))
    assert_as_pillow(gif((3, 2), full, [0, 1, 2, 3, 0, 1])[:-1], is_served=True)
    for before in (
        b"!\xfe\3abc\0",
        b"!\xff\x0bNETSCAPE2.0\3\1\0\0\0",
        b"\0",
        b"junk",
        b";",
        b"!\xf9\1\1\0",
    ):
        assert_as_pillow(gif((3, 2), full, [0, 1, 2, 3, 0, 1], before=before))


def test_gif_codes_of_every_length() -> None:
    source = random.Random(5)
    for colors in (2, 5, 200):
        image = Image.new("P", (300, 200))
        image.putdata([source.randrange(colors) for _ in range(300 * 200)])
        image.putpalette(source.randbytes(3 * colors))
        assert_as_pillow(encode(image, "GIF"), is_served=True)
    assert_as_pillow(encode(Image.new("P", (900, 900), 1), "GIF"), is_served=True)


def bmp(
    size: tuple[int, int],
    bits: int,
    body: bytes,
    *,
    compression: int = 0,
    header: int = 40,
    extra: bytes = b"",
    colors: int = 0,
    offset: int | None = None,
) -> bytes:
    start = 14 + header + (len(extra) if header == 40 else 0)
    info = struct.pack(
        "<IiiHHIIiiII", header, *size, 1, bits, compression, len(body), 0, 0, colors, 0
    )
    where = start if offset is None else offset
    return b"BM" + struct.pack("<IHHI", start + len(body), 0, 0, where) + info + extra + body


def with_and_without_file_header(data: bytes) -> tuple[bytes, bytes, bytes]:
    """A BMP; the same with an offset of 0, which stands for none; and as a DIB."""
    return data, data[:10] + bytes(4) + data[14:], data[14:]


MASKS = [
    (0xFF0000, 0xFF00, 0xFF, 0),
    (0xFF000000, 0xFF0000, 0xFF00, 0),
    (0xFF000000, 0xFF00, 0xFF, 0),
    (0xFF000000, 0xFF0000, 0xFF00, 0xFF),
    (0xFF, 0xFF00, 0xFF0000, 0xFF000000),
    (0xFF0000, 0xFF00, 0xFF, 0xFF000000),
    (0xFF000000, 0xFF00, 0xFF, 0xFF0000),
    (0, 0, 0, 0),
    (0xF0, 0xF, 0xF00, 0),
]


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("header", [40, 52, 56, 108, 124])
def test_bmp_bit_fields(masks: tuple[int, int, int, int], header: int) -> None:
    body = random.Random(header).randbytes(5 * 3 * 4)
    extra = struct.pack("<4I", *masks)[: 12 if header < 56 else 16].ljust(
        max(header - 40, 12), b"\0"
    )
    for height in (3, -3):
        data = bmp((5, height), 32, body, compression=3, header=header, extra=extra)
        is_known = masks != MASKS[-1] and (header >= 56 or masks != MASKS[4])
        for file in with_and_without_file_header(data):
            assert_as_pillow(file, is_served=is_known or None)


@pytest.mark.parametrize(
    "masks", [(0xF800, 0x7E0, 0x1F), (0x7C00, 0x3E0, 0x1F), (0xF00, 0xF0, 0xF)]
)
def test_bmp_of_sixteen_bits(masks: tuple[int, int, int]) -> None:
    body = bytes(range(256)) * 4
    fields = bmp((16, 32), 16, body, compression=3, extra=struct.pack("<3I", *masks))
    for file in with_and_without_file_header(fields):
        assert_as_pillow(file)
    for width in (15, 16):
        for file in with_and_without_file_header(bmp((width, 32), 16, body)):
            assert_as_pillow(file, is_served=True)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("colors", [0, 1, 2, 3, 16, 256, 257])
@pytest.mark.parametrize("is_gray", [False, True])
def test_bmp_palettes(bits: int, colors: int, *, is_gray: bool) -> None:
    source = random.Random(bits * 1_000 + colors)
    count = colors or 1 << bits
    levels = [0, 255] if count == 2 else [level & 255 for level in range(count)]
    gray = b"".join(bytes([level] * 3 + [0]) for level in levels)
    palette = gray if is_gray else source.randbytes(4 * count)
    stride = (21 * bits + 31) // 32 * 4
    data = bmp((21, 6), bits, source.randbytes(6 * stride), extra=palette, colors=colors)
    for file in with_and_without_file_header(data):
        assert_as_pillow(file)
        assert_as_pillow(file[:-3])
        assert_as_pillow(file[: -stride - 1])


@pytest.mark.parametrize("bits", [1, 4, 8, 24])
@pytest.mark.parametrize("size", [(1, 1), (5, 3), (64, 2)])
def test_bmp_of_the_oldest_header(bits: int, size: tuple[int, int]) -> None:
    source = random.Random(bits)
    stride = (size[0] * bits + 31) // 32 * 4
    palette = source.randbytes(3 << bits) if bits < 9 else b""
    info = struct.pack("<IHHHH", 12, *size, 1, bits) + palette
    body = source.randbytes(stride * size[1])
    head = b"BM" + struct.pack("<IHHI", 14 + len(info) + len(body), 0, 0, 14 + len(info))
    for file in with_and_without_file_header(head + info + body):
        assert_as_pillow(file, is_served=True)


@pytest.mark.parametrize(
    "maximum", [1, 2, 15, 100, 254, 255, 256, 300, 1_000, 65_534, 65_535, 65_536, 0]
)
@pytest.mark.parametrize("kind", [b"P2", b"P3", b"P5", b"P6"])
def test_pnm_maxima(kind: bytes, maximum: int) -> None:
    source = random.Random(maximum)
    count = 7 * 5 * (3 if kind in (b"P3", b"P6") else 1)
    samples = [source.randrange(maximum + 1) for _ in range(count)]
    if kind in (b"P2", b"P3"):
        body = b" ".join(str(sample).encode() for sample in samples)
    else:
        body = b"".join(sample.to_bytes(1 if maximum < 256 else 2, "big") for sample in samples)
    data = kind + b"\n7 5\n" + str(maximum).encode() + b"\n" + body
    assert_as_pillow(data, is_served=0 < maximum < 65_536)
    assert_as_pillow(data[:-1])
    if kind in (b"P5", b"P6"):
        # Samples over the maximum.
        assert_as_pillow(data[: -len(body)] + source.randbytes(len(body)))


@pytest.mark.parametrize(
    "data",
    [
        b"P1 3 2 010 101",
        b"P1 3 2 0 1\n0\t1 0 1 1 1",
        b"P1 3 2 010 12",
        b"P1 3 2 01",
        b"P1 3 2 # note\n010101",
        b"P4 9 2\n\xaa\x80\x55\x00",
        b"P4 9 2\n\xaa\x80\x55",
        b"P5 # a comment\n2 # another\r2 255 abcd",
        b"P5 2 2#split\n 255\nabcd",
        b"P5 1#split\n0 1 255\n0123456789",
        b"P5 00000000002 2 255\nabcd",
        b"P5 +2 2 255\nabcd",
        b"P5 2_0 2 255\n" + bytes(40),
        b"P5 0 2 255\n",
        b"P2 2 1 9 +3 4",
        b"P2 2 1 9 3 -4",
        b"P2 2 1 9 3 44",
        b"P2 2 1 9 00000003 4",
        b"P2 2 1 9 000000000003 4",
        b"P2 2 1 9 3 4 5 6",
        b"P6\n2 2 255\n" + bytes(range(12)),
        b"P6 2 2 255 " + bytes(range(13)),
        b"P7\n",
        b"P5",
    ],
)
def test_pnm_headers_and_text(data: bytes) -> None:
    assert_as_pillow(data)


def test_qoi_runs_and_seen_pixels() -> None:
    source = random.Random(3)
    for channels in (3, 4, 5):
        for _ in range(40):
            body = bytearray()
            for _ in range(60):
                first = source.choice((0xFE, 0xFF, source.randrange(64), source.randrange(64, 254)))
                body.append(first)
                extra = {0xFE: 3, 0xFF: 4}.get(first, 1 if 0x80 <= first < 0xC0 else 0)
                body += source.randbytes(extra)
            data = b"qoif" + struct.pack(">IIBB", 6, 5, channels, 0) + bytes(body)
            assert_as_pillow(data)
