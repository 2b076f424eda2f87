"""Prices of model requests in micro-dollars: the provider's list price if it is known, else the policy's."""

from __future__ import annotations

import math

from bardo_pipeline.gateway.model_settings import ModelSettings
from bardo_pipeline.policy import GatewayPolicy


def cost_micros(settings: ModelSettings, input_tokens: int, output_tokens: int, policy: GatewayPolicy) -> int:
    """Return the price of these token counts, rounded up."""
    from genai_prices import Usage, calc_price

    try:
        usage = Usage(input_tokens=input_tokens, output_tokens=output_tokens)
        dollars = calc_price(usage, settings.model, provider_id=settings.provider.partition("-")[0]).total_price
        return math.ceil(dollars * 1_000_000)
    except LookupError:
        return math.ceil(input_tokens * policy.input_micros_per_token + output_tokens * policy.output_micros_per_token)


def most_micros(settings: ModelSettings, prompt_bytes: int, policy: GatewayPolicy) -> int:
    """Return the maximum price of one question: all corrections, each answer of maximum length, no HTTP retries."""
    input_tokens, output_tokens = math.ceil(prompt_bytes / policy.bytes_per_token), policy.output_tokens_max
    rounds = range(policy.corrections_max + 1)
    return sum(cost_micros(settings, input_tokens + 2 * output_tokens * n, output_tokens, policy) for n in rounds)
