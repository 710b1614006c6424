"""Requests on asyncio: order, waiting, cancellation, budgets, and what a client may not do."""

from __future__ import annotations

import asyncio
import io
import random
import re
import threading
import time
import zlib
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from safelight import (
    MEDIA_CONNECTOR_REGISTRY,
    BlockedURLError,
    DecodeError,
    FetchError,
    HeaderError,
    ImageMediaIO,
    LimitError,
    MediaConnector,
    MediaError,
    MediaRef,
    MultiModalApplyState,
    MultiModalProcessorOnlyCache,
    PayloadTooLargeError,
    ProcessingInfo,
    Renderer,
    RequestError,
    UnsupportedMediaError,
    media_pool,
)
from safelight.http_errors import error_body, http_status
from safelight.renderer import RenderedChat
from tiny_model import (
    IMAGE_TOKEN,
    TinyProcessor,
    data_url,
    image_part,
    make_processor,
    png,
    same,
)

pytestmark = pytest.mark.timeout(60)


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


@pytest.fixture(autouse=True)
def pool_is_left_idle() -> Iterator[None]:
    yield
    deadline = time.monotonic() + 30
    while (stats := media_pool().stats()).queued or stats.idle < stats.threads:
        assert time.monotonic() < deadline, "a job was left behind"
        time.sleep(0.01)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def renderer(model: Model) -> Iterator[Renderer]:
    with Renderer(model.processor, cache=MultiModalProcessorOnlyCache(1 << 20)) as renderer:
        yield renderer


def works(renderer: Renderer) -> bool:
    """Whether the renderer still renders, a chat that it has not seen."""
    number = time.perf_counter_ns() % (1 << 32)
    rendered = renderer.render_chat(chat(picture(number)))
    return rendered.inputs["mm_cache_hits"] == {"image": [False]}


# --- the result ---


def test_a_chat_becomes_inputs_media_refs_and_timings(model: Model, renderer: Renderer) -> None:
    payloads = [picture(1), picture(2, (8, 24))]
    rendered = renderer.render_chat(
        [
            {"role": "system", "content": "s"},
            {"role": "user", "content": ["a", image_part(data_url(payloads[0]), uuid=None)]},
            {"role": "user", "content": [image_part(data_url(payloads[1])), "b"]},
        ]
    )
    assert "".join(map(chr, rendered.inputs["prompt_token_ids"])) == (
        "sa" + IMAGE_TOKEN * 2 + IMAGE_TOKEN * 3 + "b"
    )
    assert [(part.modality, part.index) for part in rendered.media] == [("image", 0), ("image", 1)]
    refs = [ref for ref in rendered.refs if ref is not None]
    assert [ref.data for ref in refs] == payloads, "the caller's refs stay usable"
    assert [ref.key for ref in refs] == [ImageMediaIO().load_bytes_ref(p).key for p in payloads]
    assert refs[0].header.width == 16
    assert rendered.timing.stage_secs.keys() >= {"fetch", "hash", "decode", "process", "tokenize"}
    plain = model.image_processor([ImageMediaIO().load_bytes(p) for p in payloads], "np")
    for name, data in rendered.inputs["mm_kwargs"].get_data().items():
        assert np.array_equal(data, plain[name])
    assert model.forks_are_released()


def test_a_repr_shows_no_payload_and_is_short(renderer: Renderer) -> None:
    payload = picture(1, (400, 400))
    rendered = renderer.render_chat(chat(payload, payload))
    assert len(repr(rendered)) < 1000
    assert data_url(payload)[40:60] not in repr(rendered)


def test_text_alone(renderer: Renderer) -> None:
    rendered = renderer.render_chat([{"role": "user", "content": "hi"}])
    assert rendered.inputs["prompt_token_ids"] == [104, 105]
    assert rendered.media == rendered.refs == []


@pytest.mark.parametrize(
    "messages", [None, [], "hi", [{"role": "user", "content": [{"type": "x"}]}]]
)
def test_a_malformed_chat(renderer: Renderer, messages: object) -> None:
    with pytest.raises(RequestError) as caught:
        renderer.render_chat(messages)
    assert http_status(caught.value) == 400


