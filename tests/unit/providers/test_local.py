"""A local model for real: llama.cpp over a GGUF file with random weights. It says noise; how it does is what counts."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Literal
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from pydantic import BaseModel, ConfigDict

from agent_harness import AgentHarness, AgentTool, MissingExtra, StreamOptions, UserMessage
from agent_harness.abort_signal import AbortSignal
from agent_harness.cli.failure import Failure
from agent_harness.cli.models import choose_model
from agent_harness.outcomes import RunCompleted
from agent_harness.providers.base import (
    AssistantMessageEvent,
    Model,
    ModelRegistry,
    ProviderContext,
    RequestContext,
    StreamDelta,
    StreamEnd,
    StreamStart,
    ToolSpec,
)
from agent_harness.providers.local import LocalProvider, local_model
from agent_harness.providers.local_gguf import context_length
from agent_harness.tools import tool
from agent_harness.types.messages import AssistantMessage, ToolResultMessage
from session_backends import MemorySessionRepo
from tests.unit.providers.tiny_gguf import write_tiny_model


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module")
def provider(gguf_file: Path) -> Iterator[LocalProvider]:
    local = LocalProvider(gguf_file, context_window=4096)
    yield local
    local.close()


@pytest.fixture
def model(gguf_file: Path) -> Model:
    return local_model(gguf_file, context_window=4096)


async def ask(
    provider: LocalProvider,
    model: Model,
    text: str = "Hello",
    *,
    tools: tuple[ToolSpec, ...] = (),
    signal: AbortSignal | None = None,
    **options: object,
) -> list[AssistantMessageEvent]:
    context = ProviderContext(messages=[UserMessage(content=text, timestamp=0)], tools=tools)
    asked = StreamOptions(**{"max_tokens": 40, "temperature": 0.0, **options})
    request = RequestContext(signal=signal or AbortSignal())
    return [event async for event in provider.stream(model, context, asked, request)]


def final(events: list[AssistantMessageEvent]) -> AssistantMessage:
    assert isinstance(events[-1], StreamEnd)
    return events[-1].message


async def opened(provider: LocalProvider, model: Model, *tools: AgentTool) -> AgentHarness:
    created = await AgentHarness.create(
        session=await MemorySessionRepo().create(),
        models=ModelRegistry([provider], [model]),
        model=model,
        tools=tools,
        stream_options=StreamOptions(max_tokens=100, temperature=0.0),
    )
    return created.harness


def gone(pid: int) -> bool:
    for _ in range(500):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


async def test_text_is_streamed_as_it_is_generated(provider: LocalProvider, model: Model) -> None:
    events = await ask(provider, model)
    message = final(events)
    deltas = [event.delta for event in events if isinstance(event, StreamDelta)]
    assert isinstance(events[0], StreamStart)
    assert message.stop_reason in ("stop", "length")
    assert "".join(deltas) == message.text != ""
    assert len(deltas) > 2
    assert (message.api, message.provider, message.model) == ("local", "local", "tiny")
    assert 0 < message.usage.output <= 40
    assert message.usage.input + message.usage.cache_read > 0


async def test_an_answer_is_held_to_a_schema_and_comes_back_as_a_value(provider: LocalProvider, model: Model) -> None:
    class Colour(Enum):
        RED = "red"
        BLUE = "blue"

    class Choice(BaseModel):
        model_config = ConfigDict(extra="forbid")  # a model of noise would add properties for ever
        colour: Colour
        size: Literal[1, 2, 3]

    async with await opened(provider, model) as harness:
        outcome = (await harness.prompt("Choose.", output_type=Choice, output_retries=0)).unwrap()
    assert isinstance(outcome, RunCompleted)
    assert isinstance(outcome.output, Choice), outcome.output_error


class Report(BaseModel):
    model_config = ConfigDict(extra="forbid")
    lit: Literal["none", "left", "right"]


async def test_tool_calls_and_the_answer_after_them_are_held_to_their_schemas(
    provider: LocalProvider, model: Model
) -> None:
    ran: list[str] = []

    @tool
    async def switch(lamp: Literal["left", "right"]) -> str:
        """Switch a lamp."""
        ran.append(lamp)
        return "done"

    async with await opened(provider, model, switch) as harness:
        work = asyncio.ensure_future(harness.prompt("Switch a lamp.", output_type=Report, output_retries=0))
        outcome = (await asyncio.wait_for(work, 60)).unwrap()
        entries = [e.message for e in await harness.session.find_entries()]
    results = [m for m in entries if isinstance(m, ToolResultMessage)]
    calls = [c for m in entries if isinstance(m, AssistantMessage) for c in m.tool_calls]
    # The file's weights make it call for ever; the same call three times, then it has to answer.
    assert [c.name for c in calls] == ["switch"] * len(ran)
    assert max(ran.count("left"), ran.count("right")) == 3
    assert all(not m.is_error for m in results)
    assert len({c.id for c in calls}) == len(calls)
    assert isinstance(outcome, RunCompleted)
    assert isinstance(outcome.output, Report), outcome.output_error


async def test_an_abort_ends_the_answer_at_once_and_the_model_stays(provider: LocalProvider, model: Model) -> None:
    await ask(provider, model)
    pid = provider.pid
    aborting = AbortSignal()
    context = ProviderContext(messages=[UserMessage(content="Hello", timestamp=0)])
    schema = {"type": "object", "properties": {"a": {"type": "string", "minLength": 1500}}, "required": ["a"]}
    options = StreamOptions(max_tokens=1900, response_schema=schema)
    events: list[AssistantMessageEvent] = []
    began = 0.0
    async for event in provider.stream(model, context, options, RequestContext(signal=aborting)):
        events.append(event)
        if isinstance(event, StreamDelta) and not aborting.aborted:
            began = time.monotonic()
            aborting.abort()
    assert final(events).stop_reason == "aborted"
    assert time.monotonic() - began < 1
    assert final(await ask(provider, model)).stop_reason in ("stop", "length")
    assert provider.pid == pid


async def test_an_abort_does_not_wait_for_the_loading(gguf_file: Path, model: Model) -> None:
    local = LocalProvider(gguf_file, context_window=4096)
    aborting = AbortSignal()
    asyncio.get_running_loop().call_soon(aborting.abort)
    assert final(await ask(local, model, signal=aborting)).stop_reason == "aborted"
    assert local.pid is None  # it was still on its way
    assert final(await ask(local, model)).stop_reason in ("stop", "length")  # and was not started twice
    local.close()


async def test_a_conversation_that_does_not_fit_is_an_overflow(provider: LocalProvider, model: Model) -> None:
    message = final(await ask(provider, model, "word " * 6000))
    assert (message.stop_reason, message.error_code) == ("error", "overflow")


async def test_a_model_process_that_dies_is_started_again_by_the_retry(gguf_file: Path, model: Model) -> None:
    local = LocalProvider(gguf_file, context_window=4096)
    first = await ask(local, model)
    pid = local.pid
    assert final(first).stop_reason in ("stop", "length")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)
    async with await opened(local, model) as harness:
        outcome = (await harness.prompt("Hello")).unwrap()
    assert isinstance(outcome, RunCompleted)
    assert local.pid not in (None, pid)
    again = local.pid
    local.close()
    assert again is not None
    assert gone(again)


async def test_a_file_that_is_no_model_is_an_error_that_is_not_retried(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF but not really")
    message = final(await ask(LocalProvider(path), local_model(path)))
    assert (message.stop_reason, message.error_code) == ("error", "invalid_request")
    assert message.error_message is not None
    assert "could not be loaded" in message.error_message
    with pytest.raises(FileNotFoundError, match="no model file"):
        LocalProvider(tmp_path / "none.gguf")


async def test_nobody_else_on_the_machine_can_ask_the_model(provider: LocalProvider, model: Model) -> None:
    await ask(provider, model)
    started = provider._started
    assert started is not None
    address = started.result().address
    assert address.startswith("http://127.0.0.1:")

    def knock() -> int:
        body = b'{"messages": [{"role": "user", "content": "x"}]}'
        try:
            with urlopen(Request(f"{address}/v1/chat/completions", body, {"content-type": "application/json"})) as r:
                return int(r.status)
        except HTTPError as error:
            error.close()
            return error.code

    assert await asyncio.to_thread(knock) == 401


def test_the_model_process_ends_with_a_killed_harness(gguf_file: Path) -> None:
    script = f"""
