"""`PlaceholderRange`: where an item's tokens sit in the prompt. Knows no processor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["PlaceholderRange"]


@dataclass(frozen=True, eq=False)
class PlaceholderRange:
    """A run of prompt tokens that stand for one item.

    Attributes:
        offset: Index of the run's first token in the prompt.
        length: Number of tokens in the run.
        is_embed: Bool mask of shape ``[length]``, true where the token takes an embedding of the
            item; None when all do.
    """

    offset: int
    length: int
    is_embed: npt.NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        if self.offset < 0 or self.length <= 0:
            raise ValueError(f"no range has offset {self.offset} and length {self.length}")
        if self.is_embed is not None and self.is_embed.shape != (self.length,):
            raise ValueError(f"is_embed must have shape ({self.length},)")

    @property
    def end(self) -> int:
        """Index of the first token after the run."""
        return self.offset + self.length

    def get_num_embeds(self) -> int:
        """Tokens of the run that take an embedding."""
        return self.length if self.is_embed is None else int(self.is_embed.sum())

    def extract_embeds_range(self) -> list[tuple[int, int]]:
        """First and last prompt index, both included, of each run of embedding tokens."""
        if self.is_embed is None:
            return [(self.offset, self.end - 1)]
        edges = np.flatnonzero(np.diff(np.concatenate(([False], self.is_embed, [False]))))
        return [
            (self.offset + int(start), self.offset + int(stop) - 1)
            for start, stop in zip(edges[::2], edges[1::2], strict=True)
        ]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PlaceholderRange):
            return NotImplemented
        return (self.offset, self.length) == (other.offset, other.length) and (
            np.array_equal(self._mask(), other._mask())
        )

    def __hash__(self) -> int:
        return hash((self.offset, self.length))

    def _mask(self) -> npt.NDArray[np.bool_]:
        return np.ones(self.length, np.bool_) if self.is_embed is None else self.is_embed
