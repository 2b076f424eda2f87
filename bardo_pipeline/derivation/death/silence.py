"""Declares silent golems dead: their last record becomes their end, and missing ticks before it become gaps.

A declaration is a function of the log, so two observers declare equal events; a recorded death is kept. Gaps let the
curator close the remaining cycles. In event time two other golems and the recording clock witness a silence, so that no
clock of a single golem declares another dead. A golem whose history arrives late is not silent: its birth or last
record was recorded lately, or records of it wait in the spool.
Source: INH-2; architecture ("death (by silence, too)"); MEM ("No golem dies silent").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.unfinished_deaths import missing_ticks
from bardo_pipeline.derivation.incremental.record_queries import last_records, values_by_golem
from bardo_pipeline.derivation.legacy.death_queries import waiting_golems
from bardo_pipeline.errors import LeaseError, RecordError
from bardo_pipeline.events.life.events import Died, Gap, LifeEvent, life_event
from bardo_pipeline.events.life.thanatopsis_events import SILENCE
from bardo_pipeline.events.record.arrow_columns import all_required, required, rows_of_golems, rows_of_other_golems
from bardo_pipeline.events.record.arrow_schema import MOMENT
from bardo_pipeline.events.record.model import PHASES
from bardo_pipeline.grimoire.entry_columns import query_tables
from bardo_pipeline.mortality.vitality import phase_codes
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.intake.spool_folder import shown, waiting_files
from bardo_pipeline.storage.journal.drainer import drain_once
from bardo_pipeline.storage.leases import lease_path, leased, stale_leases
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.log.stream_heads import TickRange

_END = (
    "golem_id", "tick", "observed_at", "phase", "vitality", "credits_micros", "observation.net_asset_value_micros",
)  # fmt: skip

LAST_TICK_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "golem_id", "market"),
        required("tick", pa.int64()),
        required("at", MOMENT),
        required("lives", pa.bool_()),
    ]
)
"""One row per golem: its market, last tick (0 before the first), moment of that tick (else of the birth), alive."""

SILENT_SCHEMA = pa.schema([*(LAST_TICK_SCHEMA.field(n) for n in ("golem_id", "tick", "at")), pa.field("until", MOMENT)])
"""One row per silent golem, sorted by id: its last tick and moment, and the end of the silence (`until`)."""

Outcome = Literal["silent", "declared", "held", "lives"]


@dataclass(frozen=True)
class Silence:
    """A silent golem: its last tick (0 for none) at `at`, the end `until` of the observed silence, and the outcome.

    Outcomes: silent (dry run, nothing declared), declared (death recorded), held (a running writer holds the golem's
    lease, or records of it wait in the spool), lives (the golem ticked or died in the meantime).
    """

    golem_id: str
    tick: int
    at: datetime
    until: datetime
    outcome: Outcome
    why: str

    @property
    def hours(self) -> float:
        """Length of the silence in hours."""
        return (self.until - self.at) / timedelta(hours=1)


def declare_silent_golems(
    context: DerivationContext,
    *,
    now: datetime,
    silence: timedelta | None = None,
    clock: Literal["market", "wall"] | None = None,
    dry_run: bool = False,
) -> list[Silence]:
    """Find silent golems and declare them dead. Return them by id with their outcomes.

    Parameters
    ----------
    now : datetime, recording time; with the wall clock also the end of the silence
    silence : timedelta, tolerated silence; by default the policy's
    clock : "market" compares event time with two other golems of the same market, "wall" recording time with `now`
    dry_run : report only; otherwise acknowledged records of dead writers are drained first, and drain errors raise
    """
    rules = context.policy.dying
    if not dry_run:
        drain_once(context.home, context.log, clock=lambda: now, policy=context.policy)
    by_wall = (clock or rules.silence_clock) == "wall"
    tolerated = timedelta(hours=rules.silence_hours) if silence is None else silence
    silent = silent_golems(
        last_activity(context, by_wall=by_wall), silence=tolerated, at=now if by_wall else None, now=now
    )
    grace = min(tolerated, timedelta(minutes=rules.silence_grace_minutes))
    rows = rows_of_other_golems(silent, _heard_after(context, silent["golem_id"].to_pylist(), now - grace)).to_pylist()
    if not rows:
        return []
    names = [row["golem_id"] for row in rows]
    outcomes = _handed_in(context.home, names)
    silent_names = [name for name in names if name not in outcomes]
    outcomes |= _held_golems(context.home, silent_names) if dry_run else _declare(context, silent_names, now)
    return [
        Silence(row["golem_id"], row["tick"], row["at"], row["until"], *outcomes.get(row["golem_id"], ("silent", "")))
        for row in rows
    ]


def _heard_after(context: DerivationContext, golems: list[str], moment: datetime) -> list[str]:
    """Return which of these golems have a birth or a newest record that was recorded after a moment."""
    births = rows_of_golems(context.life("GolemBorn"), golems)
    ends = last_records(context, ("golem_id", "tick", "recorded_at"), golems)
    heard = values_by_golem(births, "recorded_at") | values_by_golem(ends, "recorded_at")
    return [golem for golem, at in heard.items() if at > moment]


def last_activity(context: DerivationContext, *, by_wall: bool) -> pa.Table:
    """Return each golem's last activity (LAST_TICK_SCHEMA) in event time, or in recording time with `by_wall`.

    Golems that no runtime has resumed since their birth are left out, because they cannot tick yet.
    """
    when = "recorded_at" if by_wall else "observed_at"
    births = rows_of_other_golems(context.life("GolemBorn"), waiting_golems(context))
    names = births["golem_id"].to_pylist()
    died_at = values_by_golem(context.life("DeathDeclared"), when)
    ends = last_records(context, ("golem_id", "tick", when), [g for g in names if g not in died_at])
    ticks = values_by_golem(ends, "tick")
    at = values_by_golem(births, when) | values_by_golem(ends, when) | died_at
    rows = [
        {
            "golem_id": g,
            "market": f"{born['market']}@{born['market_hash']}",
            "tick": ticks.get(g, 0),
            "at": at[g],
            "lives": g not in died_at,
        }
        for g, born in values_by_golem(births, "born").items()
    ]
    return pa.Table.from_pylist(rows, schema=LAST_TICK_SCHEMA)


_SECOND_NEWEST = """
    select market, "at" from last_ticks qualify row_number() over (partition by market order by "at" desc, golem_id) = 2
