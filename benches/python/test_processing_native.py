"""Image processors in Rust against transformers' own, array in, one thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from comparison import Comparison
from safelight import image_processor
from safelight._safelight import resize

torch = pytest.importorskip("torch")

ONE_MP, TWELVE_MP = (1024, 1024), (3000, 4000)


def photo_like(shape: tuple[int, int]) -> Any:
    noise = np.random.default_rng(0).integers(0, 256, (shape[0] // 4, shape[1] // 4, 3), np.uint8)
    return np.array(Image.fromarray(noise).resize(shape[::-1], Image.Resampling.BICUBIC))


def build(family: str, backend: str) -> Any:
    from transformers import models

    suffix = "Pil" if backend == "pil" else ""
    module = {"Qwen2VL": models.qwen2_vl, "CLIP": models.clip, "Siglip": models.siglip}[family]
    return getattr(module, f"{family}ImageProcessor{suffix}")()


def is_same(ours: Any, theirs: Any) -> bool:
    return all(np.array_equal(ours[key], theirs[key]) for key in theirs)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("family", "backend", "shape", "target"),
    [
        ("Qwen2VL", "pil", ONE_MP, 6.5),
        ("Qwen2VL", "torchvision", ONE_MP, 2.5),
        ("Qwen2VL", "pil", TWELVE_MP, 8.0),
        ("Qwen2VL", "torchvision", TWELVE_MP, 4.5),
        ("CLIP", "pil", ONE_MP, 6.0),
        ("CLIP", "torchvision", ONE_MP, 1.7),
    ],
)
def test_process(
    compare: Comparison, family: str, backend: str, shape: tuple[int, int], target: float
) -> None:
    hf = build(family, backend)
    native = image_processor(hf)
    assert native.is_native
    image = photo_like(shape)
    compare(
        f"process, {family} {shape[0] * shape[1] // 10**6} MP ({backend})",
        ours=lambda: native(images=image, return_tensors="np"),
        baseline=lambda: hf(images=image, return_tensors="np"),
        target=target,
        equal=is_same,
    )


def test_process_to_uint8(compare: Comparison) -> None:
    hf = build("Qwen2VL", "torchvision")
    native = image_processor(hf, pixel_form="uint8")
    image = photo_like(ONE_MP)
    compare(
        "process, Qwen2VL 1 MP to uint8 (torchvision)",
        ours=lambda: native(images=image, return_tensors="np"),
        baseline=lambda: hf(
            images=image, return_tensors="np", do_rescale=False, do_normalize=False
        ),
        target=2.5,
        equal=is_same,
    )


@pytest.mark.parametrize(("backend", "target"), [("pil", 5.0), ("torchvision", 2.5)])
def test_resize(compare: Comparison, backend: str, target: float) -> None:
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional

    image = photo_like(ONE_MP)
    picture = Image.fromarray(image)
    planes = torch.from_numpy(image).permute(2, 0, 1).contiguous()

    def theirs() -> Any:
        if backend == "pil":
            return np.asarray(picture.resize((980, 980), Image.Resampling.BICUBIC))
        resized = functional.resize(planes, [980, 980], InterpolationMode.BICUBIC)
        return resized.permute(1, 2, 0).numpy()

    compare(
        f"resize, bicubic 1 MP ({backend})",
        ours=lambda: np.asarray(resize(image, image.shape, (980, 980), "bicubic", backend)),
        baseline=theirs,
        target=target,
        equal=np.array_equal,
    )
