"""The one conversion: an old file becomes format 4 before its first write (harness-v2 §13, decisions "v3 files")."""

import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from agent_harness.session.storage import MAIN, RecordItem, SessionMetadata, SessionStats
from agent_harness.types.clock import WallClock
from agent_harness.types.codec import seal_record
from agent_harness.types.ids import IdGenerator
from agent_harness.types.messages import Usage
from agent_harness.types.records import AdjustmentUsage, NewRecord

from ..staging import Mutation, Staged
from ..state import SessionState
from ..write_queue import Draft
from .files import FileOps, read_all, write_new
from .lines import line_of


def backup_path(path: Path) -> Path:
    """Where the original of a damaged old file is kept."""
    return path.with_name(f"{path.name}.v3.bak")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """What is needed to write a session out anew. The file keeps its name, its folder and its mode."""

    metadata: SessionMetadata
    header: bytes  # encoded when the file was opened: a caller may hold the metadata
    state: SessionState
    usage: Usage
    keep_original: bool  # reading it met damage
    clock: WallClock
    id_generator: IdGenerator
    on_converted: Callable[[SessionMetadata], None]

    def adjustment(self, staged: Staged) -> Draft[object]:
        """The ledger entry that keeps the totals: old files have no `usage` records."""
        body = AdjustmentUsage(usage=self.usage, details={"source": "v3-import"})
        new_id = self.id_generator.next()
        while staged.has_id(new_id):  # the old file's ids are another program's
            new_id = self.id_generator.next()
        sealed = seal_record(NewRecord(id=new_id, lane=MAIN, body=body))
        mutation = staged.append_record(sealed.value, sealed.wire, self.clock.now_ms())

        def commit() -> object:
            # Until now the usage was counted from the entries.
            self.state.stats = SessionStats(message_count=self.state.stats.message_count)
            self.state.apply(mutation)
            self.on_converted(replace(self.metadata, source_format=4))
            assert isinstance(mutation.item, RecordItem)
            return mutation.item.record

        return Draft(mutation, commit)

    def run(self, fd: int, path: Path, adjustment: Mutation, ops: FileOps) -> tuple[int, int]:
        """Replace the file at `path`, open as `fd`; returns an appending descriptor of the new one and its size.

        Raises:
            OSError: the old file stands, or the new one does; never a mixture.
        """
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        if self.keep_original:
            self._keep(read_all(fd), path, mode, ops)
        lines = [self.header]
        lines += [line_of(mutation) for mutation in self.state.mutations()]
        lines.append(line_of(adjustment))
        data = b"".join(line + b"\n" for line in lines)
        temp, new_fd = write_new(path.parent, data, ops=ops, sync=True, mode=mode)
        try:
            ops.rename(temp, path)
            ops.sync_folder(path.parent)
        except BaseException:
            os.close(new_fd)
            with suppress(OSError):
                temp.unlink()
            raise
        return new_fd, len(data)

    def _keep(self, original: bytes, path: Path, mode: int, ops: FileOps) -> None:
        temp, fd = write_new(path.parent, original, ops=ops, sync=True, mode=mode)
        os.close(fd)
        target = backup_path(path)
        if os.path.lexists(target):
            target = target.with_name(f"{target.name}.{secrets.token_hex(4)}")
        ops.rename(temp, target)
