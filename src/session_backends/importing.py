"""Import of a session file from elsewhere: nothing in it is trusted (T9)."""

import os
from pathlib import Path

from agent_harness.errors import CorruptSession
from agent_harness.session.repo import SessionRepo, TreeFork
from agent_harness.session.session import Session

from .jsonl.repo import JsonlSessionRepo


async def import_file(path: str | os.PathLike[str], repo: SessionRepo) -> Session:
    """Copy a session file of format 3 or 4 into `repo` as a new idle session, opened for writing; close it.

    Every line is read and checked as any opening does it, ids included; then the whole log is checked against the
    rules of the reducer. The new session has an id of the repository's own, and no file name comes from the content.
    It holds the entries of every branch, the lanes, the name and the labels; records of operations are not copied.
    The file is only read. The name it had in the other store is `metadata.parent_session_id`.

    Raises:
        SessionNotFound, CorruptSession, UnsupportedFormat, StorageError: nothing was written to `repo`. A broken rule
            is named, with the number of the findings.
    """
    source_path = Path(path)
    async with await JsonlSessionRepo(source_path.parent).open(str(source_path), read_only=True) as source:
        findings = await source.verify()
        if findings:
            first = findings[0]
            more = f", and {len(findings) - 1} more" if len(findings) > 1 else ""
            raise CorruptSession(f"{source_path}: item {first.seq}: {first.message} [{first.rule}]{more}")
        return await repo.fork(source, TreeFork())
