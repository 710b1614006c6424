"""The tiny model with gates, for tests of the renderer: what waits for what, and who is let go."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from safelight import (
    ImageMediaIO,
    MediaRef,
    MultiModalApplyState,
    ProcessingInfo,
    Renderer,
    media_pool,
)
from tiny_model import (
    TinyProcessor,
    data_url,
    image_part,
    make_processor,
    png,
)


class Gate:
    """Holds whoever passes until it is opened, and tells when somebody is there."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.passed = 0

    def __call__(self, *_: object) -> None:
        self.entered.set()
        assert self.opened.wait(30)
        self.passed += 1

    async def wait_entered(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, 30)


class Model:
    """The tiny model with gates: what happens while a payload is fetched and while it decodes."""

    def __init__(self, **options: Any) -> None:
        self.fetching: dict[bytes, Callable[[], object]] = {}
        self.decoding: dict[bytes, Callable[[], object]] = {}
        self.fetched: list[bytes] = []
        self.decoded: list[bytes] = []
        self.states: list[MultiModalApplyState] = []
        model = self

        class GatedImageMediaIO(ImageMediaIO):
            def load_bytes_ref(self, data: bytes) -> MediaRef[Image.Image]:
                model.fetched.append(data)
                model.fetching.get(data, int)()

                def passing(image: Image.Image) -> Image.Image:
                    model.decoded.append(data)
                    model.decoding.get(data, int)()
                    return image

                return super().load_bytes_ref(data).map(passing)

        class Info(ProcessingInfo):
            media_ios: ClassVar = {"image": GatedImageMediaIO}

        class Family(TinyProcessor):
            two_phase = True

            def apply_phase1(self, *args: Any) -> MultiModalApplyState:
                state = super().apply_phase1(*args)
                model.states.append(state)
                return state

        self.processor = make_processor(Family, Info, **options)
        self.image_processor = self.processor.info.image_processor

    def forks_are_released(self) -> bool:
        raws = [
            items.get_raw(index)
            for state in self.states
            for items in state.items.values()
            for index in range(len(items))
        ]
        refs = [raw for raw in raws if isinstance(raw, MediaRef)]
        return (
            bool(refs)
            and all(state.is_closed for state in self.states)
            and (all(ref.data == b"" for ref in refs))
        )


def picture(seed: int, size: tuple[int, int] = (16, 8)) -> bytes:
    width, height = size
    rng = np.random.default_rng(seed)
    return png(Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)))


def chat(*payloads: bytes | None, **fields: Any) -> list[dict[str, Any]]:
    parts: list[Any] = []
    for number, payload in enumerate(payloads):
        parts += [
            f"{number}:",
            image_part(None if payload is None else data_url(payload), **fields),
        ]
    return [{"role": "user", "content": parts}]


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(coroutine)


def wait_until_pool_is_idle() -> None:
    """Fail where a job was left behind."""
    deadline = time.monotonic() + 30
    while (stats := media_pool().stats()).queued or stats.idle < stats.threads:
        assert time.monotonic() < deadline, "a job was left behind"
        time.sleep(0.01)


def works(renderer: Renderer) -> bool:
    """Whether the renderer still renders, a chat that it has not seen."""
    number = time.perf_counter_ns() % (1 << 32)
    rendered = renderer.render_chat(chat(picture(number)))
    return rendered.inputs["mm_cache_hits"] == {"image": [False]}
