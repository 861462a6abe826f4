"""Writes docs/events.schema.json from the event types; with --check, only says whether it is up to date.

One JSON Schema (2020-12) for every event on the wire; `#/$defs/LaneSnapshot` and `#/$defs/SessionSnapshot` are the
snapshots. Exit codes: 0 written or fresh, 1 stale (--check), 2 bad arguments.
"""

import argparse
import json
import sys
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from agent_harness.events.catalog import FactUpdate, HandlerError, HarnessEvent, MessageUpdate
from agent_harness.events.snapshot import LaneSnapshot, SessionSnapshot
from agent_harness.events.wire import NULLABLE, ONLY_TRUE, TRANSPORT
from agent_harness.outcomes import SuspendedOperation
from agent_harness.types.entries import Entry, EntryBody, ProvisionedEntry
from agent_harness.types.json import JsonValue
from agent_harness.types.messages import KNOWN_ROLES, AgentMessage, DeferredHandle, ExtensionMessage
from agent_harness.types.records import LaneRecord, RecordBody
from agent_harness.types.wire import AbsentMark, Flattened, JsonMark, Open, is_marked, wire_key

TARGET = Path(__file__).resolve().parent.parent / "docs" / "events.schema.json"
Schema = dict[str, Any]


class Schemas:
    """Schemas by type; each dataclass becomes one definition."""

    def __init__(self) -> None:
        self.defs: dict[str, Schema] = {}

    def of(self, annotation: Any) -> Schema:
        """The schema of a type annotation, as its values look on the wire."""
        if annotation is JsonValue or annotation is object or annotation is Any:
            return {}
        if annotation is type(None):
            return {"type": "null"}
        simple = {str: "string", int: "integer", float: "number", bool: "boolean"}
        if annotation in simple:
            return {"type": simple[annotation]}
        origin, args = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            if any(isinstance(mark, JsonMark) for mark in args[1:]):
                return {"type": "object"} if get_origin(args[0]) in (dict, Mapping) else {}
            return self.of(args[0])
        if origin is Literal:
            return {"const": args[0]} if len(args) == 1 else {"enum": list(args)}
        if origin in (Union, types.UnionType):
            return self._union(args)
        if origin is tuple:
            return {"type": "array", "items": self.of(args[0])}
        if is_dataclass(annotation):
            return self._ref(cast("type", annotation))
        raise TypeError(f"no schema for {annotation!r}")

    def _union(self, args: tuple[Any, ...]) -> Schema:
        options = [self.of(arg) for arg in args]
        if {} in options:
            return {}
        return options[0] if len(options) == 1 else {"anyOf": options}

    def _ref(self, cls: type) -> Schema:
        name = cls.__name__
        if name not in self.defs:
            self.defs[name] = {}  # a type may hold itself
            self.defs[name] = self._definition(cls)
        return {"$ref": f"#/$defs/{name}"}

    def _definition(self, cls: type) -> Schema:
        if cls is Entry:
            envelope = {"id": str, "seq": int, "parentId": str | None, "timestamp": int}
            return self._enveloped(envelope, EntryBody)
        if cls is LaneRecord:
            return self._enveloped({"id": str, "lane": str, "seq": int, "timestamp": int}, RecordBody)
        if cls is ProvisionedEntry:
            return self._enveloped({"id": str}, EntryBody)
        if cls is ExtensionMessage:
            role = {"type": "string", "not": {"enum": sorted(KNOWN_ROLES)}}
            return {"type": "object", "properties": {"role": role}, "required": ["role"]}
        if cls is SuspendedOperation:
            return self._suspended()
        if cls in TRANSPORT:
            return self._transport(cls)
        return self._durable(cls)

    def _enveloped(self, envelope: Mapping[str, Any], body: Any) -> Schema:
        """A body with its envelope's keys beside its own."""
        own = {key: self.of(annotation) for key, annotation in envelope.items()}
        return {
            "type": "object",
            "properties": own,
            "required": list(own),
            "anyOf": [self._ref(cls) for cls in _members(body)],
        }

    def _durable(self, cls: type) -> Schema:
        """A type with a wire form of its own (`types.codec`)."""
        hints = get_type_hints(cls, include_extras=True)
        properties: dict[str, Schema] = {}
        required: list[str] = []
        for f in fields(cls):
            if f.name == "extra" and issubclass(cls, Open):
                continue
            absent = is_marked(hints[f.name], AbsentMark)
            properties[wire_key(f.name)] = self._present(hints[f.name]) if absent else self.of(hints[f.name])
            if not absent:
                required.append(wire_key(f.name))
        assert not issubclass(cls, Flattened), cls
        return {"type": "object", "properties": properties, "required": required}

    def _present(self, annotation: Any) -> Schema:
        """What an absent field holds when it is there."""
        inner = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
        return self._union(tuple(arg for arg in get_args(inner) if arg is not type(None)))

    def _transport(self, cls: type) -> Schema:
        """A type that exists only between a harness and its watchers (`events.wire`)."""
        if cls is FactUpdate:
            return {"anyOf": [_fact("name", []), _fact("label", ["targetId"])]}
        if cls is HandlerError:
            return {"anyOf": [_handler_error("hook"), _handler_error("event")]}
        hints = get_type_hints(cls, include_extras=True)
        properties: dict[str, Schema] = {}
        required: list[str] = []
        for f in fields(cls):
            key, names = wire_key(f.name), {f.name, f"{cls.__name__}.{f.name}"}
            optional = f.default is None or type(None) in get_args(hints[f.name])
            if cls is MessageUpdate and f.name == "event":
                properties[key] = _DELTA
            elif names & NULLABLE or not optional:
                properties[key] = self.of(hints[f.name])
            else:
                properties[key] = self._present(hints[f.name]) if get_args(hints[f.name]) else self.of(hints[f.name])
            if names & ONLY_TRUE:
                properties[key] = {"const": True}
            elif names & NULLABLE or not optional:
                required.append(key)
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    def _suspended(self) -> Schema:
        messages: Schema = {"type": "array", "items": self.of(AgentMessage)}
        hints = get_type_hints(SuspendedOperation, include_extras=True)
        properties = {
            "lane": self.of(str),
            "kind": self.of(hints["kind"]),
            "id": self.of(str),
            "startedAt": self.of(int),
            "reason": self.of(hints["reason"]),
            "prompt": messages,
            "deferred": self.of(DeferredHandle),
            "aborting": {
                "type": "object",
                "properties": {"steer": messages, "followUp": messages},
                "required": ["steer", "followUp"],
            },
            "missing": self.of(hints["missing"]),
        }
        required = ["lane", "kind", "id", "startedAt", "reason", "missing"]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_DELTA: Schema = {
    "type": "object",
    "properties": {
        "type": {"enum": ["text_delta", "thinking_delta", "toolcall_delta"]},
        "index": {"type": "integer"},
        "delta": {"type": "string"},
    },
    "required": ["type", "index", "delta"],
    "additionalProperties": False,
}


