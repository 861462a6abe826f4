"""The harness-global getters and setters: values are copied in and out and hold from the next request on (§8)."""

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from agent_harness import AgentHarness, AgentTool, CompactionSettings, RetryPolicy, StreamOptions
from agent_harness.outcomes import RunCompleted, RunFailed
from agent_harness.session.repo import SessionRepo
from agent_harness.testing import ScriptedRequest, answer, call, drive_until, start
from agent_harness.types.messages import AssistantMessage, Usage, UserMessage
from agent_harness.types.structural import PromptTemplate, Resources, Skill
from session_backends import MemorySessionRepo
from tests.support.rig import Calls, Held, Rig, open_rig, until

SKILL = Skill(name="review", description="Reviews.", content="Read the diff.")
TEMPLATE = PromptTemplate(name="fix", content="Fix $1.")
BUSY = answer(error_message="overloaded", error_code="overloaded")


@pytest.fixture
def repo() -> MemorySessionRepo:
    return MemorySessionRepo()


# Copies --------------------------------------------------------------------------------------------------------------


def changeable_options() -> StreamOptions:
    return StreamOptions(headers={"x-team": "beds"}, metadata={"tags": ["a"]}, response_schema={"type": "object"})


def change_options(options: StreamOptions) -> None:
    assert isinstance(options.headers, dict)
    assert isinstance(options.metadata, dict)
    assert isinstance(options.response_schema, dict)
    options.headers["x-team"] = "changed"
    options.metadata["tags"].append("changed")
    options.response_schema["type"] = "changed"


def changeable_resources() -> Resources:
    return Resources(skills={"review": SKILL}, prompt_templates={"fix": TEMPLATE})


def change_resources(resources: Resources) -> None:
    assert isinstance(resources.skills, dict)
    assert isinstance(resources.prompt_templates, dict)
    resources.skills.clear()
    resources.prompt_templates.clear()


def change_tools(tools: list[AgentTool]) -> None:
    tools.clear()


COPIED: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "stream_options": (changeable_options, change_options),
    "resources": (changeable_resources, change_resources),
    "tools": (lambda: [Calls().tool()], change_tools),
}


@pytest.mark.parametrize("name", COPIED)
async def test_what_was_given_or_got_may_change_without_changing_the_harness(name: str, repo: SessionRepo) -> None:
    make, change = COPIED[name]
    given = make()
    rig = await open_rig(await repo.create(), **{name: given})
    get, put = getattr(rig.harness, f"get_{name}"), getattr(rig.harness, f"set_{name}")
    before = await get()
    if name != "tools":
        assert before == make()
    change(given)  # what `create` was given
    change(await get())  # what a getter gave
    assert await get() == before
    again = make()
    await put(again)
    kept = await get()
    change(again)  # what a setter was given
    assert await get() == kept
    assert kept != again


async def test_a_request_is_not_changed_by_the_dictionary_its_headers_came_from(repo: SessionRepo) -> None:
    headers = {"x-team": "beds"}
    rig = await open_rig(await repo.create(), "One.", "Two.", stream_options=StreamOptions(headers=headers))
    await rig.harness.prompt("Go.")
    headers["x-team"] = "changed"
    await rig.harness.prompt("Go on.")
    assert [request.options.headers for request in rig.provider.requests] == [{"x-team": "beds"}] * 2


async def test_read_only_mappings_are_taken(repo: SessionRepo) -> None:
    options = StreamOptions(headers=MappingProxyType({"x": "1"}), metadata=MappingProxyType({"n": 1}))
    rig = await open_rig(await repo.create(), stream_options=options)
    assert await rig.harness.get_stream_options() == StreamOptions(headers={"x": "1"}, metadata={"n": 1})


PAIRS: dict[str, Any] = {
    "retry_policy": RetryPolicy(max_attempts=7),
    "compaction_settings": CompactionSettings(enabled=False, reserve_tokens=1, keep_recent_tokens=2),
    "steering_mode": "all",
    "follow_up_mode": "all",
    "stream_options": StreamOptions(max_tokens=3),
    "resources": Resources(skills={"review": SKILL}),
}


@pytest.mark.parametrize("name", PAIRS)
async def test_each_getter_gives_what_its_setter_took(name: str, repo: SessionRepo) -> None:
    rig = await open_rig(await repo.create())
    get, put = getattr(rig.harness, f"get_{name}"), getattr(rig.harness, f"set_{name}")
    assert await get() != PAIRS[name]
    await put(PAIRS[name])
    assert await get() == PAIRS[name]


def test_every_pair_of_the_specification_is_here() -> None:
    getters = {name.removeprefix("get_") for name in vars(AgentHarness) if name.startswith("get_")}
    assert getters == set(PAIRS) | {"tools"}


@pytest.mark.parametrize("name", ["steering_mode", "follow_up_mode"])
async def test_a_mode_that_does_not_exist_is_refused_and_the_old_one_stays(name: str, repo: SessionRepo) -> None:
    rig = await open_rig(await repo.create())
    with pytest.raises(ValueError, match="must be one of"):
        await getattr(rig.harness, f"set_{name}")("sometimes")
    assert await getattr(rig.harness, f"get_{name}")() == "one-at-a-time"


