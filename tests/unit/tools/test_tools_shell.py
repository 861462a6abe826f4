"""shell: real processes, all of them ended before the result (case 50); bounded output; no keys (T27)."""

import asyncio
import os
import stat
import sys
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from tools_support import details_of, invoke, is_running, named, poll, text_of

from agent_harness.abort_signal import AbortSignal
from agent_harness.tools import Workspace
from agent_harness.tools.output import BoundedOutput
from agent_harness.tools.processes import group_members
from agent_harness.tools.shell import ALLOWED_ENVIRONMENT, MAX_OUTPUT_BYTES, shell_environment, shell_tool
from agent_harness.tools.text import decode
from agent_harness.types.tools import AgentToolResult


async def shell(root: Path, command: str, **more: Any) -> AgentToolResult:
    return await invoke(named(root, "shell"), {"command": command, **more})


async def test_output_and_errors_come_merged_with_the_exit_code(tmp_path: Path) -> None:
    result = await shell(tmp_path, "echo out; echo err >&2; pwd; exit 3")
    assert text_of(result) == f"out\nerr\n{tmp_path}\n[exit code 3]"
    assert details_of(result) == {
        "exitCode": 3,
        "timedOut": False,
        "interrupted": False,
        "truncated": False,
        "outputBytes": len(f"out\nerr\n{tmp_path}\n"),
    }
    assert text_of(await shell(tmp_path, "true")) == "[exit code 0]"
    assert text_of(await shell(tmp_path, "kill -9 $$")) == "[ended by signal 9]"


async def test_stdin_is_at_its_end(tmp_path: Path) -> None:
    assert text_of(await shell(tmp_path, "cat; echo done", timeout_s=10)) == "done\n[exit code 0]"


async def test_only_named_variables_reach_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ["OPENAI_API_KEY", "MY_SECRET", "LC_SECRET_TOKEN", "PATH_TOKEN"]:
        monkeypatch.setenv(name, "CANARY-9f31")
    text = text_of(await shell(tmp_path, "env"))
    assert "CANARY" not in text
    assert f"PATH={os.environ['PATH']}\n" in text
    names = {line.partition("=")[0] for line in text.splitlines() if "=" in line}
    extra = {
        "TERM",
        "PAGER",
        "GIT_PAGER",
        "GIT_TERMINAL_PROMPT",
        "AGENT_HARNESS_COMMAND",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
    }
    assert names <= {*ALLOWED_ENVIRONMENT, *extra}


async def test_what_the_application_adds_is_passed_on(tmp_path: Path) -> None:
    tool = shell_tool(Workspace(tmp_path), environment={"GREETING": "hi", "PATH": "/usr/bin:/bin"})
    assert text_of(await invoke(tool, {"command": "echo $GREETING $PATH"})) == "hi /usr/bin:/bin\n[exit code 0]"
    assert "A" not in shell_environment({"A": "1"})


@pytest.mark.parametrize("how", ["abort", "abort and cancel", "timeout", "cancel"])
@pytest.mark.parametrize("stubborn", [False, True], ids=["obeys TERM", "ignores TERM"])
async def test_the_whole_group_is_gone_before_the_result(tmp_path: Path, how: str, stubborn: bool) -> None:
    trap = "trap '' TERM; " if stubborn else ""
    command = (
        f"{trap}sleep 300 & echo $! > child; (sleep 300 & echo $! > grandchild; wait) & echo $$ > leader; sleep 300"
    )
    signal = AbortSignal()
    args: dict[str, Any] = {"command": command, **({"timeout_s": 1.0} if how == "timeout" else {})}
    running = asyncio.ensure_future(invoke(named(tmp_path, "shell"), args, signal=signal))
    files = [tmp_path / name for name in ("child", "grandchild", "leader")]
    await poll(lambda: all(file.exists() and file.read_text().strip() for file in files))
    pids = [int(file.read_text()) for file in files]
    if how != "timeout":
        assert all(is_running(pid) for pid in pids)
    started = monotonic()
    match how:
        case "abort":
            signal.abort()
        case "abort and cancel":  # what the batch driver does
            signal.abort()
            running.cancel()
        case "cancel":
            running.cancel()
        case _:
            pass
    if how == "cancel":
        with pytest.raises(asyncio.CancelledError):
            await running
    else:
        result = await running
        details = details_of(result)
        said = "interrupted" if how != "timeout" else "timed out after 1 s"
        assert f"[{said}: the command was ended; what it did until then stays]" in text_of(result)
        assert (details["exitCode"], details["interrupted"], details["timedOut"]) == (
            *(None, how != "timeout", how == "timeout"),
        )
    assert [pid for pid in pids if is_running(pid)] == []
    assert group_members(pids[2]) == []
    assert monotonic() - started < 8


