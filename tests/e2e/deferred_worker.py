"""One process that works on a deferred answer: `submit`, `resume` or `abort`. Then it waits to be killed."""

import asyncio
import json
import sys

from agent_harness import AgentHarness, Err, Model, ModelRegistry, StreamOptions
from agent_harness.providers.openai_responses import OpenAIResponsesProvider
from session_backends import open_repo

MODEL = Model(provider="test", id="gpt-test", api="openai-responses", deferred=True)


async def work(action: str, store: str, url: str) -> dict[str, object]:
    repo = open_repo(store)
    listed = await repo.list()
    session = await repo.open(listed[0].id) if listed else await repo.create()
    models = ModelRegistry([OpenAIResponsesProvider(base_url=url, api_key="k-123456")], [MODEL])
    options = StreamOptions(deferred=True)
    harness = (await AgentHarness.create(session=session, models=models, model=MODEL, stream_options=options)).harness
    match action:
        case "submit":
            result = await harness.prompt("Think for long.")
        case "resume":
            result = await harness.resume()
        case _:
            result = await harness.abort()
            await harness.wait_for_idle()
    if isinstance(result, Err):
        return {"refused": type(result.error).__name__}
    message = getattr(result.value, "final_message", None)
    error = getattr(result.value, "error", None)
    return {
        "kind": getattr(result.value, "kind", None),
        "text": getattr(message, "text", None),
        "error": getattr(error, "code", None),
    }


async def main() -> None:
    print(json.dumps(await work(*sys.argv[1:])), flush=True)
    await asyncio.to_thread(sys.stdin.read)  # nothing is closed: whoever started us kills


asyncio.run(main())
