"""Control flow inside procedures. Each is a BaseException so that no `except Exception` swallows it, and is caught in
one place; none escapes to a caller (harness-v2 §15, style section 5)."""

from ..types.messages import AssistantMessage, DeferredHandle
from ..types.records import OperationError


class Park(BaseException):
    """A deferred handle was persisted: the lane suspends. `message` is its entry's, when that was appended just now."""

    def __init__(self, handle: DeferredHandle, message: AssistantMessage | None = None) -> None:
        super().__init__()
        self.handle = handle
        self.message = message


class Aborted(BaseException):
    """An abort is accepted: go to reconciliation."""


class RunFailed(BaseException):
    """The operation failed: drain accepted input, then close it. `message` is the error's entry, if there is one."""

    def __init__(self, error: OperationError, message: AssistantMessage | None = None) -> None:
        super().__init__()
        self.error = error
        self.message = message


class Overflow(BaseException):
    """A recoverable response was discarded; its cost is already in the ledger."""
