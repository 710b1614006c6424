"""Identity of a request's items: which factors count, and when a UUID stands for the media."""

from __future__ import annotations

from typing import Any

import pytest
from PIL import Image

from safelight import DecodeSpec, MediaRef, MultiModalHasher
from safelight.parse import MultiModalDataParser
from safelight.processing.request import ProcessorInputs


def must_not_decode() -> Any:
    pytest.fail("the decoder was called")


REF: MediaRef[Any] = MediaRef(must_not_decode, b"payload", DecodeSpec({"a": 1}))
IMAGE = Image.new("RGB", (2, 3))


def hashes(item: Any, uuid: str | None = None, **options: Any) -> str:
    inputs = ProcessorInputs(
        prompt="",
        mm_data_items=MultiModalDataParser().parse_mm_data({"image": [item]}),
        mm_uuid_items=None if uuid is None else {"image": [uuid]},
        **options,
    )
    (item_hash,) = inputs.get_mm_hashes("model")["image"]
    return item_hash


def test_a_hash_covers_model_and_item() -> None:
    expected = MultiModalHasher.hash_kwargs("blake3", model_id="model", image=REF)
    assert hashes(REF) == expected
    assert hashes(REF) != hashes(IMAGE)
    assert not REF.is_decoded


@pytest.mark.parametrize("item", [REF, IMAGE])
@pytest.mark.parametrize("uuid", [None, "a-client's-own"])
def test_options_of_the_processor_always_count(item: Any, uuid: str | None) -> None:
    plain = hashes(item, uuid)
    assert hashes(item, uuid, hf_processor_mm_kwargs={}) == plain
    changed = hashes(item, uuid, hf_processor_mm_kwargs={"max_pixels": 1000})
    assert changed != plain
    # Options of another modality do not.
    assert hashes(item, uuid, hf_processor_mm_kwargs={"videos_kwargs": {"fps": 3}}) == plain
    assert (
        hashes(item, uuid, hf_processor_mm_kwargs={"images_kwargs": {"max_pixels": 1000}})
        == changed
    )


def test_decode_options_count_once() -> None:
    options = {"media_io_kwargs": {"image": {"image_mode": "L"}}}
    # A ref's key has them, unless a UUID stands in for the key.
    assert hashes(REF, **options) == hashes(REF)
    assert hashes(REF, "uuid", **options) != hashes(REF, "uuid")
    assert hashes(IMAGE, **options) != hashes(IMAGE)
    assert hashes(IMAGE, media_io_kwargs={"video": {"fps": 3}}) == hashes(IMAGE)


def test_a_uuid_without_options_is_used_verbatim() -> None:
    assert hashes(REF, "uuid") == "uuid"
    assert hashes(None, "uuid") == "uuid"
    options = {"hf_processor_mm_kwargs": {"max_pixels": 1000}}
    assert hashes(REF, "uuid", **options) == hashes(IMAGE, "uuid", **options) != "uuid"


def test_the_order_of_options_does_not_count() -> None:
    one = {"size": {"longest_edge": 2, "shortest_edge": 1}, "crops": [{"a": 1, "b": 2}]}
    other = {"crops": [{"b": 2, "a": 1}], "size": {"shortest_edge": 1, "longest_edge": 2}}
    assert hashes(REF, hf_processor_mm_kwargs=one) == hashes(REF, hf_processor_mm_kwargs=other)
    other["crops"].append({})  # type: ignore[attr-defined]
    assert hashes(REF, hf_processor_mm_kwargs=one) != hashes(REF, hf_processor_mm_kwargs=other)
