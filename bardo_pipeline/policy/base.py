"""What every part of the policy is made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Unit = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class Frozen(BaseModel):
    """A part of the policy: immutable, and strict about unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def shares(self, *names: str) -> None:
        """Raises ValueError where these settings, parts of one whole, do not sum to 1."""
        if abs(sum(getattr(self, name) for name in names) - 1.0) > 1e-9:
            raise ValueError(f"{', '.join(names[:-1])} and {names[-1]} do not sum to 1")
