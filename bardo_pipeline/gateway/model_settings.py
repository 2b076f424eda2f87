"""Settings of the language model, read from the environment. Without BARDO_MODEL no model is used.

The provider's library reads the key itself (OPENAI_API_KEY, ANTHROPIC_API_KEY, …). The key is never recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bardo_pipeline.errors import ConfigError

MODEL, URL = "BARDO_MODEL", "BARDO_MODEL_URL"


@dataclass(frozen=True)
class ModelSettings:
    """provider, model: pydantic-ai names (`openai-chat`, `anthropic`). url: overrides the provider's own."""

    provider: str
    model: str
    url: str | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> ModelSettings | None:
        """Read the settings; None if BARDO_MODEL is not set. Raises ConfigError if it is not PROVIDER:MODEL."""
        value = environment.get(MODEL, "").strip()
        if not value:
            return None
        provider, _, model = value.partition(":")
        if not provider or not model:
            raise ConfigError(f"{MODEL} {value!r} is not PROVIDER:MODEL: for example anthropic:claude-haiku-4-5")
        return cls(provider, model, environment.get(URL, "").strip() or None)

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
