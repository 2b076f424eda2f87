"""Queries on births, deaths, recorded succession steps and committed credit.

Source: INH S12, S13.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import (
    curated_through,
    last_event_time,
    require_born,
    values_by_golem,
)
from bardo_pipeline.derivation.legacy.bundle_store import published_bundles
from bardo_pipeline.errors import ConfigError, SuccessionError
from bardo_pipeline.events.life.events import EVERY_GOLEM, Born, Died, golem_name, life_event
from bardo_pipeline.events.life.succession_events import Advanced, Credited
from bardo_pipeline.grimoire.entry_columns import query_tables
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.inheritance.succession_state import Standing, standings
from bardo_pipeline.katabasis.anonymous_votes import DEATH_SCHEMA
from bardo_pipeline.storage.intake.json_reader import sentence_of


@dataclass(frozen=True)
class HeirRequest:
    """The terms of an heir; lifespan_ticks holds the bounds of its lifespan.

    force accepts an heir that diverges too little from its predecessor (canon 43); only manual successions set it.
    """

    budget_micros: int
    inherit: bool = True
    force: bool = False
    lifespan_ticks: tuple[int, int] = Founding().lifespan_ticks


@dataclass(frozen=True)
class DeadGolem:
    """A dead golem with its birth, its death and the hash of its published bundle, None without one."""

    golem_id: str
    born: Born
    died: Died
    died_at: datetime
    bundle_hash: str | None

    @property
    def heir_id(self) -> str:
        """The id that its heir has or would have."""
        return golem_name(self.born.lineage_id, self.born.generation + 1)


SHOW_THE_DEAD = "`bardo graveyard` lists the dead"


def births_of(context: DerivationContext, golem_ids: Collection[str] | None = None) -> dict[str, tuple[Born, datetime]]:
    """Return golem -> (birth, moment) of all or the given golems; of two births the earlier counts."""
    rows = context.life("GolemBorn", golem_ids).select(["golem_id", "observed_at", "born"]).sort_by("observed_at")
    births: dict[str, tuple[Born, datetime]] = {}
    for row in rows.to_pylist():
        births.setdefault(row["golem_id"], (Born.model_validate(row["born"]), row["observed_at"]))
    return births


def owners_of(context: DerivationContext) -> dict[str, str]:
    """Return golem -> owner for every born golem."""
    return values_by_golem(golem_owners(context), "owner_id")


def dead_golem(context: DerivationContext, golem_id: str) -> DeadGolem:
    """Return a dead golem. Raises QueryError for an unknown golem, SuccessionError for a living one."""
    require_born(context, golem_id, SHOW_THE_DEAD)
    dead = dead_golems(context, [golem_id])
    if not dead:
        raise SuccessionError(
            f"golem {golem_id} lives: only a dead golem is succeeded; `bardo golem show {golem_id}` shows its state"
        )
    return dead[0]


def dead_golems(context: DerivationContext, golem_ids: Collection[str]) -> list[DeadGolem]:
    """Return the dead among these golems, by id."""
    births, deaths = births_of(context, golem_ids), deaths_of(context, golem_ids)
    bundles = published_bundles(context, golem_ids)
    return [DeadGolem(g, births[g][0], *deaths[g], bundles.get(g)) for g in sorted(deaths.keys() & births.keys())]


def deaths_of(context: DerivationContext, golem_ids: Collection[str] | None = None) -> dict[str, tuple[Died, datetime]]:
    """Return golem -> (death, moment) of all or the given golems; of two deaths the earlier tick counts."""
    deaths: dict[str, tuple[Died, datetime]] = {}
    for row in context.life("DeathDeclared", golem_ids).select(["golem_id", "observed_at", "died"]).to_pylist():
        died = Died.model_validate(row["died"])
        if row["golem_id"] not in deaths or died.tick < deaths[row["golem_id"]][0].tick:
            deaths[row["golem_id"]] = (died, row["observed_at"])
    return deaths


def heirs_of(context: DerivationContext, golem_id: str) -> list[str]:
    """Return the golems born as heirs of this golem."""
    births = context.life_fields("GolemBorn", "predecessor_id")
    return births.filter(pc.equal(births["predecessor_id"], golem_id))["golem_id"].to_pylist()


def succession_steps(
    context: DerivationContext, golem_ids: Collection[str] | None = None
) -> list[tuple[str, Advanced]]:
    """Return (dead golem, step) for each recorded succession step of all or the given dead golems."""
    rows = context.life("SuccessionAdvanced", golem_ids).select(["golem_id", "advanced"]).to_pylist()
    return [(row["golem_id"], _validated(row["advanced"])) for row in rows]


def _validated(row: dict[str, Any]) -> Advanced:
    bounds = row["lifespan_ticks"]
    return Advanced.model_validate({**row, "lifespan_ticks": None if bounds is None else tuple(bounds)})


def waiting_golems(context: DerivationContext) -> list[str]:
    """Return the golems that were born between runs and that no runtime has resumed yet, by id."""
    configurations = context.life("ConfigurationAdopted")
    waiting = set(configurations.filter(pc.not_equal(configurations["golem_id"], EVERY_GOLEM))["golem_id"].to_pylist())
    waiting -= set(context.life("GolemTakenUp")["golem_id"].to_pylist())
    waiting -= set(context.life("DeathDeclared")["golem_id"].to_pylist())
    if not waiting:
        return []
    heads = context.log.heads()
    return sorted(waiting - set(heads.filter(pc.greater(heads["highest"], 0))["golem_id"].to_pylist()))


def standing_of(context: DerivationContext, golem_id: str) -> Standing | None:
    """Return the state of a dead golem's succession, None if none began."""
    return standings(succession_steps(context, [golem_id])).get(golem_id)


