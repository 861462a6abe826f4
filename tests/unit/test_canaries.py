"""Canaries planted in everything a conversation and its credentials consist of reach no span, log line or exception."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_harness import (
    AgentTool,
    AgentToolResult,
    CustomMessage,
    Err,
    HarnessFault,
    InvalidPayload,
    MessageType,
    StreamOptions,
    TextContent,
    ToolInvocation,
)
from agent_harness.abort_signal import AbortSignal
from agent_harness.hooks.catalog import BeforeTool, ToolDecision
from agent_harness.loop.loop_config import AgentContext, AgentLoopConfig
from agent_harness.providers.base import AssistantMessageEvent, Model, ModelRegistry, ProviderContext, RequestContext
from agent_harness.session.repo import SessionRepo
from agent_harness.testing import SCRIPTED_MODEL, ScriptedProvider, ScriptedRequest, answer, call, start
from agent_harness.types.messages import ExtensionMessage, Usage
from session_backends.faults import Faults, FaultyRepo
from tests.support.canaries import CONTENT, SECRETS, Leaks, canary, found, locals_of
from tests.support.rig import Held, Rig, open_rig, turns, until

OVERLOADED = answer(error_message="overloaded", error_code="overloaded")
WORKING = answer(
    canary("answer"),
    calls=[call("measure", {"bed": canary("argument")}, id="c1"), call("break", {"x": canary("argument")}, id="c2")],
)


@pytest.fixture
def leaks(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Leaks:
    monkeypatch.setenv("SCRIPTED_API_KEY", canary("env"))
    return Leaks(caplog)


class Keyed(ScriptedProvider):
    """A provider with a key that some of its requests raise, as a careless client does."""

    async def stream(
        self, model: Model, context: ProviderContext, options: StreamOptions, request: RequestContext
    ) -> AsyncIterator[AssistantMessageEvent]:
        async for event in ScriptedProvider.stream(self, model, context, options, request):
            yield event
        if len(self.requests) == 1:
            raise ConnectionError(f"POST failed, authorization: {canary('key')} {canary('header')}")


def tools() -> list[AgentTool]:
    async def measure(invocation: ToolInvocation) -> AgentToolResult:
        invocation.update(AgentToolResult(content=(TextContent(text=canary("output")),)))
        await asyncio.sleep(0)
        return AgentToolResult(content=(TextContent(text=canary("output")),), details={"of": canary("output")})

    def broken(invocation: ToolInvocation) -> AgentToolResult:
        invocation.update(AgentToolResult(content=(TextContent(text=canary("output")),)))  # from its thread
        raise RuntimeError(f"{canary('tool-error')} {invocation.args}")

    parameters = {"type": "object"}
    return [
        AgentTool(name="measure", description="", parameters=parameters, execute=measure),
        AgentTool(name="break", description="", parameters=parameters, execute_blocking=broken),
    ]


def remember(fields: Any) -> None:
    if "text" not in fields:
        raise ValueError(f"no text in {fields}")


def throwing(event: object) -> None:
    raise RuntimeError(f"{canary('prompt')} {canary('key')} {event}")


async def planted(repo: SessionRepo, leaks: Leaks, *answers: Any, provider: Any = None, **options: Any) -> Rig:
    """A harness with canaries everywhere; its hooks and listeners raise them too."""
    model = replace(SCRIPTED_MODEL, headers={"authorization": canary("header")})
    options.setdefault("tools", tools())
    provider = provider or Keyed(answers=answers)
    rig = await open_rig(
        await repo.create(),
        models=ModelRegistry([provider], [model]),
        model=model,
        system_prompt=canary("system"),
        tool_context={"key": canary("context")},
        message_types=[MessageType(role="memo", validate=remember)],
        stream_options=StreamOptions(headers={"x-key": canary("option-header")}, metadata={"user": canary("metadata")}),
        telemetry_context=leaks.telemetry,
        **options,
    )
    rig.provider = provider
    await leaks.watch(rig.harness)
    for name in ("before_request", "transform_context", "before_payload", "after_response", "after_tool"):
        rig.harness.hooks.on(name, throwing)
    rig.harness.hooks.on("before_run", throwing, id="one")
    rig.harness.events.on(None, throwing)
    return rig


async def finish(rig: Rig, leaks: Leaks) -> None:
    await rig.harness.events.flush()
    await rig.harness.close()
    leaks.check()


def in_debug_mode() -> None:
    """As `python -X dev`, and every callback counts as slow: the loop logs what it runs."""
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    loop.slow_callback_duration = 0


async def test_a_run(repo: SessionRepo, leaks: Leaks) -> None:
    in_debug_mode()
    rig = await planted(repo, leaks, "Lost with its connection.", WORKING, answer(canary("answer")))
    await rig.harness.session.append_message(
        CustomMessage(custom_type="note", content=canary("custom"), display=True, timestamp=1)
    )
    await rig.harness.session.append_custom_entry("note", {"text": canary("custom")})
    assert (await rig.harness.prompt(canary("prompt"))).unwrap().kind == "completed"
    log = repr(await rig.session.get_log())
    # They were all there: the session has the content, the provider got the secrets.
    assert found(log, CONTENT) == [text for text in CONTENT if "system" not in text and "summary" not in text]
    assert found(log, SECRETS) == []
    sent = repr([sent_with(request) for request in rig.provider.requests])
    assert found(sent, SECRETS) == [canary("header"), canary("option-header"), canary("metadata")]
    await finish(rig, leaks)
    assert found(leaks.wires(), CONTENT) == found(log, CONTENT)
    assert "Executing <" in leaks.logs()


@pytest.mark.parametrize("backend", ["jsonl", "sqlite"])
async def test_no_byte_of_a_store_is_of_a_secret(repo: SessionRepo, leaks: Leaks, tmp_path: Path) -> None:
    """What the provider was sent with, what it raised and what tools were given: nothing of it reaches a file."""
    rig = await planted(repo, leaks, "Lost with its connection.", WORKING, answer(canary("answer")))
    assert (await rig.harness.prompt(canary("prompt"))).unwrap().kind == "completed"
    await finish(rig, leaks)
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    kept = [text for text in CONTENT if text.encode() in stored]
    assert kept == [canary(what) for what in ("prompt", "answer", "argument", "output", "tool-error")]
    assert [text for text in SECRETS if text.encode() in stored] == []


def sent_with(request: ScriptedRequest) -> object:
    return request.options.headers, request.options.metadata, request.model.headers, request.context.system_prompt


async def test_a_failure(repo: SessionRepo, leaks: Leaks) -> None:
    secret = answer(error_message="refused", error_code=f"{canary('answer')} {canary('key')}")  # a code that is none
    rig = await planted(repo, leaks, provider=ScriptedProvider(answers=[OVERLOADED, secret]))
    outcome = (await rig.harness.prompt(canary("prompt"))).unwrap()
    assert outcome.kind == "failed"
    await rig.harness.events.flush()
    await rig.harness.close()
    spans, logs = leaks.spans(), leaks.logs()
    assert found(spans + logs + leaks.texts(), (*CONTENT, *SECRETS)) == []
    assert "other" in spans


async def test_an_abort(repo: SessionRepo, leaks: Leaks) -> None:
    in_debug_mode()
    held = Held()
    working = answer(canary("answer"), calls=[call("measure", {"bed": canary("argument")}, id="c1")])
    rig = await planted(repo, leaks, provider=ScriptedProvider(answers=[working]), tools=[held.tool()])
    run = await start(rig.harness.prompt(canary("prompt")))
    await until(lambda: held.made == ["c1"])
    await rig.harness.steer(canary("prompt"))
    await rig.harness.abort()
    assert (await run).unwrap().kind == "aborted"
    await finish(rig, leaks)


async def test_a_compaction_and_a_navigation(repo: SessionRepo, leaks: Leaks) -> None:
    rig = await planted(
        repo,
        leaks,
        provider=ScriptedProvider(answers=[canary("answer")] * 2 + [OVERLOADED, canary("summary"), canary("summary")]),
    )
    await rig.harness.prompt(canary("prompt"))
    await rig.harness.prompt(canary("prompt"))
    assert (await rig.harness.compact(canary("prompt"))).unwrap().kind == "completed"
    assert (await rig.harness.navigate_tree(None)).unwrap().kind == "completed"
    await finish(rig, leaks)


async def test_what_is_refused(repo: SessionRepo, leaks: Leaks) -> None:
    rig = await planted(repo, leaks)
    harness = rig.harness
    lone = f"{canary('prompt')} \ud800"
    for refused in (await harness.prompt(lone), await harness.next_run(lone), await harness.steer(canary("prompt"))):
        assert isinstance(refused, Err)
        leaks.told.append(refused)
        with pytest.raises(Exception) as raised:
            refused.unwrap()
        leaks.raised.append(raised.value)
    unfit_values: list[Any] = [[canary("custom"), 2**70], {"text": canary("custom"), "at": float("nan")}, [lone]]
    for data in unfit_values:
        with pytest.raises(InvalidPayload) as refusal:
            await harness.session.append_custom_entry("note", data)
        leaks.raised.append(refusal.value)
    with pytest.raises(InvalidPayload) as unfit:
        await harness.session.append_message(ExtensionMessage(role="memo", fields={"wrong": canary("custom")}))
    leaks.raised.append(unfit.value)
    with pytest.raises(InvalidPayload) as details:
        await harness.record_usage(Usage(), details=[canary("custom"), 2**70])
    leaks.raised.append(details.value)
    await finish(rig, leaks)


async def test_a_fault(repo: SessionRepo, leaks: Leaks) -> None:
    in_debug_mode()

    def broken(messages: Any) -> Any:
        raise RuntimeError(f"{canary('prompt')} {canary('key')} {messages}")

    rig = await planted(repo, leaks, canary("answer"), to_provider_messages=broken)
    with pytest.raises(HarnessFault) as fault:
        await rig.harness.prompt(canary("prompt"))
    leaks.raised.append(fault.value)
    await finish(rig, leaks)
    leaks.raised.append(fault.value)

    faults = Faults()
    rig = await planted(FaultyRepo(repo, faults), leaks, provider=ScriptedProvider(answers=[canary("answer")]))
    faults.at = faults.writes + 4
    with pytest.raises(HarnessFault) as storage:
        await rig.harness.prompt(canary("prompt"))
    leaks.raised += [storage.value, storage.value.cause or storage.value]
    await finish(rig, leaks)


MASKED = (*SECRETS, canary("system"))
"""What no local of ours may show. The text of a conversation is in messages, which a reporter sees all the same."""


async def test_a_traceback_with_locals_shows_no_credential(repo: SessionRepo, leaks: Leaks) -> None:
    """Error reporters print every local of every frame. Text of the conversation is there, secrets are masked."""

    def broken(messages: Any) -> Any:
        raise RuntimeError("no")

    rig = await planted(repo, leaks, canary("answer"), to_provider_messages=broken)
    with pytest.raises(HarnessFault) as fault:
        await rig.harness.prompt(canary("prompt"))
    shown = locals_of(fault.value)
    assert [line[:200] for line in shown if found(line, MASKED)] == []
    # The frames that hold them were looked at: the options of the request, its model, the messages.
    text = "\n".join(shown)
    assert "StreamOptions(" in text
    assert "StreamAssistantConfig(" in text
    assert "Environment(" in text
    assert "Model(provider='scripted'" in text
    assert canary("prompt") in text
    await finish(rig, leaks)


SECRET_HEADERS = {"x-key": canary("option-header")}
HOLDERS = [
    Model(provider="p", id="m", api="a", base_url=f"https://user:{canary('key')}@host/v1", headers=SECRET_HEADERS),
    StreamOptions(headers=SECRET_HEADERS, metadata={"user": canary("metadata")}),
    ProviderContext(messages=[], system_prompt=canary("system")),
    AgentContext(system_prompt=canary("system")),
    AgentLoopConfig(model=SCRIPTED_MODEL, models=ModelRegistry([]), tool_context={"key": canary("context")}),
    ToolInvocation(tool_call_id="c", args={}, signal=AbortSignal(), context={"key": canary("context")}),
]


@pytest.mark.parametrize("holder", HOLDERS, ids=lambda holder: type(holder).__name__)
def test_what_holds_a_secret_does_not_show_it(holder: object) -> None:
    assert found(repr(holder), MASKED) == []


async def test_a_blocked_call_and_a_policy_that_fails(repo: SessionRepo, leaks: Leaks) -> None:
    rig = await planted(repo, leaks, provider=ScriptedProvider(answers=[WORKING, canary("answer")]))

    def policy(event: BeforeTool) -> ToolDecision | None:
        if event.tool_name == "break":
            raise PermissionError(f"{event.args}")
        return ToolDecision(block=f"not {canary('output')}")

    rig.harness.hooks.on("before_tool", policy)
    assert (await rig.harness.prompt(canary("prompt"))).unwrap().kind == "completed"
    await finish(rig, leaks)


async def test_the_check_finds_what_leaks(leaks: Leaks) -> None:
    """The tests above look where a leak would be."""

    async def work(span: Any) -> None:
        await turns(1)

    await leaks.telemetry.start_span("x", {"prompt": canary("prompt")}, work)
    with pytest.raises(AssertionError):
        leaks.check()
    caught = Leaks(leaks.caplog)
    await caught.telemetry.start_span("x", {}, work)
    caught.check()
    caught.raised.append(ValueError(canary("header")))
    with pytest.raises(AssertionError):
        caught.check()
