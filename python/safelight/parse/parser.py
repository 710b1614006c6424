"""`MultiModalDataParser`: a request's media, of whatever form, as items by modality.

Owns which form becomes which items. Must never decode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from safelight.errors import RequestError
from safelight.foreign import is_array
from safelight.parse.embeddings import ImageEmbeddingItems, check_dense, is_embeddings
from safelight.parse.image import ImageProcessorItems
from safelight.parse.items import ModalityDataItems, MultiModalDataItems

__all__ = ["ModalityData", "ModalityDataParser", "MultiModalDataDict", "MultiModalDataParser"]

T = TypeVar("T")

ModalityData: TypeAlias = T | Sequence[T | None] | None
"""One item, several, or None for one that only its UUID stands for."""

MultiModalDataDict: TypeAlias = Mapping[str, ModalityData[Any]]
"""The media of a request by modality."""

ModalityDataParser: TypeAlias = Callable[[ModalityData[Any]], ModalityDataItems[Any, Any] | None]


class MultiModalDataParser:
    """Turns the media of a request into items. A model's own parser overrides a method of it.

    Args:
        expected_hidden_size: Hidden size of embeddings; None leaves it unchecked.
    """

    def __init__(self, *, expected_hidden_size: int | None = None) -> None:
        self.expected_hidden_size = expected_hidden_size

    def parse_mm_data(self, mm_data: MultiModalDataDict) -> MultiModalDataItems:
        """Return the items of `mm_data`; a modality without any is left out.

        Raises:
            RequestError: A modality is unknown, or its data is of a type that cannot be one.
        """
        parsers = self._get_subparsers()
        items = MultiModalDataItems()
        for modality, data in mm_data.items():
            parser = parsers.get(modality)
            if parser is None:
                known = ", ".join(parsers)
                raise RequestError(f"modality {modality!r:.40} is not one of {known}")
            parsed = parser(data)
            if parsed is not None:
                items[modality] = parsed
        return items

    def _get_subparsers(self) -> Mapping[str, ModalityDataParser]:
        """The parser of each modality."""
        return {"image": self._parse_image_data}

    def _parse_image_data(self, data: ModalityData[Any]) -> ModalityDataItems[Any, Any] | None:
        if data is None:
            return ImageProcessorItems(None)
        if isinstance(data, Mapping):
            return self._parse_image_embedding_dict(data)
        if _is_empty(data):
            return None
        if is_embeddings(data):
            return ImageEmbeddingItems(data, self.expected_hidden_size)
        if isinstance(data, (list, tuple)):
            return ImageProcessorItems(list(data))
        items: Any = data
        if is_array(items) and len(items.shape) == 4:
            check_dense(items, "image")
            return ImageProcessorItems(list(items))
        return ImageProcessorItems([items])

    def _parse_image_embedding_dict(
        self, data: Mapping[str, Any]
    ) -> ModalityDataItems[Any, Any] | None:
        """Parse embeddings as named tensors; a model that takes them overrides this."""
        del data
        raise RequestError("the model takes no image embeddings as a dict of tensors")


def _is_empty(data: Any) -> bool:
    if isinstance(data, (list, tuple)):
        return not data
    return is_array(data) and 0 in data.shape
