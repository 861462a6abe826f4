"""SIGKILL at the k-th durable write plus a random delay, in every phase of a run, and `resume` after each."""

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cli_support import LIMIT_S, call, cli, script, start, wait_until

from agent_harness.cli.rendering import log_json
from agent_harness.session.verify import Finding
from session_backends import open_repo

PHASES = ("request", "before the effect", "inside the effect", "after the effect", "finishing")
KILLS = 20
MOST_KILLS = 60
MOST_DELAY_US = 160_000

ANSWERS: list[dict[str, Any]] = [
    {"text": "Write.", "delayMs": 20, "calls": [call("write", path="f.txt", content="one\n"), call("list")]},
    {"text": "Run.", "delayMs": 20, "calls": [call("shell", command="EFFECT A"), call("read", path="f.txt")]},
    {"text": "Edit.", "calls": [call("edit", path="f.txt", edits=[{"old": "one", "new": "two"}])]},
    {"text": "Again.", "delayMs": 20, "calls": [call("shell", command="EFFECT B")]},
    {"text": "All done."},
]
EFFECT = "echo begin {0} >> effects; sleep 0.03; echo done {0} >> effects; sleep 0.03; echo {0} is done"


@dataclass(frozen=True)
class Place:
    """A working folder with its script, its store and the backend that kills."""

    work: Path
    model: str
    store: str
    python_path: str

    def killing(self, k: int, delay_us: int) -> str:
        return f"killing:{k}:{delay_us}:{self.store}"

    def look(self) -> tuple[list[dict[str, Any]], list[Finding]]:
        """The log of the one session, as JSON, and what `verify()` finds in it."""

        async def read() -> tuple[list[dict[str, Any]], list[Finding]]:
            repo = open_repo(self.store)
            try:
                listed = await repo.list()
                if not listed:
                    return [], []
                (found,) = listed
                async with await repo.open(found.id, read_only=True) as session:
                    return [dict(log_json(item)) for item in await session.get_log()], await session.verify()
            finally:
                await repo.close()

        return asyncio.run(read())

    def log(self) -> list[dict[str, Any]]:
        return self.look()[0]

    def effects(self) -> Counter[str]:
        path = self.work / "effects"
        return Counter(path.read_text().splitlines() if path.exists() else [])

    def file(self) -> str | None:
        path = self.work / "f.txt"
        return path.read_text() if path.exists() else None


def make_place(folder: Path, kind: str) -> Place:
    work, plugin = folder / "work", folder / "plugin"
    work.mkdir(parents=True)
    info = plugin / "killing-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: killing\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[agent_harness.session_backends]\nkilling = killing_store:from_url\n")
    answers = [
        {
            **one,
            "calls": [
                {**c, "arguments": {"command": EFFECT.format(c["arguments"]["command"].split()[1])}}
                if c["name"] == "shell"
                else c
                for c in one.get("calls", [])
            ],
        }
        for one in ANSWERS
    ]
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join([str(plugin), str(Path(__file__).parent), *filter(None, inherited)])
    return Place(work, script(folder / "s.json", *answers), f"{kind}:{folder / 'store'}", path)


