"""`HTTPFetch`: one http(s) URL, from the disk cache or from its server.

Owns when a stored payload stands in for a download, and when a payload is stored. Must never let
a stored payload pass a rule that a download would not: allow list, reach of addresses, caps and
budget hold for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from safelight.connector.disk_cache import Entry
from safelight.connector.download import Download
from safelight.connector.refs import load_refs
from safelight.errors import LimitError, MediaError
from safelight.ref import MediaRef

if TYPE_CHECKING:
    from safelight.media.base import MediaIO

__all__ = ["HTTPFetch"]

T = TypeVar("T")


class HTTPFetch(Download):
    """A download with what comes before and after it, in this order: `look_up`, it, `load`.

    Neither of these belongs on an event loop: both may touch the disk.
    """

    _entry: Entry | None = None

    def look_up(self) -> bytes | None:
        """Return the stored payload, if it may be used without asking the server.

        Raises:
            PayloadTooLargeError: It is over the request's budget.
        """
        if self.policy.cache is None:
            return None
        entry = self.policy.cache.get(
            self.hops[0].text, allow_private=self.policy.allow_private, max_bytes=self._max_bytes
        )
        if entry is None or not all(map(self.policy.domains.allows, entry.hosts)):
            return None
        if entry.is_fresh:
            self.charge(len(entry.payload))
            return entry.payload
        self._entry = entry
        if entry.etag is not None:
            self.validate(entry.etag, entry.hosts)
        return None

    def load(
        self, media_ios: Sequence[MediaIO[Any]], stored: bytes | None, downloaded: bytes | None
    ) -> list[MediaRef[Any]]:
        """Return a ref to the payload by each decoder.

        What is new is stored now if its framing shows that it is whole, else once it is decoded.
        What turns out to be no media is stored no longer.

        Args:
            media_ios: The decoders.
            stored: What `look_up` brought.
            downloaded: What the download brought; None where there was none, or the server
                vouched for the stored payload.

        Raises:
            MediaError: A decoder refuses the payload.
            PayloadTooLargeError: It is over the request's budget.
        """
        is_new = stored is None
        try:
            if stored is None:
                stored = self._vouched_for() if downloaded is None else downloaded
            with self._judged():
                refs = load_refs(media_ios, stored)
        except BaseException:
            self.abandon()
            raise
        if self.policy.cache is None:
            return refs
        is_pending = is_new and not (self.is_framed or self.is_not_modified)
        if is_new and not is_pending:
            self._store(stored)
        return [self._watched(ref, stored if is_pending else None) for ref in refs]

    def _vouched_for(self) -> bytes:
        assert self._entry is not None
        self.etag = self._entry.etag
        self.charge(len(self._entry.payload))
        return self._entry.payload

    def _store(self, payload: bytes) -> None:
        if self.policy.cache is not None and self.max_age_s is not None:
            self.policy.cache.put(
                self.hops[0].text,
                payload,
                allow_private=self.policy.allow_private,
                hosts=self.hosts,
                etag=self.etag,
                max_age_s=self.max_age_s,
            )

    @contextmanager
    def _judged(self) -> Iterator[None]:
        """Drop the stored payload where what follows finds that it is no media."""
        try:
            yield
        except MediaError as error:
            if self.policy.cache is not None and not isinstance(error, LimitError):
                self.policy.cache.drop(self.hops[0].text, allow_private=self.policy.allow_private)
            raise

    def _watched(self, ref: MediaRef[T], pending: bytes | None) -> MediaRef[T]:
        """Return `ref` with the consequences of its decode; `pending` is stored by a good one."""

        def decode() -> T:
            with self._judged():
                media = ref.decode()
            if pending is not None:
                self._store(pending)
            return media

        # Not a map, whose function sees a good decode only.
        return MediaRef(
            decode, ref.data, ref.spec, key=ref.key, header=ref.header, charge=ref._charge
        )
