"""`read`: part of a text file, or an image."""

import base64
import os
from typing import Annotated, BinaryIO

from pydantic import Field

from ..types.messages import ImageContent
from ..types.tools import AgentTool, AgentToolResult, ToolInvocation
from .decorator import text_result, tool
from .failure import ToolError
from .text import cut_end, decode
from .workspace import Workspace

MAX_LINES = 2_000
MAX_BYTES = 64 * 1024
"""Most text of one call. Models read on with `offset`."""
MAX_IMAGE_BYTES = 3 * 1024 * 1024
"""Largest image file; base64 makes it a third larger."""

_SKIP_CHUNK = 1024 * 1024
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


def image_type(head: bytes) -> str | None:
    """The MIME type that the first bytes of a file announce, for the kinds that models take."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((mime for magic, mime in _MAGIC if head.startswith(magic)), None)


def read_tool(workspace: Workspace) -> AgentTool:
    """The tool."""

    # Safe to replay: it changes nothing, and a later answer is as true as the lost one was.
    @tool(replay="safe")
    def read(
        path: Annotated[str, Field(description="File to read, relative to the working folder")],
        invocation: ToolInvocation,
        offset: Annotated[int, Field(ge=1, description="First line, counted from 1")] = 1,
        limit: Annotated[int, Field(ge=1, le=MAX_LINES, description="Most lines")] = MAX_LINES,
    ) -> AgentToolResult:
        """Read a text file, or look at an image (PNG, JPEG, GIF, WebP).

        Text comes as it is, without line numbers. What was left out is said in a last line in brackets.
        """
        target = workspace.resolve(path)
        with workspace.open_file(target) as fd, open(fd, "rb", closefd=False) as file:
            head = file.read(8192)
            size = os.fstat(fd).st_size
            mime = image_type(head)
            if mime is not None:
                return _image(target.name, mime, head, file)
            if b"\0" in head:
                raise ToolError(f"{target.name}: a binary file of {size} bytes")
            file.seek(0)
            return _lines(target.name, file, offset, limit, invocation)

    return read


def _image(name: str, mime: str, head: bytes, file: BinaryIO) -> AgentToolResult:
    data = head + file.read(MAX_IMAGE_BYTES + 1 - len(head))
    if len(data) > MAX_IMAGE_BYTES:
        raise ToolError(f"{name}: the image is larger than {MAX_IMAGE_BYTES} bytes; make a smaller copy and read that")
    return AgentToolResult(
        content=(ImageContent(data=base64.b64encode(data).decode("ascii"), mime_type=mime),),
        details={"path": name, "bytes": len(data), "mimeType": mime},
    )


def _lines(name: str, file: BinaryIO, offset: int, limit: int, invocation: ToolInvocation) -> AgentToolResult:
    for passed in range(offset - 1):
        if not _skip_line(file, invocation):
            raise ToolError(f"{name}: has {passed} lines, so there is no line {offset}")
    taken: list[bytes] = []
    room = MAX_BYTES
    note = ""
    while True:
        piece = file.readline(room + 1)
        if not piece:
            break
        if len(taken) == limit or (taken and len(piece) > room):
            note = f"[more lines follow: read on with offset={offset + len(taken)}]"
            break
        if len(piece) > room:  # one line longer than everything a call may show
            taken.append(cut_end(piece, room))
            note = f"[line {offset} is longer than {MAX_BYTES} bytes and was cut; use shell to see its rest]"
            break
        taken.append(piece)
        room -= len(piece)
    data = b"".join(taken)
    if b"\0" in data:
        raise ToolError(f"{name}: a binary file")
    if not taken and offset > 1:
        raise ToolError(f"{name}: has {offset - 1} lines, so there is no line {offset}")
    text = decode(data)
    notes = [note] if note else []
    try:
        data.decode()
    except UnicodeDecodeError:
        notes.append("[not valid UTF-8: the invalid bytes are shown as \ufffd]")
    if not taken:
        notes.append("[the file is empty]")
    shown = "\n".join([text.removesuffix("\n") if notes else text, *notes] if text else notes)
    return text_result(shown, {"path": name, "firstLine": offset, "lines": len(taken), "truncated": bool(note)})


def _skip_line(file: BinaryIO, invocation: ToolInvocation) -> bool:
    """Pass one line, however long; False at the end of the file."""
    seen = False
    while piece := file.readline(_SKIP_CHUNK):
        seen = True
        if invocation.signal.aborted:
            raise ToolError("interrupted")
        if piece.endswith(b"\n"):
            break
    return seen
