"""A session of the old application, from the user's side: it opens idle, and the first prompt brings it to format 4."""

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_harness import AgentHarness, Session, build_context
from agent_harness.providers.base import ModelRegistry
from agent_harness.testing import SCRIPTED_MODEL, ScriptedProvider, ScriptedRequest, answer
from agent_harness.types.messages import AssistantMessage, Usage
from agent_harness.types.usage import add_usage
from session_backends import JsonlSessionRepo

ROOT = Path(__file__).parents[2]
V3 = ROOT / "fixtures" / "v3"
NAMES = ("new-simple", "new-branches", "new-compaction", "new-bad-interior", "new-errors-aborted-length")
SPENT = Usage(input=7, output=3, total_tokens=10)


def copy_of(name: str, folder: Path) -> Path:
    folder.mkdir(parents=True)
    return Path(shutil.copyfile(V3 / f"{name}.jsonl", folder / "2026-01-01T00-00-00-000Z_old.jsonl"))


async def opened(session: Session, requests: list[ScriptedRequest]) -> Any:
    """A harness that knows the model the session names."""

    def respond(request: ScriptedRequest) -> AssistantMessage:
        requests.append(request)
        return answer("Welcome back.", usage=SPENT)

    named = (await build_context(session)).model
    assert named is not None
    model = replace(SCRIPTED_MODEL, provider=named.provider, id=named.model_id)
    return AgentHarness.open(
        session=session, models=ModelRegistry([ScriptedProvider(respond=respond)], [model]), model=model
    )


@pytest.mark.parametrize("name", NAMES)
async def test_the_first_prompt_converts_an_old_session_and_its_totals_survive(name: str, tmp_path: Path) -> None:
    path = copy_of(name, tmp_path / "root" / "--x--")
    raw = path.read_bytes()
    repo = JsonlSessionRepo(tmp_path / "root")
    requests: list[ScriptedRequest] = []

    session = await repo.open(str(path))
    before = await session.get_stats()
    context = await build_context(session)
    async with await opened(session, requests) as harness:
        assert harness.suspended == []
        assert session.metadata.source_format == 3
        assert path.read_bytes() == raw  # opening and restoring write nothing
        (await harness.prompt("I am back.")).unwrap()
        assert session.metadata.source_format == 4
    assert json.loads(path.read_bytes().split(b"\n")[0])["version"] == 4

    session = await repo.open(str(path))
    assert session.metadata.source_format == 4
    assert session.diagnostics == ()
    assert await session.verify() == []
    after = await session.get_stats()
    assert after.usage == add_usage(before.usage, SPENT)
    assert after.message_count == before.message_count + 2
    async with await opened(session, requests) as harness:
        assert harness.suspended == []
        said = (await build_context(session)).messages
        assert said[: len(context.messages)] == context.messages
        (await harness.prompt("And again.")).unwrap()
    assert len(requests) == 2
    async with await repo.open(str(path), read_only=True) as reader:
        assert (await reader.get_stats()).usage == add_usage(after.usage, SPENT)


READ_ONLY = """
import asyncio, os, sys
from dataclasses import replace
from agent_harness import AgentHarness, HarnessFault, build_context
from agent_harness.providers.base import ModelRegistry
from agent_harness.testing import SCRIPTED_MODEL, ScriptedProvider, answer
from session_backends import JsonlSessionRepo

async def main(root, path):
    session = await JsonlSessionRepo(root).open(path, read_only=True)
    context = await build_context(session)
    model = replace(SCRIPTED_MODEL, provider=context.model.provider, id=context.model.model_id)
    models = ModelRegistry([ScriptedProvider(respond=lambda _: answer("Hello."))], [model])
    async with AgentHarness.open(session=session, models=models, model=model) as harness:
        print("idle" if harness.suspended == [] else "suspended", session.metadata.source_format, flush=True)
        print(len(context.messages), (await session.get_stats()).usage.total_tokens, flush=True)
        try:
            print(await harness.prompt("I am back."), flush=True)
        except HarnessFault as fault:
            print("fault", type(fault.cause).__name__, fault, flush=True)

asyncio.run(main(sys.argv[3], sys.argv[4]))  # what is imported late is imported while it still can be
if os.geteuid() == 0:
    os.setuid(65534)
asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


@pytest.mark.parametrize("name", NAMES)
def test_an_old_session_is_read_by_a_harness_in_a_folder_that_may_not_be_written(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    # Outside of pytest's own folder, which other users may not enter.
    place = Path(tempfile.mkdtemp(prefix="agent-harness-test-"))
    request.addfinalizer(lambda: shutil.rmtree(place))
    place.chmod(0o755)
    path, warm = copy_of(name, place / "root" / "--x--"), copy_of(name, tmp_path / "root" / "--x--")
    path.chmod(0o444)
    path.parent.chmod(0o555)
    raw, stat = path.read_bytes(), path.stat()
    done = subprocess.run(
        [sys.executable, "-c", READ_ONLY, place / "root", path, tmp_path / "root", warm],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 6, done.stdout
    found = lines[3:]
    assert found[0] == "idle 3"
    assert found[1] == asyncio.run(told(warm))
    assert found[2].startswith("fault ReadOnlySession "), found[2]
    assert "opened read-only" in found[2]
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    after = path.stat()
    assert (path.read_bytes(), after.st_mtime_ns, after.st_ino) == (raw, stat.st_mtime_ns, stat.st_ino)


async def told(path: Path) -> str:
    async with await JsonlSessionRepo(path.parent.parent).open(str(path), read_only=True) as session:
        context = await build_context(session)
        return f"{len(context.messages)} {(await session.get_stats()).usage.total_tokens}"
