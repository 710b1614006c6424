"""`MultiModalApplyState`: what phase 1 hands to phase 2, and what must be undone if it never does.

Owns the request's share of its refs, its part in pending items, and every decode that was
submitted for it. Whatever happens, submitted work is drained before payloads are released.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from safelight.cache.pending import PendingItem
from safelight.cache.processor import ProcessorCacheEntry
from safelight.decodes import (
    MediaDecodeJob,
    collect_media_decodes,
    collect_media_decodes_async,
    drain_media_decodes,
    drain_media_decodes_async,
    submit_media_decodes,
    submit_media_decodes_async,
    try_submit_media_decodes,
)
from safelight.inputs import ItemPlace
from safelight.parse import MultiModalDataItems
from safelight.processing.identity import ItemIdentity
from safelight.processing.request import MultiModalHashes, ProcessorInputs
from safelight.processing.timing import TimingContext
from safelight.ref import MediaRef

__all__ = ["MultiModalApplyState"]


@dataclass(slots=True, eq=False)
class ItemState:
    """One item of a request between the two phases.

    Attributes:
        place: Where errors say that it is.
        index: Its position in the request's lists of its modality.
        raw: The request's fork of its ref, or media; None where only a UUID stands for it.
        identity: None until it is known.
        entry: What a cache had for it, or its result.
        pending: Its decode and processing, of this request alone or shared with others.
        duplicate_of: An equal item of the request, which does the work for both.
        is_hit: Whether somebody else did the work.
    """

    place: ItemPlace
    index: int
    raw: object
    identity: ItemIdentity | None = None
    entry: ProcessorCacheEntry | None = None
    pending: PendingItem[ProcessorCacheEntry] | None = None
    duplicate_of: ItemState | None = None
    is_hit: bool = True

    @property
    def cache_name(self) -> str:
        """What a cache knows the item by."""
        assert self.identity is not None
        return self.identity.cache_name


class MultiModalApplyState:
    """A request between its two phases. A context manager: leaving it closes it.

    Attributes:
        inputs: The request as the caller gave it.
        items: The request's items over forks of the caller's refs, so that closing leaves the
            caller's refs usable.
        hashes: What is emitted for every item; None until it is known (without a cache, after
            phase 2).
        decodes: Every decode submitted for the request.
        is_closed: Whether the state has released its refs.
    """

    def __init__(self, inputs: ProcessorInputs, timing: TimingContext) -> None:
        self.inputs = inputs
        self.timing = timing
        self.items, self._forks = _fork_items(inputs.mm_data_items)
        self.hashes: MultiModalHashes | None = None
        self.decodes: list[MediaDecodeJob] = []
        self.item_states = [
            ItemState(
                ItemPlace(modality, items.get_original_index(index)), index, items.get_raw(index)
            )
            for modality, items in self.items.items()
            for index in range(items.get_count())
        ]
        # What the request holds of items that are not processed yet.
        self.pending: list[PendingItem[ProcessorCacheEntry]] = []
        self._unsubmitted: list[Any] = []
        self.is_closed = False

    def submit_decodes(self) -> None:
        """Submit the decodes of pending items, as many as there is room for; wait for none."""
        self._unsubmitted = try_submit_media_decodes(
            [
                (*item.place, item.pending.media)
                for item in self.item_states
                if item.pending is not None and item.pending.media is not None
            ],
            self.decodes,
        )

    def wait_decodes(self) -> None:
        """Wait until every decode of the request has finished.

        Raises:
            MediaError: The first failure in the order of the request, with modality and index.
        """
        with self.timing.record("decode"):
            unsubmitted, self._unsubmitted = self._unsubmitted, []
            submit_media_decodes(unsubmitted, jobs=self.decodes)
            collect_media_decodes(self.decodes)

    async def wait_decodes_async(self) -> None:
        """Wait as `wait_decodes` does, without holding up the event loop.

        Cancellation is deferred: jobs that have not started are withdrawn, running ones finish,
        then it propagates.
        """
        with self.timing.record("decode"):
            unsubmitted, self._unsubmitted = self._unsubmitted, []
            await submit_media_decodes_async(unsubmitted, self.decodes)
            await collect_media_decodes_async(self.decodes)

    def close(self) -> None:
        """Drain what was submitted, leave pending items, release the request's payloads."""
        if self.is_closed:
            return
        self.is_closed = True
        try:
            drain_media_decodes(self.decodes)
        finally:
            for pending in self.pending:
                pending.leave(self.pending)
            for fork in self._forks:
                fork.refund()
                fork.release()

    async def close_async(self) -> None:
        """Close as `close` does, without holding up the event loop.

        A cancellation, also a repeated one, propagates once the state is closed.
        """
        if self.is_closed:
            return
        try:
            await drain_media_decodes_async(self.decodes)
        finally:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _fork_items(items: MultiModalDataItems) -> tuple[MultiModalDataItems, list[MediaRef[Any]]]:
    forks: list[MediaRef[Any]] = []

    def fork(raw: Any) -> Any:
        if not isinstance(raw, MediaRef):
            return raw
        forks.append(raw.fork())
        return forks[-1]

    forked = MultiModalDataItems(
        {modality: of_modality.map_raw(fork) for modality, of_modality in items.items()}
    )
    return forked, forks
