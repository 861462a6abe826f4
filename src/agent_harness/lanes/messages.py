"""What a caller hands in -> agent messages, checked before anything is written (harness-v2 §8, A-10)."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ..options import MessageType
from ..session.context import to_user_message
from ..types.codec import dump
from ..types.json import InvalidJson
from ..types.messages import (
    AgentMessage,
    AssistantMessage,
    ExtensionMessage,
    ImageContent,
    TextContent,
    ToolResultMessage,
    UserMessage,
)

Input: TypeAlias = str | AgentMessage | list[AgentMessage] | tuple[AgentMessage, ...]


class Unacceptable(Exception):
    """The input cannot become a user message; the text is the reason."""


def normalise(
    given: Input, images: Sequence[ImageContent], now_ms: int, types: Mapping[str, MessageType]
) -> tuple[AgentMessage, ...]:
    """Text with images becomes one user message; messages keep their order.

    Raises:
        Unacceptable: empty, not valid Unicode, or a message that does not convert to a user message.
    """
    messages: tuple[AgentMessage, ...]
    if isinstance(given, str):
        messages = (_user_message(given, images, now_ms),)
    elif isinstance(given, list | tuple):
        messages = tuple(given)
    else:
        messages = (given,)
    if not messages:
        raise Unacceptable("there is no message")
    for message in messages:
        _check(message, types)
    return messages


def _user_message(text: str, images: Sequence[ImageContent], now_ms: int) -> UserMessage:
    if not text.strip() and not images:
        raise Unacceptable("the prompt is empty")
    if not images:
        return UserMessage(content=text, timestamp=now_ms)
    parts: tuple[TextContent | ImageContent, ...] = (TextContent(text=text), *images) if text else tuple(images)
    return UserMessage(content=parts, timestamp=now_ms)


def _check(message: AgentMessage, types: Mapping[str, MessageType]) -> None:
    try:
        dump(message)
    except InvalidJson as error:
        raise Unacceptable(str(error)) from None
    if isinstance(message, AssistantMessage | ToolResultMessage):
        raise Unacceptable(f"a {message.role} message is not input")
    if isinstance(message, ExtensionMessage):
        registered = types.get(message.role)
        if registered is None:
            raise Unacceptable(f"message role {message.role!r} is not registered; pass it in message_types")
        try:
            registered.validate(message.fields)
        except ValueError:
            raise Unacceptable(f"the message does not fit the registered type {message.role!r}") from None
        converted = registered.to_user(message)
    else:
        converted = to_user_message(message)
    if converted is None or not _says_something(converted):
        raise Unacceptable("the message says nothing to the model")


def _says_something(message: UserMessage) -> bool:
    if isinstance(message.content, str):
        return bool(message.content.strip())
    return any(not isinstance(part, TextContent) or part.text.strip() for part in message.content)
