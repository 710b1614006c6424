"""Forms of a decode: which decoder ran cannot be told from what comes out."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from safelight import ImageMediaIO, MediaError
from safelight.media import decode

MODES = ["RGB", "RGBA", "L"]


def encode(image: Image.Image, image_format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


def photo(size: tuple[int, int] = (61, 37)) -> Image.Image:
    bands = [Image.effect_noise(size, 60), Image.radial_gradient("L").resize(size)]
    return Image.merge("RGB", [*bands, Image.effect_noise(size, 90)])


def payloads() -> dict[str, bytes]:
    rgba = photo().convert("RGBA")
    rgba.putalpha(Image.radial_gradient("L").resize(rgba.size))
    exif = Image.Exif()
    exif[0x0112] = 6
    return {
        "jpeg": encode(photo(), "JPEG", dpi=(72, 72)),
        "turned jpeg": encode(photo(), "JPEG", exif=exif),
        "gray jpeg": encode(photo().convert("L"), "JPEG"),
        "cmyk jpeg": encode(photo().convert("CMYK"), "JPEG"),
        "png": encode(photo(), "PNG"),
        "alpha png": encode(rgba, "PNG"),
        "palette png": encode(photo().quantize(32), "PNG", transparency=3),
        "webp": encode(photo(), "WEBP"),
        "alpha webp": encode(rgba, "WEBP", lossless=True),
        "gif": encode(photo().quantize(16), "GIF"),
        "bmp": encode(photo(), "BMP"),
    }


PAYLOADS = payloads()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PAYLOADS)
def test_both_decoders_give_the_same_image(name: str, mode: str) -> None:
    native = ImageMediaIO(mode).load_bytes(PAYLOADS[name])
    pillow = ImageMediaIO(mode, decoder="pillow").load_bytes(PAYLOADS[name])
    assert type(native) is type(pillow) is Image.Image
    assert (native.mode, native.size, native.format) == (pillow.mode, pillow.size, pillow.format)
    assert native.info == pillow.info == {}
    assert native.tobytes() == pillow.tobytes()


@pytest.mark.parametrize("name", PAYLOADS)
def test_an_array_holds_the_pixels_of_the_image(name: str) -> None:
    for decoder in ("native", "pillow"):
        array = ImageMediaIO(output="numpy", decoder=decoder).load_bytes(PAYLOADS[name])
        image = ImageMediaIO().load_bytes(PAYLOADS[name])
        assert array.dtype == np.uint8
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert np.array_equal(array, np.asarray(image))


def test_gray_arrays_have_two_axes() -> None:
    assert ImageMediaIO("L", output="numpy").load_bytes(PAYLOADS["png"]).shape == (37, 61)


def test_a_tensor_shares_its_memory_with_nobody() -> None:
    torch = pytest.importorskip("torch")
    tensor = ImageMediaIO(output="torch").load_bytes(PAYLOADS["png"])
    assert tensor.dtype == torch.uint8
    assert tuple(tensor.shape) == (37, 61, 3)
    tensor[0, 0, 0] = 7


def test_the_form_of_the_result_is_in_the_key_and_the_decoder_is_not() -> None:
    data = PAYLOADS["png"]
    plain = ImageMediaIO().load_bytes_ref(data).key
    assert ImageMediaIO(decoder="pillow").load_bytes_ref(data).key == plain
    assert ImageMediaIO(output="pil").load_bytes_ref(data).key == plain
    assert ImageMediaIO(output="numpy").load_bytes_ref(data).key != plain


def test_an_image_may_be_drawn_on() -> None:
    ref = ImageMediaIO().load_bytes_ref(PAYLOADS["png"])
    image = ref.decode()
    image.putpixel((0, 0), (1, 2, 3))
    assert image.getpixel((0, 0)) == (1, 2, 3)
    assert image.resize((8, 8)).mode == "RGB"


CHANGES: dict[str, Callable[[Image.Image], Any]] = {
    "putpixel": lambda image: image.putpixel((1, 1), (9,) * len(image.getbands())),
    "paste a color": lambda image: image.paste((7,) * len(image.getbands()), (2, 2, 9, 9)),
    "paste an image": lambda image: image.paste(Image.new(image.mode, (3, 3)), (5, 5)),
    "paste through a mask": lambda image: image.paste(
        (7,) * len(image.getbands()), (0, 0, 4, 4), Image.new("L", (4, 4), 99)
    ),
    "putalpha": lambda image: image.putalpha(7),
    "putdata": lambda image: image.putdata(
        [(5,) * len(image.getbands()) if image.mode != "L" else 5] * 9
    ),
    "frombytes": lambda image: image.frombytes(image.tobytes()[::-1]),
    "draw": lambda image: ImageDraw.Draw(image).line((0, 0, 30, 30)),
    "thumbnail": lambda image: image.thumbnail((9, 9)),
    "getexif": lambda image: image.getexif().tobytes(),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", CHANGES)
def test_an_image_is_changed_as_pillows_own(change: str, mode: str) -> None:
    kept = ImageMediaIO(mode).load_bytes_ref(PAYLOADS["turned jpeg"])
    outcomes = []
    for decoder in ("native", "pillow"):
        image = ImageMediaIO(mode, decoder=decoder).load_bytes(PAYLOADS["turned jpeg"])
        before = image.copy()
        outcomes.append((CHANGES[change](image), image.mode, image.size, image.tobytes()))
        assert kept.decode().tobytes() == before.tobytes()
        assert change == "getexif" or image != before
    assert outcomes[0][1:] == outcomes[1][1:]


def test_pixels_may_be_assigned_once_an_image_is_changed() -> None:
    image = ImageMediaIO().load_bytes(PAYLOADS["jpeg"])
    image.putpixel((0, 0), (1, 2, 3))
    assert not image.readonly
    image.load()[1, 0] = (4, 5, 6)
    assert image.tobytes()[:6] == bytes([1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize(
    ("override", "native"),
    [
        ("pillow", set()),
        ("native", {"JPEG", "PNG"}),
        ("JPEG=pillow", {"PNG"}),
        ("jpeg=pillow, png=pillow", set()),
    ],
)
def test_the_environment_overrides_the_decoder(
    monkeypatch: pytest.MonkeyPatch, override: str, native: set[str]
) -> None:
    ran: set[str] = set()
    real = decode.decode_image

    def decode_image(data: bytes, *args: Any, **kwargs: Any) -> Any:
        ran.add("PNG" if data.startswith(b"\x89PNG") else "JPEG")
        return real(data, *args, **kwargs)

    monkeypatch.setattr(decode, "decode_image", decode_image)
    monkeypatch.setenv("SAFELIGHT_IMAGE_DECODER", override)
    for name in ("jpeg", "png"):
        ImageMediaIO().load_bytes(PAYLOADS[name])
    assert ran == native


@pytest.mark.parametrize("kind", ["eXIf", "raw profile", "xmp"])
def test_an_orientation_behind_the_pixels_turns_the_image_as_in_pillow(kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    body = exif.tobytes()
    xmp = (
        b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-'
        b'syntax-ns#"><rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" '
        b'tiff:Orientation="6"/></rdf:RDF></x:xmpmeta>'
    )
    profile = b"\nexif\n%8d\n%s\n" % (len(body), body.hex().encode())
    name, content = {
        "eXIf": (b"eXIf", body.removeprefix(b"Exif\0\0")),
        "raw profile": (b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(profile)),
        "xmp": (b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp),
    }[kind]
    plain = PAYLOADS["png"]
    end = plain.rindex(b"IEND") - 4
    chunk = struct.pack(">I", len(content)) + name + content
    chunk += struct.pack(">I", zlib.crc32(name + content))
    data = plain[:end] + chunk + plain[end:]
    native = ImageMediaIO().load_bytes(data)
    pillow = ImageMediaIO(decoder="pillow").load_bytes(data)
    assert native.size == pillow.size == (37, 61)
    assert native.tobytes() == pillow.tobytes()


def test_decoders_are_chosen_by_format() -> None:
    media_io = ImageMediaIO(decoder={"JPEG": "pillow"})
    image = media_io.load_bytes(PAYLOADS["jpeg"])
    assert image.tobytes() == ImageMediaIO().load_bytes(PAYLOADS["jpeg"]).tobytes()


@pytest.mark.parametrize(
    "options", [{"output": "jax"}, {"decoder": "magick"}, {"decoder": {"PNG": "x"}}]
)
def test_unknown_choices_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be one of"):
        ImageMediaIO(**options)


@pytest.mark.timeout(600)
def test_both_decoders_agree_on_the_corpus(corpus: Path) -> None:
    native, pillow = ImageMediaIO(), ImageMediaIO(decoder="pillow")
    compared = 0
    for folder in ("jpeg", "mpo", "png", "webp", "gif", "bmp", "dib", "ppm", "qoi", "refused"):
        for path in sorted((corpus / folder).iterdir()):
            data = path.read_bytes()
            try:
                expected = pillow.load_bytes(data)
            except MediaError as error:
                with pytest.raises(type(error)):
                    native.load_bytes(data)
                continue
            image = native.load_bytes(data)
            assert (image.size, image.mode) == (expected.size, expected.mode), path.name
            assert image.tobytes() == expected.tobytes(), path.name
            compared += 1
    assert compared > 500
