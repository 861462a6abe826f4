"""What an import costs: modules are loaded by those who use them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import agent_harness

SOURCE = Path(agent_harness.__file__).read_text()


def modules_after(code: str) -> set[str]:
    program = f"{code}\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.splitlines()[-1].split())


def declared() -> dict[str, str]:
    """Public name -> module, as type checkers read it."""
    guard = next(node for node in ast.parse(SOURCE).body if isinstance(node, ast.If))
    return {
        alias.asname or alias.name: node.module or ""
        for node in guard.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_every_declared_name_is_the_one_its_module_has() -> None:
    for name, home in declared().items():
        value = getattr(agent_harness, name)
        module = getattr(value, "__module__", "")
        assert name in dir(agent_harness)
        if module.startswith("agent_harness") and getattr(value, "__name__", None) == name:
            assert module == f"agent_harness.{home}", name


def test_what_type_checkers_see_and_what_there_is_are_the_same_names() -> None:
    public = {name for name in dir(agent_harness) if name[0] != "_"} - {"import_module", "TYPE_CHECKING"}
    modules = {name for name in public if f"agent_harness.{name}" in sys.modules}
    assert public - modules == set(declared())


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nope'"):
        _ = agent_harness.Nope


def test_importing_the_package_loads_nothing_of_it() -> None:
    loaded = modules_after("import agent_harness")
    assert {name for name in loaded if name.partition(".")[0] in ("agent_harness", "pydantic", "asyncio")} == {
        "agent_harness"
    }


ADAPTERS = (
    "AnthropicProvider",
    "GoogleProvider",
    "LocalProvider",
    "OpenAIChatProvider",
    "OpenAIResponsesProvider",
    "build_models",
    "load_catalog",
)
SDKS = {"openai", "anthropic", "google.genai", "mcp", "httpx2", "xllamacpp", "sqlite3"}


def test_the_adapters_can_be_named_without_loading_an_sdk() -> None:
    assert "agent_harness.providers.anthropic" not in modules_after("import agent_harness.providers")
    loaded = modules_after(f"from agent_harness.providers import {', '.join(ADAPTERS)}")
    assert {f"agent_harness.providers.{name}" for name in ("anthropic", "google", "local", "openai_chat")} <= loaded
    assert loaded & SDKS == set()


def test_what_hooks_listeners_and_extensions_are_written_with_is_public_and_light() -> None:
    names = (
        "AfterTool, BeforePayload, BeforeTool, Extension, Hooks, RunCompleted, RunEnd, ToolDecision, ToolResultPatch"
    )
    assert modules_after(f"from agent_harness import {names}") & (SDKS | {"agent_harness.harness"}) == set()
    from agent_harness.events import catalog as events
    from agent_harness.hooks import catalog as hooks

    written = {name for name in dir(hooks) if name.startswith(("Before", "After", "Transform"))} - {"BeforeRunOutcome"}
    assert written <= set(declared())
    assert {kind.__name__ for kind in events.HarnessEvent.__args__} <= set(declared())


def test_the_help_of_the_command_line_needs_no_harness_store_or_provider() -> None:
    loaded = modules_after("from agent_harness.cli import main\nmain(['--help'])")
    assert "agent_harness.cli.app" in loaded
    heavy = {"pydantic", "sqlite3", "openai", "session_backends", "agent_harness.harness", "agent_harness.types.codec"}
    assert loaded & heavy == set()


def test_a_listing_needs_no_harness_and_no_provider(tmp_path: Path) -> None:
    loaded = modules_after(
        f"from agent_harness.cli import main\nmain(['sessions', 'list', '--store', 'jsonl:{tmp_path}'])"
    )
    assert "session_backends.jsonl.repo" in loaded
    assert loaded & {"agent_harness.harness", "agent_harness.providers.catalog", "openai", "sqlite3"} == set()
