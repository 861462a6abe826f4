"""Doors: imports point to the same or a lower layer, and the pure packages are pure (style section 1)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"

# Package or module -> layer. A module that is not listed takes the layer of its package.
LAYERS = {
    "agent_harness": 7,
    "agent_harness.abort_signal": 0,
    "agent_harness.clock": 0,
    "agent_harness.errors": 0,
    "agent_harness.result": 0,
    "agent_harness.types": 0,
    "agent_harness.types.codec": 1,
    "agent_harness.telemetry": 1,
    "agent_harness.telemetry.conformance": 2,
    "agent_harness.telemetry.context": 0,
    "agent_harness.reducer": 1,
    "agent_harness.providers": 2,
    "agent_harness.providers.base": 1,
    "agent_harness.providers.errors": 1,
    "agent_harness.providers.retry_after": 1,
    "agent_harness.providers.options": 1,
    "agent_harness.outcomes": 1,
    "agent_harness.session": 2,
    "agent_harness.session.queries": 1,
    "agent_harness.session.storage": 1,
    "agent_harness.options": 2,
    "agent_harness.hooks": 2,
    "agent_harness.hooks.catalog": 1,
    "agent_harness.events": 2,
    "agent_harness.events.catalog": 1,
    "agent_harness.events.watch": 3,
    "agent_harness.compaction": 2,
    "agent_harness.loop": 3,
    "agent_harness.effects": 3,
    "agent_harness.effects.base": 2,
    "agent_harness.effects.direct": 5,
    "agent_harness.effects.direct_request": 5,
    "agent_harness.effects.direct_tool": 5,
    "agent_harness.procedures": 4,
    "agent_harness.procedures.signals": 2,
    "agent_harness.procedures.build": 2,
    "agent_harness.lanes": 5,
    "agent_harness.lanes.line": 2,
    "agent_harness.lanes.environment": 4,
    "agent_harness.lanes.restore": 4,
    "agent_harness.lanes.messages": 4,
    "agent_harness.extensions": 5,
    "agent_harness.extensions.api": 6,  # names the harness in its contract
    "agent_harness.extensions.resources": 2,
    "agent_harness.tools": 5,
    "agent_harness.settings": 5,
    "agent_harness.harness": 6,
    "agent_harness.testing": 7,
    "agent_harness.cli": 8,
    "session_backends": 9,  # its own order is below; it may look at types, session and errors only
}


def modules(package: str) -> Iterator[tuple[str, Path]]:
    for path in sorted((SRC / package).rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(name: str, path: Path) -> Iterator[tuple[str, int]]:
    """Every module of ours that `name` imports, functions' own imports included."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            for alias in node.names:
                candidate = f"{stem}.{alias.name}"
                yield (candidate if module_exists(candidate) else stem), node.lineno
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno


def module_exists(name: str) -> bool:
    path = SRC.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def layer(name: str) -> int | None:
    while name:
        if name in LAYERS:
            return LAYERS[name]
        name = name.rpartition(".")[0]
    return None


def test_no_import_points_up() -> None:
    arrows = []
    for name, path in modules("agent_harness"):
        own = layer(name)
        assert own is not None
        for target, line in imports(name, path):
            other = layer(target)
            if target.split(".")[0] == "session_backends":
                if not name.startswith("agent_harness.cli"):
                    arrows.append(f"{name}:{line} imports {target}: only the command line may")
            elif other is not None and other > own:
                arrows.append(f"{name}:{line} (layer {own}) imports {target} (layer {other})")
    assert arrows == []


ALLOWED_FOR_BACKENDS = ("agent_harness.types", "agent_harness.session", "agent_harness.errors")


def test_backends_see_types_session_and_errors_only() -> None:
    arrows = [
        f"{name}:{line} imports {target}"
        for name, path in modules("session_backends")
        for target, line in imports(name, path)
        if target.startswith("agent_harness") and not target.startswith(ALLOWED_FOR_BACKENDS)
    ]
    assert arrows == []


ALLOWED_FOR_PROCEDURES = (
    "agent_harness.procedures",
    "agent_harness.effects.base",
    "agent_harness.reducer",
    "agent_harness.types",
    "agent_harness.loop",
    "agent_harness.compaction",
    "agent_harness.telemetry",
    "agent_harness.events.catalog",
    "agent_harness.hooks.catalog",
    "agent_harness.outcomes",
    "agent_harness.providers.base",
)


def test_procedures_cannot_write_or_call_out_by_themselves() -> None:
    arrows = [
        f"{name}:{line} imports {target}"
        for name, path in modules("agent_harness/procedures")
        for target, line in imports(name, path)
        if target.startswith("agent_harness") and not target.startswith(ALLOWED_FOR_PROCEDURES)
    ]
    assert arrows == []


FORBIDDEN_IN_PURE = {
    *("asyncio", "anyio", "threading", "time", "datetime", "random", "secrets", "uuid"),
    *("io", "os", "pathlib", "socket", "sqlite3", "subprocess"),
}
EXCEPTIONS = {
    ("agent_harness.types.ids", "uuid6"),
    ("agent_harness.types.clock", "time"),  # SystemWallClock: the default that constructors inject
}


@pytest.mark.parametrize("package", ["agent_harness/types", "agent_harness/reducer"])
def test_pure_packages_have_no_async_clock_or_io(package: str) -> None:
    found = []
    for name, path in modules(package):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
                found.append(f"{name}:{node.lineno} is async")
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
                found.append(f"{name}:{node.lineno} calls open()")
        for target, line in imports(name, path):
            if target.split(".")[0] in FORBIDDEN_IN_PURE and (name, target) not in EXCEPTIONS:
                found.append(f"{name}:{line} imports {target}")
    assert found == []


def test_importing_the_core_loads_no_sdk_and_no_sqlite() -> None:
    import subprocess
    import sys

    code = (
        "import sys, agent_harness, session_backends;"
        "bad = {'openai', 'anthropic', 'google.genai', 'mcp', 'typer', 'rich', 'sqlite3', 'aiosqlite', 'httpx2'};"
        "print(sorted(bad & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
