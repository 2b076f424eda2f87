"""Settings of a process, read from environment variables. The guide for operators lists them all.

Each class has the variables of one concern, so that a wrong address of the webhook stops no derivation. A variable that
is empty counts as unset. Clients read their variables themselves, because they import no library of models.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from bardo_pipeline.errors import ConfigError

LEARNING = "learning"
"""Profile that the memory tools need."""

_PREFIX = "BARDO_"


class ProcessSettings(BaseSettings):
    """Settings whose variables are BARDO_ and the name of the field."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, frozen=True, validate_default=False, protected_namespaces=())

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read only what `of` passes."""
        return (init_settings,)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings from environment variables. Raises ConfigError for an invalid value, with its variable."""
        source = EnvSettingsSource(cls)
        source.env_vars = {name.lower(): value.strip() for name, value in environ.items() if value.strip()}
        try:
            return cls(**source())
        except ValidationError as error:
            first = error.errors()[0]
            variable, reason = f"{_PREFIX}{str(first['loc'][0]).upper()}", first["msg"].removeprefix("Value error, ")
            raise ConfigError(f"{variable} {first['input']!r}: {reason}; correct or unset it") from None


class HomeSettings(ProcessSettings):
    """The home of a process."""

    home: str = Field(".bardo", description="Folder of the home.")
    owner: str | None = Field(None, description="Owner to whom commands, assets and the UI are limited.")
    embedders: Path | None = Field(None, description="Folder of model files that several homes share.")


class DerivationSettings(ProcessSettings):
    """The derivation under Dagster."""

    buckets: int = Field(1, ge=1, le=64, description="Hash buckets of golems, a partition each of the assets by golem.")


class NoticeSettings(ProcessSettings):
    """The receiver of notices."""

    webhook: str | None = Field(None, description="Address to which notices and failed runs of Dagster are posted.")

    @field_validator("webhook")
    @classmethod
    def _is_address(cls, url: str) -> str:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise ValueError("it is not a URL that begins with http:// or https://")
        return url


class CladeSettings(ProcessSettings):
    """The relay of the clade."""

    relay: str | None = Field(None, description="Address of the relay through which golems of one owner share.")


class LanguageModelSettings(ProcessSettings):
    """The language model that proposes and words."""

    model: str | None = Field(None, description="Language model as PROVIDER:MODEL.")
    model_url: str | None = Field(None, description="Server that speaks the provider's protocol.")

    @field_validator("model")
    @classmethod
    def _is_named(cls, model: str) -> str:
        if not all(model.partition(":")):
            raise ValueError("it is not PROVIDER:MODEL, for example anthropic:claude-haiku-4-5")
        return model


class ToolSettings(ProcessSettings):
    """The gate of the memory tools."""

    memory_enabled: bool = Field(False, description="Whether the memory tools are open.")
    profile: Annotated[
        frozenset[str], NoDecode, BeforeValidator(lambda text: [name.strip().lower() for name in text.split(",")])
    ] = Field(frozenset({LEARNING}), description="Active profiles, separated by commas.")
