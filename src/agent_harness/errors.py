"""Defects and closed doors: what is raised, never returned (harness-v2 §8 "Results and tagged errors").

Expected refusals of the public calls are values in `outcomes.py`. No exception text here carries content.
"""


class HarnessFault(Exception):
    """A storage write failed or an invariant broke: the harness stops; reopening the session restores it.

    `cause` is what happened. Every later call on the faulted harness raises this same instance.
    """

    def __init__(self, message: str, cause: BaseException | None = None) -> None:
        super().__init__(message)
        self.cause = cause


class HarnessClosed(Exception):
    """The harness was closed while the operation was active; the operation stays resumable."""

    def __init__(self, message: str = "AgentHarness was closed while the operation was active") -> None:
        super().__init__(message)


class CorruptLog(Exception):
    """The stored facts cannot have been written by a single writer (harness-v2 §5 "Validity").

    `rule` is the name of the broken rule, as in `fixtures/v4/corruption.oracle.json` (A-14).
    """

    def __init__(self, rule: str, message: str, *, lane: str | None = None, item_id: str | None = None) -> None:
        super().__init__(f"{message} [{rule}]")
        self.rule = rule
        self.lane = lane
        self.item_id = item_id


class SessionError(Exception):
    """Base of what opening, reading or writing a session may raise."""


class InvalidSessionId(SessionError):
    """The id may not name a session; refused before any file call."""

    def __init__(self, session_id: str) -> None:
        shown = ascii(session_id[:40])
        super().__init__(
            f"invalid session id {shown}: use 1 to 128 letters, digits, '_' or '-', starting with a letter or digit"
        )


class SessionNotFound(SessionError):
    """No such session in this store."""


class SessionExists(SessionError):
    """The store already holds a session of this id."""


class SessionLocked(SessionError):
    """Another writer holds the session. `owner` says who, as far as it is known: pid, host, since."""

    def __init__(self, session_id: str, owner: str) -> None:
        super().__init__(f"session {session_id} is being written by {owner}; open it read-only or close the other one")
        self.session_id = session_id
        self.owner = owner


class SessionClosed(SessionError):
    """The session was closed."""


class ReadOnlySession(SessionError):
    """The session was opened read-only."""


class CorruptSession(SessionError):
    """A stored session cannot be read. Names the place: `line`, byte `offset` and why."""

    def __init__(self, message: str, *, line: int | None = None, offset: int | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.offset = offset


class UnsupportedFormat(SessionError):
    """The file is a session of a format version that this program does not read."""


class StorageError(SessionError):
    """A write failed and its outcome is unknown until the store is read again; the session is faulted."""


class FencedWriter(StorageError):
    """Another writer took the session over; this one may not write any more."""


class InvalidWrite(SessionError):
    """A write that was refused before anything was written: duplicate id, unknown lane, invalid payload."""


class DuplicateId(InvalidWrite):
    """An entry or record of this session already has the id."""

    def __init__(self, item_id: str) -> None:
        super().__init__(f"the session already has an entry or record with id {item_id!r}")
        self.item_id = item_id


class UnknownLane(InvalidWrite):
    """No lane of this name."""

    def __init__(self, lane: str) -> None:
        super().__init__(f"the session has no lane {lane!r}")
        self.lane = lane


class UnknownEntry(InvalidWrite):
    """No entry of this id."""

    def __init__(self, entry_id: str) -> None:
        super().__init__(f"the session has no entry {entry_id!r}")
        self.entry_id = entry_id


class LaneAlreadyExists(InvalidWrite):
    """A lane of this name exists; names are permanent."""


class OperationOpen(InvalidWrite):
    """The lane already has an open operation."""

    def __init__(self, lane: str, operation_id: str) -> None:
        super().__init__(f"lane {lane!r} already has an open operation {operation_id}")
        self.lane = lane
        self.operation_id = operation_id


class WriteRefused(InvalidWrite):
    """The write would have to wait for ever; names the operation in its way (A-10)."""


class InvalidPayload(InvalidWrite):
    """A value that is not JSON as we accept it; the message names its JSON path."""


class MissingExtra(ImportError):
    """An optional dependency is not installed; the message names the pip command."""

    def __init__(self, extra: str, what: str) -> None:
        super().__init__(f"{what} needs the {extra!r} extra: pip install 'agent-harness[{extra}]'")
        self.extra = extra


class WatchOverflow(Exception):
    """A watch was consumed too slowly and ended (A-13). A new `watch()` gets a fresh snapshot."""
