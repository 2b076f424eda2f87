"""Succeeding: from a dead golem to its heir in seven recorded steps, each tried until it is made or it ends.

Every step is an event of the dead golem. What failed is due again at a moment that its event names; nobody waits for
it: whoever looks next (a sensor, `bardo golem due`) tries what is due by then. A step may be tried twice, by someone
who was cut off before its event: a place, an identity and a birth are made once, whoever comes.
Source: INH S12, S13; canon 43.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.configuration import in_force_now, in_force_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.death_queries import (
    DeadGolem,
    HeirRequest,
    births_of,
    dead_golem,
    dead_golems,
    heirs_of,
    succeeded_golems,
    succession_step_table,
    succession_steps,
    unfinished_successions,
)
from bardo_pipeline.derivation.succession.birth_events import beginning
from bardo_pipeline.derivation.succession.steps import Course, Halt, Hands, check_copy, check_export, configured
from bardo_pipeline.errors import ProvisioningError, SuccessionError
from bardo_pipeline.events.life.events import Born, life_event
from bardo_pipeline.heartbeat.fleet import Founding, born
from bardo_pipeline.inheritance.succession_state import Standing, standings
from bardo_pipeline.policy.toml_config import canonical

# automatically


def wishes_of(context: DerivationContext, golem_ids: Collection[str]) -> dict[str, HeirRequest]:
    """What the configurations of these golems want of their heirs, of those that want any by themselves."""
    said = {g: found.configuration.succession for g, found in in_force_of(context, golem_ids).items()}
    return {
        g: HeirRequest(budget_micros=round(one.budget_usdc * 1e6), inherit=one.inherit_grimoire)
        for g, one in said.items()
        if one.auto
    }


@dataclass(frozen=True)
class Due:
    """A succession that something is to be done of now, and why. tried: attempts at that so far."""

    golem_id: str
    why: str
    tried: int = 0


def due(context: DerivationContext, now: datetime) -> list[Due]:
    """What is due, by golem: deaths that want an heir by themselves, steps whose time has come, identities that were
    refused."""
    found = [Due(golem_id, "died, and an heir is wanted") for golem_id in _wanted(context)]
    for golem_id, standing in standings(succession_steps(context, unfinished_successions(context))).items():
        if (step := standing.next_step(now)) is not None:
            found.append(Due(golem_id, f"its heir is not {step} yet", standing.tried))
        elif standing.booted and standing.unregistered and _is_worth_asking(context, standing):
            found.append(Due(golem_id, "its heir lives without an identity", standing.tried))
    return sorted(found, key=lambda one: one.golem_id)


def _wanted(context: DerivationContext) -> Collection[str]:
    """The dead whose configuration wants an heir, who have none, and of whose succession nothing is told yet. Nobody
    follows a replicant: it was sent for its report.

    Only when all four phases of dying are over: between verdict and publication there is nothing to inherit.
    """
    left, births = context.life("LegacyLeft"), context.life("GolemBorn")
    succeeded = pc.struct_field(births["born"].combine_chunks(), "predecessor_id").to_pylist()
    ripe = {*left["golem_id"].to_pylist()} & {*births["golem_id"].to_pylist()}
    told, sent = (context.life(kind)["golem_id"].to_pylist() for kind in ("SuccessionAdvanced", "ReplicantSent"))
    return wishes_of(context, ripe - {*told, *succeeded, *sent})


def _is_worth_asking(context: DerivationContext, standing: Standing) -> bool:
    """Whether the heir's heart beat since its identity was refused: each tick is worth one more attempt. Of one that
    died it is said once that it died without."""
    one = standing.last["registered"]
    if context.life("DeathDeclared", [one.heir_id]).num_rows:
        return True
    heads = context.log.heads()
    mine = heads.filter(pc.equal(heads["golem_id"], one.heir_id))["contiguous"].to_pylist()
    return bool(mine) and mine[0] >= one.attempt


def work_off(context: DerivationContext, *, now: datetime, hands: Hands | None = None) -> dict[str, Standing]:
    """Do what is due. Returns how each of those successions stands then, by dead golem."""
    with context.home.lock("succession"):
        out = {}
        for one in due(context, now):
            out[one.golem_id] = _go_on(context, dead_golem(context, one.golem_id), hands or Hands.of(context), now)
        return out


def at_heartbeat(context: DerivationContext, heir_ids: Collection[str], *, now: datetime) -> None:
    """Try again to give those of these heirs an identity that were refused one: their hearts beat (INH S13)."""
    dead = _refused(context, heir_ids)
    if not dead:
        return
    with context.home.lock("succession"):
        for golem_id, standing in standings(succession_steps(context, dead)).items():
            if standing.booted and standing.unregistered and _is_worth_asking(context, standing):
                _go_on(context, dead_golem(context, golem_id), Hands.of(context), now)


def _refused(context: DerivationContext, heir_ids: Collection[str]) -> list[str]:
    """The dead whose heirs are among these and were refused an identity, whatever came of it since."""
    told = succession_step_table(context)
    refused = pc.and_(pc.equal(told["outcome"], "failed"), pc.equal(told["step"], "registered"))
    mine = pc.is_in(told["heir_id"], value_set=pa.array(sorted(heir_ids), pa.string()))
    return told.filter(pc.and_(refused, mine))["golem_id"].unique().to_pylist()


def succeed_in_run(
    context: DerivationContext, lives: Collection[str], *, lifespan_ticks: tuple[int, int], now: datetime, at: datetime
) -> list[tuple[str, Born]]:
    """The heirs that these dead have at once, for a run that goes on with them at this moment.

    Those whose succession stops or waits have none here. The same run again finds the same heirs.
    """
    with context.home.lock("succession"):
        for golem_id in lives:
            _go_on(context, dead_golem(context, golem_id), Hands.of(context), now, at=at, lifespan_ticks=lifespan_ticks)
    heirs = {one.golem_id: one.heir_id for one in dead_golems(context, succeeded_golems(context).intersection(lives))}
    births = births_of(context, heirs.values())
    return [(heirs[g], births[heirs[g]][0]) for g in lives if g in heirs and births[heirs[g]][1] == at]


def _go_on(
    context: DerivationContext,
    dead: DeadGolem,
    hands: Hands,
    now: datetime,
    *,
    at: datetime | None = None,
    lifespan_ticks: tuple[int, int] | None = None,
) -> Standing:
    """Go on with a succession as it was begun, or begin it as the configuration wants."""
    standing = standings(succession_steps(context, [dead.golem_id])).get(dead.golem_id)
    wish = None if standing is None else _wish_on_record(standing)
    wish = wish or wishes_of(context, [dead.golem_id]).get(dead.golem_id)
    if wish is None:
        return Standing({})
    if standing is None and lifespan_ticks is not None:
        wish = replace(wish, lifespan_ticks=lifespan_ticks)
    mode = "automatic" if standing is None else next(iter(standing.last.values())).mode
    course = Course(context, dead, wish, hands, now=now, mode=mode, at=at or dead.died_at)
    if course.standing.booted and course.standing.unregistered:
        course.make("registered")
        return course.standing
    return course.run()


def _wish_on_record(standing: Standing) -> HeirRequest | None:
    """What was wanted when the succession began, as far as it came to say so."""
    compiled = standing.last.get("compiled")
    if compiled is None or compiled.budget_micros is None:
        return None
    exported, compared = standing.last["exported"], standing.last.get("compared")
    low, high = compiled.lifespan_ticks or Founding().lifespan_ticks
    force = compared is not None and compared.outcome == "done"
    return HeirRequest(compiled.budget_micros, exported.bundle_hash is not None, force, (low, high))


# by hand


def summon(
    context: DerivationContext, dead: DeadGolem, wish: HeirRequest, *, now: datetime, hands: Hands | None = None
) -> Standing:
    """Summon a successor by hand, through the same steps. The same again changes nothing.

    Raises SuccessionError where there is another heir already, where nothing was published that it could inherit, where
    it would be a copy and nobody forces it, and where another succession waits to be provisioned under other terms;
    ConfigError for a budget that is too small; ProvisioningError where the place cannot be made yet (it is due again).
    """
    with context.home.lock("succession"):
        course = Course(context, dead, wish, hands or Hands.of(context), now=now, mode="manual", at=dead.died_at)
        birth = course.birth()
        heirs = births_of(context, heirs_of(context, dead.golem_id))
        if heirs:
            heir_id, (known, _) = next(iter(heirs.items()))
            _same_or_refuse(dead, heir_id, known, birth, context)
            return course.standing
        _refuse_what_cannot_be(course)
        course.standing = _begun_by_hand(course)
        standing = course.run(by=max(now, course.standing.due_at or now))
    if not standing.booted:
        told = next((one for one in standing.last.values() if one.outcome != "done"), None)
        assert told is not None, "a succession that did not end well says why"
        again = "" if told.due_at is None else f"; it is tried again from {told.due_at:%Y-%m-%d %H:%M:%S} UTC on"
        raise ProvisioningError(f"{told.why}{again} by `bardo golem due`")
    return standing


def _same_or_refuse(
    dead: DeadGolem, heir_id: str, standing_birth: Born, wanted: Born, context: DerivationContext
) -> None:
    money = ("credits_micros", "reserve_micros", "capital_micros", "bundle_hash", "lifespan_ticks")
    if all(getattr(standing_birth, name) == getattr(wanted, name) for name in money):
        return
    total = sum(getattr(standing_birth, name) for name in money[:3])
    raise SuccessionError(
        f"golem {dead.golem_id} has an heir already: {heir_id}, founded with ${total / 1e6:,.2f} and "
        f"{'a bundle' if standing_birth.bundle_hash else 'nothing inherited'}: a golem has one; "
        f"`bardo golem found --like {dead.golem_id}` begins a lineage of its own"
    )


def _refuse_what_cannot_be(course: Course) -> None:
    """Raise what an owner must decide on, before anything is recorded."""
    for check in (check_export, check_copy):
        try:
            check(course)
        except Halt as halt:
            cure = ": give --no-inherit to begin without" if check is check_export else ""
            raise SuccessionError(f"{halt}{cure}") from halt


def _begun_by_hand(course: Course) -> Standing:
    """What was made by hand already under the same terms; nothing of what was begun automatically or otherwise."""
    standing = course.standing
    compiled = standing.last.get("compiled")
    if compiled is None or compiled.mode != "manual":
        return Standing({})
    same = (compiled.budget_micros, tuple(compiled.lifespan_ticks or ())) == (
        course.wish.budget_micros, course.wish.lifespan_ticks,
    ) and standing.last["exported"].bundle_hash == course.bundle_hash  # fmt: skip
    if same:
        return standing
    raise SuccessionError(
        f"golem {course.dead.golem_id}: a succession with ${(compiled.budget_micros or 0) / 1e6:,.2f} is under way and "
        "waits for its place: `bardo golem due` goes on with it"
    )


def found_like(
    context: DerivationContext, dead: DeadGolem, wish: HeirRequest, *, number: int, now: datetime
) -> tuple[str, bool]:
    """Found a lineage of its own in a dead golem's market, for its owner: nothing is inherited (INH S12, Start Fresh).

    number: which one; the same again is the same golem. Returns its id, and whether it was born now.
    """
    life = dead.born
    lineage_id = f"{dead.golem_id}/like/{number}"
    founding = replace(Founding(), budget_micros=wish.budget_micros, lifespan_ticks=wish.lifespan_ticks)
    golem_id, birth = born(
        lineage_id=lineage_id, generation=0, owner_id=life.owner_id, founding=founding, market=life.market,
        market_hash=life.market_hash, derivation_id=context.derivation_id, policy=context.policy,
    )  # fmt: skip
    with context.home.lock("succession"):
        known = births_of(context, [golem_id]).get(golem_id)
        if known is not None:
            return golem_id, False
        said = in_force_now(context).configuration
        wanted = said.succession.model_copy(update={"budget_usdc": wish.budget_micros / 1e6})
        content = canonical(said.model_copy(update={"succession": wanted}))
        told = configured(context, content, f"founded like {dead.golem_id}", "a fresh start")
        events = beginning(context, golem_id, birth, dead.died_at).events
        context.log.record([*events, life_event(golem_id, dead.died_at, told)], now)
    return golem_id, True
