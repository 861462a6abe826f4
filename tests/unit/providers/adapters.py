"""What the behaviour suite needs to know about each adapter: how to build it and how its API looks on the wire."""

import json
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from agent_harness.providers.anthropic import AnthropicProvider
from agent_harness.providers.base import Model, Provider
from agent_harness.providers.google import GoogleProvider
from agent_harness.providers.openai_chat import OpenAIChatProvider
from agent_harness.providers.openai_responses import OpenAIResponsesProvider

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


@dataclass
class Anthropic:
    """The same usage: 60 fresh input tokens, 40 read from the cache, 20 output tokens."""

    name: str = "anthropic-messages"
    llmock_path: str = "/anthropic"
    args_are_text: bool = True
    blocks: int = 0

    def provider(self, url: str, *, read_timeout_ms: int = 10_000) -> Provider:
        return AnthropicProvider(base_url=url, api_key=KEY, read_timeout_ms=read_timeout_ms)

    def model(self, **fields: Any) -> Model:
        return Model(provider="test", id="claude-test", api=self.name, images=True, **fields)

    def start(self) -> bytes:
        self.blocks = 0
        usage = {"input_tokens": 60, "cache_read_input_tokens": 40, "output_tokens": 1}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-test-0", "usage": usage}
        return self.event("message_start", message=message)

    def text(self, piece: str) -> bytes:
        if self.blocks == 0:
            return self.block({"type": "text", "text": ""}, [{"type": "text_delta", "text": piece}])
        return self.event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})

    def call(self, id: str, name: str, *fragments: str) -> list[bytes]:
        deltas = [{"type": "input_json_delta", "partial_json": fragment} for fragment in fragments]
        return [self.block({"type": "tool_use", "id": id, "name": name, "input": {}}, deltas)]

    def finish(self, stop: Stop) -> bytes:
        reason = {"stop": "end_turn", "toolUse": "tool_use", "length": "max_tokens"}[stop]
        return self.end(reason)

    def end(self, reason: str, **more: Any) -> bytes:
        usage = {"output_tokens": 20}
        return self.event("message_delta", delta={"stop_reason": reason, **more}, usage=usage) + self.event(
            "message_stop"
        )

    def error_body(self, status: int, message: str) -> bytes:
        return json.dumps({"type": "error", "error": {"type": "some_error", "message": message}}).encode()

    def error_event(self, message: str) -> bytes:
        return self.event("error", error={"type": "overloaded_error", "message": message})

    def event(self, type: str, **fields: Any) -> bytes:
        return sse({"type": type, **fields}, type)

    def block(self, start: dict[str, Any], deltas: list[dict[str, Any]]) -> bytes:
        index, self.blocks = self.blocks, self.blocks + 1
        events = [self.event("content_block_start", index=index, content_block=start)]
        events += [self.event("content_block_delta", index=index, delta=delta) for delta in deltas]
        return b"".join([*events, self.event("content_block_stop", index=index)])


