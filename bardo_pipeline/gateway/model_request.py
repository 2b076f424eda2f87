"""Sends one question to a language model and returns a structured answer or the kind of failure.

Failures of the model or its provider are returned in the reply, not raised, because they are recorded as events too.
Source: MEM-4; architecture ("What is an event": answers of a model).
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bardo_pipeline.curator.model_prompt import Prompt
from bardo_pipeline.curator.state.proposal_schema import Proposals
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.events.life.proposal_events import Outcome, ProposedOperation
from bardo_pipeline.policy import GatewayPolicy
from bardo_pipeline.process_settings import LanguageModelSettings

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model

MODEL, URL = "BARDO_MODEL", "BARDO_MODEL_URL"
"""Environment variables that name the model and the address of its provider; without MODEL no model is used."""

ANSWER_LENGTH_MAX = 65_536

_SECRET, _SECRET_LENGTH_MIN = ("_KEY", "_TOKEN", "_SECRET"), 8
"""Suffixes of environment variables that hold secrets, and the minimum length of a value that is masked."""

_TRIPPED = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""Errors that a provider's library raises if a response is JSON but not a valid message."""


@dataclass(frozen=True)
class ModelSettings:
    """provider, model: pydantic-ai names (`openai-chat`, `anthropic`). url: overrides the provider's own."""

    provider: str
    model: str
    url: str | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> ModelSettings | None:
        """Read the settings; None if BARDO_MODEL is not set. Raises ConfigError if it is not PROVIDER:MODEL."""
        settings = LanguageModelSettings.of(environment)
        if settings.model is None:
            return None
        provider, _, model = settings.model.partition(":")
        return cls(provider, model, settings.model_url)

    @classmethod
    def wanted(cls, environment: Mapping[str, str]) -> ModelSettings:
        """Read the settings of a required model. Raises ConfigError if BARDO_MODEL is not set."""
        settings = cls.of(environment)
        if settings is None:
            raise ConfigError(
                f"no language model is configured: set {MODEL} to PROVIDER:MODEL (and the provider's key, "
                f"{URL} for another address)"
            )
        return settings


@dataclass(frozen=True)
class Reply:
    """Result of one question.

    answer: the last response as text, None without a response. parsed: the answer in the prompt's schema, None if it
    is invalid. cost_micros: the maximum price if the provider may have answered without reporting its token counts.
    """

    outcome: Outcome
    detail: str
    answer: str | None
    parsed: BaseModel | None = None
    request_count: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_micros: int = 0
    latency_ms: int = 0

    @property
    def operations(self) -> tuple[ProposedOperation, ...]:
        """Return the proposed operations; empty for other kinds of questions."""
        return self.parsed.recorded() if isinstance(self.parsed, Proposals) else ()

    @property
    def event_fields(self) -> dict[str, Any]:
        """Return the fields that an event stores: all except `parsed`."""
        return {name: value for name, value in vars(self).items() if name != "parsed"}


def ask(prompt: Prompt, settings: ModelSettings, policy: GatewayPolicy) -> Reply:
    """Send one question. Raises ConfigError if the model is unusable (unknown provider, no key, no tool support)."""
    from pydantic_ai import Agent, capture_run_messages
    from pydantic_ai.exceptions import AgentRunError, UserError
    from pydantic_ai.messages import ModelResponse

    agent = Agent(
        _model(settings),
        output_type=prompt.answer,
        instructions=prompt.instructions,
        retries={"output": policy.corrections_max, "tools": 0},
        model_settings={
            "max_tokens": policy.output_tokens_max,
            "request_timeout": policy.request_seconds_max,
            "max_retries": policy.retries_max,
            "temperature": 0.0,
        },
    )
    outcome: Outcome = "answered"
    parsed: BaseModel | None = None
    detail, connection_broke, started = "", False, time.monotonic()
    with capture_run_messages() as messages:
        try:
            parsed = agent.run_sync(prompt.question).output
        except UserError as error:
            raise ConfigError(f"{settings.provider}:{settings.model} cannot be asked for this: {error}") from error
        except (AgentRunError, *_TRIPPED) as error:
            outcome, detail = _failure(error)
            connection_broke = _connection_broke(error)
    responses = [message for message in messages if isinstance(message, ModelResponse)]
    if outcome == "malformed" and any(response.finish_reason == "content_filter" for response in responses):
        outcome, detail = "refused", _text(responses[-1])
    # An unreadable response is missing from `responses`, and so are its token counts.
    unread = outcome == "malformed" and len(responses) <= policy.corrections_max and messages[-1] not in responses
    return Reply(
        outcome=outcome,
        detail=_clip(" ".join(detail.split())),
        answer=_clip(_text(responses[-1])) if responses else None,
        parsed=parsed,
        latency_ms=round((time.monotonic() - started) * 1000),
        **_usage(responses, connection_broke or unread or outcome == "timed_out", prompt, settings, policy),
    )


