"""Observing: golems that fell silent are declared dead, by whoever looks; their last record is their end.

What an observer declares follows from what is on record: two of them declare the same, and a death that is on record
already stands. Ticks that never came up to that end are given up, so that what the golem learned can be derived.
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
from bardo_pipeline.derivation.death.death_queries import waiting_golems
from bardo_pipeline.derivation.incremental.record_queries import last_records
from bardo_pipeline.errors import LeaseError, RecordError
from bardo_pipeline.events.life.events import Died, Gap, LifeEvent, life_event
from bardo_pipeline.events.life.thanatopsis_events import SILENCE
from bardo_pipeline.events.record.model import PHASES
from bardo_pipeline.mortality.silence_limit import HEARD_SCHEMA, silent
from bardo_pipeline.mortality.vitality import phase_codes
from bardo_pipeline.storage.journal.drainer import drain_once
from bardo_pipeline.storage.journal.leases import lease_path, leased, stale

_END = (
    "golem_id", "tick", "observed_at", "phase", "vitality", "credits_micros", "observation.net_asset_value_micros",
)  # fmt: skip

Outcome = Literal["silent", "declared", "held", "lives"]


@dataclass(frozen=True)
class Silence:
    """A golem of which nothing was heard: its last tick (0 for none), when that was, up to when, and what came of it.

    silent: nothing was declared, since one only looked. declared: its death is on record now. held: a writer of it
    still runs, and nobody but that writer may end it. lives: it ticked, or died, while one looked. why: in words.
    """

    golem_id: str
    tick: int
    at: datetime
    until: datetime
    outcome: Outcome
    why: str

    @property
    def hours(self) -> float:
        """How long it was silent."""
        return (self.until - self.at) / timedelta(hours=1)


def declare_silent_golems(
    context: DerivationContext,
    *,
    now: datetime,
    silence: timedelta | None = None,
    clock: Literal["market", "wall"] | None = None,
    dry_run: bool = False,
) -> list[Silence]:
    """Look for silent golems, and declare them dead. Returns them by id, with what came of each.

    silence, clock: by default the policy's. By the market's clock a golem is silent while others of its market go on,
    in event time; by the wall clock since its last record was recorded, up to now, which is otherwise the moment of
    recording alone. dry_run: only look; else what dead writers had acknowledged is drained before.
    Raises what the drain raises.
    """
    rules = context.policy.dying
    if not dry_run:
        drain_once(context.home, context.log, clock=lambda: now, policy=context.policy)
    by_wall = (clock or rules.silence_clock) == "wall"
    borne = timedelta(hours=rules.silence_hours) if silence is None else silence
    found = silent(last_activity(context, by_wall=by_wall), silence=borne, at=now if by_wall else None).to_pylist()
    if not found:
        return []
    names = [row["golem_id"] for row in found]
    outcomes = _held(context, names) if dry_run else _declare(context, names, now)
    seen: list[Silence] = []
    for row in found:
        outcome, why = outcomes.get(row["golem_id"], ("silent", ""))
        seen.append(Silence(row["golem_id"], row["tick"], row["at"], row["until"], outcome, why))
    return seen


def last_activity(context: DerivationContext, *, by_wall: bool) -> pa.Table:
    """When each golem was heard of last (HEADS of its stream; HEARD_SCHEMA), in event time or as recorded.

    Who was born between runs and waits for a runtime has no heart yet that could be missed.
    """
    when = "recorded_at" if by_wall else "observed_at"
    births = context.life("GolemBorn")
    waiting = pa.array(waiting_golems(context), pa.string())
    births = births.filter(pc.invert(pc.is_in(births["golem_id"], value_set=waiting)))
    names = births["golem_id"].to_pylist()
    if not names:
        return HEARD_SCHEMA.empty_table()
    born = births["born"].combine_chunks()
    market = pc.binary_join_element_wise(pc.struct_field(born, "market"), pc.struct_field(born, "market_hash"), "@")
    at = dict(zip(names, births[when].to_pylist(), strict=True))
    deaths = context.life("DeathDeclared")
    dead = dict(zip(deaths["golem_id"].to_pylist(), deaths[when].to_pylist(), strict=True))
    ends = last_records(context, ("golem_id", "tick", when), [g for g in names if g not in dead])
    last, at_last = (dict(zip(ends["golem_id"].to_pylist(), ends[n].to_pylist(), strict=True)) for n in ("tick", when))
    at |= at_last | dead
    columns = [names, market, [last.get(g, 0) for g in names], [at[g] for g in names], [g not in dead for g in names]]
    return pa.table(dict(zip(HEARD_SCHEMA.names, columns, strict=True))).cast(HEARD_SCHEMA)


def _held(context: DerivationContext, golems: list[str]) -> dict[str, tuple[Outcome, str]]:
    """Those of these golems whose writer's process lives: to them nothing would happen."""
    left = set(stale(context.home))
    told = leased(context.home, golems).items()
    return {g: ("held", f"golem {g} {why}") for g, why in told if lease_path(context.home, g) not in left}