def _fact(fact: str, keys: list[str]) -> Schema:
    text: Schema = {"type": "string"}
    properties = {"type": {"const": "fact_update"}, "fact": {"const": fact}, **dict.fromkeys(keys, text), fact: text}
    required = ["type", "fact", *keys]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _handler_error(kind: str) -> Schema:
    text: Schema = {"type": "string"}
    properties = {"type": {"const": "handler_error"}, "lane": text, "kind": {"const": kind}, "error": text, kind: text}
    required = ["type", "kind", "error", kind]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _members(union: Any) -> list[type]:
    """The dataclasses of a (nested, annotated) union."""
    if is_dataclass(union):
        return [cast("type", union)]
    args = get_args(union)
    args = args[:1] if get_origin(union) is Annotated else args
    return [member for arg in args for member in _members(arg)]


def build() -> Schema:
    """The whole schema."""
    schemas = Schemas()
    events = [schemas.of(cls) for cls in get_args(HarnessEvent)]
    for snapshot in (LaneSnapshot, SessionSnapshot):
        schemas.of(snapshot)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "agent-harness events",
        "description": "Every event a watcher receives; generated by scripts/generate_event_schema.py, do not edit.",
        "oneOf": events,
        "$defs": dict(sorted(schemas.defs.items())),
    }


def main(arguments: list[str]) -> int:
    """Write or check the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the file is stale")
    parser.add_argument("--output", type=Path, default=TARGET, help="the file (default: docs/events.schema.json)")
    options = parser.parse_args(arguments)
    output = cast("Path", options.output)
    text = json.dumps(build(), indent=2) + "\n"
    if options.check:
        if output.is_file() and output.read_text(encoding="utf-8") == text:
            return 0
        print(f"{output} is stale: run scripts/generate_event_schema.py", file=sys.stderr)
        return 1
    output.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
