"""Structured output: an invalid answer is asked for again, wherever the process dies, and not for ever (ADR 0007)."""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pydantic import BaseModel, field_validator
from typing_extensions import TypedDict

from agent_harness import (
    AgentHarness,
    AssistantMessage,
    InvalidOutput,
    Session,
    UserMessage,
    parse_output,
)
from agent_harness.outcomes import RunCompleted
from agent_harness.providers.base import ModelRegistry
from agent_harness.providers.faux import ScriptedRequest
from agent_harness.testing import SCRIPTED_MODEL, Scenario, ScriptedProvider, World, answer, call, crash_points
from tests.support.backends import make_repo
from tests.support.rig import Calls, assert_sound, open_rig


class City(BaseModel):
    name: str
    people: int


class Capital(City):
    @field_validator("name")
    @classmethod
    def _known(cls, value: str) -> str:
        if value != "Paris":
            raise ValueError("no such capital")
        return value


PARIS = '{"name": "Paris", "people": 2100000}'
ROME = '{"name": "Rome", "people": 2800000}'


@pytest_asyncio.fixture
async def session(tmp_path: Path) -> Session:
    return await make_repo("memory", tmp_path).create()


def users(request: ScriptedRequest) -> list[str]:
    return [str(m.content) for m in request.context.messages if isinstance(m, UserMessage)]


def corrected(request: ScriptedRequest) -> str:
    """The model: prose at first, what was asked for once it was told."""
    return PARIS if users(request)[-1].startswith("The answer is not") else "It is Paris."


async def told(session: Session) -> list[str]:
    return [e.message.role for e in await session.find_entries_on_branch(order="oldestFirst") if e.message is not None]


async def test_a_valid_answer_is_parsed_and_the_model_is_held_to_the_schema(session: Session) -> None:
    rig = await open_rig(session, f"```json\n{PARIS}\n```")
    outcome = (await rig.harness.prompt("Where?", output_type=City)).unwrap()
    assert isinstance(outcome, RunCompleted)
    assert outcome.output == City(name="Paris", people=2100000)
    assert outcome.output_error is None
    assert rig.provider.requests[0].options.response_schema == City.model_json_schema()
    assert await told(session) == ["user", "assistant"]


async def test_an_invalid_answer_is_asked_for_again_with_the_places_and_reasons(session: Session) -> None:
    rig = await open_rig(session, '{"name": 1}', PARIS)
    outcome = (await rig.harness.prompt("Where?", output_type=City)).unwrap()
    assert isinstance(outcome, RunCompleted)
    assert outcome.output == City(name="Paris", people=2100000)
    correction = users(rig.provider.requests[1])[-1].splitlines()
    assert correction[:3] == [
        "The answer is not what was asked for:",
        "- name: Input should be a valid string",
        "- people: Field required",
    ]
    lines = await rig.lines()
    assert lines == [
        "R operation_started",
        "E user",
        "R step_attempt",
        "E assistant stop",
        "R queue_enqueued",
        "E user",
        "R step_attempt",
        "E assistant stop",
        "R operation_finished",
    ]


@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_after_the_bound_the_run_ends_and_says_why_there_is_no_output(session: Session, retries: int) -> None:
    rig = await open_rig(session, respond=lambda _: "never JSON")
    outcome = (await rig.harness.prompt("Where?", output_type=City, output_retries=retries)).unwrap()
    assert isinstance(outcome, RunCompleted)
    assert outcome.output is None
    assert outcome.output_error == "the answer: Invalid JSON: expected ident at line 1 column 2"
    assert len(rig.provider.requests) == 1 + retries
    await assert_sound(session)


async def test_tools_are_used_before_the_answer_and_validators_of_the_type_run(session: Session) -> None:
    calls = Calls()
    rig = await open_rig(session, answer(calls=[call("measure")]), ROME, PARIS, tools=[calls.tool()])
    outcome = (await rig.harness.prompt("Where?", output_type=Capital)).unwrap()
    assert isinstance(outcome, RunCompleted)
    assert isinstance(outcome.output, Capital)
    assert calls.made == ["call-1"]
    assert "no such capital" in users(rig.provider.requests[2])[-1]


async def test_the_next_run_of_the_lane_is_free_again(session: Session) -> None:
    rig = await open_rig(session, PARIS, "Free text.")
    await rig.harness.prompt("Where?", output_type=City)
    outcome = (await rig.harness.prompt("And now?")).unwrap()
    assert isinstance(outcome, RunCompleted)
    assert (outcome.output, outcome.output_error) == (None, None)
    assert rig.provider.requests[1].options.response_schema is None
    assert not rig.harness.hooks.has("before_run_end")


async def test_two_lanes_have_their_own_schemas_at_the_same_time(session: Session) -> None:
    class Name(TypedDict):
        first: str

    def respond(request: ScriptedRequest) -> str:
        schema = request.options.response_schema
        return PARIS if schema and "people" in str(schema) else '{"first": "Ada"}' if schema else "free"

    rig = await open_rig(session, respond=respond)
    other = (await rig.harness.create_lane("other", None)).unwrap()
    third = (await rig.harness.create_lane("third", None)).unwrap()
    outcomes = await asyncio.gather(
        rig.harness.prompt("a", output_type=City), other.prompt("b", output_type=Name), third.prompt("c")
    )
    outputs = [getattr(one.unwrap(), "output", "?") for one in outcomes]
    assert outputs == [City(name="Paris", people=2100000), {"first": "Ada"}, None]