def successions_document(context: DerivationContext) -> dict[str, Any]:
    """Return a row for each succession with its state and reason, and the credit of each owner who committed some."""
    by_golem = standings(succession_steps(context))
    births = births_of(context, by_golem)
    rows = [_succession_row(golem, standing, births[golem][0].owner_id) for golem, standing in sorted(by_golem.items())]
    owners = sorted({credited["owner_id"] for credited in context.life("CreditCommitted")["credited"].to_pylist()})
    return {"successions": rows, "credit_micros": {owner: credit_micros(context, owner) for owner in owners}}


def _succession_row(golem: str, standing: Standing, owner: str) -> dict[str, Any]:
    newest = list(standing.last.values())[-1]
    stuck = standing.halted or next((step for step in standing.last.values() if step.outcome != "done"), None)
    return {
        "dead": golem,
        "heir": newest.heir_id,
        "owner": owner,
        "mode": newest.mode,
        "steps": sum(step.outcome == "done" for step in standing.last.values()),
        "state": standing.state,
        "why": (stuck or newest).why,
    }


def succession_step_table(context: DerivationContext) -> pa.Table:
    """Return one row per recorded succession step: golem_id, heir_id, mode, step, outcome, budget_micros."""
    return context.life_fields("SuccessionAdvanced", "heir_id", "mode", "step", "outcome", "budget_micros")


def unfinished_successions(context: DerivationContext) -> list[str]:
    """Return dead golems whose succession may have further steps.

    A succession is finished once its heir is born and its registration succeeded or was refused permanently, or once
    an automatic succession halted without an heir.
    """
    return _golems_in_state(context, "not settled and not halted")


def halted_successions(context: DerivationContext) -> list[str]:
    """Return dead golems whose automatic succession halted and was not continued by hand."""
    return _golems_in_state(context, "halted")


def _golems_in_state(context: DerivationContext, condition: str) -> list[str]:
    query = f"{_STATES} having {condition} order by golem_id"
    return query_tables(query, steps=succession_step_table(context))["golem_id"].to_pylist()


_STATES = """
    select
        golem_id,
        bool_or(step = 'booted' and outcome = 'done')
            and bool_or(step = 'registered' and outcome <> 'failed') as settled,
        bool_or(step <> 'registered' and outcome = 'halted') and bool_and(mode = 'automatic') as halted
    from steps group by golem_id
"""


