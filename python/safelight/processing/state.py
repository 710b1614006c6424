"""`MultiModalApplyState`: what phase 1 hands to phase 2, and what must be undone if it never does.

Owns the request's share of its refs and every decode that was submitted for it. Whatever
happens, submitted work is drained before payloads are released.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from safelight.decodes import (
    MediaDecodeJob,
    collect_media_decodes,
    collect_media_decodes_async,
    drain_media_decodes,
    drain_media_decodes_async,
    submit_media_decodes,
)
from safelight.parse import MultiModalDataItems
from safelight.processing.request import MultiModalHashes, ProcessorInputs
from safelight.processing.timing import TimingContext
from safelight.ref import MediaRef

__all__ = ["MultiModalApplyState"]


class MultiModalApplyState:
    """A request between its two phases. A context manager: leaving it closes it.

    Attributes:
        inputs: The request as the caller gave it.
        items: The request's items over forks of the caller's refs, so that closing leaves the
            caller's refs usable.
        hashes: Identity of every item; None until it is known (without a cache, after phase 2).
        decodes: Every decode submitted for the request.
    """

    __slots__ = (
        "_forks",
        "_is_closed",
        "decodes",
        "hashes",
        "inputs",
        "items",
        "timing",
    )

    def __init__(self, inputs: ProcessorInputs, timing: TimingContext) -> None:
        self.inputs = inputs
        self.timing = timing
        self.items, self._forks = _fork_items(inputs.mm_data_items)
        self.hashes: MultiModalHashes | None = None
        self.decodes: list[MediaDecodeJob] = []
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether the state has released its refs."""
        return self._is_closed

    def submit(self, positions: Iterable[tuple[str, int]]) -> None:
        """Submit the decodes of the items at `positions`, each a modality and an index."""
        items: list[tuple[str, int, MediaRef[Any]]] = []
        for modality, index in positions:
            of_modality = self.items[modality]
            raw = of_modality.get_raw(index)
            if isinstance(raw, MediaRef):
                items.append((modality, of_modality.get_original_index(index), raw))
        submit_media_decodes(items, jobs=self.decodes)

    def wait_decodes(self) -> None:
        """Wait until every submitted decode has finished.

        Raises:
            MediaError: The first failure in the order of the request, with modality and index.
        """
        with self.timing.record("decode"):
            collect_media_decodes(self.decodes)

    async def wait_decodes_async(self) -> None:
        """Wait as `wait_decodes` does, without holding up the event loop.

        Cancellation is deferred: jobs that have not begun are withdrawn, running ones finish,
        then it propagates.
        """
        with self.timing.record("decode"):
            await collect_media_decodes_async(self.decodes)

    def close(self) -> None:
        """Drain what was submitted, then release the request's share of the payloads."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            drain_media_decodes(self.decodes)
        finally:
            for fork in self._forks:
                fork.refund()
                fork.release()

    async def close_async(self) -> None:
        """Close as `close` does, without holding up the event loop.

        A cancellation, also a repeated one, propagates once the state is closed.
        """
        if self._is_closed:
            return
        try:
            await drain_media_decodes_async(self.decodes)
        finally:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
