"""The native resize makes the bytes of Pillow, and of torch's antialiased uint8 kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from safelight._safelight import resize
from safelight.errors import HeaderError, UnsupportedMediaError

FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def draw_side(rng: np.random.Generator, largest: int) -> int:
    """A side from 1 on, small ones as likely as large ones."""
    return int(np.exp(rng.uniform(0, np.log(largest + 1))))


def draw_pixels(rng: np.random.Generator, channels: int, largest: int = 400) -> Any:
    """Noise, of two levels in half of the pictures: overshoots reach furthest there."""
    shape = (draw_side(rng, largest), draw_side(rng, largest), channels)
    if rng.random() < 0.5:
        return rng.integers(0, 2, shape, np.uint8) * 255
    return rng.integers(0, 256, shape, np.uint8)


def ours(pixels: Any, size: tuple[int, int], name: str, backend: str, region: Any = None) -> Any:
    resized = resize(pixels, pixels.shape, size, name, backend, region)
    return np.asarray(resized).reshape(size[1], size[0], pixels.shape[2])


def compare_with_pillow(seed: int, cases: int) -> None:
    rng = np.random.default_rng(seed)
    for case in range(cases):
        channels = int(rng.choice([1, 3, 4]))
        pixels = draw_pixels(rng, channels)
        height, width, _ = pixels.shape
        size = (draw_side(rng, 400), draw_side(rng, 400))
        if case % 7 == 0:
            size = (width, size[1])
        name = str(rng.choice(list(FILTERS)))
        region = None
        if case % 3 == 0:
            left, right = sorted(rng.uniform(0, width, 2).astype(np.float32).tolist())
            top, bottom = sorted(rng.uniform(0, height, 2).astype(np.float32).tolist())
            if left < right and top < bottom:
                region = (left, top, right, bottom)
        picture = Image.fromarray(pixels.squeeze(2) if channels == 1 else pixels)
        assert picture.mode == MODES[channels]
        expected = np.asarray(picture.resize(size, FILTERS[name], box=region))
        made = ours(pixels, size, name, "pil", region)
        assert np.array_equal(made.reshape(expected.shape), expected), (
            f"case {case} of {seed}: {pixels.shape} to {size}, {name}, {region}"
        )


def compare_with_torch(seed: int, cases: int) -> None:
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip("torchvision.transforms.v2.functional")
    modes = pytest.importorskip("torchvision.transforms").InterpolationMode
    names = {
        "bilinear": modes.BILINEAR,
        "bicubic": modes.BICUBIC,
        "lanczos": modes.LANCZOS,
    }
    if "AVX2" not in torch.backends.cpu.get_cpu_capability().replace("AVX512", "AVX2"):
        pytest.skip("torch resizes in float32 here")
    rng = np.random.default_rng(seed)
    for case in range(cases):
        channels = int(rng.choice([1, 3, 4]))
        pixels = draw_pixels(rng, channels)
        # An output of one pixel trips an assertion of torch's.
        size = (draw_side(rng, 400) + 1, draw_side(rng, 400) + 1)
        name = str(rng.choice(list(names)))
        tensor = torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
        expected = functional.resize(tensor, list(size[::-1]), names[name], antialias=True)
        made = ours(pixels, size, name, "torchvision")
        assert np.array_equal(made, expected.permute(1, 2, 0).numpy()), (
            f"case {case} of {seed}: {pixels.shape} to {size}, {name}"
        )


def test_bytes_are_those_of_pillow() -> None:
    compare_with_pillow(1, 300)


def test_bytes_are_those_of_torch() -> None:
    compare_with_torch(2, 300)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_bytes_are_those_of_the_references_at_length(seed: int) -> None:
    compare_with_pillow(100 + seed, 2_000)
    compare_with_torch(200 + seed, 2_000)


def test_tall_pictures_shrink_downward_first() -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (900, 40, 3), np.uint8)
    for size in [(39, 80), (20, 800), (60, 30)]:
        expected = np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC))
        assert np.array_equal(ours(pixels, size, "bicubic", "pil"), expected)


def test_every_alpha_is_multiplied_and_divided_as_by_pillow() -> None:
    alphas, levels = np.meshgrid(np.arange(256), np.arange(256))
    pixels = np.stack([levels, 255 - levels, levels // 2, alphas], -1).astype(np.uint8)
    expected = np.asarray(Image.fromarray(pixels).resize((300, 200), Image.Resampling.BOX))
    assert np.array_equal(ours(pixels, (300, 200), "box", "pil"), expected)


def test_what_cannot_be_resized_is_refused() -> None:
    pixels = np.zeros((4, 4, 3), np.uint8)
    for size in [(0, 4), (4, 0)]:
        with pytest.raises(HeaderError):
            resize(pixels, pixels.shape, size, "box", "pil")
    for region in [(0, 0, 5, 4), (2, 0, 2, 4), (-1, 0, 4, 4), (float("nan"), 0, 4, 4)]:
        with pytest.raises(HeaderError):
            resize(pixels, pixels.shape, (2, 2), "box", "pil", region)
    with pytest.raises(HeaderError):
        resize(pixels, (4, 5, 3), (2, 2), "box", "pil")
    for name, region in [("box", None), ("nearest", None), ("bicubic", (0, 0, 2, 2))]:
        with pytest.raises(UnsupportedMediaError):
            resize(pixels, pixels.shape, (2, 2), name, "torchvision", region)
    with pytest.raises(ValueError, match="filter"):
        resize(pixels, pixels.shape, (2, 2), "sharp", "pil")
    with pytest.raises(BufferError):
        resize(pixels[:, ::2], (4, 2, 3), (2, 2), "box", "pil")
