"""What a run costs, beside the floor, as ratios measured in one process. Prints tables; gates nothing.

nox -s bench
python benchmarks/run_cost.py --runs 200
"""

import argparse
import asyncio
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from agent_harness import AgentHarness, AgentTool, AgentToolResult, CompactionSettings, TextContent, ToolInvocation
from agent_harness.providers.base import ModelRegistry
from agent_harness.session.repo import SessionRepo
from agent_harness.testing import SCRIPTED_MODEL, ScriptedProvider, ScriptedRequest, answer, call
from agent_harness.types.messages import AssistantMessage, ToolResultMessage, Usage
from session_backends import JsonlSessionRepo, MemorySessionRepo
from session_backends.sqlite.repo import SqliteSessionRepo

WRITES_PER_RUN = 11  # a run of one tool call

MODEL = replace(SCRIPTED_MODEL, id="small", context_window=4_000, max_tokens=1_000)  # a window that fills: compaction


async def measure(_: ToolInvocation) -> AgentToolResult:
    return AgentToolResult(content=(TextContent(text="3.5 m"),))


TOOL = AgentTool(name="measure", description="Measure.", parameters={"type": "object"}, execute=measure, replay="safe")


def respond(request: ScriptedRequest) -> AssistantMessage:
    used = Usage(
        input=40 * len(request.context.messages), output=10, total_tokens=40 * len(request.context.messages) + 10
    )
    if not request.context.tools:
        return answer("Beds are measured.")  # a summary request
    if isinstance(request.context.messages[-1], ToolResultMessage):
        return answer("3.5 metres.", usage=used)
    return answer("Working.", calls=[call("measure", {"bed": 1})], usage=used)


async def runs(repo: SessionRepo, marks: list[int]) -> dict[int, float]:
    """CPU milliseconds per run around each mark, in one growing session that compaction keeps bounded."""
    session = await repo.create()
    window = 10
    costs: dict[int, float] = {}
    async with AgentHarness.open(
        session=session,
        models=ModelRegistry([ScriptedProvider(respond=respond)], [MODEL]),
        model=MODEL,
        tools=[TOOL],
        compaction=CompactionSettings(reserve_tokens=1_000, keep_recent_tokens=500),
    ) as harness:
        for number in range(1, marks[-1] + window + 1):
            if number - 1 in marks:
                started = time.process_time()
                for _ in range(window):
                    (await harness.prompt("How long is bed 1?")).unwrap()
                costs[number - 1] = (time.process_time() - started) * 1000 / window
            else:
                (await harness.prompt("How long is bed 1?")).unwrap()
    return costs


def raw_append(path: Path, count: int) -> float:
    line = b"x" * 400 + b"\n"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    started = time.process_time()
    for _ in range(count):
        os.write(descriptor, line)
    os.close(descriptor)
    return (time.process_time() - started) * 1000 / count


def raw_sqlite(path: Path, count: int) -> float:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("CREATE TABLE t (seq INTEGER PRIMARY KEY, payload BLOB)")
    started = time.process_time()
    for number in range(count):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO t VALUES (?, ?)", (number, b"x" * 400))
        connection.execute("COMMIT")
    connection.close()
    return (time.process_time() - started) * 1000 / count


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2_000, help="how far the session grows")
    chosen = parser.parse_args()
    marks = sorted({mark for mark in (20, 200, 2_000) if mark <= chosen.runs} or {chosen.runs})
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        floor = {"jsonl": raw_append(root / "raw.jsonl", 2_000), "sqlite": raw_sqlite(root / "raw.db", 2_000)}
        repos: dict[str, Callable[[], SessionRepo]] = {
            "memory": MemorySessionRepo,
            "jsonl": lambda: JsonlSessionRepo(root / "jsonl"),
            "sqlite": lambda: SqliteSessionRepo(root / "sessions.db"),
        }
        print("CPU ms per run (one tool call, 11 writes) as the session grows")
        print(
            f"{'backend':8}" + "".join(f"{f'run {mark}':>12}" for mark in marks) + f"{'last/first':>12}{'x floor':>10}"
        )
        for name, make in repos.items():
            repo = make()
            costs = await runs(repo, marks)
            await repo.close()
            values = [costs[mark] for mark in marks]
            over = f"{values[-1] / (floor[name] * WRITES_PER_RUN):.1f}" if name in floor else "-"
            print(
                f"{name:8}"
                + "".join(f"{value:12.2f}" for value in values)
                + f"{values[-1] / values[0]:12.2f}{over:>10}"
            )
        print()
        print("floor, CPU ms per write: " + ", ".join(f"{name} {value:.4f}" for name, value in floor.items()))
    await import_times()


ADAPTERS = {  # with the SDK that each imports when it is first asked
    "agent_harness.providers.openai_chat": "openai",
    "agent_harness.providers.openai_responses": "openai",
    "agent_harness.providers.anthropic": "anthropic",
    "agent_harness.providers.google": "google.genai",
    "agent_harness.providers.local": "openai",
}


async def import_times() -> None:
    """Wall milliseconds to import, in fresh processes; the smallest of five."""
    print()
    print("import, ms (smallest of five)")
    for module in ("agent_harness", "session_backends", "agent_harness.tools"):
        print(f"  {module:60}{await import_time(module):8.0f}")
    for module, sdk in ADAPTERS.items():
        print(f"  {module:60}{await import_time(module):8.0f}")
        both = f"{module}, {sdk}"
        print(f"  {both:60}{await import_time(both):8.0f}")


async def import_time(modules: str) -> float:
    code = f"import time; t = time.perf_counter(); import {modules}; print((time.perf_counter() - t) * 1000)"
    times = []
    for _ in range(5):
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
        out, _errors = await process.communicate()
        times.append(float(out))
    return min(times)


if __name__ == "__main__":
    asyncio.run(main())
