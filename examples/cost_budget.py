"""Cost budget: when the session's ledger has reached a limit, the run is aborted before it
spends more.

The ledger is durable, so the limit holds across crashes and restarts. What a request cost
is known once it has been answered: the last request may go past the limit, and a request
that a crash cut off is not in the ledger.
"""

from agent_harness import AgentHarness
from agent_harness.hooks.catalog import BeforeRequest, BeforeTool, ToolDecision


class CostBudget:
    """`limit` is the cost at which work stops, in the currency of the models' prices, for
    the session with all lanes.

    Both places where money is spent ask: before a request, and before a tool. A run that
    starts on a spent budget is aborted before its first request. The aborted run ends like
    any other: its outcome is `aborted`.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._harness: AgentHarness | None = None

    async def setup(self, harness: AgentHarness) -> None:
        """Register the hooks."""
        self._harness = harness
        harness.hooks.on("before_request", self._before_request, id="examples.cost-budget")
        harness.hooks.on("before_tool", self._before_tool, id="examples.cost-budget")

    async def teardown(self) -> None:
        """Let go of the harness."""
        self._harness = None

    async def spent(self) -> float:
        """The ledger's sum so far."""
        assert self._harness is not None
        return (await self._harness.session.get_stats()).usage.cost.total

    async def _before_request(self, event: BeforeRequest) -> None:
        await self._stop_if_spent(event.lane)

    async def _before_tool(self, event: BeforeTool) -> ToolDecision | None:
        stopped = await self._stop_if_spent(event.lane)
        return (
            ToolDecision(block="The budget of this session is spent.") if stopped else None
        )

    async def _stop_if_spent(self, lane_name: str) -> bool:
        if await self.spent() < self._limit:
            return False
        assert self._harness is not None
        lane = await self._harness.lane(lane_name)
        assert lane is not None
        await (
            lane.abort()
        )  # durable when it returns; the parked request or tool sees it and does not start
        return True
