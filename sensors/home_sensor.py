"""Declaration of a sensor that looks at a home; cursor in the event log; run requests with the reason as a tag."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import dagster as dg

from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.errors import NoHomeError

FEW = 5

Decision = dg.RunRequest | dg.SensorResult | dg.SkipReason
Look = Callable[[dg.SensorEvaluationContext, LazyStores], Decision]


def home_sensor(job: Any, seconds: int, text: str, *, running: bool = True) -> Callable[[Look], dg.SensorDefinition]:
    """Decorate a function that looks at a home; the sensor takes its name. Skips without a home.

    Parameters
    ----------
    job : asset job or op job that the sensor requests
    seconds : minimum interval between two looks
    running : start with Dagster (True) or only after an operator switches the sensor on
    """
    status = dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED
    suffix = " Starts with Dagster; switch it off on its page." if running else ""

    def decorate(look: Look) -> dg.SensorDefinition:
        """Return the sensor of a look."""

        def evaluate(context: dg.SensorEvaluationContext, home: dg.ResourceParam[LazyStores]) -> Decision:
            try:
                return look(context, home)
            except NoHomeError as error:
                return dg.SkipReason(str(error))

        sensor = dg.sensor(
            name=look.__name__,
            job=job,
            minimum_interval_seconds=seconds,
            default_status=status,
            description=text + suffix,
        )
        return sensor(evaluate)

    return decorate


@dataclass(frozen=True)
class Cursor:
    """Log versions read last, None before the first look. `home` is the creation time of the home."""

    home: str
    log_version: int | None
    life_version: int | None

    @classmethod
    def of(cls, stores: DerivationContext) -> Self:
        """Return a cursor at the current log versions."""
        return cls(stores.home.created_at.isoformat(), stores.log.version, stores.log.life_version)

    @classmethod
    def read(cls, text: str | None, *, home: str) -> Self:
        """Parse a stored cursor. Missing, unreadable or another home's: a cursor before the first look."""
        try:
            stored = cls(**json.loads(text or "{}"))
        except (TypeError, json.JSONDecodeError):
            stored = cls("", None, None)
        return stored if stored.home == home else cls(home, None, None)

    @property
    def text(self) -> str:
        """Serialise the cursor for Dagster's storage."""
        return json.dumps(asdict(self))

    @property
    def run_key(self) -> str:
        """Return a run key that repeats only while log and life events are unchanged."""
        return f"{self.home}/log-{self.log_version}-life-{self.life_version}"


def request(why: str, run_key: str | None = None) -> dg.RunRequest:
    """Return a run request that is tagged with its reason."""
    return dg.RunRequest(run_key=run_key, tags={"bardo/why": why})


def advance(result: dg.RunRequest | str, cursor: Cursor) -> dg.SensorResult:
    """Return a run request, or the reason to skip, and store the cursor."""
    if isinstance(result, str):
        return dg.SensorResult(skip_reason=dg.SkipReason(result), cursor=cursor.text)
    return dg.SensorResult(run_requests=[result], cursor=cursor.text)


def request_for(stores: DerivationContext, waiting: Sequence[str], why: str) -> dg.RunRequest:
    """Return one run request for all waiting items; its run key lists them, so that no run repeats."""
    return request(why, f"{stores.home.created_at.isoformat()}/{', '.join(waiting)}")


def few(items: Sequence[str], between: str = ", ") -> str:
    """Join the first FEW items and the count of the rest."""
    more = f" and {len(items) - FEW} more" if len(items) > FEW else ""
    return f"{between.join(items[:FEW])}{more}"
