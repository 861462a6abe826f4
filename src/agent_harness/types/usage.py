"""The arithmetic of usage: one place that adds and subtracts tokens and cost (harness-v2 §5, §13)."""

from collections.abc import Iterable

from .messages import Cost, Usage


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


def usage_difference(newer: Usage, older: Usage) -> Usage:
    """What to adjust the ledger by when a hook corrects a reported usage."""
    return Usage(
        input=newer.input - older.input,
        output=newer.output - older.output,
        cache_read=newer.cache_read - older.cache_read,
        cache_write=newer.cache_write - older.cache_write,
        total_tokens=newer.total_tokens - older.total_tokens,
        cost=Cost(
            input=newer.cost.input - older.cost.input,
            output=newer.cost.output - older.cost.output,
            cache_read=newer.cost.cache_read - older.cost.cache_read,
            cache_write=newer.cost.cache_write - older.cost.cache_write,
            total=newer.cost.total - older.cost.total,
        ),
    )