def _declare(context: DerivationContext, golems: list[str], now: datetime) -> dict[str, tuple[Outcome, str]]:
    """Record the deaths of these golems, each for itself: what one writer holds is in no other's way."""
    outcomes: dict[str, tuple[Outcome, str]] = {}
    for golem_id, events in declarations(context, golems).items():
        try:
            fresh = context.log.record(events, now)
        except LeaseError as error:
            outcomes[golem_id] = "held", str(error)
        except RecordError as error:
            outcomes[golem_id] = "lives", str(error)
        else:
            outcomes[golem_id] = ("declared", "") if fresh else ("lives", "its death came on record meanwhile")
    return outcomes


def declarations(context: DerivationContext, golems: list[str]) -> dict[str, list[LifeEvent]]:
    """What an observer declares of golems that live: ticks given up and the death, as events, by golem.

    The death bears the state and the moment of the last record; of a golem without one those of its birth, at tick 1,
    which never came.
    """
    ends = {row["golem_id"]: row for row in last_records(context, _END, golems).to_pylist()}
    consumed = _consumed(context, sorted(ends))
    births = {row["golem_id"]: row for row in context.life("GolemBorn").to_pylist() if row["golem_id"] in golems}
    missing: dict[str, list[tuple[int, int]]] = {g: [] for g in golems}
    for gap in context.log.gaps():
        if gap.golem_id in missing:
            missing[gap.golem_id].append((gap.tick_from, gap.tick_to))
    told: dict[str, list[LifeEvent]] = {}
    for golem_id in golems:
        born, at = births[golem_id]["born"], births[golem_id]["observed_at"]
        died = _unlived(context, born)
        if golem_id in ends:
            end = ends[golem_id]
            at = end["observed_at"]
            died = {
                **{name: end[name] for name in ("tick", "phase", "vitality", "credits_micros")},
                "capital_micros": end["observation.net_asset_value_micros"],
                "earned_micros": end["credits_micros"] - born["credits_micros"] + consumed[golem_id],
            }
        else:
            missing[golem_id] = [(1, 1)]
        gaps = [Gap(tick_from=a, tick_to=b, why="the golem fell silent; it never came") for a, b in missing[golem_id]]
        payload = Died.model_validate({"cause": SILENCE, **died})
        told[golem_id] = [*(life_event(golem_id, at, gap) for gap in gaps), life_event(golem_id, at, payload)]
    return told


def _unlived(context: DerivationContext, born: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a golem that never ticked."""
    fitness = context.policy.prediction.fitness_prior
    return {
        "tick": 1,
        "phase": PHASES[int(phase_codes(np.array([fitness]), context.policy)[0])],
        "vitality": {"economic": 1.0, "epistemic": fitness, "stochastic": 1.0, "composite": fitness},
        "credits_micros": born["credits_micros"],
        "capital_micros": born["capital_micros"],
        "earned_micros": 0,
    }


def _consumed(context: DerivationContext, golems: list[str]) -> dict[str, int]:
    """What each golem's ticks took from its credits, in micro-dollars; what it earned went to them."""
    rows = context.log.read_cycles(["golem_id", "credit_consumed_micros"], golems=golems)
    sums = rows.group_by("golem_id", use_threads=False).aggregate([("credit_consumed_micros", "sum")])
    return dict(zip(sums["golem_id"].to_pylist(), sums["credit_consumed_micros_sum"].to_pylist(), strict=True))
