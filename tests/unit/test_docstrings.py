"""Every public name has a docstring, and the reference shows it."""

import re
from pathlib import Path

import griffe
import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "agent_harness",
    "agent_harness.providers",
    "agent_harness.testing",
    "agent_harness.tools",
    "session_backends",
)

OURS = ("agent_harness", "session_backends")


@pytest.fixture(scope="module")
def source() -> griffe.GriffeLoader:
    loader = griffe.GriffeLoader(search_paths=[str(ROOT / "src")], allow_inspection=False)
    loader.load("agent_harness")
    loader.load("session_backends")
    loader.resolve_aliases()
    return loader


def public_names(module: griffe.Module | griffe.Alias) -> dict[str, griffe.Object]:
    """What may be imported from a package: its own definitions and what it re-exports of ours, modules apart."""
    found: dict[str, griffe.Object] = {}
    for name, member in module.members.items():
        if name.startswith("_"):
            continue
        if isinstance(member, griffe.Alias):
            if not member.target_path.startswith(OURS) or not reexported(module, name):
                continue
            member = member.final_target
        if isinstance(member, griffe.Object) and not member.is_module:
            found[name] = member
    return found


def reexported(module: griffe.Module | griffe.Alias, name: str) -> bool:
    """Named in `__all__`, or imported as itself; what is imported plainly is for the module's own use."""
    if module.exports is not None:
        return name in module.exports
    return re.search(rf"import {name} as {name}$", module.filepath.read_text(), re.MULTILINE) is not None


def undocumented(name: str, thing: griffe.Object) -> list[str]:
    """`thing` and its public methods and properties that have no docstring; the class's covers its plain fields."""
    missing = [] if has_docstring(thing) else [name]
    if isinstance(thing, griffe.Class):
        for member_name, member in {**thing.inherited_members, **thing.members}.items():
            target = member.final_target if member.is_alias else member
            if member_name.startswith("_") or not target.path.startswith((*OURS, "sample")):
                continue
            if (target.is_function or "property" in target.labels) and not has_docstring(target):
                missing.append(f"{name}.{member_name}")
    return missing


def has_docstring(thing: griffe.Object) -> bool:
    return thing.docstring is not None and bool(thing.docstring.value.strip())


@pytest.mark.parametrize("package", PACKAGES)
def test_no_public_name_is_without_a_docstring(package: str, source: griffe.GriffeLoader) -> None:
    names = public_names(source.modules_collection[package])
    assert len(names) >= 5
    missing = [line for name, thing in names.items() for line in undocumented(f"{package}.{name}", thing)]
    assert missing == []


@pytest.mark.parametrize("package", PACKAGES)
def test_the_reference_shows_every_public_name(package: str, source: griffe.GriffeLoader) -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    shown = set(re.findall(r"^::: (\S+)$", pages, re.MULTILINE))
    names = public_names(source.modules_collection[package])
    absent = [
        f"{package}.{name}"
        for name, thing in names.items()
        if not {f"{package}.{name}", package, thing.path, thing.parent.path if thing.parent else ""} & shown
    ]
    assert absent == []


def test_what_is_missing_is_found() -> None:
    code = '''
"""A module."""
class Shown:
    """Documented."""
    field: int
    def told(self):
        """Documented."""
    def untold(self): ...
    @property
    def seen(self): ...
    def _private(self): ...
def bare(): ...
LIMIT = 3
SAID = 4
"""Documented."""
'''
    module = griffe.visit("sample", Path("sample.py"), code)
    missing = [line for name, thing in module.members.items() for line in undocumented(name, thing)]
    assert missing == ["Shown.untold", "Shown.seen", "bare", "LIMIT"]
