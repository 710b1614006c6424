"""Native decodes against the fastest decoders that Python has, and against Pillow."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from comparison import Comparison
from pictures import ONE_MP, SCREEN, TWELVE_MP, encode, photo, screenshot
from safelight._safelight import DecodeRequest, decode_image

Array = npt.NDArray[np.uint8]


def native(data: bytes) -> Array:
    pixels = decode_image(data, DecodeRequest())
    assert pixels is not None
    return np.asarray(pixels)


def pillow(data: bytes) -> Array:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def native_quarter(data: bytes) -> Array:
    pixels = decode_image(data, DecodeRequest(scale=4))
    assert pixels is not None
    return np.asarray(pixels)


def pillow_quarter(data: bytes) -> Array:
    with Image.open(io.BytesIO(data)) as image:
        image.draft("RGB", (image.width // 4, image.height // 4))
        return np.asarray(image)


def simplejpeg(data: bytes) -> Array:
    result: Array = pytest.importorskip("simplejpeg").decode_jpeg(data, "RGB")
    return result


def kornia(data: bytes) -> Array:
    # Needs to be told the size; reading it is not part of its time.
    width, height = SCREEN if len(data) < 1 << 20 else ONE_MP
    module = pytest.importorskip("kornia_rs")
    result: Array = module.io.decode_image_png_u8(data, (height, width), "rgb")
    return result


def opencv(data: bytes) -> Array:
    module = pytest.importorskip("cv2")
    result: Array = module.imdecode(np.frombuffer(data, np.uint8), module.IMREAD_COLOR_RGB)
    return result


def imagecodecs(data: bytes) -> Array:
    result: Array = pytest.importorskip("imagecodecs").webp_decode(data)
    return result[..., :3]


Case = tuple[str, Callable[[], bytes], Callable[[bytes], Array], float]


def jpeg(size: tuple[int, int], **options: Any) -> Callable[[], bytes]:
    return lambda: encode(photo(size), "JPEG", quality=85, **options)


CASES: list[Case] = [
    ("jpeg 4:2:0, 1 MP, simplejpeg", jpeg(ONE_MP), simplejpeg, 0.97),
    ("jpeg 4:2:0, 1 MP, Pillow", jpeg(ONE_MP), pillow, 1.4),
    ("jpeg 4:2:0, 12 MP, simplejpeg", jpeg(TWELVE_MP), simplejpeg, 0.97),
    ("jpeg 4:2:0, 12 MP, Pillow", jpeg(TWELVE_MP), pillow, 2.2),
    (
        "jpeg progressive 4:4:4, 2 MP, simplejpeg",
        jpeg(SCREEN, progressive=True, subsampling="4:4:4"),
        simplejpeg,
        0.97,
    ),
    ("png screenshot, kornia-rs", lambda: encode(screenshot(SCREEN), "PNG"), kornia, 1.35),
    ("png screenshot, Pillow", lambda: encode(screenshot(SCREEN), "PNG"), pillow, 4.0),
    ("png photo, kornia-rs", lambda: encode(photo(ONE_MP), "PNG"), kornia, 1.1),
    ("png photo, Pillow", lambda: encode(photo(ONE_MP), "PNG"), pillow, 2.0),
    ("webp lossy, OpenCV", lambda: encode(photo(ONE_MP), "WEBP"), opencv, 0.97),
    ("webp lossy, imagecodecs", lambda: encode(photo(ONE_MP), "WEBP"), imagecodecs, 0.97),
    (
        "webp lossless, OpenCV",
        lambda: encode(screenshot(ONE_MP), "WEBP", lossless=True),
        opencv,
        0.97,
    ),
    (
        "webp lossless, imagecodecs",
        lambda: encode(screenshot(ONE_MP), "WEBP", lossless=True),
        imagecodecs,
        0.97,
    ),
    ("gif photo, Pillow", lambda: encode(photo(ONE_MP).convert("P"), "GIF"), pillow, 1.0),
    ("bmp, Pillow", lambda: encode(photo(ONE_MP), "BMP"), pillow, 1.0),
    ("ppm, Pillow", lambda: encode(photo(ONE_MP), "PPM"), pillow, 1.0),
]


@pytest.mark.parametrize(("name", "make", "baseline", "target"), CASES, ids=[c[0] for c in CASES])
def test_decode(
    compare: Comparison,
    name: str,
    make: Callable[[], bytes],
    baseline: Callable[[bytes], Array],
    target: float,
) -> None:
    data = make()
    if decode_image(data, DecodeRequest()) is None:
        pytest.skip("built without the feature that decodes this format")
    compare(
        f"pixels, {name}",
        ours=native,
        baseline=baseline,
        args=(data,),
        target=target,
        equal=np.array_equal,
    )


def test_scale(compare: Comparison) -> None:
    compare(
        "pixels, jpeg 4:2:0, 12 MP at a quarter, Pillow",
        ours=native_quarter,
        baseline=pillow_quarter,
        args=(jpeg(TWELVE_MP)(),),
        target=1.15,
        equal=np.array_equal,
    )
