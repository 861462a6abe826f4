"""Many runs in one interpreter of its own; prints what was counted, as JSON. Arguments: a folder, how many runs."""

import asyncio
import gc
import json
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from agent_harness import AgentHarness, AgentTool, AgentToolResult, CompactionSettings, TextContent, ToolInvocation
from agent_harness.errors import SessionLocked
from agent_harness.providers.base import ModelRegistry
from agent_harness.testing import SCRIPTED_MODEL, ScriptedProvider, ScriptedRequest, answer, call
from agent_harness.types.messages import AssistantMessage, ToolResultMessage, Usage
from session_backends.sqlite.repo import SqliteSessionRepo

MODEL = replace(SCRIPTED_MODEL, id="small", context_window=4_000, max_tokens=1_000)  # compacted every few runs
COMPACTION = CompactionSettings(reserve_tokens=1_000, keep_recent_tokens=500)


def respond(request: ScriptedRequest) -> AssistantMessage:
    """One tool call per prompt; usage grows with the context, so that compaction bounds it."""
    used = 40 * len(request.context.messages)
    usage = Usage(input=used, output=10, total_tokens=used + 10)
    if not request.context.tools:
        return answer("Beds are measured.")  # a summary
    if isinstance(request.context.messages[-1], ToolResultMessage):
        return answer("3.5 metres.", usage=usage)
    return answer("Working.", calls=[call("measure", {"bed": 1})], usage=usage)


async def measure(_: ToolInvocation) -> AgentToolResult:
    return AgentToolResult(content=(TextContent(text="3.5 m"),))


TOOL = AgentTool(name="measure", description="Measure.", parameters={"type": "object"}, execute=measure, replay="safe")


def resident_kib() -> int:
    """Memory of this process that is really there, after collection."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def descriptors() -> list[str]:
    """What the open file descriptors point at."""
    found: list[str] = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue  # the one that listed the folder
    return sorted(found)


def threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate())


def tasks() -> int:
    return len(asyncio.all_tasks())


async def main(folder: Path, runs: int) -> dict[str, object]:
    """`runs` runs on one session; memory is taken at a fifth of them and at the end."""
    before = {"descriptors": descriptors(), "threads": threads(), "tasks": tasks()}
    provider = ScriptedProvider(respond=respond)
    repo = SqliteSessionRepo(folder / "sessions.db")
    session = await repo.create(id="long")
    objects: dict[str, int] = {}
    memory: dict[str, int] = {}
    largest, started = 0, time.perf_counter()
    async with AgentHarness.open(
        session=session, models=ModelRegistry([provider], [MODEL]), model=MODEL, tools=[TOOL], compaction=COMPACTION
    ) as harness:
        for number in range(1, runs + 1):
            (await harness.prompt("How long is bed 1?")).unwrap()
            largest = max(largest, *(len(request.context.messages) for request in provider.requests))
            provider.requests.clear()
            if number in (runs // 5, runs):
                name = "early" if number < runs else "late"
                memory[name] = resident_kib()
                objects[name] = len(gc.get_objects())
        during = {"threads": len(threads())}
    seconds = time.perf_counter() - started
    await repo.close()
    gc.collect()
    after = {"descriptors": descriptors(), "threads": threads(), "tasks": tasks()}
    # Nothing is held: another store may write the session at once.
    other = SqliteSessionRepo(folder / "sessions.db")
    try:
        again = await other.open("long")
        locked = False
        finished = len(await again.find_records(type="operation_finished"))
        await again.close()
    except SessionLocked:
        locked, finished = True, 0
    await other.close()
    return {
        "before": before,
        "during": during,
        "after": after,
        "memory": memory,
        "objects": objects,
        "largest": largest,
        "locked": locked,
        "finished": finished,
        "seconds": seconds,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))))
