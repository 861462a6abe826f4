"""Sessions: `nox -s tests` passes everything, `nox -s demo` shows the main job. Each works alone on a fresh machine."""

import os
import sys

import nox

nox.options.sessions = ["lint", "types", "tests"]
nox.options.reuse_existing_virtualenvs = True
WORKERS = ("-n", "2")
"""Tests are independent; more workers than cores make process tests late."""


def install(session: nox.Session, extra: str = "dev") -> None:
    """The project with an extra, from its own files."""
    session.install("-q", "-e", f".[{extra}]")


@nox.session
def tests(session: nox.Session) -> None:
    """Lint, types and every test. Arguments go to pytest: `nox -s tests -- tests/tier_c -k sqlite`."""
    install(session)
    if not session.posargs:
        check(session)
    env = {"PYTHONWARNDEFAULTENCODING": "0"}
    session.run("python", "-m", "pytest", "-q", *(session.posargs or WORKERS), env=env)


def check(session: nox.Session) -> None:
    """Formatting, lint, both type checkers."""
    session.run("ruff", "format", "--check", "src", "tests", "noxfile.py")
    session.run("ruff", "check", "src", "tests", "noxfile.py")
    session.run("mypy")
    session.run("basedpyright", "--pythonpath", os.path.join(session.bin, "python"), "src")


@nox.session
def lint(session: nox.Session) -> None:
    """Formatting and lint."""
    session.install("-q", "ruff>=0.9")
    session.run("ruff", "format", "--check", "src", "tests", "noxfile.py")
    session.run("ruff", "check", "src", "tests", "noxfile.py")


@nox.session
def types(session: nox.Session) -> None:
    """mypy and pyright, both strict, on src."""
    install(session)
    session.run("mypy")
    session.run("basedpyright", "--pythonpath", os.path.join(session.bin, "python"), "src")


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
def bench(session: nox.Session) -> None:
    """Costs beside the floor, as ratios measured in one run; gates nothing."""
    install(session)
    session.run("python", "benchmarks/run_cost.py", *session.posargs)


if __name__ == "__main__":
    sys.exit("run this file with nox: pip install nox && nox -s tests")
