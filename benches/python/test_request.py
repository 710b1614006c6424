"""Requests whose images are all cached, and requests that want one new image at the same time."""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from PIL import Image

from comparison import Comparison
from safelight import (
    MULTIMODAL_REGISTRY,
    ImageMediaIO,
    MultiModalProcessorOnlyCache,
    ProcessorInputs,
    Renderer,
)
from safelight.processing.loading import demo_processor

_IMAGES, _PARTS = 16, 64
_REQUESTS = 8
_PREFIX = "data:image/jpeg;base64,"


def _payload(seed: int) -> bytes:
    """A photo-like JPEG of 0.8 megapixels: smooth, with some noise."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:768, 0:1024]
    waves = np.stack([rows / 3, columns / 4, (rows + columns) / 7], axis=-1) + 9 * seed
    pixels = (waves + rng.normal(0, 6, waves.shape)) % 256
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def _messages() -> list[dict[str, Any]]:
    urls = [_PREFIX + base64.b64encode(_payload(seed)).decode() for seed in range(_IMAGES)]
    return [
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": urls[number % _IMAGES]}},
                {"type": "text", "text": f"What is in image {number}?"},
            ],
        }
        for number in range(_PARTS)
    ]


class _Eager:
    """The eager path: decode, hash the pixels, look up, process what is missing, expand."""

    def __init__(self, hf_processor: Any) -> None:
        self._hf = hf_processor
        self._items: dict[bytes, Any] = {}

    def render(self, messages: list[dict[str, Any]]) -> tuple[list[int], int]:
        grids, rows = [], 0
        template = []
        for message in messages:
            image_part, text_part = message["content"]
            url = image_part["image_url"]["url"]
            payload = base64.b64decode(url[len(_PREFIX) :], validate=True)
            image = Image.open(io.BytesIO(payload)).convert("RGB")
            key = hashlib.sha256(repr(image.size).encode() + image.tobytes()).digest()
            item = self._items.get(key)
            if item is None:
                outputs = self._hf.image_processor(images=[image], return_tensors="np")
                item = self._items[key] = dict(outputs)
            grids.append(item["image_grid_thw"][0])
            rows += len(item["pixel_values"])
            template.append({**message, "content": [{"type": "image"}, text_part]})
        text = self._hf.apply_chat_template(template, tokenize=False, add_generation_prompt=True)
        parts = text.split("<|image_pad|>")
        expanded = parts[0]
        for grid, part in zip(grids, parts[1:], strict=True):
            expanded += "<|image_pad|>" * int(grid.prod() // 4) + part
        return self._hf.tokenizer(expanded)["input_ids"], rows


def test_request(compare: Comparison) -> None:
    hf_processor = demo_processor()
    processor = MULTIMODAL_REGISTRY.create_processor(hf_processor)
    messages = _messages()
    eager = _Eager(hf_processor)
    eager.render(messages)
    with Renderer(processor, cache=MultiModalProcessorOnlyCache()) as renderer:
        renderer.render_chat(messages)

        def ours() -> tuple[list[int], int]:
            inputs = renderer.render_chat(messages).inputs
            assert all(inputs["mm_cache_hits"]["image"])
            items = inputs["mm_kwargs"]["image"]
            rows = sum(len(item["pixel_values"].data) for item in items)
            return inputs["prompt_token_ids"], rows

        compare(
            f"request, {_PARTS} data: URLs, {_IMAGES} images, all cached",
            ours=ours,
            baseline=lambda: eager.render(messages),
            target=20.0,
        )


def test_joined_requests(compare: Comparison) -> None:
    processor = MULTIMODAL_REGISTRY.create_processor(demo_processor())
    media_io, cache = ImageMediaIO(), MultiModalProcessorOnlyCache()
    payload, numbers = _payload(0), itertools.count()

    def request(new: bytes, cache: MultiModalProcessorOnlyCache | None) -> int:
        items = processor.data_parser.parse_mm_data({"image": [media_io.load_bytes_ref(new)]})
        inputs = processor.apply(ProcessorInputs("<|image_pad|>", items, cache=cache))
        return len(inputs["prompt_token_ids"])

    with ThreadPoolExecutor(_REQUESTS) as threads:

        def at_once(cache: MultiModalProcessorOnlyCache | None) -> list[int]:
            # Bytes behind the end of a JPEG make it another image to a cache.
            new = payload + next(numbers).to_bytes(4, "big")
            return list(threads.map(lambda _: request(new, cache), range(_REQUESTS)))

        compare(
            f"request, one new image of 0.8 MP in {_REQUESTS} at once",
            ours=lambda: at_once(cache),
            baseline=lambda: at_once(None),
            target=4.0,
        )
