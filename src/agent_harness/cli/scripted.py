"""`--model scripted:FILE`: answers from a JSON file instead of a provider, for trying things out without a network.

`{"answers": [{"text": "...", "calls": [{"name": "read", "arguments": {"path": "a"}}], "delayMs": 0}, ...]}`. The n-th
answer is given when the conversation holds n answers already, so another process continues where one stopped.
"""

import asyncio
import os
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from ..providers.base import Model, ModelRegistry
from ..providers.faux import SCRIPTED_API, AnswerFunction, ScriptedProvider, ScriptedRequest, answer
from ..types.json import JsonValue
from ..types.messages import AssistantMessage, ToolCall
from .failure import Failure

PREFIX = "scripted:"


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, alias_generator=to_camel)


class ScriptedCall(_Part):
    """A tool call of a scripted answer."""

    name: Annotated[str, Field(min_length=1)]
    arguments: dict[str, JsonValue] = {}


class ScriptedReply(_Part):
    """One answer; `delay_ms` is how long the model thinks."""

    text: str = ""
    calls: list[ScriptedCall] = []
    delay_ms: Annotated[int, Field(ge=0, le=600_000)] = 0


class Script(_Part):
    """A whole script."""

    answers: Annotated[list[ScriptedReply], Field(min_length=1)]

    def reply(self, index: int) -> AssistantMessage:
        """The answer after `index` earlier ones (0-based); past the end, an error that is not retried."""
        if index >= len(self.answers):
            return answer(
                error_message=f"the script has only {len(self.answers)} answers", error_code="invalid_request"
            )
        chosen = self.answers[index]
        calls = [
            ToolCall(id=f"call-{index}-{n}", name=call.name, arguments=call.arguments)
            for n, call in enumerate(chosen.calls)
        ]
        return answer(chosen.text, calls=calls)

    def respond(self) -> AnswerFunction:
        """How the scripted provider asks this script."""

        async def respond(asked: ScriptedRequest) -> AssistantMessage:
            index = sum(1 for message in asked.context.messages if isinstance(message, AssistantMessage))
            if index < len(self.answers):
                await asyncio.sleep(self.answers[index].delay_ms / 1000)
            return self.reply(index)

        return respond


def scripted_model(name: str, folder: Path) -> tuple[ModelRegistry, Model, str]:
    """The models, the model, and the name with an absolute path, of `scripted:FILE`.

    Raises:
        Failure: the file is missing or is no script; names the place.
    """
    path = Path(os.path.abspath(folder / Path(name.removeprefix(PREFIX)).expanduser()))
    try:
        script = Script.model_validate_json(path.read_bytes())
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise Failure(f"{path} is no script: {where}: {first['msg']}") from None
    model = Model(
        provider="scripted", id=path.stem, api=SCRIPTED_API, context_window=100_000, max_tokens=8_000, images=True
    )
    return ModelRegistry([ScriptedProvider(respond=script.respond())], [model]), model, f"{PREFIX}{path}"
