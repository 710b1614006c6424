"""UUIDs, options and fingerprints: what an item is told apart by; and which decoder serves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from safelight import (
    MultiModalProcessorOnlyCache,
    ProcessorInputs,
    RequestError,
)
from tiny_model import Picture, make_inputs, make_processor, same

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def cache() -> MultiModalProcessorOnlyCache:
    return MultiModalProcessorOnlyCache(1 << 20)


def decoded_by_us(pictures: list[Picture]) -> list[int]:
    return [picture.decodes for picture in pictures]


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


def test_a_null_hit_is_held_from_phase_1_on(cache: MultiModalProcessorOnlyCache) -> None:
    processor = make_processor()
    first = processor.apply(make_inputs(processor, [Picture("a").ref()], cache=cache, uuids=["u"]))
    state = processor.apply_phase1(make_inputs(processor, [None], cache=cache, uuids=["u"]))
    cache.clear_cache()
    assert same(processor.apply_phase2(state), first)
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
