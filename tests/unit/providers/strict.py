"""Checkers as strict as the real servers: each raises for a request that its API would refuse."""

import json
import re
from collections.abc import Callable
from typing import Any

Payload = dict[str, Any]


def chat(payload: Payload) -> list[tuple[str, str]]:
    """Every call of a message is answered at once, once, under its own id. Returns (call name, result text)."""
    seen: set[str] = set()
    pairs: list[tuple[str, str]] = []
    waiting: dict[str, str] = {}
    for message in payload["messages"]:
        if message["role"] == "tool":
            assert message["content"]
            pairs.append((waiting.pop(message["tool_call_id"]), message["content"]))
            continue
        assert not waiting, f"no result for {waiting}"
        assert message["role"] in ("system", "user", "assistant")
        calls = message.get("tool_calls", [])
        assert message["content"] or calls, "an empty message"
        assert "tool_calls" not in message or calls, "an empty list of calls"
        for call in calls:
            assert call["id"] not in seen
            assert 0 < len(call["id"]) <= 40 or "x:" in call["id"]
            seen.add(call["id"])
            json.loads(call["function"]["arguments"])
            waiting[call["id"]] = call["function"]["name"]
    assert not waiting
    assert payload["messages"][-1]["role"] in ("user", "tool")
    return pairs


def anthropic(payload: Payload) -> list[tuple[str, str]]:
    """Roles alternate, user first; results open the message after their calls; no blank block, no foreign thinking."""
    messages = payload["messages"]
    assert [message["role"] for message in messages] == [("user", "assistant")[i % 2] for i in range(len(messages))]
    assert messages[-1]["role"] == "user"
    seen: set[str] = set()
    pairs: list[tuple[str, str]] = []
    waiting: dict[str, str] = {}
    for message in messages:
        assert message["content"], "an empty message"
        for position, block in enumerate(message["content"]):
            match block["type"]:
                case "text":
                    assert block["text"].strip()
                    assert not waiting, "text before the results"
                case "tool_use":
                    assert message["role"] == "assistant"
                    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", block["id"])
                    assert block["id"] not in seen
                    seen.add(block["id"])
                    waiting[block["id"]] = block["name"]
                case "tool_result":
                    assert message["role"] == "user"
                    assert all(before["type"] == "tool_result" for before in message["content"][:position])
                    pairs.append((waiting.pop(block["tool_use_id"]), _text(block["content"])))
                case "thinking":
                    assert block["signature"]
                    assert message["role"] == "assistant"
                case other:
                    raise AssertionError(other)
        assert message["role"] == "assistant" or not waiting, f"no result for {waiting}"
    assert not waiting
    return pairs


def responses(payload: Payload) -> list[tuple[str, str]]:
    """Every call has one output after it; reasoning is followed by what it led to."""
    seen: set[str] = set()
    pairs: list[tuple[str, str]] = []
    waiting: dict[str, str] = {}
    items = payload["input"]
    for position, item in enumerate(items):
        match item.get("type", "message"):
            case "message":
                assert not waiting, "a message before the outputs"
                assert item["content"]
                assert item["role"] in ("user", "assistant")
            case "function_call":
                assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", item["call_id"]) or "x:" in item["call_id"]
                assert item["call_id"] not in seen
                seen.add(item["call_id"])
                json.loads(item["arguments"])
                waiting[item["call_id"]] = item["name"]
            case "function_call_output":
                pairs.append((waiting.pop(item["call_id"]), item["output"]))
            case "reasoning":
                assert item["encrypted_content"]
                assert items[position + 1].get("role", "assistant") == "assistant"
            case other:
                raise AssertionError(other)
    assert not waiting
    return pairs


def google(payload: Payload) -> list[tuple[str, str]]:
    """Roles alternate, user first; a turn of n calls is followed by n responses of the same names."""
    contents = payload["contents"]
    assert [content["role"] for content in contents] == [("user", "model")[i % 2] for i in range(len(contents))]
    pairs: list[tuple[str, str]] = []
    waiting: list[str] = []
    for content in contents:
        assert content["parts"]
        for part in content["parts"]:
            kinds = {"text", "inlineData", "functionCall", "functionResponse"} & set(part)
            assert len(kinds) == 1
            if "functionCall" in part:
                waiting.append(part["functionCall"]["name"])
            elif "functionResponse" in part:
                name = waiting.pop(0)
                assert part["functionResponse"]["name"] == name
                (text,) = part["functionResponse"]["response"].values()
                pairs.append((name, text))
            elif "text" in part:
                assert part["text"] or "thoughtSignature" in part
                assert content["role"] == "model" or not waiting
        assert content["role"] == "model" or not waiting
    assert not waiting
    return pairs


CHECKS: dict[str, Callable[[Payload], list[tuple[str, str]]]] = {
    "openai-chat": chat,
    "anthropic-messages": anthropic,
    "openai-responses": responses,
    "google-gemini": google,
}


def _text(blocks: list[dict[str, Any]]) -> str:
    return "".join(block["text"] if block["type"] == "text" else f"[{block['type']}]" for block in blocks)