def test_a_chat_that_the_template_refuses(renderer: Renderer) -> None:
    with pytest.raises(RequestError) as caught:
        renderer.render_chat([{"role": "nobody", "content": "s3cr3t"}])
    assert str(caught.value) == "the model's chat template refuses the messages"
    assert works(renderer)


def test_a_user_cannot_write_a_placeholder(renderer: Renderer) -> None:
    for messages, text in (
        ([{"role": "user", "content": f"see {IMAGE_TOKEN}"}], "1 image placeholders for 0"),
        (
            [*chat(picture(1)), {"role": "user", "content": IMAGE_TOKEN}],
            "2 image placeholders for 1",
        ),
    ):
        with pytest.raises(RequestError, match=text):
            renderer.render_chat(messages)


def test_render_chat_says_that_a_loop_needs_the_coroutine(renderer: Renderer) -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="render_chat_async"):
            renderer.render_chat(chat(picture(1)))

    run(main())


# --- which thread runs what ---


def test_waiting_does_not_occupy_the_worker_and_a_miss_becomes_a_hit(
    model: Model, renderer: Renderer
) -> None:
    """A1 B1 B2 A2, where both want one picture and A another that is slow."""
    slow, shared = picture(1), picture(2, (8, 8))
    gate = model.decoding[slow] = Gate()

    async def main() -> tuple[RenderedChat, RenderedChat]:
        task_a = asyncio.create_task(renderer.render_chat_async(chat(slow, shared)))
        await gate.wait_entered()
        b = await renderer.render_chat_async(chat(shared))
        assert not task_a.done()
        gate.opened.set()
        return await task_a, b

    a, b = run(main())
    assert b.inputs["mm_cache_hits"] == {"image": [False]}
    assert a.inputs["mm_cache_hits"] == {"image": [False, True]}
    assert a.inputs["mm_kwargs"]["image"][1] is b.inputs["mm_kwargs"]["image"][0]
    assert len(model.image_processor.calls) == 2, "the shared picture is processed once"


def test_the_phases_of_all_requests_run_on_one_worker(model: Model, renderer: Renderer) -> None:
    async def main() -> None:
        await asyncio.gather(*(renderer.render_chat_async(chat(picture(n))) for n in range(8)))

    run(main())
    assert len(model.image_processor.threads) == 1
    assert threading.get_ident() not in model.image_processor.threads


@pytest.mark.parametrize("stage", ["fetch", "decode", "process", "tokenize"])
def test_the_loop_turns_while_a_stage_is_held(model: Model, renderer: Renderer, stage: str) -> None:
    payload, gate = picture(1), Gate()
    if stage == "fetch":
        model.fetching[payload] = gate
    elif stage == "decode":
        model.decoding[payload] = gate
    elif stage == "process":
        model.image_processor.before = gate
    else:
        tokenizer = model.processor.info.tokenizer
        model.processor.info.hf_processor.tokenizer = lambda text: gate() or tokenizer(text)

    async def main() -> None:
        task = asyncio.create_task(renderer.render_chat_async(chat(payload)))
        # A loop that is held up does not come back here before the gate gives up.
        while not gate.entered.is_set():  # noqa: ASYNC110 - the turns are what is counted
            await asyncio.sleep(0.001)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not task.done()
        gate.opened.set()
        await task

    run(main())
    assert gate.passed == 1


def test_a_family_without_two_phases_runs_whole_on_the_worker() -> None:
    class Whole(TinyProcessor):
        two_phase = False

    processor = make_processor(Whole)
    with Renderer(processor, cache=MultiModalProcessorOnlyCache(1 << 20)) as renderer:
        first = renderer.render_chat(chat(picture(1), picture(2)))
        second = renderer.render_chat(chat(picture(1), picture(2)))
        with pytest.raises(DecodeError, match=r"^image 1: "):
            renderer.render_chat(chat(picture(1), picture(3)[:-30]))
        assert works(renderer)
    assert second.inputs["mm_cache_hits"] == {"image": [True, True]}
    assert same(first.inputs, second.inputs)
    assert len(processor.info.image_processor.threads) == 1


