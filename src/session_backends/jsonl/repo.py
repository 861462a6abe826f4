"""JsonlSessionRepo: one file per session, in the folders of the old application (harness-v2 §13 "JSONL")."""

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self, TypeAlias

from agent_harness.errors import (
    CorruptSession,
    InvalidPayload,
    InvalidSessionId,
    SessionExists,
    SessionNotFound,
    StorageError,
    UnsupportedFormat,
)
from agent_harness.session.repo import BranchFork, ForkOptions
from agent_harness.session.session import Session
from agent_harness.session.storage import Durability, SessionMetadata
from agent_harness.types.clock import SystemWallClock, WallClock
from agent_harness.types.ids import IdGenerator, Uuid7Ids, is_session_id
from agent_harness.types.json import JsonValue

from ..creation import absolute, check_session_id, names_folder, new_metadata
from ..forking import fork_of
from ..staging import Mutation, check
from ..state import SessionState
from ..state_storage import StateStorage
from ..waiting import until_free
from .conversion import Conversion, backup_path
from .files import FileOps, check_root, make_folders, open_regular, read_all, read_chunks, read_head, write_new
from .layout import SUFFIX, file_name, folder_name, session_files, session_folders
from .lines import MAX_HEADER, LineError, encode_header, line_of
from .locks import FileLock, acquire
from .reading import Loaded, is_old, load, load_lines, read_header
from .storage import FileJournal

_CREATE_WAIT_S = 5.0

_Listing: TypeAlias = list[SessionMetadata]


