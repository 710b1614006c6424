"""`HTTPFetch`: one http(s) URL, from the disk cache or from its server.

Owns when a stored payload stands in for a download. Must never let a stored payload pass a rule
that a download would not: allow list, reach of addresses, caps and budget hold for both.
"""

from __future__ import annotations

from collections.abc import Iterable

from safelight.budget import DownloadBudget
from safelight.connector.disk_cache import DiskCache, Entry
from safelight.connector.download import CheckPrefix, Download, FetchPolicy, Validator
from safelight.connector.http_url import parse_http_url

__all__ = ["HTTPFetch"]


class HTTPFetch:
    """The steps of one fetch, in order: `look_up`, the download, `settle`, `store`.

    All but the download may touch the disk, so none of them belongs on an event loop.

    Attributes:
        download: The download, to be run where `look_up` brought nothing.

    Raises:
        BlockedURLError: The URL is malformed or its host is not allowed.
    """

    def __init__(
        self,
        url: str,
        policy: FetchPolicy,
        *,
        max_bytes: int,
        budget: DownloadBudget | None,
        check_prefixes: Iterable[CheckPrefix],
        cache: DiskCache | None,
        allow_private: bool,
    ) -> None:
        self.download = Download(
            parse_http_url(url),
            policy,
            max_bytes=max_bytes,
            budget=budget,
            check_prefixes=check_prefixes,
        )
        self._policy = policy
        self._max_bytes = max_bytes
        self._cache = cache
        self._allow_private = allow_private
        # Redirects change the download's URL, not what was asked for.
        self._url = self.download.url.text
        self._entry: Entry | None = None
        self._is_new = False

    @property
    def may_be_stored(self) -> bool:
        """Whether `look_up` and `store` can do anything."""
        return self._cache is not None

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
        if entry is None or not all(self._policy.domains.allows(host) for host in entry.hosts):
            return None
        if entry.is_fresh:
            self.download.charge(len(entry.payload))
            return entry.payload
        self._entry = entry
        if entry.etag is not None:
            self.download.validate(Validator(entry.etag, entry.hosts))
        return None

    def settle(self, downloaded: bytes | None) -> bytes:
        """Return the payload; `downloaded` is None where the server vouched for the stored one.

        Raises:
            PayloadTooLargeError: The stored one is over the request's budget.
        """
        self._is_new = True
        if downloaded is not None:
            return downloaded
        assert self._entry is not None
        self.download.charge(len(self._entry.payload))
        return self._entry.payload

    def store(self, payload: bytes) -> None:
        """Keep a payload that was downloaded or vouched for, once a decoder has taken it."""
        if self._cache is None or not self._is_new:
            return
        if self.download.is_not_modified:
            assert self._entry is not None
            etag = self._entry.etag
        elif self.download.is_storable:
            etag = self.download.etag
        else:
            return
        self._cache.put(
            self._url,
            payload,
            allow_private=self._allow_private,
            hosts=self.download.hosts,
            etag=etag,
        )
