"""What a class declares about its own methods, and when that still holds.

Owns one rule: a declaration is of the very functions that the class which makes it has. A
subclass, a mixin or a patch that replaces one of them may do anything in its place, so there the
declaration says nothing until it is made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

__all__ = ["Declaring", "covered_by"]

F = TypeVar("F", bound=Callable[..., Any])


def covered_by(*declarations: str) -> Callable[[F], F]:
    """Return a decorator for a method that `declarations`, names of class attributes, speak of.

    The methods that override it are covered as well.
    """

    def mark(method: F) -> F:
        method.__dict__["_covered_by"] = declarations
        return method

    return mark


class Declaring:
    """A base for classes that declare what their methods may be used for.

    A declaration is a bool in the body of a class. It is looked up at use, so that patches of
    classes and of instances count.
    """

    # Names of the methods that declarations speak of, each with its declarations.
    _covered: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    # Those methods as the class had them when it was defined: a patch comes later.
    _defined: ClassVar[Mapping[str, object]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._covered = {
            name: method._covered_by
            for base in cls.__mro__
            for name, method in vars(base).items()
            if hasattr(method, "_covered_by")
        }
        cls._defined = {name: getattr(cls, name) for name in cls._covered}

    def get_overridden(self, declaration: str) -> list[str]:
        """Names of the methods that are not those of the class which made `declaration`."""
        cls = type(self)
        declaring = next(base for base in cls.__mro__ if declaration in vars(base))
        defined = vars(declaring).get("_defined", {})
        return sorted(
            name
            for name, declarations in cls._covered.items()
            if declaration in declarations
            and getattr(getattr(self, name), "__func__", None) is not defined.get(name)
        )

    def holds(self, declaration: str) -> bool:
        """Whether `declaration` is made, and of the methods that this object has."""
        return bool(getattr(self, declaration)) and not self.get_overridden(declaration)
