"""What asking costs, in micro-dollars: by the provider's list price where it is known, else by the policy's."""

from __future__ import annotations

import math

from bardo_pipeline.gateway.model_settings import ModelSettings
from bardo_pipeline.policy import GatewayPolicy


def cost_micros(settings: ModelSettings, input_tokens: int, output_tokens: int, policy: GatewayPolicy) -> int:
    """The price of so many tokens, rounded up."""
    from genai_prices import Usage, calc_price

    try:
        usage = Usage(input_tokens=input_tokens, output_tokens=output_tokens)
        dollars = calc_price(usage, settings.model, provider_id=settings.provider.partition("-")[0]).total_price
        return math.ceil(dollars * 1_000_000)
    except LookupError:
        return math.ceil(input_tokens * policy.input_micros_per_token + output_tokens * policy.output_micros_per_token)


def most_micros(settings: ModelSettings, prompt_bytes: int, policy: GatewayPolicy) -> int:
    """The most that asking once may cost: every correction is made, and every answer is as long as it may be.

    A request that is sent again because it broke on the way counts once.
    """
    given, taken = math.ceil(prompt_bytes / policy.bytes_per_token), policy.output_tokens_max
    rounds = range(policy.corrections_max + 1)
    return sum(cost_micros(settings, given + 2 * taken * before, taken, policy) for before in rounds)