def results_of(log: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    messages = [item["message"] for item in log if item.get("type") == "message"]
    results = [one for one in messages if one["role"] == "toolResult"]
    calls = [part["id"] for one in messages if one["role"] == "assistant" for part in one["content"] if "id" in part]
    assert Counter(one["toolCallId"] for one in results) == Counter(dict.fromkeys(calls, 1)), "one result per call"
    return {one["toolCallId"]: one for one in results}


def phase(place: Place, log: list[dict[str, Any]]) -> str:
    """Where the dead process was, from what it left."""
    if not any(item.get("type") == "operation_started" for item in log):
        assert {item["kind"] for item in log} <= {"fact"}, "nothing but the session's name comes before acceptance"
        return "before acceptance"
    if any(item.get("type") == "operation_finished" for item in log):
        return "finished"
    done = {item["id"] for item in log if item["kind"] == "entry"}
    open_calls = [i for i in log if i.get("type") == "tool_started" and i["resultEntryId"] not in done]
    for started in open_calls:
        match started["toolName"]:
            case "shell":
                name = started["effectiveArgs"]["command"].split()[2]
                seen = place.effects()
                if seen[f"done {name}"]:
                    return "after the effect"
                return "inside the effect" if seen[f"begin {name}"] else "before the effect"
            case "write" | "edit":
                wanted = "one\n" if started["toolName"] == "write" else "two\n"
                return "after the effect" if place.file() == wanted else "before the effect"
            case _:
                return "inside a reader"
    last = log[-1]
    if last.get("type") in ("step_attempt", "usage"):
        return "request"
    if last.get("type") == "message" and last["message"].get("stopReason") == "stop":
        return "finishing"
    return "between steps"


def check_finished(place: Place) -> None:
    log, findings = place.look()
    assert findings == []
    assert log[-1]["type"] == "operation_finished"
    assert log[-1]["outcome"] == "completed"
    results = results_of(log)
    assert len(results) == 6
    effects = place.effects()
    assert set(effects.values()) <= {1}, effects
    for call_id, name in (("call-1-0", "A"), ("call-3-0", "B")):
        if results[call_id]["isError"]:
            assert "interrupted" in results[call_id]["content"][0]["text"]
        else:
            assert effects[f"begin {name}"] == effects[f"done {name}"] == 1
    check_file(place, results["call-0-0"], results["call-2-0"])
    write = results["call-0-0"]
    for call_id in ("call-0-1", "call-1-1"):  # readers are repeated, so they always answer
        text = results[call_id]["content"][0]["text"]
        assert not results[call_id]["isError"] or ("no such file" in text and write["isError"])


def check_file(place: Place, write: dict[str, Any], edit: dict[str, Any]) -> None:
    """What the file holds fits what the log says of the two calls that made it.

    A file is replaced in one step, so an interrupted call did all of its work or none. Where an interrupted write did
    none, the edit finds no file, unless it is interrupted before it looks.
    """
    file, said = place.file(), edit["content"][0]["text"]
    assert not write["isError"] or "interrupted" in write["content"][0]["text"], write
    if not edit["isError"]:
        assert file == "two\n"
    elif "interrupted" in said:
        assert file in ("one\n", "two\n") or (file is None and write["isError"]), file
    else:
        assert "no such file" in said, edit
        assert write["isError"]
        assert file is None


def kill_and_resume(place: Place, k: int, delay_us: int) -> str:
    """One process killed, one that resumes; the phase in which the first one died."""
    done = cli("run", "Go.", "--model", place.model, "--store", place.killing(k, delay_us), "-q",
               cwd=place.work, env={"PYTHONPATH": place.python_path})  # fmt: skip
    log = place.log()
    found = phase(place, log)
    if done.returncode == 0:
        assert found == "finished", "the process was not killed and did not finish"
        return "survived"
    assert done.returncode == -signal.SIGKILL, done.stderr
    if found not in ("before acceptance", "finished"):
        resumed = cli("resume", "--store", place.store, cwd=place.work)
        assert (resumed.returncode, resumed.stdout) == (0, "All done.\n"), resumed.stderr
    if found != "before acceptance":
        check_finished(place)
    return found


@pytest.mark.parametrize("kind", ["sqlite", "jsonl"])
def test_every_kill_is_survived_in_every_phase(tmp_path: Path, kind: str) -> None:
    seed = int(os.environ.get("AGENT_HARNESS_KILL_SEED") or random.SystemRandom().randrange(2**32))
    print(f"seed {seed} (set AGENT_HARNESS_KILL_SEED to repeat it)")
    chosen = random.Random(seed)
    whole = make_place(tmp_path / "whole", kind)
    assert cli("run", "Go.", "--model", whole.model, "--store", whole.store, "-q", cwd=whole.work).returncode == 0
    check_finished(whole)
    log = whole.log()
    # The name of the session is the first of its writes, so sequence numbers and writes count alike.
    shells = [i["seq"] for i in log if i.get("type") == "tool_started" and i["toolName"] == "shell"]
    aimed = {
        "request": [(i["seq"], 5_000) for i in log if i.get("type") == "step_attempt"],
        "before the effect": [(i["seq"], 0) for i in log if i.get("type") == "tool_started" and i["replay"] == "never"],
        "inside the effect": [(seq, delay) for seq in shells for delay in range(10_000, 60_000, 5_000)],
        "after the effect": [(seq, delay) for seq in shells for delay in range(45_000, 120_000, 5_000)],
        "finishing": [(log[-1]["seq"] - 1, 0)],
    }
    met: Counter[str] = Counter()
    for n in range(MOST_KILLS):
        missing = [one for one in PHASES if not met[one]]
        if met.total() - met["survived"] >= KILLS and not missing:
            break
        if n < KILLS // 2:
            k, delay = chosen.randint(1, log[-1]["seq"] - 1), chosen.choice([0, chosen.randrange(MOST_DELAY_US)])
        else:
            k, delay = chosen.choice(aimed[chosen.choice(missing or list(PHASES))])
        try:
            found = kill_and_resume(make_place(tmp_path / f"{n}", kind), k, delay)
        except Exception as error:
            error.add_note(f"seed {seed}, kill {n}: write {k} + {delay} us")
            raise
        print(f"kill {n}: write {k} + {delay} us: {found}")
        met[found] += 1
    assert met.total() - met["survived"] >= KILLS, f"seed {seed}: {met}"
    assert [one for one in PHASES if not met[one]] == [], f"seed {seed}: {met}"


def rows(store: str) -> int:
    """Durable writes in an SQLite store that another process is writing."""
    path = store.removeprefix("sqlite:")
    if not Path(path).exists():
        return 0
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1)) as db:
        try:
            return int(
                db.execute("SELECT (SELECT count(*) FROM entries) + (SELECT count(*) FROM records)").fetchone()[0]
            )
        except sqlite3.OperationalError:
            return 0


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[tuple[Place, subprocess.Popen[str]]]:
    place = make_place(tmp_path, "sqlite")
    process = start("run", "Go.", "--model", place.model, "--store", place.store, "-q", cwd=place.work)
    try:
        yield place, process
    finally:
        process.kill()
        process.communicate()


def test_a_run_killed_from_outside_again_and_again_ends_once(victim: tuple[Place, subprocess.Popen[str]]) -> None:
    """The parent kills, and kills each process that resumes, as soon as it has written something more.

    Three times: a request that died counts as an attempt, and there are four.
    """
    place, process = victim
    for _ in range(3):
        seen = rows(place.store)
        wait_until(partial(wrote_or_ended, place.store, seen, process))
        process.kill()
        process.communicate(timeout=LIMIT_S)
        if any(item.get("type") == "operation_finished" for item in place.log()):
            break
        process = start("resume", "--store", place.store, "-q", cwd=place.work)
    process.communicate(timeout=LIMIT_S)
    check_finished(place)


def wrote_or_ended(store: str, seen: int, process: subprocess.Popen[str]) -> bool:
    return rows(store) > seen or process.poll() is not None
