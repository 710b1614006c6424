"""What every native decode promises: its memory, its limits, and real files as Pillow has them."""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pixels_reference import (
    WHITE,
    assert_as_pillow,
    digest,
    encode,
    native,
    pixel_bytes,
    upright,
)
from safelight._safelight import DecodeRequest, decode_image
from safelight.errors import LimitError

# Formats of the corpus that native code serves, and how many files of each it has to accept, so
# that declining everything cannot pass.
SERVED = {
    "png": 240,
    "jpeg": 68,
    "mpo": 2,
    "webp": 26,
    "gif": 58,
    "bmp": 52,
    "dib": 1,
    "ppm": 10,
    "qoi": 4,
    "tiff": 61,
}


def noise(mode: str, size: tuple[int, int]) -> Image.Image:
    bands = [Image.effect_noise(size, 90) for _ in Image.new(mode, (1, 1)).getbands()]
    return Image.merge(mode, bands) if len(bands) > 1 else bands[0].convert(mode)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_memory_is_writable_and_shared_with_numpy(mode: str) -> None:
    pixels = native(encode(noise(mode, (7, 5)), "PNG"), mode)
    first, second = np.asarray(pixels), np.asarray(pixels)
    assert first.shape == ((5, 7) if mode == "L" else (5, 7, len(mode)))
    assert first.dtype == np.uint8
    assert first.flags.c_contiguous
    assert first.flags.writeable
    first[2, 3] = 17
    assert np.array_equal(first, second)
    assert bytes(memoryview(pixels).cast("B")) == first.tobytes()


def test_memory_outlives_the_object() -> None:
    image = noise("RGB", (64, 64))
    array = np.asarray(native(encode(image, "PNG"), "RGB"))
    for _ in range(8):
        native(encode(noise("RGB", (64, 64)), "PNG"), "RGB")
    assert array.tobytes() == image.tobytes()


def test_sixteen_bit_gray_is_an_array_of_sixteen_bits() -> None:
    data = encode(Image.fromarray(np.arange(300, dtype=np.uint16).reshape(3, 100)), "PNG")
    array = np.asarray(native(data, None))
    assert array.dtype == np.uint16
    assert array[2, 99] == 299


def test_more_pixels_than_allowed_is_a_limit_error() -> None:
    data = encode(Image.new("RGB", (20, 10)), "PNG")
    assert decode_image(data, DecodeRequest("RGB", WHITE, 200)) is not None
    with pytest.raises(LimitError) as caught:
        decode_image(data, DecodeRequest("RGB", WHITE, 199))
    assert (caught.value.limit, caught.value.actual) == (199, 200)


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"%!PS-Adobe", b"BM"])
def test_what_is_not_served_is_left_to_pillow(data: bytes) -> None:
    assert decode_image(data, DecodeRequest()) is None


def test_modes_and_orientations_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="mode"):
        DecodeRequest("CMYK")
    with pytest.raises(ValueError, match="orientation"):
        DecodeRequest("RGB", WHITE, 0, 9)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(3, 2), (70, 33), (1, 40), (40, 1)])
def test_orientations_as_pillow_turns_them(orientation: int, size: tuple[int, int]) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    for mode in ("RGB", "RGBA", "L", "P"):
        image = noise("RGB", size).convert(mode)
        data = encode(image, "PNG", exif=exif)
        turned = native(data, None, orientation=orientation)
        assert pixel_bytes(turned) == upright(data).tobytes()


def test_the_interpreter_runs_while_pixels_are_decoded() -> None:
    data = encode(noise("RGB", (1_500, 1_500)), "PNG", compress_level=1)
    ticks = 0
    is_done = threading.Event()

    def decode() -> None:
        for _ in range(3):
            native(data, "RGB")
        is_done.set()

    interval = sys.getswitchinterval()
    # Python code would have to give up the interpreter by itself: the switch interval is longer
    # than the test.
    sys.setswitchinterval(60)
    try:
        thread = threading.Thread(target=decode)
        thread.start()
        while not is_done.wait(0.001):
            ticks += 1
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert ticks > 3


def resident_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read there")
def test_many_threads_give_the_same_pixels_and_keep_no_memory() -> None:
    image = noise("RGB", (300, 200))
    files = [
        encode(image, "PNG"),
        encode(image.convert("P"), "PNG"),
        encode(image, "WEBP"),
        encode(image.convert("P"), "GIF"),
        encode(image, "JPEG"),
        encode(image, "PNG")[:-40],  # declined
    ]

    def decode(count: int) -> set[tuple[int, str]]:
        digests = set()
        for index in range(count):
            pixels = decode_image(files[index % len(files)], DecodeRequest())
            digests.add((index % len(files), digest(pixels) if pixels else ""))
        return digests

    expected = decode(len(files))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(decode, [30] * 8))
        before = resident_kib()
        assert all(digests == expected for digests in pool.map(decode, [120] * 8))
        grown = resident_kib() - before
    # 960 pictures of 180 kB each: a leak of every tenth would show.
    assert grown < 16 << 10


@pytest.mark.timeout(300)
@pytest.mark.parametrize("folder", [*SERVED, "refused"])
def test_real_files_equal_what_pillow_made_of_them(corpus: Path, folder: str) -> None:
    accepted = 0
    for line in (corpus / "truth.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["file"].split("/")[0] != folder:
            continue
        truth = entry["pillow"]
        data = (corpus / entry["file"]).read_bytes()
        if not assert_as_pillow(data):
            continue
        accepted += 1
        assert digest(native(data, None)) == truth["native"]
        assert digest(native(data, "RGB")) == truth["rgb"]
        if "rgba" in truth:
            assert digest(native(data, "RGBA")) == truth["rgba"]
        if "white" in truth:
            assert digest(native(data, "RGB", WHITE)) == truth["white"]
        if "upright" in truth and folder != "tiff":  # whose pixels Pillow turns at the load
            turned = native(data, "RGB", orientation=truth["orientation"])
            assert digest(turned) == truth["upright"]
    assert accepted >= SERVED.get(folder, 0)
    if folder == "refused":
        assert accepted == 0
