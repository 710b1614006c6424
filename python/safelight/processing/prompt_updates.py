"""Prompt updates: which tokens of a prompt an item's placeholder becomes.

Owns the replacement of targets in token ids, in prompt order, for cached and fresh items
together. A count that does not match is an error, never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from safelight.errors import RequestError
from safelight.inputs import PlaceholderRange

__all__ = [
    "PromptReplacement",
    "PromptUpdateDetails",
    "ResolvedPromptUpdate",
    "apply_prompt_updates",
]


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


PromptUpdateContent = Sequence[int] | PromptUpdateDetails


@dataclass(frozen=True)
class PromptReplacement:
    """Replace a target by what each item needs.

    Attributes:
        modality: Whose items are meant.
        target: Token ids to look for; each item takes the next occurrence.
        replacement: The tokens, or a function of the item's index among those processed.
    """

    modality: str
    target: Sequence[int]
    replacement: PromptUpdateContent | Callable[[int], PromptUpdateContent]

    def resolve(self, item_index: int) -> ResolvedPromptUpdate:
        """Return the update of one item, which no longer depends on its index."""
        content = self.replacement(item_index) if callable(self.replacement) else self.replacement
        if not isinstance(content, PromptUpdateDetails):
            content = PromptUpdateDetails(content)
        return ResolvedPromptUpdate(self.modality, tuple(self.target), content)


@dataclass(frozen=True, eq=False)
class ResolvedPromptUpdate:
    """The update of one item: what a processor cache keeps beside the item."""

    modality: str
    target: tuple[int, ...]
    content: PromptUpdateDetails


def apply_prompt_updates(
    token_ids: Sequence[int], updates: Mapping[str, Sequence[ResolvedPromptUpdate]]
) -> tuple[list[int], dict[str, list[PlaceholderRange]]]:
    """Replace the targets of all items, and say where each item's tokens are.

    Args:
        token_ids: The prompt with one target an item.
        updates: One update an item by modality, in the order of the items.

    Returns:
        The expanded token ids, and a range for each item. Linear in the prompt for targets of
        one token.

    Raises:
        RequestError: The prompt has fewer or more targets than there are items.
    """
    prompt = list(token_ids)
    expanded: list[int] = []
    placeholders: dict[str, list[PlaceholderRange]] = {modality: [] for modality in updates}
    pending = {modality: 0 for modality, of_modality in updates.items() if of_modality}
    matches = {name: _find(prompt, updates[name][0].target, 0) for name in pending}
    start = 0
    while pending:
        modality = min(pending, key=lambda name: matches[name])
        match, index = matches[modality], pending[modality]
        if match == len(prompt):
            raise _count_error(prompt, updates, modality)
        update = updates[modality][index]
        expanded += prompt[start:match]
        placeholders[modality].append(
            PlaceholderRange(len(expanded), len(update.content.full), update.content.is_embed)
        )
        expanded += update.content.full
        start = match + len(update.target)
        if index + 1 < len(updates[modality]):
            pending[modality] = index + 1
        else:
            del pending[modality]
        for name in pending:
            # What this modality consumed may overlap another's next match.
            if name == modality or matches[name] < start:
                matches[name] = _find(prompt, updates[name][pending[name]].target, start)
    for modality, of_modality in updates.items():
        if of_modality and _find(prompt, of_modality[-1].target, start) < len(prompt):
            raise _count_error(prompt, updates, modality)
    expanded += prompt[start:]
    return expanded, placeholders


def _count_error(
    prompt: list[int], updates: Mapping[str, Sequence[ResolvedPromptUpdate]], modality: str
) -> RequestError:
    target, count, start = updates[modality][0].target, 0, 0
    while (match := _find(prompt, target, start)) < len(prompt):
        count, start = count + 1, match + len(target)
    return RequestError(
        f"the prompt has {count} {modality} placeholders "
        f"for {len(updates[modality])} {modality} items"
    )


def _find(prompt: list[int], target: Sequence[int], start: int) -> int:
    """Index of `target` in `prompt` from `start` on; the prompt's length where there is none."""
    if not target:
        raise ValueError("an empty target would match everywhere")
    while True:
        try:
            start = prompt.index(target[0], start)
        except ValueError:
            return len(prompt)
        if len(target) == 1 or tuple(prompt[start : start + len(target)]) == tuple(target):
            return start
        start += 1
