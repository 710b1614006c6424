"""The Qwen-VL families on the real transformers processors, bit by bit against the plain call."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from functools import cache as cached
from typing import Any

import numpy as np
import pytest
from PIL import Image

from safelight import (
    MULTIMODAL_REGISTRY,
    BaseMultiModalProcessor,
    ImageMediaIO,
    LimitError,
    MediaError,
    MediaRef,
    MultiModalInputs,
    MultiModalProcessorOnlyCache,
    PlaceholderRange,
    ProcessorInputs,
    RequestError,
)
from safelight.processing.loading import demo_processor

transformers = pytest.importorskip("transformers", reason="needs the hf extra")
pytestmark = pytest.mark.timeout(180)

FAMILIES = ["Qwen2VL", "Qwen2_5_VL", "Qwen3VL"]
BACKENDS = ["pil", "torchvision"]
PAD = "<|vision_start|><|image_pad|><|vision_end|>"
CLIP = {
    "patch_size": 14,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "size": {"shortest_edge": 3136, "longest_edge": 12_845_056},
}
HALF = {
    "patch_size": 16,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "size": {"shortest_edge": 65_536, "longest_edge": 16_777_216},
}


@cached
def hf_processor(family: str, backend: str) -> Any:
    """The real processor of a family, with the tokenizer of the embedded default."""
    default = demo_processor()
    settings = {**(HALF if family == "Qwen3VL" else CLIP), "merge_size": 2}
    if backend == "pil":
        image_processor = transformers.Qwen2VLImageProcessorPil(**settings)
    else:
        image_processor = transformers.Qwen2VLImageProcessor(**settings)
    # A subclass without the video part, which would demand torch.
    base = getattr(transformers, f"{family}Processor")
    parts = [name for name in base.get_attributes() if name != "video_processor"]
    cls = type(base.__name__, (base,), {"get_attributes": classmethod(lambda _: parts)})
    return cls(image_processor, default.tokenizer, chat_template=default.chat_template)


def make(family: str, backend: str, **options: Any) -> Any:
    if backend == "torchvision":
        pytest.importorskip("torchvision", reason="needs torch and torchvision")
    return MULTIMODAL_REGISTRY.create_processor(hf_processor(family, backend), **options)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pixels(width: int, height: int, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng([width, height, seed])
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))


def encode(image: Image.Image, image_format: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


def ref(image: Image.Image) -> MediaRef[Image.Image]:
    return ImageMediaIO().load_bytes_ref(encode(image))


def inputs(
    processor: BaseMultiModalProcessor,
    items: Any,
    *,
    count: int | None = None,
    cache: MultiModalProcessorOnlyCache | None = None,
    **kwargs: Any,
) -> ProcessorInputs:
    number = len(items) if count is None else count
    return ProcessorInputs(
        prompt="".join(f"image {n}: {PAD}\n" for n in range(number)),
        mm_data_items=processor.data_parser.parse_mm_data({"image": items}),
        hf_processor_mm_kwargs=kwargs,
        cache=cache,
    )


def plain(processor: Any, images: Sequence[Any], **kwargs: Any) -> Any:
    """The whole processor of transformers over decoded images."""
    hf = processor.info.hf_processor
    text = "".join(f"image {n}: {PAD}\n" for n in range(len(images)))
    kind = "np" if hf.image_processor.backend == "pil" else "pt"
    with warnings.catch_warnings():
        # min_pixels and max_pixels are deprecated there, and go on here.
        warnings.simplefilter("ignore", FutureWarning)
        return hf(text=[text], images=list(images), return_tensors=kind, **kwargs)


def assert_equal(result: MultiModalInputs, expected: Any) -> None:
    """Token ids, tensors and their types are equal, bit by bit, and the ranges fit the tokens."""
    assert result["prompt_token_ids"] == expected["input_ids"][0].tolist()
    tensors = result["mm_kwargs"].get_data()
    assert tensors.keys() == {"pixel_values", "image_grid_thw"}
    for name, data in tensors.items():
        assert type(data) is type(expected[name])
        assert data.dtype == expected[name].dtype
        assert np.array_equal(np.asarray(data), np.asarray(expected[name])), name
    grids = np.asarray(expected["image_grid_thw"])
    lengths = (grids.prod(axis=1) // 4).tolist()
    ranges = result["mm_placeholders"]["image"]
    assert [place.length for place in ranges] == lengths
    covered = [i for place in ranges for i in range(place.offset, place.end)]
    token_ids = np.array(result["prompt_token_ids"])
    (pad,) = {int(token_ids[i]) for i in covered}
    assert np.flatnonzero(token_ids == pad).tolist() == covered


SIZES = [
    [(64, 48)],
    [(32, 32), (70, 70), (64, 48)],
    [(1, 1), (3, 3), (1, 3), (3, 1)],
    [(1, 100), (100, 1), (3, 50), (50, 3), (4, 50)],
    [(500, 19), (19, 500), (200, 1), (1, 200)],
    [(640, 480), (1280, 720)],
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_equals_the_plain_processor(family: str, backend: str, sizes: list[Any]) -> None:
    processor = make(family, backend)
    images = [pixels(*size) for size in sizes]
    expected = plain(processor, images)
    cache = MultiModalProcessorOnlyCache(1 << 30)
    refs = [ref(image) for image in images]
    assert_equal(processor.apply(inputs(processor, refs)), expected)
    for hits in (False, True):
        result = processor.apply(inputs(processor, refs, cache=cache))
        assert result["mm_cache_hits"] == {"image": [hits] * len(sizes)}
        assert_equal(result, expected)


@pytest.mark.parametrize(
    ("size", "qwen2", "qwen3"),
    [
        ((32, 32), (1, 4, 4), (1, 16, 16)),
        ((70, 70), (1, 4, 4), (1, 16, 16)),
        ((640, 480), (1, 34, 46), (1, 30, 40)),
        ((1280, 720), (1, 52, 92), (1, 44, 80)),
        ((3840, 2160), (1, 154, 274), (1, 136, 240)),
    ],
)
def test_grids_are_the_published_ones(
    size: tuple[int, int], qwen2: tuple[int, ...], qwen3: tuple[int, ...]
) -> None:
    image = Image.new("RGB", size)
    for family, grid in (("Qwen2_5_VL", qwen2), ("Qwen3VL", qwen3)):
        processor = make(family, "pil")
        result = processor.apply(inputs(processor, [image]))
        tensors = result["mm_kwargs"]["image"][0].get_data()
        assert tuple(tensors["image_grid_thw"].tolist()) == grid
        assert len(tensors["pixel_values"]) == np.prod(grid)
        (place,) = result["mm_placeholders"]["image"]
        assert place.length == np.prod(grid) // 4


@pytest.mark.parametrize("family", FAMILIES)
def test_hits_and_misses_mix(family: str, backend: str) -> None:
    processor = make(family, backend)
    cache = MultiModalProcessorOnlyCache(1 << 30)
    images = [pixels(60 + 30 * n, 50) for n in range(4)]
    processor.apply(inputs(processor, [ref(images[2]), ref(images[0])], cache=cache))
    result = processor.apply(inputs(processor, [ref(image) for image in images], cache=cache))
    assert result["mm_cache_hits"] == {"image": [True, False, True, False]}
    assert_equal(result, plain(processor, images))


def test_duplicates_are_decoded_and_processed_once(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = make("Qwen3VL", backend)
    calls: list[int] = []
    call = processor._call_hf_processor
    monkeypatch.setattr(
        processor,
        "_call_hf_processor",
        lambda data, kw: calls.append(len(data["images"])) or call(data, kw),
    )
    images = [pixels(64, 64), pixels(90, 64), pixels(64, 64), pixels(64, 64)]
    refs = [ref(image) for image in images]
    cache = MultiModalProcessorOnlyCache(1 << 30)
    result = processor.apply(inputs(processor, refs, cache=cache))
    assert_equal(result, plain(processor, images))
    assert calls == [1, 1]
    assert [item.is_decoded for item in refs] == [True, True, False, False]


@pytest.mark.parametrize("family", FAMILIES)
def test_refs_images_arrays_and_tensors_mix(family: str, backend: str) -> None:
    processor = make(family, backend)
    sizes = [(64, 48), (3, 50), (50, 3), (90, 60), (1, 9)]
    images = [pixels(*size) for size in sizes]
    read_only = np.asarray(images[2])
    assert not read_only.flags.writeable
    items: list[Any] = [
        ref(images[0]),
        images[1],
        read_only,
        np.asarray(images[3]).transpose(2, 0, 1).copy(),
        np.asarray(images[4]).copy(),
    ]
    torch = pytest.importorskip("torch", reason="tensors need torch") if backend != "pil" else None
    if torch is not None:
        items[3] = torch.from_numpy(items[3])
        items[4] = torch.from_numpy(items[4])
    expected = plain(processor, images)
    assert_equal(processor.apply(inputs(processor, items)), expected)
    cache = MultiModalProcessorOnlyCache(1 << 30)
    for _ in range(2):
        assert_equal(processor.apply(inputs(processor, items, cache=cache)), expected)
    assert not read_only.flags.writeable


def test_tensors_on_the_pillow_backend() -> None:
    torch = pytest.importorskip("torch", reason="tensors need torch")
    processor = make("Qwen3VL", "pil")
    images = [pixels(64, 48), pixels(3, 50)]
    items = [torch.from_numpy(np.asarray(image).copy()) for image in images]
    assert_equal(processor.apply(inputs(processor, items)), plain(processor, images))


@pytest.mark.parametrize(
    "options",
    [
        {"size": {"shortest_edge": 1024, "longest_edge": 40_000}},
        {"max_pixels": 20_000},
        {"min_pixels": 500_000},
        {"min_pixels": 1024, "max_pixels": 30_000},
        {"images_kwargs": {"max_pixels": 20_000}},
        {"do_normalize": False},
        {"do_rescale": False, "do_normalize": False},
    ],
    ids=str,
)
def test_options_change_hash_and_result_as_in_the_plain_call(
    backend: str, options: dict[str, Any]
) -> None:
    processor = make("Qwen2_5_VL", backend)
    images = [pixels(300, 200), pixels(200, 300)]
    cache = MultiModalProcessorOnlyCache(1 << 30)
    refs = [ref(image) for image in images]
    before = processor.apply(inputs(processor, refs, cache=cache))
    result = processor.apply(inputs(processor, refs, cache=cache, **options))
    flat = {**options, **options.get("images_kwargs", {})}
    flat.pop("images_kwargs", None)
    assert_equal(result, plain(processor, images, **flat))
    assert result["mm_cache_hits"] == {"image": [False, False]}
    assert not set(result["mm_hashes"]["image"]) & set(before["mm_hashes"]["image"])
    again = processor.apply(inputs(processor, refs, cache=cache, **options))
    assert again["mm_cache_hits"] == {"image": [True, True]}
    assert_equal(again, plain(processor, images, **flat))


def test_the_servers_options_hold_where_the_request_says_nothing(backend: str) -> None:
    processor = make("Qwen3VL", backend, mm_processor_kwargs={"max_pixels": 100_000})
    images = [pixels(640, 480)]
    assert_equal(
        processor.apply(inputs(processor, images)), plain(processor, images, max_pixels=100_000)
    )
    assert_equal(
        processor.apply(inputs(processor, images, max_pixels=70_000)),
        plain(processor, images, max_pixels=70_000),
    )


@pytest.mark.parametrize("seed", range(3))
def test_drawn_sizes_equal_the_plain_processor(backend: str, seed: int) -> None:
    processor = make("Qwen2VL", backend)
    rng = np.random.default_rng(seed)
    images = [pixels(int(w), int(h), seed) for w, h in rng.integers(1, 180, (8, 2))]
    refs = [ref(image) for image in images]
    cache = MultiModalProcessorOnlyCache(1 << 30)
    assert_equal(processor.apply(inputs(processor, refs, cache=cache)), plain(processor, images))


def test_turned_and_transparent_images_are_what_eager_decoding_gives(backend: str) -> None:
    processor = make("Qwen3VL", backend)
    exif = Image.Exif()
    exif[0x0112] = 6
    alpha = pixels(80, 60).convert("RGBA")
    alpha.putalpha(Image.linear_gradient("L").resize((80, 60)))
    payloads = [
        encode(pixels(120, 40), "JPEG", exif=exif),
        encode(alpha),
        encode(pixels(60, 60).quantize(16), "GIF"),
    ]
    media_io = ImageMediaIO()
    images = [media_io.load_bytes(payload) for payload in payloads]
    assert images[0].size == (40, 120)
    refs = [media_io.load_bytes_ref(payload) for payload in payloads]
    assert_equal(processor.apply(inputs(processor, refs)), plain(processor, images))


# --- refusals ---


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [(1, 201), (201, 1), (2, 401), (5000, 1)], ids=str)
def test_an_aspect_ratio_over_200_is_refused_from_the_header(
    family: str, size: tuple[int, int]
) -> None:
    processor = make(family, "pil")
    good, thin = ref(pixels(8, 8)), ref(Image.new("RGB", size))
    with pytest.raises(LimitError) as caught:
        processor.apply_phase1(inputs(processor, [good, thin]))
    width, height = size
    assert str(caught.value) == f"image 1: image is {width}x{height}, over aspect ratio 200"
    assert caught.value.limit == 200
    assert caught.value.actual is not None
    assert caught.value.actual > 200
    assert not good.is_decoded
    assert not thin.is_decoded
    with pytest.raises(LimitError):
        processor.apply_phase1(inputs(processor, [Image.new("RGB", size)]))


def test_the_aspect_ratio_is_the_upright_images() -> None:
    processor = make("Qwen3VL", "pil")
    exif = Image.Exif()
    exif[0x0112] = 6
    payload = encode(Image.new("RGB", (402, 2)), "JPEG", exif=exif)
    with pytest.raises(LimitError, match="2x402"):
        processor.apply_phase1(inputs(processor, [ImageMediaIO().load_bytes_ref(payload)]))


def test_the_processors_own_refusal_comes_with_the_index(backend: str) -> None:
    processor = make("Qwen3VL", backend)
    items = [ref(pixels(64, 64)), ref(pixels(65, 64))]
    with pytest.raises(MediaError) as caught:
        processor.apply(inputs(processor, items, do_resize=False))
    assert str(caught.value) == "image 1: the model's processor cannot process it"
    # A ref whose header tells nothing is judged after it is decoded.
    blind: MediaRef[Image.Image] = MediaRef(lambda: Image.new("RGB", (1, 300)), b"x")
    with pytest.raises(MediaError, match=r"^image 1: "):
        processor.apply(inputs(processor, [items[0], blind]))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"patch_size": 100_000}, "patch_size is 16"),
        ({"patch_size": "16"}, "patch_size is 16"),
        ({"temporal_patch_size": 1 << 30}, "temporal_patch_size is 2"),
        ({"merge_size": 1}, "merge_size is 2"),
        ({"images_kwargs": {"merge_size": 0}}, "merge_size is 2"),
        ({"min_pixels": 1 << 40}, "min_pixels is over the model's max_pixels 16777216"),
        ({"min_pixels": float("inf")}, "min_pixels is over the model's max_pixels 16777216"),
        (
            {"size": {"shortest_edge": 1 << 40, "longest_edge": 1 << 50}},
            "min_pixels is over the model's max_pixels 16777216",
        ),
        ({"device": "cuda"}, "device is not a request's to set"),
        ({"return_tensors": "pt"}, "return_tensors is not a request's to set"),
    ],
    ids=str,
)
def test_a_request_cannot_make_more_of_an_image_than_it_is(
    options: dict[str, Any], text: str
) -> None:
    processor = make("Qwen3VL", "pil")
    image = ref(pixels(8, 8))
    with pytest.raises(RequestError, match=text):
        processor.apply_phase1(inputs(processor, [image], **options))
    assert not image.is_decoded


def test_what_a_request_repeats_of_the_model_is_no_harm() -> None:
    processor = make("Qwen3VL", "pil", mm_processor_kwargs={"max_pixels": 1 << 20})
    options = {"patch_size": 16, "merge_size": 2, "min_pixels": 1 << 20}
    image = pixels(40, 40)
    result = processor.apply(inputs(processor, [image], **options))
    assert_equal(result, plain(processor, [image], min_pixels=1 << 20, max_pixels=1 << 20))
    with pytest.raises(RequestError, match="over the model's max_pixels 1048576"):
        processor.apply_phase1(inputs(processor, [image], min_pixels=(1 << 20) + 1))


@pytest.mark.parametrize(
    "options",
    [
        {"size": "large"},
        {"size": {"shortest_edge": "x"}},
        {"max_pixels": "x"},
        {"size": {}},
        {"size": [1]},
    ],
    ids=str,
)
def test_options_of_another_type_are_an_error_of_ours(
    backend: str, options: dict[str, Any]
) -> None:
    processor = make("Qwen3VL", backend)
    with pytest.raises(MediaError, match=r"^image 0: the model's processor cannot process it$"):
        processor.apply(inputs(processor, [pixels(8, 8)], **options))


@pytest.mark.parametrize("text", ["<|image_pad|>", PAD])
def test_a_user_cannot_write_a_placeholder(text: str) -> None:
    processor = make("Qwen3VL", "pil")
    image = pixels(32, 32)
    for items, found in (([], 1), ([image], 2)):
        request = inputs(processor, items)
        request = ProcessorInputs(f"{request.prompt}{text}", request.mm_data_items)
        with pytest.raises(RequestError) as caught:
            processor.apply(request)
        assert str(caught.value) == (
            f"the prompt has {found} image placeholders for {len(items)} image items"
        )


def test_a_user_cannot_write_a_video_either() -> None:
    processor = make("Qwen3VL", "pil")
    for items in ([], [pixels(32, 32)]):
        request = inputs(processor, items)
        request = ProcessorInputs(f"{request.prompt}<|video_pad|>", request.mm_data_items)
        with pytest.raises(RequestError, match="1 video placeholders for 0 video items"):
            processor.apply(request)


# --- embeddings ---


def embeddings(backend: str, grids: list[list[int]], tokens: int | None = None) -> dict[str, Any]:
    count = sum(int(np.prod(grid)) // 4 for grid in grids) if tokens is None else tokens
    data: dict[str, Any] = {
        "image_embeds": np.arange(count * 8, dtype=np.float32).reshape(count, 8),
        "image_grid_thw": np.array(grids, np.int64),
    }
    if backend != "pil":
        torch = pytest.importorskip("torch", reason="needs torch")
        data = {name: torch.from_numpy(array) for name, array in data.items()}
    return data


@pytest.mark.parametrize("with_cache", [False, True])
def test_embeddings_with_their_grids_go_past_the_processor(backend: str, with_cache: bool) -> None:
    processor = make("Qwen2_5_VL", backend)
    cache = MultiModalProcessorOnlyCache(1 << 30) if with_cache else None
    data = embeddings(backend, [[1, 4, 4], [1, 2, 6]])
    result = processor.apply(inputs(processor, data, count=2, cache=cache))
    merged = result["mm_kwargs"].get_data()
    assert merged.keys() == data.keys()
    for name, tensor in merged.items():
        assert type(tensor) is type(data[name])
        assert np.array_equal(np.asarray(tensor), np.asarray(data[name]))
    first, second = result["mm_placeholders"]["image"]
    assert (first.length, second.length) == (4, 3)
    assert len(set(result["mm_hashes"]["image"])) == 2
    assert result["mm_cache_hits"] == {"image": [False, False]}
    again = processor.apply(inputs(processor, data, count=2, cache=cache))
    assert again["mm_hashes"] == result["mm_hashes"]


@pytest.mark.parametrize(
    ("grids", "tokens"),
    [
        ([[1, 4, 4]], 5),
        ([[1, 4, 4]], 3),
        ([[1, 4, 4], [1, -2, -2]], 5),
        ([[1, 4, -4]], 4),
        ([[1, 0, 4]], 0),
        ([[1, 1, 1]], 0),
        ([[1, 1, 4]], 1),
        ([[-1, -4, 4]], 4),
        ([[4, 4]], 4),
        ([[1, 1, 4, 4]], 4),
        ([[1 << 40, 1 << 20, 4]], 4),
    ],
    ids=str,
)
def test_grids_that_do_not_fit_are_refused(
    backend: str, grids: list[list[int]], tokens: int
) -> None:
    processor = make("Qwen2VL", backend)
    with pytest.raises(RequestError):
        inputs(processor, embeddings(backend, grids, tokens), count=len(grids))


def test_embeddings_of_another_form_are_refused(backend: str) -> None:
    processor = make("Qwen2VL", backend)
    data = embeddings(backend, [[1, 4, 4]])
    for name in data:
        with pytest.raises(RequestError, match=f"lack {name}"):
            inputs(processor, {key: data[key] for key in data if key != name}, count=1)
    for grids in (data["image_grid_thw"] * 1.0, data["image_grid_thw"][0], "1,4,4", [[1, 4, 4]]):
        with pytest.raises(RequestError):
            inputs(processor, {**data, "image_grid_thw": grids}, count=1)
    with pytest.raises(RequestError, match="must come with their image_grid_thw"):
        processor.apply_phase1(inputs(processor, [data["image_embeds"]]))


def test_a_range_covers_the_pad_tokens_only() -> None:
    processor = make("Qwen3VL", "pil")
    result = processor.apply(inputs(processor, [pixels(32, 32)]))
    hf = processor.info.hf_processor
    (place,) = result["mm_placeholders"]["image"]
    token_ids = result["prompt_token_ids"]
    assert place == PlaceholderRange(place.offset, 64)
    assert token_ids[place.offset - 1] == hf.vision_start_token_id
    assert token_ids[place.end] == hf.vision_end_token_id
