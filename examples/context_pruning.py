"""Context pruning: old, long tool results are sent as one line; the session keeps them
whole.

`transform_context` shapes what one request sends and nothing else, so nothing here needs to
survive a crash.
"""

from collections.abc import Sequence
from dataclasses import replace

from agent_harness import AgentHarness, AgentMessage, TextContent, ToolResultMessage
from agent_harness.hooks.catalog import TransformContext, TransformContextResult


class ContextPruning:
    """Results longer than `longest` code points are shortened, except the newest `keep` to
    `keep + step - 1` results.

    Providers cache the beginning of a context that stays the same from request to request.
    The cut therefore moves only once per `step` new results, not with every one.
    """

    def __init__(self, *, keep: int = 4, step: int = 4, longest: int = 400) -> None:
        self._keep = keep
        self._step = step
        self._longest = longest

    async def setup(self, harness: AgentHarness) -> None:
        """Register the hook."""
        harness.hooks.on("transform_context", self._prune, id="examples.context-pruning")

    def _prune(self, event: TransformContext) -> TransformContextResult:
        return TransformContextResult(messages=self.pruned(event.messages))

    def pruned(self, messages: Sequence[AgentMessage]) -> tuple[AgentMessage, ...]:
        """`messages` with old results shortened. None is dropped, so every call keeps its
        result.
        """
        results = sum(isinstance(message, ToolResultMessage) for message in messages)
        remaining = max(0, results - self._keep) // self._step * self._step
        out: list[AgentMessage] = []
        for message in messages:
            if isinstance(message, ToolResultMessage):
                if remaining > 0:
                    message = self._shortened(message)
                remaining -= 1
            out.append(message)
        return tuple(out)

    def _shortened(self, message: ToolResultMessage) -> ToolResultMessage:
        length = sum(
            len(part.text) for part in message.content if isinstance(part, TextContent)
        )
        if length <= self._longest and all(
            isinstance(part, TextContent) for part in message.content
        ):
            return message
        note = (
            f"[An old result of {message.tool_name}, {length} characters, was left out. "
            "Call it again if needed.]"
        )
        return replace(message, content=(TextContent(text=note),))
