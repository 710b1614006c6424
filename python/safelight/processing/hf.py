"""The interface to transformers: backends, fingerprints, and which options a processor takes.

Owns how a Hugging Face processor is asked and identified. Must never hand it a string as media,
because such processors download strings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from safelight.foreign import is_array, is_image

__all__ = ["call_image_processor", "class_name", "fingerprint", "select_kwargs", "tensor_type"]

# transformers' names of what processes media in a processor.
_MEDIA_PARTS = ("image_processor", "video_processor", "feature_extractor", "audio_processor")


def tensor_type(processor: Any) -> str:
    """``"np"`` for a processor on Pillow and numpy, ``"pt"`` for one on torchvision."""
    return "np" if getattr(processor, "backend", None) == "pil" else "pt"


def fingerprint(processor: Any, factors: Mapping[str, Any]) -> bytes:
    """Return 32 bytes that tell apart processors whose items may differ. The same in every process.

    Of each part that processes media (images, videos, audio) its class, backend and every resolved
    setting, because two backends of one model differ by up to two levels of uint8; of the whole its
    class and plain attributes, which name the tokens that an item brings; of the tokenizer its
    class and size; transformers' version; and `factors`, whatever else the caller knows.
    """
    import transformers

    parts = {name: getattr(processor, name, None) for name in _MEDIA_PARTS}
    parts = {name: part for name, part in parts.items() if part is not None}
    if not parts and hasattr(processor, "to_dict"):
        # A feature extractor or an image processor that stands alone.
        parts = {"processor": processor}
    tokenizer = getattr(processor, "tokenizer", None)
    description = {
        "processor": class_name(processor),
        "attributes": {
            name: value
            for name, value in vars(processor).items()
            if isinstance(value, (int, float, str))
            and not name.startswith("_")
            and name != "chat_template"  # it makes prompts, not items
        },
        "parts": {name: _describe_part(part) for name, part in parts.items()},
        "tokenizer": tokenizer and [class_name(tokenizer), getattr(tokenizer, "vocab_size", None)],
        "transformers": transformers.__version__,
        "factors": dict(factors),
    }
    text = json.dumps(description, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).digest()


def _describe_part(part: Any) -> dict[str, Any]:
    settings = part.to_dict() if hasattr(part, "to_dict") else vars(part)
    return {"class": class_name(part), "backend": tensor_type(part), "settings": settings}


def class_name(obj: object) -> str:
    """The name of an object's class with its module."""
    return f"{type(obj).__module__}.{type(obj).__qualname__}"


def _plain(value: Any) -> Any:
    """Return what JSON takes in place of `value`, in an order that all processes agree on."""
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if hasattr(value, "tolist"):
        return value.tolist()
    # A repr may hold an address, which no two processes agree on.
    text = repr(value)
    return class_name(value) if " at 0x" in text else text


def select_kwargs(processor: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that `processor` declares; the rest is for its siblings."""
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
