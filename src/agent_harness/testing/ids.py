"""Ids a test can predict."""


class DeterministicIds:
    """`prefix-1`, `prefix-2`, ... in the order they are asked for."""

    def __init__(self, prefix: str = "id") -> None:
        self._prefix = prefix
        self._count = 0

    def next(self) -> str:
        """The next id."""
        self._count += 1
        return f"{self._prefix}-{self._count}"
