"""Field layouts, items, and the identity of a request's items."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from PIL import Image

from safelight import (
    DecodeSpec,
    MediaRef,
    MultiModalDataParser,
    MultiModalFieldConfig,
    MultiModalHasher,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
    ProcessorInputs,
)
from safelight.inputs.fields import (
    MultiModalBatchedField,
    MultiModalFieldElem,
    MultiModalFlatField,
    MultiModalSharedField,
    nested_nbytes,
    owned,
)
from safelight.processing.identity import scope_mm_kwargs

KINDS = ["numpy", "torch"]


def make(kind: str, array: Any) -> Any:
    if kind == "numpy":
        return np.asarray(array)
    torch = pytest.importorskip("torch", reason="needs torch")
    return torch.from_numpy(np.array(array))


def to_list(data: Any) -> Any:
    return data.tolist() if hasattr(data, "tolist") else [to_list(part) for part in data]


# --- layouts ---


@pytest.mark.parametrize("kind", KINDS)
def test_batched_gives_each_item_a_row(kind: str) -> None:
    data = make(kind, np.arange(6).reshape(3, 2))
    field = MultiModalBatchedField()
    parts = field.split(data)
    assert to_list(parts) == [[0, 1], [2, 3], [4, 5]]
    merged = field.merge(parts)
    assert type(merged) is type(data)
    assert to_list(merged) == to_list(data)


@pytest.mark.parametrize("kind", KINDS)
def test_batched_rows_of_different_shapes_stay_a_list(kind: str) -> None:
    rows = [make(kind, np.zeros(2)), make(kind, np.ones(3))]
    merged = MultiModalBatchedField().merge(rows)
    assert isinstance(merged, list)
    assert to_list(merged) == [[0, 0], [1, 1, 1]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(1, 3, 2), (6,), (0, 6), (2, 0, 4)])
def test_flat_gives_each_item_its_run_of_rows(kind: str, sizes: tuple[int, ...]) -> None:
    data = make(kind, np.arange(12).reshape(6, 2))
    field = MultiModalFlatField(sizes)
    parts = field.split(data)
    assert [len(part) for part in parts] == list(sizes)
    assert to_list(field.merge(parts)) == to_list(data)


@pytest.mark.parametrize("sizes", [(), (5,), (3, 4), (7, -1), (-1, 7)])
def test_flat_refuses_sizes_that_are_not_the_rows(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="sizes"):
        MultiModalFlatField(sizes).split(np.zeros((6, 2)))


@pytest.mark.parametrize("kind", KINDS)
def test_shared_is_one_value_for_all_items(kind: str) -> None:
    data = make(kind, np.arange(3))
    field = MultiModalSharedField(2)
    first, second = field.split(data)
    assert first is second is data
    assert field.merge([first, second]) is data


@pytest.mark.parametrize("kind", KINDS)
def test_items_split_and_merge_to_what_the_processor_gave(kind: str) -> None:
    outputs = {
        "pixel_values": make(kind, np.arange(20, dtype=np.float32).reshape(10, 2)),
        "image_grid_thw": make(kind, [[1, 2, 2], [1, 2, 3]]),
        "scale": make(kind, [0.5]),
        "input_ids": make(kind, [[1, 2]]),
        "absent": None,
    }
    items = MultiModalKwargsItems.from_hf_inputs(
        outputs,
        {
            "pixel_values": MultiModalFieldConfig.flat_from_sizes("image", [4, 6]),
            "image_grid_thw": MultiModalFieldConfig.batched("image"),
            "scale": MultiModalFieldConfig.shared("image", 2),
            "absent": MultiModalFieldConfig.batched("image"),
            "never_there": MultiModalFieldConfig.batched("image"),
        },
    )
    first, second = items["image"]
    assert first.keys() == second.keys() == {"pixel_values", "image_grid_thw", "scale"}
    assert first.get_data()["pixel_values"].shape == (4, 2)
    assert to_list(second.get_data()["image_grid_thw"]) == [1, 2, 3]
    merged = items.get_data()
    assert merged.keys() == first.keys(), "what has no layout is no model input"
    for name, data in merged.items():
        assert to_list(data) == to_list(outputs[name])
        assert data.dtype == outputs[name].dtype
    assert list(items.iter_items()) == [first, second]


def test_fields_that_disagree_about_the_items_are_refused() -> None:
    with pytest.raises(ValueError, match="disagree about the items"):
        MultiModalKwargsItems.from_hf_inputs(
            {"a": np.zeros((2, 1)), "b": np.zeros((3, 1))},
            {
                "a": MultiModalFieldConfig.batched("image"),
                "b": MultiModalFieldConfig.batched("image"),
            },
        )


def test_items_of_two_modalities_stay_apart() -> None:
    items = MultiModalKwargsItems.from_hf_inputs(
        {"a": np.zeros((2, 1)), "b": np.zeros((3, 1))},
        {"a": MultiModalFieldConfig.batched("image"), "b": MultiModalFieldConfig.batched("video")},
    )
    assert {modality: len(of_modality) for modality, of_modality in items.items()} == {
        "image": 2,
        "video": 3,
    }
    assert items.get_data().keys() == {"a", "b"}


def test_merging_no_items_gives_nothing() -> None:
    assert MultiModalKwargsItems().get_data() == {}
    assert MultiModalKwargsItems({"image": []}).get_data() == {}


# --- what an item weighs ---


def test_a_view_weighs_what_it_keeps_alive() -> None:
    whole = np.zeros((100, 10), np.float32)
    assert nested_nbytes(whole) == 4000
    assert nested_nbytes(whole[:1]) == 4000
    assert nested_nbytes(owned(whole[:1])) == 40
    assert owned(whole) is whole
    item = MultiModalKwargsItem({"a": MultiModalFieldElem(whole[0], MultiModalBatchedField())})
    assert item.nbytes == 4000


def test_a_view_of_all_there_is_needs_no_copy() -> None:
    whole = np.zeros((10, 10))
    assert np.shares_memory(owned(whole[0:10]), whole)
    backwards = owned(whole[::-1])
    assert np.shares_memory(backwards, whole)
    part = np.frombuffer(bytearray(8), np.uint8)[:4]
    assert not np.shares_memory(owned(part), part)


def test_a_tensor_weighs_its_storage() -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    whole = torch.zeros(100, 10)
    assert nested_nbytes(whole) == nested_nbytes(whole[:1]) == 4000
    assert nested_nbytes(owned(whole[:1])) == 40
    assert owned(whole) is whole


def test_other_leaves_weigh_too() -> None:
    array = np.zeros(10, np.uint8)
    assert nested_nbytes([array, {"a": array}, (b"abc", bytearray(4), memoryview(b"ab"))]) == 29
    assert nested_nbytes("text") == sys.getsizeof("text")
    assert owned("text") == "text"


# --- options ---


def test_options_are_seen_by_their_modality_and_the_scoped_ones_win() -> None:
    kwargs = {
        "max_pixels": 1,
        "size": 2,
        "images_kwargs": {"size": 3, "min_pixels": 4},
        "videos_kwargs": {"fps": 5},
        "audio_kwargs": {"rate": 6},
        "text_kwargs": {"padding": True},
        "common_kwargs": {"return_tensors": "pt"},
    }
    assert scope_mm_kwargs(kwargs, "image") == {"max_pixels": 1, "size": 3, "min_pixels": 4}
    assert scope_mm_kwargs(kwargs, "video") == {"max_pixels": 1, "size": 2, "fps": 5}
    assert scope_mm_kwargs(kwargs, "audio") == {"max_pixels": 1, "size": 2, "rate": 6}
    assert scope_mm_kwargs(kwargs, "smell") == {"max_pixels": 1, "size": 2}
    assert scope_mm_kwargs({}, "image") == {}
    assert scope_mm_kwargs({"images_kwargs": None}, "image") == {}


# --- identities ---


def never() -> Image.Image:
    raise AssertionError("an identity must not decode")


def ref(data: bytes = b"payload", **settings: Any) -> MediaRef[Image.Image]:
    return MediaRef(never, data, DecodeSpec(settings))


def inputs(
    *items: Any,
    uuids: Sequence[str | None] | None = None,
    io: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> ProcessorInputs:
    return ProcessorInputs(
        prompt=[],
        mm_data_items=MultiModalDataParser().parse_mm_data({"image": list(items)}),
        mm_uuid_items=None if uuids is None else {"image": uuids},
        media_io_kwargs={} if io is None else {"image": io},
        hf_processor_mm_kwargs=options or {},
    )


def image_hash(item: Any, uuid: str | None = None, model_id: str = "m", **factors: Any) -> str:
    (mm_hash,) = inputs(item, uuids=[uuid], **factors).get_mm_hashes(model_id)["image"]
    return mm_hash


def test_a_hash_is_over_the_model_the_item_and_its_options() -> None:
    hash_kwargs = partial(MultiModalHasher.hash_kwargs, "blake3")
    item = ref()
    assert image_hash(item) == hash_kwargs(model_id="m", image=item)
    assert image_hash(item, options={"max_pixels": 1}) == hash_kwargs(
        model_id="m", image=item, mm_processor_kwargs={"max_pixels": 1}
    )
    assert not item.is_decoded


@pytest.mark.parametrize("algorithm", ["blake3", "sha256", "sha512"])
def test_the_algorithm_is_the_operators(algorithm: str) -> None:
    item = ref()
    (mm_hash,) = inputs(item).get_mm_hashes("m", algorithm)["image"]
    assert mm_hash == MultiModalHasher.hash_kwargs(algorithm, model_id="m", image=item)


def test_empty_options_do_not_count() -> None:
    item = ref()
    assert image_hash(item) == image_hash(item, options={}) == image_hash(item, io={})
    assert image_hash(item) == image_hash(item, options={"videos_kwargs": {"fps": 1}})
    assert image_hash(item, uuid="u", options={"images_kwargs": {}}) == "u"


def test_decode_options_count_for_what_is_no_ref() -> None:
    picture = Image.new("RGB", (2, 2))
    assert image_hash(ref(), io={"image_mode": "L"}) == image_hash(ref()), "the key has them"
    assert image_hash(ref(mode="L")) != image_hash(ref()), "the key has them"
    assert image_hash(picture, io={"image_mode": "L"}) != image_hash(picture)


def test_what_tells_items_apart() -> None:
    hashes = [
        image_hash(ref()),
        image_hash(ref(b"other")),
        image_hash(ref(), model_id="n"),
        image_hash(ref(), options={"max_pixels": 1}),
        image_hash(ref(), options={"max_pixels": 2}),
        image_hash(ref(), options={"min_pixels": 1}),
        image_hash(Image.new("RGB", (2, 2))),
        image_hash(Image.new("L", (2, 2))),
        image_hash(np.zeros((2, 2, 3), np.uint8)),
        image_hash(np.zeros((2, 2, 4), np.uint8)),
    ]
    assert len(set(hashes)) == len(hashes)


def test_a_uuid_alone_is_used_verbatim() -> None:
    assert image_hash(ref(), uuid="client/7") == "client/7"
    assert image_hash(None, uuid="client/7") == "client/7"


def test_a_uuid_with_options_stands_for_the_media_and_all_options_count() -> None:
    options = {"max_pixels": 1}
    hashed = image_hash(ref(), uuid="u", options=options)
    assert hashed == MultiModalHasher.hash_kwargs(
        "blake3", model_id="m", image="u", mm_processor_kwargs=options
    )
    assert image_hash(ref(b"other"), uuid="u", options=options) == hashed
    assert image_hash(None, uuid="u", options=options) == hashed
    with_io = image_hash(ref(), uuid="u", io={"image_mode": "L"})
    assert with_io == MultiModalHasher.hash_kwargs(
        "blake3", model_id="m", image="u", media_io_kwargs={"image_mode": "L"}
    )
    assert len({hashed, with_io, "u", image_hash(ref(), uuid="v", options=options)}) == 4


def test_items_with_and_without_a_uuid_mix() -> None:
    first, second = ref(b"1"), ref(b"2")
    hashes = inputs(first, second, uuids=[None, "u"]).get_mm_hashes("m")
    assert hashes == {"image": [image_hash(first), "u"]}
    assert inputs(first).get_mm_uuid("image", 0) is None


def test_an_item_without_canonical_bytes_is_an_error() -> None:
    with pytest.raises(TypeError, match="cannot hash"):
        image_hash(ref(), options={"device": object()})


def test_an_item_cannot_be_changed() -> None:
    # A cache shares it: whoever emptied it would empty it for the next request.
    item = MultiModalKwargsItem({"a": MultiModalFieldElem(np.zeros(3), MultiModalBatchedField())})
    for name in ("__setitem__", "__delitem__", "pop", "clear", "update", "setdefault", "popitem"):
        assert not hasattr(item, name)
    item.get_data().clear()
    assert list(item) == ["a"]
    assert len(pickle.loads(pickle.dumps(item))) == 1
    assert "0." not in repr(item)
