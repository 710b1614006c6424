"""The seam to transformers: backends, fingerprints, and which options a processor takes.

Owns how a Hugging Face processor is asked and identified. Must never hand it a string as media,
because such processors download strings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from safelight.foreign import is_array, is_image

__all__ = ["call_image_processor", "fingerprint", "select_kwargs", "tensor_type"]


def tensor_type(processor: Any) -> str:
    """``"np"`` for a processor on Pillow and numpy, ``"pt"`` for one on torchvision."""
    return "np" if getattr(processor, "backend", None) == "pil" else "pt"


def fingerprint(processor: Any, options: Mapping[str, Any]) -> bytes:
    """Return 32 bytes that tell apart processors whose items may differ. The same in every process.

    Of the image processor its class, backend and every resolved setting, because two backends of
    one model differ by up to two levels of uint8; of the whole its class and the tokens that stand
    for media, because an item brings those too; transformers' version and the server's `options`.
    """
    import transformers

    image_processor = processor.image_processor
    description = {
        "processor": _class_name(processor),
        "tokens": {
            name: value
            for name, value in vars(processor).items()
            if name.endswith(("_token", "_token_id")) and isinstance(value, (int, str))
        },
        "image_processor": _class_name(image_processor),
        "backend": tensor_type(image_processor),
        "transformers": transformers.__version__,
        "settings": image_processor.to_dict(),
        "options": dict(options),
    }
    text = json.dumps(description, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).digest()


def _class_name(obj: object) -> str:
    return f"{type(obj).__module__}.{type(obj).__qualname__}"


def _plain(value: Any) -> Any:
    """Return what JSON takes in place of `value`, in an order that all processes agree on."""
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    return value.tolist() if hasattr(value, "tolist") else repr(value)


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
    # Not a list of names: an image processor downloads strings, in nested lists as well.
    if not all(is_image(image) or is_array(image) for image in images):
        raise TypeError("an image processor takes Pillow images, arrays and tensors")
    outputs: Mapping[str, Any] = processor(
        images=images, return_tensors=tensor_type(processor), **select_kwargs(processor, kwargs)
    )
    return outputs
