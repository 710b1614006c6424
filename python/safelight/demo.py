"""``safelight demo``: a conversation over several images, rendered twice and checked.

Owns the demonstration: it draws its images, renders every request of a conversation that re-sends
all earlier images, as agents do, and holds token ids and tensors against the plain transformers
processor over eagerly decoded images. Nothing else imports it.
"""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from safelight.cache import MultiModalProcessorOnlyCache
from safelight.media import ImageMediaIO
from safelight.processing import MULTIMODAL_REGISTRY
from safelight.processing.loading import demo_processor
from safelight.renderer import RenderedChat, Renderer

__all__ = ["run"]

_EXIF_ORIENTATION = 0x0112
_ROTATED = 6


@dataclass(frozen=True)
class _Turn:
    """One request of the conversation: everything said and shown so far."""

    messages: list[dict[str, Any]]
    payloads: list[bytes]


def run() -> int:
    """Render the conversation twice, check it, and print what happened. Return an exit status."""
    hf_processor = demo_processor()
    turns = list(_conversation())
    processor = MULTIMODAL_REGISTRY.create_processor(hf_processor)
    print(f"{'turn':<10}{'images':>7}{'decoded':>9}{'served':>8}{'ms':>9}{'eager ms':>10}  equal")
    lazy_total = eager_total = 0.0
    all_equal = True
    with Renderer(processor, cache=MultiModalProcessorOnlyCache()) as renderer:
        for run_number in (1, 2):
            for number, turn in enumerate(turns, 1):
                start = time.perf_counter()
                chat = renderer.render_chat(turn.messages)
                lazy = time.perf_counter() - start
                start = time.perf_counter()
                expected = _eager(hf_processor, turn)
                eager = time.perf_counter() - start
                hits = chat.inputs["mm_cache_hits"]["image"]
                is_equal = _is_equal(chat, expected)
                print(
                    f"{f'{run_number}.{number}':<10}{len(hits):>7}{hits.count(False):>9}"
                    f"{hits.count(True):>8}{lazy * 1000:>9.1f}{eager * 1000:>10.1f}"
                    f"  {'yes' if is_equal else 'NO'}"
                )
                lazy_total += lazy
                eager_total += eager
                all_equal &= is_equal
    print(
        f"in all {lazy_total * 1000:.0f} ms against {eager_total * 1000:.0f} ms eagerly: "
        f"{eager_total / lazy_total:.1f} times faster"
    )
    if not all_equal:
        print("token ids or tensors differ from those of the plain processor")
        return 1
    print("token ids and tensors equal those of the plain transformers processor")
    return 0


def _conversation() -> Iterator[_Turn]:
    """Yield the requests of a conversation that shows one more image in each request."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You describe images."}]
    payloads = []
    for name, payload in _draw_images():
        payloads.append(payload)
        url = f"data:image/{name};base64,{base64.b64encode(payload).decode()}"
        messages.append(
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": url}},
                    {"type": "text", "text": f"What does this {name.upper()} show?"},
                ],
            }
        )
        yield _Turn(list(messages), list(payloads))
        messages.append({"role": "assistant", "content": "A test picture, drawn by code."})


def _draw_images() -> Iterator[tuple[str, bytes]]:
    """Yield images as clients send them: a photo rotated by EXIF, alpha, lossy, palette."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[0:768, 0:1024]
    waves = np.stack([rows / 3, columns / 4, (rows + columns) / 7], axis=-1)
    photo = Image.fromarray((waves + rng.normal(0, 6, waves.shape)).clip(0, 255).astype(np.uint8))
    exif = Image.Exif()
    exif[_EXIF_ORIENTATION] = _ROTATED
    yield "jpeg", _encode(photo, "JPEG", quality=88, exif=exif)
    overlay = photo.resize((1280, 720)).convert("RGBA")
    overlay.putalpha(Image.radial_gradient("L").resize(overlay.size))
    yield "png", _encode(overlay, "PNG", compress_level=3)
    yield "webp", _encode(photo.resize((900, 600)), "WEBP", quality=80, method=0)
    yield "gif", _encode(photo.resize((640, 480)).quantize(64), "GIF")


def _encode(image: Image.Image, image_format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


def _eager(hf_processor: Any, turn: _Turn) -> dict[str, Any]:
    """Process eagerly: decode every image, then hand everything to the processor."""
    media_io = ImageMediaIO()
    images = [media_io.load_bytes(payload) for payload in turn.payloads]
    messages = [
        {
            **message,
            "content": message["content"]
            if isinstance(message["content"], str)
            else [
                {"type": "image"} if part["type"] == "image_url" else part
                for part in message["content"]
            ],
        }
        for message in turn.messages
    ]
    text = hf_processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    outputs: dict[str, Any] = hf_processor(text=[text], images=images, return_tensors="np")
    return outputs


def _is_equal(chat: RenderedChat, expected: dict[str, Any]) -> bool:
    tensors = chat.inputs["mm_kwargs"].get_data()
    return (
        chat.inputs["prompt_token_ids"] == expected["input_ids"][0].tolist()
        and np.array_equal(tensors["pixel_values"], expected["pixel_values"])
        and np.array_equal(tensors["image_grid_thw"], expected["image_grid_thw"])
    )