def test_many_renders_at_once_on_one_loop(model: Model, renderer: Renderer) -> None:
    rng = np.random.default_rng(0)
    payloads = [picture(n, (8 * (1 + n % 3), 8)) for n in range(8)]
    chats = [
        chat(*(payloads[n] for n in rng.integers(0, 8, rng.integers(0, 6)))) for _ in range(40)
    ]

    async def main() -> list[RenderedChat]:
        return await asyncio.gather(*map(renderer.render_chat_async, chats))

    results = run(main())
    with Renderer(make_processor()) as plain:
        for messages, rendered in zip(chats, results, strict=True):
            expected = plain.render_chat(messages).inputs
            expected["mm_hashes"] = rendered.inputs["mm_hashes"]  # named by another fingerprint
            assert same(rendered.inputs, expected)
    assert len(model.image_processor.calls) == 8, "each picture is processed once"
    assert model.forks_are_released()


def test_one_renderer_serves_several_threads_and_loops(model: Model, renderer: Renderer) -> None:
    chats = [chat(picture(n % 4), picture(4 + n % 3)) for n in range(12)]

    async def two(number: int) -> list[RenderedChat]:
        return await asyncio.gather(
            *(renderer.render_chat_async(chats[i % 12]) for i in (number, number + 1))
        )

    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda number: run(two(number)), range(12)))
    assert [len(pair) for pair in results] == [2] * 12
    assert len(model.image_processor.calls) == 7
    assert len(model.image_processor.threads) == 1
    assert model.forks_are_released()


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


def test_cancelled_before_phase_1_has_begun(model: Model, renderer: Renderer) -> None:
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
            assert not task.done(), "what the worker has begun is never abandoned"
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert model.forks_are_released()

    run(main())
    assert works(renderer)


@pytest.mark.parametrize("times", [1, 3])
def test_cancelled_while_decoding(model: Model, renderer: Renderer, times: int) -> None:
    """Running decodes finish, those that have not begun are withdrawn."""
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


# --- any chats ---

_GOOD = [picture(n, (8 * (1 + n % 3), 8)) for n in range(4)]
_PAYLOADS = [*_GOOD, picture(9, (64, 64))[:-60], b"no image"]
_ITEMS = st.tuples(
    st.sampled_from([0, 0, 1, 1, 2, 3, 4, 5]), st.sampled_from(["no", "no", "yes", "alone"])
)


@given(chats=st.lists(st.lists(_ITEMS, max_size=4), max_size=8), entries=st.integers(0, 3))
def test_a_cache_changes_nothing_but_the_work(
    chats: list[list[tuple[int, str]]], entries: int
) -> None:
    """Chats of images good and bad, with and without UUIDs, over a cache that evicts."""
    plain, cached = Model(), Model()
    cache = MultiModalProcessorOnlyCache(entries * 2300)
    with Renderer(plain.processor) as without, Renderer(cached.processor, cache=cache) as renderer:
        for items in chats:

            def messages(items: list[tuple[int, str]], whole: bool) -> list[dict[str, Any]]:
                parts = [
                    image_part(
                        None if uuid == "alone" and not whole else data_url(_PAYLOADS[number]),
                        uuid=None if uuid == "no" else f"u{number}",
                    )
                    for number, uuid in items
                ]
                return [{"role": "user", "content": parts}]

            expected = _outcome(without, messages(items, whole=True))
            outcome = _outcome(renderer, messages(items, whole=False))
            if isinstance(outcome, RequestError):
                match = re.fullmatch(
                    r"image (\d) has a uuid but no media, and no cache holds it", str(outcome)
                )
                assert match
                assert items[int(match[1])][1] == "alone"
            elif isinstance(expected, RenderedChat):
                assert isinstance(outcome, RenderedChat)
                assert same(outcome.inputs, expected.inputs)
            else:
                assert (type(outcome), str(outcome)) == (type(expected), str(expected))
    assert cache.stats().entries <= entries
    assert not cached.states or all(state.is_closed for state in cached.states)


