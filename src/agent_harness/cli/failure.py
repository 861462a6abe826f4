"""What goes wrong for a user: one clear line on stderr and an exit code, never a trace."""

from ..errors import CorruptLog, HarnessClosed, HarnessFault, MissingExtra, SessionError
from ..result import RejectedError
from .output import one_line

REFUSED = 1
USAGE = 2
TRY_LATER = 75
INTERRUPTED = 130


class Failure(Exception):
    """Ends the command. The message is one sentence that names the way out."""

    def __init__(self, message: str, exit_code: int = REFUSED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def explain(error: BaseException) -> Failure | None:
    """The failure behind an error that users can cause; None for a defect of ours."""
    match error:
        case Failure():
            return error
        case RejectedError():
            return Failure(error.error.message)
        case SessionError() | CorruptLog() | HarnessFault() | HarnessClosed() | MissingExtra():
            return Failure(str(error))
        case OSError():
            where = f"{error.filename}: " if error.filename else ""
            return Failure(f"{where}{error.strerror or error}")
        case _:
            return None


def error_line(message: str) -> str:
    """How a failure is printed."""
    return f"error: {one_line(message)}"
