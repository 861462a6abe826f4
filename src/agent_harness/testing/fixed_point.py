"""The fixed-point law, for tests: live state equals the reduction of what is stored, after every action."""

from ..lanes import execution
from ..lanes.surface import AgentLane


async def check_fixed_point(lane: AgentLane) -> None:
    """Reduce the lane's stored facts anew and compare.

    The check at the end of a run can miss a lost steer, since `operation_finished` clears it: check after each action.

    Raises:
        HarnessFault: writer and reducer drifted apart.
    """
    await execution.check_fixed_point(lane._lane)  # pyright: ignore[reportPrivateUsage]