async def test_repeated_cancellation_leaves_nothing_behind(tmp_path: Path) -> None:
    running = asyncio.ensure_future(shell(tmp_path, "trap '' TERM; echo $$ > leader; while :; do sleep 1; done"))
    await poll(lambda: (tmp_path / "leader").exists() and (tmp_path / "leader").read_text().strip() != "")
    pid = int((tmp_path / "leader").read_text())
    while not running.done():
        running.cancel()
        await asyncio.sleep(0.05)
    assert running.cancelled()
    assert not is_running(pid)


def test_the_end_of_the_event_loop_ends_the_command(tmp_path: Path) -> None:
    async def main() -> int:
        task = asyncio.ensure_future(shell(tmp_path, "trap '' TERM; echo $$ > leader; while :; do sleep 1; done"))
        await poll(lambda: (tmp_path / "leader").exists() and (tmp_path / "leader").read_text().strip() != "")
        assert not task.done()
        return int((tmp_path / "leader").read_text())

    assert not is_running(asyncio.run(main()))


def test_the_end_of_the_event_loop_within_the_grace_period_ends_the_command(tmp_path: Path) -> None:
    async def main() -> int:
        signal = AbortSignal()
        command = "trap 'touch termed' TERM; echo $$ > leader; while :; do sleep 0.1; done"
        task = asyncio.ensure_future(invoke(named(tmp_path, "shell"), {"command": command}, signal=signal))
        await poll(lambda: (tmp_path / "leader").exists() and (tmp_path / "leader").read_text().strip() != "")
        signal.abort()
        await poll((tmp_path / "termed").exists)
        assert not task.done()
        return int((tmp_path / "leader").read_text())

    assert not is_running(asyncio.run(main()))


DIES = """
import asyncio, os, sys
sys.path[:0] = {path!r}
from pathlib import Path
from tools_support import named, invoke
asyncio.run(invoke(named(Path({root!r}), "shell"), {{"command": "echo $$ > leader; sleep 300 & sleep 300"}}))
"""


async def test_a_command_does_not_outlive_a_process_that_was_killed(tmp_path: Path) -> None:
    program = DIES.format(path=[str(Path(__file__).parent)], root=str(tmp_path))
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    await poll(lambda: (tmp_path / "leader").exists() and (tmp_path / "leader").read_text().strip() != "", 30)
    leader = int((tmp_path / "leader").read_text())
    assert group_members(leader) != []
    process.kill()
    await process.wait()
    await poll(lambda: group_members(leader) == [])


async def test_background_processes_end_with_the_command_and_are_counted(tmp_path: Path) -> None:
    started = monotonic()
    result = await shell(tmp_path, "sleep 300 & echo $! > child; echo started")
    assert text_of(result) == "started\n[exit code 0]\n[1 background process(es) ended with the command]"
    assert details_of(result)["endedProcesses"] == 1
    assert not is_running(int((tmp_path / "child").read_text()))
    assert monotonic() - started < 10


async def test_a_detached_process_is_reported(tmp_path: Path) -> None:
    result = await shell(tmp_path, "setsid sh -c 'echo $$ > pid; exec sleep 300' & while [ ! -s pid ]; do :; done")
    pid = int((tmp_path / "pid").read_text())
    try:
        assert is_running(pid)
        assert details_of(result)["detached"] == [{"pid": pid, "command": "sleep 300"}]
        assert f"[still running, detached from the command: {pid} (sleep 300)]" in text_of(result)
    finally:
        os.kill(pid, 9)
    await poll(lambda: not is_running(pid))


