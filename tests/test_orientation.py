"""Upright everywhere: what a header tells is what every decode gives, judged by Pillow."""

from __future__ import annotations

import io
import itertools
import json
import os
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from safelight import (
    ImageHeader,
    ImageMediaIO,
    MediaError,
    MultiModalHasher,
    collect_media_decodes,
    probe,
    probe_files,
    probe_prefix,
    submit_media_decodes,
)
from safelight.media.form import Decoder, Output
from safelight.parse import ImageProcessorItems

MODES: tuple[str | None, ...] = ("RGB", "L", None)
OUTPUTS: tuple[Output, ...] = ("pil", "numpy", "torch")
DECODERS: tuple[Decoder, ...] = ("native", "pillow")

NOISE = Image.effect_noise((24, 16), 90).convert("RGB")
UNTAGGED = b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0"


def saved(format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    NOISE.save(buffer, format, **options)
    return buffer.getvalue()


def exif(orientation: int) -> bytes:
    header = b"Exif\0\0II" + struct.pack("<HIH", 42, 8, 1)
    return header + struct.pack("<HHIHH", 0x112, 3, 1, orientation, 0) + bytes(4)


def unwritable_exif(orientation: int) -> bytes:
    """EXIF whose orientation reads, and that Pillow fails to write back: a text of type SHORT."""
    entries = struct.pack("<HHIHH", 0x112, 3, 1, orientation, 0)
    entries += struct.pack("<HHI4s", 0x10E, 5, 1, struct.pack("<I", 200))
    return b"Exif\0\0II" + struct.pack("<HIH", 42, 8, 2) + entries + bytes(300)


def xmp(orientation: int) -> bytes:
    return (
        b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description '
        b'tiff:Orientation="%d"/></x:xmpmeta>' % orientation
    )


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(front: bytes = b"", behind: bytes = b"") -> bytes:
    data = saved("PNG")
    return data[:33] + front + data[33:-12] + behind + data[-12:]


def jpeg(*segments: bytes) -> bytes:
    data = saved("JPEG", quality=95)
    parts = [b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body for body in segments]
    return data[:2] + b"".join(parts) + data[2:]


def profile(orientation: int) -> bytes:
    block = exif(orientation)
    text = b"\nexif\n%8d\n" % len(block) + block.hex().encode() + b"\n"
    return chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(text))


def itxt(orientation: int) -> bytes:
    return chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp(orientation))


XMP_SEGMENT = b"http://ns.adobe.com/xap/1.0/\0"

FILES: dict[str, Callable[[int], bytes]] = {
    "JPEG": lambda turn: jpeg(exif(turn)),
    "JPEG, XMP": lambda turn: jpeg(XMP_SEGMENT + xmp(turn)),
    "JPEG, EXIF over XMP": lambda turn: jpeg(exif(turn), XMP_SEGMENT + xmp(6)),
    "MPO": lambda turn: saved("MPO", exif=exif(turn), save_all=True, append_images=[NOISE]),
    "PNG": lambda turn: png(chunk(b"eXIf", exif(turn)[6:])),
    "PNG, behind": lambda turn: png(b"", chunk(b"eXIf", exif(turn)[6:])),
    "PNG, both": lambda turn: png(chunk(b"eXIf", exif(6)[6:]), chunk(b"eXIf", exif(turn)[6:])),
    "PNG, profile": lambda turn: png(profile(turn)),
    "PNG, profile behind": lambda turn: png(b"", profile(turn)),
    "PNG, XMP": lambda turn: png(itxt(turn)),
    "PNG, XMP behind": lambda turn: png(b"", itxt(turn)),
    "APNG": lambda turn: saved("PNG", exif=exif(turn), save_all=True, append_images=[NOISE]),
    "WEBP": lambda turn: saved("WEBP", lossless=True, exif=exif(turn)),
    "WEBP, XMP": lambda turn: saved("WEBP", lossless=True, xmp=xmp(turn)),
    "TIFF": lambda turn: saved("TIFF", tiffinfo={0x112: turn}),
    "TIFF, XMP": lambda turn: saved("TIFF", tiffinfo={700: xmp(turn)}),
    "TIFF, both": lambda turn: saved("TIFF", tiffinfo={0x112: turn, 700: xmp(6)}),
    "AVIF": lambda turn: saved("AVIF", exif=exif(turn)),
    "AVIF, XMP": lambda turn: saved("AVIF", xmp=xmp(turn)),
    "AVIF, untagged EXIF and XMP": lambda turn: saved("AVIF", exif=UNTAGGED, xmp=xmp(turn)),
    "AVIF, both": lambda turn: saved("AVIF", exif=exif(turn), xmp=xmp(6)),
    "AVIF, sequence": lambda turn: saved(
        "AVIF", xmp=xmp(turn), save_all=True, append_images=[NOISE]
    ),
    "GIF": lambda turn: saved("GIF", comment=xmp(turn)),
    "BMP": lambda turn: saved("BMP"),
    "JPEG2000": lambda turn: saved("JPEG2000"),
}

CASES = [(name, turn) for name in FILES for turn in range(1, 9)]


