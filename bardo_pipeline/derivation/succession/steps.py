"""The seven steps of a succession; each attempt is recorded with its outcome.

Source: INH S13; canon 43.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from bardo_pipeline.derivation.configuration import in_force_now
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.death_queries import DeadGolem, HeirRequest, credit_micros, standing_of
from bardo_pipeline.derivation.succession.birth_events import birth_record
from bardo_pipeline.errors import (
    BundleError,
    ConfigError,
    IdentityTakenError,
    ProvisioningError,
    RegistrationError,
    SuccessionError,
)
from bardo_pipeline.events.life.events import Born, LifeEvent, life_event
from bardo_pipeline.events.life.succession_events import STEPS, Advanced, Configured, Step
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.heartbeat.fleet import Founding, born
from bardo_pipeline.inheritance.succession_state import Standing, due_again
from bardo_pipeline.policy.toml_config import canonical, configuration_hash, read_recorded, to_toml
from bardo_pipeline.storage.provisioning import FileRegistry, provision


def divergence_ppm(context: DerivationContext, golem_id: str) -> int | None:
    """Return a dead golem's divergence from its inheritance in ppm, None for a founder (canon 43).

    Raises SuccessionError until its testament is derived.
    """
    rows = context.projections.growing("testaments").read(golems=[golem_id])
    if not rows.num_rows:
        raise SuccessionError(
            f"golem {golem_id}: its testament is not derived yet: `bardo derive` derives it, or names what it waits for"
        )
    return rows["divergence_ppm"][-1].as_py()


@dataclass
class SuccessionRun:
    """One succession: the dead golem, the requested terms, and the recorded steps.

    Parameters
    ----------
    now : recording time of the steps
    at : moment of the heir's birth
    """

    context: DerivationContext
    dead: DeadGolem
    wish: HeirRequest
    now: datetime
    mode: Any
    at: datetime
    standing: Standing = field(init=False)

    def __post_init__(self) -> None:
        self.standing = standing_of(self.context, self.dead.golem_id) or Standing({})

    @property
    def bundle_hash(self) -> str | None:
        """The inherited bundle, None if nothing is inherited."""
        return self.dead.bundle_hash if self.wish.inherit else None

    def birth(self) -> Born:
        """Return the heir's birth. Raises ConfigError if the budget does not exceed the death reserve."""
        life, policy = self.dead.born, self.context.policy
        founding = Founding(budget_micros=self.wish.budget_micros, lifespan_ticks=self.wish.lifespan_ticks)
        _, birth = born(
            lineage_id=life.lineage_id,
            generation=life.generation + 1,
            owner_id=life.owner_id,
            founding=founding,
            market=life.market,
            market_hash=life.market_hash,
            derivation_id=self.context.derivation_id,
            policy=policy,
            predecessor_id=self.dead.golem_id,
            bundle_hash=self.bundle_hash,
            traits=life.traits,
        )
        return birth

    def configuration(self) -> str:
        """Return the predecessor's configuration with the requested terms, as canonical JSON."""
        config = in_force_now(self.context, self.dead.golem_id).configuration
        terms = {"budget_usdc": self.wish.budget_micros / 1e6, "inherit_grimoire": self.wish.inherit}
        return canonical(config.model_copy(update={"succession": config.succession.model_copy(update=terms)}))

    def advance(self, *, by: datetime | None = None) -> Standing:
        """Make all steps that are due now, or due by `by` if given."""
        while (step := self.standing.next_step(by or self.now)) is not None:
            outcome = self.make(step)
            if outcome != "done" and step != "registered":
                break
        return self.standing

    def make(self, step: Step) -> str:
        """Try one step and record its outcome, which is returned."""
        fields: dict[str, Any] = dict.fromkeys(_OWN_FIELDS)
        try:
            fields |= {"outcome": "done", **_MAKE[step](self)}
        except SuccessionHalted as halt:
            fields |= {"outcome": "halted", "why": str(halt), **halt.fields}
        except ProvisioningError as error:
            attempt = self.standing.attempts(step) + 1
            due_at = due_again(attempt, self.now, self.context.policy.succession)
            fields |= {"outcome": "failed", "why": str(error), "due_at": due_at}
        except IdentityTakenError as error:
            fields |= {"outcome": "halted", "why": str(error)}
        except RegistrationError as error:
            fields |= {"outcome": "failed", "why": str(error)}
        further_events = fields.pop("events", [])
        event = Advanced(
            heir_id=self.dead.heir_id, mode=self.mode, step=step, attempt=self.standing.attempts(step) + 1, **fields
        )
        self.context.log.record([*further_events, life_event(self.dead.golem_id, self.dead.died_at, event)], self.now)
        self.standing = Standing({s: t for s in STEPS if (t := ({**self.standing.last, step: event}).get(s))})
        return event.outcome


class SuccessionHalted(Exception):
    """The succession ends at this step; `fields` are recorded with it."""

    def __init__(self, why: str, **fields: Any) -> None:
        super().__init__(why)
        self.fields = fields


_OWN_FIELDS = (
    "due_at", "why", "bundle_hash", "configuration", "divergence_ppm", "budget_micros", "lifespan_ticks", "place",
    "identity",
)  # fmt: skip


