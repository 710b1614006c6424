"""What a rendered chat looks like: the document, the named tensors, the rows."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from safelight import (
    MultiModalFieldConfig,
    MultiModalInputs,
    MultiModalKwargsItems,
    MultiModalProcessorOnlyCache,
    PlaceholderRange,
    Renderer,
)
from safelight.processing import TimingContext
from safelight.renderer import RenderedChat, RenderedItem
from safelight.report import TABLE_HEADER, describe, named_tensors, table_rows
from tiny_model import Picture, data_url, image_part, make_processor, png

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def renderer() -> Iterator[Renderer]:
    cache = MultiModalProcessorOnlyCache(1 << 20)
    with Renderer(make_processor(), cache=cache) as renderer:
        yield renderer


def chat(*names: str) -> list[dict[str, Any]]:
    parts = [image_part(data_url(png(Picture(name).image())), uuid=name) for name in names]
    return [{"role": "user", "content": ["x", *parts]}]


def rendered(**tensors: Any) -> RenderedChat:
    """A chat of one item with these tensors."""
    config = {name: MultiModalFieldConfig.shared("image", 1) for name in tensors}
    return RenderedChat(
        MultiModalInputs(
            type="multimodal",
            prompt_token_ids=[1, 2],
            mm_kwargs=MultiModalKwargsItems.from_hf_inputs(tensors, config),
            mm_hashes={"image": ["h"]},
            mm_placeholders={"image": [PlaceholderRange(1, 1)]},
            mm_cache_hits={"image": [True]},
        ),
        [RenderedItem("image", 0, "h", "h", None, None, None)],
        TimingContext(),
    )


def test_the_document_is_json_and_in_the_order_of_the_chats(renderer: Renderer) -> None:
    chats = [renderer.render_chat(chat("a", "b")), renderer.render_chat(chat("b"))]
    document = describe(chats)
    assert json.loads(json.dumps(document)) == document
    items = [prompt["items"] for prompt in document["prompts"]]
    assert [[item["hash"] for item in of_prompt] for of_prompt in items] == [["a", "b"], ["b"]]
    assert [[item["cache"] for item in of_prompt] for of_prompt in items] == [
        ["miss", "miss"],
        ["hit"],
    ]
    assert [[item["index"] for item in of_prompt] for of_prompt in items] == [[0, 1], [0]]
    first = items[0][1]
    assert (first["offset"], first["length"]) == (3, 2)
    assert document["prompts"][0]["token_ids"] == chats[0].inputs["prompt_token_ids"]
    assert describe([]) == {"prompts": []}


def digest(tensor: Any) -> dict[str, Any]:
    (item,) = describe([rendered(a=tensor)])["prompts"][0]["items"]
    described: dict[str, Any] = item["tensors"]["a"]
    return described


@pytest.mark.parametrize("dtype", ["<f4", ">f4"])
def test_a_digest_is_over_little_endian_contiguous_bytes(dtype: str) -> None:
    expected = {
        "shape": [2, 2],
        "dtype": "float32",
        "sha256": hashlib.sha256(struct.pack("<4f", 1.5, -2, 3, 4)).hexdigest(),
    }
    array = np.array([[1.5, -2], [3, 4]], dtype)
    assert digest(array) == expected
    assert digest(np.asfortranarray(array)) == expected
    assert digest(array.repeat(2, axis=1)[:, ::2]) == expected


def test_a_digest_of_a_tensor_is_that_of_its_array() -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    array = np.arange(6, dtype=np.int64).reshape(2, 3)
    tensor = torch.from_numpy(array.copy())
    assert digest(tensor) == digest(array)
    assert digest(tensor.t()) == digest(array.T)
    assert digest(tensor)["dtype"] == "int64"


@pytest.mark.parametrize("shape", [(), (0,), (0, 3)])
def test_a_digest_of_next_to_nothing(shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, np.int64)
    assert digest(array) == {
        "shape": list(shape),
        "dtype": "int64",
        "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
    }


def test_what_is_not_known_of_an_item_is_null() -> None:
    (item,) = describe([rendered(a=np.zeros(1))])["prompts"][0]["items"]
    unknown = {name: item[name] for name in ("key", "format", "width", "height", "orientation")}
    assert unknown == dict.fromkeys(unknown)
    assert item["cache"] == "hit"


def test_tensors_are_named_by_their_path_in_the_document(renderer: Renderer) -> None:
    chats = [renderer.render_chat(chat("a", "b")), renderer.render_chat(chat("b"))]
    tensors = named_tensors(chats)
    document = describe(chats)
    for path, array in tensors.items():
        prompts, prompt, items, item, name = path.split(".")
        place = document[prompts][int(prompt)][items][int(item)]["tensors"][name]
        assert place["sha256"] == hashlib.sha256(array.tobytes()).hexdigest()
    assert len(tensors) == 6


def test_rows_are_one_an_item(renderer: Renderer) -> None:
    chats = [renderer.render_chat(chat("a", "b")), rendered(a=np.zeros((1, 2)))]
    rows = list(table_rows(chats))
    assert all(len(row) == len(TABLE_HEADER) for row in rows)
    by_name = [dict(zip(TABLE_HEADER, row, strict=True)) for row in rows]
    assert [row["prompt"] for row in by_name] == ["0", "0", "1"]
    assert by_name[0]["tokens"] == "1+2"
    assert by_name[0]["size"] == "16x8"
    assert by_name[0]["tensors"] == "pixel_values[2,3] block_counts[1]"
    key = chats[0].items[0].key
    assert key is not None
    assert by_name[0]["key"] == key.hex()[:16]
    assert by_name[2] == {
        "prompt": "1",
        "item": "image 0",
        "cache": "hit",
        "format": "?",
        "size": "?",
        "tokens": "1+1",
        "tensors": "a[1,2]",
        "key": "h",
    }
