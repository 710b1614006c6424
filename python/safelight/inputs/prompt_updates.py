"""What one item does to a prompt, once it is known. Knows no processor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["PromptUpdateDetails", "ResolvedPromptUpdate"]


@dataclass(frozen=True, eq=False)
class PromptUpdateDetails:
    """The tokens that replace a target.

    Attributes:
        full: Token ids.
        is_embed: Bool mask of shape ``[len(full)]``, true where a token takes an embedding; None
            when all do.
    """

    full: Sequence[int]
    is_embed: npt.NDArray[np.bool_] | None = None

    @staticmethod
    def select_token_id(full: Sequence[int], embed_token_id: int) -> PromptUpdateDetails:
        """Return details in which only `embed_token_id` takes embeddings."""
        return PromptUpdateDetails(full, np.asarray(full) == embed_token_id)


@dataclass(frozen=True, eq=False)
class ResolvedPromptUpdate:
    """The update of one item: what a processor cache keeps beside the item."""

    modality: str
    target: tuple[int, ...]
    content: PromptUpdateDetails
