"""One fetch as a state machine without I/O: hops, attempts, caps, early refusal.

Owns every decision that a fetch takes about what a server says; ``http`` drives it. Must never open
a connection or sleep.
"""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from safelight.budget import Charge, DownloadBudget
from safelight.connector.disk_cache import DiskCache
from safelight.connector.http_url import HTTPURL, AllowedDomains, join_http_url
from safelight.connector.refs import decoder_errors
from safelight.errors import (
    FetchError,
    FetchRefusedError,
    PayloadTooLargeError,
    TransientFetchError,
)

__all__ = ["CheckPrefix", "Download", "FetchPolicy"]

_REDIRECTS = frozenset((301, 302, 303, 307, 308))
# Request timeout, too early, too many requests: the only 4xx that time can mend.
_TRANSIENT_4XX = frozenset((408, 425, 429))
# Nothing is decompressed here (a bomb must not grow), and `identity` is all that was asked for.
_COMPRESSED = frozenset(
    (b"gzip", b"x-gzip", b"deflate", b"br", b"zstd", b"compress", b"x-compress")
)
# A decoder that has not made up its mind by then judges the whole payload instead.
_MAX_PREFIX = 1 << 20
_MAX_BACKOFF_S = 2.0

CheckPrefix = Callable[[bytes], Any]
Headers = Sequence[tuple[bytes, bytes]]


class FetchPolicy(NamedTuple):
    """What a connector lets its fetches do."""

    domains: AllowedDomains
    max_redirects: int
    retries: int
    backoff_s: float
    allow_private: bool = False
    cache: DiskCache | None = None


