"""`edit`: exact replacements in one file, all of them or none."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from ..types.json import JsonValue
from ..types.tools import AgentTool, AgentToolResult, ToolInvocation
from .decorator import text_result, tool
from .failure import ToolError
from .workspace import Workspace
from .write import changed_paths

MAX_EDIT_BYTES = 16 * 1024 * 1024
"""Largest file that is edited."""
_MAX_NAMED_LINES = 5
_MAX_COUNTED = 1_000


class Replacement(BaseModel):
    """One replacement, as the model asks for it."""

    model_config = ConfigDict(strict=True, extra="forbid")

    old: Annotated[str, Field(min_length=1, description="Text that stands in the file exactly once, to the space")]
    new: Annotated[str, Field(description="Text to stand there instead")]


@dataclass(frozen=True, slots=True)
class _Span:
    number: int  # 1-based, of the replacement
    start: int
    end: int
    new: str


def edit_tool(workspace: Workspace) -> AgentTool:
    """The tool. `details` is `{"changedPaths": [...], "replacements": int, "firstLine": int}`."""

    # Never replayed: a second time the old text is gone, or worse, stands elsewhere. Sequential: as `write`.
    @tool(replay="never", execution_mode="sequential")
    def edit(
        path: Annotated[str, Field(description="File to change, relative to the working folder")],
        edits: Annotated[list[Replacement], Field(min_length=1, max_length=100, description="All made, or none")],
        invocation: ToolInvocation,
    ) -> AgentToolResult:
        """Change parts of a text file. Each `old` must occur exactly once in the file as it is now.

        All replacements are found in the present content, so they must not overlap.
        """
        target = workspace.resolve(path)
        opened = workspace.load(target, max_bytes=MAX_EDIT_BYTES)
        try:
            before = opened.data.decode()
        except UnicodeDecodeError:
            raise ToolError(f"{target.name}: not valid UTF-8, so editing would damage it") from None
        spans = find_spans(before, edits)
        after = apply_spans(before, spans)
        if after == before:
            raise ToolError(f"{target.name}: old and new text are the same; nothing was changed")
        if invocation.signal.aborted:
            raise ToolError(f"interrupted: {target.name} was not changed")
        workspace.replace(target, after.encode(), expected=opened.status)
        details: dict[str, JsonValue] = {
            "changedPaths": changed_paths(target),
            "replacements": len(spans),
            "firstLine": _line(before, spans[0].start),
        }
        plural = "" if len(spans) == 1 else "s"
        return text_result(f"changed {target.name}: {len(spans)} replacement{plural}", details)

    return edit


def find_spans(text: str, edits: list[Replacement]) -> list[_Span]:
    """Where each replacement goes, in file order.

    Raises:
        ToolError: an old text occurs not at all or more than once (says how often and where), or two overlap.
    """
    # Models write "\n". In a file that has only "\r\n" line ends they mean those.
    crlf = "\r\n" in text and "\n" not in text.replace("\r\n", "")
    spans: list[_Span] = []
    for number, wanted in enumerate(edits, 1):
        old, new = wanted.old, wanted.new
        if crlf and "\r" not in old:
            old, new = old.replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")
        found = _occurrences(text, old)
        which = f"edit {number}: " if len(edits) > 1 else ""
        if not found:
            raise ToolError(f"{which}the old text occurs 0 times in the file; read it again, every space counts")
        if len(found) > 1:
            lines = ", ".join(str(_line(text, at)) for at in found[:_MAX_NAMED_LINES])
            more = ", ..." if len(found) > _MAX_NAMED_LINES else ""
            times = f"{len(found)}" if len(found) <= _MAX_COUNTED else f"more than {_MAX_COUNTED}"
            raise ToolError(f"{which}the old text occurs {times} times (lines {lines}{more}); add text around it")
        spans.append(_Span(number, found[0], found[0] + len(old), new))
    spans.sort(key=lambda span: span.start)
    for first, second in pairwise(spans):
        if second.start < first.end:
            raise ToolError(f"edits {first.number} and {second.number} overlap; make one of them")
    return spans


def apply_spans(text: str, spans: list[_Span]) -> str:
    """`text` with each span replaced."""
    parts: list[str] = []
    at = 0
    for span in spans:
        parts += (text[at : span.start], span.new)
        at = span.end
    return "".join([*parts, text[at:]])


def _occurrences(text: str, wanted: str) -> list[int]:
    # Overlapping ones count as well: in "aaa" it is not clear which "aa" is meant.
    found: list[int] = []
    at = text.find(wanted)
    while at >= 0 and len(found) <= _MAX_COUNTED:
        found.append(at)
        at = text.find(wanted, at + 1)
    return found


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