def _outcome(renderer: Renderer, messages: object) -> RenderedChat | Exception:
    try:
        return renderer.render_chat(messages)
    except (MediaError, RequestError) as error:
        return error


# --- failures ---


@pytest.mark.parametrize(
    ("url", "error", "status"),
    [
        ("data:image/png;base64", BlockedURLError, 400),
        ("data:image/png,s3cr3t", BlockedURLError, 400),
        ("s3cr3t.png", BlockedURLError, 400),
        ("ftp://s3cr3t/a.png", BlockedURLError, 400),
        ("file:///s3cr3t/a.png", BlockedURLError, 400),
        ("data:image/png;base64,s3cr3t!!", DecodeError, 422),
        ("data:image/png;base64,AAA", DecodeError, 422),
        ("data:image/png;base64,", MediaError, 422),
        (data_url(b"s3cr3t, no image"), HeaderError, 422),
        (data_url(png(Image.new("RGB", (8, 8)))[:30]), HeaderError, 422),
        (data_url(picture(1, (64, 64))[:-60]), DecodeError, 422),
    ],
)
def test_bad_media_is_one_clear_error_with_its_place_and_status(
    model: Model, renderer: Renderer, url: str, error: type[FetchError | MediaError], status: int
) -> None:
    good = chat(picture(1), picture(2), picture(3))
    messages = [
        *good,
        {"role": "user", "content": [image_part(url), image_part(data_url(picture(4)))]},
    ]
    with pytest.raises(error) as caught:
        renderer.render_chat(messages)
    assert str(caught.value).startswith("image 3: ")
    assert "\n" not in str(caught.value)
    assert (caught.value.modality, caught.value.index) == ("image", 3)
    assert isinstance(caught.value, ValueError)
    assert http_status(caught.value) == status
    body = error_body(caught.value)["error"]
    assert (body["modality"], body["index"], body["param"]) == ("image", 3, None)
    for text in (str(caught.value), str(body)):
        assert "s3cr3t" not in text
        assert " at 0x" not in text
    assert renderer.cache is not None
    assert renderer.cache.stats().entries == 0
    assert renderer.render_chat(good).inputs["mm_cache_hits"] == {"image": [False] * 3}


def test_kinds_of_bad_images_are_told_apart(renderer: Renderer) -> None:
    jpeg = io.BytesIO()
    Image.new("RGB", (64, 64)).save(jpeg, "JPEG")
    header = png(Image.new("RGB", (8, 8)))
    size = (20_000).to_bytes(4, "big") * 2
    ihdr = b"IHDR" + size + header[24:29]
    bomb = header[:12] + ihdr + zlib.crc32(ihdr).to_bytes(4, "big") + header[33:]
    kinds: dict[type[MediaError], bytes] = {
        LimitError: bomb,
        DecodeError: jpeg.getvalue()[:-20],
        UnsupportedMediaError: b"%!PS-Adobe-3.0 EPSF-3.0\n",
        HeaderError: b"\0" * 40,
    }
    for kind, payload in kinds.items():
        with pytest.raises(kind, match=r"^image 1: ") as caught:
            renderer.render_chat(chat(picture(1), payload))
        assert type(caught.value) is kind
        assert http_status(caught.value) == 422


def test_the_first_failure_in_the_order_of_the_chat_is_raised(
    model: Model, renderer: Renderer
) -> None:
    slow = picture(1)[:-30]
    model.fetching[slow] = lambda: time.sleep(0.05)
    messages = chat(picture(0))
    messages[0]["content"] += [image_part("data:,x"), image_part("ftp://x"), image_part("data:")]
    with pytest.raises(BlockedURLError, match=r"^image 1: data URL is not base64"):
        renderer.render_chat(messages)
    broken = [picture(n, (64, 64))[:-60] for n in (1, 2)]
    model.decoding[picture(9)] = lambda: time.sleep(0.05)
    with pytest.raises(DecodeError, match=r"^image 1: "):
        renderer.render_chat(chat(picture(9), *broken))


