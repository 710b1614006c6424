"""The two phases: what they promise, in order and out of it, and who declares them."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import numpy as np
import pytest

from safelight import (
    MediaError,
    MultiModalApplyState,
    MultiModalInputs,
    MultiModalProcessorOnlyCache,
    PlaceholderRange,
    ProcessorInputs,
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


def test_phase_1_closes_what_it_started_when_it_fails_half_way(
    cache: MultiModalProcessorOnlyCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safelight.processing import state as state_module

    gate = threading.Event()
    pictures = [Picture("a", gate=gate), Picture("b")]
    refs = [picture.ref() for picture in pictures]
    submit = state_module.try_submit_media_decodes
    states: list[MultiModalApplyState] = []

    def half(items: list[Any], jobs: list[Any]) -> None:
        submit(items[:1], jobs)
        assert pictures[0].started.wait(30)
        threading.Timer(0.05, gate.set).start()
        raise OSError("half way")

    class Recording(MultiModalApplyState):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            states.append(self)

    monkeypatch.setattr(state_module, "try_submit_media_decodes", half)
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
    gate = threading.Event()
    pictures = [Picture("a", gate=gate), Picture("a", gate=gate)]
    state_a, state_b = (
        processor.apply_phase1(make_inputs(processor, [picture.ref()], cache=cache))
        for picture in pictures
    )
    assert len(state_a.decodes) == len(state_b.decodes) == 1, "neither is a hit"
    gate.set()
    for state in (state_a, state_b):
        state.wait_decodes()
    result_b = processor.apply_phase2(state_b)
    result_a = processor.apply_phase2(state_a)
    assert len(processor.info.image_processor.calls) == 1
    assert result_b["mm_cache_hits"] == {"image": [False]}
    assert result_a["mm_cache_hits"] == {"image": [True]}
    assert same(result_a, result_b)
    assert decoded_by_us(pictures) == [1, 0]
    assert (cache.stats().misses, cache.stats().joins, cache.stats().in_flight) == (1, 1, 0)


def test_what_hit_and_has_been_evicted_is_held(cache: MultiModalProcessorOnlyCache) -> None:
    processor = make_processor()
    expected = processor.apply(make_inputs(processor, [Picture("a").ref()], cache=cache))
    kept, evicted = Picture("b"), Picture("a")
    inputs = make_inputs(processor, [kept.ref(), evicted.ref()], cache=cache)
    with processor.apply_phase1(inputs) as state:
        assert [job.original_index for job in state.decodes] == [0]
        state.wait_decodes()
        cache.clear_cache()
        result = processor.apply_phase2(state)
    assert [kept.decodes, evicted.decodes] == [1, 0]
    assert result["mm_cache_hits"] == {"image": [False, True]}
    assert result["mm_kwargs"]["image"][1] is expected["mm_kwargs"]["image"][0]


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


# --- several workers ---


class Parallel(TinyProcessor):
    processes_in_parallel = True


def test_items_are_processed_on_the_pool_too_where_the_family_allows(
    cache: MultiModalProcessorOnlyCache,
) -> None:
    processor = make_processor(Parallel)
    assert processor.supports_two_phase
    pictures = [Picture(name, (8 * (1 + n % 3), 8)) for n, name in enumerate("abcdefgh")]
    both = threading.Barrier(2)
    processor.info.image_processor.before = lambda _: both.wait(30)
    refs = [picture.ref() for picture in pictures]
    result = processor.apply(make_inputs(processor, refs, cache=cache))
    assert processor.info.image_processor.threads - {threading.get_ident()}
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