class Download:
    """The state of one fetch.

    A driver sends a GET for `url` with `headers`, hands the answer to `receive_head`, then either
    follows (`url` has changed), or hands over the body by `receive` and ends with `finish`.
    Where `receive` asks for it, `check` comes before the next bytes. Failures go to `retry`.

    Args:
        url: The first hop.
        policy: What the connector allows.
        max_bytes: Cap on the raw bytes of the body.
        budget: The request's download budget; what a failed attempt has taken goes back to it.
        check_prefixes: Judges of the first bytes, one a decoder.
    """

    def __init__(
        self,
        url: HTTPURL,
        policy: FetchPolicy,
        *,
        max_bytes: int,
        budget: DownloadBudget | None = None,
        check_prefixes: Iterable[CheckPrefix] = (),
    ) -> None:
        policy.domains.check(url)
        self.url = url
        self.hops = [url]
        self.etag: bytes | None = None
        self.max_age_s: float | None = None
        self.is_framed = False
        self.is_not_modified = False
        self.policy = policy
        self._max_bytes = max_bytes
        self._charge = Charge(budget)
        self._check_prefixes = tuple(check_prefixes)
        self._validator: tuple[bytes, tuple[str, ...]] | None = None
        self._attempts = 0
        self._retry_after_s = 0.0
        self._reset()

    def _reset(self) -> None:
        self._body = io.BytesIO()
        self._received = 0
        self._content_length: int | None = None
        # Judges with the size that the body must have before they are asked again.
        self._pending = [(check, 1) for check in self._check_prefixes]
        self._next_check = 1 if self._pending else _MAX_PREFIX + 1

    def validate(self, etag: bytes, hosts: tuple[str, ...]) -> None:
        """Let the server of the last of `hosts` say that the stored payload is still good."""
        self._validator = (etag, hosts)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Request headers of the current hop."""
        headers = [
            (b"Host", self.url.host_header),
            (b"Accept", b"*/*"),
            (b"Accept-Encoding", b"identity"),
            (b"User-Agent", b"safelight"),
        ]
        if self._validator is not None and self._validates:
            headers.append((b"If-None-Match", self._validator[0]))
        return headers

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of each hop so far."""
        return tuple(url.host for url in self.hops)

    @property
    def _validates(self) -> bool:
        # Only on the hops that led to the stored payload: another server's tag says nothing.
        return self._validator is not None and self._validator[1] == self.hosts

    def receive_head(self, status: int, headers: Headers) -> bool:
        """Judge an answer by its head; whether its body is the payload.

        False: follow `url`, or `is_not_modified` says that the stored payload is still good.

        Raises:
            BlockedURLError: A redirect to a URL that is malformed or not allowed.
            FetchRefusedError: The answer is final and not a payload.
            PayloadTooLargeError: The announced length is over the cap or the budget.
            TransientFetchError: Another attempt may get another answer.
        """
        fields = {name.lower(): value for name, value in headers}
        if status in _REDIRECTS:
            self._follow(fields.get(b"location"))
            return False
        self.max_age_s = _max_age_s(headers)
        if status == 304 and self._validates:
            self.is_not_modified = True
            return False
        if status >= 500 or status in _TRANSIENT_4XX:
            self._retry_after_s = _seconds(fields.get(b"retry-after"))
            raise TransientFetchError(f"server answered {status}")
        if status not in (200, 203):
            raise FetchRefusedError(f"server answered {status}")
        if fields.get(b"content-encoding", b"").strip().lower() in _COMPRESSED:
            raise FetchRefusedError("server compressed the body although it was asked not to")
        self.etag = fields.get(b"etag")
        length = fields.get(b"content-length")
        self.is_framed = length is not None or b"transfer-encoding" in fields
        # With a transfer encoding the length is meaningless (RFC 9112 section 6.3).
        if length is not None and length.isdigit() and b"transfer-encoding" not in fields:
            self._content_length = int(length)
            if self._content_length > self._max_bytes:
                raise self._too_large(self._content_length)
            self.charge(self._content_length)
        return True

    def _follow(self, location: bytes | None) -> None:
        if not location:
            # An empty one would be the same URL again (RFC 3986 section 5.2.2).
            raise FetchRefusedError("redirect without a location")
        if len(self.hops) > self.policy.max_redirects:
            raise FetchRefusedError(f"more than {self.policy.max_redirects} redirects")
        try:
            text = location.decode()
        except UnicodeDecodeError:
            text = location.decode("latin-1")
        url = join_http_url(self.url, text)
        self.policy.domains.check(url)
        self.url = url
        self.hops.append(url)

    def receive(self, chunk: bytes) -> int:
        """Take the next bytes of the body; the size of the prefix that wants a `check`, or 0.

        Raises:
            PayloadTooLargeError: The body is over the cap or the budget.
        """
        self._received += len(chunk)
        if self._received > self._max_bytes:
            raise self._too_large(None)
        if self._received > self._charge.held_bytes:
            self.charge(self._received)
        self._body.write(chunk)
        return 0 if self._received < self._next_check else min(self._received, _MAX_PREFIX)

    def check(self) -> None:
        """Show the decoders what has arrived. Takes time in proportion to it.

        Raises:
            MediaError: A decoder refuses it.
        """
        with self._body.getbuffer() as view:
            prefix = bytes(view[:_MAX_PREFIX])
        pending = []
        for check, wanted in self._pending:
            if self._received < wanted:
                pending.append((check, wanted))
                continue
            with decoder_errors():
                verdict = check(prefix)
            if verdict is not None:
                # At least double, so that all checks together stay linear in the prefix.
                at_least = getattr(verdict, "at_least", None) or 0
                pending.append((check, max(at_least, 2 * len(prefix))))
        self._pending = pending
        wanted = min((wanted for _, wanted in pending), default=_MAX_PREFIX + 1)
        self._next_check = wanted if wanted <= _MAX_PREFIX else self._max_bytes + 1

    def finish(self) -> bytes:
        """Return the whole body, which has ended."""
        if self._content_length is not None and self._received < self._content_length:
            raise self.cut_short()
        # No copy: the buffer itself becomes the bytes object.
        return self._body.getvalue()

    def cut_short(self) -> FetchError:
        """Return what it means that the peer closed its side, in good order, before the end."""
        if self._content_length is None:
            return TransientFetchError("connection ended early")
        # A wrong length, which another attempt would be told again.
        return FetchRefusedError(
            f"connection ended early: {self._received} of {self._content_length} bytes"
        )

    def retry(self, error: FetchError) -> float:
        """Start over after `error`; return the seconds to wait before that.

        Raises:
            FetchError: `error` itself, where it is final or no attempt is left.
        """
        self.abandon()
        if not isinstance(error, TransientFetchError):
            raise error
        if self._attempts >= self.policy.retries:
            raise TransientFetchError(f"{error.message}, after {self._attempts + 1} attempts")
        backoff_s = min(self.policy.backoff_s * 2.0**self._attempts, _MAX_BACKOFF_S)
        # Jitter keeps the clients of one struggling server apart.
        delay_s = max(backoff_s * random.uniform(0.5, 1.0), self._retry_after_s)
        self._attempts += 1
        self._retry_after_s = 0.0
        self.url = self.hops[0]
        del self.hops[1:]
        self._reset()
        return delay_s

    def abandon(self) -> None:
        """Give back what was charged: the bytes are dropped."""
        self._charge.refund()

    def charge(self, total: int) -> None:
        """Hold `total` bytes of the request's budget.

        Raises:
            PayloadTooLargeError: The budget has not that much left.
        """
        self._charge.reserve(total)

    def _too_large(self, actual: int | None) -> PayloadTooLargeError:
        size = "is" if actual is None else f"has {actual} bytes,"
        return PayloadTooLargeError(
            f"payload {size} over max_bytes {self._max_bytes}",
            limit=self._max_bytes,
            actual=actual,
        )


def _seconds(retry_after: bytes | None) -> float:
    """The delay that a server asks for; a date is not honored."""
    return float(retry_after) if retry_after is not None and retry_after.isdigit() else 0.0


def _max_age_s(headers: Headers) -> float | None:
    """Seconds for which an answer may be used unasked (RFC 9111 section 5.2.2).

    Infinite where the server says nothing, None where the answer must not be stored.
    """
    directives = dict(each.partition(b"=")[::2] for each in _items(headers, b"cache-control"))
    if b"no-store" in directives or b"*" in _items(headers, b"vary"):
        return None
    if b"no-cache" in directives:
        return 0.0
    max_age = directives.get(b"max-age")
    return math.inf if max_age is None else _seconds(max_age.strip(b'"'))


def _items(headers: Headers, name: bytes) -> list[bytes]:
    """The items of a list field, whose lines are one list (RFC 9110 section 5.3)."""
    lines = b",".join(value for other, value in headers if other.lower() == name)
    return [item.strip().lower() for item in lines.split(b",")]
