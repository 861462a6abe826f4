"""Old coding-agent v3 files as our logical tree (harness-v2 §12 and §13 "v3 files", decisions section 5).

Pure: bytes in, values out. What the program that wrote a file opens is opened, with the same context for every leaf;
damage is skipped as there, and reported.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from agent_harness.errors import CorruptSession, UnsupportedFormat
from agent_harness.session.core import MAX_NAME
from agent_harness.session.storage import Diagnostic
from agent_harness.types.codec import Wire, dump
from agent_harness.types.entries import Entry
from agent_harness.types.json import InvalidJson, JsonValue
from agent_harness.types.messages import Usage
from agent_harness.types.usage import sum_usage

from .v3_entries import entry_usage
from .v3_lines import Findings, Line, read_lines
from .v3_raw import RawEntry, read_entries, unix_ms
from .v3_tree import V3Tree

V3 = 3
HEADER_KEYS = frozenset({"type", "version", "id", "timestamp", "cwd", "parentSession"})


@dataclass(frozen=True, slots=True, kw_only=True)
class V3Session:
    """A v3 file, normalised. All entries belong to `main`; there are no records, so every lane question says idle."""

    id: str
    created_at: int  # Unix ms
    cwd: str | None
    parent_session: str | None  # path of the parent's file, as written there
    entries: tuple[Entry, ...]  # `seq` from 1, parents before children
    leaf_id: str | None
    name: str | None
    labels: dict[str, str]  # by retained entry
    diagnostics: tuple[Diagnostic, ...]  # by line
    header_metadata: Mapping[str, JsonValue]  # header keys that we do not know
    usage: Usage  # sum of what the entries report
    edits_applied: int  # context edits: the entries do not hold the text that these replaced or removed


def normalise(raw: bytes, *, strict: bool = False) -> V3Session:
    """The logical tree of a v3 file. The same bytes give the same value, ids included.

    Raises:
        UnsupportedFormat: a session of another version; names it. Version 1 files have no version.
        CorruptSession: no session file; or `strict` and damaged, naming the line.
    """
    findings = Findings(strict=strict)
    lines = read_lines(raw, findings)
    first = next(lines, None)
    header = _header(first)
    created_at = unix_ms(header.value.get("timestamp"))
    if created_at is None:
        findings.damage("bad_timestamp", "the header has no valid timestamp", header.number)
    entries = read_entries(lines, created_at or 0, findings)
    tree = V3Tree(entries, findings)
    last = next(reversed(entries), None)
    cwd, parent = header.value.get("cwd"), header.value.get("parentSession")
    return V3Session(
        id=str(header.value["id"]),
        created_at=created_at or 0,
        cwd=cwd if isinstance(cwd, str) else None,
        parent_session=parent if isinstance(parent, str) and parent else None,
        entries=tree.entries(),
        leaf_id=tree.place(last) if last is not None else None,
        name=_name(entries),
        labels=_labels(entries, tree, findings),
        usage=_usage(entries, findings),
        header_metadata={key: value for key, value in header.value.items() if key not in HEADER_KEYS},
        edits_applied=tree.edits_applied,
        diagnostics=findings.in_file_order(),
    )


def _header(line: Line | None) -> Line:
    if line is None:
        raise CorruptSession("not a session file: no line holds a JSON object")
    header: Wire = line.value
    if header.get("type") != "session" or not isinstance(header.get("id"), str) or not header["id"]:
        raise CorruptSession(f"line {line.number}: not a session file: no session header", line=line.number)
    version = header.get("version", 1)
    if type(version) is not int or version != V3:
        raise UnsupportedFormat(f"this is a session file of version {ascii(version)[:20]}; only 3 and 4 can be read")
    return line


def _name(entries: Mapping[str, RawEntry]) -> str | None:
    for entry in reversed(list(entries.values())):
        if entry.type == "session_info":
            name = entry.wire.get("name")
            return (_one_line(name).strip() or None) if isinstance(name, str) else None
    return None


def _labels(entries: Mapping[str, RawEntry], tree: V3Tree, findings: Findings) -> dict[str, str]:
    latest: dict[str, tuple[RawEntry, str]] = {}  # by target, in the order of the file
    for entry in entries.values():
        if entry.type != "label":
            continue
        target, label = entry.wire.get("targetId"), entry.wire.get("label")
        if not isinstance(target, str) or target not in entries:
            message = f"label {entry.id!r} names no entry of the file; it was skipped"
            findings.damage("label_without_target", message, entry.line)
            continue
        latest.pop(target, None)
        if isinstance(label, str) and label:
            latest[target] = (entry, _one_line(label))
    labels: dict[str, str] = {}
    for target, (entry, label) in latest.items():
        place = tree.place(target)
        if place is None:
            message = f"label {entry.id!r} is on an entry that has no place in the tree; it was dropped"
            findings.note("label_dropped", message, entry.line)
        else:
            labels[place] = label
    return labels


def _one_line(text: str) -> str:
    """Line breaks become spaces (A-11); never longer than a name of ours may be."""
    return " ".join(text.splitlines())[:MAX_NAME]


def _usage(entries: Mapping[str, RawEntry], findings: Findings) -> Usage:
    reported: list[Usage] = []
    for entry in entries.values():

        def repaired(reason: str, entry: RawEntry = entry) -> None:
            if entry.type == "usage":  # what the others report was checked when the tree was built
                findings.damage("repaired_entry", f"usage {entry.id!r} was repaired: {reason}", entry.line)

        usage = entry_usage(entry, repaired)
        if usage is not None:
            reported.append(usage)
    total = sum_usage(reported)
    try:
        dump(total)
    except InvalidJson:
        findings.damage("usage_overflow", "the reported usage adds up to no finite number; it was left out", 1)
        return Usage()
    return total
