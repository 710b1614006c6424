"""Requests on asyncio: results, order, and what a client may choose."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from gated_model import Gate, Model, chat, picture, run, wait_until_pool_is_idle, works
from safelight import (
    MEDIA_CONNECTOR_REGISTRY,
    BlockedURLError,
    DecodeError,
    ImageMediaIO,
    MediaConnector,
    MediaError,
    MediaRef,
    MultiModalProcessorOnlyCache,
    ProcessingInfo,
    Renderer,
    RequestError,
)
from safelight.http_errors import http_status
from safelight.renderer import RenderedChat, RenderedItem
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


def key_of(payload: bytes) -> bytes:
    return ImageMediaIO().load_bytes_ref(payload).key


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
    assert rendered.items == [
        RenderedItem("image", index, None, mm_hash, ref.key, len(ref.data), rendered_item.header)
        for index, (mm_hash, ref, rendered_item) in enumerate(
            zip(
                rendered.inputs["mm_hashes"]["image"],
                map(ImageMediaIO().load_bytes_ref, payloads),
                rendered.items,
                strict=True,
            )
        )
    ]
    assert [item.upright_size for item in rendered.items] == [(16, 8), (8, 24)]
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


def test_a_rendered_chat_pins_no_payload_and_no_pixels() -> None:
    seen: list[weakref.ref[Any]] = []

    class WatchedImageMediaIO(ImageMediaIO):
        def load_bytes_ref(self, data: bytes) -> MediaRef[Image.Image]:
            ref = super().load_bytes_ref(data)

            def watch(image: Image.Image) -> Image.Image:
                copy = image.copy()
                seen.append(weakref.ref(copy))
                return copy

            seen.append(weakref.ref(mapped := ref.map(watch)))
            return mapped

    class Info(ProcessingInfo):
        media_ios: ClassVar = {"image": WatchedImageMediaIO}

    processor = make_processor(TinyProcessor, Info)
    with Renderer(processor, cache=MultiModalProcessorOnlyCache(1 << 20)) as renderer:
        rendered = [renderer.render_chat(chat(picture(n % 2))) for n in range(3)]
        processor.info.image_processor.calls.clear()
        gc.collect()
        assert [watched() for watched in seen] == [None] * 5
    assert len(rendered) == 3


def test_text_alone(renderer: Renderer) -> None:
    rendered = renderer.render_chat([{"role": "user", "content": "hi"}])
    assert rendered.inputs["prompt_token_ids"] == [104, 105]
    assert rendered.items == []


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
        while not gate.entered.is_set():  # noqa: ASYNC110 - steps of the loop are counted
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


# --- any chats ---

_GOOD = [picture(n, (8 * (1 + n % 3), 8)) for n in range(4)]
_PAYLOADS = [*_GOOD, picture(9, (64, 64))[:-60], b"no image"]
_ITEMS = st.tuples(
    st.sampled_from([0, 0, 1, 1, 2, 3, 4, 5]), st.sampled_from(["no", "no", "yes", "alone"])
)


@given(chats=st.lists(st.lists(_ITEMS, max_size=4), max_size=8), entries=st.integers(0, 3))
@example(chats=[[(4, "alone"), (4, "yes")]], entries=0)
@example(chats=[[(4, "alone"), (5, "no"), (4, "yes")]], entries=1)
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
                bad = [index for index, (number, _) in enumerate(items) if number >= len(_GOOD)]
                # The picture that fails is one that came with its bytes: where an item before it
                # has its UUID alone, that is another place than in the plain run.
                failing = next(index for index in bad if items[index][1] != "alone")
                single = _outcome(without, messages([items[failing]], whole=True))
                assert isinstance(single, MediaError)
                right = single.at("image", failing)
                assert (type(outcome), str(outcome)) == (type(right), str(right))
                if failing == bad[0]:
                    assert (type(outcome), str(outcome)) == (type(expected), str(expected))
    assert cache.stats().entries <= entries
    assert not cached.states or all(state.is_closed for state in cached.states)


def _outcome(renderer: Renderer, messages: object) -> RenderedChat | Exception:
    try:
        return renderer.render_chat(messages)
    except (MediaError, RequestError) as error:
        return error


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
    assert white.items[0].key != red.items[0].key
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
    assert served.items == [RenderedItem("image", 0, "u", "u", None, None, None)]
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
        assert renderer.render_chat(messages).items[0].key == key_of(picture(1))
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
    with ThreadPoolExecutor(1) as fresh:
        before = fresh.submit(torch.get_num_threads).result()
    with Renderer(model.processor) as renderer:
        renderer.render_chat(chat(picture(1)))
    assert seen == [threads]
    with ThreadPoolExecutor(1) as fresh:
        assert fresh.submit(torch.get_num_threads).result() == before, "the host's are its own"


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
    assert rendered.items[0].key == key_of(picture(1))


def test_a_connector_with_what_vllms_has(model: Model) -> None:
    @MEDIA_CONNECTOR_REGISTRY.register("test foreign")
    class Foreign:
        def __init__(self, **_: Any) -> None: ...

        async def fetch_image_async(self, url: str, media_io: Any = None) -> MediaRef[Any]:
            if url == "bad":
                raise DecodeError("no")
            ref: MediaRef[Any] = media_io.load_bytes_ref(picture(int(url)))
            return ref

    def messages(*urls: str) -> list[dict[str, Any]]:
        return [{"role": "user", "content": [image_part(url) for url in urls]}]

    with Renderer(model.processor, media_connector="test foreign") as renderer:
        rendered = renderer.render_chat(messages("1", "2"))
        assert [item.key for item in rendered.items] == [key_of(picture(n)) for n in (1, 2)]
        with pytest.raises(DecodeError, match=r"^image 1: no$"):
            renderer.render_chat(messages("1", "bad"))
