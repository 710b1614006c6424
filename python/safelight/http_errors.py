"""The one table of exception classes and HTTP statuses, and what a client may read of an error.

Owns the statuses of everything that a request can end in. Imports no web framework, and must never
let a message through that is not ours: foreign ones print objects, addresses and paths.
"""

from __future__ import annotations

import re
from typing import Any

from safelight.errors import (
    BlockedURLError,
    CacheMissError,
    ConfigurationError,
    FetchError,
    FetchRefusedError,
    MediaError,
    PayloadTooLargeError,
    RawRefError,
    ReleasedError,
    RequestError,
    SafelightError,
    SpecError,
    TransientFetchError,
)

__all__ = ["error_body", "http_status"]

# The first class of an error's MRO that is listed here decides.
_STATUSES: dict[type[BaseException], int] = {
    SpecError: 400,
    RequestError: 400,
    ConfigurationError: 500,
    BlockedURLError: 400,
    FetchRefusedError: 422,
    PayloadTooLargeError: 422,
    # After its retries: the client's URL may be fine, so it is not the client's error.
    TransientFetchError: 500,
    FetchError: 500,
    MediaError: 422,
    RawRefError: 400,
    CacheMissError: 503,
    ReleasedError: 500,
    # What libraries raise for values that they cannot take. A TypeError is a mistake in a program.
    ValueError: 400,
    OverflowError: 400,
}

_TYPES = {
    400: "BadRequestError",
    422: "UnprocessableEntityError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}

_FOREIGN_MESSAGES = {
    400: "the request is not valid",
    500: "internal server error",
    503: "the media cache has lost items of this request, try again",
}

# Ours hold none; a decoder's text that was wrapped might.
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")


def http_status(error: BaseException) -> int:
    """Return the HTTP status of a request that ended in `error`.

    400 and 422 are the client's to mend, 503 is worth trying again, 500 is the server's.
    """
    for cls in type(error).__mro__:
        status = _STATUSES.get(cls)
        if status is not None:
            return status
    return 500


def error_body(error: BaseException) -> dict[str, Any]:
    """Return the body of the answer to a request that ended in `error`, as OpenAI's servers do.

    ``{"error": {"message", "type", "param": None, "code"}}``, and ``"modality"`` and ``"index"``
    where one item is at fault. The message is the error's own only if it is written for clients.
    """
    status = http_status(error)
    is_for_clients = isinstance(error, SafelightError) and (
        status < 500 or isinstance(error, FetchError)
    )
    message = _ADDRESS.sub("", str(error)) if is_for_clients else _FOREIGN_MESSAGES[status]
    body: dict[str, Any] = {
        "message": message,
        "type": _TYPES[status],
        "param": None,
        "code": status,
    }
    for name in ("modality", "index"):
        value = getattr(error, name, None) if isinstance(error, SafelightError) else None
        if value is not None:
            body[name] = value
    return {"error": body}
