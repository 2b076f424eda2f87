"""Base classes of the arguments and results of the tools, and the counts that a write states."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class Arguments(BaseModel):
    """Arguments of a tool. A name that the tool does not have is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Result(BaseModel):
    """Result of a tool."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def document(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return self.model_dump(mode="json")


class WriteCounts(Result):
    """Number of rows in the log before and after a write (TOOLS, "Ground truth")."""

    counted: str = Field(description="Rows that were counted, for example `StrategyStored of golem g-1`.")
    before: int = Field(ge=0, description="Number of these rows in the log before the write.")
    expected: int = Field(ge=0, description="Number that the write should leave in the log.")
    after: int = Field(ge=0, description="Number read from the log after the write; equal to `expected`.")


Label = Annotated[str, Field(min_length=1, max_length=256)]
"""A name or short label."""

Words = Annotated[str, Field(max_length=65_536)]
"""Free text, at most 65,536 characters."""

Statement = Annotated[str, Field(min_length=1, max_length=65_536)]
"""Free text that may not be empty."""

Dollars = Annotated[float, Field(ge=-1e12, le=1e12, allow_inf_nan=False)]
"""An amount in US dollars."""

Json = JsonValue
"""Any JSON value, at most 65,536 bytes."""


def micros(dollars: float | None) -> int | None:
    """Return dollars as whole micro-dollars; None stays None."""
    return None if dollars is None else round(dollars * 1e6)


def dollars(micro_dollars: float | None) -> float | None:
    """Return micro-dollars as dollars; None stays None."""
    return None if micro_dollars is None else micro_dollars / 1e6
