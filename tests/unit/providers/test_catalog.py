"""Models by name, their adapters built lazily, and what their tokens cost."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from adapters import KEY, OpenAIChat
from provider_fakes import FakeServer
from streaming import HELLO, collect, final
from test_behaviours import plays

from agent_harness.errors import MissingExtra
from agent_harness.providers.base import Model
from agent_harness.providers.catalog import InvalidCatalog, UnknownModel, load_catalog, resolve_model
from agent_harness.providers.faux import SCRIPTED_MODEL, ScriptedProvider
from agent_harness.providers.prices import priced
from agent_harness.providers.registry import BUILDERS, build_models
from agent_harness.types.messages import AssistantMessage, Cost, Usage
from agent_harness.types.state import ModelRef


def written(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "models.json"
    path.write_text(json.dumps(content))
    return path


def test_a_listed_model_has_its_limits_and_capabilities() -> None:
    model = resolve_model("openai/gpt-5.4")
    assert (model.provider, model.id, model.images, model.tools) == ("openai", "gpt-5.4", True, True)
    assert model.context_window > 100_000
    assert "high" in model.thinking_levels


def test_every_listed_model_is_reachable_by_its_name_and_spoken_by_a_known_api() -> None:
    catalog = load_catalog()
    assert len(catalog.models) > 50
    for model in catalog.models.values():
        assert catalog.resolve(str(model)) is model
        assert model.context_window > 0
        assert model.api in BUILDERS


def test_a_bare_id_is_enough_where_only_one_provider_has_it() -> None:
    assert str(resolve_model("gpt-5.4")) == "openai/gpt-5.4"
    assert str(resolve_model("openai/gpt-oss-120b")) == "groq/openai/gpt-oss-120b"


@pytest.mark.parametrize(
    ("name", "near"),
    [("openai/gpt-5.44", "openai/gpt-5.4"), ("opnai/gpt-5.4", "openai/gpt-5.4"), ("claude-opus-48", "claude-opus-4-8")],
)
def test_an_unknown_name_suggests_near_ones(name: str, near: str) -> None:
    with pytest.raises(UnknownModel, match="did you mean .*" + near):
        resolve_model(name)


def test_a_name_like_nothing_says_how_to_go_on() -> None:
    with pytest.raises(UnknownModel, match=r"build a Model\(\.\.\.\)"):
        resolve_model("zzzzzzzz")


def test_a_server_of_any_models_takes_every_name() -> None:
    model = resolve_model("ollama/qwen3:8b")
    assert (model.id, model.base_url, model.context_window) == ("qwen3:8b", "http://127.0.0.1:11434/v1", 0)
    with pytest.raises(UnknownModel):
        resolve_model("ollama/")


def test_a_users_file_adds_and_changes_single_fields(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {
            "providers": {"acme": {"baseUrl": "http://acme/v1", "keys": ["ACME_KEY"]}, "openai": {"keys": ["MY_KEY"]}},
            "models": {"acme/one": {"contextWindow": 9}, "openai/gpt-5.4": {"maxTokens": 5}},
        },
    )
    catalog = load_catalog(path)
    assert catalog.resolve("acme/one").base_url == "http://acme/v1"
    changed, before = catalog.resolve("openai/gpt-5.4"), resolve_model("openai/gpt-5.4")
    assert (changed.max_tokens, changed.context_window) == (5, before.context_window)
    assert (catalog.providers["openai"].keys, catalog.providers["openai"].api) == (["MY_KEY"], before.api)


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ({"models": {"openai/x": {"contextWindow": "9"}}}, "models.openai/x.contextWindow"),
        ({"models": {"openai/x": {"contextwindow": 9}}}, "models.openai/x.contextwindow"),
        ({"models": {"nowhere/x": {}}}, "models.nowhere/x"),
        ({"models": {"openai": {}}}, "models.openai"),
        ([], "models.json: "),
    ],
)
def test_a_wrong_file_is_refused_naming_the_place(tmp_path: Path, content: object, place: str) -> None:
    with pytest.raises(InvalidCatalog, match=place):
        load_catalog(written(tmp_path, content))


# Models


def test_building_models_imports_no_sdk() -> None:
    program = (
        "import sys; from agent_harness.providers.registry import BUILDERS, build_models; build_models();"
        "print({'openai', 'anthropic', 'google.genai', 'httpx2', 'genai_prices'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_an_adapter_is_built_once_per_provider() -> None:
    models = build_models()
    one, other = models.catalog.resolve("groq/openai/gpt-oss-20b"), models.catalog.resolve("zai/GLM-5.2")
    assert models.provider(one) is models.provider(one)
    assert models.provider(one) is not models.provider(other)
    assert "groq" in repr(models.provider(one))


def test_a_missing_sdk_is_found_when_its_model_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    models = build_models()
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingExtra, match="pip install"):
        models.provider(models.catalog.resolve("zai/GLM-5.2"))


def test_an_unknown_api_is_a_lookup_error_that_names_the_known_ones() -> None:
    with pytest.raises(LookupError, match="openai-chat"):
        build_models().provider(Model(provider="x", id="y", api="carrier-pigeon"))


def test_adapters_and_models_of_ones_own_are_found() -> None:
    mine = ScriptedProvider()
    models = build_models(providers=[mine])
    models.add(SCRIPTED_MODEL)
    assert models.find(SCRIPTED_MODEL.ref) is SCRIPTED_MODEL
    assert models.provider(SCRIPTED_MODEL) is mine
    assert models.find(ModelRef(provider="nowhere", model_id="x")) is None


def test_only_a_provider_that_can_answer_later_has_the_methods_for_it() -> None:
    models = build_models(api_keys={"openai": KEY, "zai": KEY})
    assert hasattr(models.provider(models.catalog.resolve("openai/gpt-5.4")), "fetch_deferred")
    assert not hasattr(models.provider(models.catalog.resolve("zai/GLM-5.2")), "fetch_deferred")


async def test_keys_come_from_the_option_then_from_the_providers_own_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "from-environment")
    monkeypatch.setenv("OPENAI_API_KEY", "not-for-groq")
    chat = OpenAIChat()
    async with FakeServer(plays(chat.start(), chat.text("hi"), chat.finish("stop"))) as s:
        model = Model(provider="groq", id="m", api="openai-chat", base_url=s.url)
        for models in (build_models(), build_models(api_keys={"groq": KEY})):
            assert final(await collect(models.provider(model), model)).text == "hi"
        assert [r.headers["authorization"] for r in s.requests] == ["Bearer from-environment", f"Bearer {KEY}"]
        monkeypatch.delenv("GROQ_API_KEY")
        models = build_models()
        message = final(await collect(models.provider(model), model, messages=[HELLO]))
        assert (message.error_code, len(s.requests)) == ("auth", 2)
    assert message.error_message == "no API key: set GROQ_API_KEY or pass api_key"


# Prices


def answered(**usage: int) -> AssistantMessage:
    return AssistantMessage(
        content=(),
        api="openai-chat",
        provider="openai",
        model="gpt-4o",
        usage=Usage(**usage, total_tokens=sum(usage.values())),
        stop_reason="stop",
        timestamp=1,
    )


def test_a_known_model_is_priced_with_cached_tokens_cheaper() -> None:
    model = resolve_model("openai/gpt-4o")
    plain = priced(answered(input=1_000_000, output=1_000_000), model).usage.cost
    cached = priced(answered(cache_read=1_000_000, output=1_000_000), model).usage.cost
    assert plain.total == pytest.approx(plain.input + plain.output)
    assert 0 < cached.input < plain.input
    assert cached.output == plain.output > 0


def test_a_price_that_the_provider_reported_wins() -> None:
    message = answered(input=5, output=5)
    paid = AssistantMessage(
        content=message.content,
        api=message.api,
        provider=message.provider,
        model=message.model,
        usage=Usage(input=5, output=5, total_tokens=10, cost=Cost(total=0.25)),
        stop_reason="stop",
        timestamp=1,
    )
    assert priced(paid, resolve_model("openai/gpt-4o")) is paid


def test_an_unknown_model_and_an_empty_usage_stay_without_price() -> None:
    model = Model(provider="nowhere", id="nothing", api="openai-chat")
    message = answered(input=5, output=5)
    assert priced(message, model) is message
    empty = answered()
    assert priced(empty, resolve_model("openai/gpt-4o")) is empty


def test_without_the_price_list_nothing_is_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    message = answered(input=5, output=5)
    assert priced(message, resolve_model("openai/gpt-4o")) is message
