"""The processor cache of one process: hash to processed item and prompt updates.

Owns what an entry is and what it weighs. Eviction, byte counts and thread safety are
`MediaCache`'s, items that are not made yet `PendingItems`'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from safelight.cache.media import CacheStats, MediaCache
from safelight.cache.pending import PendingItem, PendingItems
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
    processor that made the item. Requests that want an item while it is made join the one that
    makes it.

    Args:
        max_bytes: Bytes to keep; 0 keeps nothing.
    """

    __slots__ = ("_entries", "_pending")

    def __init__(self, max_bytes: int = 4 << 30) -> None:
        self._entries = MediaCache(max_bytes)
        self._pending: PendingItems[ProcessorCacheEntry] = PendingItems()

    def is_cached(self, fingerprint: bytes, mm_hash: str) -> bool:
        """Whether an item is here; does not change what is evicted next."""
        return _key(fingerprint, mm_hash) in self._entries

    def get(self, fingerprint: bytes, mm_hash: str) -> ProcessorCacheEntry | None:
        """Return an entry and mark it as used, or None."""
        entry: ProcessorCacheEntry | None = self._entries.get(_key(fingerprint, mm_hash))
        return entry

    def find(self, fingerprint: bytes, mm_hash: str) -> ProcessorCacheEntry | None:
        """As `get`; what is not found is no miss, because it may be pending."""
        entry: ProcessorCacheEntry | None = self._entries._hit(_key(fingerprint, mm_hash), None)
        return entry

    def join(
        self,
        fingerprint: bytes,
        mm_hash: str,
        item: PendingItem[ProcessorCacheEntry] | None,
        holder: list[PendingItem[ProcessorCacheEntry]],
    ) -> ProcessorCacheEntry | PendingItem[ProcessorCacheEntry] | None:
        """Return the entry or the pending item of a hash; where there is neither, make it `item`.

        A pending item is in `holder` then, the list of what a request holds. The request takes
        part in its decode, calls its `process` and then `commit`, and leaves it.
        """
        key = _key(fingerprint, mm_hash)
        return self._pending.join(key, lambda: self._entries._hit(key, None), item, holder)

    def commit(
        self, fingerprint: bytes, mm_hash: str, entry: ProcessorCacheEntry, is_miss: bool
    ) -> None:
        """Keep the entry of a pending item, or mark it as used, before the request leaves it.

        `is_miss` is whether the request made the entry, and did not join another that did.
        """
        self._pending.count(is_miss)
        if not self._entries.touch(_key(fingerprint, mm_hash)):
            self.put(fingerprint, mm_hash, entry)

    def put(self, fingerprint: bytes, mm_hash: str, entry: ProcessorCacheEntry) -> None:
        """Keep an entry, evicting the least recently used; one over `max_bytes` is not kept."""
        self._entries.put(_key(fingerprint, mm_hash), entry, entry.nbytes)

    def invalidate(self, fingerprint: bytes, mm_hash: str) -> None:
        """Forget an item."""
        self._entries.invalidate(_key(fingerprint, mm_hash))

    def clear_cache(self) -> None:
        """Forget everything but what requests wait for."""
        self._entries.clear()

    def stats(self) -> CacheStats:
        """Counters of the cache, as `MediaCache.stats`.

        A request that made an entry counts as a miss, one that waited for another's as a join.
        """
        stats = self._entries.stats()
        return stats._replace(
            misses=stats.misses + self._pending.misses,
            joins=stats.joins + self._pending.joins,
            in_flight=len(self._pending),
        )


def _key(fingerprint: bytes, mm_hash: str) -> bytes:
    return fingerprint + mm_hash.encode()