class JsonlSessionRepo:
    """A `SessionRepo` over a folder. Sessions are opened by id, or by the path of any session file (`*.jsonl`)."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        clock: WallClock | None = None,
        id_generator: IdGenerator | None = None,
        durability: Durability = "process",
        file_ops: FileOps | None = None,
    ) -> None:
        self._root = Path(os.path.abspath(os.path.expanduser(root)))
        self._clock = clock or SystemWallClock()
        self._id_generator = id_generator or Uuid7Ids()
        self._durability: Durability = durability
        self._ops = file_ops or FileOps()

    async def create(
        self,
        *,
        id: str | None = None,
        cwd: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
        parent_session_id: str | None = None,
    ) -> Session:
        """See `SessionRepo`."""
        return await self._create((), id=id, cwd=cwd, metadata=metadata, parent_session_id=parent_session_id)

    async def open(
        self, id_or_path: str, *, read_only: bool = False, wait: float = 0.0, strict: bool = False
    ) -> Session:
        """See `SessionRepo`. The whole file is read; an old one is converted by the first write."""
        path = self._locate(id_or_path)
        if read_only:
            loaded, modified_at = await asyncio.to_thread(_load_at, path, strict=strict)
            storage = StateStorage(
                metadata=self._described(loaded, path, modified_at),
                state=loaded.state,
                clock=self._clock,
                journal=None,
                diagnostics=loaded.diagnostics,
            )
            return self._session(storage)
        fd, lock = await until_free(lambda: self._claim(path), wait)
        try:
            loaded = await asyncio.to_thread(_load, fd, path, strict=strict)
            if loaded.end != os.fstat(fd).st_size:
                self._ops.truncate(fd, loaded.end)
                if self._durability == "power":
                    self._ops.sync(fd)
            if self._durability == "power":
                self._ops.sync_folder(path.parent)  # it may have been created at the other level
        except BaseException as error:
            os.close(fd)
            lock.release()
            raise _storage_error(path, error) if isinstance(error, OSError) else error from None
        return self._session(self._writing(path, fd, lock, loaded))

    async def list(self, *, cwd: str | None = None) -> list[SessionMetadata]:
        """See `SessionRepo`. Reads headers only; newest by modification time of the file."""
        if not names_folder(cwd):
            return []
        return await asyncio.to_thread(self._list, absolute(cwd))

    async def delete(self, session_id: str) -> None:
        """See `SessionRepo`. The kept original of a converted file goes too."""
        path = self._find(check_session_id(session_id))
        try:
            lock = acquire(path, session_id, self._clock)
        except OSError as error:
            raise _storage_error(path, error) from None
        try:
            path.unlink()
            with suppress(FileNotFoundError):
                backup_path(path).unlink()
            if self._durability == "power":
                self._ops.sync_folder(path.parent)
        except FileNotFoundError:
            raise SessionNotFound(f"no session {session_id} in {self._root}") from None
        except OSError as error:
            raise _storage_error(path, error) from None
        finally:
            lock.release(remove=True)

    async def fork(
        self,
        source: Session | str,
        options: ForkOptions | None = None,
        *,
        id: str | None = None,
        parent_session_id: str | None = None,
    ) -> Session:
        """See `SessionRepo`. The new file appears whole or not at all."""
        if isinstance(source, str):
            source = await self.open(source, read_only=True)
        items = await fork_of(source, options or BranchFork())
        return await self._create(
            items, id=id, cwd=source.metadata.cwd, parent_session_id=parent_session_id or source.id
        )

    async def snapshot(self, directory: Path) -> Self:
        """See `SessionRepo`. Copies the files as they are, without a pause between them."""
        make_folders(directory)
        for path in self._files():
            target = directory / path.parent.name
            make_folders(target)
            temp, fd = write_new(target, _read(path), ops=FileOps(), sync=False)
            os.close(fd)
            temp.rename(target / path.name)
        return type(self)(directory, self._clock, self._id_generator, self._durability)

    async def close(self) -> None:
        """See `SessionRepo`: nothing is held between calls."""

    # Creating ---------------------------------------------------------------

    async def _create(
        self,
        content: Sequence[Mutation],
        *,
        id: str | None,
        cwd: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
        parent_session_id: str | None = None,
    ) -> Session:
        header = new_metadata(
            clock=self._clock,
            id_generator=self._id_generator,
            id=id,
            cwd=cwd,
            metadata=metadata,
            parent_session_id=parent_session_id,
        )
        first = encode_header(header)
        if len(first) >= MAX_HEADER:
            raise InvalidPayload(f"the header takes {len(first)} bytes, more than listings read ({MAX_HEADER})")
        state = SessionState()
        for mutation in content:
            check(state, mutation)
            state.apply(mutation)
        data = b"".join(line + b"\n" for line in (first, *map(line_of, content)))
        try:
            folder = self._prepare_folder(header.cwd)
            # One creation at a time: two processes must not make two files of one id.
            creating = await until_free(lambda: acquire(self._root / "create", header.id, self._clock), _CREATE_WAIT_S)
            try:
                path, fd, lock = self._place(folder, header, data)
            finally:
                creating.release()
        except OSError as error:
            raise _storage_error(self._root, error) from None
        loaded = Loaded(metadata=header, state=state, end=len(data))
        return self._session(self._writing(path, fd, lock, loaded))

    def _prepare_folder(self, cwd: str | None) -> Path:
        made = make_folders(self._root)
        check_root(self._root)
        folder = self._root / folder_name(cwd)
        made += make_folders(folder)
        if self._durability == "power":
            # The root in any case: whoever made a folder that was there already may not have synced it.
            for parent in {self._root, *(path.parent for path in made)}:
                self._ops.sync_folder(parent)
        return folder

    def _place(self, folder: Path, header: SessionMetadata, data: bytes) -> tuple[Path, int, FileLock]:
        if next(self._named(header.id), None) is not None:
            raise SessionExists(f"a session {header.id} exists already in {self._root}")
        path = folder / file_name(header.created_at, header.id)
        power = self._durability == "power"
        lock = acquire(path, header.id, self._clock)
        try:
            temp, fd = write_new(folder, data, ops=self._ops, sync=power)
            try:
                self._ops.rename(temp, path)
                if power:
                    self._ops.sync_folder(folder)
            except BaseException:
                os.close(fd)
                with suppress(OSError):
                    temp.unlink()
                raise
        except BaseException:
            lock.release(remove=True)
            raise
        return path, fd, lock

    # Finding ----------------------------------------------------------------

    def _locate(self, id_or_path: str) -> Path:
        if is_session_id(id_or_path):
            return self._find(id_or_path)
        if not id_or_path.endswith(SUFFIX) or "\0" in id_or_path:
            raise InvalidSessionId(id_or_path)
        given = Path(os.path.abspath(os.path.expanduser(id_or_path)))
        path = Path(os.path.realpath(given))
        if path != given and given.is_symlink() and given.parent.stat().st_uid not in (os.geteuid(), 0):
            raise CorruptSession(f"{given}: a symbolic link in a folder of another user is not followed")
        if not os.path.lexists(path):
            raise SessionNotFound(f"no session file {id_or_path}")
        return path

    def _find(self, session_id: str) -> Path:
        unreadable: Path | None = None
        for path in self._named(session_id):
            header = self._peek(path)
            if header is not None and header.id == session_id:
                return path
            if header is None:
                unreadable = path
        if unreadable is not None:
            return unreadable  # opening it says what is wrong
        for path in self._files():
            header = self._peek(path)
            if header is not None and header.id == session_id:
                return path
        try:
            os.scandir(self._root).close()
        except FileNotFoundError:
            pass
        except OSError as error:  # listings pass over what cannot be read; here it would be a wrong answer
            raise _storage_error(self._root, error) from None
        raise SessionNotFound(f"no session {session_id} in {self._root}")

    def _named(self, session_id: str) -> Iterator[Path]:
        return (path for path in self._files() if path.name.endswith(f"_{session_id}{SUFFIX}"))

    def _files(self) -> Iterator[Path]:
        for folder in session_folders(self._root):
            yield from session_files(folder)

    def _list(self, cwd: str | None) -> _Listing:
        paths = self._files() if cwd is None else session_files(self._root / folder_name(cwd))
        found = [header for path in paths if (header := self._peek(path)) is not None and cwd in (None, header.cwd)]
        return sorted(found, key=lambda header: (header.modified_at or 0, header.created_at, header.id), reverse=True)

    def _peek(self, path: Path) -> SessionMetadata | None:
        try:
            head, info = read_head(path, MAX_HEADER)
            return self._described(read_header(head), path, info.st_mtime_ns // 1_000_000)
        except (OSError, CorruptSession, UnsupportedFormat, LineError):
            return None

    def _described(self, loaded: Loaded, path: Path, modified_at: int) -> SessionMetadata:
        metadata = replace(loaded.metadata, path=str(path), modified_at=modified_at)
        if loaded.old_parent is None:
            return metadata
        parent_id = self._parent_id(loaded.old_parent)
        if parent_id is not None:
            return replace(metadata, parent_session_id=parent_id)
        return replace(metadata, legacy_parent_session_path=loaded.old_parent)

    def _parent_id(self, parent: str) -> str | None:
        """The id in the header of a file that another file names: read only inside the root (T8)."""
        if "\0" in parent or not Path(os.path.normpath(parent)).is_relative_to(self._root):
            return None
        path = Path(os.path.realpath(parent))
        if not path.is_relative_to(os.path.realpath(self._root)):
            return None
        try:
            return read_header(read_head(path, MAX_HEADER)[0]).metadata.id
        except (OSError, CorruptSession, UnsupportedFormat, LineError):
            return None

    # Opening ----------------------------------------------------------------

    def _claim(self, path: Path) -> tuple[int, FileLock]:
        # Before a lock file is put beside it: a file that is no session stays alone.
        try:
            head, _ = read_head(path, MAX_HEADER)
        except OSError as error:
            raise _storage_error(path, error) from None
        try:
            header = read_header(head).metadata
        except LineError as error:
            raise CorruptSession(f"{path}: line 1 (byte 0): {error}", line=1, offset=0) from None
        except (CorruptSession, UnsupportedFormat) as error:
            error.args = (f"{path}: {error}", *error.args[1:])
            raise
        while True:
            try:
                fd = open_regular(path, append=True)
            except OSError as error:
                raise _storage_error(path, error) from None
            try:
                lock = acquire(path, header.id, self._clock)
            except BaseException as error:
                os.close(fd)
                raise _storage_error(path, error) if isinstance(error, OSError) else error from None
            if _same_file(path, fd):
                return fd, lock
            # Converted or deleted between our open and our lock.
            os.close(fd)
            lock.release(remove=not os.path.lexists(path))

    def _writing(self, path: Path, fd: int, lock: FileLock, loaded: Loaded) -> StateStorage:
        metadata = self._described(loaded, path, os.fstat(fd).st_mtime_ns // 1_000_000)
        conversion: Conversion | None = None

        def on_converted(converted: SessionMetadata) -> None:
            storage.replace_metadata(converted)

        if loaded.old_usage is not None:
            conversion = Conversion(
                metadata=metadata,
                header=encode_header(metadata),
                state=loaded.state,
                usage=loaded.old_usage,
                keep_original=bool(loaded.diagnostics),
                clock=self._clock,
                id_generator=self._id_generator,
                on_converted=on_converted,
            )
        journal = FileJournal(
            path=path,
            fd=fd,
            lock=lock,
            end=loaded.end,
            newline_missing=loaded.newline_missing,
            durability=self._durability,
            ops=self._ops,
            conversion=conversion,
        )
        storage = StateStorage(
            metadata=metadata,
            state=loaded.state,
            clock=self._clock,
            journal=journal,
            diagnostics=loaded.diagnostics,
        )
        return storage

    def _session(self, storage: StateStorage) -> Session:
        return Session(storage, id_generator=self._id_generator)


def _load(fd: int, path: Path, *, strict: bool) -> Loaded:
    # An old file is made sense of as a whole; one of our own is never held beside its state.
    if is_old(os.pread(fd, MAX_HEADER, 0)):
        return load(read_all(fd), path, strict=strict)
    return load_lines(read_chunks(fd), path)


def _load_at(path: Path, *, strict: bool) -> tuple[Loaded, int]:
    try:
        fd = open_regular(path)
        try:
            return _load(fd, path, strict=strict), os.fstat(fd).st_mtime_ns // 1_000_000
        finally:
            os.close(fd)
    except OSError as error:
        raise _storage_error(path, error) from None


def _read(path: Path) -> bytes:
    try:
        fd = open_regular(path)
        try:
            return read_all(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise _storage_error(path, error) from None


def _same_file(path: Path, fd: int) -> bool:
    try:
        found = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    held = os.fstat(fd)
    return (found.st_ino, found.st_dev) == (held.st_ino, held.st_dev)


def _storage_error(path: Path, error: OSError) -> SessionNotFound | StorageError:
    if isinstance(error, FileNotFoundError):
        return SessionNotFound(f"no session file {path}")
    return StorageError(f"{path}: {error.strerror}")


def from_url(
    rest: str,
    *,
    clock: WallClock | None = None,
    id_generator: IdGenerator | None = None,
    durability: Durability = "process",
) -> JsonlSessionRepo:
    """The repository of `jsonl:PATH`.

    Raises:
        ValueError: no path.
    """
    if not rest:
        raise ValueError("jsonl: needs the path of a folder, as in jsonl:~/sessions")
    return JsonlSessionRepo(rest, clock, id_generator, durability)
