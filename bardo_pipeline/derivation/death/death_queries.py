"""The dead and their heirs, as the log has them: births, deaths, what was tried, what owners committed.

Source: INH S12, S13.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import last_event_time
from bardo_pipeline.derivation.legacy.published_bundles import published_bundles
from bardo_pipeline.errors import ConfigError, QueryError, SuccessionError
from bardo_pipeline.events.life.events import EVERY_GOLEM, Born, Died, life_event
from bardo_pipeline.events.life.succession_events import Advanced, Credited
from bardo_pipeline.grimoire.entry_columns import asked
from bardo_pipeline.heartbeat.fleet import Founding, golem_name


@dataclass(frozen=True)
class HeirRequest:
    """What is wanted of an heir: its budget in micro-dollars, whether it inherits, the bounds of its lifespan in ticks.

    force: whoever asks takes a copy, too (canon 43). Only by hand.
    """

    budget_micros: int
    inherit: bool = True
    force: bool = False
    lifespan_ticks: tuple[int, int] = Founding().lifespan_ticks


@dataclass(frozen=True)
class DeadGolem:
    """A golem that died: its life, its death and what it left, None where nothing of it was published."""

    golem_id: str
    born: Born
    died: Died
    died_at: datetime
    bundle_hash: str | None

    @property
    def heir_id(self) -> str:
        """Whoever succeeds it."""
        return golem_name(self.born.lineage_id, self.born.generation + 1)


def births_of(context: DerivationContext, golem_ids: Collection[str] | None = None) -> dict[str, tuple[Born, datetime]]:
    """The birth and its moment of every golem, or of these; of two on record the earlier counts."""
    rows = context.life("GolemBorn", golem_ids).select(["golem_id", "observed_at", "born"]).sort_by("observed_at")
    out: dict[str, tuple[Born, datetime]] = {}
    for row in rows.to_pylist():
        out.setdefault(row["golem_id"], (Born.model_validate(row["born"]), row["observed_at"]))
    return out


def owners_of(context: DerivationContext) -> dict[str, str]:
    """The owner of every golem that was born."""
    births = context.life("GolemBorn")
    owners = pc.struct_field(births["born"].combine_chunks(), "owner_id")
    return dict(zip(births["golem_id"].to_pylist(), owners.to_pylist(), strict=True))


def dead_golem(context: DerivationContext, golem_id: str) -> DeadGolem:
    """A golem that died. Raises QueryError for an unknown one, SuccessionError for one that lives."""
    births = births_of(context, [golem_id])
    if golem_id not in births:
        raise QueryError(f"golem {golem_id}: nobody of this name was born: `bardo graveyard` lists the dead")
    found = deaths_of(context, [golem_id]).get(golem_id)
    if found is None:
        raise SuccessionError(
            f"golem {golem_id} lives: it is succeeded when it has died; `bardo golem show {golem_id}` says how it is"
        )
    died, at = found
    return DeadGolem(golem_id, births[golem_id][0], died, at, published_bundles(context, [golem_id]).get(golem_id))


def dead_golems(context: DerivationContext, golem_ids: Collection[str]) -> list[DeadGolem]:
    """Those of these golems that died, by id."""
    births, deaths = births_of(context, golem_ids), deaths_of(context, golem_ids)
    left = published_bundles(context, golem_ids)
    return [DeadGolem(g, births[g][0], *deaths[g], left.get(g)) for g in sorted(deaths.keys() & births.keys())]


def deaths_of(context: DerivationContext, golem_ids: Collection[str] | None = None) -> dict[str, tuple[Died, datetime]]:
    """The death and its moment of every golem, or of these; of two the earlier tick counts."""
    out: dict[str, tuple[Died, datetime]] = {}
    for row in context.life("DeathDeclared", golem_ids).select(["golem_id", "observed_at", "died"]).to_pylist():
        died = Died.model_validate(row["died"])
        if row["golem_id"] not in out or died.tick < out[row["golem_id"]][0].tick:
            out[row["golem_id"]] = (died, row["observed_at"])
    return out


def heirs_of(context: DerivationContext, golem_id: str) -> list[str]:
    """Who was born as an heir of this golem."""
    births = context.life("GolemBorn")
    predecessor = pc.struct_field(births["born"].combine_chunks(), "predecessor_id")
    return births.filter(pc.equal(predecessor, golem_id))["golem_id"].to_pylist()


def succession_steps(
    context: DerivationContext, golem_ids: Collection[str] | None = None
) -> list[tuple[str, Advanced]]:
    """Every step on record of the successions of all the dead, or of these, each with whose it is."""
    rows = context.life("SuccessionAdvanced", golem_ids).select(["golem_id", "advanced"]).to_pylist()
    return [(row["golem_id"], _validated(row["advanced"])) for row in rows]


def _validated(row: dict[str, Any]) -> Advanced:
    bounds = row["lifespan_ticks"]
    return Advanced.model_validate({**row, "lifespan_ticks": None if bounds is None else tuple(bounds)})


def waiting_golems(context: DerivationContext) -> list[str]:
    """Golems that were born between runs, and wait for a runtime to live them, by id."""
    own = context.life("ConfigurationAdopted")
    summoned = set(own.filter(pc.not_equal(own["golem_id"], EVERY_GOLEM))["golem_id"].to_pylist())
    summoned -= set(context.life("GolemTakenUp")["golem_id"].to_pylist())
    summoned -= set(context.life("DeathDeclared")["golem_id"].to_pylist())
    if not summoned:
        return []
    heads = context.log.heads()
    return sorted(summoned - set(heads.filter(pc.greater(heads["highest"], 0))["golem_id"].to_pylist()))


def succession_step_table(context: DerivationContext) -> pa.Table:
    """Every step on record in columns: golem_id, heir_id, mode, step, outcome, budget_micros."""
    events = context.life("SuccessionAdvanced")
    said = events["advanced"].combine_chunks()
    fields = ("heir_id", "mode", "step", "outcome", "budget_micros")
    return pa.table({"golem_id": events["golem_id"], **{name: pc.struct_field(said, name) for name in fields}})


def unfinished_successions(context: DerivationContext) -> list[str]:
    """The dead of whose succession something may still be due: all but those with an heir that has its identity, or was
    refused it for good, and those that ended by themselves without an heir."""
    return _of_successions(context, "not settled and not halted")


def halted_successions(context: DerivationContext) -> list[str]:
    """The dead whose successions ended by themselves without an heir, and that no owner took in hand since."""
    return _of_successions(context, "halted")


def _of_successions(context: DerivationContext, such: str) -> list[str]:
    return asked(f"{_STANDING} having {such} order by golem_id", told=succession_step_table(context))[
        "golem_id"
    ].to_pylist()


_STANDING = """
    select
        golem_id,
        bool_or(step = 'booted' and outcome = 'done')
            and bool_or(step = 'registered' and outcome <> 'failed') as settled,
        bool_or(step <> 'registered' and outcome = 'halted') and bool_and(mode = 'automatic') as halted
    from told group by golem_id
