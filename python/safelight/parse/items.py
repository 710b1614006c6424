"""Items of one modality, and of all modalities of a request: the two views and their selection.

Owns what every modality shares. `get` is the media, as a model's processor takes it; `get_raw` is
what the request holds, a ref where it was fetched. Must never decode to count, select or hash.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

from safelight.ref import MediaRef

__all__ = ["ModalityDataItems", "MultiModalDataItems", "ProcessorBatchItems"]

T = TypeVar("T")
Item = TypeVar("Item")
Items = TypeVar("Items", bound="ModalityDataItems[Any, Any]")


class ModalityDataItems(ABC, Generic[T, Item]):
    """The items of one modality in the order of the request.

    Attributes:
        data: What the items are made of.
        modality: Name of the modality.
    """

    def __init__(self, data: T, modality: str) -> None:
        self.data = data
        self.modality = modality
        # Positions in the request of the items of a selection; None for a whole request.
        self._original_indices: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return self.get_count()

    def __getitem__(self, index: int) -> Item:
        return self.get(index)

    def __iter__(self) -> Iterator[Item]:
        return (self.get(index) for index in range(self.get_count()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(modality={self.modality!r}, len={len(self)})"

    @abstractmethod
    def get_count(self) -> int:
        """The number of items."""

    @abstractmethod
    def get(self, index: int) -> Item:
        """The media of an item, as a model's processor takes it; decodes a ref."""

    def get_raw(self, index: int) -> object:
        """An item as the request holds it; a ref stays a ref."""
        return self.get(index)

    def get_all(self) -> list[Item]:
        """The media of all items, in a fresh list; decodes refs."""
        return list(self)

    def get_original_index(self, index: int) -> int:
        """The position in the request of an item of this selection."""
        original = self._original_indices
        return range(self.get_count())[index] if original is None else original[index]

    def select(self, indices: Sequence[int]) -> Self:
        """Return the items at `indices`, in that order, as items of the same class.

        Nothing is parsed, checked or decoded again: raw refs and metadata are this object's.
        """
        selection = copy.copy(self)
        selection._original_indices = tuple(map(self.get_original_index, indices))
        selection._set_selection(indices)
        return selection

    def map_raw(self, transform: Callable[[Any], Any]) -> Self:
        """Return the same items over ``transform(raw)`` for each raw item.

        Items that are never refs, embeddings, stay as they are.
        """
        del transform
        return copy.copy(self)

    @abstractmethod
    def _set_selection(self, indices: Sequence[int]) -> None:
        """Narrow a shallow copy to `indices`; must not change what it shares with the whole."""

    @abstractmethod
    def get_processor_data(self) -> Mapping[str, object]:
        """What to pass to the model's processor, by its argument names; decodes refs."""

    @abstractmethod
    def get_passthrough_data(self) -> Mapping[str, object]:
        """What to pass to the model itself, around its processor."""


class ProcessorBatchItems(ModalityDataItems[Sequence[Any], Item]):
    """Items in a list, which a model's processor takes as ``{modality}s``."""

    def get_count(self) -> int:
        """The number of items."""
        return len(self.data)

    def get(self, index: int) -> Item:
        """The media of an item; decodes a ref. None where only a UUID stands for it."""
        raw = self.data[index]
        media: Item = raw.decode() if isinstance(raw, MediaRef) else raw
        return media

    def get_raw(self, index: int) -> object:
        """An item as the request holds it; a ref stays a ref."""
        return self.data[index]

    def map_raw(self, transform: Callable[[Any], Any]) -> Self:
        """Return the same items over ``transform(raw)`` for each raw item."""
        mapped = copy.copy(self)
        mapped.data = [transform(raw) for raw in self.data]
        return mapped

    def _set_selection(self, indices: Sequence[int]) -> None:
        self.data = [self.data[index] for index in indices]

    def get_processor_data(self) -> Mapping[str, object]:
        """The media of all items under ``{modality}s``; decodes refs."""
        return {f"{self.modality}s": self.get_all()}

    def get_passthrough_data(self) -> Mapping[str, object]:
        """Nothing: all goes through the processor."""
        return {}


class MultiModalDataItems(UserDict[str, ModalityDataItems[Any, Any]]):
    """The items of a request by modality."""

    def get_count(self, modality: str, *, strict: bool = True) -> int:
        """The number of items of a modality; 0 for an absent one if not `strict`.

        Raises:
            KeyError: The modality is absent, and `strict`.
        """
        if modality not in self and not strict:
            return 0
        return self.get_items(modality, ModalityDataItems).get_count()

    def get_all_counts(self) -> dict[str, int]:
        """The number of items of each modality."""
        return {modality: items.get_count() for modality, items in self.items()}

    def get_items(self, modality: str, typ: type[Items] | tuple[type[Items], ...]) -> Items:
        """The items of a modality, which must be of class `typ`.

        Raises:
            KeyError: The modality is absent.
            TypeError: The items are of another class.
        """
        if modality not in self:
            raise KeyError(f"no {modality} items, there are {', '.join(self) or 'none'}")
        items = self[modality]
        if not isinstance(items, typ):
            raise TypeError(f"{modality} items are {type(items).__name__}")
        return items

    def select(self, indices: Mapping[str, Sequence[int]]) -> MultiModalDataItems:
        """Return the items at `indices` of each modality; modalities without any are left out."""
        return MultiModalDataItems(
            {
                modality: self[modality].select(chosen)
                for modality, chosen in indices.items()
                if chosen
            }
        )
