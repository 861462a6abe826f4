"""`write`: a whole file, replaced in one step."""

from typing import Annotated

from pydantic import Field

from ..types.json import JsonValue
from ..types.tools import AgentTool, AgentToolResult, ToolInvocation
from .decorator import text_result, tool
from .failure import ToolError
from .workspace import Target, Workspace


def write_tool(workspace: Workspace) -> AgentTool:
    """The tool. `details` is `{"changedPaths": [...], "created": bool, "bytes": int}` (see `changed_paths`)."""

    # Never replayed: the same bytes again would undo what anybody wrote after the first time.
    # Sequential: two writers of one file in one batch would be decided by chance.
    @tool(replay="never", execution_mode="sequential")
    def write(
        path: Annotated[str, Field(description="File to write, relative to the working folder")],
        content: Annotated[str, Field(description="The whole new content")],
        invocation: ToolInvocation,
    ) -> AgentToolResult:
        """Create a file or replace all of it. Missing folders are made. Use `edit` to change a part of a file."""
        target = workspace.resolve(path)
        data = content.encode()
        with workspace.parent_fd(target, create=True) as folder:
            expected = workspace.status(target, folder)
        if invocation.signal.aborted:
            raise ToolError(f"interrupted: {target.name} was not written")
        workspace.replace(target, data, expected=expected)
        done = "created" if expected is None else "replaced"
        return text_result(
            f"{done} {target.name} ({len(data)} bytes)",
            {"changedPaths": changed_paths(target), "created": expected is None, "bytes": len(data)},
        )

    return write


def changed_paths(*targets: Target) -> list[JsonValue]:
    """The one shape in which tools report what they changed: `details["changedPaths"]`.

    A list of text: paths with `/`, relative to the working folder; a file outside of it by its absolute path. Empty
    when nothing changed, absent when the tool cannot know (shell).
    """
    return [target.name for target in targets]
