"""Prompt updates: which tokens of a prompt an item's placeholder becomes.

Owns the replacement of targets in token ids, in prompt order, for cached and fresh items
together. A count that does not match is an error, never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from safelight.errors import RequestError
from safelight.inputs import PlaceholderRange, PromptUpdateDetails, ResolvedPromptUpdate

__all__ = [
    "PromptReplacement",
    "apply_prompt_updates",
]


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


def apply_prompt_updates(
    token_ids: Sequence[int],
    updates: Mapping[str, Sequence[ResolvedPromptUpdate]],
    *,
    targets: Mapping[str, Sequence[Sequence[int]]] | None = None,
) -> tuple[list[int], dict[str, list[PlaceholderRange]]]:
    """Replace the targets of all items, and say where each item's tokens are.

    Args:
        token_ids: The prompt with one target an item.
        updates: One update an item by modality, in the order of the items.
        targets: What stands for items of each modality, so that a placeholder without any item
            is found too.

    Returns:
        The expanded token ids, and a range for each item. Linear in the prompt for targets of
        one token.

    Raises:
        RequestError: The prompt has fewer or more targets than there are items, or an item takes
            no tokens.
    """
    prompt = list(token_ids)
    expanded: list[int] = []
    placeholders: dict[str, list[PlaceholderRange]] = {modality: [] for modality in updates}
    searches = _start_searches(prompt, updates, targets or {})
    start = 0
    # The first of equals wins, so that a target of two modalities goes to the one named first.
    while searches and (search := min(searches, key=attrgetter("match"))).match < len(prompt):
        if not search.items:
            raise _count_error(prompt, updates, search)
        update, match = search.items.pop(), search.match
        if not update.content.full:
            index = len(placeholders[search.modality])
            raise RequestError(f"{search.modality} {index} takes no tokens of the prompt")
        expanded += prompt[start:match]
        placeholders[search.modality].append(
            PlaceholderRange(len(expanded), len(update.content.full), update.content.is_embed)
        )
        expanded += update.content.full
        start = match + len(update.target)
        for other in searches:
            # What this item consumed may overlap another's next match.
            if other is search or other.match < start:
                other.find(prompt, start)
    for search in searches:
        if search.items:
            raise _count_error(prompt, updates, search)
    expanded += prompt[start:]
    return expanded, placeholders


class _Search:
    """Where the next target of one modality is, and who takes it."""

    __slots__ = ("items", "match", "modality", "target")

    def __init__(
        self, modality: str, items: list[ResolvedPromptUpdate], target: tuple[int, ...] = ()
    ) -> None:
        self.modality = modality
        # Last first, because taking from the end of a list is cheap.
        self.items = items[::-1]
        self.target = target
        self.match = 0

    def find(self, prompt: list[int], start: int) -> None:
        """Look for the next item's target; after the last item, for one too many."""
        if self.items:
            self.target = self.items[-1].target
        self.match = _find(prompt, self.target, start)


def _start_searches(
    prompt: list[int],
    updates: Mapping[str, Sequence[ResolvedPromptUpdate]],
    targets: Mapping[str, Sequence[Sequence[int]]],
) -> list[_Search]:
    searches = [_Search(modality, list(items)) for modality, items in updates.items() if items]
    for modality, of_modality in targets.items():
        if not updates.get(modality):
            searches += [_Search(modality, [], tuple(target)) for target in of_modality]
    for search in searches:
        search.find(prompt, 0)
    return searches


def _count_error(
    prompt: list[int], updates: Mapping[str, Sequence[ResolvedPromptUpdate]], search: _Search
) -> RequestError:
    items = updates.get(search.modality, ())
    target = items[0].target if items else search.target
    count = start = 0
    while (match := _find(prompt, target, start)) < len(prompt):
        count, start = count + 1, match + len(target)
    return RequestError(
        f"the prompt has {count} {search.modality} placeholders "
        f"for {len(items)} {search.modality} items"
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
