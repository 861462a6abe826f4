"""Fenced writer claims: one writer per session, whatever clocks and pauses do (harness-v2 §13, decisions section 5).

Safety is the fence, an integer compared inside every write transaction. Clocks serve liveness only: a claim is taken
over when its owner is provably gone, or when its beat did not move for a full time to live on our own monotonic clock.
"""

import os
import sqlite3
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError

from agent_harness.errors import FencedWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process, described so that another one on the same machine can tell whether it still runs."""

    pid: int
    host: str
    boot_id: str  # empty where the system has none
    pid_namespace: str  # a pid means something only inside one
    start_time: str  # of the process, in clock ticks after boot
    since: int  # Unix ms

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host} since {self.since}"


_OWNER = TypeAdapter(Owner)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A claim that is ours until somebody raises the fence."""

    session_id: str
    owner_id: str
    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Somebody else's claim, as it was read: `beat` moves for as long as its owner lives."""

    owner_id: str
    owner: Owner | None
    fence: int
    beat: int
    ttl_ms: int

    @property
    def name(self) -> str:
        """Who it is, for a message."""
        return "another process" if self.owner is None else str(self.owner)


def this_process(since: int) -> Owner:
    """The owner that we are."""
    return Owner(
        pid=os.getpid(),
        host=os.uname().nodename,
        boot_id=_read("/proc/sys/kernel/random/boot_id"),
        pid_namespace=_pid_namespace(),
        start_time=_process_start(os.getpid()) or "",
        since=since,
    )


def is_gone(owner: Owner) -> bool:
    """Whether the owner provably no longer runs; False whenever there is doubt.

    The database is on a local file system, so an owner of this host and an earlier boot is gone.
    """
    here = this_process(0)
    if owner.host != here.host:
        return False
    if owner.boot_id != here.boot_id:
        return bool(owner.boot_id and here.boot_id)
    if owner.pid_namespace != here.pid_namespace:
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # it exists and is somebody else's
    start = _process_start(owner.pid)
    return start is not None and start != owner.start_time


def claim(
    conn: sqlite3.Connection,
    session_id: str,
    *,
    owner_id: str,
    owner: Owner,
    ttl_ms: int,
    now_ms: int,
    stale: Held | None = None,
) -> Lease | Held:
    """Take the writer claim in the caller's transaction, or say who holds it.

    `stale` is a claim whose beat stood still for its time to live: it may be taken if it still stands as it was read.
    """
    held = read(conn, session_id)
    if held is not None and held != stale and not (held.owner is not None and is_gone(held.owner)):
        return held
    conn.execute(
        """INSERT INTO writer_leases (session_id, owner_id, owner, fence, beat, ttl_ms, expires_at_ms)
        VALUES (?, ?, ?, 1, 1, ?, ?)
        ON CONFLICT (session_id) DO UPDATE SET owner_id = excluded.owner_id, owner = excluded.owner,
            fence = fence + 1, beat = beat + 1, ttl_ms = excluded.ttl_ms, expires_at_ms = excluded.expires_at_ms""",
        (session_id, owner_id, orjson.dumps(asdict(owner)), ttl_ms, now_ms + ttl_ms),
    )
    fence: int = conn.execute("SELECT fence FROM writer_leases WHERE session_id = ?", (session_id,)).fetchone()[0]
    return Lease(session_id=session_id, owner_id=owner_id, fence=fence)


def read(conn: sqlite3.Connection, session_id: str) -> Held | None:
    """Who holds the claim; None when it is free."""
    row = conn.execute(
        "SELECT owner_id, owner, fence, beat, ttl_ms FROM writer_leases WHERE session_id = ?", (session_id,)
    ).fetchone()
    if row is None or row[0] is None:
        return None
    return Held(owner_id=row[0], owner=_owner(row[1]), fence=row[2], beat=row[3], ttl_ms=row[4])


def renew(conn: sqlite3.Connection, lease: Lease, now_ms: int) -> None:
    """Move the beat and compare the fence, in one statement of the write's own transaction.

    Raises:
        FencedWriter: the claim was taken over.
    """
    if not beat(conn, lease, now_ms):
        raise FencedWriter(f"another writer took session {lease.session_id} over; this one writes nothing more")


def beat(conn: sqlite3.Connection, lease: Lease, now_ms: int) -> bool:
    """Move the beat; False when the claim is no longer ours."""
    moved = conn.execute(
        """UPDATE writer_leases SET beat = beat + 1, expires_at_ms = ? + ttl_ms
        WHERE session_id = ? AND owner_id = ? AND fence = ?""",
        (now_ms, lease.session_id, lease.owner_id, lease.fence),
    )
    return moved.rowcount == 1


def release(conn: sqlite3.Connection, lease: Lease) -> None:
    """Give up our own claim, nobody else's. The fence stays, so that it only ever rises."""
    conn.execute(
        "UPDATE writer_leases SET owner_id = NULL, owner = NULL WHERE session_id = ? AND owner_id = ? AND fence = ?",
        (lease.session_id, lease.owner_id, lease.fence),
    )


def clear_all(conn: sqlite3.Connection) -> None:
    """A copy has no writers."""
    conn.execute("UPDATE writer_leases SET owner_id = NULL, owner = NULL")


def _owner(raw: bytes | None) -> Owner | None:
    try:
        return None if raw is None else _OWNER.validate_json(raw)
    except ValidationError:
        return None  # written by a program that describes itself otherwise: nothing can be proved about it


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _process_start(pid: int) -> str | None:
    """Start time of a running process; "dead" for one that ended and was not yet waited for; None if unknown."""
    if not sys.platform.startswith("linux"):
        return None
    raw = _read(f"/proc/{pid}/stat")
    fields = raw.rpartition(")")[2].split()
    if len(fields) < 20:
        return None
    if fields[0] in ("Z", "X") and len(_threads(pid)) <= 1:
        return "dead"
    return fields[19]


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
