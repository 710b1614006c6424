"""What loading a URL came to: a ref, or an exception of ours.

Owns the promise that nothing else gets out. Must never put a foreign exception's text into one of
ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from safelight.errors import MediaError, SafelightError

__all__ = ["only_ours", "our", "outcome_of"]

T = TypeVar("T")


@contextmanager
def only_ours() -> Iterator[None]:
    """Let nothing out but a `SafelightError` (and what ends a task or the process)."""
    try:
        yield
    except SafelightError:
        raise
    except Exception as error:
        raise our(error) from error


def our(outcome: T | Exception) -> T | SafelightError:
    """Return `outcome`, or in place of a foreign exception one of ours."""
    if isinstance(outcome, SafelightError) or not isinstance(outcome, Exception):
        return outcome
    if isinstance(outcome, (ValueError, OSError)):
        ours: SafelightError = MediaError("media could not be loaded")
    else:
        ours = SafelightError(f"media could not be loaded ({type(outcome).__name__})")
    ours.__cause__ = outcome
    return ours


def outcome_of(load: Callable[[str], T], url: str) -> T | Exception:
    """Return what `load` returns, or the exception that it raises."""
    try:
        return load(url)
    except Exception as error:  # noqa: BLE001 - handed on in the place of a result
        return error
