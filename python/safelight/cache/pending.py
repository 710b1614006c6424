"""Items that requests wait for at this moment: decoded and processed once, whoever asks.

Owns who holds such an item, and how long it lives. Decoding and processing are the deferred
decodes of two refs: nobody waits for another request here, only for one of these two.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from safelight.ref import MediaRef

__all__ = ["PendingItem", "PendingItems"]

E = TypeVar("E")

# Requests by the identity of the list in which each keeps what it holds.
_Holder = list["PendingItem[Any]"]


class PendingItem(Generic[E]):
    """An item between its arrival and its entry in a cache.

    Args:
        media: What is decoded before the item is processed: a ref of the item's own, which it
            releases; None where the item is media already.
        process: Makes the entry.
    """

    __slots__ = ("_entry", "_holders", "_key", "_maker", "_table", "media")

    def __init__(self, media: MediaRef[Any] | None, process: Callable[[], E]) -> None:
        self.media = media
        self._entry: MediaRef[E] = MediaRef(lambda: self._make(process), b"", key=b"")
        self._maker: int | None = None
        self._holders: set[int] = set()
        self._key = b""
        self._table: PendingItems[E] | None = None

    def process(self) -> tuple[E, bool]:
        """Return the entry, and whether this call made it.

        Concurrent callers share one run of the processor. What it raises reaches those who share
        it and is not remembered.
        """
        if self._entry.is_decoded:
            return self._entry.decode(), False
        entry = self._entry.decode()
        return entry, self._maker == threading.get_ident()

    def _make(self, process: Callable[[], E]) -> E:
        self._maker = threading.get_ident()
        return process()

    def leave(self, holder: _Holder) -> None:
        """Take the item from `holder`; the last one to leave releases payload and media."""
        if self._table is None or self._table.remove(self, holder):
            self.release()

    def release(self) -> None:
        """Drop payload and decode, and what they hold of their request's budget."""
        self._entry.release()
        if self.media is not None:
            self.media.refund()
            self.media.release()


class PendingItems(Generic[E]):
    """The pending items of one cache, by key. A child of a fork has none of its parent's.

    Attributes:
        misses: Requests that made an entry.
        joins: Requests that got the entry that another made.
    """

    __slots__ = ("__weakref__", "_items", "_lock", "joins", "misses")

    def __init__(self) -> None:
        self.misses = self.joins = 0
        self._reset()
        _tables.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._items: dict[bytes, PendingItem[E]] = {}

    def __len__(self) -> int:
        return len(self._items)

    def join(
        self,
        key: bytes,
        find: Callable[[], E | None],
        item: PendingItem[E] | None,
        holder: _Holder,
    ) -> E | PendingItem[E] | None:
        """Return the pending item of `key`, which is then in `holder`, or what `find` finds.

        Args:
            key: Identity of the item.
            find: Looks for a finished entry; called under the lock, so that none is missed
                between the end of one pending item and the next.
            item: What is pending from here on where there is neither; released otherwise.
            holder: The list in which the request keeps its items, until it leaves them.
        """
        entry: E | None = None
        with self._lock:
            pending = self._items.get(key)
            if pending is None:
                entry = find()
                if entry is None and item is not None:
                    item._key, item._table = key, self
                    pending = self._items[key] = item
            if pending is not None:
                # In the list first: an interrupt in between must leave no holder that never leaves.
                holder.append(pending)
                pending._holders.add(id(holder))
        if item is not None and pending is not item:
            item.release()
        return entry if pending is None else pending

    def count(self, is_miss: bool) -> None:
        """Count a request that was served by a pending item, as a miss if it made the entry."""
        with self._lock:
            self.misses += is_miss
            self.joins += not is_miss

    def remove(self, item: PendingItem[E], holder: _Holder) -> bool:
        """Take `item` from `holder`, and say whether nobody holds it any more."""
        with self._lock:
            item._holders.discard(id(holder))
            if item._holders:
                return False
            if self._items.get(item._key) is item:
                del self._items[item._key]
            return True


# In the child of an os.fork() the other threads are gone, while their requests' items would still
# be held, and perhaps a lock.
_tables: WeakSet[PendingItems[Any]] = WeakSet()


def _after_fork_in_child() -> None:
    for table in list(_tables):
        table._reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
