"""Plain values that travel between the layers: requests, fields, items, placeholders."""

from safelight.inputs.fields import (
    MultiModalFieldConfig,
    MultiModalFieldElem,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
)
from safelight.inputs.placeholders import PlaceholderRange
from safelight.inputs.request import (
    MultiModalHashes,
    MultiModalInputs,
    ProcessorInputs,
    is_text,
    scope_mm_kwargs,
)

__all__ = [
    "MultiModalFieldConfig",
    "MultiModalFieldElem",
    "MultiModalHashes",
    "MultiModalInputs",
    "MultiModalKwargsItem",
    "MultiModalKwargsItems",
    "PlaceholderRange",
    "ProcessorInputs",
    "is_text",
    "scope_mm_kwargs",
]
