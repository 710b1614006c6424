"""Which methods are a base's own.

Owns the mark by which a caller that could do better than to call a method, with what it has made
already, knows that the method is not overridden.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["is_plain", "plain"]

F = TypeVar("F", bound=Callable[..., Any])


def plain(method: F) -> F:
    """Mark `method`: an override, by a subclass, a mixin or a patch, does not have the mark."""
    method.__dict__["_is_plain"] = True
    return method


def is_plain(method: Callable[..., Any]) -> bool:
    """Whether `method`, looked up at an instance, is a marked one."""
    return getattr(method, "_is_plain", False)
