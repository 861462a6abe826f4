"""Context overflow: does this answer show that the request did not fit? (harness-v2 §6, A-5)."""

from ..types.messages import AssistantMessage


def is_recoverable_length(message: AssistantMessage, desired_max_output: int) -> bool:
    """Whether a `length` stop came below the intended output cap, so that a smaller context can help.

    `desired_max_output` is the caller's `max_tokens` when set, else the model's, before any clamping; 0 is unknown.
    """
    if message.stop_reason != "length":
        return False
    return not (desired_max_output > 0 and message.usage.output >= desired_max_output)


def is_context_overflow(message: AssistantMessage, context_window: int) -> bool:
    """An overflow-form error, or an empty success whose reported input exceeds the window.

    A complete answer is kept whatever its usage says (A-5). `context_window` is in tokens, 0 is unknown.
    """
    if message.stop_reason == "error":
        return message.error_code == "overflow"
    empty = not message.text.strip() and not message.tool_calls
    sent = message.usage.input + message.usage.cache_read + message.usage.cache_write
    return message.stop_reason == "stop" and empty and 0 < context_window < sent
