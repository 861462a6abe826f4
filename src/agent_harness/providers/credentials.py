"""API keys: given, computed per request, or taken from the environment; never shown (threats T10, T11)."""

import os
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TypeAlias

ApiKey: TypeAlias = str | Callable[[], str | Awaitable[str]]


class Credential:
    """Where a key comes from. Resolved anew for every request, so that an expiring token can be renewed."""

    __slots__ = ("_given", "_variables")

    def __init__(self, given: ApiKey | None, variables: tuple[str, ...] = ()) -> None:
        self._given = given
        self._variables = variables

    def __repr__(self) -> str:
        return "Credential(***)"

    def or_from(self, variables: tuple[str, ...]) -> "Credential":
        """This one if a key was given, else the first of the environment's `variables` that is set."""
        return self if self._given is not None else Credential(None, variables)

    async def resolve(self) -> str | None:
        """The key, None when there is none; whitespace around it (a file's last newline) is not part of it."""
        given = self._given
        if callable(given):
            answer = given()
            key = await answer if isawaitable(answer) else answer
        elif given is not None:
            key = given
        else:
            key = next((value for name in self._variables if (value := os.environ.get(name))), "")
        return key.strip() or None

    @property
    def hint(self) -> str:
        """What to do about a missing key."""
        names = " or ".join(self._variables)
        return f"no API key: set {names} or pass api_key" if names else "no API key: pass api_key"