def test_an_oversize_image_is_refused_before_a_pixel_is_touched() -> None:
    model = Model(media_io_kwargs={"image": {"max_image_pixels": 100}})
    with Renderer(model.processor) as renderer:
        with pytest.raises(LimitError) as caught:
            renderer.render_chat(chat(picture(1, (8, 8)), picture(2, (16, 16))))
        assert str(caught.value) == (
            "image 1: image is 16x16 = 256 pixels, over max_image_pixels 100"
        )
        assert model.decoded == []
        renderer.render_chat(chat(picture(1, (8, 8))))


# --- budgets and limits ---


def test_what_a_request_may_decode_to_is_bounded_and_hits_are_free(model: Model) -> None:
    payloads = [picture(n, (16, 8)) for n in range(3)]
    nbytes = 16 * 8 * 4
    cache = MultiModalProcessorOnlyCache(1 << 20)
    with Renderer(model.processor, cache=cache, max_decoded_bytes=2 * nbytes) as renderer:
        renderer.render_chat(chat(*payloads[:2]))
        with pytest.raises(
            LimitError, match=r"image \d: the request's decoded bytes are 1536, over"
        ):
            renderer.render_chat(chat(*payloads))
        for _ in range(3):  # each request has its own
            renderer.render_chat(chat(*payloads[1:]))


def test_a_hit_gives_its_share_of_the_budget_back(model: Model) -> None:
    cache = MultiModalProcessorOnlyCache(1 << 20)
    with Renderer(model.processor, cache=cache) as renderer:
        renderer.render_chat(chat(picture(1)))
        rendered = renderer.render_chat(chat(picture(1), picture(2), picture(2)))
    charges: list[Any] = [ref._charge for ref in rendered.refs if ref is not None]
    (budget,) = {charge._budget for charge in charges}
    assert budget.used_bytes == 16 * 8 * 4, "only what was decoded is held"


def test_a_failed_or_cancelled_request_holds_no_budget(model: Model, renderer: Renderer) -> None:
    held: list[Any] = []
    payload, gate = picture(1), Gate()
    model.processor._validate_item = lambda items, *_: held.append(
        items["image"].get_raw(0)._charge._budget
    )
    model.decoding[payload] = gate
    threads = media_pool().max_threads
    blocking = [picture(100 + n) for n in range(threads)]
    gates = [model.decoding.setdefault(other, Gate()) for other in blocking]

    async def main() -> None:
        task = asyncio.create_task(renderer.render_chat_async(chat(*blocking, payload)))
        for other in gates:
            await other.wait_entered()  # type: ignore[attr-defined]
        task.cancel()
        await asyncio.sleep(0.01)
        for other in gates:
            other.opened.set()  # type: ignore[attr-defined]
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())
    assert held[0].used_bytes == threads * 16 * 8 * 4, "what never ran is given back"


def test_what_a_request_may_bring_is_bounded(model: Model) -> None:
    payload = picture(1)
    with Renderer(model.processor, max_download_bytes=2 * len(payload) + 4) as renderer:
        renderer.render_chat(chat(payload, payload))
        with pytest.raises(PayloadTooLargeError, match=r"^image \d: the request's encoded bytes"):
            renderer.render_chat(chat(payload, payload, payload))
        renderer.render_chat(chat(payload, payload))


def test_too_many_items_are_refused_before_any_is_fetched() -> None:
    model = Model(limit_mm_per_prompt={"image": 2})
    with Renderer(model.processor) as renderer:
        with pytest.raises(RequestError, match="the prompt has 3 image items, over limit_mm_per"):
            renderer.render_chat(chat(*[picture(1)] * 3))
        assert model.fetched == []
        renderer.render_chat(chat(*[picture(1)] * 2))


