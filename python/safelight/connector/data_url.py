"""``data:`` URLs (RFC 2397), base64 only.

Owns where the payload starts and what it may weigh. Must never copy the payload as text, nor
repeat any part of the URL in an error.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from safelight.errors import BlockedURLError, PayloadTooLargeError

__all__ = ["DataURL", "scheme_of", "split_data_url"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,31}):", re.ASCII)


def scheme_of(url: str) -> str:
    """Return the scheme of `url` in lower case; ``""`` where it has none.

    Raises:
        BlockedURLError: `url` is no str.
    """
    if not isinstance(url, str):
        raise BlockedURLError(f"URL must be str, not {type(url).__name__}")
    match = _SCHEME.match(url)
    return match[1].lower() if match else ""


class DataURL(NamedTuple):
    """The parts of a data URL, without its text."""

    media_type: str
    """The caller's word for what the payload is; ``""`` where there is none."""
    start: int
    """Index of the payload's first character."""
    nbytes: int
    """What the payload decodes to, if it is well-formed."""


def split_data_url(url: str, max_bytes: int | None = None) -> DataURL:
    """Return where the payload of `url`, whose scheme is ``data:``, starts.

    Raises:
        BlockedURLError: There is no ``,``, or the last parameter is not exactly ``;base64``.
        PayloadTooLargeError: It decodes to more than `max_bytes`.
    """
    comma = url.find(",")
    if comma < 0:
        raise BlockedURLError("data URL is missing ',' between its header and its payload")
    media_type, _, parameters = url[len("data:") : comma].partition(";")
    if parameters.rpartition(";")[2] != "base64":
        raise BlockedURLError("data URL is not base64: its header must end in ';base64'")
    padding = 2 if url.endswith("==") else 1 if url.endswith("=") else 0
    nbytes = max((len(url) - comma - 1) // 4 * 3 - padding, 0)
    if max_bytes is not None and nbytes > max_bytes:
        raise PayloadTooLargeError(
            f"data URL brings {nbytes} bytes, over max_bytes {max_bytes}",
            limit=max_bytes,
            actual=nbytes,
        )
    return DataURL(media_type, comma + 1, nbytes)
