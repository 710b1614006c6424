"""The seam to transformers: backends, fingerprints, and which options a processor takes.

Owns how a Hugging Face processor is asked and identified. Must never hand it a string as media,
because such processors download strings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["call_image_processor", "fingerprint", "select_kwargs", "tensor_type"]


def tensor_type(processor: Any) -> str:
    """``"np"`` for a processor on Pillow and numpy, ``"pt"`` for one on torchvision."""
    return "np" if getattr(processor, "backend", None) == "pil" else "pt"


def fingerprint(processor: Any, options: Mapping[str, Any]) -> bytes:
    """Return 32 bytes that tell apart processors whose outputs may differ.

    Class, backend, transformers' version, every resolved setting and the server's `options`: two
    backends of one model differ by up to two levels of uint8.
    """
    import transformers

    description = {
        "class": f"{type(processor).__module__}.{type(processor).__qualname__}",
        "backend": tensor_type(processor),
        "transformers": transformers.__version__,
        "settings": processor.to_dict(),
        "options": dict(options),
    }
    text = json.dumps(description, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).digest()


def select_kwargs(processor: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that `processor` declares; the rest of a request is for its kin."""
    declared = getattr(type(processor), "valid_kwargs", None)
    known = getattr(declared, "__required_keys__", frozenset()) | getattr(
        declared, "__optional_keys__", frozenset()
    )
    return {name: value for name, value in kwargs.items() if name in known}


def call_image_processor(
    processor: Any, images: list[Any], kwargs: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Process decoded images, Pillow's or uint8 arrays, with the image processor alone.

    Returns:
        numpy arrays for the Pillow backend, torch tensors for the torchvision one.
    """
    if any(isinstance(image, (str, bytes)) for image in images):
        raise TypeError("an image processor would download a string; hand it decoded images")
    outputs: Mapping[str, Any] = processor(
        images=images, return_tensors=tensor_type(processor), **select_kwargs(processor, kwargs)
    )
    return outputs
