"""A harness over each real adapter: content reaches no span and no log line, credentials no event either.

The canaries of the scripted provider are in `tests/unit/test_canaries.py`; here the SDKs and their loggers take part.
"""

import pytest
from adapters import KEY, Adapter
from provider_fakes import Connection, FakeServer

from agent_harness import StreamOptions
from agent_harness.providers.base import ModelRegistry
from session_backends import MemorySessionRepo
from tests.support.canaries import CONTENT, Leaks, canary, found
from tests.support.rig import Calls, open_rig
from tests.support.spans import tree


async def test_a_harness_over_an_adapter(adapter: Adapter, caplog: pytest.LogCaptureFixture) -> None:
    leaks = Leaks(caplog)
    caplog.set_level(1)
    asked = 0

    async def script(connection: Connection) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            body = adapter.error_body(503, f"overloaded, key {KEY}, header {canary('header')}")
            await connection.reply(503, body)
            return
        arguments = f'{{"bed": "{canary("argument")}"}}'
        calls = adapter.call("c1", "measure", arguments) if asked == 2 else []
        await connection.head()
        await connection.send(
            adapter.start(), adapter.text(canary("answer")), *calls, adapter.finish("toolUse" if calls else "stop")
        )
        await connection.end()

    async with FakeServer(script) as server:
        model = adapter.model(headers={"x-proxy-auth": canary("header")})
        rig = await open_rig(
            await MemorySessionRepo().create(),
            models=ModelRegistry([adapter.provider(server.url)], [model]),
            model=model,
            tools=[Calls().tool(error=RuntimeError(canary("tool-error")))],
            system_prompt=canary("system"),
            stream_options=StreamOptions(headers={"x-key": canary("option-header")}),
            telemetry_context=leaks.telemetry,
        )
        await leaks.watch(rig.harness)
        assert (await rig.harness.prompt(canary("prompt"))).unwrap().kind == "completed"
        await rig.harness.events.flush()
        await rig.harness.close()
    sent = str(server.requests[0].headers) + server.requests[0].body.decode()
    planted = [KEY, canary("header"), canary("option-header"), canary("prompt"), canary("system")]
    assert found(sent, planted) == planted
    leaks.check()
    assert found(leaks.wires() + leaks.spans() + leaks.logs(), [KEY]) == []
    assert found(leaks.wires(), CONTENT) == [
        canary("prompt"),
        canary("answer"),
        canary("argument"),
        canary("tool-error"),
    ]
    steps = [entry for entry in tree(leaks.telemetry) if "step " in entry or "request" in entry]
    assert steps == [
        "    step assistant 1 retry !",
        "      request stream error !",
        "    step assistant 2 succeeded",
        "      request stream tool_use",
        "    step assistant 1 succeeded",
        "      request stream stop",
    ]
    statuses = [span.attributes["pi.ai.http.status_code"] for span in leaks.telemetry.spans("pi.ai.request")[1:]]
    assert statuses == [200, 200]
