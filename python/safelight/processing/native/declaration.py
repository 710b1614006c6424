"""What a native image processor is made of, read from the settings of transformers' own.

Owns which classes, settings and versions are understood. Must never guess: what is not understood
has no declaration, and transformers itself runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from safelight.processing.hf import tensor_type

__all__ = ["Declaration", "declare"]

# The versions whose arithmetic was compared, byte for byte.
_PROVEN = {"transformers": "5.24.", "pillow": "13.0."}
_PROVEN_TORCHVISION = {**_PROVEN, "torch": "2.15.", "torchvision": "0.29."}

# Pillow's numbers of filters. torch has no box for images of uint8, and which sample is nearest to
# a tie depends on how its loops were compiled.
_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box"}
_TORCH_FILTERS = {number: _FILTERS[number] for number in (1, 2, 3)}

# Settings that a family's steps read, and those that change no value on a CPU.
_READ = frozenset(
    "do_convert_rgb do_resize size resample do_rescale rescale_factor do_normalize image_mean "
    "image_std".split()
)
_HARMLESS = frozenset(
    "default_to_square disable_grouping input_data_format return_tensors image_seq_length".split()
)


@dataclass(frozen=True)
class Declaration:
    """The arguments of the native processor, and the shape of what it returns."""

    geometry: tuple[tuple[str, Any], ...]
    filter: str
    backend: str
    rescale_factor: float | None
    mean_and_std: tuple[tuple[float, ...], tuple[float, ...]] | None
    # torchvision leaves levels as they are where nothing is computed; so does Pillow's backend,
    # unless the family makes patches.
    is_float: bool


def declare(hf: Any, settings: Mapping[str, Any]) -> Declaration | None:
    """Return the declaration of transformers' `hf` with all of its resolved `settings`, if any."""
    cls = type(hf)
    name = cls.__name__.removesuffix("Pil")
    family = _FAMILIES.get(name)
    backend = "pil" if tensor_type(hf) == "np" else "torchvision"
    if family is None or not cls.__module__.startswith("transformers.models."):
        return None
    if not _is_proven(backend):
        return None
    geometry = family(settings)
    common = _common(settings, backend)
    unread = settings.keys() - _READ - _HARMLESS - (geometry or {}).keys() - _EXTRA[name]
    if geometry is None or common is None or any(settings[key] for key in unread):
        return None
    normalizes = common["rescale_factor"] is not None or common["mean_and_std"] is not None
    return Declaration(
        geometry=tuple(geometry.items()),
        backend=backend,
        is_float=normalizes or ("patch" in geometry and backend == "pil"),
        **common,
    )


def _common(settings: Mapping[str, Any], backend: str) -> dict[str, Any] | None:
    """Filter and arithmetic, or None where they are not understood."""
    resample = settings["resample"]
    if resample is None:
        resample = 2  # what both backends take in its place
    filters = _FILTERS if backend == "pil" else _TORCH_FILTERS
    name = filters.get(int(resample)) if isinstance(resample, int) else None
    factor, mean_and_std = None, None
    if settings["do_rescale"]:
        factor = settings["rescale_factor"]
        if not isinstance(factor, (int, float)) or factor <= 0:
            return None
    if settings["do_normalize"]:
        mean, std = (_channels(settings[key]) for key in ("image_mean", "image_std"))
        if mean is None or std is None or 0 in std:
            return None
        mean_and_std = mean, std
    if name is None or not (settings["do_resize"] and settings["do_convert_rgb"]):
        return None
    return {"filter": name, "rescale_factor": factor, "mean_and_std": mean_and_std}


def _channels(values: Any) -> tuple[float, ...] | None:
    """Three numbers, or None for anything else."""
    if not isinstance(values, (list, tuple)) or len(values) != 3:
        return None
    if not all(isinstance(value, (int, float)) for value in values):
        return None
    return tuple(float(value) for value in values)


def _edges(size: Any, *names: str) -> list[int] | None:
    """The values of `size`, if it has these names and no other."""
    given = {name: value for name, value in dict(size or {}).items() if value is not None}
    if given.keys() != set(names) or not all(type(value) is int for value in given.values()):
        return None
    return [given[name] for name in names]


def _patches(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    edges = _edges(settings["size"], "shortest_edge", "longest_edge")
    names = {"patch": "patch_size", "merge": "merge_size", "copies": "temporal_patch_size"}
    geometry = {name: settings[key] for name, key in names.items()}
    if edges is None or not all(type(value) is int for value in geometry.values()):
        return None
    return {**geometry, "min_pixels": edges[0], "max_pixels": edges[1]}


def _crop(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    if not settings["do_center_crop"]:
        return None
    edges = _edges(settings["size"], "shortest_edge")
    crop = _edges(settings["crop_size"], "width", "height")
    # Around an image that is smaller than its crop the backends pad in different ways.
    if edges is None or crop is None or max(crop) > edges[0]:
        return None
    return {"edge": edges[0], "crop": tuple(crop)}


def _fixed(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    size = _edges(settings["size"], "width", "height")
    return None if size is None else {"size": tuple(size)}


_FAMILIES: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any] | None]] = {
    "CLIPImageProcessor": _crop,
    "Qwen2VLImageProcessor": _patches,
    "SiglipImageProcessor": _fixed,
}
# Settings that a family's geometry reads besides the common ones.
_EXTRA = {
    "CLIPImageProcessor": frozenset(("do_center_crop", "crop_size")),
    "Qwen2VLImageProcessor": frozenset(("patch_size", "merge_size", "temporal_patch_size")),
    "SiglipImageProcessor": frozenset[str](),
}


@cache
def _is_proven(backend: str) -> bool:
    """Whether what is installed here is what was compared."""
    versions = _PROVEN if backend == "pil" else _PROVEN_TORCHVISION
    try:
        if not all(version(name).startswith(prefix) for name, prefix in versions.items()):
            return False
    except PackageNotFoundError:
        return False
    if backend == "pil":
        return True
    import torch

    # Without these, torch resizes in float32, or rounds an output of one column otherwise.
    return torch.backends.cpu.get_cpu_capability() in {"AVX2", "AVX512"}
