"""What callers may rely on: the public names are listed, sorted, there and documented."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest

import safelight

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(safelight.__path__, "safelight.")
    if not module.name.rpartition(".")[2].startswith("_")
)

# The names that users of the library and its peers count on; they never go away.
PROMISED = [
    "DecodeSpec",
    "ImageHeader",
    "ImageMediaIO",
    "MediaCache",
    "MediaConnector",
    "MediaRef",
    "MultiModalHasher",
    "NeedMoreBytes",
    "collect_media_decodes",
    "collect_media_decodes_async",
    "derive_media_key",
    "derive_media_keys",
    "probe",
    "probe_prefix",
    "submit_media_decodes",
]


@pytest.fixture(scope="module", autouse=True)
def every_module() -> dict[str, ModuleType]:
    """All modules, imported: only then does a submodule show that hides a public name."""
    return {name: importlib.import_module(name) for name in MODULES}


def is_documented(name: str, value: object) -> bool:
    """Whether a class or function says what it is; a constant or alias cannot."""
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return True
    doc = (value.__doc__ or "").strip()
    return bool(doc) and not doc.startswith(f"{name}(")  # what a dataclass or a tuple makes up


def test_all_is_sorted_without_duplicates() -> None:
    assert list(safelight.__all__) == sorted(set(safelight.__all__))


def test_all_is_what_type_checkers_see() -> None:
    # What is loaded on first use is imported for type checkers only: the two must not part.
    imported = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse(Path(safelight.__file__).read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("safelight.")
        for alias in node.names
    }
    assert imported == set(safelight.__all__)


def test_dir_shows_exactly_the_public_names() -> None:
    shown = {name for name in dir(safelight) if not name.startswith("_")} | {"__version__"}
    modules = {name for name in shown if inspect.ismodule(getattr(safelight, name))}
    assert shown - modules == set(safelight.__all__)


@pytest.mark.parametrize("name", PROMISED)
def test_promised_name_is_public(name: str) -> None:
    assert name in safelight.__all__


def test_every_error_is_public() -> None:
    errors = importlib.import_module("safelight.errors")
    assert set(errors.__all__) <= set(safelight.__all__)
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), safelight.SafelightError)


@pytest.mark.parametrize("name", safelight.__all__)
def test_public_name_is_there_and_documented(name: str) -> None:
    value = getattr(safelight, name)
    assert not inspect.ismodule(value)
    assert is_documented(name, value)


@pytest.mark.parametrize("name", MODULES)
def test_module_lists_what_it_has(every_module: dict[str, ModuleType], name: str) -> None:
    module = every_module[name]
    assert module.__doc__, "a module's header says what it owns"
    assert list(module.__all__) == sorted(set(module.__all__))
    for public in module.__all__:
        assert is_documented(public, getattr(module, public)), public


def test_no_module_imports_from_the_package_itself() -> None:
    # The package exports what its modules have; importing from it would hide who depends on whom.
    for path in sorted(Path(safelight.__path__[0]).rglob("*.py")):
        imported = [
            alias.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and node.module == "safelight"
            for alias in node.names
        ]
        assert set(imported) <= {"_safelight"}, path.name


def test_every_allowed_difference_of_the_stub_has_a_reason() -> None:
    lines = (Path(__file__).parent / "typing" / "stubtest.allow").read_text().splitlines()
    entries = [index for index, line in enumerate(lines) if line and not line.startswith("#")]
    assert entries
    for index in entries:
        assert lines[index - 1].startswith("#"), f"{lines[index]} has no reason above it"
