"""The arithmetic of usage: one place that adds tokens and cost (harness-v2 §13)."""

from collections.abc import Iterable

from ..types.entries import Entry, MessageBody
from ..types.messages import Cost, Usage
from ..types.records import LaneRecord
from .storage import SessionStats


def add_usage(left: Usage, right: Usage) -> Usage:
    """Sum field by field. Unknown keys do not add up and are left out; `reasoning` is a part of `output`."""
    reasoning = None
    if left.reasoning is not None or right.reasoning is not None:
        reasoning = (left.reasoning or 0) + (right.reasoning or 0)
    return Usage(
        input=left.input + right.input,
        output=left.output + right.output,
        cache_read=left.cache_read + right.cache_read,
        cache_write=left.cache_write + right.cache_write,
        total_tokens=left.total_tokens + right.total_tokens,
        reasoning=reasoning,
        cost=Cost(
            input=left.cost.input + right.cost.input,
            output=left.cost.output + right.cost.output,
            cache_read=left.cost.cache_read + right.cost.cache_read,
            cache_write=left.cost.cache_write + right.cost.cache_write,
            total=left.cost.total + right.cost.total,
        ),
    )


def sum_usage(items: Iterable[Usage]) -> Usage:
    """The ledger sum of `items`, zero when there are none."""
    total = Usage()
    for item in items:
        total = add_usage(total, item)
    return total


def count_entry(stats: SessionStats, entry: Entry) -> SessionStats:
    """Stats after an entry: message entries are counted, fork copies included."""
    if not isinstance(entry.body, MessageBody):
        return stats
    return SessionStats(message_count=stats.message_count + 1, usage=stats.usage)


def count_record(stats: SessionStats, record: LaneRecord) -> SessionStats:
    """Stats after a record: `usage` records are the whole ledger."""
    if record.body.type != "usage":
        return stats
    return SessionStats(message_count=stats.message_count, usage=add_usage(stats.usage, record.body.usage))
