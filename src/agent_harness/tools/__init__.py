"""Built-in tools for an agent on a repository, and `@tool` for one's own (decisions section 8)."""

import os

from ..types.tools import AgentTool
from .decorator import ToolDeclarationError as ToolDeclarationError
from .decorator import text_result as text_result
from .decorator import tool as tool
from .edit import edit_tool
from .failure import ToolError as ToolError
from .listing import list_tool
from .read import read_tool
from .search import search_tool
from .shell import shell_tool
from .workspace import Workspace as Workspace
from .write import write_tool


def coding_tools(root: str | os.PathLike[str], *, allow_outside: bool = False) -> list[AgentTool]:
    """What an agent on a repository needs, for the folder `root`: read, write, edit, shell, list, search.

    Paths that lead out of `root` are refused unless `allow_outside`. `shell` is not confined by that: a command can
    do whatever this process's user may. Leave it out of the list where that is too much.

    Raises:
        NotADirectoryError: `root` is no folder.
    """
    workspace = Workspace(root, allow_outside=allow_outside)
    return [
        read_tool(workspace),
        write_tool(workspace),
        edit_tool(workspace),
        shell_tool(workspace),
        list_tool(workspace),
        search_tool(workspace),
    ]