"""


def succeeded_golems(context: DerivationContext) -> set[str]:
    """The dead whose heirs were born by a succession, not by a run's own way."""
    told = succession_step_table(context)
    booted = pc.and_(pc.equal(told["step"], "booted"), pc.equal(told["outcome"], "done"))
    return set(told.filter(booted)["golem_id"].to_pylist())


def credit_micros(context: DerivationContext, owner_id: str) -> int:
    """What an owner committed and no heir was funded with yet, in micro-dollars."""
    rows = context.life("CreditCommitted")["credited"].to_pylist()
    given = sum(one["amount_micros"] for one in rows if one["owner_id"] == owner_id)
    births = context.life("GolemBorn")
    mine = births.filter(pc.equal(pc.struct_field(births["born"].combine_chunks(), "owner_id"), owner_id))
    funded = asked(_FUNDED, told=succession_step_table(context), mine=mine.select(["golem_id"]))["micros"][0].as_py()
    return given - int(funded)


_FUNDED = """
    select coalesce(sum(micros), 0) as micros from (
        select golem_id, max(budget_micros) as micros from told semi join mine using (golem_id)
        where step = 'funded' and outcome = 'done' and mode = 'automatic' group by golem_id
    )
"""


def commit_credit(context: DerivationContext, owner_id: str, amount_micros: int, why: str, *, now: datetime) -> int:
    """Commit an owner's money, from which heirs are funded automatically. Returns the balance, in micro-dollars.

    Raises ConfigError for nothing, and for an amount without a reason.
    """
    if amount_micros <= 0 or not why.strip():
        raise ConfigError("credit is more than nothing, and committed with its reason: say --why")
    with context.home.lock("succession"):
        number = 1 + sum(1 for one in context.life("CreditCommitted")["credited"].to_pylist() if one)
        said = Credited(owner_id=owner_id, amount_micros=amount_micros, number=number, why=why.strip())
        moment = last_event_time(context) or datetime(1970, 1, 1, tzinfo=UTC)
        context.log.record([life_event(EVERY_GOLEM, moment, said)], now)
        return credit_micros(context, owner_id)
