"""Which language model is asked, as the environment says. Without BARDO_MODEL there is none, and nothing is asked.

The key stays where the provider looks for it (OPENAI_API_KEY, ANTHROPIC_API_KEY, …) and is never recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bardo_pipeline.errors import ConfigError

MODEL, URL = "BARDO_MODEL", "BARDO_MODEL_URL"


@dataclass(frozen=True)
class ModelSettings:
    """provider, model: as pydantic-ai names them (`openai-chat`, `anthropic`). url: in place of the provider's own."""

    provider: str
    model: str
    url: str | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> ModelSettings | None:
        """What the environment names, None where it names none. Raises ConfigError for what is no PROVIDER:MODEL."""
        named = environment.get(MODEL, "").strip()
        if not named:
            return None
        provider, _, model = named.partition(":")
        if not provider or not model:
            raise ConfigError(f"{MODEL} {named!r} is not PROVIDER:MODEL: for example anthropic:claude-haiku-4-5")
        return cls(provider, model, environment.get(URL, "").strip() or None)

    @classmethod
    def wanted(cls, environment: Mapping[str, str]) -> ModelSettings:
        """The same where a model is needed. Raises ConfigError where the environment names none."""
        found = cls.of(environment)
        if found is None:
            raise ConfigError(
                f"no language model is configured: set {MODEL} to PROVIDER:MODEL (and the provider's key, "
                f"{URL} for another address)"
            )
        return found
