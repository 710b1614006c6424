"""Laws of a decode spec: canonical, frozen, and nothing but JSON."""

from __future__ import annotations

import copy
import enum
import json
import math
import pickle
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safelight import DecodeSpec, SpecError

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(), values, max_size=4),
    max_leaves=12,
)
settings_dicts = st.dictionaries(st.text(), json_values, max_size=5)


def reordered(value: Any) -> Any:
    """Return `value` with the entries of every mapping in reverse order."""
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    if isinstance(value, list):
        return [reordered(item) for item in value]
    return value


@given(settings_dicts)
def test_canonical_bytes_are_sorted_compact_ascii_json(settings: dict[str, Any]) -> None:
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"), allow_nan=False)
    assert text.isascii()
    assert DecodeSpec(settings).canonical_bytes() == text.encode()


@given(settings_dicts)
def test_order_does_not_count_at_any_depth(settings: dict[str, Any]) -> None:
    assert DecodeSpec(settings) == DecodeSpec(reordered(settings))
    assert hash(DecodeSpec(settings)) == hash(DecodeSpec(reordered(settings)))


@given(settings_dicts)
def test_settings_are_what_was_given(settings: dict[str, Any]) -> None:
    spec = DecodeSpec(settings)
    assert spec.settings == settings
    assert DecodeSpec(spec.settings) == spec


@given(settings_dicts, settings_dicts)
def test_specs_are_equal_exactly_when_their_bytes_are(
    settings: dict[str, Any], others: dict[str, Any]
) -> None:
    spec, other = DecodeSpec(settings), DecodeSpec(others)
    assert (spec == other) == (spec.canonical_bytes() == other.canonical_bytes())


@given(settings_dicts, settings_dicts)
def test_extending_adds_and_overrides(settings: dict[str, Any], more: dict[str, Any]) -> None:
    spec = DecodeSpec(settings)
    assert spec.extend(**more) == DecodeSpec({**settings, **more})
    assert spec == DecodeSpec(settings)
    assert spec.extend() == spec


def test_extending_takes_any_name() -> None:
    assert DecodeSpec().extend(self=1, settings=2).settings == {"self": 1, "settings": 2}


@given(settings_dicts)
def test_copies_and_pickles_are_equal(settings: dict[str, Any]) -> None:
    spec = DecodeSpec(settings)
    for twin in (copy.copy(spec), copy.deepcopy(spec), pickle.loads(pickle.dumps(spec))):
        assert twin == spec
        assert type(twin) is DecodeSpec


def test_the_empty_spec() -> None:
    assert DecodeSpec() == DecodeSpec(None) == DecodeSpec({})
    assert DecodeSpec().canonical_bytes() == b"{}"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (0.0, -0.0),
        (1, True),
        (0, False),
        (0, None),
        ("", None),
        ("1", 1),
        ([], {}),
        ([1, [2]], [[1], 2]),
        # Composed and decomposed: no normalization is applied.
        ("\u00e9", "e\u0301"),
        (2**53, 2**53 + 1),
    ],
)
def test_values_that_differ_make_specs_that_differ(one: Any, other: Any) -> None:
    assert DecodeSpec({"a": one}) != DecodeSpec({"a": other})


def test_tuples_become_lists_and_mappings_dicts() -> None:
    spec = DecodeSpec(MappingProxyType({"a": (1, (2, 3)), "b": OrderedDict(y=1, x=2)}))
    assert spec == DecodeSpec({"a": [1, [2, 3]], "b": {"x": 2, "y": 1}})
    assert spec.settings["a"] == [1, [2, 3]]


def test_texts_and_numbers_of_an_enum_are_their_values() -> None:
    class Backend(enum.StrEnum):
        OPENCV = "opencv"

    class Level(enum.IntEnum):
        HIGH = 3

    assert DecodeSpec({"b": Backend.OPENCV, "l": Level.HIGH}) == DecodeSpec({"b": "opencv", "l": 3})


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(number: float) -> None:
    for settings in ({"a": number}, {"a": [1, {"b": number}]}):
        with pytest.raises(SpecError):
            DecodeSpec(settings)
    with pytest.raises(SpecError):
        DecodeSpec().extend(a=number)


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, object(), 1j, range(3), bytearray(b"x")])
def test_values_that_are_not_json_are_refused_by_type(value: Any) -> None:
    for settings in ({"a": value}, {"a": [value]}, {"a": {"b": value}}):
        with pytest.raises(SpecError, match=type(value).__name__) as caught:
            DecodeSpec(settings)
        assert "0x" not in str(caught.value)


@pytest.mark.parametrize("name", [1, None, b"a", ("a",), 1.5, True])
def test_names_that_are_not_text_are_refused(name: Any) -> None:
    for settings in ({name: 1}, {"a": {name: 1}}, {"a": [{name: 1}]}):
        with pytest.raises(SpecError, match=type(name).__name__):
            DecodeSpec(settings)


@pytest.mark.parametrize("settings", [[], "{}", 1, [("a", 1)]])
def test_settings_must_be_a_mapping(settings: Any) -> None:
    with pytest.raises(SpecError, match="mapping"):
        DecodeSpec(settings)


def test_nesting_is_bounded() -> None:
    nested: Any = 1
    for _ in range(63):
        nested = [nested]
    assert DecodeSpec({"a": nested}).settings == {"a": nested}
    with pytest.raises(SpecError, match="64"):
        DecodeSpec({"a": [nested]})
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(SpecError):
        DecodeSpec({"a": endless})


def test_an_integer_too_long_to_write_is_refused() -> None:
    with pytest.raises(SpecError):
        DecodeSpec({"a": 10**5_000})


def test_a_spec_error_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="JSON"):
        DecodeSpec({"a": b""})


def test_a_spec_is_frozen() -> None:
    settings = {"a": [1]}
    spec = DecodeSpec(settings)
    settings["a"].append(2)
    spec.settings["a"].append(3)
    assert spec.settings == {"a": [1]}
    with pytest.raises(AttributeError):
        spec.settings = {}  # type: ignore[misc]
    with pytest.raises(AttributeError):
        spec.other = 1  # type: ignore[attr-defined]


def test_a_spec_equals_nothing_else() -> None:
    assert DecodeSpec() != {}
    assert DecodeSpec() != b"{}"
    assert len({DecodeSpec(), DecodeSpec({}), DecodeSpec({"a": 1})}) == 2


def test_a_spec_shows_its_settings() -> None:
    assert repr(DecodeSpec({"fps": 2})) == "DecodeSpec({'fps': 2})"
