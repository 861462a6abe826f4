"""World: what a scenario's effects change outside the session, as files, so that a crash copy can take it along."""

import shutil
from pathlib import Path

from ..session.repo import SessionRepo


class World:
    """A folder with files and counters; `repo` is the store that the scenario's session lives in, for tools that open
    sessions of their own."""

    def __init__(self, root: Path, repo: SessionRepo | None = None) -> None:
        self.root = root
        self.repo = repo
        root.mkdir(parents=True, exist_ok=True)

    def bump(self, name: str) -> int:
        """Count one more `name` and return the new count."""
        count = self.count(name) + 1
        (self.root / f"{name}.count").write_text(str(count))
        return count

    def count(self, name: str) -> int:
        """How often `name` was counted."""
        path = self.root / f"{name}.count"
        return int(path.read_text()) if path.exists() else 0

    def copy(self, target: Path, repo: SessionRepo | None = None) -> "World":
        """The same world in another folder, beside a copy of the store."""
        shutil.copytree(self.root, target)
        return World(target, repo)
