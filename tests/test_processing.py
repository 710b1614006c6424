"""The two phases: what they promise, in order and out of it, and when something fails."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from PIL import Image

from safelight import (
    DecodeError,
    LimitError,
    MediaError,
    MultiModalApplyState,
    MultiModalInputs,
    MultiModalProcessorOnlyCache,
    PlaceholderRange,
    ProcessorInputs,
    RequestError,
    media_pool,
)
from safelight.processing import TimingContext
from tiny_model import IMAGE_TOKEN_ID, Picture, TinyProcessor, make_inputs, make_processor, same

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def cache() -> MultiModalProcessorOnlyCache:
    return MultiModalProcessorOnlyCache(1 << 20)


def decoded_by_us(pictures: list[Picture]) -> list[int]:
    return [picture.decodes for picture in pictures]


# --- the result ---


def test_a_request_becomes_tokens_tensors_hashes_and_ranges() -> None:
    processor = make_processor()
    pictures = [Picture("a", (16, 8)), Picture("b", (8, 24))]
    inputs = make_inputs(processor, [picture.ref() for picture in pictures], prompt="x§yz§")
    result = processor.apply(inputs)
    assert result["type"] == "multimodal"
    token = IMAGE_TOKEN_ID
    assert result["prompt_token_ids"] == [120, token, token, 121, 122, token, token, token]
    assert result["mm_placeholders"] == {"image": [PlaceholderRange(1, 2), PlaceholderRange(5, 3)]}
    assert result["mm_hashes"] == inputs.get_mm_hashes(processor.info.model_id)
    assert result["mm_cache_hits"] == {"image": [False, False]}
    merged = result["mm_kwargs"].get_data()
    plain = processor.info.image_processor([p.image() for p in pictures], "np")
    assert merged.keys() == plain.keys()
    for name, data in merged.items():
        assert data.dtype == plain[name].dtype
        assert np.array_equal(data, plain[name])


@pytest.mark.parametrize("form", ["apply", "phases", "async"])
@pytest.mark.parametrize("with_cache", [False, True])
def test_the_phases_give_what_apply_gives(form: str, with_cache: bool) -> None:
    processor = make_processor()
    items = [Picture("a").ref(), Picture("b").image(), np.zeros((8, 8, 3), np.uint8)]
    cache = MultiModalProcessorOnlyCache(1 << 20) if with_cache else None
    expected = make_processor().apply(make_inputs(processor, items))
    inputs = make_inputs(processor, items, cache=cache)
    if form == "apply":
        result = processor.apply(inputs)
    elif form == "phases":
        state = processor.apply_phase1(inputs)
        state.wait_decodes()
        result = processor.apply_phase2(state)
        assert state.is_closed
    else:

        async def run() -> MultiModalInputs:
            with processor.apply_phase1(inputs) as state:
                await state.wait_decodes_async()
                outputs: MultiModalInputs = processor.apply_phase2(state)
                return outputs

        result = asyncio.run(run())
    assert same(result, expected)


def test_token_ids_serve_as_a_prompt_and_are_not_changed() -> None:
    processor = make_processor()
    prompt = [1, IMAGE_TOKEN_ID, 2]
    inputs = ProcessorInputs(
        prompt, processor.data_parser.parse_mm_data({"image": Picture("a").ref()})
    )
    result = processor.apply(inputs)
    assert result["prompt_token_ids"] == [1, IMAGE_TOKEN_ID, IMAGE_TOKEN_ID, 2]
    assert prompt == [1, IMAGE_TOKEN_ID, 2]
    assert not processor.info.tokenizer.calls


def test_a_prompt_without_media() -> None:
    processor = make_processor()
    result = processor.apply(make_inputs(processor, [], prompt="hi"))
    assert result["prompt_token_ids"] == [104, 105]
    assert result["mm_hashes"] == result["mm_placeholders"] == result["mm_cache_hits"] == {}
    assert result["mm_kwargs"].get_data() == {}


def test_lists_are_fresh_and_items_are_shared_and_read_only(
    cache: MultiModalProcessorOnlyCache,
) -> None:
    processor = make_processor()
    first, second = (
        processor.apply(make_inputs(processor, [Picture("a").ref()], cache=cache)) for _ in range(2)
    )
    assert second["mm_cache_hits"] == {"image": [True]}
    assert first["mm_kwargs"]["image"][0] is second["mm_kwargs"]["image"][0]
    for name in ("prompt_token_ids", "mm_hashes", "mm_placeholders", "mm_cache_hits", "mm_kwargs"):
        assert first[name] is not second[name]  # type: ignore[literal-required]
    for name in ("mm_kwargs", "mm_hashes", "mm_placeholders"):
        assert first[name]["image"] is not second[name]["image"]  # type: ignore[literal-required]
    first["prompt_token_ids"].clear()
    first["mm_hashes"]["image"].clear()
    first["mm_placeholders"]["image"].clear()
    first["mm_kwargs"]["image"].clear()
    third = processor.apply(make_inputs(processor, [Picture("a").ref()], cache=cache))
    assert same(second, third)
    for data in third["mm_kwargs"]["image"][0].get_data().values():
        with pytest.raises(ValueError, match="read-only"):
            data[...] = 0


def test_an_item_keeps_no_sibling_alive() -> None:
    processor = make_processor()
    result = processor.apply(
        make_inputs(processor, [Picture("a", (800, 800)).ref(), Picture("b").ref()])
    )
    small = result["mm_kwargs"]["image"][1]
    assert small.nbytes < 100


# --- phase 1 ---


def test_phase_1_hashes_looks_up_submits_and_waits_for_nothing(
    cache: MultiModalProcessorOnlyCache,
) -> None:
    processor = make_processor()
    gate = threading.Event()
    picture = Picture("a", gate=gate)
    inputs = make_inputs(processor, [picture.ref()], cache=cache)
    with processor.apply_phase1(inputs) as state:
        assert state.hashes == inputs.get_mm_hashes(processor.info.model_id)
        assert [(job.modality, job.original_index) for job in state.decodes] == [("image", 0)]
        assert not state.decodes[0].future.done()
        assert not processor.info.image_processor.calls
        assert not processor.info.tokenizer.calls
        assert picture.started.wait(30)
        gate.set()
    assert picture.decodes == 1


def test_a_hit_is_neither_decoded_nor_processed(cache: MultiModalProcessorOnlyCache) -> None:
    processor = make_processor()
    expected = processor.apply(make_inputs(processor, [Picture("a").ref()], cache=cache))
    again = Picture("a")
    with processor.apply_phase1(make_inputs(processor, [again.ref()], cache=cache)) as state:
        assert state.decodes == []
        result = processor.apply_phase2(state)
    assert again.decodes == 0
    assert len(processor.info.image_processor.calls) == 1
    assert result["mm_cache_hits"] == {"image": [True]}
    assert same(result, expected)


def test_hits_and_misses_mix_in_prompt_order(cache: MultiModalProcessorOnlyCache) -> None:
    processor = make_processor()
    processor.apply(make_inputs(processor, [Picture("b", (8, 8)).ref()], cache=cache))
    pictures = [Picture("a", (8, 16)), Picture("b", (8, 8)), Picture("c", (8, 24))]
    refs = [picture.ref() for picture in pictures]
    result = processor.apply(make_inputs(processor, refs, cache=cache))
    assert result["mm_cache_hits"] == {"image": [False, True, False]}
    assert decoded_by_us(pictures) == [1, 0, 1]
    assert same(result, processor.apply(make_inputs(processor, refs)))


@pytest.mark.parametrize("phase_1_only", [False, True])
def test_equal_items_of_a_request_are_decoded_and_processed_once(
    cache: MultiModalProcessorOnlyCache, phase_1_only: bool
) -> None:
    processor = make_processor()
    pictures = [Picture("a"), Picture("b"), Picture("a"), Picture("a")]
    inputs = make_inputs(processor, [picture.ref() for picture in pictures], cache=cache)
    if phase_1_only:
        with processor.apply_phase1(inputs) as state:
            assert [job.original_index for job in state.decodes] == [0, 1]
        return
    result = processor.apply(inputs)
    assert decoded_by_us(pictures) == [1, 1, 0, 0]
    assert len(processor.info.image_processor.calls) == 2
    assert result["mm_cache_hits"] == {"image": [False, False, True, True]}
    items = result["mm_kwargs"]["image"]
    assert items[0] is items[2] is items[3]
    assert len(result["mm_placeholders"]["image"]) == 4


def test_without_a_cache_everything_is_decoded_and_hashes_come_after_processing() -> None:
    processor = make_processor()
    inputs = make_inputs(processor, [Picture("a").ref(), Picture("a").ref()])
    with processor.apply_phase1(inputs) as state:
        assert state.hashes is None
        assert len(state.decodes) == 2
        result = processor.apply_phase2(state)
    assert len(processor.info.image_processor.calls) == 2
    assert result["mm_cache_hits"] == {"image": [False, False]}
    first, second = result["mm_hashes"]["image"]
    assert first == second


def test_passthrough_data_goes_past_processor_and_cache(
    cache: MultiModalProcessorOnlyCache,
) -> None:
    processor = make_processor()
    embeds = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    torch = pytest.importorskip("torch", reason="a batch of embeddings is a torch tensor")
    inputs = make_inputs(processor, [torch.from_numpy(embeds)], cache=cache, prompt="§")
    inputs = ProcessorInputs(
        "a§b§",
        processor.data_parser.parse_mm_data({"image": torch.from_numpy(embeds)}),
        cache=cache,
    )
    with processor.apply_phase1(inputs) as state:
        assert state.hashes is None
        assert state.decodes == []
        result = processor.apply_phase2(state)
    assert not processor.info.image_processor.calls
    assert result["mm_placeholders"] == {"image": [PlaceholderRange(1, 3), PlaceholderRange(5, 3)]}
    assert np.array_equal(result["mm_kwargs"].get_data()["image_embeds"], embeds)
    assert cache.stats().entries == 0


def test_phase_1_closes_what_it_began_when_it_fails_half_way(
    cache: MultiModalProcessorOnlyCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safelight.processing import state as state_module

    gate = threading.Event()
    pictures = [Picture("a", gate=gate), Picture("b")]
    refs = [picture.ref() for picture in pictures]
    submit = state_module.submit_media_decodes
    states: list[MultiModalApplyState] = []

    def half(items: list[Any], jobs: list[Any]) -> None:
        submit(items[:1], jobs=jobs)
        assert pictures[0].started.wait(30)
        threading.Timer(0.05, gate.set).start()
        raise OSError("half way")

    class Recording(MultiModalApplyState):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            states.append(self)

    monkeypatch.setattr(state_module, "submit_media_decodes", half)
    monkeypatch.setattr("safelight.processing.processor.MultiModalApplyState", Recording)
    processor = make_processor()
    with pytest.raises(OSError, match="half way"):
        processor.apply_phase1(make_inputs(processor, refs, cache=cache))
    (state,) = states
    assert state.is_closed
    assert [job.future.done() for job in state.decodes] == [True], "what ran is drained"
    assert decoded_by_us(pictures) == [1, 0]
    assert [ref.data for ref in refs] == [b"a", b"b"]


# --- phase 2 ---


def test_what_missed_and_has_become_a_hit_is_processed_once(
    cache: MultiModalProcessorOnlyCache,
) -> None:
    processor = make_processor()
    state_a, state_b = (
        processor.apply_phase1(make_inputs(processor, [Picture("a").ref()], cache=cache))
        for _ in range(2)
    )
    assert len(state_a.decodes) == len(state_b.decodes) == 1, "both missed"
    for state in (state_a, state_b):
        state.wait_decodes()
    result_b = processor.apply_phase2(state_b)
    result_a = processor.apply_phase2(state_a)
    assert len(processor.info.image_processor.calls) == 1
    assert result_b["mm_cache_hits"] == {"image": [False]}
    assert result_a["mm_cache_hits"] == {"image": [True]}
    assert same(result_a, result_b)


def test_what_hit_and_has_been_evicted_is_decoded_now(cache: MultiModalProcessorOnlyCache) -> None:
    processor = make_processor()
    expected = processor.apply(make_inputs(processor, [Picture("a").ref()], cache=cache))
    kept, evicted = Picture("b"), Picture("a")
    inputs = make_inputs(processor, [kept.ref(), evicted.ref()], cache=cache)
    with processor.apply_phase1(inputs) as state:
        assert [job.original_index for job in state.decodes] == [0]
        state.wait_decodes()
        cache.clear_cache()
        result = processor.apply_phase2(state)
        assert [job.original_index for job in state.decodes] == [0, 1], "kept for closing"
    assert [kept.decodes, evicted.decodes] == [1, 1]
    assert result["mm_cache_hits"] == {"image": [False, False]}
    last, only = result["mm_kwargs"]["image"][1], expected["mm_kwargs"]["image"][0]
    assert np.array_equal(last["pixel_values"].data, only["pixel_values"].data)


def test_a_requests_own_misses_evict_none_of_its_hits() -> None:
    processor = make_processor()
    one = processor.apply(make_inputs(processor, [Picture("a").ref()]))
    probe_cache = MultiModalProcessorOnlyCache(1 << 20)
    processor.apply(make_inputs(processor, [Picture("a").ref()], cache=probe_cache))
    cache = MultiModalProcessorOnlyCache(probe_cache.stats().nbytes)  # room for one
    processor.apply(make_inputs(processor, [Picture("a").ref()], cache=cache))
    again = Picture("a")
    result = processor.apply(make_inputs(processor, [Picture("b").ref(), again.ref()], cache=cache))
    assert result["mm_cache_hits"] == {"image": [False, True]}
    assert again.decodes == 0
    assert cache.stats().evictions == 1
    served = result["mm_kwargs"]["image"][1]["pixel_values"].data
    assert np.array_equal(served, one["mm_kwargs"]["image"][0]["pixel_values"].data)


def test_an_item_larger_than_the_cache_is_served_uncached() -> None:
    processor = make_processor()
    cache = MultiModalProcessorOnlyCache(4096)
    large = [Picture("a", (800, 800)) for _ in range(2)]
    results = [
        processor.apply(make_inputs(processor, [picture.ref()], cache=cache)) for picture in large
    ]
    assert same(*results)
    assert results[1]["mm_cache_hits"] == {"image": [False]}
    assert cache.stats().entries == 0
    assert cache.stats().oversize == 2


def test_phase_2_without_a_wait_waits_itself(cache: MultiModalProcessorOnlyCache) -> None:
    processor = make_processor()
    gate = threading.Event()
    state = processor.apply_phase1(
        make_inputs(processor, [Picture("a", gate=gate).ref()], cache=cache)
    )
    threading.Timer(0.05, gate.set).start()
    assert processor.apply_phase2(state)["mm_cache_hits"] == {"image": [False]}


def test_phase_2_of_a_closed_state_is_an_error() -> None:
    processor = make_processor()
    state = processor.apply_phase1(make_inputs(processor, [Picture("a").ref()]))
    state.close()
    with pytest.raises(RuntimeError, match="closed"):
        processor.apply_phase2(state)
    with pytest.raises(RuntimeError, match="closed"):
        processor.apply_phase2(state)


def test_a_state_is_used_up_by_phase_2() -> None:
    processor = make_processor()
    state = processor.apply_phase1(make_inputs(processor, [Picture("a").ref()]))
    processor.apply_phase2(state)
    with pytest.raises(RuntimeError, match="closed"):
        processor.apply_phase2(state)


# --- closing ---


@pytest.mark.parametrize("way", ["close", "context", "async"])
def test_closing_drains_and_releases_only_the_requests_share(way: str) -> None:
    processor = make_processor()
    gate = threading.Event()
    picture = Picture("payload", gate=gate)
    ref = picture.ref()
    state = processor.apply_phase1(make_inputs(processor, [ref]))
    fork = state.items["image"].get_raw(0)
    assert fork is not ref
    assert picture.started.wait(30)
    threading.Timer(0.05, gate.set).start()
    if way == "close":
        state.close()
    elif way == "context":
        with state:
            pass
    else:
        asyncio.run(state.close_async())
    assert state.is_closed
    assert all(job.future.done() for job in state.decodes)
    assert fork.data == b""  # type: ignore[attr-defined]
    assert ref.data == b"payload"
    assert ref.decode().size == picture.size
    state.close()
    asyncio.run(state.close_async())
    assert ref.data == b"payload"


def test_payloads_live_until_the_merge_is_done() -> None:
    processor = make_processor()
    seen: list[bytes] = []

    state = processor.apply_phase1(make_inputs(processor, [Picture("payload").ref()]))
    fork: Any = state.items["image"].get_raw(0)
    processor.info.image_processor.before = lambda _: seen.append(fork.data)
    tokenizer = processor.info.tokenizer
    processor.info.hf_processor.tokenizer = lambda text: seen.append(fork.data) or tokenizer(text)
    processor.apply_phase2(state)
    assert seen == [b"payload", b"payload"]
    assert fork.data == b""


def test_closing_withdraws_what_has_not_begun() -> None:
    processor = make_processor()
    gate = threading.Event()
    blockers = [media_pool().submit(gate.wait, 30) for _ in range(media_pool().max_threads)]
    pictures = [Picture("a"), Picture("b")]
    state = processor.apply_phase1(make_inputs(processor, [p.ref() for p in pictures]))
    state.close()
    assert [job.future.cancelled() for job in state.decodes] == [True, True]
    gate.set()
    assert all(blocker.result() for blocker in blockers)
    assert decoded_by_us(pictures) == [0, 0]


def test_a_withdrawn_decode_still_serves_another_request_of_the_same_ref() -> None:
    processor = make_processor()
    gate = threading.Event()
    blockers = [media_pool().submit(gate.wait, 30) for _ in range(media_pool().max_threads)]
    picture = Picture("a")
    ref = picture.ref()
    one = processor.apply_phase1(make_inputs(processor, [ref]))
    two = processor.apply_phase1(make_inputs(processor, [ref]))
    one.close()
    gate.set()
    result = processor.apply_phase2(two)
    assert result["mm_cache_hits"] == {"image": [False]}
    assert picture.decodes == 1
    assert all(blocker.result() for blocker in blockers)


# --- failures ---


@pytest.mark.parametrize("with_cache", [False, True])
@pytest.mark.parametrize("phased", [False, True])
def test_a_failing_decode_names_its_place_and_harms_no_sibling(
    with_cache: bool, phased: bool
) -> None:
    processor = make_processor()
    cache = MultiModalProcessorOnlyCache(1 << 20) if with_cache else None
    gate = threading.Event()
    pictures = [
        Picture("a"),
        Picture("b", error=ValueError("/srv/s3cr3t <object at 0x7f00>")),
        Picture("c", gate=gate),
        Picture("d", error=DecodeError("image cannot be decoded")),
    ]
    refs = [picture.ref() for picture in pictures]
    inputs = make_inputs(processor, refs, cache=cache)
    threading.Timer(0.05, gate.set).start()

    def phases() -> None:
        with processor.apply_phase1(inputs) as state:
            state.wait_decodes()

    with pytest.raises(DecodeError) as caught:
        phases() if phased else processor.apply(inputs)
    assert str(caught.value) == "image 1: cannot be decoded"
    assert (caught.value.modality, caught.value.index) == ("image", 1)
    assert decoded_by_us(pictures) == [1, 1, 1, 1], "all are drained"
    assert [ref.data for ref in refs] == [b"a", b"b", b"c", b"d"]
    assert refs[2].decode().size == pictures[2].size
    assert not processor.info.image_processor.calls
    if cache is not None:
        assert cache.stats().entries == 0
    pictures[1].error = pictures[3].error = None
    assert len(processor.apply(inputs)["mm_hashes"]["image"]) == 4, "a failure is not remembered"


def test_a_media_error_keeps_its_class_and_message() -> None:
    processor = make_processor()
    items = [
        Picture("a").ref(),
        Picture("b", error=LimitError("too large", limit=1, actual=2)).ref(),
    ]
    with pytest.raises(LimitError) as caught:
        processor.apply(make_inputs(processor, items))
    assert str(caught.value) == "image 1: too large"
    assert (caught.value.limit, caught.value.actual) == (1, 2)


def test_a_failed_state_stays_failed(cache: MultiModalProcessorOnlyCache) -> None:
    processor = make_processor()
    picture = Picture("a", error=ValueError("no"))
    state = processor.apply_phase1(make_inputs(processor, [picture.ref()], cache=cache))
    for call in (state.wait_decodes, state.wait_decodes, lambda: processor.apply_phase2(state)):
        with pytest.raises(DecodeError, match=r"^image 0: cannot be decoded$"):
            call()
    assert state.is_closed
    assert picture.decodes == 1


def test_the_index_counts_hits_and_plain_images_too(cache: MultiModalProcessorOnlyCache) -> None:
    processor = make_processor()
    processor.apply(make_inputs(processor, [Picture("a").ref()], cache=cache))
    bad = Picture("bad", error=ValueError())
    items = [Picture("a").ref(), Image.new("RGB", (8, 8)), Picture("a").ref(), bad.ref()]
    with pytest.raises(DecodeError, match=r"^image 3: "):
        processor.apply(make_inputs(processor, items, cache=cache))


@pytest.mark.parametrize("with_cache", [False, True])
def test_what_the_processor_raises_is_a_media_error_with_its_place(with_cache: bool) -> None:
    processor = make_processor()
    cache = MultiModalProcessorOnlyCache(1 << 20) if with_cache else None

    def refuse(images: list[Any]) -> None:
        if images[0].size == (24, 8):
            raise ValueError("/srv/s3cr3t <object at 0x7f00>")

    processor.info.image_processor.before = refuse
    refs = [Picture("a").ref(), Picture("b", (24, 8)).ref(), Picture("c").ref()]
    state = processor.apply_phase1(make_inputs(processor, refs, cache=cache))
    forks: list[Any] = [state.items["image"].get_raw(i) for i in range(3)]
    with pytest.raises(MediaError) as caught:
        processor.apply_phase2(state)
    assert str(caught.value) == "image 1: the model's processor cannot process it"
    assert isinstance(caught.value.__cause__, ValueError)
    assert state.is_closed
    assert [fork.data for fork in forks] == [b"", b"", b""]
    assert [ref.data for ref in refs] == [b"a", b"b", b"c"]
    if cache is not None:
        assert cache.stats().entries == 1, "the item before it is good and stays"
    processor.info.image_processor.before = len
    result = processor.apply(make_inputs(processor, refs, cache=cache))
    assert result["mm_cache_hits"] == {"image": [with_cache, False, False]}


def test_a_media_error_of_the_processor_is_located_too() -> None:
    processor = make_processor()

    def refuse(images: list[Any]) -> None:
        raise LimitError("too much", limit=1)

    processor.info.image_processor.before = refuse
    with pytest.raises(LimitError, match=r"^image 0: too much$"):
        processor.apply(make_inputs(processor, [Picture("a").ref()]))


def test_an_item_refused_by_its_header_is_never_decoded() -> None:
    class Picky(TinyProcessor):
        def _validate_item(
            self, mm_items: Any, modality: str, index: int, kwargs: Mapping[str, Any]
        ) -> None:
            if mm_items[modality].get_raw(index).data == b"b":
                raise LimitError("too long")

    processor = make_processor(Picky)
    assert processor.supports_two_phase
    pictures = [Picture("a"), Picture("b")]
    refs = [picture.ref() for picture in pictures]
    with pytest.raises(LimitError, match=r"^image 1: too long$"):
        processor.apply_phase1(make_inputs(processor, refs))
    assert decoded_by_us(pictures) == [0, 0]
    assert [ref.data for ref in refs] == [b"a", b"b"]


def test_a_count_of_placeholders_that_does_not_match_is_an_error_and_closes() -> None:
    processor = make_processor()
    for prompt, found in (("no image", 0), ("§ and § again", 2)):
        state = processor.apply_phase1(make_inputs(processor, [Picture("a").ref()], prompt=prompt))
        with pytest.raises(RequestError) as caught:
            processor.apply_phase2(state)
        assert str(caught.value) == f"the prompt has {found} image placeholders for 1 image items"
        assert state.is_closed


def test_a_placeholder_without_any_item_is_an_error() -> None:
    processor = make_processor()
    with pytest.raises(RequestError, match="1 image placeholders for 0 image items"):
        processor.apply(make_inputs(processor, [], prompt="see §"))


def test_a_prompt_that_is_no_text_is_an_error() -> None:
    processor = make_processor()
    with pytest.raises(RequestError, match="lone surrogate"):
        processor.apply(make_inputs(processor, [], prompt="a\ud800b"))


@pytest.mark.parametrize(
    ("limits", "count", "text"),
    [
        ({"image": 2}, 3, "the prompt has 3 image items, over limit_mm_per_prompt 2"),
        ({"image": 0}, 1, "the prompt has 1 image items, over limit_mm_per_prompt 0"),
        ({}, 1000, "the prompt has 1000 image items, over limit_mm_per_prompt 999"),
    ],
)
def test_more_items_than_the_operator_allows(limits: dict[str, int], count: int, text: str) -> None:
    processor = make_processor(limit_mm_per_prompt=limits)
    picture = Picture("a")
    with pytest.raises(RequestError) as caught:
        processor.apply_phase1(make_inputs(processor, [picture.ref()] * count))
    assert str(caught.value) == text
    assert picture.decodes == 0
    allowed = processor.info.allowed_mm_limits["image"]
    processor.info.validate_num_items(
        make_inputs(processor, [picture.ref()] * allowed).mm_data_items
    )


@pytest.mark.parametrize("options", [[1], "abc", 7])
def test_options_that_are_no_options(options: Any) -> None:
    processor = make_processor()
    for name in ("hf_processor_mm_kwargs", "media_io_kwargs"):
        with pytest.raises(RequestError, match="must be objects"):
            processor.apply_phase1(make_inputs(processor, [Picture("a").ref()], **{name: options}))


# --- several workers ---


class Parallel(TinyProcessor):
    processes_in_parallel = True


def test_items_are_processed_on_the_pool_where_the_family_allows(
    cache: MultiModalProcessorOnlyCache,
) -> None:
    processor = make_processor(Parallel)
    assert processor.supports_two_phase
    pictures = [Picture(name, (8 * (1 + n % 3), 8)) for n, name in enumerate("abcdefgh")]
    both = threading.Barrier(2)
    processor.info.image_processor.before = lambda _: both.wait(30)
    refs = [picture.ref() for picture in pictures]
    result = processor.apply(make_inputs(processor, refs, cache=cache))
    assert threading.get_ident() not in processor.info.image_processor.threads
    plain = make_processor()
    assert same(result, plain.apply(make_inputs(plain, refs)))
    assert cache.stats().entries == len(pictures)


@pytest.mark.parametrize("with_cache", [False, True])
def test_failures_among_several_workers(with_cache: bool) -> None:
    processor = make_processor(Parallel)
    cache = MultiModalProcessorOnlyCache(1 << 20) if with_cache else None
    running = threading.Event()

    def refuse(images: list[Any]) -> None:
        if images[0].size == (24, 8):
            running.wait(30)
            raise ValueError("first in the request, last in time")
        if images[0].size == (32, 8):
            running.set()
            raise ValueError("last in the request, first in time")

    processor.info.image_processor.before = refuse
    sizes = [(8, 8), (24, 8), (8, 16), (32, 8), (8, 24)]
    refs = [Picture(str(size), size).ref() for size in sizes]
    state = processor.apply_phase1(make_inputs(processor, refs, cache=cache))
    with pytest.raises(MediaError, match=r"^image 1: the model's processor cannot process it$"):
        processor.apply_phase2(state)
    assert state.is_closed
    assert len(processor.info.image_processor.calls) == len(sizes), "what was submitted ended"
    if cache is not None:
        assert cache.stats().entries == 3, "what went well is kept"


# --- identities ---


def test_a_uuid_stands_for_the_media(cache: MultiModalProcessorOnlyCache) -> None:
    processor = make_processor()
    first = processor.apply(make_inputs(processor, [Picture("a").ref()], cache=cache, uuids=["u"]))
    assert first["mm_hashes"] == {"image": ["u"]}
    served = processor.apply(make_inputs(processor, [None], cache=cache, uuids=["u"]))
    assert served["mm_cache_hits"] == {"image": [True]}
    assert same(first, served)


def test_options_are_part_of_what_a_uuid_stands_for(cache: MultiModalProcessorOnlyCache) -> None:
    processor = make_processor()
    options = {"hf_processor_mm_kwargs": {"scale": 0.5}}
    inputs = make_inputs(processor, [Picture("a").ref()], cache=cache, uuids=["u"], **options)
    first = processor.apply(inputs)
    assert first["mm_hashes"] != {"image": ["u"]}
    assert same(
        first,
        processor.apply(make_inputs(processor, [None], cache=cache, uuids=["u"], **options)),
    )
    with pytest.raises(RequestError):
        processor.apply(make_inputs(processor, [None], cache=cache, uuids=["u"]))


@pytest.mark.parametrize("with_cache", [False, True])
def test_a_uuid_whose_media_is_null_and_not_cached_is_refused(with_cache: bool) -> None:
    processor = make_processor()
    cache = MultiModalProcessorOnlyCache(1 << 20) if with_cache else None
    picture = Picture("a")
    inputs = make_inputs(processor, [picture.ref(), None], cache=cache, uuids=[None, "u"])
    with pytest.raises(RequestError) as caught:
        processor.apply_phase1(inputs)
    assert str(caught.value) == "image 1 has a uuid but no media, and no cache holds it"
    assert picture.decodes == 0


def test_a_null_hit_that_is_evicted_between_the_phases_is_refused(
    cache: MultiModalProcessorOnlyCache,
) -> None:
    processor = make_processor()
    processor.apply(make_inputs(processor, [Picture("a").ref()], cache=cache, uuids=["u"]))
    state = processor.apply_phase1(make_inputs(processor, [None], cache=cache, uuids=["u"]))
    cache.clear_cache()
    with pytest.raises(RequestError, match="image 0 has a uuid but no media"):
        processor.apply_phase2(state)
    assert state.is_closed


@pytest.mark.parametrize("null_first", [False, True])
def test_a_sibling_with_the_same_uuid_brings_the_media(
    cache: MultiModalProcessorOnlyCache, null_first: bool
) -> None:
    processor = make_processor()
    items: list[Any] = [Picture("a").ref(), None]
    if null_first:
        items.reverse()
    result = processor.apply(make_inputs(processor, items, cache=cache, uuids=["u", "u"]))
    assert result["mm_hashes"] == {"image": ["u", "u"]}
    assert result["mm_cache_hits"] == {"image": [null_first, not null_first]}
    first, second = result["mm_kwargs"]["image"]
    assert first is second


@pytest.mark.parametrize("uuids", [[], ["a", "b"], [""], [7], ["\ud800"]])
def test_uuids_that_are_not_one_an_item(uuids: list[Any]) -> None:
    processor = make_processor()
    picture = Picture("a")
    with pytest.raises(RequestError, match="uuid"):
        processor.apply_phase1(make_inputs(processor, [picture.ref()], uuids=uuids))
    assert picture.decodes == 0


def test_uuids_of_a_modality_that_is_not_there() -> None:
    processor = make_processor()
    inputs = ProcessorInputs("hi", processor.data_parser.parse_mm_data({}), {"image": ["u"]})
    with pytest.raises(RequestError, match="1 uuids for 0 image items"):
        processor.apply(inputs)


def test_options_change_hash_and_result(cache: MultiModalProcessorOnlyCache) -> None:
    processor = make_processor()
    plain = processor.apply(make_inputs(processor, [Picture("a").ref()], cache=cache))
    half = processor.apply(
        make_inputs(
            processor, [Picture("a").ref()], cache=cache, hf_processor_mm_kwargs={"scale": 0.5}
        )
    )
    assert half["mm_cache_hits"] == {"image": [False]}
    assert half["mm_hashes"] != plain["mm_hashes"]
    assert np.array_equal(
        half["mm_kwargs"].get_data()["pixel_values"],
        plain["mm_kwargs"].get_data()["pixel_values"] / 2,
    )


@pytest.mark.parametrize("server", [{"scale": 3.0}, {"images_kwargs": {"scale": 3.0}}])
@pytest.mark.parametrize("request_kwargs", [{"scale": 0.5}, {"images_kwargs": {"scale": 0.5}}])
def test_a_request_overrides_the_servers_option_whatever_its_form(
    server: dict[str, Any], request_kwargs: dict[str, Any]
) -> None:
    processor = make_processor(mm_processor_kwargs=server)
    plain = make_processor()
    inputs = make_inputs(processor, [Picture("a").ref()], hf_processor_mm_kwargs=request_kwargs)
    for kwargs, scale in ((inputs, 0.5), (make_inputs(processor, [Picture("a").ref()]), 3.0)):
        result = processor.apply(kwargs)["mm_kwargs"].get_data()["pixel_values"]
        expected = plain.apply(make_inputs(plain, [Picture("a").ref()]))["mm_kwargs"].get_data()
        assert np.array_equal(result, expected["pixel_values"] * scale)


def test_two_processors_may_share_a_cache(cache: MultiModalProcessorOnlyCache) -> None:
    plain, scaled = make_processor(), make_processor(mm_processor_kwargs={"scale": 2.0})
    other_token = make_processor()
    other_token.info.hf_processor.image_token_id = 7
    assert len({p.info.fingerprint for p in (plain, scaled, other_token)}) == 3
    for processor in (plain, scaled, other_token):
        result = processor.apply(
            make_inputs(processor, [Picture("a").ref()], cache=cache, uuids=["u"])
        )
        assert result["mm_cache_hits"] == {"image": [False]}
    assert make_processor().info.fingerprint == plain.info.fingerprint
    result = plain.apply(make_inputs(plain, [None], cache=cache, uuids=["u"]))
    assert result["mm_cache_hits"] == {"image": [True]}


def test_the_model_is_named_by_the_operator_or_by_its_fingerprint() -> None:
    assert make_processor(model_id="m").info.model_id == "m"
    processor = make_processor()
    assert processor.info.model_id == processor.info.fingerprint.hex()
    assert len(processor.info.fingerprint) == 32


# --- declaration ---


def _apply(self: Any, inputs: Any, timing_ctx: Any = None) -> Any:
    return TinyProcessor.apply(self, inputs, timing_ctx)


def _phase(self: Any, state: Any) -> Any:
    return TinyProcessor.apply_phase2(self, state)


@pytest.mark.parametrize(
    ("members", "supported"),
    [
        ({}, True),
        ({"_validate_item": lambda *_: None}, True),
        ({"apply": _apply}, False),
        ({"apply_phase2": _phase}, False),
        ({"_merge": _phase}, False),
        ({"apply": _apply, "two_phase": True}, True),
        ({"two_phase": False}, False),
    ],
)
def test_two_phase_support_is_declared_for_a_class_of_its_own(
    members: dict[str, Any], supported: bool
) -> None:
    family = type("Family", (TinyProcessor,), members)
    assert make_processor(family).supports_two_phase is supported
    assert make_processor(TinyProcessor).supports_two_phase


def test_a_declaration_is_not_inherited_by_what_overrides_a_step() -> None:
    declared = type("Declared", (TinyProcessor,), {"apply": _apply, "two_phase": True})
    overriding = type("Overriding", (declared,), {"_process": _phase})
    assert make_processor(declared).supports_two_phase
    assert make_processor(type("Same", (declared,), {})).supports_two_phase
    assert not make_processor(overriding).supports_two_phase
    assert not make_processor(type("Child", (overriding,), {})).supports_two_phase


def test_what_is_overridden_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    family = type("Family", (TinyProcessor,), {"apply": _apply, "_merge": _phase})
    with caplog.at_level(logging.INFO, "safelight"):
        processor = make_processor(family)
        make_processor(family)
        for _ in range(3):
            assert not processor.supports_two_phase
    (record,) = caplog.records
    assert record.getMessage() == (
        "Family overrides _merge, apply without declaring two_phase: "
        "requests run whole on one worker"
    )


# --- stages ---


def test_stages_are_timed_when_asked(cache: MultiModalProcessorOnlyCache) -> None:
    processor = make_processor()
    timing = TimingContext()
    processor.apply(make_inputs(processor, [Picture("a").ref()], cache=cache), timing)
    assert timing.stage_secs.keys() == {
        "hash",
        "look up",
        "decode",
        "process",
        "tokenize",
        "expand",
    }
    assert all(seconds >= 0 for seconds in timing.stage_secs.values())
    quiet = TimingContext(enabled=False)
    processor.apply(make_inputs(processor, [Picture("a").ref()]), quiet)
    assert quiet.stage_secs == {}


# --- decoders ---


def test_a_decoder_is_bound_by_model_then_server_then_trusted_request() -> None:
    info = make_processor(media_io_kwargs={"image": {"image_mode": "L"}}).info
    spec = info.get_media_io("image").get_decode_spec().settings
    assert spec["image_mode"] == "L"
    with pytest.raises(RequestError, match="not accepted from requests"):
        info.get_media_io("image", {"image_mode": "RGB"})
    assert info.get_media_io("image", {}).get_decode_spec().settings == spec
    trusting = make_processor(
        media_io_kwargs={"image": {"image_mode": "L", "max_image_pixels": 5}},
        trust_request_kwargs=True,
    ).info
    media_io: Any = trusting.get_media_io("image", {"image_mode": "RGB"})
    assert (media_io.image_mode, media_io.max_image_pixels) == ("RGB", 5)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"unknown": 1},
        {"rgba_background_color": [0, 0]},
        {"rgba_background_color": [0, 0, 256]},
        {"max_image_pixels": -1},
        {"max_image_pixels": "many"},
        {"decoded_budget": None},
        {"image_mode": object()},
        [1],
        "abc",
    ],
)
def test_a_decode_option_that_is_not_valid(kwargs: Any) -> None:
    info = make_processor(trust_request_kwargs=True).info
    with pytest.raises(RequestError, match="media_io_kwargs of image are not valid"):
        info.get_media_io("image", kwargs)


def test_a_modality_that_the_model_does_not_take() -> None:
    info = make_processor().info
    make: Callable[[], Any] = lambda: info.get_media_io("smell")  # noqa: E731
    with pytest.raises(RequestError, match="takes no smell input"):
        make()
