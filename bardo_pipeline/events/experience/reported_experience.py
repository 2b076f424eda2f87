"""Reports: a situation, an action and its reward, from which the record of a tick is built. Pure.

A runtime in any domain reports in this form. Its record has the market "none" and neutral figures wherever the report
says nothing. Source: docs/adr/0088.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from bardo_pipeline.errors import RecordError
from bardo_pipeline.events.record.model import (
    NO_MARKET,
    PROBES,
    AlternativeAction,
    Condition,
    DecisionCycleRecord,
    Experience,
    LivedTick,
    Moment,
    Name,
    Part,
)

GENERAL = "general"
RUNTIME = "runtime"
UNSTATED = "unstated"
"""Kind of a retrieved entry that a report names by its id alone; the marts state the kind of the entry."""

M = TypeVar("M", bound="Report")

Reward = Annotated[float, Field(ge=-1.0, le=1.0, allow_inf_nan=False)]
Value = Annotated[str, Field(min_length=1, max_length=256)] | bool | int
Situation = dict[Name, Value]


class Report(Part):
    """A situation, the action taken in it, and its reward."""

    situation: Situation = Field(
        default_factory=dict,
        description="Conditions at the decision: a name and a value each. Give words or whole numbers: equal values "
        "make equal situations.",
    )
    action: Name = Field(description="Action that was taken, in the runtime's own words.")
    reward: Reward = Field(
        description="Reward of the action: 1 is the best possible result, 0 changes nothing, -1 is the worst."
    )
    alternatives: dict[Name, Reward | None] = Field(
        default_factory=dict,
        description="Actions that were considered and not taken, each with the reward that it would have earned, or "
        "null if that is unknown.",
    )
    decision_tick: LivedTick | None = Field(
        None, description="Tick at which the action was chosen; the tick of the report by default."
    )
    verified: bool = Field(True, description="Whether the reward was measured. An expected reward is no evidence.")
    ground_truth_source: Name = Field(RUNTIME, description="Source of the reward.")
    entries_read: tuple[Name, ...] = Field(
        (),
        max_length=1_000,
        description="Ids of the entries that the agent read before it chose the action, such as warnings and rules of "
        "its advice.",
    )

    def experience(self, tick: int) -> Experience:
        """Return the report as part of the record of a tick."""
        conditions = sorted((name, word_of(value)) for name, value in self.situation.items())
        others = sorted(self.alternatives.items())
        return Experience(
            decision_tick=self.decision_tick or tick,
            action=self.action,
            conditions=tuple(Condition(name=name, value=value) for name, value in conditions),
            reward_ppm=round(self.reward * 1e6),
            alternatives=tuple(
                AlternativeAction(action=name, reward_ppm=None if reward is None else round(reward * 1e6))
                for name, reward in others
            ),
            verified=self.verified,
            ground_truth_source=self.ground_truth_source,
        )


class TimedReport(Report):
    """A report with the golem, tick and time of its record; a line of a `*.experience.jsonl` file."""

    golem_id: Name = Field(description="Golem that acted.")
    tick: LivedTick = Field(description="Tick of the record: 1, 2, 3 and so on without a gap.")
    observed_at: Moment = Field(description="Time of the tick in UTC, with its offset.")
    domain: Name = Field(GENERAL, description="Domain of the actions; rules of different domains are apart.")


def report(situation: Mapping[str, Any], action: str, reward: float, *, alternatives: Any = (), **parts: Any) -> Report:
    """Return a report. Raises RecordError for a part that is no valid one.

    Parameters
    ----------
    situation : conditions at the decision, as words or whole numbers
    reward : from -1 for the worst result to 1 for the best one
    alternatives : names of actions that were considered, or each with the reward that it would have earned
    parts : decision_tick, verified, ground_truth_source, entries_read
    """
    others = dict(alternatives) if isinstance(alternatives, Mapping) else dict.fromkeys(alternatives)
    return checked(Report, {"situation": situation, "action": action, "reward": reward, "alternatives": others} | parts)


def checked(model: type[M], parts: Mapping[str, Any]) -> M:
    """Validate the parts of a report. Raises RecordError, which names the part and the cure."""
    try:
        return model.model_validate(dict(parts), strict=False)
    except ValidationError as error:
        raise RecordError(fault_of(error)) from None


def word_of(value: str | bool | int) -> str:
    """Return the value of a condition as text; True and False are `true` and `false`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def record_of(
    golem_id: str,
    tick: int,
    observed_at: datetime,
    reports: Iterable[Report] = (),
    *,
    domain: str = GENERAL,
    **parts: Any,
) -> DecisionCycleRecord:
    """Build the record of a tick from reports; every other part has a neutral value unless it is given.

    Parameters
    ----------
    tick : 1 for the golem's first record, then each number once
    observed_at : time of the tick in UTC
    domain : protocol of the observation, if no observation is given; rules of different domains are apart
    parts : fields of DecisionCycleRecord, such as `observation`, `cost` or `regime`

    Raises
    ------
    RecordError : a part is not valid, or a report names entries that were read at another tick

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> told = report({"task": "lookup"}, "search", 0.8, alternatives=["guess"])
    >>> record = record_of("g-1", 1, datetime(2026, 1, 1, tzinfo=UTC), [told], domain="tools")
    >>> record.experiences[0].reward_ppm
    800000
    """
    given = {"golem_id": golem_id, "tick": tick, "observed_at": observed_at} | parts
    reports = tuple(reports)
    try:
        experiences = tuple(each.experience(tick) for each in reports) or None
        built = {"observation": _nowhere(domain), "experiences": experiences}
        given["retrieved_entries"] = (*parts.get("retrieved_entries", ()), *_entries_read(golem_id, tick, reports))
        return DecisionCycleRecord.model_validate(_NEUTRAL | built | given)
    except ValidationError as error:
        raise RecordError(f"golem {golem_id}, tick {tick}: {fault_of(error)}") from None


