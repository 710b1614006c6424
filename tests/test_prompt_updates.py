"""Targets in a prompt to what each item needs: order, counts, masks, and a naive reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from safelight import PlaceholderRange, RequestError
from safelight.processing.prompt_updates import (
    PromptReplacement,
    PromptUpdateDetails,
    ResolvedPromptUpdate,
    apply_prompt_updates,
)

IMAGE, VIDEO = 9, 8


def updates(
    modality: str, target: Sequence[int], *fulls: Sequence[int]
) -> list[ResolvedPromptUpdate]:
    return [PromptReplacement(modality, target, full).resolve(0) for full in fulls]


def test_each_item_takes_the_next_target_of_its_modality() -> None:
    prompt = [1, IMAGE, 2, VIDEO, 3, IMAGE]
    token_ids, placeholders = apply_prompt_updates(
        prompt,
        {
            "image": updates("image", [IMAGE], [IMAGE] * 3, [IMAGE]),
            "video": updates("video", [VIDEO], [VIDEO, VIDEO]),
        },
    )
    assert token_ids == [1, 9, 9, 9, 2, 8, 8, 3, 9]
    assert placeholders == {
        "image": [PlaceholderRange(1, 3), PlaceholderRange(8, 1)],
        "video": [PlaceholderRange(5, 2)],
    }
    assert prompt == [1, IMAGE, 2, VIDEO, 3, IMAGE], "the caller's list is not changed"


def test_the_order_of_modalities_in_the_mapping_does_not_matter() -> None:
    by_modality = {
        "image": updates("image", [IMAGE], [IMAGE] * 2),
        "video": updates("video", [VIDEO], [VIDEO] * 3),
    }
    prompt = [VIDEO, IMAGE]
    forward = apply_prompt_updates(prompt, by_modality)
    backward = apply_prompt_updates(prompt, dict(reversed(by_modality.items())))
    assert forward == backward
    assert forward[0] == [8, 8, 8, 9, 9]


def test_a_target_of_several_tokens_is_replaced_whole() -> None:
    token_ids, placeholders = apply_prompt_updates(
        [5, 5, 6, 5, 6, 7], {"image": updates("image", [5, 6], [0, 0, 0], [0])}
    )
    assert token_ids == [5, 0, 0, 0, 0, 7]
    assert placeholders == {"image": [PlaceholderRange(1, 3), PlaceholderRange(4, 1)]}


def test_a_replacement_is_not_searched_again() -> None:
    token_ids, _ = apply_prompt_updates(
        [IMAGE, IMAGE], {"image": updates("image", [IMAGE], [IMAGE] * 4, [IMAGE] * 4)}
    )
    assert token_ids == [IMAGE] * 8


def test_masks_say_which_positions_take_embeddings() -> None:
    details = PromptUpdateDetails.select_token_id([1, IMAGE, IMAGE, 2], IMAGE)
    _, placeholders = apply_prompt_updates(
        [0, IMAGE],
        {"image": updates("image", [IMAGE], details)},  # type: ignore[arg-type]
    )
    (place,) = placeholders["image"]
    assert place.is_embed is not None
    assert place.is_embed.tolist() == [False, True, True, False]
    assert place.get_num_embeds() == 2
    assert place.extract_embeds_range() == [(2, 3)]


def test_a_replacement_may_depend_on_the_item() -> None:
    replacement = PromptReplacement("image", [IMAGE], lambda index: [IMAGE] * (index + 1))
    assert [list(replacement.resolve(index).content.full) for index in (0, 2)] == [[9], [9, 9, 9]]


@pytest.mark.parametrize(
    ("prompt", "found"), [([1, 2], 0), ([1, IMAGE], 1), ([IMAGE, IMAGE, 1, IMAGE], 3)]
)
def test_a_count_that_does_not_match_the_items_is_an_error(prompt: list[int], found: int) -> None:
    with pytest.raises(RequestError) as caught:
        apply_prompt_updates(prompt, {"image": updates("image", [IMAGE], [IMAGE], [IMAGE])})
    assert str(caught.value) == f"the prompt has {found} image placeholders for 2 image items"


def test_a_target_too_many_is_found_before_another_modality_too() -> None:
    with pytest.raises(RequestError, match="2 image placeholders for 1 image items"):
        apply_prompt_updates(
            [IMAGE, IMAGE, VIDEO],
            {
                "image": updates("image", [IMAGE], [IMAGE]),
                "video": updates("video", [VIDEO], [VIDEO]),
            },
        )


@pytest.mark.parametrize("updates_by_modality", [{}, {"image": []}])
def test_a_target_without_any_item_is_an_error(
    updates_by_modality: Mapping[str, list[ResolvedPromptUpdate]],
) -> None:
    with pytest.raises(RequestError, match="1 image placeholders for 0 image items"):
        apply_prompt_updates([1, IMAGE], updates_by_modality, targets={"image": [[IMAGE]]})


def test_a_prompt_without_items_stays_as_it_is() -> None:
    assert apply_prompt_updates([1, 2], {}, targets={"image": [[IMAGE]]}) == ([1, 2], {})
    assert apply_prompt_updates([], {"image": []}) == ([], {"image": []})


def test_an_item_without_tokens_is_an_error() -> None:
    with pytest.raises(RequestError, match="image 1 takes no tokens"):
        apply_prompt_updates([IMAGE, IMAGE], {"image": updates("image", [IMAGE], [IMAGE], [])})


def test_an_empty_target_is_a_fault_of_the_family() -> None:
    with pytest.raises(ValueError, match="empty target"):
        apply_prompt_updates([1], {"image": updates("image", [], [IMAGE])})


def _naive(
    prompt: list[int], by_modality: Mapping[str, Sequence[ResolvedPromptUpdate]]
) -> tuple[list[int], dict[str, list[PlaceholderRange]]] | None:
    """Walk the prompt token by token; None where a count does not match."""
    used = dict.fromkeys(by_modality, 0)
    expanded: list[int] = []
    placeholders: dict[str, list[PlaceholderRange]] = {name: [] for name in by_modality}
    at = 0
    while at < len(prompt):
        for name, of_modality in by_modality.items():
            if not of_modality:
                continue
            target = of_modality[0].target
            if tuple(prompt[at : at + len(target)]) == target:
                if used[name] == len(of_modality):
                    return None
                full = of_modality[used[name]].content.full
                used[name] += 1
                placeholders[name].append(PlaceholderRange(len(expanded), len(full)))
                expanded += full
                at += len(target)
                break
        else:
            expanded.append(prompt[at])
            at += 1
    if any(used[name] != len(of_modality) for name, of_modality in by_modality.items()):
        return None
    return expanded, placeholders


_TARGETS = st.lists(st.integers(0, 2), min_size=1, max_size=2)
_FULLS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=4)


@given(
    prompt=st.lists(st.integers(0, 2), max_size=12),
    first=st.tuples(_TARGETS, _FULLS),
    second=st.tuples(_TARGETS, _FULLS),
)
def test_equals_a_walk_token_by_token(
    prompt: list[int],
    first: tuple[list[int], list[list[int]]],
    second: tuple[list[int], list[list[int]]],
) -> None:
    by_modality = {
        "image": updates("image", first[0], *first[1]),
        "video": updates("video", second[0], *second[1]),
    }
    expected = _naive(prompt, by_modality)
    if expected is None:
        with pytest.raises(RequestError):
            apply_prompt_updates(prompt, by_modality)
    else:
        assert apply_prompt_updates(prompt, by_modality) == expected


def test_a_range_holds_what_it_says() -> None:
    place = PlaceholderRange(4, 5, np.array([True, True, False, True, False]))
    assert place.end == 9
    assert place.get_num_embeds() == 3
    assert place.extract_embeds_range() == [(4, 5), (7, 7)]
    assert PlaceholderRange(4, 5).extract_embeds_range() == [(4, 8)]
    assert PlaceholderRange(4, 5).get_num_embeds() == 5
    assert PlaceholderRange(4, 2) == PlaceholderRange(4, 2, np.array([True, True]))
    assert PlaceholderRange(4, 2) != PlaceholderRange(4, 2, np.array([True, False]))
    assert hash(PlaceholderRange(4, 2)) == hash(PlaceholderRange(4, 2, np.array([True, True])))
    assert PlaceholderRange(4, 2) != (4, 2)
    for offset, length in ((-1, 1), (0, 0), (0, -1)):
        with pytest.raises(ValueError, match="no range"):
            PlaceholderRange(offset, length)
    with pytest.raises(ValueError, match="is_embed"):
        PlaceholderRange(0, 2, np.array([True]))
