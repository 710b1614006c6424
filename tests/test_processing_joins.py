"""Requests that want one item at the same time: one decode, one processing, right answers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gated_model import Gate, Model, chat, picture, run, wait_until_pool_is_idle
from safelight import (
    DecodeError,
    MediaError,
    MultiModalInputs,
    MultiModalProcessorOnlyCache,
    Renderer,
    media_pool,
)
from tiny_model import Picture, TinyProcessor, make_inputs, make_processor, same

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def pool_is_left_idle() -> Iterator[None]:
    yield
    wait_until_pool_is_idle()


@pytest.fixture
def cache() -> MultiModalProcessorOnlyCache:
    return MultiModalProcessorOnlyCache(1 << 20)


class Parallel(TinyProcessor):
    processes_in_parallel = True


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """What the calls return or raise, each on a thread, none before all are there."""
    barrier = threading.Barrier(len(calls))

    def run_one(call: Callable[[], Any]) -> Any:
        barrier.wait(30)
        try:
            return call()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(run_one, calls))


# --- one decode, one processing ---


@pytest.mark.parametrize("family", [TinyProcessor, Parallel])
def test_threads_that_want_one_new_item(
    cache: MultiModalProcessorOnlyCache, family: type[TinyProcessor]
) -> None:
    processor = make_processor(family)
    gate = threading.Event()
    pictures = [Picture("a", gate=gate) for _ in range(8)]
    everybody = threading.Barrier(8)

    def request(wanted: Picture) -> MultiModalInputs:
        state = processor.apply_phase1(make_inputs(processor, [wanted.ref()], cache=cache))
        if everybody.wait(30) == 0:
            assert cache.stats().in_flight == 1
            gate.set()
        state.wait_decodes()
        result: MultiModalInputs = processor.apply_phase2(state)
        return result

    results = at_once(*(lambda p=p: request(p) for p in pictures))  # type: ignore[misc]
    assert sum(p.decodes for p in pictures) == 1
    assert len(processor.info.image_processor.calls) == 1
    assert sorted(x["mm_cache_hits"]["image"][0] for x in results) == [False] + [True] * 7
    expected = processor.apply(make_inputs(processor, [Picture("a").ref()]))
    assert all(same(result, expected) for result in results)
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.joins, stats.in_flight) == (0, 1, 7, 0)
    assert stats.entries == 1


@pytest.mark.parametrize("max_bytes", [0, 1 << 20])
def test_whole_applies_on_threads_make_each_item_once_while_it_is_wanted(max_bytes: int) -> None:
    cache = MultiModalProcessorOnlyCache(max_bytes)
    processor = make_processor()
    for number in range(20):
        pictures = [Picture(f"{number}") for _ in range(6)]
        before = len(processor.info.image_processor.calls)
        results = at_once(
            *(
                lambda p=p: processor.apply(make_inputs(processor, [p.ref()], cache=cache))  # type: ignore[misc]
                for p in pictures
            )
        )
        assert all(same(results[0], result) for result in results)
        if max_bytes:
            assert sum(p.decodes for p in pictures) == 1
            assert len(processor.info.image_processor.calls) == before + 1
            hits = [result["mm_cache_hits"]["image"][0] for result in results]
            assert hits.count(False) == 1
    stats = cache.stats()
    assert stats.in_flight == 0
    assert stats.hits + stats.joins + stats.misses == 120


def test_loops_threads_and_renderers_that_share_a_cache(
    cache: MultiModalProcessorOnlyCache,
) -> None:
    model = Model()
    payload = picture(1)
    gate = model.decoding[payload] = Gate()
    with (
        Renderer(model.processor, cache=cache) as one,
        Renderer(model.processor, cache=cache) as other,
    ):

        async def several(renderer: Renderer) -> list[MultiModalInputs]:
            chats = (renderer.render_chat_async(chat(payload)) for _ in range(4))
            return [rendered.inputs for rendered in await asyncio.gather(*chats)]

        def open_late() -> list[MultiModalInputs]:
            while len(model.states) < 13:
                time.sleep(0.001)
            gate.opened.set()
            return []

        results = at_once(
            lambda: run(several(one)),
            lambda: run(several(other)),
            lambda: run(several(one)),
            lambda: [other.render_chat(chat(payload)).inputs],
            open_late,
        )
    inputs = [x for result in results for x in result]
    assert len(inputs) == 13
    assert model.decoded == [payload]
    assert len(model.image_processor.calls) == 1
    assert sum(not x["mm_cache_hits"]["image"][0] for x in inputs) == 1
    assert all(same(x, inputs[0]) for x in inputs)
    assert (cache.stats().misses, cache.stats().joins) == (1, 12)
    assert model.forks_are_released()


@pytest.mark.parametrize("family", [TinyProcessor, Parallel])
def test_requests_that_want_each_others_items_crosswise(family: type[TinyProcessor]) -> None:
    processor = make_processor(family)
    for _ in range(30):
        cache = MultiModalProcessorOnlyCache(1 << 20)
        names = ["x", "y", "z"]
        processor.info.image_processor.calls.clear()
        orders = [names, names[::-1], ["y", "z", "x"], ["z", "x", "y"]]
        results = at_once(
            *(
                lambda order=order, cache=cache: processor.apply(  # type: ignore[misc]
                    make_inputs(processor, [Picture(name).ref() for name in order], cache=cache)
                )
                for order in orders
            )
        )
        for order, result in zip(orders, results, strict=True):
            refs = [Picture(name).ref() for name in order]
            assert len(result["mm_kwargs"]["image"]) == 3
            assert result["mm_hashes"] == make_inputs(processor, refs).get_mm_hashes(
                processor.info.model_id
            )
        assert len(processor.info.image_processor.calls) == 3
        assert cache.stats().misses == 3


def test_a_uuid_alone_joins_the_request_that_brings_its_media(
    cache: MultiModalProcessorOnlyCache,
) -> None:
    processor = make_processor()
    brings = processor.apply_phase1(
        make_inputs(processor, [Picture("a").ref()], cache=cache, uuids=["u"])
    )
    alone = processor.apply_phase1(make_inputs(processor, [None], cache=cache, uuids=["u"]))
    brings.close()
    result = processor.apply_phase2(alone)
    assert result["mm_hashes"] == {"image": ["u"]}
    assert len(result["mm_kwargs"]["image"]) == 1


# --- failures, cancellation, closing ---


@pytest.mark.parametrize("stage", ["decode", "process"])
def test_a_failure_reaches_those_who_joined_at_their_own_place(
    cache: MultiModalProcessorOnlyCache, stage: str
) -> None:
    processor = make_processor()
    gate = threading.Event()
    bad = [Picture("bad", (24, 8), gate=gate) for _ in range(2)]
    if stage == "decode":
        bad[0].error = bad[1].error = ValueError("no")

    def refuse(images: list[Any]) -> None:
        if stage == "process" and images[0].size == (24, 8):
            raise ValueError("no")

    processor.info.image_processor.before = refuse
    requests = [[bad[0].ref()], [Picture("a").ref(), bad[1].ref()]]
    states = [
        processor.apply_phase1(make_inputs(processor, refs, cache=cache)) for refs in requests
    ]
    gate.set()
    errors = at_once(*(lambda s=s: processor.apply_phase2(s) for s in states))  # type: ignore[misc]
    assert [str(error).partition(":")[0] for error in errors] == ["image 0", "image 1"]
    assert all(
        isinstance(error, DecodeError if stage == "decode" else MediaError) for error in errors
    )
    assert cache.stats().in_flight == 0
    processor.info.image_processor.before = len
    good = Picture("bad", (24, 8))
    result = processor.apply(make_inputs(processor, [good.ref()], cache=cache))
    assert result["mm_cache_hits"] == {"image": [False]}, "a failure is not remembered"
    assert good.decodes == 1


def test_who_brought_the_item_may_leave(cache: MultiModalProcessorOnlyCache) -> None:
    processor = make_processor()
    gate = threading.Event()
    pictures = [Picture("payload", gate=gate) for _ in range(2)]
    refs = [p.ref() for p in pictures]
    first, second = (
        processor.apply_phase1(make_inputs(processor, [ref], cache=cache)) for ref in refs
    )
    threading.Timer(0.05, gate.set).start()
    first.close()
    assert cache.stats().in_flight == 1
    result = processor.apply_phase2(second)
    assert result["mm_cache_hits"] == {"image": [False]}
    assert cache.stats().in_flight == 0
    assert [ref.data for ref in refs] == [b"payload"] * 2, "the callers' refs stay usable"


def test_the_last_to_leave_withdraws(cache: MultiModalProcessorOnlyCache) -> None:
    processor = make_processor()
    gate = threading.Event()
    blockers = [media_pool().submit(gate.wait, 30) for _ in range(media_pool().max_threads)]
    pictures = [Picture("a") for _ in range(2)]
    states = [
        processor.apply_phase1(make_inputs(processor, [p.ref()], cache=cache)) for p in pictures
    ]
    for state in states:
        state.close()
    assert cache.stats().in_flight == 0
    gate.set()
    assert all(blocker.result() for blocker in blockers)
    wait_until_pool_is_idle()
    assert [p.decodes for p in pictures] == [0, 0]


def test_a_cancelled_leader_leaves_the_others_their_item(
    cache: MultiModalProcessorOnlyCache,
) -> None:
    model = Model()
    payload = picture(1)
    gate = model.decoding[payload] = Gate()

    async def main(renderer: Renderer) -> list[Any]:
        tasks = [asyncio.create_task(renderer.render_chat_async(chat(payload))) for _ in range(4)]
        await gate.wait_entered()
        while len(model.states) < 4:  # noqa: ASYNC110 - a thread appends to it
            await asyncio.sleep(0.001)
        tasks[0].cancel()
        await asyncio.sleep(0.01)
        gate.opened.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    with Renderer(model.processor, cache=cache) as renderer:
        cancelled, *others = run(main(renderer))
    assert isinstance(cancelled, asyncio.CancelledError)
    assert all(same(other.inputs, others[0].inputs) for other in others)
    assert model.decoded == [payload]
    assert len(model.image_processor.calls) == 1
    assert model.forks_are_released()


_FORK = """
import os, sys, threading
sys.path.insert(0, sys.argv[1])
from safelight import MultiModalProcessorOnlyCache
from tiny_model import Picture, make_inputs, make_processor
cache, processor, gate = MultiModalProcessorOnlyCache(1 << 20), make_processor(), threading.Event()
held = Picture("a", gate=gate)
state = processor.apply_phase1(make_inputs(processor, [held.ref()], cache=cache))
assert held.started.wait(30)
pid = os.fork()
if not pid:
    assert cache.stats().in_flight == 0
    own = Picture("a")
    result = processor.apply(make_inputs(processor, [own.ref()], cache=cache))
    assert (own.decodes, result["mm_cache_hits"]) == (1, {"image": [False]})
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert cache.stats().in_flight == 1
gate.set()
assert processor.apply_phase2(state)["mm_cache_hits"] == {"image": [False]}
assert held.decodes == 1
"""


def test_a_child_of_a_fork_waits_for_nobody_of_its_parent() -> None:
    command = [sys.executable, "-W", "ignore", "-c", _FORK, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# --- a full queue ---


def test_a_request_of_hits_passes_one_that_waits_for_room(
    cache: MultiModalProcessorOnlyCache,
) -> None:
    model, pool, gate = Model(), media_pool(), threading.Event()
    blockers: list[Any] = []

    def fill(*_: object) -> None:
        if blockers:
            return
        started = threading.Semaphore(0)

        def block() -> bool:
            started.release()
            return gate.wait(30)

        blockers.extend(pool.submit(block) for _ in range(pool.max_threads))
        assert all(started.acquire(timeout=30) for _ in range(pool.max_threads))
        blockers.extend(pool.submit_batch([block] * pool.max_queue))

    async def main(renderer: Renderer) -> None:
        await renderer.render_chat_async(chat(picture(1), uuid="u"))
        model.processor._validate_item = fill
        waiting = asyncio.create_task(renderer.render_chat_async(chat(picture(2))))
        while len(blockers) < pool.max_threads + pool.max_queue:  # noqa: ASYNC110 - by a thread
            await asyncio.sleep(0.001)
        for _ in range(3):
            hit = await asyncio.wait_for(renderer.render_chat_async(chat(None, uuid="u")), 20)
            assert hit.inputs["mm_cache_hits"] == {"image": [True]}
        assert not waiting.done()
        gate.set()
        assert (await waiting).inputs["mm_cache_hits"] == {"image": [False]}

    with Renderer(model.processor, cache=cache) as renderer:
        run(main(renderer))
    assert all(blocker.result() for blocker in blockers)