def check_export(run: SuccessionRun) -> dict[str, Any]:
    """Name the bundle to inherit. Raises SuccessionHalted if one is requested but none is published."""
    if run.wish.inherit and run.dead.bundle_hash is None:
        raise SuccessionHalted(
            f"golem {run.dead.golem_id} left no published bundle: `bardo golem show` names the cause"
        )
    why = "the bundle that was published" if run.bundle_hash else "nothing is inherited"
    return {"bundle_hash": run.bundle_hash, "why": why}


def _compiled(run: SuccessionRun) -> dict[str, Any]:
    try:
        run.birth()
    except ConfigError as error:
        raise SuccessionHalted(str(error)) from error
    return {
        "configuration": run.configuration(),
        "budget_micros": run.wish.budget_micros,
        "lifespan_ticks": run.wish.lifespan_ticks,
        "why": "the predecessor's, with what is wanted of its heir",
    }


def check_copy(run: SuccessionRun) -> dict[str, Any]:
    """Compare the divergence with the minimum (canon 43). Raises SuccessionHalted below it unless forced."""
    if not run.wish.inherit:
        return {"why": "nothing is inherited: the heir copies nobody"}
    divergence = divergence_ppm(run.context, run.dead.golem_id)
    rules = in_force_now(run.context, run.dead.golem_id).configuration.succession
    divergence_min = round(rules.strategy_drift_allowed * PPM)
    if divergence is None:
        return {"why": "it was given nothing: all that it leaves is its own"}
    comparison = f"divergence {divergence / PPM:.1%}, at least {divergence_min / PPM:.1%} is asked"
    if divergence >= divergence_min:
        return {"divergence_ppm": divergence, "why": comparison}
    if run.wish.force:
        return {"divergence_ppm": divergence, "why": f"{comparison}; forced by hand"}
    raise SuccessionHalted(
        f"its legacy is too similar to its inheritance: {comparison}. `bardo golem successor {run.dead.golem_id} "
        "--force-similarity` accepts the copy, `--no-inherit` inherits nothing",
        divergence_ppm=divergence,
    )


def _provisioned(run: SuccessionRun) -> dict[str, Any]:
    configuration = run.standing.last["compiled"].configuration or run.configuration()
    place = provision(run.context.home, run.dead.heir_id, to_toml(read_recorded(configuration)))
    return {"place": place, "why": "its folder and its configuration are made"}


def _funded(run: SuccessionRun) -> dict[str, Any]:
    budget = run.wish.budget_micros
    if run.mode == "manual":
        return {"budget_micros": budget, "why": "from its owner's hand"}
    owner = run.dead.born.owner_id
    balance = credit_micros(run.context, owner)
    if balance < budget:
        raise SuccessionHalted(
            f"owner {owner} has ${balance / 1e6:,.2f} of committed credit, the heir needs ${budget / 1e6:,.2f}: "
            f"`bardo golem successor {run.dead.golem_id}` summons it by hand, "
            f"`bardo golem credit {owner} USDC --why ...` funds later heirs",
            budget_micros=budget,
        )
    return {"budget_micros": budget, "why": f"from the credit of {owner}, ${(balance - budget) / 1e6:,.2f} are left"}


def _registered(run: SuccessionRun) -> dict[str, Any]:
    """Register the heir's identity. Raises SuccessionHalted for a dead heir, because it never ticks again."""
    life = run.dead.born
    if run.context.life("DeathDeclared", [run.dead.heir_id]).num_rows:
        raise SuccessionHalted(f"golem {run.dead.heir_id} died without an identity")
    identity = FileRegistry(run.context.home).register(
        run.dead.heir_id, lineage_id=life.lineage_id, generation=life.generation + 1, predecessor_id=run.dead.golem_id
    )
    return {"identity": identity, "why": f"generation {life.generation + 1} of {life.lineage_id}"}


def _booted(run: SuccessionRun) -> dict[str, Any]:
    """Return the birth, received knowledge and configuration, committed with the step.

    Raises SuccessionHalted for a bundle that cannot be inherited.
    """
    birth, heir_id = run.birth(), run.dead.heir_id
    content = run.standing.last["compiled"].configuration or run.configuration()
    source, why = f"successor of {run.dead.golem_id}", f"succession, {run.mode}"
    configured = configuration_event(run.context, content, source, why)
    try:
        events: list[LifeEvent] = birth_record(run.context, heir_id, birth, run.at).events
    except BundleError as error:
        raise SuccessionHalted(f"the bundle to inherit differs from the published one: {error}") from error
    events.append(life_event(heir_id, run.at, configured))
    return {"bundle_hash": birth.bundle_hash, "why": "born; the next run lives it", "events": events}


def configuration_event(context: DerivationContext, content: str, source: str, why: str) -> Configured:
    """Return the event content of a golem's own configuration; `content` is canonical JSON."""
    return Configured(
        configuration_hash=configuration_hash(content), configuration=content, policy_hash=context.policy.hash,
        source=source, run=None, why=why,
    )  # fmt: skip


_MAKE: dict[Step, Callable[[SuccessionRun], dict[str, Any]]] = {
    "exported": check_export,
    "compiled": _compiled,
    "compared": check_copy,
    "provisioned": _provisioned,
    "funded": _funded,
    "registered": _registered,
    "booted": _booted,
}
