"""JPEG against the installed Pillow: sizes, samplings, scans, colors, and rules about damage."""

from __future__ import annotations

import io
import random
import struct
from typing import Any

import numpy as np
import pytest
from PIL import Image

from jpeg_writer import segment
from pixels_reference import assert_as_pillow, encode, open_with_pillow, pixel_bytes
from safelight import ImageMediaIO, LimitError
from safelight._safelight import DecodeRequest, decode_image

pytestmark = pytest.mark.skipif(
    decode_image(encode(Image.new("RGB", (1, 1)), "JPEG"), DecodeRequest()) is None,
    reason="built without the feature jpeg",
)


def picture(size: tuple[int, int], mode: str = "RGB") -> Image.Image:
    bands = [
        Image.effect_noise(size, 80),
        Image.radial_gradient("L").resize(size),
        Image.effect_noise(size, 60),
        Image.linear_gradient("L").resize(size),
    ]
    count = len(Image.new(mode, (1, 1)).getbands())
    return Image.merge(mode, bands[:count]) if count > 1 else bands[0]


def drafted(data: bytes, scale: int) -> Image.Image:
    """`data` as Pillow decodes it to 1/`scale` of its size."""
    image = Image.open(io.BytesIO(data))
    image.draft(None, (max(1, image.width // scale), max(1, image.height // scale)))
    return image.convert("RGB")


@pytest.mark.parametrize("is_progressive", [False, True])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_every_size(subsampling: str, *, is_progressive: bool) -> None:
    for width in range(1, 71):
        size = (width, 1 + width * 37 % 70)
        data = encode(
            picture(size),
            "JPEG",
            quality=30 + width,
            subsampling=subsampling,
            progressive=is_progressive,
        )
        assert_as_pillow(data, is_served=True)


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGB"])
@pytest.mark.parametrize("blocks", [0, 1, 3])
def test_modes_and_restart_markers(mode: str, blocks: int) -> None:
    for size in ((1, 1), (8, 8), (37, 29), (64, 17)):
        options = {"restart_marker_blocks": blocks} if blocks else {"restart_marker_rows": 1}
        data = encode(picture(size, mode), "JPEG", quality=75, **options)
        assert_as_pillow(data, is_served=True)


@pytest.mark.parametrize(
    "options",
    [{}, {"restart_marker_rows": 1}, {"optimize": True}, {"progressive": True}],
)
@pytest.mark.parametrize("quality", [20, 100])
def test_scans_longer_than_what_is_held_of_them(quality: int, options: dict[str, Any]) -> None:
    noise = np.random.default_rng(quality).integers(0, 256, (410, 603, 3), np.uint8)
    data = encode(Image.fromarray(noise), "JPEG", quality=quality, subsampling="4:2:0", **options)
    assert len(data) > 32 << 10
    assert_as_pillow(data, is_served=True)


@pytest.mark.parametrize("options", [{}, {"restart_marker_blocks": 7}])
def test_a_scan_for_each_component(options: dict[str, Any]) -> None:
    planes = [
        encode(picture((77, 53), "RGB").getchannel(band), "JPEG", quality=80, **options)
        for band in range(3)
    ]
    frame, scan = planes[0].index(b"\xff\xc0"), planes[0].index(b"\xff\xda")
    sides = planes[0][frame + 5 : frame + 9]
    components = b"".join(bytes([number, 0x11, 0]) for number in (1, 2, 3))
    data = planes[0][:frame] + segment(0xC0, b"\x08" + sides + b"\x03" + components)
    data += planes[0][frame + 13 : scan]
    for number, plane in enumerate(planes, 1):
        start = plane.index(b"\xff\xda")
        data += segment(0xDA, bytes([1, number, 0, 0, 63, 0])) + plane[start + 10 : -2]
    assert_as_pillow(data + b"\xff\xd9", is_served=True)


@pytest.mark.parametrize("scale", [2, 4, 8])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_scales_as_pillow_drafts(subsampling: str, scale: int) -> None:
    for width in range(1, 50):
        size = (width, 1 + width * 37 % 70)
        options = {"quality": 30 + width, "progressive": width % 3 == 0}
        data = encode(picture(size), "JPEG", subsampling=subsampling, **options)
        expected = drafted(data, scale)
        pixels = decode_image(data, DecodeRequest("RGB", None, 0, 1, scale))
        assert pixels is not None
        assert pixels.size == expected.size
        assert pixel_bytes(pixels) == expected.tobytes()
        turned = decode_image(data, DecodeRequest("RGB", None, 0, 6, scale))
        assert turned is not None
        assert pixel_bytes(turned) == expected.transpose(Image.Transpose.ROTATE_270).tobytes()


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_scales_of_other_modes(mode: str) -> None:
    data = encode(picture((53, 38), mode), "JPEG", restart_marker_rows=1)
    for scale in (1, 2, 4, 8):
        pixels = decode_image(data, DecodeRequest("RGB", None, 0, 1, scale))
        assert pixels is not None
        assert pixel_bytes(pixels) == drafted(data, scale).tobytes()


def test_scales_that_do_not_exist() -> None:
    for scale in (0, 3, 16):
        with pytest.raises(ValueError, match="scale"):
            decode_image(encode(picture((8, 8)), "JPEG"), DecodeRequest(scale=scale))


@pytest.mark.parametrize("factors", [0x11, 0x12, 0x21, 0x22, 0x41, 0x14, 0x31, 0x13, 0x42, 0x24])
def test_sampling_factors_that_pillow_does_not_write(factors: int) -> None:
    # The scan no longer fits the factors; whatever comes out has to be what Pillow makes of it.
    data = bytearray(encode(picture((50, 41)), "JPEG", subsampling="4:4:4", quality=60))
    frame = data.index(b"\xff\xc0")
    data[frame + 11] = factors
    assert_as_pillow(bytes(data))


def test_ycck_is_inverted_as_adobe_writes_it() -> None:
    data = encode(picture((40, 30), "CMYK"), "JPEG", quality=90)
    start = data.index(b"Adobe")
    for transform in (0, 1, 2, 3):
        changed = data[: start + 11] + bytes([transform]) + data[start + 12 :]
        assert_as_pillow(changed, is_served=True if transform in (0, 2) else None)


def test_adobe_transform_of_three_components() -> None:
    data = encode(picture((40, 30)), "JPEG", quality=90)
    for transform in (0, 1, 2):
        adobe = segment(0xEE, b"Adobe" + struct.pack(">HHHB", 100, 0, 0, transform))
        assert_as_pillow(data[:2] + adobe + data[2:])


@pytest.mark.parametrize(
    "extra",
    [
        segment(0xE0, b"JFIF\0\1"),
        segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0"),
        segment(0xEE, b"Adobe"),
        segment(0xED, b"Photoshop 3.0\0" + b"8BIM\4\4\0\0\0\0\0\2ab"),
        segment(0xED, b"Photoshop 3.0\0" + b"8BIM\4\4"),
        segment(0xED, b"Photoshop 3.0\0" + b"8BIM\4\4\0\0\0\0\0\xffab"),
        segment(0xED, b"Photoshop 3.0\0" + b"8BIM\x03\xed\0\0\0\0\0\2ab"),
        segment(0xE2, b"ICC_PROFILE\0"),
        segment(0xE2, b"ICC_PROFILE\0\1\1profile"),
        segment(0xE2, b"MPF\0junk"),
        segment(0xE1, b"Exif\0\0"),
        segment(0xE1, b"Exif\0\0II*\0\x08\0\0\0\1\0"),
        segment(0xFE, b"comment"),
        segment(0xDB, b"\0" + bytes(63)),
        segment(0xDC, struct.pack(">H", 16)),
        segment(0xDD, b"\0\0"),
        segment(0xDF, b"\0"),
        b"\xff\xff\xff",
        b"\xff\xd0",
        b"\xff\xd8",
        b"\xff\x01",
        b"\xff\x00",
        b"junk",
    ],
)
def test_segments_that_may_change_the_verdict(extra: bytes) -> None:
    data = encode(picture((33, 21)), "JPEG")
    assert_as_pillow(data[:2] + extra + data[2:])


def test_a_missing_end_marker_is_left_to_pillow() -> None:
    # Of noise, Pillow lets some pass.
    data = encode(Image.radial_gradient("L").convert("RGB"), "JPEG")
    assert_as_pillow(data[:-2], is_served=False)
    assert open_with_pillow(data[:-2]) is None
    assert_as_pillow(data + b"trailing", is_served=True)


@pytest.mark.parametrize("is_progressive", [False, True])
def test_every_cut(*, is_progressive: bool) -> None:
    data = encode(picture((40, 30)), "JPEG", progressive=is_progressive)
    for length in range(0, len(data), 37):
        assert_as_pillow(data[:length], is_served=False)
    # Scans that are missing, not cut: the end marker is there.
    for length in range(700, len(data), 37):
        assert_as_pillow(data[:length] + b"\xff\xd9")


@pytest.mark.parametrize("is_progressive", [False, True])
def test_flipped_bits(*, is_progressive: bool) -> None:
    source = random.Random(11)
    data = encode(picture((40, 30)), "JPEG", progressive=is_progressive, restart_marker_blocks=4)
    for _ in range(500):
        damaged = bytearray(data)
        damaged[source.randrange(len(data))] ^= 1 << source.randrange(8)
        assert_as_pillow(bytes(damaged))


def test_missing_scans_are_smoothed_as_in_pillow() -> None:
    data = encode(picture((120, 90)), "JPEG", progressive=True)
    starts = [at for at in range(len(data) - 1) if data[at : at + 2] == b"\xff\xda"]
    for start in starts[1:]:
        assert_as_pillow(data[:start] + b"\xff\xd9")


def test_a_multi_picture_file_gives_its_first() -> None:
    frames = [picture((24, 16)), picture((24, 16))]
    data = encode(frames[0], "MPO", save_all=True, append_images=frames[1:])
    assert_as_pillow(data, is_served=True)


def test_the_frame_decides_what_is_served() -> None:
    data = encode(picture((16, 16)), "JPEG")
    frame = data.index(b"\xff\xc0")
    for process in (0xC1, 0xC2, 0xC3, 0xC5, 0xC9, 0xCA, 0xCB):
        assert_as_pillow(data[: frame + 1] + bytes([process]) + data[frame + 2 :])
    for precision in (7, 12, 16):
        assert_as_pillow(
            data[: frame + 4] + bytes([precision]) + data[frame + 5 :], is_served=False
        )
    assert_as_pillow(data[: frame + 5] + b"\0\0" + data[frame + 7 :], is_served=False)


def scans(count: int) -> bytes:
    """A gray image of one block in `count` scans, all valid: each coefficient bit by bit."""
    bands = [(0, 0, 0, 0)]
    for index in range(1, 64):
        bands.append((index, index, 0, 10))
        bands += [(index, index, low + 1, low) for low in reversed(range(10))]
    one_code = bytes([1, *bytes(15), 0])
    file = b"\xff\xd8" + segment(0xDB, bytes([0, *[1] * 64]))
    file += segment(0xC2, bytes([8, 0, 8, 0, 8, 1, 1, 0x11, 0]))
    file += segment(0xC4, b"\0" + one_code + b"\x10" + one_code)
    for first, last, high, low in bands[:count]:
        file += segment(0xDA, bytes([1, 1, 0, first, last, high << 4 | low])) + b"\x7f"
    return file + b"\xff\xd9"


@pytest.mark.parametrize("decoder", ["native", "pillow"])
def test_scans_without_end_are_refused_before_they_are_gone_over(decoder: Any) -> None:
    media_io = ImageMediaIO(decoder=decoder)
    assert media_io.load_bytes(scans(500)).getpixel((0, 0)) == (128, 128, 128)
    with pytest.raises(LimitError, match="more than 500 scans") as caught:
        media_io.load_bytes(scans(501))
    assert (caught.value.limit, caught.value.actual) == (500, 501)
