"""Closing and failing: everything is drained, the error has its place, siblings stay usable."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from PIL import Image

from safelight import (
    DecodeError,
    LimitError,
    MediaError,
    MultiModalProcessorOnlyCache,
    RequestError,
    media_pool,
)
from safelight.http_errors import http_status
from tiny_model import Picture, TinyProcessor, make_inputs, make_processor

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def cache() -> MultiModalProcessorOnlyCache:
    return MultiModalProcessorOnlyCache(1 << 20)


def decoded_by_us(pictures: list[Picture]) -> list[int]:
    return [picture.decodes for picture in pictures]


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


def test_closing_withdraws_what_has_not_started() -> None:
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
    processor.info.validate_counts(processor.info.allowed_mm_limits)


@pytest.mark.parametrize("options", [[1], "abc", 7])
def test_options_that_are_no_options(options: Any) -> None:
    processor = make_processor()
    for name in ("hf_processor_mm_kwargs", "media_io_kwargs"):
        with pytest.raises(RequestError, match="must be objects"):
            processor.apply_phase1(make_inputs(processor, [Picture("a").ref()], **{name: options}))


# --- whose fault it is ---


class OutOfMemory(RuntimeError):
    """As torch's, which is no MemoryError."""


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("/srv"), OutOfMemory(), OSError("/srv"), KeyError("bug")]
)
def test_what_is_the_servers_is_no_media_error(
    cache: MultiModalProcessorOnlyCache, error: Exception, parallel: bool
) -> None:
    class Family(TinyProcessor):
        processes_in_parallel = parallel

    processor = make_processor(Family)

    def fail(_: list[Any]) -> None:
        raise error

    processor.info.image_processor.before = fail
    refs = [Picture("a").ref(), Picture("b").ref()]
    with pytest.raises(type(error)) as caught:
        processor.apply(make_inputs(processor, refs, cache=cache))
    assert not isinstance(caught.value, MediaError)
    assert http_status(caught.value) == 500
    assert cache.stats().in_flight == 0
    processor.info.image_processor.before = len
    assert processor.apply(make_inputs(processor, refs, cache=cache))["mm_cache_hits"] == {
        "image": [False, False]
    }


@pytest.mark.parametrize(
    ("error", "is_medias"),
    [
        (ValueError(), True),
        (TypeError(), True),
        (RuntimeError(), True),
        (KeyError(), True),
        (MemoryError(), False),
        (OutOfMemory(), False),
        (OSError(), False),
    ],
)
def test_options_of_a_request_may_bring_more_about(error: Exception, is_medias: bool) -> None:
    processor = make_processor()

    def fail(_: list[Any]) -> None:
        raise error

    processor.info.image_processor.before = fail
    inputs = make_inputs(processor, [Picture("a").ref()], hf_processor_mm_kwargs={"scale": 0.5})
    with pytest.raises(MediaError if is_medias else type(error)) as caught:
        processor.apply(inputs)
    assert isinstance(caught.value, MediaError) is is_medias
