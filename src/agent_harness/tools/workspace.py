"""The working folder of the built-in tools: which paths they may touch, and how they open them.

A path is resolved through all its symbolic links first and judged after. It is then opened component by component
below the folder with O_NOFOLLOW, so a link that is swapped in between is refused instead of followed.
"""

import errno
import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .failure import ToolError

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO without it waits for a writer that may never come.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Target:
    """A resolved path. `name` is how results speak of it: relative to the working folder where it lies inside."""

    path: Path  # absolute, free of symbolic links when it was resolved
    name: str
    anchor: Path  # the folder below which no link is followed

    @property
    def leaf(self) -> str:
        """The last component, as it is called in the folder that `parent_fd` opens."""
        return "." if self.path == self.anchor else self.path.name


@dataclass(frozen=True, slots=True)
class Opened:
    """The bytes of a regular file and what identifies that version of it."""

    data: bytes
    status: os.stat_result


class Workspace:
    """A folder and the rule that tools stay inside it."""

    def __init__(self, root: str | os.PathLike[str], *, allow_outside: bool = False) -> None:
        """Use `root`, an existing folder.

        Raises:
            NotADirectoryError: `root` is no folder.
        """
        self.root = Path(os.path.realpath(root))
        if not self.root.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "the working folder is not a folder", str(root))
        self.allow_outside = allow_outside

    def resolve(self, path: str) -> Target:
        """Where `path` (relative to the working folder, or absolute) really leads.

        Raises:
            ToolError: it leads out of the working folder, or is no path at all.
        """
        if not path or "\0" in path:
            raise ToolError("the path is empty or holds a NUL character")
        try:
            real = Path(os.path.realpath(self.root / path))
        except (OSError, ValueError) as error:
            raise ToolError(f"{path}: {_reason(error)}") from None
        if real.is_relative_to(self.root):
            return Target(real, real.relative_to(self.root).as_posix(), self.root)
        if self.allow_outside:
            return Target(real, str(real), Path(real.anchor))
        raise ToolError(f"{path}: outside the working folder; use a path inside {self.root}")

    @contextmanager
    def parent_fd(self, target: Target, *, create: bool = False) -> Generator[int]:
        """A descriptor of the folder that holds `target`; `create` makes the missing folders on the way.

        Raises:
            ToolError: a folder is missing, is none, or became a symbolic link meanwhile.
        """
        fd = self._walk(target, target.path.parent, create=create)
        try:
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def folder_fd(self, target: Target) -> Generator[int]:
        """A descriptor of the folder `target`.

        Raises:
            ToolError: it is missing or no folder.
        """
        fd = self._walk(target, target.path, create=False)
        try:
            yield fd
        finally:
            os.close(fd)

    def _walk(self, target: Target, folder: Path, *, create: bool) -> int:
        fd = os.open(target.anchor, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if target.anchor in (folder, target.path):
                return fd
            for part in folder.relative_to(target.anchor).parts:
                if create:
                    try:
                        os.mkdir(part, dir_fd=fd)
                    except FileExistsError:
                        pass
                below = os.open(part, _DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = below
            return fd
        except OSError as error:
            os.close(fd)
            raise ToolError(f"{target.name}: {_reason(error)}") from None

    @contextmanager
    def open_file(self, target: Target) -> Generator[int]:
        """A reading descriptor of a regular file.

        Raises:
            ToolError: it is missing, a folder, a device, a FIFO, or became a symbolic link meanwhile.
        """
        with self.parent_fd(target) as folder:
            try:
                fd = os.open(target.leaf, _FILE, dir_fd=folder)
            except OSError as error:
                raise ToolError(f"{target.name}: {_reason(error)}") from None
        try:
            mode = os.fstat(fd).st_mode
            if stat.S_ISDIR(mode):
                raise ToolError(f"{target.name}: is a folder; use `list`")
            if not stat.S_ISREG(mode):
                raise ToolError(f"{target.name}: is not a regular file")
            yield fd
        finally:
            os.close(fd)

    def load(self, target: Target, *, max_bytes: int) -> Opened:
        """A whole file.

        Raises:
            ToolError: as `open_file`, or it is larger than `max_bytes`.
        """
        with self.open_file(target) as fd:
            status = os.fstat(fd)
            data = b""
            if status.st_size <= max_bytes:
                with open(fd, "rb", closefd=False) as file:
                    data = file.read(max_bytes + 1)
            if status.st_size > max_bytes or len(data) > max_bytes:
                raise ToolError(f"{target.name}: larger than the {max_bytes} bytes this tool takes")
            return Opened(data, status)

    def replace(self, target: Target, data: bytes, *, expected: os.stat_result | None) -> None:
        """Put `data` in the place of `target` in one step: a reader sees the old file or the new one, never a part.

        The mode of an existing file is kept. `expected` is the version the new content was made from (None: there
        was no file); when another one stands there by now, nothing is written.

        Raises:
            ToolError: the place is no regular file, changed meanwhile, or cannot be written.
        """
        name = target.leaf
        if expected is not None and stat.S_IMODE(expected.st_mode) & 0o222 == 0:
            raise ToolError(f"{target.name}: is read-only")
        with self.parent_fd(target, create=expected is None) as folder:
            temporary = f".{name[:100]}.{secrets.token_hex(8)}.tmp"
            try:
                self._check_unchanged(target, folder, expected)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                mode = 0o666 if expected is None else stat.S_IMODE(expected.st_mode) & 0o777
                fd = os.open(temporary, flags, mode, dir_fd=folder)
                try:
                    with open(fd, "wb", closefd=False) as file:
                        file.write(data)
                    if expected is not None:
                        os.fchmod(fd, stat.S_IMODE(expected.st_mode))  # the umask may have taken bits away
                    self._check_unchanged(target, folder, expected)
                    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                except BaseException:
                    os.unlink(temporary, dir_fd=folder)
                    raise
                finally:
                    os.close(fd)
            except OSError as error:
                raise ToolError(f"{target.name}: {_reason(error)}") from None

    def _check_unchanged(self, target: Target, folder: int, expected: os.stat_result | None) -> None:
        status = self.status(target, folder)
        if (None if status is None else _version(status)) != (None if expected is None else _version(expected)):
            raise ToolError(f"{target.name}: changed while it was being written; read it again")

    def status(self, target: Target, folder: int) -> os.stat_result | None:
        """What stands at `target`, None when nothing does.

        Raises:
            ToolError: it is a folder or no regular file.
        """
        try:
            status = os.stat(target.leaf, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if stat.S_ISDIR(status.st_mode):
            raise ToolError(f"{target.name}: is a folder")
        if not stat.S_ISREG(status.st_mode):
            raise ToolError(f"{target.name}: is not a regular file")
        return status


def _version(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _reason(error: Exception) -> str:
    match error:
        case FileNotFoundError():
            return "no such file or folder"
        case NotADirectoryError():
            return "a part of the path is not a folder, or is a symbolic link"
        case OSError(errno=errno.ELOOP):
            return "a symbolic link stands there"
        case OSError():
            return (error.strerror or type(error).__name__).lower()
        case _:
            return str(error)
