"""The processor cache of one process: hash to processed item and prompt updates.

Owns what an entry is and what it weighs. Eviction, byte counts and thread safety are
`MediaCache`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from safelight.cache.media import MediaCache
from safelight.inputs import MultiModalKwargsItem, ResolvedPromptUpdate

__all__ = ["MultiModalProcessorOnlyCache", "ProcessorCacheEntry"]

# What an entry takes besides its tensors: the objects around them, measured and rounded up.
_ENTRY_OVERHEAD_BYTES = 2048
_TOKEN_BYTES = 8


@dataclass(frozen=True, eq=False)
class ProcessorCacheEntry:
    """A processed item with what it does to a prompt. Shared between requests: read-only."""

    item: MultiModalKwargsItem
    prompt_updates: Sequence[ResolvedPromptUpdate]

    @property
    def nbytes(self) -> int:
        """Bytes that the entry keeps alive."""
        tokens = sum(len(update.content.full) for update in self.prompt_updates)
        return self.item.nbytes + tokens * _TOKEN_BYTES + _ENTRY_OVERHEAD_BYTES


class MultiModalProcessorOnlyCache:
    """Processed items by hash, least recently used first out, within a number of bytes.

    Several processors may share one cache: a hash is qualified by the fingerprint of the
    processor that made the item.

    Args:
        max_bytes: Bytes to keep; 0 keeps nothing.
    """

    __slots__ = ("_entries",)

    def __init__(self, max_bytes: int = 4 << 30) -> None:
        self._entries = MediaCache(max_bytes)

    def is_cached(self, fingerprint: bytes, mm_hash: str) -> bool:
        """Whether an item is here; does not change what is evicted next."""
        return _key(fingerprint, mm_hash) in self._entries

    def get(self, fingerprint: bytes, mm_hash: str) -> ProcessorCacheEntry | None:
        """Return an entry and mark it as used, or None."""
        entry: ProcessorCacheEntry | None = self._entries.get(_key(fingerprint, mm_hash))
        return entry

    def put(self, fingerprint: bytes, mm_hash: str, entry: ProcessorCacheEntry) -> None:
        """Keep an entry, evicting the least recently used; one over `max_bytes` is not kept."""
        self._entries.put(_key(fingerprint, mm_hash), entry, entry.nbytes)

    def invalidate(self, fingerprint: bytes, mm_hash: str) -> None:
        """Forget an item."""
        self._entries.invalidate(_key(fingerprint, mm_hash))

    def clear_cache(self) -> None:
        """Forget everything."""
        self._entries.clear()

    def stats(self) -> Any:
        """Counters of the cache, as `MediaCache.stats`."""
        return self._entries.stats()


def _key(fingerprint: bytes, mm_hash: str) -> bytes:
    return fingerprint + mm_hash.encode()
