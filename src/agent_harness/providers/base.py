"""Models and the stream protocol (harness-v2 §14, §16; decisions section 7). No SDK is imported here."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from ..abort_signal import AbortSignal
from ..telemetry.context import NOOP, TelemetryContext
from ..types.json import JsonValue
from ..types.messages import AssistantMessage, DeferredHandle, Message, ThinkingLevel
from ..types.state import ModelRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model and what it can do. An option it lacks is left out of the request instead of failing."""

    provider: str
    id: str
    api: str  # which adapter speaks to it: "openai-chat", "scripted", ...
    base_url: str | None = field(default=None, repr=False)  # may hold a password
    context_window: int = 0  # tokens, 0 is unknown
    max_tokens: int = 0  # longest output in tokens, 0 is unknown
    images: bool = False
    tools: bool = True
    thinking_levels: tuple[ThinkingLevel, ...] = ()
    deferred: bool = False
    response_schema: bool = True  # its server can hold an answer to a JSON Schema
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    @property
    def ref(self) -> ModelRef:
        """The name that entries persist."""
        return ModelRef(provider=self.provider, model_id=self.id)

    def __str__(self) -> str:
        return f"{self.provider}/{self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as the model sees it."""

    name: str
    description: str
    parameters: Mapping[str, JsonValue]  # JSON Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderContext:
    """What one request sends: already projected, valid and with unique call ids."""

    messages: Sequence[Message]
    system_prompt: str | None = field(default=None, repr=False)
    tools: Sequence[ToolSpec] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderResponse:
    """The head of an HTTP response, as `after_response` handlers see it."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Provider-neutral options of a request; every field may be left unset (ADR 0001)."""

    max_tokens: int | None = None  # intended output cap, in tokens
    temperature: float | None = None
    thinking_level: ThinkingLevel | None = None
    deferred: bool = False
    timeout_ms: int | None = None  # total deadline of one request
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    metadata: Mapping[str, JsonValue] | None = field(default=None, repr=False)
    response_schema: Mapping[str, JsonValue] | None = None  # JSON Schema the answer must follow


OnPayload: TypeAlias = Callable[[JsonValue], Awaitable[JsonValue]]
OnResponse: TypeAlias = Callable[[ProviderResponse], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """The runtime side of one request: how to cancel it, whom to tell, where its telemetry hangs."""

    signal: AbortSignal
    telemetry: TelemetryContext = NOOP
    on_payload: OnPayload | None = None  # may replace the provider's wire payload; last stop
    on_response: OnResponse | None = None  # status and headers, when the response head arrived
    now_ms: Callable[[], int] | None = None


# Stream events: what a live consumer sees while the answer grows (ADR 0001 "AssistantMessageEvent").


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStart:
    """The provider began to answer."""

    type: Literal["start"] = "start"
    partial: AssistantMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDelta:
    """A piece of content arrived. `index` is the content part's; `delta` is text or argument text."""

    type: Literal["text_delta", "thinking_delta", "toolcall_delta"]
    index: int
    delta: str
    partial: AssistantMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEnd:
    """The last event of every stream: the settled message, errors in-band."""

    type: Literal["end"] = "end"
    message: AssistantMessage


AssistantMessageEvent: TypeAlias = StreamStart | StreamDelta | StreamEnd
"""What a provider streams, told apart by `type`."""


class Provider(Protocol):
    """Speaks one API. Errors are in-band: a stream always ends with a `StreamEnd`, it does not raise.

    `StreamEnd.message.stop_reason` is never "pending". An error message carries `error_message`, a normalised
    `error_code` and `retry_after_ms` when the provider asked to wait. Cancellation (`request.signal`) closes the
    connection and ends with stop reason "aborted". A stream cut without a terminal event ends in a retryable error.
    """

    @property
    def api(self) -> str:
        """Which `Model.api` this provider serves."""
        ...

    def stream(
        self, model: Model, context: ProviderContext, options: StreamOptions, request: RequestContext
    ) -> AsyncIterator[AssistantMessageEvent]:
        """One request."""
        ...


class DeferredProvider(Provider, Protocol):
    """A provider that can answer later. Implementing these two methods is the capability signal."""

    async def fetch_deferred(self, model: Model, handle: DeferredHandle, request: RequestContext) -> AssistantMessage:
        """Check once: ready (a normal message), pending ("deferred" with the same handle) or terminal ("error")."""
        ...

    async def cancel_deferred(self, model: Model, handle: DeferredHandle, request: RequestContext) -> None:
        """Best effort."""
        ...


class Models(Protocol):
    """The provider collection a harness dispatches through."""

    def find(self, ref: ModelRef) -> Model | None:
        """The model of this name, None when it is not known here."""
        ...

    def provider(self, model: Model) -> Provider:
        """The provider that speaks to `model`.

        Raises:
            LookupError: no provider for `model.api`.
        """
        ...


class ModelRegistry:
    """A plain `Models`: what you put in."""

    def __init__(self, providers: Sequence[Provider], models: Sequence[Model] = ()) -> None:
        self._providers = {provider.api: provider for provider in providers}
        self._models = {model.ref: model for model in models}

    def add(self, model: Model) -> None:
        """Make a model known by name."""
        self._models[model.ref] = model

    def find(self, ref: ModelRef) -> Model | None:
        """See `Models`."""
        return self._models.get(ref)

    def provider(self, model: Model) -> Provider:
        """See `Models`."""
        try:
            return self._providers[model.api]
        except KeyError:
            known = ", ".join(sorted(self._providers)) or "none"
            raise LookupError(f"no provider speaks {model.api!r} (have: {known})") from None


RETRYABLE_CODES = frozenset({"rate_limit", "overloaded", "transport", "timeout", "server_error", "stream_cut"})
"""Error codes after which the same request may succeed. Everything else is terminal, overflow apart."""


def is_retryable(message: AssistantMessage) -> bool:
    """Whether another attempt of the same request makes sense."""
    return message.stop_reason == "error" and message.error_code in RETRYABLE_CODES
