"""LaneContext: the messages that the lane's next request is made of, kept up from commit to commit (harness-v2 §15)."""

from collections.abc import Callable

from ..session.context import project_entries, project_entry
from ..types.entries import Entry
from ..types.messages import AgentMessage
from ..types.state import LaneReductionResult
from .environment import Environment


class LaneContext:
    """The projected path of the leaf: history is read once, not per request."""

    def __init__(self, env: Environment, state: Callable[[], LaneReductionResult]) -> None:
        self._env = env
        self._state = state
        self._projection: list[AgentMessage] | None = None  # None: not read yet
        self._inherited = 0  # how many of its messages come from the newest compaction

    def entry_committed(self, entry: Entry) -> None:
        """The path grew by `entry`."""
        if self._projection is None:
            return
        projected = project_entry(entry, self._env.entry_projectors)
        if entry.type == "compaction":
            self._projection = []
            self._inherited = len(projected)
        self._projection += projected

    def moved(self) -> None:
        """The leaf is on another path now."""
        self._projection = None

    async def messages(self) -> list[AgentMessage]:
        """The messages, oldest first."""
        if self._projection is None:
            leaf_id = self._state().lane_state.leaf_id
            entries: list[Entry] = []
            if leaf_id is not None:
                entries = await self._env.session.find_entries_on_branch(start=leaf_id, stop_at_type="compaction")
            self._projection = project_entries(reversed(entries), self._env.entry_projectors)
            checkpoint = entries[-1:] if entries and entries[-1].type == "compaction" else []
            self._inherited = len(project_entries(checkpoint, self._env.entry_projectors))
        return list(self._projection)

    async def inherited(self) -> int:
        """How many leading messages come from the newest compaction."""
        await self.messages()
        return self._inherited
