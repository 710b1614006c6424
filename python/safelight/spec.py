"""`DecodeSpec`: the settings of a decode, as the canonical bytes that enter a key.

Owns the canonical form: JSON with sorted keys, separators ``,`` and ``:``, ASCII escapes, UTF-8;
exactly what ``json.dumps(settings, sort_keys=True, separators=(",", ":"), allow_nan=False)``
gives. It is a published format and never changes. It is not RFC 8785, which writes numbers,
escapes and key order otherwise. Must never know what a setting means.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Self

from safelight._safelight import CanonicalSpec
from safelight.errors import SpecError

__all__ = ["DecodeSpec"]

# Deep enough for any settings; far from the interpreter's recursion limit.
_MAX_DEPTH = 64


class DecodeSpec(CanonicalSpec):
    """What a decode depends on, frozen, hashable and equal by its canonical bytes.

    Args:
        settings: JSON values under string keys. Tuples become lists. ``1`` and ``1.0`` are two
            different settings. None is the empty spec.

    Raises:
        SpecError: A value is not JSON (another type, a non-string key, a non-finite number) or
            nests more than 64 levels deep.
    """

    __slots__ = ()

    def __new__(cls, settings: Mapping[str, Any] | None = None) -> Self:
        """Make the canonical bytes, once."""
        return super().__new__(cls, _canonical_bytes(settings))

    @property
    def settings(self) -> dict[str, Any]:
        """A fresh copy of the settings: changing it changes nothing else."""
        settings: dict[str, Any] = json.loads(self.canonical_bytes())
        return settings

    def extend(self, /, **settings: Any) -> DecodeSpec:
        """Return a spec with `settings` added; a repeated name takes the new value.

        Raises:
            SpecError: As the constructor.
        """
        return DecodeSpec({**self.settings, **settings})

    def __repr__(self) -> str:
        return f"DecodeSpec({self.settings!r})"

    def __reduce__(self) -> tuple[type[DecodeSpec], tuple[dict[str, Any]]]:
        return DecodeSpec, (self.settings,)


def _canonical_bytes(settings: Mapping[str, Any] | None) -> bytes:
    if settings is None:
        return b"{}"
    if not isinstance(settings, Mapping):
        raise SpecError(f"settings must be a mapping, not {type(settings).__name__}")
    try:
        return json.dumps(
            _plain(settings, _MAX_DEPTH), sort_keys=True, separators=(",", ":"), allow_nan=False
        ).encode()
    except SpecError:
        raise
    except ValueError as error:
        # Non-finite numbers, and integers of more digits than the interpreter turns into text.
        raise SpecError("settings hold a number that JSON cannot") from error


def _plain(value: Any, depth: int) -> Any:
    """Return `value` with mappings as dicts and tuples as lists; refuse what is not JSON."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if depth == 0:
        raise SpecError(f"settings nest more than {_MAX_DEPTH} levels deep")
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth - 1) for item in value]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise SpecError(f"setting names must be str, not {type(key).__name__}")
        return {key: _plain(item, depth - 1) for key, item in value.items()}
    raise SpecError(f"a setting must be JSON, not {type(value).__name__}")
