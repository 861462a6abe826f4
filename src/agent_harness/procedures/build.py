"""Pure builders of what procedures write."""

from ..types.entries import MessageBody, ProvisionedEntry
from ..types.messages import (
    AssistantMessage,
    TerminalStopReason,
    TextContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from ..types.records import OperationError, RequestUsage, StepKind, ToolUsage
from ..types.state import ModelRef


def assistant_entry(entry_id: str, message: AssistantMessage) -> ProvisionedEntry:
    """An assistant message under its provisioned id."""
    return ProvisionedEntry(id=entry_id, body=MessageBody(message=message))


def user_entry(entry_id: str, text: str, now_ms: int) -> ProvisionedEntry:
    """A user message of plain text."""
    return ProvisionedEntry(id=entry_id, body=MessageBody(message=UserMessage(content=text, timestamp=now_ms)))


def result_entry(entry_id: str, message: ToolResultMessage, terminate: bool) -> ProvisionedEntry:
    """A tool result with its batch-control decision."""
    return ProvisionedEntry(id=entry_id, body=MessageBody(message=message, terminate=True if terminate else None))


def synthetic_message(call: ToolCall, text: str, now_ms: int) -> ToolResultMessage:
    """An error result that no execution produced."""
    return ToolResultMessage(
        tool_call_id=call.id,
        tool_name=call.name,
        content=(TextContent(text=text),),
        is_error=True,
        timestamp=now_ms,
    )


def closing_message(model: ModelRef, api: str, now_ms: int) -> AssistantMessage:
    """The assistant message that closes an aborted run."""
    return AssistantMessage(
        content=(),
        api=api,
        provider=model.provider,
        model=model.model_id,
        stop_reason="aborted",
        error_message="Aborted",
        timestamp=now_ms,
    )


def give_up_message(model: ModelRef, api: str, error: OperationError, now_ms: int) -> AssistantMessage:
    """The assistant message that makes a failure durable."""
    return AssistantMessage(
        content=(),
        api=api,
        provider=model.provider,
        model=model.model_id,
        stop_reason="error",
        error_message=error.message,
        error_code=error.code,
        timestamp=now_ms,
    )


def message_error(message: AssistantMessage) -> OperationError:
    """The operation error that an error message stands for."""
    return OperationError(
        code=message.error_code or "provider_error", message=message.error_message or "the provider reported an error"
    )


def request_usage(step: StepKind, run_id: str, entry_id: str, attempt: int, message: AssistantMessage) -> RequestUsage:
    """The ledger's record of a settled request."""
    return RequestUsage(
        cause=step,
        run_id=run_id,
        entry_id=entry_id,
        attempt=attempt,
        usage=message.usage,
        stop_reason=terminal(message),
    )


def terminal(message: AssistantMessage) -> TerminalStopReason:
    """The stop reason of a settled message."""
    if message.stop_reason == "pending":
        raise AssertionError("an unsettled message reached a durable write")
    return message.stop_reason


def tool_usage(run_id: str, entry_id: str, call_id: str, usage: Usage) -> ToolUsage:
    """The ledger's record of a tool's nested model work."""
    return ToolUsage(run_id=run_id, entry_id=entry_id, tool_call_id=call_id, usage=usage)