def succeeded_golems(context: DerivationContext) -> set[str]:
    """Return dead golems whose heir was born by a recorded succession."""
    steps = succession_step_table(context)
    booted = pc.and_(pc.equal(steps["step"], "booted"), pc.equal(steps["outcome"], "done"))
    return set(steps.filter(booted)["golem_id"].to_pylist())


def credit_micros(context: DerivationContext, owner_id: str) -> int:
    """Return an owner's committed credit minus what funded its heirs, in micro-dollars."""
    commitments = context.life("CreditCommitted")["credited"].to_pylist()
    committed = sum(row["amount_micros"] for row in commitments if row["owner_id"] == owner_id)
    steps, owners = succession_step_table(context), golem_owners(context)
    spent = query_tables(_FUNDED, {"owner": owner_id}, steps=steps, owners=owners)
    return committed - int(spent["micros"][0].as_py())


_FUNDED = """
    select coalesce(sum(micros), 0) as micros from (
        select golem_id, max(budget_micros) as micros from steps
        semi join (from owners where owner_id = $owner) using (golem_id)
        where step = 'funded' and outcome = 'done' and mode = 'automatic' group by golem_id
    )
"""


def commit_credit(context: DerivationContext, owner_id: str, amount_micros: int, why: str, *, now: datetime) -> int:
    """Commit an owner's money, which funds its heirs automatically. Return the balance, in micro-dollars.

    Raises ConfigError unless the amount is positive and has a reason, and for an invalid name or a too long reason.
    """
    if amount_micros <= 0 or not why.strip():
        raise ConfigError("committed credit must be positive and have a reason: add --why")
    with context.home.lock("succession"):
        number = 1 + context.whole.life("CreditCommitted").num_rows
        try:
            credited = Credited(owner_id=owner_id, amount_micros=amount_micros, number=number, why=why.strip())
        except ValidationError as error:
            raise ConfigError(f"credit of owner {owner_id!r}: {sentence_of(error)}: correct this value") from None
        moment = last_event_time(context) or datetime(1970, 1, 1, tzinfo=UTC)
        context.log.record([life_event(EVERY_GOLEM, moment, credited)], now)
        return credit_micros(context, owner_id)


def golem_owners(context: DerivationContext) -> pa.Table:
    """Return golem_id and owner_id of every golem that was born."""
    return context.life_fields("GolemBorn", "owner_id").select(["golem_id", "owner_id"])


def recorded_deaths(context: DerivationContext) -> pa.Table:
    """Return the deaths of golems with a known owner, by golem (DEATH_SCHEMA); of two, the earlier tick counts."""
    return deaths_with_ticks(context).select(DEATH_SCHEMA.names)


def deaths_with_ticks(context: DerivationContext) -> pa.Table:
    """Return `recorded_deaths` with the event_id and the tick of each death."""
    deaths, span = context.life_fields("DeathDeclared", "tick"), context.policy.curator.cycle_ticks
    first = query_tables(_FIRST_DEATHS, {"span": span}, deaths=deaths, owners=golem_owners(context))
    return first.cast(_TIMED_DEATH_SCHEMA)


def curated_deaths(context: DerivationContext) -> pa.Table:
    """Return `deaths_with_ticks` of the golems whose last cycle is curated."""
    deaths = deaths_with_ticks(context)
    is_curated = [(curated_through(context, g) or 0) >= cycle for g, cycle in values_by_golem(deaths, "cycle").items()]
    return deaths.filter(pa.array(is_curated, pa.bool_()))


_TIMED_DEATH_SCHEMA = pa.schema([*DEATH_SCHEMA, pa.field("event_id", pa.string()), pa.field("tick", pa.int64())])
_FIRST_DEATHS = """
    select golem_id, owner_id, (tick - 1) // $span + 1 as cycle, observed_at as at, event_id, tick
    from deaths join owners using (golem_id)
    qualify row_number() over (partition by golem_id order by tick, event_id) = 1 order by golem_id
"""
