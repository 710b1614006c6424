"""Embeddings that a client brings in place of media: checked, counted, passed on.

Owns the checks. Tensors come from outside, so what they claim is held against what they store
before anything is computed with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from safelight.errors import RequestError
from safelight.foreign import is_array, is_plain_tensor, is_tensor
from safelight.parse.items import ModalityDataItems

__all__ = [
    "DictEmbeddingItems",
    "EmbeddingItems",
    "ImageEmbeddingItems",
    "check_dense",
    "check_embedding",
    "is_embeddings",
]

# A numpy array or a torch tensor: what the two share, without importing torch.
Tensor = Any


class EmbeddingItems(ModalityDataItems[Any, Tensor]):
    """Embeddings of one modality, which go around the processor as ``{modality}_embeds``.

    Args:
        data: ``(items, tokens, hidden)``, or a list of ``(tokens, hidden)``; arrays or tensors.
        modality: Name of the modality.
        expected_hidden_size: The model's hidden size; None leaves it unchecked.

    Raises:
        RequestError: A tensor is not dense, not of floats, or of another shape.
    """

    def __init__(
        self,
        data: Tensor | Sequence[Tensor],
        modality: str,
        expected_hidden_size: int | None = None,
    ) -> None:
        super().__init__(data, modality)
        is_batch = not isinstance(data, (list, tuple))
        for tensor in [data] if is_batch else data:
            check_embedding(tensor, modality, 3 if is_batch else 2, expected_hidden_size)

    def get_count(self) -> int:
        """The number of items."""
        return len(self.data)

    def get(self, index: int) -> Tensor:
        """The embedding of an item: ``(tokens, hidden)``."""
        return self.data[index]

    def get_feature_size(self, index: int) -> int:
        """The number of tokens of an item."""
        return len(self.data[index])

    def _set_selection(self, indices: Sequence[int]) -> None:
        if isinstance(self.data, (list, tuple)):
            self.data = [self.data[index] for index in indices]
        else:
            self.data = self.data[list(indices)]

    def get_processor_data(self) -> Mapping[str, object]:
        """Nothing: embeddings are past the processor."""
        return {}

    def get_passthrough_data(self) -> Mapping[str, object]:
        """All embeddings under ``{modality}_embeds``."""
        return {f"{self.modality}_embeds": self.data}


class _Field(Protocol):
    """How one tensor is split into items and merged again; see `safelight.inputs`."""

    def split(self, data: Any, /) -> Sequence[Any]: ...

    def merge(self, batch: Sequence[Any], /) -> Any: ...


class _FieldConfig(Protocol):
    @property
    def field(self) -> _Field: ...


class DictEmbeddingItems(ModalityDataItems[Mapping[str, Tensor], Mapping[str, Tensor]]):
    """Embeddings as named tensors, usually the names of a processor's outputs.

    Args:
        data: The tensors of all items. Names without a layout are left out.
        modality: Name of the modality.
        required_fields: Names that must be there.
        fields_factory: Gives the layout of each name, by which it is split into items.

    Raises:
        RequestError: A name is missing, a tensor is not dense, or the tensors do not split into
            the same number of items.
    """

    def __init__(
        self,
        data: Mapping[str, Tensor],
        modality: str,
        required_fields: set[str],
        fields_factory: Callable[[Mapping[str, Tensor]], Mapping[str, _FieldConfig]],
    ) -> None:
        super().__init__(data, modality)
        missing = sorted(required_fields - data.keys())
        if missing:
            raise RequestError(f"{modality} embeddings lack {', '.join(missing)}")
        for tensor in data.values():
            check_dense(tensor, modality)
        self.required_fields = required_fields
        try:
            self.fields_config = fields_factory(data)
            self._parts = {
                name: list(config.field.split(data[name]))
                for name, config in self.fields_config.items()
                if name in data
            }
        except RequestError:
            raise
        except Exception as error:
            # Layouts are computed from the tensors, such as sizes from a grid.
            raise RequestError(f"{modality} embeddings do not fit together") from error
        self.data = {name: data[name] for name in self._parts}
        unsplit = sorted(required_fields - self._parts.keys())
        if unsplit:
            raise ValueError(f"fields_factory gives no layout for {', '.join(unsplit)}")
        if len({len(parts) for parts in self._parts.values()}) != 1:
            raise RequestError(f"{modality} embeddings do not fit together")

    def get_count(self) -> int:
        """The number of items."""
        return len(next(iter(self._parts.values())))

    def get(self, index: int) -> Mapping[str, Tensor]:
        """The tensors of an item by name."""
        return {name: parts[index] for name, parts in self._parts.items()}

    def _set_selection(self, indices: Sequence[int]) -> None:
        self._parts = {
            name: [parts[index] for index in indices] for name, parts in self._parts.items()
        }
        self.data = {
            name: self.fields_config[name].field.merge(parts) if parts else self.data[name][:0]
            for name, parts in self._parts.items()
        }

    def get_processor_data(self) -> Mapping[str, object]:
        """Nothing: embeddings are past the processor."""
        return {}

    def get_passthrough_data(self) -> Mapping[str, object]:
        """The tensors of all items by name."""
        return self.data


class ImageEmbeddingItems(EmbeddingItems):
    """Image embeddings; see `EmbeddingItems`."""

    def __init__(
        self, data: Tensor | Sequence[Tensor], expected_hidden_size: int | None = None
    ) -> None:
        super().__init__(data, "image", expected_hidden_size)


def is_embeddings(data: Any) -> bool:
    """Tell embeddings from images.

    A batch is a 3-D tensor of floats; an array of three axes is an image, as for vLLM. A list is
    one of 2-D tensors or arrays of floats, which no image is.
    """
    if isinstance(data, (list, tuple)):
        return all(is_array(item) and item.ndim == 2 and _is_floating(item) for item in data)
    return is_tensor(data) and len(data.shape) == 3 and _is_floating(data)


def check_embedding(
    tensor: Tensor, modality: str, ndim: int, expected_hidden_size: int | None
) -> None:
    """Refuse what is no embedding.

    Args:
        tensor: What a client brought.
        modality: Name of the modality.
        ndim: 3 for a batch ``(items, tokens, hidden)``, 2 for ``(tokens, hidden)``.
        expected_hidden_size: The model's hidden size; None leaves it unchecked.

    Raises:
        RequestError: It is not dense, not of floats, or of another shape.
    """
    check_dense(tensor, modality)
    if not _is_floating(tensor):
        raise RequestError(f"{modality} embeddings must be of floats, not {tensor.dtype}")
    shape = tuple(tensor.shape)
    if len(shape) != ndim or 0 in shape:
        axes = "(items, tokens, hidden)" if ndim == 3 else "(tokens, hidden)"
        raise RequestError(f"{modality} embeddings must have shape {axes}, not {shape}")
    if expected_hidden_size is not None and shape[-1] != expected_hidden_size:
        raise RequestError(
            f"{modality} embeddings have hidden size {shape[-1]}, "
            f"but the model's is {expected_hidden_size}"
        )


def check_dense(tensor: Tensor, modality: str) -> None:
    """Refuse a tensor that claims more than it stores: making it dense would fill the memory.

    Raises:
        RequestError: It is sparse or broadcast, holds objects, or is no tensor at all.
    """
    if isinstance(tensor, np.ndarray):
        strides = zip(tensor.strides, tensor.shape, strict=True)
        if tensor.dtype.hasobject or any(size > 1 and not stride for stride, size in strides):
            raise RequestError(f"{modality} arrays must be dense and of numbers")
    elif is_tensor(tensor):
        nbytes = math.prod(tensor.shape) * tensor.element_size()
        if not is_plain_tensor(tensor) or nbytes > tensor.untyped_storage().nbytes():
            raise RequestError(f"{modality} tensors must be dense")
    else:
        raise RequestError(f"{modality} embeddings cannot be a {type(tensor).__name__}")


def _is_floating(tensor: Tensor) -> bool:
    if isinstance(tensor, np.ndarray):
        return bool(tensor.dtype.kind == "f")
    return bool(tensor.is_floating_point())
