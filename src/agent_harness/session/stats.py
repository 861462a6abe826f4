"""Running statistics of a session: one step per committed item (harness-v2 §13)."""

from ..types.entries import Entry, MessageBody
from ..types.records import LaneRecord
from ..types.usage import add_usage
from .storage import SessionStats


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
