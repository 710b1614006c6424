"""One small file of every kind that native code serves, made by code.

As a program, writes them into a folder, for a fuzzer to start from.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from PIL import Image, TiffImagePlugin

from jpeg_writer import Factors, jpeg
from pixels_reference import PNG_KINDS, chunk, encode, png, random_rows

Size = tuple[int, int]

SAMPLINGS: dict[str, Factors] = {
    "gray": [(1, 1)],
    "gray 2x2": [(2, 2)],
    "4:4:4": [(1, 1), (1, 1), (1, 1)],
    "4:2:2": [(2, 1), (1, 1), (1, 1)],
    "4:2:0": [(2, 2), (1, 1), (1, 1)],
    "4:4:0": [(1, 2), (1, 1), (1, 1)],
    "4:1:1": [(4, 1), (1, 1), (1, 1)],
    "4:1:0": [(4, 2), (1, 1), (1, 1)],
    "1:4:1": [(1, 4), (1, 1), (1, 1)],
    "3:1:1": [(3, 1), (1, 1), (1, 1)],
    "uneven chroma": [(2, 2), (2, 1), (1, 2)],
    "fine chroma": [(1, 1), (2, 2), (1, 1)],
    "CMYK": [(1, 1)] * 4,
    "YCCK 4:2:0": [(2, 2), (1, 1), (1, 1), (2, 2)],
}


PNG_CASES = [
    (kind, is_clear)
    for kind in PNG_KINDS
    for is_clear in (False, True)[: 1 + (kind[1] in (0, 2, 3))]
]


def png_of(
    source: random.Random, size: Size, bits: int, color_type: int, samples: int, *, is_clear: bool
) -> Iterator[bytes]:
    """The picture by rows and interlaced; with a transparent color where `is_clear`."""
    before = chunk(b"PLTE", source.randbytes(3 << bits)) if color_type == 3 else b""
    if is_clear:
        # One that occurs: a sample of random bits is 1 often enough.
        before += chunk(b"tRNS", {0: b"\0\1", 2: bytes([0, 1] * 3), 3: b"\0\x80"}[color_type])
    for is_interlaced in (False, True):
        raw = random_rows(source, size, bits, samples, is_interlaced=is_interlaced)
        yield png(size, bits, color_type, raw, before=before, is_interlaced=is_interlaced)


def picture(mode: str, size: Size = (23, 14)) -> Image.Image:
    """Half noise, half plain, so that every coder finds what it is made for."""
    bands = len(Image.new(mode, (1, 1)).getbands())
    width, height = size
    noise = random.Random(mode).randbytes(bands * width * (height // 2))
    plain = bytes(range(90, 90 + bands)) * (width * (height - height // 2))
    if mode in ("1", "P"):
        return Image.frombytes("L", size, noise + plain).convert(mode)
    return Image.frombytes(mode, size, noise + plain)


def jpeg_kinds() -> Iterator[tuple[str, bytes]]:
    for mode in ("L", "RGB", "CMYK"):
        for is_progressive in (False, True):
            for blocks in (0, 2):
                options = {"progressive": is_progressive, "restart_marker_blocks": blocks}
                name = f"{mode} {'progressive' if is_progressive else 'baseline'} {blocks}"
                yield name, encode(picture(mode), "JPEG", quality=70, **options)
    source = random.Random(1)
    for sampling, factors in SAMPLINGS.items():
        for is_progressive in (False, True):
            data = jpeg(source, (37, 35), factors, interval=1, is_progressive=is_progressive)
            yield f"{sampling} {is_progressive}", data


def png_kinds() -> Iterator[tuple[str, bytes]]:
    source = random.Random(2)
    for kind, is_clear in PNG_CASES:
        for number, data in enumerate(png_of(source, (13, 9), *kind, is_clear=is_clear)):
            yield f"{kind} {is_clear} {number}", data
    frames = [picture("RGBA"), picture("RGBA").transpose(Image.Transpose.FLIP_LEFT_RIGHT)]
    yield "animated", encode(frames[0], "PNG", save_all=True, append_images=frames[1:])


def webp_kinds() -> Iterator[tuple[str, bytes]]:
    for mode in ("RGB", "RGBA"):
        yield f"lossy {mode}", encode(picture(mode), "WEBP", quality=60)
        yield f"lossless {mode}", encode(picture(mode), "WEBP", lossless=True)
        frames = [picture(mode), picture(mode).transpose(Image.Transpose.FLIP_LEFT_RIGHT)]
        animation = encode(frames[0], "WEBP", save_all=True, append_images=frames[1:])
        yield f"animated {mode}", animation


def gif_kinds() -> Iterator[tuple[str, bytes]]:
    for mode in ("L", "P"):
        for interlace in (0, 1):
            yield f"{mode} {interlace}", encode(picture(mode), "GIF", interlace=interlace)
    yield "clear", encode(picture("P"), "GIF", transparency=0)
    frames = [picture("P"), picture("P").transpose(Image.Transpose.FLIP_LEFT_RIGHT)]
    yield "animated", encode(frames[0], "GIF", save_all=True, append_images=frames[1:])


def plain_kinds(format: str, modes: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    for mode in modes:
        yield mode, encode(picture(mode), format)


def pnm_kinds() -> Iterator[tuple[str, bytes]]:
    yield from plain_kinds("PPM", ("1", "L", "RGB"))
    samples = picture("RGB").tobytes()
    yield "P3", b"P3\n23 14\n255\n" + b" ".join(b"%d" % sample for sample in samples)
    yield "P2", b"P2\n23 14\n255\n" + b" ".join(b"%d" % sample for sample in samples[: 23 * 14])
    yield "deep", b"P6\n23 7\n60000\n" + samples


def tiff_kinds() -> Iterator[tuple[str, bytes]]:
    for mode in ("1", "L", "P", "RGB", "RGBA", "CMYK"):
        for compression in ("raw", "packbits", "tiff_lzw", "tiff_adobe_deflate"):
            info = TiffImagePlugin.ImageFileDirectory_v2()
            info[278] = 5
            if compression.startswith("tiff") and mode in ("L", "RGB"):
                info[317] = 2
            data = encode(picture(mode), "TIFF", compression=compression, tiffinfo=info)
            yield f"{mode} {compression}", data


KINDS: dict[str, dict[str, bytes]] = {
    "jpeg": dict(jpeg_kinds()),
    "png": dict(png_kinds()),
    "webp": dict(webp_kinds()),
    "gif": dict(gif_kinds()),
    "bmp": dict(plain_kinds("BMP", ("1", "L", "P", "RGB", "RGBA"))),
    "dib": dict(plain_kinds("DIB", ("1", "L", "P", "RGB", "RGBA"))),
    "pnm": dict(pnm_kinds()),
    "qoi": dict(plain_kinds("QOI", ("RGB", "RGBA"))),
    "tiff": dict(tiff_kinds()),
}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for format, files in KINDS.items():
        for number, data in enumerate(files.values()):
            (folder / f"{format}-{number:03}").write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
