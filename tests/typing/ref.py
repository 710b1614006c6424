"""Types that a caller counts on, checked by mypy --strict and never run: refs and their makers."""

from __future__ import annotations

from typing import Any, assert_type

from PIL import Image

from safelight import (
    DecodeSpec,
    ImageHeader,
    ImageMediaIO,
    MediaCache,
    MediaRef,
    NeedMoreBytes,
    probe,
    probe_prefix,
)


def draw() -> Image.Image:
    return Image.new("RGB", (1, 1))


ref = MediaRef(draw, b"payload")
assert_type(ref, MediaRef[Image.Image])
assert_type(ref.key, bytes)
assert_type(ref.spec, DecodeSpec)
assert_type(ref.decode(), Image.Image)
assert_type(ref.is_decoded, bool)
assert_type(ref.fork(), MediaRef[Image.Image])
assert_type(ref.release(), None)


def width(image: Image.Image) -> int:
    return image.width


assert_type(ref.map(width, unit="px"), MediaRef[int])
assert_type(MediaRef(lambda: 1, b"payload"), MediaRef[int])

# An image comes as Pillow's, as an array or as a tensor, by a value and not by a type.
media_io = ImageMediaIO(image_mode="RGB", max_image_pixels=1_000_000)
assert_type(media_io.load_bytes_ref(b"payload"), MediaRef[Any])
assert_type(media_io.get_decode_spec(), DecodeSpec)

assert_type(probe(b"payload"), ImageHeader)
assert_type(probe_prefix(b"payload"), ImageHeader | NeedMoreBytes)
assert_type(probe(b"payload").upright_size, tuple[int, int])
assert_type(probe(b"payload").frame_count, int | None)


def measured() -> tuple[str, int]:
    return "value", 5


async def use(cache: MediaCache) -> None:
    assert_type(cache.get_or_compute(b"key", measured), str)
    assert_type(await cache.get_or_compute_async(b"key", measured), str)


ref.width  # type: ignore[attr-defined]  # a ref forwards nothing to its media
MediaRef(b"payload", lambda: 1)  # type: ignore[arg-type]  # the decoder comes first
ImageMediaIO("RGB", (0, 0, 0))  # type: ignore[call-arg]  # options are named