import asyncio, time
from agent_harness import UserMessage, StreamOptions
from agent_harness.abort_signal import AbortSignal
from agent_harness.providers.base import ProviderContext, RequestContext
from agent_harness.providers.local import LocalProvider, local_model
async def main():
    local, model = LocalProvider({str(gguf_file)!r}), local_model({str(gguf_file)!r})
    context = ProviderContext(messages=[UserMessage(content="x", timestamp=0)])
    options = StreamOptions(max_tokens=3)
    async for _ in local.stream(model, context, options, RequestContext(signal=AbortSignal())): pass
    print(local.pid, flush=True)
    time.sleep(60)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as harness:
        assert harness.stdout is not None
        pid = int(harness.stdout.readline())
        assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        harness.kill()
        assert gone(pid)


def test_the_window_is_never_larger_than_the_model_was_trained_for(gguf_file: Path, tmp_path: Path) -> None:
    assert context_length(gguf_file) == 4096
    assert local_model(gguf_file).context_window == 4096
    assert local_model(gguf_file, context_window=512).context_window == 512
    head = gguf_file.read_bytes()
    for end in (0, 4, 8, 30, 90):  # whatever a file says instead, it is not an error here
        (tmp_path / "cut.gguf").write_bytes(head[:end])
        assert context_length(tmp_path / "cut.gguf") is None
    (tmp_path / "odd.gguf").write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 100)
    assert context_length(tmp_path / "odd.gguf") is None
    assert context_length(tmp_path / "none.gguf") is None


def test_the_command_line_takes_a_model_file(gguf_file: Path, tmp_path: Path) -> None:
    chosen = choose_model("local:tiny.gguf", None, gguf_file.parent)
    assert (chosen.name, str(chosen.model), chosen.server) == (f"local:{gguf_file}", "local/tiny", None)
    assert choose_model(chosen.name, None, tmp_path).model == chosen.model
    with pytest.raises(Failure, match="there is no model file"):
        choose_model("local:none.gguf", None, tmp_path)


def test_a_missing_extra_names_the_command(gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(MissingExtra, match=r"pip install 'agent-harness\[local\]'"):
        LocalProvider(gguf_file)
