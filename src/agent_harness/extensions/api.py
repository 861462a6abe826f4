"""Extensions: objects that build on hooks, events, lanes and the log, and on nothing private (decisions section 8)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:  # the harness imports this module to run extensions; they are handed the harness itself
    from ..harness import AgentHarness

TEARDOWN_SECONDS = 5.0
"""How long one extension may take to let go when the harness closes."""


class Extension(Protocol):
    """Installed with `extensions=[...]` or `await harness.use(extension)`."""

    async def setup(self, harness: AgentHarness) -> None:
        """Register hooks and listeners. An exception refuses the installation and undoes nothing by itself."""
        ...


@runtime_checkable
class Closing(Protocol):
    """An extension that holds something of its own."""

    async def teardown(self) -> None:
        """Let go. Called once when the harness closes, in reverse order of installation."""
        ...


class Installed:
    """The extensions of one harness, in order of installation."""

    def __init__(self) -> None:
        self._extensions: list[Extension] = []

    async def use(self, extension: Extension, harness: AgentHarness) -> None:
        """Set `extension` up.

        Raises:
            ValueError: this object is installed already.
            whatever `setup` raises; the extension then counts as not installed.
        """
        if any(installed is extension for installed in self._extensions):
            raise ValueError(f"extension {type(extension).__name__} is installed already")
        await extension.setup(harness)
        self._extensions.append(extension)

    async def teardown(self) -> list[str]:
        """Tear down in reverse order; returns the class names of extensions that failed to.

        One that raises or hangs does not keep the others from letting go.
        """
        failed: list[str] = []
        while self._extensions:
            extension = self._extensions.pop()
            if not isinstance(extension, Closing):
                continue
            try:
                async with asyncio.timeout(TEARDOWN_SECONDS):
                    await extension.teardown()
            except Exception:
                failed.append(type(extension).__name__)
        return failed