# In mid-run, from the next request on --------------------------------------------------------------------------------


async def stopped_in_a_tool(repo: SessionRepo, *answers: object, **options: Any) -> tuple[Rig, Held, Any]:
    held = Held()
    rig = await open_rig(
        await repo.create(), answer(calls=[call("measure", id="c1")]), *answers, tools=[held.tool()], **options
    )
    run = await start(rig.harness.prompt("Go."))
    await until(held.began.is_set)
    return rig, held, run


async def test_stream_options_set_in_mid_run_are_those_of_the_next_request(repo: SessionRepo) -> None:
    rig, held, run = await stopped_in_a_tool(repo, "Done.")
    await rig.harness.set_stream_options(StreamOptions(max_tokens=99))
    held.gate("c1").set()
    await run
    assert [request.options.max_tokens for request in rig.provider.requests] == [None, 99]


@pytest.mark.parametrize(("attempts", "ends"), [(2, RunFailed), (3, RunCompleted)])
async def test_a_retry_policy_set_in_mid_run_bounds_the_next_step(
    attempts: int, ends: type[object], repo: SessionRepo
) -> None:
    rig, held, run = await stopped_in_a_tool(repo, BUSY, BUSY, "Done.", attempts=1)
    await rig.harness.set_retry_policy(RetryPolicy(max_attempts=attempts, base_delay_ms=0))
    held.gate("c1").set()
    assert isinstance((await run).unwrap(), ends)


@pytest.mark.parametrize(("enabled", "compacted"), [(False, 0), (True, 1)])
async def test_compaction_settings_set_in_mid_run_decide_before_the_next_request(
    enabled: bool, compacted: int, repo: SessionRepo
) -> None:
    def respond(request: ScriptedRequest) -> AssistantMessage:
        if not request.context.tools:
            return answer("Summary.")
        if any(isinstance(message, UserMessage) and message.content == "Go." for message in request.context.messages):
            asked = any(isinstance(message, AssistantMessage) for message in request.context.messages)
            full = Usage(input=127_000, total_tokens=127_000)
            return answer("Done.") if asked else answer(calls=[call("measure", id="c1")], usage=full)
        return answer("Done.")

    held = Held()
    rig = await open_rig(
        await repo.create(),
        respond=respond,
        tools=[held.tool()],
        compaction=CompactionSettings(enabled=not enabled, reserve_tokens=16_384, keep_recent_tokens=1),
    )
    run = await start(rig.harness.prompt("Go."))
    await until(held.began.is_set)
    settings = await rig.harness.get_compaction_settings()
    await rig.harness.set_compaction_settings(settings.model_copy(update={"enabled": enabled}))
    held.gate("c1").set()
    await run
    assert len(await rig.session.find_entries(type="compaction")) == compacted


@pytest.mark.parametrize("queue", ["steer", "follow_up"])
@pytest.mark.parametrize(("mode", "seen"), [("all", [2]), ("one-at-a-time", [1, 2])])
async def test_a_queue_mode_set_in_mid_run_holds_at_the_next_checkpoint(
    queue: str, mode: str, seen: list[int], repo: SessionRepo
) -> None:
    other = "all" if mode == "one-at-a-time" else "one-at-a-time"
    rig = await open_rig(
        await repo.create(),
        *["Done."] * 4,
        drive="manual",
        steering_mode=other,
        follow_up_mode=other,
    )
    run = await start(rig.harness.prompt("Go."))
    await drive_until(rig.harness, "stream_assistant")
    for text in ("first", "second"):
        (await getattr(rig.harness, queue)(text)).unwrap()
    put = rig.harness.set_steering_mode if queue == "steer" else rig.harness.set_follow_up_mode
    await put(mode)
    await rig.harness.run_to_completion()
    await run
    users = [
        sum(isinstance(message, UserMessage) and message.content != "Go." for message in request.context.messages)
        for request in rig.provider.requests[1:]
    ]
    assert users == seen


async def test_tools_set_in_mid_run_are_offered_to_the_next_request_and_called(repo: SessionRepo) -> None:
    calls = Calls()
    rig, held, run = await stopped_in_a_tool(repo, answer(calls=[call("dig", id="c2")]), "Done.")
    await rig.harness.set_tools([*await rig.harness.get_tools(), calls.tool("dig")])
    held.gate("c1").set()
    await run
    offered = [[tool.name for tool in request.context.tools] for request in rig.provider.requests]
    assert offered == [["measure"], ["measure", "dig"], ["measure", "dig"]]
    assert calls.made == ["c2"]


async def test_tools_set_with_active_names_are_what_main_offers(repo: SessionRepo) -> None:
    rig = await open_rig(await repo.create(), "Done.")
    tools = [Calls().tool("dig"), Calls().tool("water")]
    await rig.harness.set_tools(tools, ["water"])
    await rig.harness.prompt("Go.")
    assert [tool.name for tool in rig.provider.requests[0].context.tools] == ["water"]
    with pytest.raises(ValueError, match="two tools are named 'dig'"):
        await rig.harness.set_tools([tools[0], replace(tools[1], name="dig")])
    assert [tool.name for tool in await rig.harness.get_tools()] == ["dig", "water"]