async def test_long_output_keeps_its_head_and_its_tail(tmp_path: Path) -> None:
    result = await shell(tmp_path, "echo first; yes 😀 | head -n 100000; echo last")
    text, details = text_of(result), details_of(result)
    assert text.startswith("first\n😀\n")
    assert text.endswith("😀\nlast\n[exit code 0]")
    assert "\ufffd" not in text
    assert len(text.encode()) <= MAX_OUTPUT_BYTES + 200
    assert (details["truncated"], details["outputBytes"]) == (True, 11 + 500_000)
    left_out = int(text.partition("[... ")[2].partition(" bytes")[0])
    kept = text.removesuffix("[exit code 0]").replace(f"\n[... {left_out} bytes left out ...]\n", "")
    assert len(kept.encode()) + left_out == details["outputBytes"]


async def test_the_whole_output_is_saved_only_when_asked(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    result = await shell(folder, "yes | head -n 100000", save_output=True)
    path = Path(details_of(result)["outputPath"])
    try:
        assert path.read_bytes() == b"y\n" * 100_000
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert not path.is_relative_to(folder)
    finally:
        path.unlink()
    assert "outputPath" not in details_of(await shell(folder, "true"))
    assert list(folder.iterdir()) == []


async def test_output_is_always_valid_text(tmp_path: Path) -> None:
    result = await shell(tmp_path, r"printf 'a\000b \355\240\275 \377 \033[31m'")
    assert text_of(result) == "a\0b \ufffd \ufffd \x1b[31m\n[exit code 0]"


async def test_progress_is_told_while_the_command_runs(tmp_path: Path) -> None:
    seen: list[str] = []
    (tmp_path / "go").write_text("")
    tool = named(tmp_path, "shell")
    running = asyncio.ensure_future(
        invoke(
            tool,
            {"command": "echo one; while [ -e go ]; do sleep 0.02; done; echo two"},
            update=lambda partial: seen.append(text_of(partial)),
        )
    )
    await poll(lambda: bool(seen))
    assert seen == ["one\n"]
    assert not running.done()
    (tmp_path / "go").unlink()
    assert text_of(await running) == "one\ntwo\n[exit code 0]"


def children() -> set[int]:
    """The pids of this process's children, running or not yet waited for."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = path.read_text().rpartition(")")[2].split()[1]
        except OSError:  # the process ended between the listing and the reading
            continue
        if int(parent) == os.getpid():
            found.add(int(path.parent.name))
    return found


async def test_no_descriptor_and_no_zombie_is_left(tmp_path: Path) -> None:
    await shell(tmp_path, "true")
    others = children()  # another test of this worker may own some
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        await shell(tmp_path, "sleep 300 & true")
    assert len(os.listdir("/proc/self/fd")) == before
    assert children() - others == set()


@pytest.mark.parametrize(
    "args", [{"command": ""}, {"command": "x", "timeout_s": 0}, {"command": "x", "timeout_s": 1e9}]
)
async def test_bad_arguments_are_refused(tmp_path: Path, args: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="invalid arguments"):
        await invoke(named(tmp_path, "shell"), args)
    with pytest.raises(ValueError, match="NUL"):
        await shell(tmp_path, "a\0b")


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 18, 19, 20, 21, 22, 23, 40, 1000])
@pytest.mark.parametrize("step", [1, 3, 7, 64])
def test_bounded_output_never_lies(size: int, step: int) -> None:
    data = ("aé😀" * size).encode()[:size]
    output = BoundedOutput(16)
    for at in range(0, size, step):
        output.add(data[at : at + step])
    text = output.text()
    assert output.truncated == (size > 16)
    if not output.truncated:
        assert text == decode(data)
        return
    head, middle, tail = text.partition("\n[... ")
    left_out, _, tail = tail.partition(" bytes left out ...]\n")
    assert middle
    assert data.startswith(head.encode())
    assert int(left_out) + len(head.encode()) + len(data[len(data) - _tail_bytes(data, tail) :]) == size


def _tail_bytes(data: bytes, tail: str) -> int:
    return next(n for n in range(len(data) + 1) if decode(data[len(data) - n :]) == tail)
