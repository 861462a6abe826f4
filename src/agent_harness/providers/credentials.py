"""API keys: given, computed per request, or taken from the environment; never shown (threats T10, T11)."""

import os
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TypeAlias

ApiKey: TypeAlias = str | Callable[[], str | Awaitable[str]]


class MissingKey(Exception):
    """No API key where one is needed; the text says what to do."""


class Credential:
    """Where a key comes from. Resolved anew for every request, so that an expiring token can be renewed."""

    __slots__ = ("_given", "_required", "_variables")

    def __init__(self, given: ApiKey | None, variables: tuple[str, ...] = (), required: bool = False) -> None:
        self._given = given
        self._variables = variables
        self._required = required

    def __repr__(self) -> str:
        return "Credential(***)"

    @classmethod
    def of(cls, given: "ApiKey | Credential | None", variables: tuple[str, ...], *, required: bool) -> "Credential":
        """The given one, else the first of the environment's `variables` that is set."""
        if isinstance(given, Credential):
            return given
        return cls(given, () if given is not None else variables, required)

    async def resolve(self) -> str | None:
        """The key, None when there is none; whitespace around it (a file's last newline) is not part of it.

        Raises:
            MissingKey: there is none and the server needs one.
        """
        given = self._given
        if callable(given):
            answer = given()
            key = await answer if isawaitable(answer) else answer
        elif given is not None:
            key = given
        else:
            key = next((value for name in self._variables if (value := os.environ.get(name))), "")
        if not key.strip() and self._required:
            names = " or ".join(self._variables)
            raise MissingKey(f"no API key: set {names} or pass api_key" if names else "no API key: pass api_key")
        return key.strip() or None
