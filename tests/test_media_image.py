"""Images: the fixed order of a decode, its conversions, limits at ref time, and what errors say."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import struct
import uuid
import zlib
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageOps

from safelight import (
    DecodedBudget,
    DecodeError,
    HeaderError,
    ImageMediaIO,
    LimitError,
    MediaError,
    MediaRef,
    NeedMoreBytes,
    UnsupportedMediaError,
    derive_media_key,
)
from safelight.media.image import ALLOWED_IMAGE_FORMATS

WHITE = (255, 255, 255)


def encode(image: Image.Image, image_format: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


def jpeg(size: tuple[int, int] = (64, 48), **options: Any) -> bytes:
    return encode(Image.radial_gradient("L").resize(size).convert("RGB"), "JPEG", **options)


def png_of_size(width: int, height: int) -> bytes:
    """A PNG whose header claims a size that its data does not have."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0"))
        + chunk(b"IEND", b"")
    )


# --- identity ---


def test_default_spec_is_mode_and_background() -> None:
    ref = ImageMediaIO().load_bytes_ref(b"payload")
    assert ref.spec.settings == {"image_mode": "RGB", "rgba_background_color": [255, 255, 255]}
    assert ref.key.hex() == "d845c4390f2df791cef2a2e7e05d0c2caaf8863914208359946a8a672ad69dfa"


def test_limits_and_budgets_do_not_enter_the_key() -> None:
    data = jpeg()
    plain = ImageMediaIO().load_bytes_ref(data)
    limited = ImageMediaIO(
        max_image_pixels=10_000, decoded_budget=DecodedBudget(1 << 20)
    ).load_bytes_ref(data)
    assert plain.key == limited.key


def test_what_changes_pixels_changes_the_key() -> None:
    data = jpeg()
    ios = [ImageMediaIO(), ImageMediaIO("L"), ImageMediaIO(None)]
    ios.append(ImageMediaIO(rgba_background_color=(0, 0, 0)))
    ios += [ImageMediaIO(scale=scale) for scale in ("1/2", "1/4", "1/8")]
    assert len({media_io.load_bytes_ref(data).key for media_io in ios}) == len(ios)


@pytest.mark.parametrize(
    "color",
    ["white", (1, 2), (1, 2, 3, 4), (1, 2, 256), (-1, 0, 0), (1.0, 2, 3), (True, 0, 0), None],
)
def test_a_background_is_three_levels(color: Any) -> None:
    with pytest.raises(ValueError, match="three ints from 0 to 255"):
        ImageMediaIO(rgba_background_color=color)


def test_image_id_stands_for_the_payload_only_on_request() -> None:
    identity = uuid.UUID(int=0x1234567890ABCDEF1234567890ABCDEF)
    exif = Image.Exif()
    exif[0x800D] = str(identity)
    first, second = (jpeg(quality=quality, exif=exif) for quality in (50, 90))
    assert first != second
    default = ImageMediaIO()
    assert default.load_bytes_ref(first).key != default.load_bytes_ref(second).key
    opted = ImageMediaIO(use_image_id=True)
    key = opted.load_bytes_ref(first).key
    assert key == opted.load_bytes_ref(second).key
    assert key == derive_media_key(identity.bytes, opted.get_decode_spec())
    # The background still counts: the id replaces the payload, not the whole identity.
    other = ImageMediaIO(use_image_id=True, rgba_background_color=(0, 0, 0))
    assert other.load_bytes_ref(first).key != key
    exif[0x800D] = "not a uuid"
    plain = jpeg(exif=exif)
    assert opted.load_bytes_ref(plain).key == derive_media_key(plain, opted.get_decode_spec())


# --- scale ---


