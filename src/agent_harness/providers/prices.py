"""What tokens cost, from genai-prices where it is installed (extra `prices`); a price the provider reports wins."""

from dataclasses import replace

from ..types.messages import AssistantMessage, Cost
from .base import Model


def priced(message: AssistantMessage, model: Model, provider_id: str | None = None) -> AssistantMessage:
    """The message with its cost, in US dollars; unchanged where no price is known or there is nothing to price."""
    usage = message.usage
    if usage.cost.total or not usage.total_tokens:
        return message
    try:
        from genai_prices import Usage, calc_price
    except ImportError:
        return message
    cached, written = int(usage.cache_read), int(usage.cache_write)
    tokens = Usage(
        input_tokens=int(usage.input) + cached + written,
        cache_read_tokens=cached,
        cache_write_tokens=written,
        output_tokens=int(usage.output),
    )
    try:
        price = calc_price(tokens, message.response_model or model.id, provider_id=provider_id or model.provider)
    except (LookupError, ValueError):
        return message
    total, output = float(price.total_price), float(price.output_price)
    # the parts of the input are not reported apart: `input` holds them all
    return replace(message, usage=replace(usage, cost=Cost(input=float(price.input_price), output=output, total=total)))
