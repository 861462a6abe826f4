"""Records what SQLite does to its files, as a program: `python recording_vfs.py FOLDER LEVEL OUT`.

The library that the standard `sqlite3` module uses gets a default VFS that is its own, with `xWrite`, `xTruncate`,
`xSync`, `xDelete` and `xOpen` noted on their way. Everything else, shared memory and locks included, stays native, so
that the code under test runs as it is. A process of its own, since a default VFS is the whole process's.

With the environment variable FAIL_AT=n, the n-th of these operations fails with an input/output error instead of being
done (a write is done by half first), and all later ones too when FAIL_FOR_EVER is set.
"""

import _sqlite3
import asyncio
import ctypes
import os
import pickle
import sys
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int64, c_void_p
from pathlib import Path

from tests.support.lossy_disk import Acknowledged, Event, Link, Sync, SyncFolder, Truncate, Unlink, Write

SQLITE_IOERR_READ_LIKE = {"write": 778, "truncate": 1546, "sync": 1034, "delete": 2570}
"""SQLITE_IOERR_WRITE, _TRUNCATE, _FSYNC, _DELETE."""
CREATE, MAIN_DB = 0x4, 0x100
DIRSYNC_KINDS = 0x800 | 0x4000 | 0x80000  # main journal, super-journal, WAL: the first sync includes the folder

OPEN = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, POINTER(c_int))  # the name's address: SQLite keeps it
DELETE = CFUNCTYPE(c_int, c_void_p, c_char_p, c_int)
WRITE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
TRUNCATE = CFUNCTYPE(c_int, c_void_p, c_int64)
SYNC = CFUNCTYPE(c_int, c_void_p, c_int)


class Vfs(ctypes.Structure):
    _fields_ = (
        ("version", c_int),
        ("os_file_size", c_int),
        ("longest_path", c_int),
        ("next", c_void_p),
        ("name", c_char_p),
        ("app_data", c_void_p),
        ("open", c_void_p),
        ("delete", c_void_p),
        ("rest", c_void_p * 12),
    )


class Methods(ctypes.Structure):
    _fields_ = (
        ("version", c_int),
        ("close", c_void_p),
        ("read", c_void_p),
        ("write", c_void_p),
        ("truncate", c_void_p),
        ("sync", c_void_p),
        ("rest", c_void_p * 13),
    )


