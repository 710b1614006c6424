"""What a client's text must be."""

from __future__ import annotations

from safelight.errors import RequestError

__all__ = ["check_uuid", "is_text"]

_MAX_UUID_CHARS = 256


def is_text(string: str) -> bool:
    """Whether `string` has UTF-8 bytes: JSON can bring lone surrogates, which have none."""
    try:
        string.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_uuid(uuid: object, where: str) -> None:
    """Refuse what cannot name an item: a UUID is text of 1 to 256 characters.

    Raises:
        RequestError: Starts with `where`, and does not echo the UUID.
    """
    if not (isinstance(uuid, str) and uuid):
        raise RequestError(f"{where} must be a string that is not empty")
    if len(uuid) > _MAX_UUID_CHARS:
        raise RequestError(f"{where} is over {_MAX_UUID_CHARS} characters")
    if not is_text(uuid):
        raise RequestError(f"{where} is not valid text")
