"""The stub, which editors show, and the binary tell one text."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import safelight
from safelight import _safelight

STUB = Path(safelight.__file__).with_name("_safelight.pyi")

Documented = ast.ClassDef | ast.FunctionDef


def stub_names() -> Iterator[tuple[str, Documented, object]]:
    """Classes, functions and methods of the stub, each with what the binary has for it."""
    for node in ast.parse(STUB.read_text()).body:
        if not isinstance(node, Documented):
            continue
        value = getattr(_safelight, node.name)
        yield node.name, node, value
        for member in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
                yield f"{node.name}.{member.name}", member, getattr(value, member.name)


NAMES = {name: (node, value) for name, node, value in stub_names()}


@pytest.mark.parametrize("name", NAMES)
def test_stub_and_binary_tell_one_text(name: str) -> None:
    node, value = NAMES[name]
    assert (ast.get_docstring(node) or "") == inspect.cleandoc(value.__doc__ or "")


@pytest.mark.parametrize("name", NAMES)
def test_everything_but_a_field_is_documented(name: str) -> None:
    node, value = NAMES[name]
    # The fields of a value are told by its class, under Attributes.
    owner = NAMES[name.partition(".")[0]][0]
    is_field = inspect.isgetsetdescriptor(value) and f"    {node.name}: " in (
        ast.get_docstring(owner) or ""
    )
    assert is_field or ast.get_docstring(node)


def test_what_the_package_exports_is_in_the_stub() -> None:
    exported = {
        name
        for name in safelight.__all__
        if hasattr(_safelight, name) and callable(getattr(_safelight, name))
    }
    assert {"ImageHeader", "probe", "probe_files", "probe_prefix"} <= exported <= set(NAMES)
