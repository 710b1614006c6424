"""Field layouts: how a processor's tensors are split into items and merged again.

Owns the three layouts (batched, flat, shared) and the values made of them. Items are shared
between requests and read-only; lists are fresh. Works on numpy arrays and torch tensors alike and
imports neither torch nor a processor.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import UserDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = [
    "BaseMultiModalField",
    "MultiModalBatchedField",
    "MultiModalFieldConfig",
    "MultiModalFieldElem",
    "MultiModalFlatField",
    "MultiModalKwargsItem",
    "MultiModalKwargsItems",
    "MultiModalSharedField",
    "nested_nbytes",
    "owned",
]

# A numpy array, a torch tensor, or a plain value that every item shares.
NestedTensors = Any


class BaseMultiModalField(ABC):
    """How one tensor of a processor's output belongs to items."""

    @abstractmethod
    def split(self, data: NestedTensors) -> Sequence[NestedTensors]:
        """Return the data of each item; views where the layout allows."""

    @abstractmethod
    def merge(self, batch: Sequence[NestedTensors]) -> NestedTensors:
        """Return the data of all items as the processor would have given it."""


@dataclass(frozen=True)
class MultiModalBatchedField(BaseMultiModalField):
    """One row an item: shape ``[items, ...]`` is split along the first axis."""

    def split(self, data: NestedTensors) -> Sequence[NestedTensors]:
        """Return row after row."""
        return [data[i] for i in range(len(data))]

    def merge(self, batch: Sequence[NestedTensors]) -> NestedTensors:
        """Stack rows of one shape; rows of different shapes stay a list."""
        if len({tuple(row.shape) for row in batch}) > 1:
            return list(batch)
        return _stack(batch)


@dataclass(frozen=True)
class MultiModalFlatField(BaseMultiModalField):
    """Items end to end along the first axis, `sizes[i]` rows each."""

    sizes: tuple[int, ...]

    def split(self, data: NestedTensors) -> Sequence[NestedTensors]:
        """Return each item's run of rows.

        Raises:
            ValueError: The sizes do not add up to the rows, or one is negative.
        """
        if min(self.sizes, default=0) < 0:
            raise ValueError("sizes must not be negative")
        if sum(self.sizes) != len(data):
            raise ValueError(f"sizes add up to {sum(self.sizes)}, but there are {len(data)} rows")
        runs, start = [], 0
        for size in self.sizes:
            runs.append(data[start : start + size])
            start += size
        return runs

    def merge(self, batch: Sequence[NestedTensors]) -> NestedTensors:
        """Concatenate the runs."""
        return _concatenate(batch)


@dataclass(frozen=True)
class MultiModalSharedField(BaseMultiModalField):
    """One value that all items of a call share."""

    count: int

    def split(self, data: NestedTensors) -> Sequence[NestedTensors]:
        """Return the value once an item."""
        return [data] * self.count

    def merge(self, batch: Sequence[NestedTensors]) -> NestedTensors:
        """Return the value itself."""
        return batch[0]


@dataclass(frozen=True)
class MultiModalFieldConfig:
    """The layout of one named tensor, and the modality whose items it describes."""

    field: BaseMultiModalField
    modality: str

    @staticmethod
    def batched(modality: str) -> MultiModalFieldConfig:
        """One row an item."""
        return MultiModalFieldConfig(MultiModalBatchedField(), modality)

    @staticmethod
    def flat_from_sizes(modality: str, sizes: Sequence[int]) -> MultiModalFieldConfig:
        """Items end to end, `sizes[i]` rows each."""
        return MultiModalFieldConfig(MultiModalFlatField(tuple(map(int, sizes))), modality)

    @staticmethod
    def shared(modality: str, batch_size: int) -> MultiModalFieldConfig:
        """One value for all `batch_size` items."""
        return MultiModalFieldConfig(MultiModalSharedField(batch_size), modality)


@dataclass(frozen=True, eq=False)
class MultiModalFieldElem:
    """One item's share of one named tensor, with the layout to merge it by."""

    data: NestedTensors
    field: BaseMultiModalField


