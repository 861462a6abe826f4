"""Structured output: a run whose answer must fit a schema, asked for again a bounded number of times (ADR 0007).

What outlives the process is the JSON Schema and the bound, in the run's resume data, and the corrections themselves,
which are follow-ups of the run. The Python type is the caller's and is handed in again after a restart.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import orjson
from pydantic import PydanticUserError, TypeAdapter, ValidationError

from ..hooks.catalog import BeforeRequest, BeforeRequestResult, BeforeRunEnd, BeforeRunEndResult, BeforeRunOutcome
from ..outcomes import OperationOutcome, RunCompleted
from ..providers.base import Model, StreamOptions
from ..types.json import InvalidJson, JsonValue, canon
from ..types.json_schema import root_of, schema_errors
from ..types.messages import AgentMessage, AssistantMessage, TextContent, UserMessage
from ..types.records import Intent, RunIntent
from .lane import LaneRuntime

T = TypeVar("T")

OUTPUT_KEY = "agent_harness.output"
"""Under which a run's resume data keeps `{"schema", "retries"}`."""
CORRECTION = "The answer is not what was asked for:"
"""How every correction begins; how many there were is counted by it."""
MAX_ERRORS = 20


class InvalidOutput(ValueError):
    """An answer that does not fit; the text says where, and holds nothing of the answer itself."""


def parse_output(message: AssistantMessage, output_type: type[T]) -> T:
    """The answer's text as a value of `output_type`, which may be a model, a dataclass or a TypedDict.

    Raises:
        InvalidOutput: it is no JSON, or does not validate.
    """
    adapter: TypeAdapter[T] = TypeAdapter(output_type)
    try:
        return adapter.validate_json(_json_text(message))
    except ValidationError as error:
        raise InvalidOutput("\n".join(_told(error))) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSpec:
    """What the answer must be. Without `output_type` the schema alone decides, and the output is plain JSON."""

    schema: Mapping[str, JsonValue]
    retries: int
    output_type: type[Any] | None = None  # of the caller's making

    @classmethod
    def of(cls, output_type: type[object], retries: int) -> "OutputSpec":
        """From a type.

        Raises:
            TypeError: it has no JSON Schema, or one that is not of an object.
            ValueError: `retries` is below 0.
        """
        if retries < 0:
            raise ValueError("output_retries is 0 or more")
        name = getattr(output_type, "__name__", repr(output_type))
        try:
            schema = canon(TypeAdapter(output_type).json_schema(), depth=16)
        except (PydanticUserError, InvalidJson) as error:
            raise TypeError(f"output_type {name} has no JSON Schema: {str(error).splitlines()[0]}") from None
        if not isinstance(schema, dict) or root_of(schema).get("type") != "object":
            raise TypeError(f"output_type {name} is not an object: use a model, a dataclass or a TypedDict")
        return cls(schema=schema, retries=retries, output_type=output_type)

    @classmethod
    def of_intent(cls, intent: Intent, output_type: type[object] | None = None) -> "OutputSpec | None":
        """What a run that is open promised, if it did."""
        kept = (intent.resume_data or {}).get(OUTPUT_KEY) if isinstance(intent, RunIntent) else None
        if not isinstance(kept, dict):
            return None
        schema, retries = kept.get("schema"), kept.get("retries")
        if not isinstance(schema, dict) or not isinstance(retries, int):
            return None
        return cls(schema=schema, retries=retries, output_type=output_type)

    def prepared(self, outcome: BeforeRunOutcome, model: Model, now_ms: int) -> BeforeRunOutcome:
        """The same, to be kept with the run. A model that cannot be held to a schema is told it in words."""
        told: tuple[AgentMessage, ...] = ()
        if not model.response_schema:
            told = (UserMessage(content=f"Answer with JSON alone. {self._in_words()}", timestamp=now_ms),)
        kept: JsonValue = {"schema": dict(self.schema), "retries": self.retries}
        return replace(
            outcome, messages=(*outcome.messages, *told), resume_data={**outcome.resume_data, OUTPUT_KEY: kept}
        )

    def install(self, lane: LaneRuntime) -> Callable[[], None]:
        """Ask the model for it and judge the answer, for the operation that is open; returns the way to stop."""
        run_id, hooks = lane.op().id, lane.env.hooks

        def before_request(event: BeforeRequest) -> BeforeRequestResult | None:
            ours = event.lane == lane.name and lane.operation is not None and lane.operation.id == run_id
            if not ours or event.step != "assistant" or not event.model.response_schema:
                return None
            return BeforeRequestResult(stream_options=StreamOptions(response_schema=self.schema))

        def before_run_end(event: BeforeRunEnd) -> BeforeRunEndResult | None:
            return self._judge(event.messages) if event.run_id == run_id else None

        offs = (hooks.on("before_request", before_request), hooks.on("before_run_end", before_run_end))

        def off() -> None:
            for one in offs:
                one()

        return off

    def _judge(self, messages: Sequence[AgentMessage]) -> BeforeRunEndResult | None:
        answers = [m for m in messages if isinstance(m, AssistantMessage) and m.stop_reason != "deferred"]
        errors = self.errors(answers[-1]) if answers else []
        asked = sum(isinstance(m, UserMessage) and _text_of(m).startswith(CORRECTION) for m in messages)
        if not errors or asked >= self.retries:
            return None
        listed = "\n".join(f"- {error}" for error in errors[:MAX_ERRORS])
        return BeforeRunEndResult(
            follow_up=f"{CORRECTION}\n{listed}\nAnswer again, with JSON alone. {self._in_words()}"
        )

    def _in_words(self) -> str:
        return f"It must fit this JSON Schema:\n{orjson.dumps(dict(self.schema)).decode()}"

    def errors(self, message: AssistantMessage) -> list[str]:
        """What is wrong with an answer; the same in every process that knows the same."""
        return self._checked(message)[1]

    def completed(self, outcome: OperationOutcome) -> OperationOutcome:
        """The outcome with its output, or with what is wrong with it."""
        if not isinstance(outcome, RunCompleted):
            return outcome
        output, errors = self._checked(outcome.final_message)
        if errors:
            return replace(outcome, output=None, output_error="\n".join(errors[:MAX_ERRORS]))
        return replace(outcome, output=output)

    def _checked(self, message: AssistantMessage) -> tuple[object, list[str]]:
        if self.output_type is not None:
            try:
                return parse_output(message, self.output_type), []
            except InvalidOutput as error:
                return None, str(error).splitlines()
        try:
            value = canon(orjson.loads(_json_text(message)))
        except (orjson.JSONDecodeError, InvalidJson):
            return None, ["the answer is not JSON"]
        errors = schema_errors(dict(self.schema), value)
        return (None if errors else value), errors


def _told(error: ValidationError) -> list[str]:
    lines: list[str] = []
    for one in error.errors(include_url=False, include_input=False, include_context=False):
        place = ".".join(str(part) for part in one["loc"]) or "the answer"
        lines.append(f"{place}: {one['msg']}".replace("\n", " "))
    return lines


def _json_text(message: AssistantMessage) -> str:
    """The text without the fence that models like to put around JSON."""
    text = "".join(part.text for part in message.content if isinstance(part, TextContent)).strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        text = text.partition("\n")[2].removesuffix("```").strip()
    return text


def _text_of(message: UserMessage) -> str:
    return message.content if isinstance(message.content, str) else ""
