"""What a case is and gets."""

import inspect
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from agent_harness.session.repo import SessionRepo


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """What a case works with."""

    repo: SessionRepo  # over an empty store
    directory: Path  # empty, for snapshots


Case: TypeAlias = Callable[[Kit], Coroutine[Any, Any, None]]
"""A rule as a coroutine function; raises AssertionError where a backend breaks it."""


def cases_of(namespace: Mapping[str, object]) -> tuple[Case, ...]:
    """Every coroutine function of a module that takes a `kit`, in the order of the module."""
    return tuple(
        cast("Case", value)
        for value in namespace.values()
        if inspect.iscoroutinefunction(value) and list(inspect.signature(value).parameters) == ["kit"]
    )
