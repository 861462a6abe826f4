"""A model in a GGUF file, run on this machine by llama.cpp (extra `local`): no account, nothing leaves the machine."""

import asyncio
import importlib.util
import json
import os
import secrets
import subprocess
import sys
import threading
import weakref
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from ..errors import MissingExtra
from ..types.messages import AssistantMessage, TextContent
from .answer import Answer
from .base import (
    AssistantMessageEvent,
    Model,
    ProviderContext,
    RequestContext,
    StreamDelta,
    StreamEnd,
    StreamOptions,
    StreamStart,
)
from .failure import Failure
from .local_gguf import context_length
from .local_tools import answer_schema, goes_in_circles, partial_answer, read_answer, spoken

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from .openai_chat import OpenAIChatProvider

LOCAL_API: Final = "local"
CONTEXT_WINDOW: Final = 8_192
MAX_TOKENS: Final = 1_024
"""Longest answer unless asked otherwise: a small model may not find an end by itself."""
START_TIMEOUT_S: Final = 600.0


def local_model(path: str | os.PathLike[str], *, context_window: int = CONTEXT_WINDOW) -> Model:
    """The model in `path`, named after the file.

    `context_window` (tokens) is what memory is set aside for, at most what the model was trained for.
    """
    context_window = min(context_window, context_length(Path(path)) or context_window)
    return Model(
        provider="local",
        id=Path(path).stem,
        api=LOCAL_API,
        context_window=context_window,
        max_tokens=min(MAX_TOKENS, context_window // 2),
    )


@dataclass(frozen=True, slots=True)
class _Running:
    process: "subprocess.Popen[str]"
    chat: "OpenAIChatProvider"
    address: str


class LocalProvider:
    """Serves one GGUF file. The model is loaded by the first request, in a process that ends with this one.

    Tools are described to the model in words, and its reply is held by a grammar to a call or an answer, so they work
    with every model that follows instructions at all; see `local_tools`.

    Raises:
        MissingExtra: xllamacpp or openai is not installed.
        FileNotFoundError: there is no such file.
    """

    def __init__(self, path: str | os.PathLike[str], *, context_window: int = CONTEXT_WINDOW) -> None:
        for name in ("xllamacpp", "openai"):
            if importlib.util.find_spec(name) is None:
                raise MissingExtra("local", "a local model")
        self._path = Path(path).resolve()
        if not self._path.is_file():
            raise FileNotFoundError(f"there is no model file {self._path}")
        self._context_window = min(context_window, context_length(self._path) or context_window)
        self._lock = threading.Lock()
        self._started: Future[_Running] | None = None

    def __repr__(self) -> str:
        return f"LocalProvider({str(self._path)!r})"

    @property
    def api(self) -> str:
        """See `Provider`."""
        return LOCAL_API

    async def stream(
        self, model: Model, context: ProviderContext, options: StreamOptions, request: RequestContext
    ) -> AsyncIterator[AssistantMessageEvent]:
        """See `Provider`. Loading counts into no deadline but `START_TIMEOUT_S`; an abort does not wait for it."""
        growing = Answer(model, request.now_ms() if request.now_ms is not None else 0)
        running = await self._running(request)
        if isinstance(running, Failure):
            yield StreamEnd(message=growing.fail(running))
            return
        if running is None:
            yield StreamEnd(message=growing.abort())
            return
        if options.max_tokens is None and model.max_tokens:
            options = replace(options, max_tokens=model.max_tokens)
        tools = context.tools if model.tools else ()
        if tools:
            offered = () if goes_in_circles(context.messages) else tools
            options = replace(options, response_schema=answer_schema(offered, options.response_schema))
            context = spoken(context)
        # The adapter is an asynchronous generator, which leaves its connection when it is closed.
        events = cast("AsyncGenerator[AssistantMessageEvent]", running.chat.stream(model, context, options, request))
        async with aclosing(events):
            # The id is the same for the same conversation, and unlike any before it.
            async for event in _heard(events, f"call-{len(context.messages)}") if tools else events:
                yield event

    async def _running(self, request: RequestContext) -> "_Running | Failure | None":
        """The server; a failure if it cannot be started, None after an abort."""
        started = asyncio.wrap_future(self._start())
        started.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # perhaps nobody waits any more
        aborted = asyncio.ensure_future(request.signal.wait())
        waiting: set[asyncio.Future[Any]] = {started, aborted}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            aborted.cancel()
        if request.signal.aborted:
            return None
        try:
            return started.result()
        except RuntimeError as error:
            return Failure(code="invalid_request", message=str(error))

    def _start(self) -> "Future[_Running]":
        with self._lock:
            started = self._started
            if started is not None and not _usable(started):
                started = None
            if started is None:
                started = self._started = Future()
                started.set_running_or_notify_cancel()  # a caller that is cancelled does not stop the loading
                threading.Thread(target=self._load, args=(started,), daemon=True).start()
            return started

    def _load(self, started: "Future[_Running]") -> None:
        try:
            started.set_result(self._launch())
        except BaseException as error:
            started.set_exception(error)

    def _launch(self) -> _Running:
        from .openai_chat import OpenAIChatProvider

        key = secrets.token_urlsafe(32)  # other users of this machine can reach the port
        process = subprocess.Popen(
            [sys.executable, "-m", "agent_harness.providers.local_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is for the harness, which may want to finish a request
        )
        weakref.finalize(self, _stop, process)  # also at the interpreter's exit
        assert process.stdin is not None
        assert process.stdout is not None
        overdue = threading.Timer(START_TIMEOUT_S, process.kill)
        overdue.daemon = True
        overdue.start()
        try:
            asked = {"path": str(self._path), "contextWindow": self._context_window, "key": key}
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
            told: dict[str, Any] = json.loads(process.stdout.readline() or "{}")
        except (OSError, ValueError):
            told = {}
        finally:
            overdue.cancel()
        address = told.get("address")
        if not isinstance(address, str):
            _stop(process)
            raise RuntimeError(f"the model {self._path} could not be loaded ({told.get('error', 'its process ended')})")
        chat = OpenAIChatProvider(base_url=f"{address}/v1", api_key=key)
        return _Running(process, chat, address)

    def close(self) -> None:
        """End the model's process. The next request starts it again."""
        with self._lock:
            started, self._started = self._started, None
        if started is not None and started.done() and started.exception() is None:
            _stop(started.result().process)

    @property
    def pid(self) -> int | None:
        """The model's process, while there is one."""
        started = self._started
        if started is None or not started.done() or started.exception() is not None:
            return None
        return started.result().process.pid


def _usable(started: "Future[_Running]") -> bool:
    """Whether it still loads, or runs; not if it failed or has died since."""
    return not started.done() or (started.exception() is None and started.result().process.poll() is None)


def _stop(process: "subprocess.Popen[str]") -> None:
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            if pipe is not None:
                pipe.close()
    try:
        process.wait(timeout=2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def _heard(events: AsyncIterator[AssistantMessageEvent], call_id: str) -> AsyncIterator[AssistantMessageEvent]:
    """Replies in JSON as what they say: the text of an answer as it grows, a call when it is complete."""
    shown = ""
    async for event in events:
        match event:
            case StreamStart():
                yield StreamStart(partial=_showing(event.partial, ""))
            case StreamDelta(type="text_delta"):
                said = partial_answer(event.partial.text)
                if len(said) > len(shown) and said.startswith(shown):
                    delta, shown = said[len(shown) :], said
                    yield StreamDelta(type="text_delta", index=0, delta=delta, partial=_showing(event.partial, shown))
            case StreamDelta():
                pass
            case StreamEnd():
                yield StreamEnd(message=read_answer(event.message, call_id))


def _showing(partial: AssistantMessage, text: str) -> AssistantMessage:
    return replace(partial, content=(TextContent(text=text),) if text else ())