@pytest.mark.parametrize("decoder", ["native", "pillow"])
@pytest.mark.parametrize("scale", ["1/2", "1/4", "1/8"])
def test_a_jpeg_is_decoded_to_the_size_that_its_ref_says(scale: Any, decoder: Any) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = jpeg((101, 60), exif=exif)
    divisor = int(scale[2:])
    expected = Image.open(io.BytesIO(data))
    expected.draft(None, (101 // divisor, 60 // divisor))
    expected = ImageOps.exif_transpose(expected)
    budget = DecodedBudget(1 << 20)
    media_io = ImageMediaIO(scale=scale, decoder=decoder, decoded_budget=budget)
    ref = media_io.load_bytes_ref(data)
    assert ref.spec.settings["scale"] == scale
    assert ref.header is not None
    assert ref.header.upright_size == expected.size
    assert budget.used_bytes == expected.width * expected.height * 4
    image = ref.decode()
    assert image.size == expected.size == (-(-60 // divisor), -(-101 // divisor))
    assert image.tobytes() == expected.tobytes()
    assert budget.used_bytes == expected.width * expected.height * 4


@pytest.mark.parametrize("decoder", ["native", "pillow"])
def test_the_scale_is_for_jpeg_and_leaves_a_pixel(decoder: Any) -> None:
    media_io = ImageMediaIO(scale="1/8", decoder=decoder)
    png = encode(Image.new("RGB", (64, 48), (1, 2, 3)))
    assert media_io.load_bytes(png).size == (64, 48)
    for size, expected in {
        (1, 9): (1, 9),
        (3, 90): (2, 45),
        (7, 7): (2, 2),
        (8, 8): (1, 1),
    }.items():
        ref = media_io.load_bytes_ref(jpeg(size))
        assert ref.header is not None
        assert ref.header.upright_size == ref.decode().size == expected


def test_limits_are_judged_by_the_full_size() -> None:
    with pytest.raises(LimitError):
        ImageMediaIO(scale="1/8", max_image_pixels=100).load_bytes_ref(jpeg((20, 10)))


@pytest.mark.parametrize("scale", ["1", "1/3", 2, 0.5])
def test_scales_that_do_not_exist(scale: Any) -> None:
    with pytest.raises(ValueError, match="scale"):
        ImageMediaIO(scale=scale)


# --- pixels ---


def test_goldens_of_conversion() -> None:
    def pixel(image: Image.Image, mode: str = "RGB", image_format: str = "PNG") -> Any:
        return ImageMediaIO(mode).load_bytes(encode(image, image_format)).getpixel((0, 0))

    assert pixel(Image.new("RGBA", (1, 1), (255, 0, 0, 128))) == (255, 127, 127)
    assert pixel(Image.new("LA", (1, 1), (50, 128))) == (152, 152, 152)
    assert pixel(Image.new("I;16", (1, 1), 100)) == (100, 100, 100)
    assert pixel(Image.new("I;16", (1, 1), 300)) == (255, 255, 255)
    assert pixel(Image.new("F", (1, 1), 0.5), image_format="TIFF") == (0, 0, 0)
    assert pixel(Image.new("F", (1, 1), 300), image_format="TIFF") == (255, 255, 255)
    assert pixel(Image.new("CMYK", (1, 1), (0, 255, 255, 0)), image_format="TIFF") == (255, 0, 0)
    assert pixel(Image.new("RGB", (1, 1), (10, 20, 30)), "L") == 18


@pytest.mark.parametrize("mode", ["P", "L", "RGB"])
def test_a_transparent_color_becomes_the_background(mode: str) -> None:
    image = Image.new(mode, (2, 1), 0 if mode != "RGB" else (7, 8, 9))
    transparency = 0 if mode != "RGB" else (7, 8, 9)
    data = encode(image, transparency=transparency)
    assert ImageMediaIO().load_bytes(data).getpixel((0, 0)) == WHITE
    red = ImageMediaIO(rgba_background_color=(255, 0, 0))
    assert red.load_bytes(data).getpixel((0, 0)) == (255, 0, 0)


def test_every_alpha_composes_as_pillow_pastes() -> None:
    image = Image.new("RGBA", (256, 1))
    image.putdata([(i, 255 - i, 77, i) for i in range(256)])
    background = Image.new("RGB", image.size, (12, 200, 3))
    background.paste(image, mask=image.getchannel("A"))
    media_io = ImageMediaIO(rgba_background_color=(12, 200, 3))
    assert media_io.load_bytes(encode(image)).tobytes() == background.tobytes()


def test_mode_none_keeps_the_mode() -> None:
    assert ImageMediaIO(None).load_bytes(encode(Image.new("LA", (2, 2)))).mode == "LA"


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_images_come_upright(orientation: int, image_format: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.radial_gradient("L").resize((24, 16)).convert("RGB")
    image.paste((255, 0, 0), (0, 0, 8, 8))
    data = encode(image, image_format, exif=exif)
    opened = Image.open(io.BytesIO(data))
    opened.load()
    upright = ImageOps.exif_transpose(opened)
    ref = ImageMediaIO().load_bytes_ref(data)
    assert ref.header.upright_size == upright.size
    assert ref.decode().tobytes() == upright.convert("RGB").tobytes()


def test_orientation_moves_pixels_as_the_standard_says() -> None:
    image = Image.new("L", (3, 2))
    image.putdata(range(6))
    expected = {
        2: [2, 1, 0, 5, 4, 3],
        3: [5, 4, 3, 2, 1, 0],
        5: [0, 3, 1, 4, 2, 5],
        6: [3, 0, 4, 1, 5, 2],
    }
    for orientation, pixels in expected.items():
        exif = Image.Exif()
        exif[0x0112] = orientation
        decoded = ImageMediaIO("L").load_bytes(encode(image, exif=exif))
        assert list(decoded.tobytes()) == pixels


def test_animations_give_their_first_frame() -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    data = encode(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    assert ImageMediaIO().load_bytes(data).getpixel((0, 0)) == (255, 0, 0)


# What Pillow itself decodes otherwise from version to version, so that no record is the truth.
VERSION_DEPENDENT = {"BMP", "TIFF", "CUR", "XPM", "XBM", "FITS"}


@pytest.mark.timeout(600)
def test_corpus_decodes_as_pillow_does(corpus: Path) -> None:
    media_io, compared = ImageMediaIO(max_image_pixels=0), 0
    for line in (corpus / "truth.jsonl").read_text().splitlines():
        truth = json.loads(line)
        pillow = truth["pillow"]
        data = (corpus / truth["file"]).read_bytes()
        if pillow.get("load") is not True:
            with pytest.raises(MediaError):
                media_io.load_bytes(data)
            continue
        image_format = pillow["format"]
        if image_format in VERSION_DEPENDENT or (
            image_format not in ALLOWED_IMAGE_FORMATS and image_format != "MPO"
        ):
            continue
        # `white` is not turned upright, and `upright` is not pasted over white. Not every image
        # with transparency has a `white`.
        if "upright" in pillow and "rgba" in pillow:
            continue
        if "rgba" in pillow and "white" not in pillow:
            continue
        expected = pillow.get("white") or pillow.get("upright") or pillow["rgb"]
        if isinstance(expected, dict):
            with pytest.raises(MediaError):
                media_io.load_bytes(data)
            continue
        image = media_io.load_bytes(data)
        assert hashlib.sha256(image.tobytes()).hexdigest() == expected, truth["file"]
        compared += 1
    assert compared > 400


# --- limits ---


def test_an_oversize_image_is_refused_by_its_header() -> None:
    data = png_of_size(20_000, 20_000)
    with pytest.raises(LimitError) as refusal:
        ImageMediaIO().load_bytes_ref(data)
    assert (refusal.value.limit, refusal.value.actual) == (178_956_970, 400_000_000)
    assert str(refusal.value) == (
        "image is 20000x20000 = 400000000 pixels, over max_image_pixels 178956970"
    )


@pytest.mark.parametrize("entry", ["bytes", "base64", "file", "prefix"])
def test_every_entry_has_the_limit(entry: str, tmp_path: Path) -> None:
    data = png_of_size(101, 100)
    (tmp_path / "image.png").write_bytes(data)
    media_io = ImageMediaIO(max_image_pixels=10_000)
    with pytest.raises(LimitError):
        {
            "bytes": lambda: media_io.load_bytes(data),
            "base64": lambda: media_io.load_base64("image/png", base64.b64encode(data).decode()),
            "file": lambda: media_io.load_file(tmp_path / "image.png"),
            "prefix": lambda: media_io.check_prefix(data[:40]),
        }[entry]()


def test_zero_is_no_limit() -> None:
    assert ImageMediaIO(max_image_pixels=0).load_bytes_ref(png_of_size(20_000, 20_000))


def test_the_budget_is_charged_at_ref_time_settled_at_decode_and_refunded_on_a_hit() -> None:
    budget = DecodedBudget(64 * 48 * 4 * 2)
    media_io = ImageMediaIO(decoded_budget=budget)
    first = media_io.load_bytes_ref(jpeg())
    second = media_io.load_bytes_ref(jpeg())
    with pytest.raises(LimitError):
        media_io.load_bytes_ref(jpeg())
    assert budget.used_bytes == 64 * 48 * 4 * 2
    first.refund()
    assert budget.used_bytes == 64 * 48 * 4
    second.decode()
    second.refund()
    assert budget.used_bytes == 64 * 48 * 4
    first.decode()
    assert budget.used_bytes == 64 * 48 * 4 * 2


def test_an_unreadable_header_is_charged_when_it_decodes_after_all() -> None:
    budget = DecodedBudget(100)
    ref = ImageMediaIO(decoded_budget=budget).load_bytes_ref(b"not an image")
    assert budget.used_bytes == 0
    with pytest.raises(HeaderError):
        ref.decode()


# --- refusals ---


def test_damaged_pixels_are_an_error_never_a_partial_image() -> None:
    data = jpeg((640, 480))
    ref = ImageMediaIO().load_bytes_ref(data[: len(data) // 2])
    with pytest.raises(DecodeError):
        ref.decode()
    with pytest.raises(DecodeError):
        ref.decode()


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", HeaderError),
        (b"hello", HeaderError),
        (b"\xff\xd8\xff", HeaderError),
        (b"\x89PNG\r\n\x1a\n", HeaderError),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n", UnsupportedMediaError),
    ],
)
def test_what_is_no_image_is_refused_with_one_class(data: bytes, error: type[MediaError]) -> None:
    ref = ImageMediaIO().load_bytes_ref(data)
    with pytest.raises(error):
        ref.decode()


def test_formats_outside_the_list_are_refused() -> None:
    only_png = ImageMediaIO(formats=["PNG"])
    with pytest.raises(UnsupportedMediaError, match="JPEG"):
        only_png.load_bytes(jpeg())
    with pytest.raises(UnsupportedMediaError, match="JPEG"):
        only_png.check_prefix(jpeg())


def test_fits_is_off_unless_asked() -> None:
    cards = [
        b"SIMPLE  =                    T",
        b"BITPIX  =                    8",
        b"NAXIS   =                    2",
        b"NAXIS1  =                    1",
        b"NAXIS2  =                    1",
        b"END",
    ]
    data = b"".join(card.ljust(80) for card in cards).ljust(2880) + bytes(2880)
    with pytest.raises(MediaError):
        ImageMediaIO().load_bytes(data)
    assert ImageMediaIO(formats=["FITS"]).load_bytes(data).size == (1, 1)


def test_a_mode_that_does_not_convert_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(*args: Any) -> Image.Image:
        raise ValueError("conversion not supported")

    data = jpeg()
    monkeypatch.setattr(Image.Image, "convert", convert)
    with pytest.raises(DecodeError, match="mode RGB does not convert to HSV"):
        ImageMediaIO("HSV").load_bytes(data)


@pytest.mark.parametrize("mode", ["no such mode", "rgb", "BGR;15"])
def test_a_mode_that_does_not_exist_is_refused_at_once(mode: str) -> None:
    with pytest.raises(ValueError, match="image_mode"):
        ImageMediaIO(mode)


def test_errors_echo_no_payload() -> None:
    secret = b"SECRET-PAYLOAD-" * 20
    for data in (secret, b"\x89PNG\r\n\x1a\n" + secret, b"GIF89a" + secret, b"BM" + secret):
        with pytest.raises(MediaError) as refusal:
            ImageMediaIO().load_bytes(data)
        assert "SECRET" not in str(refusal.value)
        assert "0x" not in str(refusal.value)


# --- entries ---


def test_all_entries_agree(tmp_path: Path) -> None:
    data = jpeg()
    path = tmp_path / "image.jpg"
    path.write_bytes(data)
    text = base64.b64encode(data).decode()
    media_io = ImageMediaIO()
    refs = [
        media_io.load_bytes_ref(data),
        media_io.load_base64_ref("image/jpeg", text),
        media_io.load_file_ref(path),
    ]
    assert all(isinstance(ref, MediaRef) and not ref.is_decoded for ref in refs)
    assert len({ref.key for ref in refs}) == 1
    images = [
        media_io.load_bytes(data),
        media_io.load_base64("image/jpeg", text),
        media_io.load_file(path),
        *[ref.decode() for ref in refs],
    ]
    assert len({image.tobytes() for image in images}) == 1


def test_bad_base64_is_an_error_that_says_why() -> None:
    with pytest.raises(DecodeError, match="line break"):
        ImageMediaIO().load_base64_ref("image/png", "AAAA\nAAAA")


def test_check_prefix_asks_for_more_until_it_can_judge() -> None:
    data = jpeg()
    media_io = ImageMediaIO()
    answers = [media_io.check_prefix(data[:length]) for length in (0, 2, 10)]
    assert all(isinstance(answer, NeedMoreBytes) for answer in answers)
    assert media_io.check_prefix(data) is None


def test_check_prefix_refuses_what_is_no_image() -> None:
    page = b"<!doctype html><title>no image</title>" + b"<p>text</p>" * 1000
    media_io = ImageMediaIO()
    with pytest.raises(MediaError):
        media_io.check_prefix(page[:4096])
    noise = hashlib.sha512(b"noise").digest() * 200
    assert isinstance(media_io.check_prefix(noise[:100]), NeedMoreBytes)
    with pytest.raises(HeaderError, match="not an image"):
        media_io.check_prefix(noise)


# Not served unless they are asked for.
UNSERVED = ("BLP", "FITS", "IPTC", "MSP")


def test_check_prefix_passes_every_image_of_the_corpus(corpus: Path) -> None:
    media_io = ImageMediaIO(max_image_pixels=0)
    for line in (corpus / "truth.jsonl").read_text().splitlines():
        truth = json.loads(line)
        image_format = truth["pillow"].get("format")
        if truth["pillow"].get("load") is not True or image_format in UNSERVED:
            continue
        data = (corpus / truth["file"]).read_bytes()
        for length in (16, 512, 4096, len(data)):
            media_io.check_prefix(data[:length])
