"""`ItemPlace`: which item of a request is meant, in errors, jobs and look-ups alike."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ItemPlace"]


class ItemPlace(NamedTuple):
    """The place of one item in a request."""

    modality: str
    """Name of its modality."""
    original_index: int
    """Its number among the items of its modality, from 0, in the order of the request."""