# --- options of a request ---


@pytest.mark.parametrize("messages", [chat(picture(1)), [{"role": "user", "content": "hi"}]])
def test_decode_options_are_the_operators(
    model: Model, renderer: Renderer, messages: list[Any]
) -> None:
    with pytest.raises(RequestError, match="media_io_kwargs are not accepted from requests"):
        renderer.render_chat(messages, media_io_kwargs={"image": {"image_mode": "L"}})
    assert model.fetched == []


def test_decode_options_of_a_trusted_request_change_key_and_pixels() -> None:
    model = Model(trust_request_kwargs=True)
    payload = png(Image.new("RGBA", (8, 8), (0, 0, 0, 0)))
    with Renderer(model.processor, cache=MultiModalProcessorOnlyCache(1 << 20)) as renderer:
        white = renderer.render_chat(chat(payload))
        red = renderer.render_chat(
            chat(payload), media_io_kwargs={"image": {"rgba_background_color": [255, 0, 0]}}
        )
        with pytest.raises(RequestError, match="takes no smell input"):
            renderer.render_chat(chat(payload), media_io_kwargs={"smell": {}})
        with pytest.raises(RequestError, match="media_io_kwargs of image are not valid"):
            renderer.render_chat(chat(payload), media_io_kwargs={"image": {"mode": "L"}})
    assert white.refs[0].key != red.refs[0].key  # type: ignore[union-attr]
    assert white.inputs["mm_hashes"] != red.inputs["mm_hashes"]
    levels = [x.inputs["mm_kwargs"].get_data()["pixel_values"].tolist() for x in (white, red)]
    assert levels == [[[255, 255, 255]], [[255, 0, 0]]]


@pytest.mark.parametrize("options", [[1], "abc", 7])
def test_options_that_are_no_options(renderer: Renderer, options: Any) -> None:
    for name in ("media_io_kwargs", "mm_processor_kwargs"):
        with pytest.raises(RequestError, match=f"{name} must be an object"):
            renderer.render_chat(chat(picture(1)), **{name: options})


def test_processor_options_change_hash_and_result() -> None:
    model = Model(trust_request_kwargs=True)
    with Renderer(model.processor, cache=MultiModalProcessorOnlyCache(1 << 20)) as renderer:
        plain = renderer.render_chat(chat(picture(1)))
        half = renderer.render_chat(chat(picture(1)), mm_processor_kwargs={"scale": 0.5})
        with pytest.raises(MediaError, match=r"^image 0: the model's processor cannot process it$"):
            renderer.render_chat(chat(picture(1)), mm_processor_kwargs={"scale": "large"})
    assert half.inputs["mm_cache_hits"] == {"image": [False]}
    assert half.inputs["mm_hashes"] != plain.inputs["mm_hashes"]


def test_processor_options_of_a_request_need_trust(renderer: Renderer) -> None:
    with pytest.raises(RequestError, match="not accepted"):
        renderer.render_chat(chat(picture(1)), mm_processor_kwargs={"size": {"longest_edge": 9e9}})


def test_a_request_may_go_past_the_cache(model: Model, renderer: Renderer) -> None:
    skipping = renderer.render_chat(chat(picture(1)), skip_mm_cache=True)
    assert renderer.cache is not None
    assert renderer.cache.stats().entries == 0
    renderer.render_chat(chat(picture(1)))
    before = renderer.cache.stats()
    again = renderer.render_chat(chat(picture(1)), skip_mm_cache=True)
    assert renderer.cache.stats() == before
    assert again.inputs["mm_cache_hits"] == {"image": [False]}
    assert same(skipping.inputs, again.inputs)
    assert len(model.image_processor.calls) == 3


# --- identities ---


