"""`HTTPFetch`: one http(s) URL, from the disk cache or from its server.

Owns when a stored payload stands in for a download, and when a payload is stored. Must never let
a stored payload pass a rule that a download would not: allow list, reach of addresses, caps and
budget hold for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from safelight.connector.disk_cache import DiskCache, Entry
from safelight.connector.download import Download, Validator
from safelight.connector.refs import load_refs
from safelight.errors import LimitError, MediaError
from safelight.ref import MediaRef

if TYPE_CHECKING:
    from safelight.media.base import MediaIO

__all__ = ["HTTPFetch"]

T = TypeVar("T")


class HTTPFetch:
    """The steps of one fetch, in order: `look_up`, the download, `load`.

    All but the download may touch the disk, so none of them belongs on an event loop.

    Args:
        download: The download, to be run where `look_up` brings nothing.
        cache: Where payloads are kept; None is nowhere.
        allow_private: Whether the download may reach private addresses.
        max_bytes: Cap on a stored payload, as on a download's.
    """

    def __init__(
        self, download: Download, cache: DiskCache | None, *, allow_private: bool, max_bytes: int
    ) -> None:
        self.download = download
        self.is_cached = cache is not None
        self._cache = cache
        self._allow_private = allow_private
        self._max_bytes = max_bytes
        # Redirects change the download's URL, not what was asked for.
        self._url = download.url.text
        self._entry: Entry | None = None

    def look_up(self) -> bytes | None:
        """Return the stored payload, if it may be used without asking the server.

        Raises:
            PayloadTooLargeError: It is over the request's budget.
        """
        if self._cache is None:
            return None
        entry = self._cache.get(
            self._url, allow_private=self._allow_private, max_bytes=self._max_bytes
        )
        if entry is None or not all(map(self.download.policy.domains.allows, entry.hosts)):
            return None
        if entry.is_fresh:
            self.download.charge(len(entry.payload))
            return entry.payload
        self._entry = entry
        if entry.etag is not None:
            self.download.validate(Validator(entry.etag, entry.hosts))
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
            self.download.abandon()
            raise
        if self._cache is None:
            return refs
        is_pending = is_new and not (self.download.is_framed or self.download.is_not_modified)
        if is_new and not is_pending:
            self._store(stored)
        return [self._watched(ref, stored if is_pending else None) for ref in refs]

    def _vouched_for(self) -> bytes:
        assert self._entry is not None
        self.download.charge(len(self._entry.payload))
        return self._entry.payload

    def _store(self, payload: bytes) -> None:
        download = self.download
        etag = download.etag
        if download.is_not_modified and self._entry is not None:
            etag = self._entry.etag
        if self._cache is not None and download.max_age_s is not None:
            self._cache.put(
                self._url,
                payload,
                allow_private=self._allow_private,
                hosts=download.hosts,
                etag=etag,
                max_age_s=download.max_age_s,
            )

    @contextmanager
    def _judged(self) -> Iterator[None]:
        """Drop the stored payload where what follows finds that it is no media."""
        try:
            yield
        except MediaError as error:
            if self._cache is not None and not isinstance(error, LimitError):
                self._cache.drop(self._url, allow_private=self._allow_private)
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
