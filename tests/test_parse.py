"""Parsing: every form of media as items, two views, selections, sizes without decoding."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from safelight import ImageMediaIO, MediaRef, RequestError
from safelight.inputs import MultiModalFieldConfig
from safelight.parse import (
    DictEmbeddingItems,
    EmbeddingItems,
    ImageEmbeddingItems,
    ImageProcessorItems,
    ImageSize,
    MultiModalDataItems,
    MultiModalDataParser,
    ProcessorBatchItems,
)


def must_not_decode() -> Any:
    pytest.fail("the decoder was called")


def ref_of(width: int, height: int) -> MediaRef[Any]:
    return MediaRef(must_not_decode, b"x", header=SimpleNamespace(upright_size=(width, height)))


def parse(data: Any, **options: Any) -> Any:
    return MultiModalDataParser(**options).parse_mm_data({"image": data}).get("image")


def jpeg(size: tuple[int, int], orientation: int = 1) -> bytes:
    image = Image.radial_gradient("L").resize(size)
    image.getexif()[0x0112] = orientation
    stream = io.BytesIO()
    image.save(stream, "JPEG", exif=image.getexif())
    return stream.getvalue()


RGB = np.zeros((4, 6, 3), np.uint8)
IMAGE = Image.new("RGB", (6, 4))


# --- what becomes what ---


def test_items_of_every_form_mix() -> None:
    ref = ref_of(7, 5)
    items = parse([ref, IMAGE, RGB, None])
    assert type(items) is ImageProcessorItems
    assert len(items) == items.get_count() == 4
    for index, item in enumerate([ref, IMAGE, RGB, None]):
        assert items.get_raw(index) is item
    assert not ref.is_decoded


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (IMAGE, 1),
        (RGB, 1),
        (ref_of(1, 1), 1),
        (None, 1),
        ([IMAGE], 1),
        ((IMAGE, IMAGE), 2),
        (np.zeros((5, 4, 6, 3), np.uint8), 5),
        (np.zeros((3, 4, 6), np.float32), 1),
    ],
)
def test_one_item_or_several(data: Any, count: int) -> None:
    items = parse(data)
    assert type(items) is ImageProcessorItems
    assert items.get_count() == count


@pytest.mark.parametrize("data", [[], (), np.zeros((0, 4, 6, 3), np.uint8)])
def test_a_modality_without_items_is_left_out(data: Any) -> None:
    assert MultiModalDataParser().parse_mm_data({"image": data}) == {}


def test_tensors_are_images_or_embeddings() -> None:
    torch = pytest.importorskip("torch")
    assert type(parse(torch.zeros(3, 4, 6, dtype=torch.uint8))) is ImageProcessorItems
    assert type(parse(torch.zeros(2, 3, 4, 6))) is ImageProcessorItems
    assert type(parse([torch.zeros(3, 4, 6), IMAGE])) is ImageProcessorItems
    assert type(parse(torch.zeros(2, 5, 8))) is ImageEmbeddingItems
    assert type(parse([torch.zeros(5, 8), torch.zeros(7, 8)])) is ImageEmbeddingItems
    assert parse(torch.zeros(0, 5, 8)) is None


@pytest.mark.parametrize(
    "text", ["", "http://a/b.png", "/etc/passwd", b"\x89PNG", bytearray(b"x"), memoryview(b"x")]
)
@pytest.mark.parametrize("wrap", [lambda text: text, lambda text: [IMAGE, text]])
def test_texts_and_payloads_are_never_forwarded(text: Any, wrap: Callable[[Any], Any]) -> None:
    # A processor would download a text, or read it from the disk.
    with pytest.raises(RequestError, match="ref") as caught:
        parse(wrap(text))
    assert "passwd" not in str(caught.value)


@pytest.mark.parametrize(
    "data", [5, object(), {1}, [object()], [[IMAGE]], iter([IMAGE]), np.zeros((4, 6)), np.zeros(4)]
)
def test_what_is_no_image_is_refused_by_type(data: Any) -> None:
    with pytest.raises(RequestError, match="image") as caught:
        parse(data)
    assert "0x" not in str(caught.value)


def test_the_index_of_a_refused_item_is_told() -> None:
    with pytest.raises(RequestError, match="image 2"):
        parse([IMAGE, RGB, "text"])


@pytest.mark.parametrize("modality", ["images", "", "hologram" * 100, None, 3, ("image",)])
def test_an_unknown_modality_is_refused(modality: Any) -> None:
    with pytest.raises(RequestError, match="image") as caught:
        MultiModalDataParser().parse_mm_data({modality: [IMAGE]})
    assert len(str(caught.value)) < 200


def test_a_parser_of_a_model_adds_modalities() -> None:
    class Parser(MultiModalDataParser):
        def _get_subparsers(self) -> Mapping[str, Any]:
            return {**super()._get_subparsers(), "sketch": lambda data: _Sketches(data, "sketch")}

    items = Parser().parse_mm_data({"sketch": [1, 2], "image": IMAGE})
    assert items.get_all_counts() == {"sketch": 2, "image": 1}
    assert items["sketch"].get_processor_data() == {"sketchs": [1, 2]}


class _Sketches(ProcessorBatchItems[int]):
    pass


# --- the two views ---


def test_the_views_of_a_ref_are_the_media_and_the_ref() -> None:
    ref = MediaRef(lambda: IMAGE, b"x")
    items = parse([ref])
    assert items.get_raw(0) is ref
    assert not ref.is_decoded
    assert items.get(0) is items[0] is IMAGE
    assert list(items) == items.get_all() == [IMAGE]
    assert items.get_processor_data() == {"images": [IMAGE]}
    assert items.get_passthrough_data() == {}


def test_lists_are_fresh() -> None:
    data = [IMAGE]
    items = parse(data)
    data.append(IMAGE)
    items.get_all().append(IMAGE)
    items.get_processor_data()["images"].append(IMAGE)
    assert items.get_count() == 1


@pytest.mark.parametrize(
    "look",
    [
        repr,
        len,
        lambda items: items.get_count(),
        lambda items: items.get_raw(0),
        lambda items: items.select([1, 0]).select([0]),
        lambda items: items.map_raw(lambda raw: raw.fork()),
        lambda items: items.get_image_size(1),
        lambda items: items.get_original_index(1),
        lambda items: items.get_passthrough_data(),
        lambda items: MultiModalDataItems(image=items).get_all_counts(),
        lambda items: MultiModalDataItems(image=items).select({"image": [1]}),
    ],
)
def test_looking_at_items_decodes_none(look: Callable[[Any], Any]) -> None:
    look(parse([ref_of(1, 2), ref_of(3, 4)]))


def test_a_failing_decode_propagates_and_spares_its_siblings() -> None:
    def fail() -> Any:
        raise OSError("broken")

    items = parse([MediaRef(fail, b"x"), MediaRef(lambda: IMAGE, b"y")])
    with pytest.raises(OSError, match="broken"):
        items.get(0)
    assert items.get(1) is IMAGE


def test_arrays_are_handed_on_writable() -> None:
    # torch warns at memory that it must not write to, and warnings are errors here.
    torch = pytest.importorskip("torch")
    readonly = RGB.copy()
    readonly.flags.writeable = False
    items = parse([readonly, RGB, MediaRef(lambda: readonly, b"x")])
    assert [image.flags.writeable for image in items] == [True] * 3
    assert items.get_raw(0) is readonly
    assert items.get(1) is RGB
    for image in items:
        torch.from_numpy(image)


def test_what_a_models_own_decoder_makes_is_handed_on_as_it_is() -> None:
    assert parse([MediaRef(lambda: b"encoded", b"x")]).get(0) == b"encoded"


# --- sizes ---


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_size_is_the_headers_after_turning_upright(orientation: int) -> None:
    ref = ImageMediaIO().load_bytes_ref(jpeg((12, 5), orientation))
    items = parse(ref)
    size = items.get_image_size(0)
    assert not ref.is_decoded
    assert size == ((12, 5) if orientation < 5 else (5, 12))
    assert size == ImageSize(*items.get(0).size)
    assert (size.width, size.height) == size


def test_a_ref_whose_header_told_nothing_is_decoded_for_its_size() -> None:
    ref = MediaRef(lambda: IMAGE, b"x")
    assert parse(ref).get_image_size(0) == (6, 4)
    assert ref.is_decoded
    resized = ref_of(100, 100).map(lambda _: IMAGE)
    assert parse(resized).get_image_size(0) == (100, 100)
    # Settings may have changed the size, so the header no longer holds.
    changed = MediaRef(lambda: IMAGE, b"x", header=SimpleNamespace(upright_size=(9, 9)))
    halved = changed.map(lambda image: image.resize((3, 2)), scale=0.5)
    assert parse(halved).get_image_size(0) == (3, 2)


SHAPES = [
    ((4, 6, 3), (6, 4)),
    ((4, 6, 1), (6, 4)),
    ((4, 6, 4), (6, 4)),
    ((3, 4, 6), (6, 4)),
    ((1, 4, 6), (6, 4)),
    # One and three pixels high or wide.
    ((1, 1000, 3), (1000, 1)),
    ((1000, 1, 3), (1, 1000)),
    ((3, 50, 3), (50, 3)),
    ((50, 3, 3), (3, 50)),
    ((1, 1, 3), (1, 1)),
    ((3, 3, 3), (3, 3)),
    ((3, 1, 50), (50, 1)),
    ((3, 3, 50), (50, 3)),
]


@pytest.mark.parametrize(("shape", "size"), SHAPES)
def test_sizes_of_arrays_and_tensors(shape: tuple[int, ...], size: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")
    array = np.zeros(shape, np.uint8)
    items = parse([array, torch.from_numpy(array), MediaRef(lambda: array, b"x")])
    assert [items.get_image_size(index) for index in range(3)] == [size] * 3


@pytest.mark.parametrize(("shape", "size"), [case for case in SHAPES if 4 not in case[0][::2]])
def test_a_processor_reads_the_same_size(shape: tuple[int, ...], size: tuple[int, int]) -> None:
    image_utils = pytest.importorskip("transformers.image_utils")
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    image = parse(array).get(0)
    layout = image_utils.infer_channel_dimension_format(image)
    assert image_utils.get_image_size(image, layout) == size[::-1]
    last = image if layout == image_utils.ChannelDimension.LAST else image.transpose(1, 2, 0)
    is_last = shape[-1] in (1, 3)
    assert np.array_equal(last, array if is_last else array.transpose(1, 2, 0))


def test_an_item_without_media_has_no_size() -> None:
    with pytest.raises(RequestError, match="image 1 has no media"):
        parse([IMAGE, None]).get_image_size(1)
    with pytest.raises(RequestError, match="image 1 has no media"):
        parse([IMAGE, None]).select([1]).get_image_size(0)


# --- selections ---


@given(st.data())
def test_selections_of_selections_know_where_they_came_from(data: st.DataObject) -> None:
    refs = [ref_of(index + 1, 1) for index in range(data.draw(st.integers(1, 6)))]
    items, expected = parse(refs), list(range(len(refs)))
    for _ in range(data.draw(st.integers(0, 4))):
        if not expected:
            break
        places = st.lists(st.integers(0, len(expected) - 1), max_size=6)
        chosen = data.draw(places)
        items, expected = items.select(chosen), [expected[place] for place in chosen]
    assert type(items) is ImageProcessorItems
    assert items.get_count() == len(expected)
    for index, original in enumerate(expected):
        assert items.get_raw(index) is refs[original]
        assert items.get_original_index(index) == original
        assert items.get_image_size(index) == (original + 1, 1)


def test_a_selection_leaves_the_whole_alone() -> None:
    items = parse([IMAGE, RGB, None])
    items.select([2])
    assert items.get_count() == 3
    assert items.get_original_index(2) == 2
    assert items.modality == items.select([]).modality == "image"


@pytest.mark.parametrize("index", [3, 100, -4])
def test_places_that_are_not_there_are_refused(index: int) -> None:
    items = parse([IMAGE, RGB, None])
    for call in (items.get, items.get_raw, items.get_original_index):
        with pytest.raises(IndexError):
            call(index)
    with pytest.raises(IndexError):
        items.select([index])


def test_a_selection_keeps_what_a_subclass_adds() -> None:
    class Captioned(ImageProcessorItems):
        def __init__(self, data: Sequence[Any], captions: Sequence[str]) -> None:
            super().__init__(data)
            self.captions = captions

        def _set_selection(self, indices: Sequence[int]) -> None:
            super()._set_selection(indices)
            self.captions = [self.captions[index] for index in indices]

    items = Captioned([IMAGE, RGB], ["a", "b"]).select([1])
    assert type(items) is Captioned
    assert items.captions == ["b"]
    assert items.get(0) is RGB


def test_raw_items_are_mapped_into_items_of_their_own() -> None:
    refs = [ref_of(1, 1), ref_of(2, 2)]
    items = parse([*refs, IMAGE]).select([2, 1])
    forked = items.map_raw(lambda raw: raw.fork() if isinstance(raw, MediaRef) else raw)
    forked.get_raw(1).release()
    assert refs[1].data == b"x"
    assert items.get_raw(1) is refs[1]
    assert [forked.get_original_index(index) for index in range(2)] == [2, 1]
    assert type(forked) is ImageProcessorItems


# --- embeddings ---


def test_embeddings_go_around_the_processor() -> None:
    torch = pytest.importorskip("torch")
    batch = torch.arange(80.0).reshape(2, 5, 8)
    items = parse(batch, expected_hidden_size=8)
    assert (items.get_count(), items.get_feature_size(1)) == (2, 5)
    assert torch.equal(items.get(1), batch[1])
    assert items.get_processor_data() == {}
    assert items.get_passthrough_data()["image_embeds"] is batch
    selected = items.select([1, 0, 1]).select([1, 2])
    assert torch.equal(selected.get_passthrough_data()["image_embeds"], batch[[0, 1]])
    assert [selected.get_original_index(index) for index in range(2)] == [0, 1]
    assert selected.map_raw(must_not_decode).get_count() == 2
    assert items.select([]).get_count() == 0


def test_embeddings_in_a_list_may_differ_in_tokens() -> None:
    torch = pytest.importorskip("torch")
    embeddings = [torch.zeros(5, 8), torch.ones(7, 8)]
    items = parse(embeddings).select([1])
    assert items.get_raw(0) is embeddings[1]
    assert items.get_feature_size(0) == 7
    assert items.get_passthrough_data() == {"image_embeds": [embeddings[1]]}
    arrays = parse([np.zeros((5, 8), np.float32)])
    assert type(arrays) is ImageEmbeddingItems


def hostile_tensor(name: str) -> Any:
    torch = pytest.importorskip("torch")
    embeddings = torch.zeros(2, 5, 8)
    match name:
        case "sparse":
            return embeddings.to_sparse()
        case "huge and sparse":
            places, ones = torch.zeros(3, 1, dtype=torch.int64), torch.ones(1)
            return torch.sparse_coo_tensor(places, ones, (1, 2**31, 8), check_invariants=True)
        case "huge and broadcast":
            return embeddings[:1, :1].expand(2**20, 2**20, 8)
        case "overlapping":
            return embeddings.as_strided((2, 60, 8), (1, 1, 1))
        case "without data":
            return embeddings.to("meta")
        case "of another hidden size":
            return torch.zeros(2, 5, 9)
        case "without tokens":
            return embeddings[:, :0]
        case _:
            return embeddings.to(torch.complex64)


@pytest.mark.parametrize(
    "name",
    [
        "sparse",
        "huge and sparse",
        "huge and broadcast",
        "overlapping",
        "without data",
        "of another hidden size",
        "without tokens",
        "complex",
    ],
)
def test_hostile_embeddings_are_refused(name: str) -> None:
    with pytest.raises(RequestError, match="image"):
        ImageEmbeddingItems(hostile_tensor(name), expected_hidden_size=8)


@pytest.mark.parametrize(
    "name", ["sparse", "huge and sparse", "huge and broadcast", "without data"]
)
def test_hostile_tensors_are_refused_whatever_they_are_taken_for(name: str) -> None:
    tensor = hostile_tensor(name)
    for data in (tensor, [tensor], tensor.to(int) if name == "sparse" else [IMAGE, tensor]):
        with pytest.raises(RequestError, match="image"):
            parse(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.zeros((5, 8), np.float32), "items, tokens, hidden"),
        ([np.zeros((2, 5, 8), np.float32)], "tokens, hidden"),
        (np.zeros((2, 5, 8), np.int64), "floats"),
        (np.zeros((2, 5, 8), object), "dense"),
        (np.broadcast_to(np.float32(0), (2, 5, 8)), "dense"),
        (["text"], "cannot be a str"),
    ],
)
def test_embeddings_have_shape_and_type(data: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        EmbeddingItems(data, "image")


def grid_fields(data: Mapping[str, Any]) -> Mapping[str, Any]:
    sizes = [int(np.prod(np.asarray(grid))) for grid in data["image_grid_thw"]]
    return {
        "image_embeds": MultiModalFieldConfig.flat_from_sizes("image", sizes),
        "image_grid_thw": MultiModalFieldConfig.batched("image"),
    }


def dict_items(data: Mapping[str, Any]) -> DictEmbeddingItems:
    return DictEmbeddingItems(data, "image", {"image_embeds", "image_grid_thw"}, grid_fields)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_named_tensors_are_split_selected_and_merged_together(kind: str) -> None:
    data: dict[str, Any] = {
        "image_embeds": np.arange(80, dtype=np.float32).reshape(10, 8),
        "image_grid_thw": np.array([[1, 2, 2], [1, 1, 2], [1, 2, 2]]),
        "other": np.zeros(3),
    }
    if kind == "torch":
        torch = pytest.importorskip("torch")
        data = {name: torch.from_numpy(array) for name, array in data.items()}
    items = dict_items(data)
    assert items.get_count() == 3
    assert np.array_equal(items.get(1)["image_embeds"], data["image_embeds"][4:6])
    assert items.get_processor_data() == {}
    whole = items.get_passthrough_data()
    # What has no layout could not be told apart by item, and is left out.
    assert whole.keys() == {"image_embeds", "image_grid_thw"}
    assert all(whole[name] is data[name] for name in whole)
    selected = items.select([2, 1])
    assert type(selected) is DictEmbeddingItems
    assert selected.get_count() == 2
    passed = selected.get_passthrough_data()
    rows = np.asarray(data["image_embeds"])[[6, 7, 8, 9, 4, 5]]
    assert np.array_equal(passed["image_embeds"], rows)
    assert np.array_equal(passed["image_grid_thw"], np.asarray(data["image_grid_thw"])[[2, 1]])
    assert len(items.select([]).get_passthrough_data()["image_embeds"]) == 0
    assert selected.get_original_index(0) == 2
    assert items.get_count() == 3


GRID = np.array([[1, 2, 2]])


@pytest.mark.parametrize(
    "data",
    [
        {"image_embeds": np.zeros((4, 8))},
        {"image_embeds": np.zeros((5, 8)), "image_grid_thw": GRID},
        {"image_embeds": np.zeros((0, 8)), "image_grid_thw": np.zeros((0, 3), int)},
        {"image_embeds": np.zeros((4, 8)), "image_grid_thw": np.array([[1, 2, -2]])},
        {"image_embeds": np.zeros((4, 8)), "image_grid_thw": np.array(5)},
        {"image_embeds": np.zeros((4, 8)), "image_grid_thw": "text"},
        {"image_embeds": None, "image_grid_thw": GRID},
        {"image_embeds": np.broadcast_to(0.0, (4, 8)), "image_grid_thw": GRID},
    ],
)
def test_named_tensors_that_do_not_fit_are_refused(data: Mapping[str, Any]) -> None:
    with pytest.raises(RequestError, match="image"):
        dict_items(data)


def test_a_layout_that_was_forgotten_is_a_fault_of_the_model() -> None:
    with pytest.raises(ValueError, match="no layout for image_grid_thw") as caught:
        DictEmbeddingItems({"image_grid_thw": GRID}, "image", {"image_grid_thw"}, lambda _: {})
    assert not isinstance(caught.value, RequestError)


def test_named_tensors_need_a_model_that_takes_them() -> None:
    with pytest.raises(RequestError, match="dict"):
        parse({"image_embeds": np.zeros((4, 8))})


# --- all modalities ---


def test_items_by_modality() -> None:
    items = MultiModalDataParser().parse_mm_data({"image": [IMAGE, RGB]})
    assert items.get_count("image") == 2
    assert items.get_all_counts() == {"image": 2}
    assert items.get_count("video", strict=False) == 0
    assert items.get_items("image", ImageProcessorItems) is items["image"]
    assert items.get_items("image", (ImageEmbeddingItems, ImageProcessorItems)) is items["image"]
    with pytest.raises(KeyError, match="video"):
        items.get_count("video")
    with pytest.raises(KeyError, match="image"):
        items.get_items("video", ImageProcessorItems)
    with pytest.raises(TypeError, match="ImageProcessorItems"):
        items.get_items("image", ImageEmbeddingItems)


def test_selecting_by_modality_leaves_out_what_is_empty() -> None:
    items = MultiModalDataParser().parse_mm_data({"image": [IMAGE, RGB]})
    selected = items.select({"image": [1]})
    assert selected.get_all_counts() == {"image": 1}
    assert selected["image"].get_original_index(0) == 1
    assert items.select({"image": []}) == {}
    assert items.select({}) == {}


def test_equal_refs_in_one_request_are_items_of_their_own() -> None:
    ref = ref_of(1, 1)
    items = parse([ref, ref])
    assert items.get_count() == 2
    assert items.get_raw(0) is items.get_raw(1) is ref