def _entries_read(golem_id: str, tick: int, reports: Iterable[Report]) -> list[dict[str, Any]]:
    """Return the entries that reports name, each once, as retrieved entries without a score."""
    named: dict[str, None] = {}
    for each in reports:
        if each.entries_read and each.decision_tick not in (None, tick):
            raise RecordError(
                f"golem {golem_id}, tick {tick}: entries_read: a record states entries that were read at its tick, "
                f"and the action was chosen at tick {each.decision_tick}: leave out decision_tick or entries_read"
            )
        named |= dict.fromkeys(each.entries_read)
    return [{"entry_id": entry_id} | _UNSCORED for entry_id in named]


def record_of_report(timed: TimedReport) -> DecisionCycleRecord:
    """Build the record of one timed report."""
    return record_of(timed.golem_id, timed.tick, timed.observed_at, [timed], domain=timed.domain)


def fault_of(error: ValidationError) -> str:
    """Return the first fault of a report or record, with its cure where one is known."""
    fault = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in fault["loc"])
    given = f"{fault['input']!r:.80}"
    if fault["loc"][:1] in (("reward",), ("alternatives",)) and fault["type"] in _OUTSIDE:
        return f"{place}: {given} is outside -1 to 1: divide rewards by the largest possible one"
    if fault["loc"][:1] == ("situation",) and isinstance(fault["input"], float):
        place = f"situation.{fault['loc'][1]}"  # pydantic adds the kind of value that it expected
        return f"{place}: {given} is a fraction, which rarely recurs: give a band as a word, such as 'high'"
    return f"{place}: {fault['msg']}, not {given}"


_OUTSIDE = ("less_than_equal", "greater_than_equal")


def _nowhere(domain: str) -> dict[str, Any]:
    """Return the observation of a runtime without a market."""
    names: Sequence[str] = ("market", "chain", "pair", "pool")
    zeros = ("price_return", "gas_gwei", "anomaly_score", "volume_micros", "idle_micros", "net_asset_value_micros")
    ones = ("price", "price_low", "price_high", "liquidity", "gas_hour_ratio")  # their logarithms are taken
    return (
        dict.fromkeys(names, NO_MARKET)
        | dict.fromkeys(zeros, 0)
        | dict.fromkeys(ones, 1.0)
        | dict.fromkeys(("block_number", "sma", "sigma_ratio", "rsi", "macd"))
        | {"protocol": domain, "positions": ()}
    )


_UNSCORED = {"kind": UNSTATED} | dict.fromkeys(("score", "semantic", "recency", "importance", "affect"), 0.0)
_CALM = {"pleasure": 0.0, "arousal": 0.0, "dominance": 0.0}
_NEUTRAL: dict[str, Any] = {
    "cycle_seen": 0, "derivation_id": None, "playbook_version": 0, "regime": "unknown", "tick_interval_seconds": 0,
    "probe_results": tuple(
        {"probe": name, "severity": None, "value": None, "threshold": None, "detail": None} for name in PROBES
    ),
    "anomalies": (), "predictions": (), "pad_before": _CALM, "pad_after": _CALM, "somatic_markers_fired": (),
    "primary_emotion": "trust", "prediction_error": 0.0,
    "prediction_error_sources": {
        "price": None, "regime": 0.0, "health": None, "threat": None, "interventions": 0.0, "anomalies": 0.0,
    },
    "deliberation_threshold": 1.0, "tier": "T0", "forced_by": None, "gating_reason": "reported by its runtime",
    "context_bundle_summary": None, "retrieved_entries": (), "active_interventions": (), "deliberation": None,
    "actions": (), "outcome": None, "resolutions": (), "episodes_written": (), "grimoire_mutations": (),
    "vitality": {"economic": 1.0, "epistemic": 1.0, "stochastic": 1.0, "composite": 1.0}, "phase": "thriving",
    "credits_micros": 0, "credit_consumed_micros": 0,
    "cost": {"inference_micros": 0, "gas_micros": 0, "total_micros": 0},
}  # fmt: skip
"""Parts of a record about which its runtime says nothing."""