def _model(settings: ModelSettings) -> Model:
    """Build the pydantic-ai model; its provider reads the key from the environment."""
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models import infer_model
    from pydantic_ai.providers import Provider, infer_provider, infer_provider_class

    def provider(name: str) -> Provider[Any]:
        if settings.url is None:
            return infer_provider(name)
        provider_class: Any = infer_provider_class(name)
        return provider_class(base_url=settings.url)

    try:
        return infer_model(f"{settings.provider}:{settings.model}", provider)
    except (UserError, ValueError, ImportError) as error:
        raise ConfigError(f"no language model {settings.provider}:{settings.model} can be asked: {error}") from error
    except TypeError as error:
        raise ConfigError(f"{settings.provider} takes no other address: unset {URL}") from error


def _failure(error: Exception) -> tuple[Outcome, str]:
    """Return the kind of failure and one line of detail without the prompt."""
    from pydantic_ai import exceptions

    if isinstance(error, exceptions.ContentFilterError):
        return "refused", error.message
    if isinstance(error, exceptions.ModelRequestTimeout | exceptions.ModelTimeoutError):
        return "timed_out", error.message
    if isinstance(error, exceptions.UnexpectedModelBehavior):
        return "malformed", f"{error.message}: {_cause_text(error.__cause__)}" if error.__cause__ else error.message
    if isinstance(error, _TRIPPED):
        return "malformed", f"the answer is no message of this provider's: {type(error).__name__}: {error}"
    if (
        isinstance(error, exceptions.ModelAPIError)
        and not isinstance(error, exceptions.ModelHTTPError)
        and "JSON" in error.message
    ):
        return "malformed", error.message
    return "failed", str(error)


def _connection_broke(error: Exception) -> bool:
    """Whether an established connection broke: the provider may have charged tokens that it did not report."""
    from pydantic_ai.exceptions import ModelConnectionError

    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    return isinstance(error, ModelConnectionError) and not any(type(e).__name__ == "ConnectError" for e in chain)


def _cause_text(cause: BaseException) -> str:
    """Return one phrase per validation error, with its location."""
    from pydantic import ValidationError

    if isinstance(cause, ValidationError):
        errors = cause.errors(include_url=False, include_context=False, include_input=True)
        return "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'answer'}: {e['msg']}, not {e['input']!r:.80}" for e in errors
        )
    return str(cause)


def _text(response: ModelResponse) -> str:
    """Return the text of a response: arguments of its tool calls, text parts, and the refusal."""
    from pydantic_ai.messages import TextPart, ToolCallPart

    parts = [
        part.content
        if isinstance(part, TextPart)
        else part.args
        if isinstance(part.args, str)
        else json.dumps(part.args, ensure_ascii=False)
        for part in response.parts
        if isinstance(part, ToolCallPart | TextPart)
    ]
    refusal = (response.provider_details or {}).get("refusal")
    return "\n".join([*parts, *([str(refusal)] if refusal else [])])


def _usage(
    responses: list[ModelResponse], incomplete: bool, prompt: Prompt, settings: ModelSettings, policy: GatewayPolicy
) -> dict[str, int]:
    """Return token counts and price; the maximum price if the provider's counts are incomplete."""
    input_tokens = sum(response.usage.input_tokens for response in responses)
    output_tokens = sum(response.usage.output_tokens for response in responses)
    incomplete = incomplete or any(not response.usage.output_tokens for response in responses)
    counted = cost_micros(settings, input_tokens, output_tokens, policy)
    return {
        "request_count": len(responses),
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "cost_micros": max(counted, most_micros(settings, prompt.size_bytes, policy)) if incomplete else counted,
    }


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
    """Return the maximum price of a question: every correction with an answer of maximum length, no HTTP retries."""
    input_tokens, output_tokens = math.ceil(prompt_bytes / policy.bytes_per_token), policy.output_tokens_max
    rounds = range(policy.corrections_max + 1)
    return sum(cost_micros(settings, input_tokens + 2 * output_tokens * n, output_tokens, policy) for n in rounds)


def _clip(text: str) -> str:
    """Mask secrets of the environment, replace invalid UTF-8, and cut to ANSWER_LENGTH_MAX."""
    for name, value in os.environ.items():
        if name.endswith(_SECRET) and len(value) >= _SECRET_LENGTH_MIN:
            text = text.replace(value, f"({name})")
    return text.encode("utf-8", "replace").decode()[:ANSWER_LENGTH_MAX]
