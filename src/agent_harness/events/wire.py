"""Events and snapshots as JSON objects: what a server sends its clients (harness-v2 §9, §10).

Keys are camelCase; the values of durable types look as they do in a session's log. `docs/events.schema.json` is the
published schema. A field that has nothing to say is left off; `null` stands only where it means "the root" or "idle".
"""

from dataclasses import fields, is_dataclass
from typing import cast, get_args

from ..outcomes import LaneOperation, Missing, SuspendedOperation
from ..providers.base import StreamDelta
from ..types.codec import Wire, dump, dump_entry, dump_record
from ..types.entries import Entry
from ..types.json import JsonValue
from ..types.records import LaneRecord
from ..types.wire import wire_key
from .catalog import FactUpdate, HandlerError, HarnessEvent, MessageUpdate, QueuedItem
from .snapshot import (
    LaneOverview,
    LaneSnapshot,
    OperationSnapshot,
    PendingWrite,
    QueueSnapshot,
    RunningTool,
    ScheduledRetry,
    SessionSnapshot,
)

TRANSPORT = frozenset(
    {
        *get_args(HarnessEvent),
        LaneOperation,
        LaneOverview,
        LaneSnapshot,
        Missing,
        OperationSnapshot,
        PendingWrite,
        QueuedItem,
        QueueSnapshot,
        RunningTool,
        ScheduledRetry,
        SessionSnapshot,
    }
)
"""Types that exist only between a harness and its watchers; all others have their own durable form."""

NULLABLE = frozenset(
    {"leaf_id", "parent_id", "at", "old_leaf_id", "new_leaf_id", "NavigationStart.target_id", "operation"}
)
"""Fields that are always there: `null` is the root of the tree, or no operation."""

ONLY_TRUE = frozenset({"recovery", "MessageEnd.terminate"})
"""Flags that are left off when they are false."""


def event_to_wire(event: HarnessEvent) -> Wire:
    """`{type, lane, ...}`: JSON through and through, no live object, nothing secret.

    Raises:
        InvalidJson: a value in it is no JSON; nothing the harness emits.
    """
    match event:
        case FactUpdate(fact="name"):
            return _without_none({"type": event.type, "fact": "name", "name": event.value})
        case FactUpdate():
            wire: Wire = {"type": event.type, "fact": "label", "targetId": event.target_id, "label": event.value}
            return _without_none(wire)
        case HandlerError():
            wire = {"type": event.type, "lane": event.lane, "kind": event.kind, "error": event.error}
            return _without_none({**wire, event.kind: event.name})
        case MessageUpdate(event=StreamDelta() as delta):
            # `message` is the partial: it is not sent twice.
            shown: Wire = {"type": delta.type, "index": delta.index, "delta": delta.delta}
            return {**_object(event, skip="event"), "event": cast("Wire", dump(shown))}
        case _:
            return _object(event)


def snapshot_to_wire(snapshot: LaneSnapshot | SessionSnapshot) -> Wire:
    """The snapshot as a client gets it before the first event."""
    return _object(snapshot)


def suspended_to_wire(suspended: SuspendedOperation) -> Wire:
    """A suspended operation, for whoever offers to resume or abort it (harness-v2 §8 "Suspended operations")."""
    aborting: JsonValue = None
    if suspended.aborting_steer is not None:
        follow_up = suspended.aborting_follow_up or ()
        aborting = {"steer": dump(suspended.aborting_steer), "followUp": dump(follow_up)}
    return _without_none(
        {
            "lane": suspended.lane,
            "kind": suspended.kind,
            "id": suspended.id,
            "startedAt": suspended.started_at,
            "reason": suspended.reason,
            "prompt": dump(suspended.prompt) if suspended.kind == "run" else None,
            "deferred": None if suspended.deferred is None else dump(suspended.deferred),
            "aborting": aborting,
            "missing": _object(suspended.missing),
        }
    )


def _without_none(wire: Wire) -> Wire:
    return {key: value for key, value in wire.items() if value is not None}


def _object(value: object, skip: str = "") -> Wire:
    assert is_dataclass(value)
    owner = type(value).__name__
    out: Wire = {}
    for f in fields(value):
        item: object = getattr(value, f.name)
        names = {f.name, f"{owner}.{f.name}"}
        if f.name == skip or (item is None and not names & NULLABLE) or (item is False and names & ONLY_TRUE):
            continue
        out[wire_key(f.name)] = _value(item)
    return out


def _value(item: object) -> JsonValue:
    match item:
        case Entry():
            return dump_entry(item)
        case LaneRecord():
            return dump_record(item)
        case SuspendedOperation():
            return suspended_to_wire(item)
        case tuple():
            return [_value(one) for one in cast("tuple[object, ...]", item)]
        case _:
            return _object(item) if type(item) in TRANSPORT else dump(item)
