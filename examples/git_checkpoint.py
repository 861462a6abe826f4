"""Git checkpoint: after every tool that changed files, the working tree is committed to a
ref of its own.

The user's branch, index and working tree are not touched. To see the checkpoints of a
project: `git log -p refs/agent/checkpoints`; to bring one back: `git restore
--source=<commit> .`.

`after_tool` can run again for the same call when the process dies before its result is
committed. That is harmless: a tree equal to the newest checkpoint's makes no new one.
"""

import asyncio
import os
import subprocess
import tempfile
from pathlib import Path

from agent_harness import AgentHarness
from agent_harness.hooks.catalog import AfterTool

REF = "refs/agent/checkpoints"
AUTHOR = {
    "GIT_AUTHOR_NAME": "agent",
    "GIT_AUTHOR_EMAIL": "agent@localhost",
    "GIT_COMMITTER_NAME": "agent",
    "GIT_COMMITTER_EMAIL": "agent@localhost",
}


class GitCheckpoint:
    """Checkpoints of the git repository whose root is `root`.

    A tool counts as one that changes files if its result names `changedPaths` in `details`,
    as the built-in ones do, or if it is among `tools`, for those that cannot say, such as a
    shell.
    """

    def __init__(self, root: Path, *, tools: frozenset[str] = frozenset({"shell"})) -> None:
        self._root = root
        self._tools = tools
        self._one_at_a_time = asyncio.Lock()  # lanes share the working tree

    async def setup(self, harness: AgentHarness) -> None:
        """Register the hook."""
        harness.hooks.on("after_tool", self._after_tool, id="examples.git-checkpoint")

    async def _after_tool(self, event: AfterTool) -> None:
        if event.tool_name not in self._tools and not _changed_paths(event):
            return
        message = (
            f"{event.tool_name}\n\nRun: {event.run_id}\nTool-call: {event.tool_call_id}"
        )
        async with self._one_at_a_time:
            await asyncio.to_thread(self._commit, message)

    def _commit(self, message: str) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            index = {"GIT_INDEX_FILE": os.path.join(scratch, "index")}
            newest = self._resolve(REF)
            parent = newest or self._resolve("HEAD")
            if parent is not None:
                self._git("read-tree", parent, env=index)
            self._git("add", "--all", env=index)
            tree = self._git("write-tree", env=index)
        if parent is not None and tree == self._git("rev-parse", f"{parent}^{{tree}}"):
            return
        parents = () if parent is None else ("-p", parent)
        commit = self._git("commit-tree", tree, *parents, "-m", message, env=AUTHOR)
        self._git(
            "update-ref", REF, commit, newest or "0" * len(commit)
        )  # refused if somebody else moved it meanwhile

    def _resolve(self, name: str) -> str | None:
        done = self._run("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        return done.stdout.strip() if done.returncode == 0 else None

    def _git(self, *arguments: str, env: dict[str, str] | None = None) -> str:
        done = self._run(*arguments, env=env)
        done.check_returncode()  # raised in the hook: a `handler_error`; the run goes on
        return done.stdout.strip()

    def _run(
        self, *arguments: str, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["git", *arguments],
            cwd=self._root,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def _changed_paths(event: AfterTool) -> bool:
    return isinstance(event.details, dict) and bool(event.details.get("changedPaths"))
