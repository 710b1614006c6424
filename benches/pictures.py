"""The images of the benches: a photograph is smooth color with grain, a screenshot text."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

__all__ = ["ONE_MP", "SCREEN", "TWELVE_MP", "encode", "photo", "screenshot"]

ONE_MP, TWELVE_MP, SCREEN = (1_152, 896), (4_000, 3_000), (1_920, 1_080)


def encode(image: Image.Image, format: str, **options: Any) -> bytes:
    """The file of `image`."""
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


@cache
def photo(size: tuple[int, int]) -> Image.Image:
    """Smooth colors with grain, RGB."""
    source = np.random.default_rng(1)
    bands = [
        Image.effect_noise((size[0] // 16, size[1] // 16), 120).resize(size),
        Image.effect_noise((size[0] // 4, size[1] // 4), 90).resize(size),
        Image.radial_gradient("L").resize(size),
    ]
    grain = source.normal(0, 4, (size[1], size[0], 1)).astype(np.int16)
    array = np.asarray(Image.merge("RGB", bands)).astype(np.int16) + grain
    return Image.fromarray(array.clip(0, 255).astype(np.uint8))


@cache
def screenshot(size: tuple[int, int]) -> Image.Image:
    """Boxes and lines of text, RGB."""
    source = np.random.default_rng(1)
    image = Image.new("RGB", size, (250, 250, 252))
    draw = ImageDraw.Draw(image)
    for _ in range(60):
        x, y = (int(source.integers(0, side)) for side in size)
        width, height = int(source.integers(20, 400)), int(source.integers(10, 200))
        fill = (int(source.integers(256)), int(source.integers(256)), int(source.integers(256)))
        draw.rectangle((x, y, x + width, y + height), fill=fill, outline=(0, 0, 0))
    for y in range(0, size[1], 18):
        text = "The quick brown fox jumps over the lazy dog 0123456789 " * 4
        draw.text((10 + y * 7 % 200, y), text, fill=(20, 20, 20))
    return image