"""


def silent_golems(
    last_ticks: pa.Table, *, silence: timedelta, at: datetime | None = None, now: datetime | None = None
) -> pa.Table:
    """Return the living golems that were silent for longer than `silence` (SILENT_SCHEMA).

    Parameters
    ----------
    last_ticks : LAST_TICK_SCHEMA, dead golems included, because their last ticks count as events of their market
    at : end of the silence; None: in each market the second newest moment, so that two golems witness the silence
    now : the recording clock; a witness ahead of it counts as of now
    """
    if at is None:
        second = query_tables(_SECOND_NEWEST, last_ticks=last_ticks)
        place = pc.index_in(last_ticks["market"], value_set=second["market"].combine_chunks())
        until = second["at"].take(place).cast(MOMENT)
        if now is not None:
            recording = pa.scalar(now, MOMENT)
            until = pc.if_else(pc.greater(until, recording), recording, until)
    else:
        until = pa.chunked_array([pa.repeat(pa.scalar(at, MOMENT), last_ticks.num_rows)])
    table = last_ticks.select(["golem_id", "tick", "at"]).append_column("until", until.cast(MOMENT))
    limit = pa.scalar(silence, pa.duration("us"))
    chosen = pc.and_(last_ticks["lives"], pc.greater(pc.subtract(table["until"], table["at"]), limit))
    return table.filter(chosen).sort_by("golem_id").cast(SILENT_SCHEMA)


def _handed_in(home: Home, golems: list[str]) -> dict[str, tuple[Outcome, str]]:
    """Outcomes of the golems whose records wait in the spool."""
    files = waiting_files(home, golems).items()
    return {g: ("held", f"records of golem {g} wait in the spool, in {shown(file)}") for g, file in files}


def _held_golems(home: Home, golems: list[str]) -> dict[str, tuple[Outcome, str]]:
    """Outcomes of the golems whose writer process is alive; a declaration would not change these."""
    stale_paths, leases = set(stale_leases(home)), leased(home, golems)
    return {g: ("held", f"golem {g} {why}") for g, why in leases.items() if lease_path(home, g) not in stale_paths}


def _declare(context: DerivationContext, golems: list[str], now: datetime) -> dict[str, tuple[Outcome, str]]:
    """Record each death in a commit of its own, so that one held lease blocks one golem only."""
    outcomes: dict[str, tuple[Outcome, str]] = {}
    for golem_id, events in declarations(context, golems).items():
        try:
            recorded = context.log.record(events, now)
        except LeaseError as error:
            outcomes[golem_id] = "held", str(error)
        except RecordError as error:
            outcomes[golem_id] = "lives", str(error)
        else:
            outcomes[golem_id] = ("declared", "") if recorded else ("lives", "its death was recorded in the meantime")
    return outcomes


def declarations(context: DerivationContext, golems: list[str]) -> dict[str, list[LifeEvent]]:
    """Return golem -> the gap events and the death event that declare it dead.

    The death carries the state and moment of the last record; without a record those of the birth, with tick 1 as gap.
    """
    ends = {row["golem_id"]: row for row in last_records(context, _END, golems).to_pylist()}
    consumed = _consumed(context.log, sorted(ends))
    births = {row["golem_id"]: row for row in context.life("GolemBorn").to_pylist() if row["golem_id"] in golems}
    missing = missing_ticks(context, golems)
    events: dict[str, list[LifeEvent]] = {}
    for golem_id in golems:
        born, at = births[golem_id]["born"], births[golem_id]["observed_at"]
        state = _unlived_state(context.policy, born)
        if golem_id in ends:
            end = ends[golem_id]
            at = end["observed_at"]
            keeps = end["credits_micros"] or consumed[golem_id]  # a runtime without credits states and uses none
            state = {
                **{name: end[name] for name in ("tick", "phase", "vitality", "credits_micros")},
                "capital_micros": end["observation.net_asset_value_micros"],
                "earned_micros": end["credits_micros"] + consumed[golem_id] - born["credits_micros"] if keeps else 0,
            }
        else:
            missing[golem_id] = [TickRange(golem_id, 1, 1)]
        why = "the golem fell silent; it never came"
        gaps = [Gap(tick_from=first, tick_to=last, why=why) for _, first, last in missing[golem_id]]
        payload = Died.model_validate({"cause": SILENCE, **state})
        events[golem_id] = [*(life_event(golem_id, at, gap) for gap in gaps), life_event(golem_id, at, payload)]
    return events


def _unlived_state(policy: Policy, born: Mapping[str, Any]) -> dict[str, Any]:
    """The state at death of a golem without records."""
    fitness = policy.prediction.fitness_prior
    return {
        "tick": 1,
        "phase": PHASES[int(phase_codes(np.array([fitness]), policy)[0])],
        "vitality": {"economic": 1.0, "epistemic": fitness, "stochastic": 1.0, "composite": fitness},
        "credits_micros": born["credits_micros"],
        "capital_micros": born["capital_micros"],
        "earned_micros": 0,
    }


def _consumed(log: EventLog, golems: list[str]) -> dict[str, int]:
    """Golem -> credits that its ticks consumed, in micro-dollars."""
    rows = log.read_cycles(["golem_id", "credit_consumed_micros"], golems=golems)
    sums = rows.group_by("golem_id", use_threads=False).aggregate([("credit_consumed_micros", "sum")])
    return values_by_golem(sums, "credit_consumed_micros_sum")
