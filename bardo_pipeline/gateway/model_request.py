"""Asking: one question to a language model with a structured answer, and every way in which it can go wrong.

Nothing is raised for what a model or its provider does: the reply says what happened, since failures are recorded too.
Source: MEM-4; architecture ("What is an event": answers of a model).
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bardo_pipeline.curator.model_prompt import Prompt
from bardo_pipeline.curator.state.proposal_schema import Proposals
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.events.life.proposal_events import Outcome, ProposedOperation
from bardo_pipeline.gateway.model_prices import cost_micros, most_micros
from bardo_pipeline.gateway.model_settings import URL, ModelSettings
from bardo_pipeline.policy import GatewayPolicy

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model

ANSWER_LENGTH_MAX = 65_536

_SECRET, _SECRET_LENGTH_MIN = ("_KEY", "_TOKEN", "_SECRET"), 8
"""How the environment names what is never recorded; shorter ones are words."""

_TRIPPED = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What a provider's library raises where an answer is JSON and no message: it trusts that it is one."""


@dataclass(frozen=True)
class Reply:
    """What came of asking. answer: the last answer as it came, None where none did. given: the same in the prompt's
    schema, None where it is not in it. cost_micros: where the provider counted nothing though it may have answered, the
    most that asking may have cost."""

    outcome: Outcome
    detail: str
    answer: str | None
    given: BaseModel | None = None
    request_count: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_micros: int = 0
    latency_ms: int = 0

    @property
    def operations(self) -> tuple[ProposedOperation, ...]:
        """What was proposed; none where something else was asked."""
        return self.given.recorded() if isinstance(self.given, Proposals) else ()

    @property
    def told(self) -> dict[str, Any]:
        """All of it but what was given, as an event carries it."""
        return {name: value for name, value in vars(self).items() if name != "given"}


def ask(prompt: Prompt, settings: ModelSettings, policy: GatewayPolicy) -> Reply:
    """Ask once. Raises ConfigError if no such model can be asked at all (unknown provider, no key, no tools)."""
    from pydantic_ai import Agent, capture_run_messages
    from pydantic_ai.exceptions import AgentRunError, UserError

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
    given: BaseModel | None = None
    detail, broke, begun = "", False, time.monotonic()
    with capture_run_messages() as messages:
        try:
            given = agent.run_sync(prompt.question).output
        except UserError as error:
            raise ConfigError(f"{settings.provider}:{settings.model} cannot be asked for this: {error}") from error
        except (AgentRunError, *_TRIPPED) as error:
            outcome, detail = _went_wrong(error)
            broke = _broke(error)
    responses = _responses(messages)
    if outcome == "malformed" and any(response.finish_reason == "content_filter" for response in responses):
        outcome, detail = "refused", _said(responses[-1])
    return Reply(
        outcome=outcome,
        detail=_clip(" ".join(detail.split())),
        answer=_clip(_said(responses[-1])) if responses else None,
        given=given,
        latency_ms=round((time.monotonic() - begun) * 1000),
        **_spent(outcome, messages, prompt, settings, policy, broke=broke),
    )


def _responses(messages: list[ModelMessage]) -> list[ModelResponse]:
    from pydantic_ai.messages import ModelResponse

    return [message for message in messages if isinstance(message, ModelResponse)]


def _model(settings: ModelSettings) -> Model:
    """The model as pydantic-ai knows it; its provider takes the key from the environment."""
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models import infer_model
    from pydantic_ai.providers import Provider, infer_provider, infer_provider_class

    def provider(name: str) -> Provider[Any]:
        if settings.url is None:
            return infer_provider(name)
        maker: Any = infer_provider_class(name)
        return maker(base_url=settings.url)

    try:
        return infer_model(f"{settings.provider}:{settings.model}", provider)
    except (UserError, ValueError, ImportError) as error:
        raise ConfigError(f"no language model {settings.provider}:{settings.model} can be asked: {error}") from error
    except TypeError as error:
        raise ConfigError(f"{settings.provider} takes no other address: unset {URL}") from error


def _went_wrong(error: Exception) -> tuple[Outcome, str]:
    """The kind of failure, and what it was, in one line and without what was sent."""
    from pydantic_ai.exceptions import (
        ContentFilterError,
        ModelAPIError,
        ModelHTTPError,
        ModelRequestTimeout,
        ModelTimeoutError,
        UnexpectedModelBehavior,
    )

    if isinstance(error, ContentFilterError):
        return "refused", error.message
    if isinstance(error, ModelRequestTimeout | ModelTimeoutError):
        return "timed_out", error.message
    if isinstance(error, UnexpectedModelBehavior):
        return "malformed", f"{error.message}: {_why(error.__cause__)}" if error.__cause__ else error.message
    if isinstance(error, _TRIPPED):
        return "malformed", f"the answer is no message of this provider's: {type(error).__name__}: {error}"
    if isinstance(error, ModelAPIError) and not isinstance(error, ModelHTTPError) and "JSON" in error.message:
        return "malformed", error.message
    return "failed", str(error)


def _broke(error: Exception) -> bool:
    """Whether a connection that stood broke: the provider may have answered, and nobody heard what it counts."""
    from pydantic_ai.exceptions import ModelConnectionError

    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    return isinstance(error, ModelConnectionError) and not any(type(one).__name__ == "ConnectError" for one in chain)


def _why(cause: BaseException) -> str:
    """What a validation found, place by place."""
    from pydantic import ValidationError

    if isinstance(cause, ValidationError):
        found = cause.errors(include_url=False, include_context=False, include_input=True)
        return "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'answer'}: {e['msg']}, not {e['input']!r:.80}" for e in found
        )
    return str(cause)


def _said(response: ModelResponse) -> str:
    """The text of an answer: the arguments of the call that carries it, or what it says instead."""
    from pydantic_ai.messages import TextPart, ToolCallPart

    parts = [
        part.content if isinstance(part, TextPart) else part.args if isinstance(part.args, str) else _json(part.args)
        for part in response.parts
        if isinstance(part, ToolCallPart | TextPart)
    ]
    refusal = (response.provider_details or {}).get("refusal")
    return "\n".join([*parts, *([str(refusal)] if refusal else [])])


def _json(arguments: object) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def _spent(
    outcome: str,
    messages: list[ModelMessage],
    prompt: Prompt,
    settings: ModelSettings,
    policy: GatewayPolicy,
    *,
    broke: bool,
) -> dict[str, int]:
    responses = _responses(messages)
    given = sum(response.usage.input_tokens for response in responses)
    taken = sum(response.usage.output_tokens for response in responses)
    # One that could not be read at all is not among the responses, nor is what it counts.
    unread = outcome == "malformed" and len(responses) <= policy.corrections_max
    unread = unread and messages[-1] not in responses
    uncounted = broke or unread or outcome == "timed_out"
    uncounted = uncounted or any(not response.usage.output_tokens for response in responses)
    counted = cost_micros(settings, given, taken, policy)
    return {
        "request_count": len(responses),
        "input_tokens": given,
        "output_tokens": taken,
        "cost_micros": max(counted, most_micros(settings, prompt.size_bytes, policy)) if uncounted else counted,
    }


def _clip(text: str) -> str:
    """As much as a text of the log may hold, only what can be stored as UTF-8, and no key that a provider repeats."""
    for name, value in os.environ.items():
        if name.endswith(_SECRET) and len(value) >= _SECRET_LENGTH_MIN:
            text = text.replace(value, f"({name})")
    return text.encode("utf-8", "replace").decode()[:ANSWER_LENGTH_MAX]
