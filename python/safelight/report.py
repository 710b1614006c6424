"""What a rendered chat looks like to a person and to a script.

Owns the JSON document and the table of ``safelight render``. Reads results; runs nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from safelight.renderer import RenderedChat, RenderedItem

__all__ = ["describe", "named_tensors", "table_rows"]

TABLE_HEADER = ("prompt", "item", "cache", "format", "size", "tokens", "tensors", "key")


@dataclass(frozen=True)
class _Item:
    """One item of a rendered chat with everything that is known of it."""

    chat: RenderedChat
    position: int
    item: RenderedItem

    def _of(self, by_modality: Any) -> Any:
        return by_modality[self.item.modality][self.item.index]

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        data = self._of(self.chat.inputs["mm_kwargs"]).get_data()
        return {name: _little_endian(tensor) for name, tensor in data.items()}

    def describe(self) -> dict[str, Any]:
        """The item's entry in the JSON document."""
        tensors = {
            name: {
                "shape": list(array.shape),
                "dtype": array.dtype.name,
                "sha256": hashlib.sha256(array.data).hexdigest(),
            }
            for name, array in self.tensors().items()
        }
        return {**self.facts(), "tensors": tensors}

    def facts(self) -> dict[str, Any]:
        """Everything about the item but its tensors."""
        place = self._of(self.chat.inputs["mm_placeholders"])
        header, key = self.item.header, self.item.key
        return {
            "modality": self.item.modality,
            "index": self.item.index,
            "key": None if key is None else key.hex(),
            "hash": self.item.mm_hash,
            "offset": place.offset,
            "length": place.length,
            "format": None if header is None else header.format,
            "width": None if header is None else header.width,
            "height": None if header is None else header.height,
            "orientation": None if header is None else header.orientation,
            "cache": "hit" if self._of(self.chat.inputs["mm_cache_hits"]) else "miss",
        }


def describe(chats: Sequence[RenderedChat]) -> dict[str, Any]:
    """Return the JSON document of some chats: token ids, and each item with its tensors' digests.

    A digest is the SHA-256 of a tensor's little-endian contiguous bytes.
    """
    return {
        "prompts": [
            {
                "token_ids": chat.inputs["prompt_token_ids"],
                "items": [item.describe() for item in _items(chat)],
            }
            for chat in chats
        ]
    }


def named_tensors(chats: Sequence[RenderedChat]) -> dict[str, npt.NDArray[Any]]:
    """Return every tensor under the path that it has in the document of `describe`."""
    return {
        f"prompts.{number}.items.{item.position}.{name}": array
        for number, chat in enumerate(chats)
        for item in _items(chat)
        for name, array in item.tensors().items()
    }


def table_rows(chats: Sequence[RenderedChat]) -> Iterator[tuple[str, ...]]:
    """Yield one row an item, under `TABLE_HEADER`."""
    for number, chat in enumerate(chats):
        for item in _items(chat):
            facts = item.facts()
            yield (
                str(number),
                f"{facts['modality']} {facts['index']}",
                facts["cache"],
                facts["format"] or "?",
                "?" if facts["width"] is None else f"{facts['width']}x{facts['height']}",
                f"{facts['offset']}+{facts['length']}",
                " ".join(
                    f"{name}{list(array.shape)}".replace(" ", "")
                    for name, array in item.tensors().items()
                ),
                (facts["key"] or facts["hash"])[:16],
            )


def _items(chat: RenderedChat) -> Iterator[_Item]:
    return (_Item(chat, position, item) for position, item in enumerate(chat.items))


def _little_endian(data: Any) -> npt.NDArray[Any]:
    """Return a numpy array or CPU tensor as a contiguous little-endian array."""
    # Not `ascontiguousarray`, which gives a scalar an axis.
    array = np.asarray(data.numpy() if hasattr(data, "numpy") else data, order="C")
    return array.astype(array.dtype.newbyteorder("<"), copy=False)
