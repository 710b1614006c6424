"""Cancellation at any moment: what has started ends, nothing is left, the renderer goes on."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gated_model import Gate, Model, chat, picture, run, wait_until_pool_is_idle, works
from safelight import (
    MultiModalProcessorOnlyCache,
    Renderer,
    media_pool,
)
from safelight.renderer import RenderedChat
from tiny_model import (
    same,
)

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def pool_is_left_idle() -> Iterator[None]:
    yield
    wait_until_pool_is_idle()


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def renderer(model: Model) -> Iterator[Renderer]:
    with Renderer(model.processor, cache=MultiModalProcessorOnlyCache(1 << 20)) as renderer:
        yield renderer


# --- cancellation ---


def test_cancelled_while_fetching(model: Model, renderer: Renderer) -> None:
    payload = picture(1)
    gate = model.fetching[payload] = Gate()

    async def main() -> None:
        task = asyncio.create_task(renderer.render_chat_async(chat(payload)))
        await gate.wait_entered()
        task.cancel()
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())
    assert model.states == []
    assert works(renderer)


def test_cancelled_before_phase_1_has_started(model: Model, renderer: Renderer) -> None:
    busy = Gate()
    model.image_processor.before = busy

    async def main() -> None:
        first = asyncio.create_task(renderer.render_chat_async(chat(picture(1))))
        await busy.wait_entered()
        second = asyncio.create_task(renderer.render_chat_async(chat(picture(2))))
        while len(model.fetched) < 2:  # noqa: ASYNC110 - it is set by a thread
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second  # withdrawn: it does not wait for the worker
        assert not first.done()
        busy.opened.set()
        await first

    run(main())
    assert len(model.states) == 1
    assert model.decoded == [picture(1)]


@pytest.mark.parametrize("times", [1, 3])
def test_cancelled_during_phase_1(model: Model, renderer: Renderer, times: int) -> None:
    payload, gate = picture(1), Gate()
    model.processor._validate_item = gate

    async def main() -> None:
        task = asyncio.create_task(renderer.render_chat_async(chat(payload)))
        await gate.wait_entered()
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0.01)
            assert not task.done(), "what the worker has started is never abandoned"
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert model.forks_are_released()

    run(main())
    assert works(renderer)


@pytest.mark.parametrize("times", [1, 3])
def test_cancelled_while_decoding(model: Model, renderer: Renderer, times: int) -> None:
    """Running decodes finish, those that have not started are withdrawn."""
    threads = media_pool().max_threads
    payloads = [picture(n) for n in range(threads + 2)]
    gates = [Gate() for _ in payloads]
    model.decoding.update(zip(payloads, gates, strict=True))

    async def main() -> None:
        task = asyncio.create_task(renderer.render_chat_async(chat(*payloads)))
        for gate in gates[:threads]:
            await gate.wait_entered()
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0.01)
            assert not task.done()
        assert not model.forks_are_released(), "running decodes need their payloads"
        for gate in gates:
            gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert model.forks_are_released()

    run(main())
    assert [gate.passed for gate in gates] == [1] * threads + [0, 0]
    (state,) = model.states
    assert all(job.future.done() for job in state.decodes)
    assert works(renderer)


def test_cancelled_while_its_decode_fails(model: Model, renderer: Renderer) -> None:
    payload, gate = picture(1), Gate()

    def fail() -> None:
        gate()
        raise ValueError("no")

    model.decoding[payload] = fail

    async def main() -> None:
        task = asyncio.create_task(renderer.render_chat_async(chat(payload)))
        await gate.wait_entered()
        task.cancel()
        await asyncio.sleep(0.01)
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())
    assert model.forks_are_released()
    assert works(renderer)


@pytest.mark.parametrize("times", [1, 3])
def test_cancelled_during_phase_2(model: Model, renderer: Renderer, times: int) -> None:
    payload, gate = picture(1), Gate()
    model.image_processor.before = gate

    async def main() -> None:
        task = asyncio.create_task(renderer.render_chat_async(chat(payload)))
        await gate.wait_entered()
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0.01)
            assert not task.done()
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert model.forks_are_released()

    run(main())
    rendered = renderer.render_chat(chat(payload))
    assert rendered.inputs["mm_cache_hits"] == {"image": [True]}, "the work was not in vain"


def test_a_timeout_is_a_cancellation(model: Model, renderer: Renderer) -> None:
    payload = picture(1)
    gate = model.decoding[payload] = Gate()

    async def main() -> None:
        threading.Timer(0.2, gate.opened.set).start()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(renderer.render_chat_async(chat(payload)), 0.05)

    run(main())
    assert model.forks_are_released()
    assert works(renderer)


def test_one_of_many_is_cancelled_and_the_others_are_served(
    model: Model, renderer: Renderer
) -> None:
    payload = picture(1)
    gate = model.decoding[payload] = Gate()

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(renderer.render_chat_async(chat(payload))) for _ in range(3)]
        await gate.wait_entered()
        tasks[0].cancel()
        await asyncio.sleep(0.01)
        gate.opened.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, second, third = run(main())
    assert isinstance(first, asyncio.CancelledError)
    assert same(second.inputs, third.inputs)
    assert model.forks_are_released()


def test_a_renderer_that_is_closed_under_a_render_leaves_nothing_open(model: Model) -> None:
    payload = picture(1)
    gate = model.decoding[payload] = Gate()
    renderer = Renderer(model.processor)

    async def main() -> None:
        task = asyncio.create_task(renderer.render_chat_async(chat(payload)))
        await gate.wait_entered()
        await asyncio.to_thread(renderer.close)
        gate.opened.set()
        with pytest.raises(RuntimeError, match="shutdown"):
            await task

    run(main())
    assert model.forks_are_released()


@pytest.mark.parametrize("seed", range(5))
def test_cancelled_anywhere_and_nothing_is_left(
    model: Model, renderer: Renderer, seed: int
) -> None:
    rng = random.Random(seed)
    payloads = [picture(n, (8, 8)) for n in range(6)]
    chats = [chat(*rng.choices(payloads, k=rng.randrange(4))) for _ in range(60)]
    for payload in payloads[:3]:
        model.decoding[payload] = lambda: time.sleep(0.001)

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(renderer.render_chat_async(messages)) for messages in chats]
        for task in rng.sample(tasks, 40):
            await asyncio.sleep(rng.choice((0, 0, 0.001, 0.003)))
            for _ in range(rng.randrange(1, 4)):
                task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = run(main())
    for result in results:
        assert isinstance(result, (RenderedChat, asyncio.CancelledError)), result
    assert 20 <= sum(isinstance(result, RenderedChat) for result in results) < 60
    assert all(state.is_closed for state in model.states)
    assert works(renderer)
