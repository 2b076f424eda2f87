"""Base class and number types of the policy's parts."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

T = TypeVar("T")

Unit = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
PositiveCount = Annotated[int, Field(ge=1)]


def setting(default: T, description: str, **bounds: Any) -> T:
    """Declare a setting: its value in the specification, its meaning with the source, and limits beyond its type."""
    return Field(default, description=description, **bounds)


class Frozen(BaseModel):
    """A part of the policy: immutable, rejects unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def require_sum_of_one(self, *names: str) -> None:
        """Raise ValueError unless these settings sum to 1."""
        if abs(sum(getattr(self, name) for name in names) - 1.0) > 1e-9:
            raise ValueError(f"{', '.join(names[:-1])} and {names[-1]} do not sum to 1")


class Operational(Frozen):
    """A part of the policy that its hash leaves out, because no derived table depends on it."""
