"""The gate of the memory tools: the capability BARDO_MEMORY_ENABLED and the learning profile. Source: TOOLS, MEM-21."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from bardo_pipeline.errors import MemoryGateError
from bardo_pipeline.process_settings import LEARNING, ToolSettings

ENABLED, PROFILE = "BARDO_MEMORY_ENABLED", "BARDO_PROFILE"


@dataclass(frozen=True)
class MemoryGate:
    """The settings that open the memory tools.

    Parameters
    ----------
    enabled : value of BARDO_MEMORY_ENABLED
    profiles : active profiles, from BARDO_PROFILE; without this variable the learning profile alone
    """

    enabled: bool
    profiles: frozenset[str] = frozenset({LEARNING})

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """Read the gate from environment variables. Raises ConfigError for a value that is no truth value."""
        settings = ToolSettings.of(environ)
        return cls(settings.memory_enabled, settings.profile)

    @property
    def is_open(self) -> bool:
        """Whether the memory tools may be called."""
        return self.enabled and LEARNING in self.profiles

    def check(self, tool_name: str) -> None:
        """Raise MemoryGateError if the memory tools are closed."""
        if not self.enabled:
            raise MemoryGateError(f"tool {tool_name}: the memory tools are off: set {ENABLED}=true")
        if LEARNING not in self.profiles:
            active = ", ".join(sorted(self.profiles)) or "none"
            raise MemoryGateError(
                f"tool {tool_name} needs the profile {LEARNING}; active profiles: {active}: add it to {PROFILE}"
            )
