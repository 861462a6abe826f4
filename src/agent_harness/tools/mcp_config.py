"""What an MCP server is told to be: how it is started or reached, and how far it is trusted."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

Headers: TypeAlias = Mapping[str, str] | Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
MAX_MESSAGE_BYTES = 8 * 1024 * 1024
MAX_TEXT_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    name: str  # prefix of its tools: NAME__TOOL; letters, digits, "_" and "-", at most 32
    call_timeout_s: float = 60.0  # of one call, reconnecting included
    start_timeout_s: float = 20.0  # to start or reach it and list its tools
    max_message_bytes: int = MAX_MESSAGE_BYTES  # of one message, judged before it is parsed
    max_text_bytes: int = MAX_TEXT_BYTES  # of text in one result: its beginning and its end
    trust_hints: bool = False  # readOnlyHint and idempotentHint make a tool replayable; hints are claims, not facts
    optional: bool = False  # a server that does not start is left out instead of failing the setup

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} cannot name an MCP server: use 1 to 32 letters, digits, '_' or '-'")
        if min(self.call_timeout_s, self.start_timeout_s, self.max_message_bytes, self.max_text_bytes) <= 0:
            raise ValueError(f"MCP server {self.name!r}: deadlines and limits are greater than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class StdioServer(_Server):
    """A server that is a command. Of this process's environment it sees an allow-list alone (T27)."""

    command: str
    args: Sequence[str] = ()
    cwd: str | Path | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)  # set for it
    inherit_env: Sequence[str] = ()  # names of this process's variables that it sees besides the allow-list


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpServer(_Server):
    """A server behind a streamable-HTTP address. `headers` may be a function, asked before every request."""

    url: str
    headers: Headers = field(default_factory=dict[str, str], repr=False)


Server: TypeAlias = StdioServer | HttpServer
