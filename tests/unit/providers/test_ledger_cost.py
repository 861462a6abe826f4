"""What a run costs, as the session's ledger says: priced from the catalogue, unless the provider told its price."""

import json
import time
from dataclasses import replace
from typing import Any

import genai_prices
import pytest
from adapters import KEY, OpenAIResponses, sse
from provider_fakes import Connection, FakeServer
from test_behaviours import plays

from agent_harness import AgentHarness, Session, StreamOptions
from agent_harness.outcomes import RunCompleted, RunSuspended
from agent_harness.providers.base import Model
from agent_harness.providers.registry import CatalogModels, build_models
from agent_harness.types.messages import Cost
from agent_harness.types.records import RequestUsage
from session_backends import MemorySessionRepo

# 1,000 tokens in, 400 of them cached, and 200 out
CHAT_USAGE = {
    "prompt_tokens": 1_000,
    "completion_tokens": 200,
    "total_tokens": 1_200,
    "prompt_tokens_details": {"cached_tokens": 400},
}
RESPONSES_USAGE = {
    "input_tokens": 1_000,
    "input_tokens_details": {"cached_tokens": 400},
    "output_tokens": 200,
    "total_tokens": 1_200,
}
REPORTED_USD = 0.25


def list_price() -> Cost:
    """What the price list says of these tokens, asked directly."""
    tokens = genai_prices.Usage(input_tokens=1_000, cache_read_tokens=400, output_tokens=200)
    price = genai_prices.calc_price(tokens, "gpt-4o", provider_id="openai")
    assert price.total_price > 0
    return Cost(input=float(price.input_price), output=float(price.output_price), total=float(price.total_price))


def listed(name: str, url: str, **changed: Any) -> tuple[CatalogModels, Model]:
    """A model of the catalogue, served by `url`."""
    models = build_models(api_keys={"openai": KEY, "openrouter": KEY})
    model = replace(models.catalog.resolve(name), base_url=url, **changed)
    models.add(model)
    return models, model


def chat_answer(usage: dict[str, Any]) -> list[bytes]:
    said = {"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}
    return [sse({"model": "gpt-4o", "choices": [said]}), sse({"choices": [], "usage": usage}), b"data: [DONE]\n\n"]


async def ledger(session: Session) -> list[tuple[str, Cost]]:
    """The cause and the cost of every request, in order."""
    records = await session.find_records(type="usage", order="oldestFirst")
    return [(record.body.cause, record.body.usage.cost) for record in records if isinstance(record.body, RequestUsage)]


async def test_a_model_of_the_catalogue_is_priced_in_the_ledger() -> None:
    async with FakeServer(plays(*chat_answer(CHAT_USAGE))) as s:
        models, model = listed("openai/gpt-4o", s.url, api="openai-chat")
        session = await MemorySessionRepo().create()
        async with AgentHarness.open(session=session, models=models, model=model) as harness:
            for _ in range(2):
                assert isinstance((await harness.prompt("Hi.")).unwrap(), RunCompleted)
            costs, counted = await ledger(session), (await session.get_stats()).usage
    assert costs == [("assistant", list_price())] * 2
    assert (counted.input, counted.cache_read, counted.output) == (1_200, 800, 400)
    assert counted.cost.total == pytest.approx(2 * list_price().total)


async def test_a_price_the_provider_reports_wins_in_the_ledger() -> None:
    """The model is on the price list too."""
    async with FakeServer(plays(*chat_answer({**CHAT_USAGE, "cost": REPORTED_USD}))) as s:
        models, model = listed("openai/gpt-4o", s.url, api="openai-chat")
        session = await MemorySessionRepo().create()
        async with AgentHarness.open(session=session, models=models, model=model) as harness:
            assert isinstance((await harness.prompt("Hi.")).unwrap(), RunCompleted)
            costs, counted = await ledger(session), (await session.get_stats()).usage
    assert costs == [("assistant", Cost(total=REPORTED_USD))]
    assert counted.cost == Cost(total=REPORTED_USD)


async def test_an_answer_that_came_later_is_priced_when_it_is_fetched() -> None:
    api = OpenAIResponses()
    output = [{"type": "message", "content": [{"type": "output_text", "text": "hi"}]}]
    told = {"model": "gpt-4o", "created_at": int(time.time())}  # an old request would count as expired
    queued = {**api.response("queued"), **told}
    done = {**api.response("completed", output=output, usage=RESPONSES_USAGE), **told}

    async def script(connection: Connection) -> None:
        submitted = connection.target == "/responses"
        await connection.reply(200, json.dumps(queued if submitted else done).encode())

    async with FakeServer(script) as s:
        models, model = listed("openai/gpt-4o", s.url)
        session = await MemorySessionRepo().create()
        later = StreamOptions(deferred=True)
        async with AgentHarness.open(session=session, models=models, model=model, stream_options=later) as harness:
            assert isinstance((await harness.prompt("Think for long.")).unwrap(), RunSuspended)
            assert (await session.get_stats()).usage.cost == Cost()
            assert isinstance((await harness.resume()).unwrap(), RunCompleted)
            costs, counted = await ledger(session), (await session.get_stats()).usage
        assert [request.target for request in s.requests] == ["/responses", "/responses/resp_1"]
    assert costs == [("assistant", Cost()), ("deferred_fetch", list_price())]
    assert counted.cost == list_price()