class MultiModalKwargsItem(Mapping[str, MultiModalFieldElem]):
    """What a model takes for one item: named elements.

    Shared between requests by way of a cache, so there is no way to change one.
    """

    __slots__ = ("_elems",)

    def __init__(self, elems: Mapping[str, MultiModalFieldElem]) -> None:
        self._elems = dict(elems)

    def __getitem__(self, name: str) -> MultiModalFieldElem:
        return self._elems[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._elems)

    def __len__(self) -> int:
        return len(self._elems)

    def __repr__(self) -> str:
        return f"MultiModalKwargsItem({', '.join(self)})"

    def get_data(self) -> dict[str, NestedTensors]:
        """The tensors by name."""
        return {name: elem.data for name, elem in self.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of storage that the tensors hold alive."""
        return sum(nested_nbytes(elem.data) for elem in self.values())


class MultiModalKwargsItems(UserDict[str, "list[MultiModalKwargsItem]"]):
    """The items of a request by modality, in the order of the request."""

    @staticmethod
    def from_hf_inputs(
        hf_inputs: Mapping[str, NestedTensors], config_by_key: Mapping[str, MultiModalFieldConfig]
    ) -> MultiModalKwargsItems:
        """Split a processor's output into items.

        Names without a layout, or absent from the output, are left out.

        Raises:
            ValueError: Two tensors of a modality disagree about the number of items.
        """
        elements: dict[str, dict[str, list[MultiModalFieldElem]]] = {}
        for name, config in config_by_key.items():
            data = hf_inputs.get(name)
            if data is None:
                continue
            elements.setdefault(config.modality, {})[name] = [
                MultiModalFieldElem(part, config.field) for part in config.field.split(data)
            ]
        items = MultiModalKwargsItems()
        for modality, by_name in elements.items():
            counts = {name: len(elems) for name, elems in by_name.items()}
            if len(set(counts.values())) > 1:
                raise ValueError(f"fields of {modality} disagree about the items: {counts}")
            items[modality] = [
                MultiModalKwargsItem(dict(zip(by_name, elems, strict=True)))
                for elems in zip(*by_name.values(), strict=True)
            ]
        return items

    def get_data(self) -> dict[str, NestedTensors]:
        """Merge all items into the keyword arguments of one model call."""
        merged: dict[str, NestedTensors] = {}
        for items in self.values():
            for name in items[0] if items else ():
                elems = [item[name] for item in items]
                merged[name] = elems[0].field.merge([elem.data for elem in elems])
        return merged

    def iter_items(self) -> Iterator[MultiModalKwargsItem]:
        """All items, modality by modality."""
        for items in self.values():
            yield from items


def nested_nbytes(value: NestedTensors) -> int:
    """Bytes of storage that `value` keeps alive.

    A view counts the whole array behind it, because that is what stays in memory.
    """
    if isinstance(value, np.ndarray):
        base = value
        while isinstance(base.base, np.ndarray):
            base = base.base
        return int(base.nbytes)
    if hasattr(value, "untyped_storage"):
        return int(value.untyped_storage().nbytes())
    if isinstance(value, Mapping):
        return sum(map(nested_nbytes, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(nested_nbytes, value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return len(value)
    return sys.getsizeof(value)


def owned(value: NestedTensors) -> NestedTensors:
    """Return `value` in storage of its own, so that dropping its siblings frees them."""
    if isinstance(value, np.ndarray):
        # A view of a whole array keeps nothing else alive, so that copying it would be a waste.
        is_whole = value.base is None or value.nbytes == nested_nbytes(value)
        return value if is_whole else value.copy()
    if hasattr(value, "untyped_storage"):
        is_whole = value.untyped_storage().nbytes() == value.nbytes
        return value if is_whole else value.clone()
    return value


def _stack(batch: Sequence[NestedTensors]) -> NestedTensors:
    return np.stack(batch) if isinstance(batch[0], np.ndarray) else _torch().stack(list(batch))


def _concatenate(batch: Sequence[NestedTensors]) -> NestedTensors:
    if len(batch) == 1:
        return batch[0]
    if isinstance(batch[0], np.ndarray):
        return np.concatenate(batch)
    return _torch().cat(list(batch))


def _torch() -> Any:
    # Whoever made a tensor has imported torch.
    return sys.modules["torch"]
