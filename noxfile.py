"""Sessions: `nox -s tests` passes everything, `nox -s demo` shows the main job. Each works alone on a fresh machine."""

import os
import sys

import nox

nox.options.sessions = ["lint", "types", "tests"]
nox.options.reuse_existing_virtualenvs = True
SOURCES = ("src", "tests", "examples", "scripts", "noxfile.py")
WORKERS = ("-n", "2", "--dist", "worksteal")
"""Tests are independent; more workers than cores make process tests late. Who has none left takes the other's last."""


def install(session: nox.Session, extra: str = "dev") -> None:
    """The project with an extra, from its own files."""
    session.install("-q", "-e", f".[{extra}]")


@nox.session
def tests(session: nox.Session) -> None:
    """Lint, types and every test. Arguments go to pytest: `nox -s tests -- tests/tier_c -k sqlite`."""
    install(session)
    if not session.posargs:
        check(session)
    session.run("python", "-m", "pytest", "-q", *(session.posargs or WORKERS))


def check(session: nox.Session) -> None:
    """Formatting, lint, both type checkers, the documentation's build."""
    session.run("ruff", "format", "--check", *SOURCES)
    session.run("ruff", "check", *SOURCES)
    session.run("mypy")
    session.run("basedpyright", "--pythonpath", os.path.join(session.bin, "python"), "src")
    build_docs(session, "--site-dir", str(session.cache_dir / "site"))


def build_docs(session: nox.Session, *options: str) -> None:
    """The documentation site; a warning or a broken link is an error."""
    # The theme announces its successor at every build; that is no warning about these pages.
    session.run("mkdocs", "build", "--strict", "-q", *options, env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def lint(session: nox.Session) -> None:
    """Formatting and lint."""
    session.install("-q", "ruff>=0.17,<0.18")
    session.run("ruff", "format", "--check", *SOURCES)
    session.run("ruff", "check", *SOURCES)


@nox.session
def types(session: nox.Session) -> None:
    """mypy and pyright, both strict, on src."""
    install(session)
    session.run("mypy")
    session.run("basedpyright", "--pythonpath", os.path.join(session.bin, "python"), "src")


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation site, into site/; a warning, a stale table or a broken link is an error."""
    install(session)
    for script in ("generate_docs_tables.py", "generate_telemetry_docs.py"):
        session.run("python", f"scripts/{script}", "--check")
    build_docs(session, *session.posargs)


@nox.session
def demo(session: nox.Session) -> None:
    """The main job: an agent is killed with SIGKILL inside a tool and resumed by another process."""
    install(session, "cli")
    session.run("agent-harness", "demo", *session.posargs)


@nox.session
def coverage(session: nox.Session) -> None:
    """Branch coverage of the tests."""
    install(session)
    session.run("coverage", "erase")
    session.run("coverage", "run", "-m", "pytest", "-q", *session.posargs)
    session.run("coverage", "combine")
    session.run("coverage", "report")


@nox.session
def simulate(session: nox.Session) -> None:
    """Seeded schedules: `nox -s simulate -- --seeds 10000 --first 5000`."""
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=2_000)
    parser.add_argument("--first", type=int, default=0)
    chosen = parser.parse_args(session.posargs)
    install(session)
    env = {"SIMULATE_SEEDS": str(chosen.seeds), "SIMULATE_FIRST": str(chosen.first)}
    session.run("python", "-m", "pytest", "-q", *WORKERS, "tests/simulation", env=env)


@nox.session
def bench(session: nox.Session) -> None:
    """Costs beside the floor, as ratios measured in one run; gates nothing. `-- storage`, or `-- run` (the default)."""
    programs = {"run": "benchmarks/run_cost.py", "storage": "benchmarks/storage.py"}
    name, *rest = session.posargs if session.posargs and session.posargs[0] in programs else ("run", *session.posargs)
    install(session)
    session.run("python", programs[name], *rest)


if __name__ == "__main__":
    sys.exit("run this file with nox: pip install nox && nox -s tests")