async def test_a_model_that_cannot_be_held_to_a_schema_is_told_it_in_words(session: Session) -> None:
    plain = replace(SCRIPTED_MODEL, response_schema=False)
    provider = ScriptedProvider(answers=[PARIS])
    rig = await open_rig(session, model=plain, models=ModelRegistry([provider], [plain]))
    outcome = (await rig.harness.prompt("Where?", output_type=City)).unwrap()
    assert isinstance(outcome, RunCompleted)
    assert outcome.output == City(name="Paris", people=2100000)
    assert provider.requests[0].options.response_schema is None
    assert '"people"' in users(provider.requests[0])[-1]


async def test_a_type_that_is_no_object_is_refused_with_nothing_written(session: Session) -> None:
    rig = await open_rig(session, PARIS)
    for wrong in (int, list[City], object, AgentHarness):
        with pytest.raises(TypeError, match="output_type"):
            await rig.harness.prompt("Where?", output_type=wrong)
    with pytest.raises(ValueError, match="0 or more"):
        await rig.harness.prompt("Where?", output_type=City, output_retries=-1)
    assert await session.get_log() == []


def test_an_answer_is_parsed_alone_and_its_text_stays_out_of_the_error() -> None:
    @dataclass
    class Point:
        x: int

    assert parse_output(answer('{"x": 1}'), Point) == Point(1)
    with pytest.raises(InvalidOutput) as caught:
        parse_output(answer('{"x": "CANARY"}'), Point)
    assert str(caught.value) == "x: Input should be a valid integer, unable to parse string as an integer"


# In another process ---------------------------------------------------------------------------------------------------


def scenario(respond: Any, output_type: type[object] = City) -> Scenario:
    async def build(session: Session, world: World, drive: Any) -> AgentHarness:
        def counted(request: ScriptedRequest) -> str:
            world.bump("asked")
            text: str = respond(request)
            return text

        rig = await open_rig(session, respond=counted, drive=drive)
        return rig.harness

    return Scenario(
        name="structured", build=build, act=lambda harness: harness.prompt("Where?", output_type=output_type)
    )


async def answers(session: Session) -> list[str]:
    messages = [e.message for e in await session.find_entries_on_branch(order="oldestFirst")]
    return [getattr(m.content[0], "text", "") for m in messages if isinstance(m, AssistantMessage)]


@pytest.mark.parametrize("given", [None, City], ids=["by schema alone", "with the type"])
async def test_wherever_it_died_recovery_asks_again_and_gives_the_output(
    tmp_path: Path, given: type[City] | None
) -> None:
    await recovered_everywhere("memory", tmp_path, given)


@pytest.mark.parametrize("backend", ["jsonl", "sqlite"])
async def test_the_stored_schema_is_enough_in_files_too(backend: str, tmp_path: Path) -> None:
    await recovered_everywhere(backend, tmp_path, None, depth=1)


async def recovered_everywhere(backend: str, tmp_path: Path, given: type[City] | None, depth: int = 2) -> None:
    resumed = 0
    async for point in crash_points(scenario(corrected), lambda path: make_repo(backend, path), tmp_path, depth=depth):
        if not point.harness.suspended:
            await assert_sound(point.session)
            continue
        outcome = (await point.harness.resume(output_type=given)).unwrap()
        assert isinstance(outcome, RunCompleted), point.label
        expected = {"name": "Paris", "people": 2100000} if given is None else City(name="Paris", people=2100000)
        assert outcome.output == expected, point.label
        assert await answers(point.session) == ["It is Paris.", PARIS], point.label
        assert await told(point.session) == ["user", "assistant"] * 2, point.label
        await assert_sound(point.session)
        resumed += 1
    assert resumed > 8 * depth


async def test_the_bound_counts_across_deaths(tmp_path: Path) -> None:
    resumed = 0
    run = scenario(lambda _: "never JSON")
    async for point in crash_points(run, lambda path: make_repo("memory", path), tmp_path):
        await point.recover()
        if await told(point.session):
            assert await told(point.session) == ["user", "assistant"] * 3, point.label
        resumed += 1
    assert resumed > 50


async def test_without_the_type_its_own_validators_are_not_known_and_with_it_they_are(tmp_path: Path) -> None:
    repo = make_repo("memory", tmp_path)
    rig = await open_rig(await repo.create(id="s"), drive="manual")
    work = asyncio.ensure_future(rig.harness.prompt("Where?", output_type=Capital, output_retries=0))
    await asyncio.sleep(0)  # let the call begin
    assert await rig.harness.peek_action() is not None
    for given, expected in ((None, {"name": "Rome", "people": 2800000}), (Capital, None)):
        copy = await (await repo.snapshot(tmp_path)).open("s")
        again = await open_rig(copy, ROME)
        outcome = (await again.harness.resume(output_type=given)).unwrap()
        assert isinstance(outcome, RunCompleted)
        assert outcome.output == expected
        assert (outcome.output_error is None) == (given is None)
    work.cancel()
