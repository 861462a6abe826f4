"""The `agent-harness` command (extra `cli`; decisions section 9)."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    0: done. 1: refused or failed, with one line on stderr. 2: the command line itself is wrong. 75: the answer is not
    there yet, `resume` asks again. 130: interrupted, the session stays resumable.
    """
    from ..errors import MissingExtra

    try:
        try:
            from .app import execute
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in ("typer", "rich"):
                raise
            raise MissingExtra("cli", "the agent-harness command") from None
    except MissingExtra as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return execute(sys.argv[1:] if arguments is None else arguments)
