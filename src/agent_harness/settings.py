"""Harness-global settings: registries and runtime capabilities, read anew for every request (harness-v2 §8).

Values are copied in and out, so that nobody changes them behind the harness.
"""

from collections.abc import Awaitable, Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Literal, TypeAlias

from .events.catalog import ConfigUpdate
from .lanes.environment import Environment
from .options import CompactionSettings, QueueMode, RetryPolicy
from .providers.base import StreamOptions
from .types.structural import Resources
from .types.tools import AgentTool

Setting: TypeAlias = Literal[
    "tools", "resources", "streamOptions", "retryPolicy", "compactionSettings", "steeringMode", "followUpMode"
]


def tool_registry(tools: Sequence[AgentTool]) -> dict[str, AgentTool]:
    """Tools by name.

    Raises:
        ValueError: two tools of one name.
    """
    registry: dict[str, AgentTool] = {}
    for tool in tools:
        if tool.name in registry:
            raise ValueError(f"two tools are named {tool.name!r}")
        registry[tool.name] = tool
    return registry


def copy_resources(resources: Resources) -> Resources:
    """Resources that share no dictionary with the given ones."""
    return Resources(skills=dict(resources.skills), prompt_templates=dict(resources.prompt_templates))


def copy_options(options: StreamOptions) -> StreamOptions:
    """Options that share nothing that can change with the given ones."""
    return replace(
        options,
        headers=None if options.headers is None else dict(options.headers),
        metadata=None if options.metadata is None else deepcopy(dict(options.metadata)),
        response_schema=None if options.response_schema is None else deepcopy(dict(options.response_schema)),
    )


class Settings:
    """The getter and setter pairs of `AgentHarness`."""

    def __init__(self, env: Environment, defaults_changed: Callable[[], Awaitable[None]]) -> None:
        self._env = env
        self._defaults_changed = defaults_changed

    def tools(self) -> list[AgentTool]:
        """The registered tools."""
        self._env.require_alive()
        return list(self._env.tools.values())

    async def set_tools(self, tools: Sequence[AgentTool]) -> None:
        """Replace the registry; lanes whose path names no active tools offer the new ones."""
        registry = tool_registry(tools)
        self._env.require_alive()
        self._env.tools = registry
        self._changed("tools")
        await self._defaults_changed()

    def resources(self) -> Resources:
        """Skills and prompt templates."""
        self._env.require_alive()
        return copy_resources(self._env.resources)

    def set_resources(self, resources: Resources) -> None:
        """Replace skills and prompt templates."""
        self._env.require_alive()
        self._env.resources = copy_resources(resources)
        self._changed("resources")

    def stream_options(self) -> StreamOptions:
        """The options every request starts from."""
        self._env.require_alive()
        return copy_options(self._env.stream_options)

    def set_stream_options(self, options: StreamOptions) -> None:
        """Replace the options every request starts from."""
        self._env.require_alive()
        self._env.stream_options = copy_options(options)
        self._changed("streamOptions")

    def retry_policy(self) -> RetryPolicy:
        """The retry policy."""
        self._env.require_alive()
        return self._env.retry

    def set_retry_policy(self, policy: RetryPolicy) -> None:
        """Replace the retry policy; a step in progress follows it at its next attempt."""
        self._env.require_alive()
        self._env.retry = policy
        self._changed("retryPolicy")

    def compaction_settings(self) -> CompactionSettings:
        """The compaction settings."""
        self._env.require_alive()
        return self._env.compaction

    def set_compaction_settings(self, settings: CompactionSettings) -> None:
        """Replace the compaction settings."""
        self._env.require_alive()
        self._env.compaction = settings
        self._changed("compactionSettings")

    def steering_mode(self) -> QueueMode:
        """How much of the steering queue one checkpoint takes."""
        self._env.require_alive()
        return self._env.steering_mode

    def set_steering_mode(self, mode: QueueMode) -> None:
        """Change how much of the steering queue one checkpoint takes."""
        check_choice("steering mode", mode, QUEUE_MODES)
        self._env.require_alive()
        self._env.steering_mode = mode
        self._changed("steeringMode")

    def follow_up_mode(self) -> QueueMode:
        """How much of the follow-up queue one checkpoint takes."""
        self._env.require_alive()
        return self._env.follow_up_mode

    def set_follow_up_mode(self, mode: QueueMode) -> None:
        """Change how much of the follow-up queue one checkpoint takes."""
        check_choice("follow-up mode", mode, QUEUE_MODES)
        self._env.require_alive()
        self._env.follow_up_mode = mode
        self._changed("followUpMode")

    def _changed(self, name: Setting) -> None:
        self._env.events.publish(ConfigUpdate(lane=None, property=name))


QUEUE_MODES = ("all", "one-at-a-time")


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuse a value that is none of a closed set.

    Raises:
        ValueError: naming what is allowed.
    """
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