@dataclass
class OpenAIResponses:
    """The same usage: 100 input tokens, 40 of them cached, 20 output tokens, 5 of them reasoning."""

    name: str = "openai-responses"
    llmock_path: str = "/v1"
    args_are_text: bool = True
    items: int = 0

    def provider(self, url: str, *, read_timeout_ms: int = 10_000) -> Provider:
        return OpenAIResponsesProvider(base_url=url, api_key=KEY, read_timeout_ms=read_timeout_ms)

    def model(self, **fields: Any) -> Model:
        return Model(provider="test", id="gpt-test", api=self.name, images=True, **fields)

    def response(self, status: str, **more: Any) -> dict[str, Any]:
        given = {"id": "resp_1", "object": "response", "created_at": 1_000, "status": status, "model": "gpt-test-0"}
        return {**given, "output": [], **more}

    def start(self) -> bytes:
        self.items = 0
        return self.event("response.created", response=self.response("in_progress"))

    def text(self, piece: str) -> bytes:
        opened = b""
        if self.items == 0:
            opened = self.added({"type": "message", "role": "assistant", "content": []})
        return opened + self.event("response.output_text.delta", output_index=0, content_index=0, delta=piece)

    def call(self, id: str, name: str, *fragments: str) -> list[bytes]:
        index = self.items
        item = {"type": "function_call", "call_id": id, "name": name, "arguments": ""}
        deltas = [
            self.event("response.function_call_arguments.delta", output_index=index, delta=fragment)
            for fragment in fragments
        ]
        return [self.added(item), *deltas]

    def finish(self, stop: Stop) -> bytes:
        usage = {
            "input_tokens": 100,
            "input_tokens_details": {"cached_tokens": 40},
            "output_tokens": 20,
            "output_tokens_details": {"reasoning_tokens": 5},
            "total_tokens": 120,
        }
        if stop == "length":
            details = {"reason": "max_output_tokens"}
            response = self.response("incomplete", usage=usage, incomplete_details=details)
            return self.event("response.incomplete", response=response)
        return self.event("response.completed", response=self.response("completed", usage=usage))

    def error_body(self, status: int, message: str) -> bytes:
        return json.dumps({"error": {"message": message, "type": "some_error", "code": None}}).encode()

    def error_event(self, message: str) -> bytes:
        return self.event("error", code="server_error", message=message, param=None)

    def event(self, type: str, **fields: Any) -> bytes:
        return sse({"type": type, **fields}, type)

    def added(self, item: dict[str, Any]) -> bytes:
        index, self.items = self.items, self.items + 1
        return self.event("response.output_item.added", output_index=index, item=item)


@dataclass
class Google:
    """The same usage: 100 prompt tokens, 40 of them cached, 15 candidate tokens and 5 of thoughts."""

    name: str = "google-gemini"
    llmock_path: str = "/gemini"
    args_are_text: bool = False

    def provider(self, url: str, *, read_timeout_ms: int = 10_000) -> Provider:
        version = "v1beta" if url.endswith(self.llmock_path) else None  # llmock does not know the SDK's default
        return GoogleProvider(base_url=url, api_key=KEY, api_version=version, read_timeout_ms=read_timeout_ms)

    def model(self, **fields: Any) -> Model:
        return Model(provider="test", id="gemini-test", api=self.name, images=True, **fields)

    def start(self) -> bytes:
        return self.chunk()

    def text(self, piece: str) -> bytes:
        return self.chunk({"text": piece})

    def call(self, id: str, name: str, *fragments: str) -> list[bytes]:
        arguments = "".join(fragments) or "{}"
        given = {"functionCall": {"id": id, "name": name, "args": "ARGUMENTS"}}
        return [self.chunk(given).replace(b'"ARGUMENTS"', arguments.encode())]

    def finish(self, stop: Stop) -> bytes:
        return self.end("MAX_TOKENS" if stop == "length" else "STOP")

    def end(self, reason: str) -> bytes:
        usage = {
            "promptTokenCount": 100,
            "cachedContentTokenCount": 40,
            "candidatesTokenCount": 15,
            "thoughtsTokenCount": 5,
            "totalTokenCount": 120,
        }
        candidate = {"content": {"role": "model", "parts": [{"text": ""}]}, "finishReason": reason, "index": 0}
        return sse({"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-test-0"})

    def error_body(self, status: int, message: str) -> bytes:
        return json.dumps({"error": {"code": status, "message": message, "status": "SOME_ERROR"}}).encode()

    def error_event(self, message: str) -> bytes:
        return sse({"error": {"code": 503, "message": message, "status": "UNAVAILABLE"}})

    def chunk(self, *parts: dict[str, Any]) -> bytes:
        return sse({"candidates": [{"content": {"role": "model", "parts": list(parts)}, "index": 0}]})


ADAPTERS: list[type[Adapter]] = [OpenAIChat, Anthropic, OpenAIResponses, Google]
