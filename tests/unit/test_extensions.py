"""The extension contract: set up once, torn down in reverse, nothing private (decisions section 8)."""

import pytest

from agent_harness import AgentHarness
from agent_harness.testing import SCRIPTED_MODEL, scripted_models
from session_backends import MemorySessionRepo


class Recorder:
    def __init__(self, name: str, log: list[str], fails: str = "") -> None:
        self.name, self.log, self.fails = name, log, fails

    async def setup(self, harness: AgentHarness) -> None:
        if self.fails == "setup":
            raise RuntimeError("no")
        self.log.append(f"setup {self.name}")

    async def teardown(self) -> None:
        if self.fails == "teardown":
            raise RuntimeError("no")
        self.log.append(f"teardown {self.name}")


class OnlySetup:
    async def setup(self, harness: AgentHarness) -> None:
        harness.hooks.on("before_tool", lambda event: None)


async def created(*extensions: object) -> AgentHarness:
    session = await MemorySessionRepo().create()
    return (
        await AgentHarness.create(
            session=session,
            models=scripted_models("Hi."),
            model=SCRIPTED_MODEL,
            extensions=extensions,
        )
    ).harness


async def test_extensions_are_torn_down_in_reverse_and_one_that_fails_stops_nobody() -> None:
    log: list[str] = []
    harness = await created(Recorder("a", log), OnlySetup(), Recorder("b", log, fails="teardown"))
    await harness.use(Recorder("c", log))
    failures: list[str] = []
    harness.events.on("handler_error", lambda event: failures.append(event.name))
    await harness.close()
    assert log == ["setup a", "setup b", "setup c", "teardown c", "teardown a"]
    assert failures == ["Recorder"]
    await harness.close()
    assert log[-1] == "teardown a"  # closing again tears nothing down again


async def test_an_object_is_installed_once() -> None:
    log: list[str] = []
    extension = Recorder("a", log)
    harness = await created(extension)
    with pytest.raises(ValueError, match="installed already"):
        await harness.use(extension)
    await harness.close()


async def test_a_setup_that_fails_refuses_the_harness_and_lets_the_others_go() -> None:
    log: list[str] = []
    with pytest.raises(RuntimeError):
        await created(Recorder("a", log), Recorder("b", log, fails="setup"))
    assert log == ["setup a", "teardown a"]
