"""Recognizes the objects of libraries that this process may not have imported.

Owns the one idea behind it: whoever made an instance has imported its class, so a module that is
not in ``sys.modules`` has no instances. Must never import these libraries.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["is_array", "is_image", "is_plain_tensor", "is_tensor", "loaded_torch"]


def is_image(obj: object) -> TypeGuard[Image.Image]:
    """Whether `obj` is a Pillow image."""
    return _is_instance(obj, "PIL.Image", "Image")


def is_tensor(obj: object) -> bool:
    """Whether `obj` is a torch tensor."""
    return _is_instance(obj, "torch", "Tensor")


def is_array(obj: object) -> bool:
    """Whether `obj` is a numpy array or a torch tensor."""
    return isinstance(obj, np.ndarray) or is_tensor(obj)


def is_plain_tensor(tensor: Any) -> bool:
    """Whether a torch tensor has one number in memory for each element, as numpy's arrays do."""
    return (
        tensor.layout is loaded_torch().strided
        and not tensor.is_nested
        and not tensor.is_quantized
        and not tensor.is_meta
    )


def loaded_torch() -> Any:
    """The torch module, for those who hold a tensor and so know that it is loaded."""
    return sys.modules["torch"]


def _is_instance(obj: object, module: str, name: str) -> bool:
    cls = getattr(sys.modules.get(module), name, None)
    return isinstance(cls, type) and isinstance(obj, cls)
