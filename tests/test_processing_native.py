"""`image_processor` returns what transformers' own returns: keys, shapes, dtypes and bytes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from PIL import Image

from safelight import ConfigurationError, LimitError, image_processor
from safelight.errors import HeaderError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers.models.clip.image_processing_clip import CLIPImageProcessor  # noqa: E402
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil  # noqa: E402
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (  # noqa: E402
    Qwen2VLImageProcessorPil,
)
from transformers.models.qwen2_vl.image_processing_qwen2_vl import (  # noqa: E402
    Qwen2VLImageProcessor,
)
from transformers.models.siglip.image_processing_pil_siglip import (  # noqa: E402
    SiglipImageProcessorPil,
)
from transformers.models.siglip.image_processing_siglip import SiglipImageProcessor  # noqa: E402

HALVES: dict[str, Any] = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
QWEN3: dict[str, Any] = {
    **HALVES,
    "patch_size": 16,
    "size": {"shortest_edge": 65_536, "longest_edge": 16_777_216},
}
CLASSES: dict[str, tuple[Any, Any]] = {
    "qwen": (Qwen2VLImageProcessor, Qwen2VLImageProcessorPil),
    "clip": (CLIPImageProcessor, CLIPImageProcessorPil),
    "siglip": (SiglipImageProcessor, SiglipImageProcessorPil),
}
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "qwen": [{}, QWEN3, {"do_normalize": False, "temporal_patch_size": 1, "patch_size": 12}],
    "clip": [
        {},
        {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 335}},
        {"do_rescale": False, "resample": 1},
    ],
    "siglip": [{}, {"size": {"height": 384, "width": 370}}, {"resample": 2, "do_normalize": False}],
}
CASES = [
    (name, settings, backend)
    for name, variants in SETTINGS.items()
    for settings in variants
    for backend in (0, 1)
]


def build(name: str, settings: dict[str, Any], backend: int) -> Any:
    return CLASSES[name][backend](**copy.deepcopy(settings))


def draw_picture(rng: np.random.Generator, largest: int) -> Image.Image:
    """An image of a drawn size and mode, its sides at most a hundred apart."""
    width, height = (int(np.exp(rng.uniform(np.log(8), np.log(largest)))) for _ in "wh")
    width, height = max(width, height // 100 + 1), max(height, width // 100 + 1)
    mode = str(rng.choice(["RGB", "RGB", "L", "RGBA", "P", "CMYK"]))
    noise = rng.integers(0, 256, (height // 3 + 1, width // 3 + 1, 4), np.uint8)
    picture = Image.fromarray(noise).resize((width, height), Image.Resampling.BILINEAR)
    if mode == "RGBA":
        return picture
    return picture.convert("RGB").convert(mode)


def assert_same(made: Any, expected: Any, what: object) -> None:
    assert list(made.keys()) == list(expected.keys()), what
    for key in expected:
        ours, theirs = made[key], expected[key]
        assert type(ours) is type(theirs), (what, key)
        assert ours.dtype == theirs.dtype, (what, key)
        assert ours.shape == theirs.shape, (what, key)
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        assert ours.tobytes() == np.ascontiguousarray(theirs).tobytes(), (what, key)


def compare(name: str, settings: dict[str, Any], backend: int, cases: int, largest: int) -> None:
    hf = build(name, settings, backend)
    native = image_processor(hf)
    assert native.is_native
    rng = np.random.default_rng(cases)
    for case in range(cases):
        pictures = [draw_picture(rng, largest) for _ in range(1 + case % 2)]
        kind = ("np", "pt")[case % 3 == 0]
        expected = hf(images=pictures, return_tensors=kind)
        assert_same(native(pictures, return_tensors=kind), expected, (name, settings, case))
        for picture in pictures[:1]:
            alone = hf(images=picture, return_tensors="np")
            layout = native.layout(*picture.size)
            shapes = dict(layout.shapes)
            assert (
                shapes["pixel_values"]
                == (alone["pixel_values"].shape[1 if layout.grid is None else 0 :])
            )
            if layout.grid is not None:
                assert layout.grid == tuple(alone["image_grid_thw"][0])


@pytest.mark.parametrize(("name", "settings", "backend"), CASES)
def test_outputs_are_those_of_transformers(
    name: str, settings: dict[str, Any], backend: int
) -> None:
    compare(name, settings, backend, cases=4, largest=700)


@pytest.mark.soak
@pytest.mark.parametrize(("name", "settings", "backend"), CASES)
def test_outputs_are_those_of_transformers_at_length(
    name: str, settings: dict[str, Any], backend: int
) -> None:
    compare(name, settings, backend, cases=300, largest=3_000)


@pytest.mark.parametrize("backend", [0, 1])
@pytest.mark.parametrize("name", CLASSES)
def test_arrays_and_tensors_are_read_as_by_transformers(name: str, backend: int) -> None:
    hf = build(name, {}, backend)
    native = image_processor(hf)
    rng = np.random.default_rng(5)
    for shape in [
        (60, 70, 3),
        (3, 60, 70),
        (1, 60, 70),
        (60, 70),
        (4, 60, 70),
        (60, 70, 4),
        (4, 100, 3),
    ]:
        array = rng.integers(0, 256, shape, np.uint8)
        for image in (array, torch.from_numpy(array), array[:, ::-1].copy()):
            try:
                expected = hf(images=image, return_tensors="np")
            except Exception as error:  # whatever it raises is raised for ours too
                with pytest.raises(type(error)):
                    native(image, return_tensors="np")
            else:
                assert_same(native(image, return_tensors="np"), expected, shape)
    floats = rng.random((3, 60, 70), np.float32)
    expected = hf(images=floats, return_tensors="np", do_rescale=False)
    assert_same(native(floats, return_tensors="np", do_rescale=False), expected, "floats")


@pytest.mark.parametrize("backend", [0, 1])
def test_options_of_a_call_replace_settings(backend: int) -> None:
    hf = build("qwen", {}, backend)
    native = image_processor(hf)
    picture = draw_picture(np.random.default_rng(6), 500)
    for options in [
        {"size": {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 20}},
        {"do_rescale": False, "do_normalize": False},
        {"resample": 2},
        {"do_resize": False, "images": Image.new("RGB", (56, 84))},
    ]:
        images = options.pop("images", picture)
        expected = hf(images=images, return_tensors="np", **options)
        assert_same(native(images, return_tensors="np", **options), expected, options)


@pytest.mark.parametrize("backend", [0, 1])
@pytest.mark.parametrize(
    ("name", "settings"), [("qwen", {}), ("qwen", QWEN3), ("clip", {}), ("siglip", {})]
)
def test_uint8_expands_to_the_floats(name: str, settings: dict[str, Any], backend: int) -> None:
    hf = build(name, settings, backend)
    native = image_processor(hf, pixel_form="uint8")
    pictures = [draw_picture(np.random.default_rng(seed), 400) for seed in (7, 8)]
    for kind in ("np", "pt"):
        small = native(pictures, return_tensors=kind)
        plain = hf(images=pictures, return_tensors=kind, do_rescale=False, do_normalize=False)
        assert np.asarray(small["pixel_values"]).dtype == np.uint8
        assert np.array_equal(small["pixel_values"], plain["pixel_values"])
        expected = hf(images=pictures, return_tensors=kind)
        assert_same(native.expand(small), expected, name)
        alone = native.expand(small["pixel_values"])
        assert np.array_equal(alone, expected["pixel_values"])
        alone[0] = 0  # fresh and writable


def test_settings_that_change_after_wrapping_are_followed() -> None:
    hf = build("siglip", {}, 1)
    native = image_processor(hf)
    hf.image_mean = (0.1, 0.2, 0.3)
    picture = Image.new("RGB", (30, 40), (9, 200, 100))
    expected = hf(images=picture, return_tensors="np")
    assert_same(native(picture, return_tensors="np"), expected, "changed")
    hf.do_resize = False
    assert not native.is_native


def test_what_is_not_understood_is_left_to_transformers() -> None:
    class Custom(Qwen2VLImageProcessorPil):  # type: ignore[misc]
        pass

    assert not image_processor(Custom()).is_native
    for name, settings in [
        ("clip", {"do_center_crop": False}),
        ("clip", {"crop_size": {"height": 300, "width": 300}}),
        ("siglip", {"do_convert_rgb": False}),
        ("siglip", {"resample": 5}),
        ("siglip", {"image_mean": [0.5, 0.5]}),
    ]:
        native = image_processor(build(name, settings, 1))
        assert not native.is_native, settings
        with pytest.raises(ConfigurationError):
            native.layout(10, 10)
    assert not image_processor(build("siglip", {"resample": 0}, 0)).is_native
    with pytest.raises(ConfigurationError):
        image_processor(Custom(), pixel_form="uint8")
    with pytest.raises(ConfigurationError):
        image_processor(Custom(), pixel_form="int4")


def test_an_unproven_version_is_left_to_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    from safelight.processing.native import declaration

    monkeypatch.setattr(declaration, "version", lambda _name: "99.0.0")
    declaration._is_proven.cache_clear()
    try:
        assert not image_processor(build("qwen", {}, 1)).is_native
    finally:
        declaration._is_proven.cache_clear()


@pytest.mark.parametrize("name", CLASSES)
def test_strings_are_no_images(name: str) -> None:
    native = image_processor(build(name, {}, 1))
    for images in ("http://127.0.0.1/a.png", ["a.png"], [[b"x"]], None, 3):
        with pytest.raises(TypeError, match="takes Pillow images"):
            native(images, return_tensors="np")


def test_an_impossible_size_is_a_limit_before_any_pixel() -> None:
    native = image_processor(build("qwen", {}, 1))
    with pytest.raises(LimitError, match="aspect ratio 200"):
        native.layout(1, 201)
    with pytest.raises(LimitError):
        native(Image.new("RGB", (201, 1)), return_tensors="np")
    with pytest.raises(LimitError):
        native.layout(0, 5)


def test_what_is_no_output_does_not_expand() -> None:
    native = image_processor(build("qwen", {}, 1))
    with pytest.raises(TypeError):
        native.expand(np.zeros((2, 1176), np.float32))
    with pytest.raises(HeaderError):
        native.expand(np.zeros((2, 1177), np.uint8))


def test_a_wrapped_processor_stands_where_the_other_stood() -> None:
    hf = build("qwen", {}, 1)
    native = image_processor(hf)
    assert native.merge_size == hf.merge_size
    assert native.size == hf.size
    twin = pickle.loads(pickle.dumps(native))
    picture = Image.new("RGB", (50, 60))
    assert_same(twin(picture, return_tensors="np"), hf(picture, return_tensors="np"), "pickled")