class Recorder:
    """One per process: what it registers with SQLite must never be freed."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.operations = 0
        self.fail_at = int(os.environ.get("FAIL_AT", "0"))
        self.fail_for_ever = bool(os.environ.get("FAIL_FOR_EVER"))
        self._alive: list[object] = []
        self._inodes: dict[int, int] = {}  # sqlite3_file -> number of the file
        self._unsynced_names: set[int] = set()
        self._numbers: dict[str, int] = {}  # name -> number; a name that comes back is another file
        self._last = 0
        self._patched: dict[int, tuple[Methods, Methods]] = {}

    def install(self) -> None:
        library = ctypes.CDLL(_sqlite3.__file__)
        library.sqlite3_vfs_find.restype = POINTER(Vfs)
        library.sqlite3_vfs_find.argtypes = [c_char_p]
        library.sqlite3_vfs_register.argtypes = [POINTER(Vfs), c_int]
        original = library.sqlite3_vfs_find(None).contents
        native_open, native_delete = OPEN(original.open), DELETE(original.delete)

        def xopen(vfs: int, name: int | None, file: int, flags: int, out: "ctypes._Pointer[c_int]") -> int:
            result = native_open(vfs, name, file, flags, out)
            if result == 0 and name is not None:
                self._opened(ctypes.string_at(name).decode(), file, flags)
            return result

        def xdelete(vfs: int, name: bytes, sync_folder: int) -> int:
            if self._fails():
                return SQLITE_IOERR_READ_LIKE["delete"]
            result = native_delete(vfs, name, sync_folder)
            if result == 0:
                self._numbers.pop(name.decode(), None)
                self.events.append(Unlink(os.path.basename(name.decode())))
                if sync_folder:
                    self.events.append(SyncFolder())
            return result

        copy = Vfs.from_buffer_copy(original)
        copy.name = b"recording"
        self._alive += [copy, (opened := OPEN(xopen)), (deleted := DELETE(xdelete)), native_open, native_delete]
        copy.open = ctypes.cast(opened, c_void_p)
        copy.delete = ctypes.cast(deleted, c_void_p)
        assert library.sqlite3_vfs_register(ctypes.byref(copy), 1) == 0

    def created(self, path: Path) -> None:
        """The database file was made, and its name synced."""
        self._number(str(path))
        self.events.append(SyncFolder())

    def _fails(self) -> bool:
        self.operations += 1
        if not self.fail_at:
            return False
        return self.operations >= self.fail_at if self.fail_for_ever else self.operations == self.fail_at

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            self._last += 1
            self._numbers[name] = self._last
            self.events.append(Link(os.path.basename(name), self._last))
        return self._numbers[name]

    def _opened(self, name: str, file: int, flags: int) -> None:
        fresh = name not in self._numbers
        number = self._number(name)
        self._inodes[file] = number
        if fresh and flags & CREATE and flags & DIRSYNC_KINDS:
            self._unsynced_names.add(number)
        address = ctypes.cast(file, POINTER(c_void_p))
        native = address[0]
        assert native is not None
        if native not in self._patched:
            self._patched[native] = (Methods.from_address(native), self._patch(Methods.from_address(native)))
        address[0] = ctypes.addressof(self._patched[native][1])

    def _patch(self, native: Methods) -> Methods:
        write, truncate, sync = WRITE(native.write), TRUNCATE(native.truncate), SYNC(native.sync)

        def xwrite(file: int, data: int, size: int, offset: int) -> int:
            if self._fails():
                half = size // 2
                if half and write(file, data, half, offset) == 0:
                    self.events.append(Write(self._inodes[file], offset, ctypes.string_at(data, half)))
                return SQLITE_IOERR_READ_LIKE["write"]
            result = write(file, data, size, offset)
            if result == 0:
                self.events.append(Write(self._inodes[file], offset, ctypes.string_at(data, size)))
            return result

        def xtruncate(file: int, size: int) -> int:
            if self._fails():
                return SQLITE_IOERR_READ_LIKE["truncate"]
            result = truncate(file, size)
            if result == 0:
                self.events.append(Truncate(self._inodes[file], size))
            return result

        def xsync(file: int, flags: int) -> int:
            if self._fails():
                return SQLITE_IOERR_READ_LIKE["sync"]
            result = sync(file, flags)
            if result == 0:
                number = self._inodes[file]
                self.events.append(Sync(number))
                if number in self._unsynced_names:
                    self._unsynced_names.discard(number)
                    self.events.append(SyncFolder())
            return result

        patched = Methods.from_buffer_copy(native)
        callbacks = (WRITE(xwrite), TRUNCATE(xtruncate), SYNC(xsync))
        self._alive += [patched, callbacks, (write, truncate, sync)]
        patched.write, patched.truncate, patched.sync = (ctypes.cast(one, c_void_p) for one in callbacks)
        return patched


RECORDER = Recorder()


async def work(folder: Path, level: str, rounds: int) -> None:
    """Write sessions of one item after the other and of bursts; each round ends with a close, which checkpoints."""
    from agent_harness.errors import SessionError
    from session_backends import SqliteSessionRepo
    from session_backends.conformance.samples import custom, message
    from session_backends.sqlite import files

    native = files._sync_folder

    def sync_folder(synced: Path) -> None:
        native(synced)
        if synced == folder:
            RECORDER.created(folder / "s.db")

    files._sync_folder = sync_folder
    repo = SqliteSessionRepo(folder / "s.db", durability=level)
    acknowledged = -1
    try:
        for number in range(rounds):
            session = await (repo.create(id="s1") if number == 0 else repo.open("s1"))
            if number == 0:
                acknowledged = 0
                RECORDER.events.append(Acknowledged(0))

            def told(_: object, session: object = session) -> None:
                nonlocal acknowledged
                acknowledged += 1
                RECORDER.events.append(Acknowledged(acknowledged))

            for index in range(3):
                size = 40 + 700 * ((number * 5 + index * 3) % 7)
                await session.append_entry(custom(f"e{number}-{index}", data="x" * size), "main", on_commit=told)
            await asyncio.gather(
                *(session.append_entry(message(f"b{number}-{index}"), "main", on_commit=told) for index in range(4))
            )
            await session.close()
            await repo.close()
    except SessionError as error:
        print(f"{type(error).__name__}: {error}")
        await repo.close()
    else:
        print("done")
    RECORDER.events.append(Acknowledged(acknowledged))


def main() -> None:
    RECORDER.install()
    folder, level, out, rounds = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    asyncio.run(work(folder, level, rounds))
    out.write_bytes(pickle.dumps((RECORDER.operations, RECORDER.events)))


if __name__ == "__main__":
    main()
