"""`open_repo("sqlite:PATH")`: a store by its address, so that a program takes it from its configuration."""

from importlib.metadata import entry_points
from typing import Protocol, cast

from agent_harness.session.repo import SessionRepo
from agent_harness.session.storage import Durability
from agent_harness.types.clock import WallClock
from agent_harness.types.ids import IdGenerator

ENTRY_POINTS = "agent_harness.session_backends"
"""The entry-point group: its names are schemes, its objects are called as `FromUrl`."""


class UnknownScheme(ValueError):
    """No backend is registered for the scheme of an address."""


class FromUrl(Protocol):
    """What a backend registers: takes the text after the colon."""

    def __call__(
        self,
        rest: str,
        *,
        clock: WallClock | None = None,
        id_generator: IdGenerator | None = None,
        durability: Durability = "process",
    ) -> SessionRepo:
        """Make the repository; raises ValueError when `rest` is not an address of it."""
        ...


def open_repo(
    url: str,
    *,
    clock: WallClock | None = None,
    id_generator: IdGenerator | None = None,
    durability: Durability = "process",
) -> SessionRepo:
    """The repository at `memory:`, `jsonl:PATH`, `sqlite:PATH`, or an address of a registered backend.

    Raises:
        UnknownScheme: no backend of this name; names those there are.
        ValueError: the backend refused what follows the colon.
    """
    scheme, colon, rest = url.partition(":")
    backend = _backend(scheme) if colon else None
    if backend is None:
        known = ", ".join(sorted({"memory", "jsonl", "sqlite", *entry_points(group=ENTRY_POINTS).names}))
        raise UnknownScheme(
            f"no session backend for {url[:200]!r}: an address starts with one of {known}, and a colon; "
            f"packages add more through the entry-point group {ENTRY_POINTS!r}"
        )
    return backend(rest, clock=clock, id_generator=id_generator, durability=durability)


def _backend(scheme: str) -> FromUrl | None:
    # Those that ship with the distribution work in a source tree that is not installed, too.
    match scheme:
        case "memory":
            from .memory import from_url as memory

            return memory
        case "jsonl":
            from .jsonl.repo import from_url as jsonl

            return jsonl
        case "sqlite":
            from .sqlite.repo import from_url as sqlite

            return sqlite
        case _:
            for found in entry_points(group=ENTRY_POINTS, name=scheme):
                return cast("FromUrl", found.load())
            return None
