"""What the behaviour suite needs to know about each adapter: how to build it and how its API looks on the wire."""

import json
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from agent_harness.providers.base import Model, Provider
from agent_harness.providers.openai_chat import OpenAIChatProvider

KEY = "CANARY-7d0f2f2c-key"
Stop = Literal["stop", "toolUse", "length"]


class Adapter(Protocol):
    name: str
    llmock_path: str
    args_are_text: bool  # whether the API sends arguments as text, which may be broken

    def provider(self, url: str, *, read_timeout_ms: int = 10_000) -> Provider: ...
    def model(self, **fields: Any) -> Model: ...
    def start(self) -> bytes: ...
    def text(self, piece: str) -> bytes: ...
    def call(self, id: str, name: str, *fragments: str) -> list[bytes]: ...
    def finish(self, stop: Stop) -> bytes: ...
    def error_body(self, status: int, message: str) -> bytes: ...
    def error_event(self, message: str) -> bytes: ...


def sse(data: object, event: str | None = None) -> bytes:
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


@dataclass
class OpenAIChat:
    """Usage on the wire: 100 prompt tokens, 40 of them cached, 20 completion tokens, 5 of them reasoning."""

    name: str = "openai-chat"
    llmock_path: str = "/v1"
    args_are_text: bool = True
    calls: int = 0

    def provider(self, url: str, *, read_timeout_ms: int = 10_000) -> Provider:
        return OpenAIChatProvider(base_url=url, api_key=KEY, read_timeout_ms=read_timeout_ms)

    def model(self, **fields: Any) -> Model:
        return Model(provider="test", id="gpt-test", api=self.name, images=True, **fields)

    def start(self) -> bytes:
        self.calls = 0
        return self._chunk({"role": "assistant", "content": ""})

    def text(self, piece: str) -> bytes:
        return self._chunk({"content": piece})

    def call(self, id: str, name: str, *fragments: str) -> list[bytes]:
        index, self.calls = self.calls, self.calls + 1
        first = {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
        rest = [{"index": index, "function": {"arguments": fragment}} for fragment in fragments]
        return [self._chunk({"tool_calls": [item]}) for item in (first, *rest)]

    def finish(self, stop: Stop) -> bytes:
        reason = {"stop": "stop", "toolUse": "tool_calls", "length": "length"}[stop]
        usage = {
            "prompt_tokens": 100,
            "completion_tokens": 20,
            "total_tokens": 120,
            "prompt_tokens_details": {"cached_tokens": 40},
            "completion_tokens_details": {"reasoning_tokens": 5},
        }
        return (
            self._chunk({}, reason)
            + sse({"id": "chatcmpl-1", "model": "gpt-test-0", "choices": [], "usage": usage})
            + b"data: [DONE]\n\n"
        )

    def error_body(self, status: int, message: str) -> bytes:
        return json.dumps({"error": {"message": message, "type": "some_error", "code": None}}).encode()

    def error_event(self, message: str) -> bytes:
        return sse({"error": {"message": message, "type": "server_error"}})

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return sse({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "gpt-test-0", "choices": [choice]})


ADAPTERS: list[type[Adapter]] = [OpenAIChat]
