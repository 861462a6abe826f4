"""The options of `AgentHarness.create`, and what bad ones are told (harness-v2 §8)."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from agent_harness import (
    AgentHarness,
    AgentMessage,
    AgentTool,
    AgentToolResult,
    CustomMessage,
    Err,
    MessageType,
    Ok,
    RetryPolicy,
    StreamOptions,
    SystemPromptContext,
    TextContent,
    ToolInvocation,
    UserMessage,
)
from agent_harness.errors import WriteRefused
from agent_harness.outcomes import InvalidMessage, LaneBusy, MissingIdentities, NoActiveRun, NothingToResume
from agent_harness.providers.base import Model, ModelRegistry
from agent_harness.session.context import to_provider_messages
from agent_harness.session.repo import SessionRepo
from agent_harness.testing import SCRIPTED_MODEL, ScriptedProvider, answer, call, drive_until, log_lines, start
from agent_harness.types.entries import Entry, MessageBody
from agent_harness.types.messages import ExtensionMessage, Message
from session_backends import MemorySessionRepo
from tests.support.backends import make_repo


@pytest.fixture
def repo() -> MemorySessionRepo:
    return MemorySessionRepo()


async def harness_on(repo: SessionRepo, provider: ScriptedProvider, **options: object) -> AgentHarness:
    session = await repo.create()
    created = await AgentHarness.create(
        session=session,
        models=ModelRegistry([provider], [SCRIPTED_MODEL]),
        model=SCRIPTED_MODEL,
        **options,
    )
    return created.harness


def tool_named(name: str, seen: list[object] | None = None) -> AgentTool:
    async def execute(invocation: ToolInvocation) -> AgentToolResult:
        if seen is not None:
            seen.append(invocation.context)
        return AgentToolResult(content=(TextContent(text="ok"),))

    return AgentTool(name=name, description=name, parameters={"type": "object"}, execute=execute)


async def test_the_system_prompt_callback_runs_per_request_and_sees_the_lane(repo: MemorySessionRepo) -> None:
    provider = ScriptedProvider(answers=[answer(calls=[call("measure")]), answer("Done.")])
    asked: list[SystemPromptContext] = []

    async def prompt(context: SystemPromptContext) -> str:
        asked.append(context)
        return f"request {len(asked)}"

    async with await harness_on(repo, provider, system_prompt=prompt, tools=[tool_named("measure")]) as harness:
        await harness.prompt("Go.")
    assert [request.context.system_prompt for request in provider.requests] == ["request 1", "request 2"]
    assert asked[0].lane == "main"
    assert asked[0].active_tool_names == ("measure",)


@pytest.mark.parametrize("form", ["value", "sync", "async"])
async def test_tools_receive_the_tool_context(form: str, repo: MemorySessionRepo) -> None:
    seen: list[object] = []

    async def later() -> str:
        return "ctx"

    context = {"value": "ctx", "sync": lambda: "ctx", "async": later}[form]
    provider = ScriptedProvider(answers=[answer(calls=[call("measure")]), answer("Done.")])
    async with await harness_on(repo, provider, tool_context=context, tools=[tool_named("measure", seen)]) as harness:
        await harness.prompt("Go.")
    assert seen == ["ctx"]


async def test_to_provider_messages_replaces_the_conversion(repo: MemorySessionRepo) -> None:
    def shout(messages: Sequence[AgentMessage]) -> list[Message]:
        return [
            UserMessage(content=str(m.content).upper(), timestamp=m.timestamp) if isinstance(m, UserMessage) else m
            for m in to_provider_messages(messages)
        ]

    provider = ScriptedProvider(answers=["Done."])
    async with await harness_on(repo, provider, to_provider_messages=shout) as harness:
        await harness.prompt("quiet")
    assert provider.requests[0].context.messages[0].content == "QUIET"


async def test_a_custom_entry_enters_context_only_through_its_projector(backend: str, tmp_path: Path) -> None:
    def project(entry: Entry) -> Sequence[AgentMessage]:
        return (UserMessage(content="a note", timestamp=entry.timestamp),)

    provider = ScriptedProvider(answers=["Done."])
    async with await harness_on(make_repo(backend, tmp_path), provider, entry_projectors={"note": project}) as harness:
        await harness.session.append_custom_entry("note", {"n": 1})
        await harness.session.append_custom_entry("other")
        await harness.prompt("Go.")
    assert [m.content for m in provider.requests[0].context.messages] == ["a note", "Go."]


async def test_a_registered_message_type_is_stored_whole_and_says_what_it_says(backend: str, tmp_path: Path) -> None:
    def check(fields: object) -> None:
        if not isinstance(fields, dict) or "level" not in fields:
            raise ValueError("level is missing")

    notice = MessageType(
        role="notice",
        validate=check,
        to_user=lambda m: UserMessage(content=f"notice {m.fields['level']}", timestamp=m.timestamp),
    )
    provider = ScriptedProvider(answers=["Done."])
    async with await harness_on(make_repo(backend, tmp_path), provider, message_types=[notice]) as harness:
        message = ExtensionMessage(role="notice", fields={"level": 3, "timestamp": 1})
        assert isinstance(await harness.prompt(message), Ok)
        stored = await harness.session.find_entries(type="message", order="oldestFirst")
        assert stored[0].message == message
        misfit = await harness.prompt(ExtensionMessage(role="notice", fields={}))
        unknown = await harness.prompt(ExtensionMessage(role="alarm", fields={}))
        for refused in (misfit, unknown):
            assert isinstance(refused, Err)
            assert isinstance(refused.error, InvalidMessage)
    assert provider.requests[0].context.messages[0].content == "notice 3"


@pytest.mark.parametrize(
    "bad",
    ["", "   \n", "half \ud83d", [], UserMessage(content="", timestamp=1), answer("I am the model")],
    ids=["empty", "blank", "surrogate", "no message", "empty message", "assistant"],
)
async def test_what_cannot_become_a_user_message_is_refused_with_nothing_written(
    bad: object, repo: MemorySessionRepo
) -> None:
    async with await harness_on(repo, ScriptedProvider()) as harness:
        result = await harness.prompt(bad)
        assert isinstance(result, Err)
        assert isinstance(result.error, InvalidMessage)
        assert await harness.session.find_entries() == []
        assert (await harness.session.get_stats()).message_count == 0


async def test_messages_keep_their_order(repo: MemorySessionRepo) -> None:
    provider = ScriptedProvider(answers=["Done."])
    messages: list[AgentMessage] = [
        CustomMessage(custom_type="env", content="first", timestamp=1),
        UserMessage(content="second", timestamp=2),
    ]
    async with await harness_on(repo, provider) as harness:
        await harness.prompt(messages)
    assert [m.content for m in provider.requests[0].context.messages] == ["first", "second"]


async def test_a_model_that_the_path_names_and_nobody_knows_is_refused(repo: MemorySessionRepo) -> None:
    session = await repo.create()
    other = Model(provider="other", id="x", api="scripted")
    options = {"session": session, "models": ModelRegistry([ScriptedProvider(answers=["Hi."])])}
    created = await AgentHarness.create(**options, model=other)
    await created.harness.prompt("Go.")
    await created.harness.close()
    session = await repo.open(session.id)
    created = await AgentHarness.create(
        session=session, models=ModelRegistry([ScriptedProvider()], [SCRIPTED_MODEL]), model=SCRIPTED_MODEL
    )
    result = await created.harness.prompt("Go on.")
    assert isinstance(result, Err)
    assert isinstance(result.error, MissingIdentities)
    assert result.error.models == ("other/x",)
    await created.harness.set_model(SCRIPTED_MODEL)
    assert isinstance(await created.harness.prompt("Go on."), Ok)
    await created.harness.close()


async def test_option_values_outside_their_sets_are_named(repo: MemorySessionRepo) -> None:
    for name in ("drive", "steering_mode", "follow_up_mode", "tool_execution"):
        with pytest.raises(ValueError, match=name):
            await harness_on(repo, ScriptedProvider(), **{name: "sometimes"})
    with pytest.raises(ValueError, match="two tools are named 'measure'"):
        await harness_on(repo, ScriptedProvider(), tools=[tool_named("measure"), tool_named("measure")])
    with pytest.raises(ValueError, match="max_attempts"):
        RetryPolicy(max_attempts=0)


async def test_calls_that_need_a_run_say_so(repo: MemorySessionRepo) -> None:
    async with await harness_on(repo, ScriptedProvider()) as harness:
        for refused in (await harness.steer("x"), await harness.follow_up("x")):
            assert isinstance(refused, Err)
            assert isinstance(refused.error, NoActiveRun)
        nothing = await harness.resume()
        assert isinstance(nothing, Err)
        assert isinstance(nothing.error, NothingToResume)


async def test_a_second_prompt_is_refused_while_one_runs(repo: MemorySessionRepo) -> None:
    harness = await harness_on(repo, ScriptedProvider(answers=["Done."]), drive="manual")
    run = await start(harness.prompt("Go."))
    await harness.peek_action()
    second = await harness.prompt("Me too.")
    assert isinstance(second, Err)
    assert isinstance(second.error, LaneBusy)
    await harness.run_to_completion()
    assert isinstance(await run, Ok)
    await harness.close()


# Persisted configuration ---------------------------------------------------------------------------------------------

OTHER = Model(provider="scripted", id="scripted-2", api="scripted", thinking_levels=("high",))


async def configured(repo: MemorySessionRepo, provider: ScriptedProvider, **options: object) -> AgentHarness:
    session = await repo.create()
    created = await AgentHarness.create(
        session=session,
        models=ModelRegistry([provider], [SCRIPTED_MODEL, OTHER]),
        model=SCRIPTED_MODEL,
        tools=[tool_named("measure"), tool_named("water")],
        **options,
    )
    return created.harness


async def test_equal_settings_write_nothing(repo: MemorySessionRepo) -> None:
    async with await configured(repo, ScriptedProvider()) as harness:
        for _ in range(2):
            await harness.set_model(OTHER)
            await harness.set_thinking_level("high")
            await harness.set_active_tools(["water", "water"])
        log = await harness._env.session.get_log()
        assert log_lines(log) == ["E model_change", "E thinking_level_change", "E active_tools_change"]
        assert await harness.get_model() == OTHER
        assert await harness.get_thinking_level() == "high"
        assert await harness.get_active_tools() == ["water"]


async def test_setting_the_default_is_persisted_all_the_same(repo: MemorySessionRepo) -> None:
    async with await configured(repo, ScriptedProvider()) as harness:
        await harness.set_model(SCRIPTED_MODEL)
        assert len(await harness.session.find_entries(type="model_change")) == 1


async def test_a_setter_in_a_run_defers_and_counts_as_accepted(repo: MemorySessionRepo) -> None:
    provider = ScriptedProvider(answers=[answer(calls=[call("measure")]), answer("Done.")])
    harness = await configured(repo, provider, drive="manual")
    run = await start(harness.prompt("Go."))
    await drive_until(harness, "stream_assistant")
    await harness.set_model(OTHER)
    await harness.set_model(OTHER)
    deferred = await harness._env.session.find_records(type="write_deferred")
    assert len(deferred) == 1
    await harness.run_to_completion()
    await run
    assert [request.model.id for request in provider.requests] == ["scripted-1", "scripted-2"]
    await harness.close()


async def test_settings_take_effect_at_the_next_request(repo: MemorySessionRepo) -> None:
    provider = ScriptedProvider(answers=["One.", "Two."])
    async with await configured(repo, provider) as harness:
        await harness.prompt("Go.")
        await harness.set_stream_options(StreamOptions(max_tokens=99))
        await harness.set_model(OTHER)
        await harness.set_thinking_level("high")
        await harness.prompt("Again.")
    assert [request.options.max_tokens for request in provider.requests] == [None, 99]
    assert [request.options.thinking_level for request in provider.requests] == [None, "high"]


async def test_replacing_the_tools_keeps_persisted_names_and_reports_what_is_gone(repo: MemorySessionRepo) -> None:
    provider = ScriptedProvider(answers=["One."])
    async with await configured(repo, provider) as harness:
        assert await harness.get_active_tools() == ["measure", "water"]
        await harness.set_tools([tool_named("dig")])
        assert await harness.get_active_tools() == ["dig"]  # nothing was persisted: the registry decides
        await harness.set_active_tools(["dig"])
        await harness.set_tools([tool_named("measure")])
        assert await harness.get_active_tools() == ["dig"]
        assert await harness.get_unavailable_tools() == ["dig"]
        await harness.prompt("Go.")
        assert provider.requests[0].context.tools == []
        with pytest.raises(ValueError, match="no tool named 'rake'"):
            await harness.set_active_tools(["rake"])


async def test_a_lane_view_defers_in_a_run_and_appends_when_idle(repo: MemorySessionRepo) -> None:
    harness = await configured(repo, ScriptedProvider(answers=["One.", "Two."]), drive="manual")
    first = await harness.session.append_message(UserMessage(content="idle", timestamp=1))
    assert await harness.get_leaf_id() == first
    run = await start(harness.prompt("Go."))
    await drive_until(harness, "stream_assistant")
    deferred = await harness.session.append_custom_entry("note", {"n": 1})
    assert await harness.session.get_entry(deferred) is None
    await harness.run_to_completion()
    await run
    entry = await harness.session.get_entry(deferred)
    assert entry is not None
    path = [e.id for e in await harness.session.find_entries_on_branch(order="oldestFirst")]
    answers = [e.id for e in await harness.session.find_entries() if isinstance(e.body, MessageBody)]
    assert path.index(deferred) > path.index(answers[0])  # a tail append: after the answer, not before it
    await harness.close()


async def test_a_write_that_would_wait_for_ever_is_refused(repo: MemorySessionRepo) -> None:
    from agent_harness.lanes.view import refuse_endless_wait

    harness = await configured(repo, ScriptedProvider(), drive="manual")
    run = await start(harness.prompt("Go."))
    await harness.peek_action()
    refuse_endless_wait(harness._lane)  # executing in another task: there is an end to wait for
    await harness.close()
    with pytest.raises(Exception, match="closed"):
        await run
    with pytest.raises(WriteRefused, match="suspended run"):
        refuse_endless_wait(harness._lane)
