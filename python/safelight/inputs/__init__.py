"""Plain values that travel between the layers: fields, items, placeholders, prompt updates."""

from safelight.inputs.fields import (
    MultiModalFieldConfig,
    MultiModalFieldElem,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
)
from safelight.inputs.place import ItemPlace
from safelight.inputs.placeholders import PlaceholderRange
from safelight.inputs.prompt_updates import PromptUpdateDetails, ResolvedPromptUpdate
from safelight.inputs.text import check_uuid, is_text

__all__ = [
    "ItemPlace",
    "MultiModalFieldConfig",
    "MultiModalFieldElem",
    "MultiModalKwargsItem",
    "MultiModalKwargsItems",
    "PlaceholderRange",
    "PromptUpdateDetails",
    "ResolvedPromptUpdate",
    "check_uuid",
    "is_text",
]