def test_a_uuid_serves_media_that_a_cache_holds(renderer: Renderer) -> None:
    first = renderer.render_chat(chat(picture(1), uuid="u"))
    assert first.inputs["mm_hashes"] == {"image": ["u"]}
    served = renderer.render_chat(chat(None, uuid="u"))
    assert served.refs == [None]
    assert served.inputs["mm_cache_hits"] == {"image": [True]}
    assert same(first.inputs, served.inputs)
    messages = [*chat(picture(2)), *chat(None, uuid="unknown")]
    with pytest.raises(RequestError) as caught:
        renderer.render_chat(messages)
    assert str(caught.value) == "image 1 has a uuid but no media, and no cache holds it"
    assert http_status(caught.value) == 400


@pytest.mark.parametrize("by", ["no cache", "skipped"])
def test_identities_are_per_request_when_nobody_compares_them(model: Model, by: str) -> None:
    cache = None if by == "no cache" else MultiModalProcessorOnlyCache(1 << 20)
    skip = {"skip_mm_cache": True} if by == "skipped" else {}
    with Renderer(model.processor, cache=cache, enable_prefix_caching=False) as renderer:
        results = [
            renderer.render_chat(chat(*[picture(1)] * 2, uuid="u"), **skip) for _ in range(2)
        ]
        with pytest.raises(RequestError, match="image 0 has a uuid but no media"):
            renderer.render_chat(chat(None, uuid="u"), **skip)
    hashes = [mm_hash for x in results for mm_hash in x.inputs["mm_hashes"]["image"]]
    assert len(set(hashes)) == 4
    assert "u" not in hashes


def test_prefix_caching_alone_keeps_identities(model: Model) -> None:
    with Renderer(model.processor, cache=None, enable_prefix_caching=True) as renderer:
        one, two = (renderer.render_chat(chat(picture(1))) for _ in range(2))
        named = renderer.render_chat(chat(picture(1), uuid="u"))
    assert one.inputs["mm_hashes"] == two.inputs["mm_hashes"]
    assert named.inputs["mm_hashes"] == {"image": ["u"]}


# --- files ---


def test_files_are_served_under_the_allowed_root_only(model: Model, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.png").write_bytes(picture(1))
    (tmp_path / "b.png").write_bytes(picture(2))
    messages = [{"role": "user", "content": [image_part(f"file://{root}/a.png")]}]
    outside = [{"role": "user", "content": [image_part(f"file://{root}/../b.png")]}]
    with Renderer(
        model.processor, connector_options={"allowed_local_media_path": str(root)}
    ) as renderer:
        assert renderer.render_chat(messages).refs[0].data == picture(1)  # type: ignore[union-attr]
        with pytest.raises(BlockedURLError, match=r"^image 0: file is outside"):
            renderer.render_chat(outside)
    with Renderer(model.processor) as renderer, pytest.raises(BlockedURLError, match=r"^image 0: "):
        renderer.render_chat(messages)


# --- torch ---


@pytest.mark.parametrize(("variable", "threads"), [("2,1", 2), ("", 1), ("many", 1), ("0", 1)])
def test_torch_keeps_to_the_workers_threads(
    model: Model, monkeypatch: pytest.MonkeyPatch, variable: str, threads: int
) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    seen: list[int] = []
    model.image_processor.before = lambda _: seen.append(torch.get_num_threads())
    before = torch.get_num_threads()
    try:
        with Renderer(model.processor) as renderer:
            renderer.render_chat(chat(picture(1)))
    finally:
        torch.set_num_threads(before)
    assert seen == [threads]


def test_a_plugged_in_connector_serves_the_requests(model: Model) -> None:
    brought: list[str] = []

    @MEDIA_CONNECTOR_REGISTRY.register("test plug-in")
    class Connector(MediaConnector):
        async def fetch_image_async(self, url: str, media_io: Any = None) -> MediaRef[Any]:
            brought.append(url)
            return await self.load_from_url_async(data_url(picture(1)), media_io)

    with Renderer(model.processor, media_connector="test plug-in") as renderer:
        rendered = renderer.render_chat([{"role": "user", "content": [image_part("any:name")]}])
    assert brought == ["any:name"]
    assert rendered.refs[0] is not None
