"""Git checkpoints at every crash point: each change is in exactly one, and nothing of the user's is touched."""

import subprocess
from pathlib import Path

from agent_harness import AssistantMessage, ToolResultMessage
from agent_harness.testing import ScriptedRequest, World, answer, call
from agent_harness.tools import text_result, tool
from examples.git_checkpoint import REF, GitCheckpoint
from tests.examples.example_support import on_memory_and_sqlite, outcome, recovered, scenario


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def project(world: World) -> Path:
    """The world's repository, with one committed file, one staged and one only in the working tree."""
    root = world.root / "project"
    if not root.exists():
        root.mkdir()
        git(root, "init", "--quiet", "--initial-branch=main")
        (root / "notes.txt").write_text("start\n")
        git(root, "add", "notes.txt")
        git(root, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "--quiet", "-m", "start")
        (root / "staged.txt").write_text("the user's\n")
        git(root, "add", "staged.txt")
    return root


def tools(world: World):
    root = project(world)

    @tool(replay="safe")
    async def note(text: str):
        """Write the notes anew."""
        (root / "notes.txt").write_text(text)
        return text_result("written", {"changedPaths": ["notes.txt"]})

    @tool(replay="safe")
    async def look():
        """Read the notes."""
        return (root / "notes.txt").read_text()

    return [note, look]


def two_notes_and_a_look(world: World, request: ScriptedRequest) -> AssistantMessage:
    done = sum(isinstance(message, ToolResultMessage) for message in request.context.messages)
    turns = [call("note", {"text": "one\n"}, id="c1"), call("look", id="c2"), call("note", {"text": "two\n"}, id="c3")]
    return answer(calls=[turns[done]]) if done < len(turns) else answer("Done.")


@on_memory_and_sqlite
async def test_each_change_is_committed_once_wherever_the_process_dies(store: str, tmp_path: Path) -> None:
    work = scenario(
        "checkpoints", two_notes_and_a_look, tools=tools, extensions=lambda world: [GitCheckpoint(project(world))]
    )
    labels: list[str] = []
    async for point in recovered(work, store, tmp_path, depth=1):
        root = project(point.world)
        assert await outcome(point.session) == "completed"
        commits = git(root, "rev-list", "--reverse", f"main..{REF}").split()
        notes = [git(root, "show", f"{commit}:notes.txt") for commit in commits]
        assert notes == ["one", "two"], point.label
        assert git(root, "show", f"{REF}:staged.txt") == "the user's"
        assert git(root, "log", "-1", "--format=%B", REF).splitlines()[-1] == "Tool-call: c3"
        assert git(root, "rev-list", "--count", "HEAD") == "1"
        assert git(root, "diff", "--cached", "--name-only") == "staged.txt"
        labels.append(point.label)
    # There the hook has run and its result is not committed: recovery ran it again.
    assert sum(label.endswith("after hook") for label in labels) == 3


async def test_a_repository_without_a_commit_and_a_tool_that_changed_nothing(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "a").write_text("a")
    extension = GitCheckpoint(tmp_path)
    extension._commit("first")
    extension._commit("again")
    assert git(tmp_path, "rev-list", "--count", REF) == "1"
    (tmp_path / "a").unlink()
    extension._commit("gone")
    assert git(tmp_path, "ls-tree", "--name-only", REF) == ""
    assert git(tmp_path, "rev-list", "--count", REF) == "2"
