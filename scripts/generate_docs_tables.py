"""Writes the tables of docs/concepts from the code's own data; with --check, only says whether they are up to date.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; the text around it is written by hand.
Exit codes: 0 written or fresh, 1 stale (--check), 2 bad arguments or a marker without a table.
"""

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import TypeAlias, cast, get_args, get_overloads

from agent_harness import outcomes
from agent_harness.effects.base import Effects
from agent_harness.events import catalog as events
from agent_harness.hooks import catalog as hooks
from agent_harness.hooks.runner import Hooks
from agent_harness.reducer import validity
from agent_harness.types import actions, entries, records
from agent_harness.types.wire import wire_key

TARGET = Path(__file__).resolve().parent.parent / "docs" / "concepts"
MARKED = re.compile(r"(<!-- table: (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
Row: TypeAlias = tuple[str, ...]


def table(head: Row, rows: Iterator[Row]) -> str:
    """A Markdown table."""
    lines = [_row(head), "|" + "---|" * len(head), *(_row(row) for row in rows)]
    return "\n" + "\n".join(lines) + "\n\n"


def _row(cells: Row) -> str:
    assert not any("|" in cell for cell in cells), cells  # readers of Markdown disagree on how to escape it
    return f"| {' | '.join(cells)} |"


def first_line(thing: object) -> str:
    """The first paragraph of a docstring, in one line."""
    return without_references(" ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split()))


def without_references(text: str) -> str:
    """`text` without what points into a specification, such as (A-3)."""
    return re.sub(r" ?\((?:harness-v2|A-\d)[^)]*\)", "", text)


class Fields:
    """Field types and comments of a module's dataclasses, as they are written in its source."""

    def __init__(self, module: ModuleType) -> None:
        source = inspect.getsource(module)
        lines = source.split("\n")
        self._classes: dict[str, list[tuple[str, str, str]]] = {}
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef):
                self._classes[node.name] = [
                    (item.target.id, ast.unparse(item.annotation), _comment(lines[item.lineno - 1]))
                    for item in node.body
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                ]

    def of(self, cls: type, *, leave_out: tuple[str, ...] = ()) -> Iterator[tuple[str, str, str]]:
        """(name, type, comment) per field, in order."""
        known = {field.name for field in fields(cls)}
        return (item for item in self._classes[cls.__name__] if item[0] in known and item[0] not in leave_out)


def _comment(line: str) -> str:
    _, mark, comment = line.partition("  # ")
    return without_references(comment.strip()) if mark and "pyright" not in comment else ""


def _type(text: str) -> str:
    """An annotation for readers: `Absent[X]` is an optional key, the strict scalars are JSON's."""
    optional = text.startswith("Absent[")
    text = text.removeprefix("Absent[").removesuffix("]") if optional else text
    for ours, plain in (
        ("Int", "int"),
        ("Bool", "bool"),
        ("Number", "number"),
        ("Json", "JSON"),
        ("JsonObject", "JSON object"),
        ("JsonValue", "JSON"),
    ):
        text = re.sub(rf"\b{ours}\b", plain, text)
    named = " or ".join("null" if part == "None" else f"`{part}`" for part in text.split(" | "))
    return named + (", optional" if optional else "")


def members(union: object) -> Iterator[type]:
    """The classes of a union, of nested and annotated ones too, in order."""
    for member in get_args(union):
        if isinstance(member, type):
            yield member
        elif get_args(member):
            yield from members(member)


def discriminant(cls: type, name: str = "type") -> str:
    """The literal that tells `cls` from its siblings."""
    default = next(field.default for field in fields(cls) if field.name == name)
    assert isinstance(default, str)
    return default


def record_table() -> str:
    """Record types with their fields; the four usage bodies are one type, told apart by `cause`."""
    source = Fields(records)

    def rows() -> Iterator[Row]:
        for cls in members(records.RecordBody):
            label = f"`{discriminant(cls)}`"
            if discriminant(cls) == "usage":
                causes = _literals(records, cls.__name__, "cause")
                label += f" ({', '.join(causes)})"
            named = [
                (wire_key(name), _type(text), note) for name, text, note in source.of(cls, leave_out=("type", "cause"))
            ]
            yield label, first_line(cls), "<br>".join(_field(*item) for item in named)

    return table(("Record", "Meaning", "Fields"), rows())


def intent_table() -> str:
    """What an `operation_started` decides, per kind of operation."""
    source = Fields(records)

    def rows() -> Iterator[Row]:
        for cls in members(records.Intent):
            named = [(wire_key(name), _type(text), note) for name, text, note in source.of(cls, leave_out=("kind",))]
            yield f"`{discriminant(cls, 'kind')}`", first_line(cls), "<br>".join(_field(*item) for item in named)

    return table(("Operation", "Meaning", "Fields of its intent"), rows())


def entry_table() -> str:
    """Entry types with their fields."""
    source = Fields(entries)

    def rows() -> Iterator[Row]:
        for cls in members(entries.EntryBody):
            named = [(wire_key(name), _type(text), note) for name, text, note in source.of(cls, leave_out=("type",))]
            yield f"`{discriminant(cls)}`", first_line(cls), "<br>".join(_field(*item) for item in named)

    return table(("Entry", "Meaning", "Fields"), rows())


def _field(name: str, text: str, note: str) -> str:
    return f"`{name}`: {text}" + (f" – {note}" if note else "")


def _literals(module: ModuleType, cls: str, name: str) -> list[str]:
    annotation = next(text for field, text, _ in Fields(module).of(getattr(module, cls)) if field == name)
    return [
        node.value
        for node in ast.walk(ast.parse(annotation))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def effect_table() -> str:
    """Every effect, under the kind by which manual drive shows it: the complete list of crash sites."""
    kinds = {discriminant(cls, "kind") for cls in members(actions.ActionInfo)}
    renamed = {"commit_run_end_follow_up": "commit_follow_up"}

    def rows() -> Iterator[Row]:
        for name, method in vars(Effects).items():
            if name.startswith("_") or not inspect.iscoroutinefunction(method):
                continue
            kind = renamed.get(name, name if name in kinds else "hook")
            assert kind in kinds, name
            yield f"`{name}`", f"`{kind}`", first_line(method)

    return table(("Effect", "Parks as", "What it does"), rows())


def hook_table() -> str:
    """Hooks with event and result, from the overloads of `Hooks.on`."""
    source = Fields(hooks)

    def rows() -> Iterator[Row]:
        for overload in get_overloads(Hooks.on):
            annotations = overload.__annotations__
            [name] = get_args(annotations["name"])
            event, result = _handled(annotations["handler"])
            given = ", ".join(f"`{field}`" for field, _, _ in source.of(event, leave_out=("lane",)))
            taken = "nothing" if result is None else ", ".join(f"`{field}`" for field, _, _ in source.of(result))
            yield f"`{name}`", first_line(event), given, taken

    return table(("Hook", "When", "Its event carries `lane` and", "What it may return"), rows())


def _handled(handler: object) -> tuple[type, type | None]:
    # Handler[E, R] is Callable[[E], Awaitable[R | None] | R | None].
    parameters, returned = get_args(handler)
    results = [arg for arg in get_args(returned) if isinstance(arg, type) and arg is not type(None)]
    return cast("type", parameters[0]), results[0] if results else None


def replay_table() -> str:
    """When each hook runs again."""
    rows = ((f"`{name}`", row.fresh, row.retry, row.resume) for name, row in hooks.REPLAY.items())
    return table(("Hook", "Fresh work", "Retry", "Resume"), iter(rows))


def event_table() -> str:
    """Event types with their fields."""
    source = Fields(events)

    def rows() -> Iterator[Row]:
        for cls in members(events.HarnessEvent):
            names = [f"`{field}`" for field, _, _ in source.of(cls, leave_out=("type",))]
            yield f"`{discriminant(cls)}`", first_line(cls), ", ".join(names)

    return table(("Event", "Meaning", "Fields"), rows())


def rule_table() -> str:
    """Validity rules."""
    return table(("Rule", "What must hold"), ((f"`{rule}`", text) for rule, text in validity.RULES.items()))


def rejection_table() -> str:
    """Rejection classes, and the calls that may answer with them."""
    source = Fields(outcomes)
    calls: Mapping[str, str] = {
        "RunRejected": "`prompt`",
        "CompactionRejected": "`compact`",
        "NavigationRejected": "`navigate_tree`",
        "ResumeRejected": "`resume`",
        "QueueRejected": "`steer`, `follow_up`, `next_run`",
        "CancelQueuedRejected": "`cancel_queued`",
        "AbortRejected": "`abort`",
        "CreateLaneRejected": "`create_lane`",
    }

    def rows() -> Iterator[Row]:
        for cls in members(outcomes.Rejected):
            named = ", ".join(f"`{field}`" for field, _, _ in source.of(cls))
            answers = [label for alias, label in calls.items() if cls in members(getattr(outcomes, alias))]
            yield f"`{cls.__name__}`", first_line(cls), ", ".join(answers), named

    return table(("Rejection", "Meaning", "May be the answer of", "Fields"), rows())


TABLES: Mapping[str, Callable[[], str]] = {
    "entries": entry_table,
    "records": record_table,
    "intents": intent_table,
    "effects": effect_table,
    "hooks": hook_table,
    "replay": replay_table,
    "events": event_table,
    "rules": rule_table,
    "rejections": rejection_table,
}


def filled(text: str) -> tuple[str, set[str]]:
    """`text` with every marked table written anew, and the names of those tables.

    Raises:
        KeyError: a marker names no table.
    """
    names: set[str] = set()

    def fill(found: re.Match[str]) -> str:
        names.add(found["name"])
        return found[1] + TABLES[found["name"]]() + found[3]

    return MARKED.sub(fill, text), names


def main(arguments: list[str]) -> int:
    """Write or check the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page is stale")
    parser.add_argument("--folder", type=Path, default=TARGET, help="the pages (default: docs/concepts)")
    options = parser.parse_args(arguments)
    stale: list[Path] = []
    seen: set[str] = set()
    for page in sorted(cast("Path", options.folder).glob("*.md")):
        before = page.read_text(encoding="utf-8")
        try:
            after, names = filled(before)
        except KeyError as error:
            print(f"{page}: no table is named {error}", file=sys.stderr)
            return 2
        seen |= names
        if after != before:
            stale.append(page)
            if not options.check:
                page.write_text(after, encoding="utf-8")
    missing = TABLES.keys() - seen
    if missing:
        print(f"no page shows: {', '.join(sorted(missing))}", file=sys.stderr)
        return 2
    if options.check and stale:
        print(f"stale: {', '.join(map(str, stale))}; run scripts/generate_docs_tables.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
