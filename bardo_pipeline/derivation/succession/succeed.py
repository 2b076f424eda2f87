"""Runs successions: from a dead golem to its heir in seven recorded steps, automatically or by hand.

Each step is an event of the dead golem. The event of a failed step names its next attempt; a sensor or `bardo golem
due` makes the attempts that are due. A step may run twice after a crash before its event, so provisioning, registering
and booting are idempotent.
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
from bardo_pipeline.derivation.legacy.death_queries import (
    DeadGolem,
    HeirRequest,
    births_of,
    dead_golem,
    dead_golems,
    heirs_of,
    standing_of,
    succeeded_golems,
    succession_step_table,
    succession_steps,
    unfinished_successions,
)
from bardo_pipeline.derivation.succession.birth_events import birth_record
from bardo_pipeline.derivation.succession.steps import (
    SuccessionHalted,
    SuccessionRun,
    check_copy,
    check_export,
    configuration_event,
)
from bardo_pipeline.errors import ProvisioningError, SuccessionError
from bardo_pipeline.events.life.events import Born, life_event
from bardo_pipeline.heartbeat.fleet import Founding, born
from bardo_pipeline.inheritance.succession_state import Standing, standings
from bardo_pipeline.policy.toml_config import canonical

# automatic successions


def heir_requests(context: DerivationContext, golem_ids: Collection[str]) -> dict[str, HeirRequest]:
    """Return golem -> the heir that its configuration requests, for golems with automatic succession."""
    rules = {g: in_force.configuration.succession for g, in_force in in_force_of(context, golem_ids).items()}
    return {
        g: HeirRequest(budget_micros=round(rule.budget_usdc * 1e6), inherit=rule.inherit_grimoire)
        for g, rule in rules.items()
        if rule.auto
    }


@dataclass(frozen=True)
class DueSuccession:
    """A succession with a due step, the reason in words, and the attempts at that step so far."""

    golem_id: str
    why: str
    tried: int = 0

    def row(self, state: str = "due") -> dict[str, str]:
        """Return the step for a report, with its state."""
        return {"golem": self.golem_id, "why": self.why, "state": state}


def due_successions(context: DerivationContext, now: datetime) -> list[DueSuccession]:
    """Return by golem: deaths with automatic succession, steps that are due, and registrations to retry."""
    due = [DueSuccession(golem_id, "died, and an heir is wanted") for golem_id in _without_succession(context)]
    for golem_id, standing in standings(succession_steps(context, unfinished_successions(context))).items():
        if (step := standing.next_step(now)) is not None:
            due.append(DueSuccession(golem_id, f"its heir is not {step} yet", standing.tried))
        elif standing.booted and standing.unregistered and _should_retry_registration(context, standing):
            due.append(DueSuccession(golem_id, "its heir lives without an identity", standing.tried))
    return sorted(due, key=lambda item: item.golem_id)


def _without_succession(context: DerivationContext) -> Collection[str]:
    """Dead golems with automatic succession, without an heir or a recorded step; replicants are excluded.

    Only golems with all four phases of dying, because a bundle is published shortly before the last one.
    """
    births = context.life_fields("GolemBorn", "predecessor_id")
    predecessors = births["predecessor_id"].to_pylist()
    finished = {*context.life("LegacyLeft")["golem_id"].to_pylist()} & {*births["golem_id"].to_pylist()}
    begun, replicants = (context.life(kind)["golem_id"].to_pylist() for kind in ("SuccessionAdvanced", "ReplicantSent"))
    return heir_requests(context, finished - {*begun, *predecessors, *replicants})


def _should_retry_registration(context: DerivationContext, standing: Standing) -> bool:
    """Whether the heir ticked since the last attempt (one attempt a tick), or died, which is recorded once."""
    registration = standing.last["registered"]
    if context.life("DeathDeclared", [registration.heir_id]).num_rows:
        return True
    return context.log.head_of(registration.heir_id).contiguous >= registration.attempt


def run_due_successions(context: DerivationContext, *, now: datetime) -> dict[str, Standing]:
    """Make all due steps. Return dead golem -> state of its succession."""
    with context.home.lock("succession"):
        return {
            item.golem_id: _continue(context, dead_golem(context, item.golem_id), now)
            for item in due_successions(context, now)
        }


def retry_registrations(context: DerivationContext, heir_ids: Collection[str], *, now: datetime) -> None:
    """Retry failed registrations of these heirs after a tick (INH S13)."""
    dead = _with_failed_registration(context, heir_ids)
    if not dead:
        return
    with context.home.lock("succession"):
        for golem_id, standing in standings(succession_steps(context, dead)).items():
            if standing.booted and standing.unregistered and _should_retry_registration(context, standing):
                _continue(context, dead_golem(context, golem_id), now)


def _with_failed_registration(context: DerivationContext, heir_ids: Collection[str]) -> list[str]:
    """Dead golems with an heir among these that has a failed registration attempt."""
    steps = succession_step_table(context)
    is_failed = pc.and_(pc.equal(steps["outcome"], "failed"), pc.equal(steps["step"], "registered"))
    is_heir = pc.is_in(steps["heir_id"], value_set=pa.array(sorted(heir_ids), pa.string()))
    return steps.filter(pc.and_(is_failed, is_heir))["golem_id"].unique().to_pylist()


def succeed_in_run(
    context: DerivationContext, lives: Collection[str], *, lifespan_ticks: tuple[int, int], now: datetime, at: datetime
) -> list[tuple[str, Born]]:
    """Run the successions of these dead golems for a run. Return (heir, birth) of the heirs born at `at`.

    Golems whose succession halts or waits have none. Repeating the call returns the same heirs.
    """
    with context.home.lock("succession"):
        for golem_id in lives:
            _continue(context, dead_golem(context, golem_id), now, at=at, lifespan_ticks=lifespan_ticks)
    succeeded = dead_golems(context, succeeded_golems(context).intersection(lives))
    heirs = {golem.golem_id: golem.heir_id for golem in succeeded}
    births = births_of(context, heirs.values())
    return [(heirs[g], births[heirs[g]][0]) for g in lives if g in heirs and births[heirs[g]][1] == at]


def _continue(
    context: DerivationContext,
    dead: DeadGolem,
    now: datetime,
    *,
    at: datetime | None = None,
    lifespan_ticks: tuple[int, int] | None = None,
) -> Standing:
    """Continue a succession under its recorded terms, or begin it under those of the configuration."""
    standing = standing_of(context, dead.golem_id)
    request = None if standing is None else _recorded_request(standing)
    request = request or heir_requests(context, [dead.golem_id]).get(dead.golem_id)
    if request is None:
        return Standing({})
    if standing is None and lifespan_ticks is not None:
        request = replace(request, lifespan_ticks=lifespan_ticks)
    mode = "automatic" if standing is None else next(iter(standing.last.values())).mode
    run = SuccessionRun(context, dead, request, now=now, mode=mode, at=at or dead.died_at)
    if run.standing.booted and run.standing.unregistered:
        run.make("registered")
        return run.standing
    return run.advance()


def _recorded_request(standing: Standing) -> HeirRequest | None:
    """The terms recorded when the succession began, None before the step that records them."""
    compiled = standing.last.get("compiled")
    if compiled is None or compiled.budget_micros is None:
        return None
    exported, compared = standing.last["exported"], standing.last.get("compared")
    low, high = compiled.lifespan_ticks or Founding().lifespan_ticks
    force = compared is not None and compared.outcome == "done"
    return HeirRequest(compiled.budget_micros, exported.bundle_hash is not None, force, (low, high))


# successions by hand


def summon(context: DerivationContext, dead: DeadGolem, wish: HeirRequest, *, now: datetime) -> Standing:
    """Make an heir by hand, through the same steps. Repeating the call changes nothing.

    Raises
    ------
    SuccessionError : another heir exists, no bundle is published, the heir would be a copy and `force` is not set, or
        another succession waits for its provisioning under other terms
    ConfigError : the budget is too small
    ProvisioningError : the folder cannot be made yet; the step is due again
    """
    with context.home.lock("succession"):
        run = SuccessionRun(context, dead, wish, now=now, mode="manual", at=dead.died_at)
        birth = run.birth()
        heirs = births_of(context, heirs_of(context, dead.golem_id))
        if heirs:
            heir_id, (existing, _) = next(iter(heirs.items()))
            _check_same_terms(dead, heir_id, existing, birth)
            return run.standing
        _check_before_recording(run)
        run.standing = _resumable_steps(run)
        standing = run.advance(by=max(now, run.standing.due_at or now))
    if not standing.booted:
        failed_step = next((step for step in standing.last.values() if step.outcome != "done"), None)
        assert failed_step is not None, "an unfinished succession has a step that is not done"
        due_at = failed_step.due_at
        again = "" if due_at is None else f"; it is tried again from {due_at:%Y-%m-%d %H:%M:%S} UTC on"
        raise ProvisioningError(f"{failed_step.why}{again} by `bardo golem due`")
    return standing


def _check_same_terms(dead: DeadGolem, heir_id: str, standing_birth: Born, wanted: Born) -> None:
    money = ("credits_micros", "reserve_micros", "capital_micros", "bundle_hash", "lifespan_ticks")
    if all(getattr(standing_birth, name) == getattr(wanted, name) for name in money):
        return
    total = sum(getattr(standing_birth, name) for name in money[:3])
    raise SuccessionError(
        f"golem {dead.golem_id} has an heir already: {heir_id}, founded with ${total / 1e6:,.2f} and "
        f"{'a bundle' if standing_birth.bundle_hash else 'nothing inherited'}: a golem has one heir; "
        f"`bardo golem found --like {dead.golem_id}` founds another lineage"
    )


def _check_before_recording(run: SuccessionRun) -> None:
    """Raise SuccessionError for conditions that the owner must decide on."""
    for check in (check_export, check_copy):
        try:
            check(run)
        except SuccessionHalted as halt:
            cure = ": give --no-inherit to begin without" if check is check_export else ""
            raise SuccessionError(f"{halt}{cure}") from halt


def _resumable_steps(run: SuccessionRun) -> Standing:
    """The steps made by hand under the same terms, else none; SuccessionError under other terms."""
    standing = run.standing
    compiled = standing.last.get("compiled")
    if compiled is None or compiled.mode != "manual":
        return Standing({})
    same = (compiled.budget_micros, tuple(compiled.lifespan_ticks or ())) == (
        run.wish.budget_micros, run.wish.lifespan_ticks,
    ) and standing.last["exported"].bundle_hash == run.bundle_hash  # fmt: skip
    if same:
        return standing
    raise SuccessionError(
        f"golem {run.dead.golem_id}: a succession with ${(compiled.budget_micros or 0) / 1e6:,.2f} is under way and "
        "waits for its place: `bardo golem due` goes on with it"
    )


def found_new_lineage(
    context: DerivationContext, dead: DeadGolem, wish: HeirRequest, *, number: int, now: datetime
) -> tuple[str, bool]:
    """Found a lineage in a dead golem's market for its owner, without inheritance (INH S12, Start Fresh).

    `number` identifies the lineage, so repeating the call returns the same golem. Return its id, and True if it was
    born by this call.
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
        config = in_force_now(context).configuration
        succession = config.succession.model_copy(update={"budget_usdc": wish.budget_micros / 1e6})
        content = canonical(config.model_copy(update={"succession": succession}))
        configured = configuration_event(context, content, f"founded like {dead.golem_id}", "a fresh start")
        events = birth_record(context, golem_id, birth, dead.died_at).events
        context.log.record([*events, life_event(golem_id, dead.died_at, configured)], now)
    return golem_id, True