def opened(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


@pytest.mark.parametrize(("name", "turn"), CASES)
def test_header_and_every_decode_agree_with_pillow(name: str, turn: int) -> None:
    data = FILES[name](turn)
    truth = ImageOps.exif_transpose(opened(data))
    header = probe(data)
    assert header.upright_size == truth.size
    for mode, output, decoder in itertools.product(MODES, OUTPUTS, DECODERS):
        media_io = ImageMediaIO(mode, output=output, decoder=decoder)
        right = truth if mode is None else truth.convert(mode)
        ref = media_io.load_bytes_ref(data)
        [job] = submit_media_decodes([media_io.load_bytes_ref(data)])
        [queued] = collect_media_decodes([job])
        for image in (media_io.load_bytes(data), ref.decode(), queued):
            assert np.array_equal(np.asarray(image), np.asarray(right)), (mode, output, decoder)
        assert ref.header == header
        if output == "pil":
            assert ImageOps.exif_transpose(ref.decode()).size == truth.size


@pytest.mark.parametrize("turn", [3, 6, 7])
@pytest.mark.parametrize("decoder", ["native", "pillow"])
def test_a_smaller_scale_is_upright_too(turn: int, decoder: Any) -> None:
    data = FILES["JPEG"](turn)
    ref = ImageMediaIO(decoder=decoder, scale="1/2").load_bytes_ref(data)
    assert ref.header is not None
    assert ref.header.upright_size == ref.decode().size
    small = Image.open(io.BytesIO(data))
    small.draft(None, (12, 8))
    assert np.array_equal(np.asarray(ref.decode()), np.asarray(ImageOps.exif_transpose(small)))


@pytest.mark.parametrize("turn", range(2, 9))
def test_exif_that_cannot_be_written_back_turns_the_picture(turn: int) -> None:
    data = jpeg(unwritable_exif(turn))
    with pytest.raises(AttributeError):
        ImageOps.exif_transpose(opened(data))
    right = np.asarray(ImageOps.exif_transpose(opened(FILES["JPEG"](turn))))
    assert (probe(data).orientation, probe(data).upright_size) == (turn, right.shape[1::-1])
    for mode, decoder in itertools.product(("RGB", None), DECODERS):
        image = ImageMediaIO(mode, decoder=decoder).load_bytes(data)
        assert np.array_equal(np.asarray(image), right)
        assert ImageOps.exif_transpose(image).size == image.size
    [item] = ImageProcessorItems([opened(data)]).get_all()
    assert np.array_equal(np.asarray(item), right)


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize(
    ("name", "turn"),
    # Without its pixels, an image that states two orientations tells the one in front of them.
    [case for case in CASES if case[1] in (1, 3, 6) and case[0] != "PNG, both"],
)
def test_a_pillow_image_is_turned_like_its_file(name: str, turn: int, is_loaded: bool) -> None:
    data = FILES[name](turn)
    image = opened(data) if is_loaded else Image.open(io.BytesIO(data))
    items = ImageProcessorItems([image])
    truth = ImageOps.exif_transpose(opened(data))
    assert items.get_image_size(0) == truth.size
    assert np.array_equal(np.asarray(items.get(0)), np.asarray(truth))
    # The caller's image is as it was, and is turned once however often it is asked for.
    assert items.get_image_size(0) == items.get(0).size == truth.size


def test_sizes_are_told_without_a_pixel() -> None:
    for name in ("JPEG", "PNG", "WEBP", "TIFF", "AVIF"):
        image = Image.open(io.BytesIO(FILES[name](6)))
        assert ImageProcessorItems([image]).get_image_size(0) == (16, 24)
        assert image._im is None, name


def test_the_identity_of_a_pillow_image_covers_its_orientation() -> None:
    def digest(image: Image.Image) -> str:
        return MultiModalHasher.hash_kwargs("blake3", image=image)

    plain, upside_down, turned = (opened(png(chunk(b"eXIf", exif(o)[6:]))) for o in (1, 3, 6))
    assert len({digest(image) for image in (plain, upside_down, turned)}) == 3
    assert digest(plain) == digest(NOISE)


def test_files_are_upright_and_a_prefix_has_its_size(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    noise = Image.effect_noise((300, 200), 90)
    buffer = io.BytesIO()
    noise.save(buffer, "PNG")
    data = buffer.getvalue()
    data = data[:-12] + chunk(b"eXIf", exif(6)[6:]) + data[-12:]
    path.write_bytes(data)
    assert probe_files([path]) == [probe(data)]
    assert probe(data).upright_size == (200, 300)
    early = probe_prefix(data[:4096])
    assert isinstance(early, ImageHeader)
    assert (early.width, early.height, early.orientation) == (300, 200, 1)


def test_every_real_file_is_decoded_to_the_size_of_its_header() -> None:
    if not os.environ.get("SAFELIGHT_CORPUS"):
        pytest.skip("no corpus of real files; set SAFELIGHT_CORPUS to its folder")
    folder = Path(os.environ["SAFELIGHT_CORPUS"])
    lines = (folder / "truth.jsonl").read_text().splitlines()
    decoded = 0
    for name in (json.loads(line)["file"] for line in lines):
        data = (folder / name).read_bytes()
        try:
            header = probe(data)
        except MediaError:
            continue
        if header.width * header.height > 4_000_000:
            continue
        for mode, decoder in itertools.product(("RGB", None), DECODERS):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    image = ImageMediaIO(mode, decoder=decoder).load_bytes(data)
            except MediaError:
                continue
            assert image.size == header.upright_size, (name, mode, decoder)
            decoded += 1
    assert decoded > 400
