"""Every public name has a docstring, and the reference shows it."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import griffe
import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "agent_harness",
    "agent_harness.providers",
    "agent_harness.telemetry",
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


# Units ---------------------------------------------------------------------------------

MEASURED = re.compile(r"((^|_)(ms|bytes|tokens|seconds|timestamp)|_at)$")
UNIT_IN_NAME = re.compile(r"(^|_)(ms|bytes|tokens|seconds)$")
UNIT = re.compile(r"\b(ms|milliseconds|seconds|bytes|tokens)\b")


def members_of(thing: griffe.Object) -> dict[str, griffe.Object]:
    """The members of a class that are ours, inherited ones too."""
    if not isinstance(thing, griffe.Class):
        return {}
    members = {**thing.inherited_members, **thing.members}
    targets = {name: member.final_target if member.is_alias else member for name, member in members.items()}
    return {name: target for name, target in targets.items() if target.path.startswith((*OURS, "sample"))}


def told_of(field: griffe.Object) -> str:
    """What the reference says of a field: its docstring, else the comment on its line."""
    if field.docstring is not None:
        return field.docstring.value
    if field.lineno is None:
        return ""
    lines = lines_of(field)
    return lines[(field.endlineno or field.lineno) - 1].partition("  # ")[2]


def lines_of(thing: griffe.Object) -> list[str]:
    path = thing.filepath
    assert isinstance(path, Path)
    return list(thing.lines_collection[path])


def without_unit(name: str, thing: griffe.Object) -> list[str]:
    """The measured fields and properties of a class that say their unit in neither name, docstring nor comment."""
    return [
        f"{name}.{field}"
        for field, target in members_of(thing).items()
        if target.is_attribute and not field.startswith("_") and MEASURED.search(field)
        if not UNIT_IN_NAME.search(field) and not UNIT.search(told_of(target))
    ]


# Errors --------------------------------------------------------------------------------

NO_ERRORS_TO_HANDLE = {"AssertionError", "NotImplementedError", "TypeError"}
KINDS = (ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def tree_of(text: str) -> ast.Module:
    return ast.parse(text)


def node_of(function: griffe.Object) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Its definition; dataclasses have functions nobody wrote."""
    if not function.lineno:
        return None
    for node in ast.walk(tree_of("\n".join(lines_of(function)))):
        if isinstance(node, KINDS) and node.name == function.name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first <= function.lineno <= node.lineno:
                return node
    return None


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """What lies in a body, functions and classes inside it apart."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (*KINDS, ast.Lambda, ast.ClassDef)):
            yield child
            yield from own_nodes(child)


def raised_by(function: griffe.Object) -> set[str]:
    """The error classes a function raises by name: `raise Some(...)` and `raise Some`, no variables."""
    node = node_of(function)
    named: set[str] = set()
    for found in own_nodes(node) if node is not None else ():
        if isinstance(found, ast.Raise) and found.exc is not None:
            error = found.exc.func if isinstance(found.exc, ast.Call) else found.exc
            name = ast.unparse(error).rpartition(".")[2]
            if name[:1].isupper():
                named.add(name)
    return named - NO_ERRORS_TO_HANDLE


def told_errors(docstring: str) -> set[str]:
    """The names of a `Raises:` section, `One, Other: when.` too."""
    section = re.search(r"^( *)Raises:\n((?:\1 +.*\n?|\n)+)", docstring, re.MULTILINE)
    lines = re.findall(r"^ +(\w+(?:, \w+)*): \S", section[2], re.MULTILINE) if section else []
    return {name for line in lines for name in line.split(", ")}


def docstring_of(thing: griffe.Object | None) -> str:
    return thing.docstring.value if thing is not None and thing.docstring is not None else ""


def untold_errors(name: str, thing: griffe.Object, classes: dict[str, griffe.Class]) -> list[str]:
    """What public functions raise and do not name. "See `Protocol`." stands for what the protocol's method says."""
    functions = {name: thing} if thing.is_function else {f"{name}.{key}": one for key, one in members_of(thing).items()}
    found: list[str] = []
    for label, function in functions.items():
        short = function.name
        if not function.is_function and "property" not in function.labels:
            continue
        if short.startswith("_") and short != "__init__":
            continue
        said = docstring_of(function)
        if short == "__init__" and function.parent is not None:  # the reference shows it as the class's own
            said += "\n\n" + docstring_of(function.parent)
        told = told_errors(said)
        for referred in re.findall(r"^See `(\w+)`", said):
            told |= told_errors(docstring_of(members_of(classes[referred]).get(short)))
        found += [f"{label}: {error}" for error in sorted(raised_by(function) - told)]
    return found


def classes_of(module: griffe.Module) -> dict[str, griffe.Class]:
    """Every class of a package by its name."""
    found: dict[str, griffe.Class] = {}
    for member in module.members.values():
        if isinstance(member, griffe.Module):
            found |= classes_of(member)
        elif isinstance(member, griffe.Class):
            found[member.name] = member
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_every_measured_field_says_its_unit(package: str, source: griffe.GriffeLoader) -> None:
    names = public_names(source.modules_collection[package])
    assert [line for name, thing in names.items() for line in without_unit(f"{package}.{name}", thing)] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_error_that_is_raised_is_told(package: str, source: griffe.GriffeLoader) -> None:
    classes = {name: one for ours in OURS for name, one in classes_of(source.modules_collection[ours]).items()}
    names = public_names(source.modules_collection[package])
    assert [line for name, thing in names.items() for line in untold_errors(f"{package}.{name}", thing, classes)] == []


def test_a_field_without_a_unit_and_an_error_that_is_not_told_are_found() -> None:
    code = '''
"""A module."""
class Shown:
    """Documented.

    Raises:
        KeyError: of `__init__`.
    """
    timestamp: int
    created_at: int  # when it was made
    ended_at: int  # Unix ms
    seen_at: int
    """Seconds since the epoch, in seconds."""
    wait_ms: int
    format: str
    at: str
    def __init__(self):
        raise KeyError("told by the class")
    def told(self):
        """Raises nothing else.

        Raises:
            OSError, LookupError: when it
                is wrong.
        """
        raise LookupError
    def partly(self):
        """Documented.

        Raises:
            LookupError: sometimes.
        """
        def inner():
            raise OSError("of another body")
        if self:
            raise LookupError("x")
        raise module.Gone("x")
    @property
    def seen(self):
        """Raises ValueError, in no section."""
        raise ValueError from None
    def stub(self):
        """Documented."""
        raise NotImplementedError
    def passes(self, error):
        """Documented."""
        raise error
    def _private(self):
        raise ValueError
class Other:
    """Documented."""
    def told(self):
        """See `Shown`."""
        raise LookupError(1)
    def partly(self):
        """See `Shown`."""
        raise IndexError(1)
def bare():
    """Documented."""
    raise ValueError(1)
'''
    lines = griffe.LinesCollection()
    lines[Path("sample.py")] = code.split("\n")
    module = griffe.visit("sample", Path("sample.py"), code, lines_collection=lines)
    units = [line for name, thing in module.members.items() for line in without_unit(name, thing)]
    assert units == ["Shown.timestamp", "Shown.created_at"]
    classes = classes_of(module)
    errors = [line for name, thing in module.members.items() for line in untold_errors(name, thing, classes)]
    assert errors == ["Shown.partly: Gone", "Shown.seen: ValueError", "Other.partly: IndexError", "bare: ValueError"]


# Docstrings ----------------------------------------------------------------------------


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
