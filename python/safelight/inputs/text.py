"""What text a request may bring. Knows no message and no prompt."""

from __future__ import annotations

__all__ = ["is_text"]


def is_text(string: str) -> bool:
    """Whether `string` has UTF-8 bytes: JSON can bring lone surrogates, which have none."""
    try:
        string.encode()
    except UnicodeEncodeError:
        return False
    return True
