"""`list`: what is in a folder."""

import os
import stat
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from ..types.json import replace_surrogates
from ..types.tools import AgentTool, AgentToolResult, ToolInvocation
from .decorator import text_result, tool
from .failure import ToolError
from .workspace import Workspace

MAX_ENTRIES = 1_000
"""Most entries of one call."""
_SCAN_LIMIT = 100_000


def list_tool(workspace: Workspace) -> AgentTool:
    """The tool."""

    # Safe to replay: it changes nothing.
    @tool(name="list", replay="safe")
    def list_(
        invocation: ToolInvocation,
        path: Annotated[str, Field(description="Folder, relative to the working folder")] = ".",
        depth: Annotated[int, Field(ge=1, le=8, description="Levels to show; 1 is the folder alone")] = 1,
    ) -> AgentToolResult:
        """List a folder: folders end with "/", symbolic links show where they lead and are not entered."""
        target = workspace.resolve(path)
        lines: list[str] = []
        truncated = False
        with workspace.folder_fd(target) as fd:
            for line in _entries(fd, "", depth, invocation):
                if len(lines) == MAX_ENTRIES:
                    truncated = True
                    break
                lines.append(replace_surrogates(line))
        shown = lines or ["[the folder is empty]"]
        if truncated:
            shown = [*shown, f"[cut at {MAX_ENTRIES} entries: list a folder below, or use search]"]
        return text_result("\n".join(shown), {"path": target.name, "entries": len(lines), "truncated": truncated})

    return list_


def _entries(fd: int, prefix: str, depth: int, invocation: ToolInvocation) -> Iterator[str]:
    if invocation.signal.aborted:
        raise ToolError("interrupted")
    with os.scandir(fd) as scan:
        found: list[os.DirEntry[str]] = []
        for entry in scan:
            found.append(entry)
            if len(found) >= _SCAN_LIMIT:
                break
    for entry in sorted(found, key=lambda one: one.name):
        name = prefix + entry.name
        try:
            if entry.is_symlink():
                yield f"{name} -> {os.readlink(entry.name, dir_fd=fd)}"
            elif entry.is_dir(follow_symlinks=False):
                yield f"{name}/"
                # A repository's own store is large and never what is looked for.
                if depth > 1 and entry.name != ".git":
                    below = os.open(entry.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
                    try:
                        yield from _entries(below, f"{name}/", depth - 1, invocation)
                    finally:
                        os.close(below)
            else:
                status = entry.stat(follow_symlinks=False)
                kind = "" if stat.S_ISREG(status.st_mode) else " (special)"
                yield f"{name} ({status.st_size} bytes){kind}"
        except OSError as error:  # gone meanwhile, or not ours to look into
            yield f"{name} ({(error.strerror or 'unreadable').lower()})"
