"""Control flow inside procedures. Each is a BaseException so that no `except Exception` swallows it, and is caught in
one place; none escapes to a caller (harness-v2 §15, style section 5)."""

from ..types.messages import DeferredHandle
from ..types.records import OperationError


class Park(BaseException):
    """A deferred handle was persisted: the lane suspends."""

    def __init__(self, handle: DeferredHandle) -> None:
        super().__init__()
        self.handle = handle


class Aborted(BaseException):
    """An abort is accepted: go to reconciliation."""


class RunFailed(BaseException):
    """The operation failed: drain accepted input, then close it."""

    def __init__(self, error: OperationError) -> None:
        super().__init__()
        self.error = error


class Overflow(BaseException):
    """A recoverable response was discarded; its cost is already in the ledger."""
