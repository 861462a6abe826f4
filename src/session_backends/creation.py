"""What a new session starts with: the same checks and defaults in every backend."""

import os
from collections.abc import Mapping

from agent_harness.errors import InvalidPayload, InvalidSessionId
from agent_harness.session.storage import SessionMetadata
from agent_harness.types.clock import WallClock
from agent_harness.types.ids import IdGenerator, is_session_id
from agent_harness.types.json import InvalidJson, JsonValue, canon, check_text, is_text


def check_session_id(session_id: str) -> str:
    """Return `session_id`, if it may name a session.

    Raises:
        InvalidSessionId: before any file call.
    """
    if not is_session_id(session_id):
        raise InvalidSessionId(session_id)
    return session_id


def absolute(cwd: str | None) -> str | None:
    """A working directory as sessions name it: absolute, symbolic links left alone."""
    return None if cwd is None else os.path.abspath(cwd)


def names_folder(cwd: str | None) -> bool:
    """Whether a session can have been created with this working directory."""
    return cwd is None or (is_text(cwd) and "\0" not in cwd)


def new_metadata(
    *,
    clock: WallClock,
    id_generator: IdGenerator,
    id: str | None,
    cwd: str | None,
    metadata: Mapping[str, JsonValue] | None,
    parent_session_id: str | None,
) -> SessionMetadata:
    """The header of a new session; `cwd` is made absolute, the id provisioned when absent.

    Raises:
        InvalidSessionId, InvalidPayload: nothing was written.
    """
    session_id = check_session_id(id_generator.next() if id is None else id)
    try:
        if cwd is not None:
            check_text(cwd, ("cwd",))
            if not names_folder(cwd):
                raise InvalidJson("$.cwd", "a working directory holds no NUL")
        if parent_session_id is not None:
            check_text(parent_session_id, ("parentSessionId",))
        checked = canon(dict(metadata or {}), ("metadata",))
    except InvalidJson as error:
        raise InvalidPayload(f"header refused at {error}") from None
    assert isinstance(checked, dict)
    return SessionMetadata(
        id=session_id,
        created_at=clock.now_ms(),
        cwd=absolute(cwd),
        parent_session_id=parent_session_id,
        metadata=checked,
    )
