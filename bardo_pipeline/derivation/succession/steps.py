"""The seven steps of a succession, each tried once and recorded, whatever comes of it.

Source: INH S13; canon 43.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bardo_pipeline.derivation.configuration import in_force_now
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.death_queries import (
    DeadGolem,
    HeirRequest,
    credit_micros,
    succession_steps,
)
from bardo_pipeline.derivation.succession.birth_events import beginning
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
from bardo_pipeline.heartbeat.fleet import Founding, born
from bardo_pipeline.inheritance.succession_state import Standing, due_again, standings
from bardo_pipeline.policy.toml_config import canonical, configuration_hash, read_recorded, to_toml
from bardo_pipeline.storage.provisioning import FileRegistry, HomeProvisioner, Provisioner, Registry

PPM = 1_000_000


@dataclass(frozen=True)
class Hands:
    """Who makes places and identities for a home."""

    provisioner: Provisioner
    registry: Registry

    @classmethod
    def of(cls, context: DerivationContext) -> Hands:
        """Those of the home itself."""
        return cls(HomeProvisioner(context.home), FileRegistry(context.home))


def divergence_ppm(context: DerivationContext, golem_id: str) -> int | None:
    """How far a dead golem came from what it was given, in ppm; None for who was given nothing (canon 43).

    Raises SuccessionError where its testament is not derived yet.
    """
    rows = context.projections.growing("testaments").read(golems=[golem_id])
    if not rows.num_rows:
        raise SuccessionError(f"golem {golem_id}: its testament is not derived yet: the death job does it")
    found: int | None = rows["divergence_ppm"][-1].as_py()
    return found


class Course:
    """One succession on its way: what is wanted, by whom, and what was made."""

    def __init__(
        self,
        context: DerivationContext,
        dead: DeadGolem,
        wish: HeirRequest,
        hands: Hands,
        *,
        now: datetime,
        mode: Any,
        at: datetime,
    ) -> None:
        self.context, self.dead, self.wish, self.hands = context, dead, wish, hands
        self.now, self.mode, self.at = now, mode, at
        self.standing = self._standing()

    def _standing(self) -> Standing:
        mine = self.dead.golem_id
        return standings(succession_steps(self.context, [mine])).get(mine, Standing({}))

    @property
    def bundle_hash(self) -> str | None:
        """What is inherited."""
        return self.dead.bundle_hash if self.wish.inherit else None

    def birth(self) -> Born:
        """The heir's birth. Raises ConfigError for a budget that leaves no credits beside the death reserve."""
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
        """The predecessor's configuration with what is wanted of the heir, as canonical JSON."""
        theirs = in_force_now(self.context, self.dead.golem_id).configuration
        wanted = {"budget_usdc": self.wish.budget_micros / 1e6, "inherit_grimoire": self.wish.inherit}
        return canonical(theirs.model_copy(update={"succession": theirs.succession.model_copy(update=wanted)}))

    def run(self, *, by: datetime | None = None) -> Standing:
        """Make every step that can be made now. by: also those that are due by then, for whoever will not wait."""
        while (step := self.standing.next_step(by or self.now)) is not None:
            outcome = self.make(step)
            if outcome != "done" and step != "registered":
                break
        return self.standing

    def make(self, step: Step) -> str:
        """Try one step, and record what came of it."""
        said: dict[str, Any] = dict.fromkeys(_OWN_FIELDS)
        try:
            said |= {"outcome": "done", **_MAKE[step](self)}
        except Halt as halt:
            said |= {"outcome": "halted", "why": str(halt), **halt.told}
        except ProvisioningError as error:
            attempt = self.standing.attempts(step) + 1
            due = due_again(attempt, self.now, self.context.policy.succession)
            said |= {"outcome": "failed", "why": str(error), "due_at": due}
        except IdentityTakenError as error:
            said |= {"outcome": "halted", "why": str(error)}
        except RegistrationError as error:
            said |= {"outcome": "failed", "why": str(error)}
        more = said.pop("events", [])
        told = Advanced(
            heir_id=self.dead.heir_id, mode=self.mode, step=step, attempt=self.standing.attempts(step) + 1, **said
        )
        self.context.log.record([*more, life_event(self.dead.golem_id, self.dead.died_at, told)], self.now)
        self.standing = Standing({s: t for s in STEPS if (t := ({**self.standing.last, step: told}).get(s))})
        return told.outcome


class Halt(Exception):
    """The succession ends at this step."""

    def __init__(self, why: str, **told: Any) -> None:
        super().__init__(why)
        self.told = told


_OWN_FIELDS = (
    "due_at", "why", "bundle_hash", "configuration", "divergence_ppm", "budget_micros", "lifespan_ticks", "place",
    "identity",
)  # fmt: skip


def check_export(course: Course) -> dict[str, Any]:
    """What the export says. Raises Halt where something is to be inherited and nothing was published."""
    if course.wish.inherit and course.dead.bundle_hash is None:
        raise Halt(f"golem {course.dead.golem_id} left no published bundle: `bardo golem show` says what stopped it")
    why = "the bundle that was published" if course.bundle_hash else "nothing is inherited"
    return {"bundle_hash": course.bundle_hash, "why": why}


def _compiled(course: Course) -> dict[str, Any]:
    try:
        course.birth()
    except ConfigError as error:
        raise Halt(str(error)) from error
    return {
        "configuration": course.configuration(),
        "budget_micros": course.wish.budget_micros,
        "lifespan_ticks": course.wish.lifespan_ticks,
        "why": "the predecessor's, with what is wanted of its heir",
    }


def check_copy(course: Course) -> dict[str, Any]:
    """What the comparison says (canon 43). Raises Halt, with the divergence, for a copy that nobody forces."""
    if not course.wish.inherit:
        return {"why": "nothing is inherited: the heir copies nobody"}
    apart = divergence_ppm(course.context, course.dead.golem_id)
    said = in_force_now(course.context, course.dead.golem_id).configuration.succession
    least = round(said.strategy_drift_allowed * PPM)
    if apart is None:
        return {"why": "it was given nothing: all that it leaves is its own"}
    told = f"divergence {apart / PPM:.1%}, at least {least / PPM:.1%} is asked"
    if apart >= least:
        return {"divergence_ppm": apart, "why": told}
    if course.wish.force:
        return {"divergence_ppm": apart, "why": f"{told}; forced by hand"}
    raise Halt(
        f"what it leaves is too much like what it was given: {told}. `bardo golem successor {course.dead.golem_id} "
        "--force-similarity` takes a copy, `--no-inherit` begins without",
        divergence_ppm=apart,
    )


def _provisioned(course: Course) -> dict[str, Any]:
    said = course.standing.last["compiled"].configuration or course.configuration()
    place = course.hands.provisioner.provision(course.dead.heir_id, to_toml(read_recorded(said)))
    return {"place": place, "why": "its folder and its configuration are made"}


def _funded(course: Course) -> dict[str, Any]:
    wanted = course.wish.budget_micros
    if course.mode == "manual":
        return {"budget_micros": wanted, "why": "from its owner's hand"}
    owner = course.dead.born.owner_id
    balance = credit_micros(course.context, owner)
    if balance < wanted:
        raise Halt(
            f"owner {owner} has ${balance / 1e6:,.2f} of committed credit, the heir needs ${wanted / 1e6:,.2f}: "
            f"`bardo golem credit {owner} USDC --why ...` commits more, `bardo golem successor "
            f"{course.dead.golem_id}` summons it by hand",
            budget_micros=wanted,
        )
    return {"budget_micros": wanted, "why": f"from the credit of {owner}, ${(balance - wanted) / 1e6:,.2f} are left"}


def _registered(course: Course) -> dict[str, Any]:
    """The identity. Raises Halt for an heir that died without one: no heart of its beats again."""
    life = course.dead.born
    if course.context.life("DeathDeclared", [course.dead.heir_id]).num_rows:
        raise Halt(f"golem {course.dead.heir_id} died without an identity")
    identity = course.hands.registry.register(
        course.dead.heir_id,
        lineage_id=life.lineage_id,
        generation=life.generation + 1,
        predecessor_id=course.dead.golem_id,
    )
    return {"identity": identity, "why": f"generation {life.generation + 1} of {life.lineage_id}"}


def _booted(course: Course) -> dict[str, Any]:
    """The birth, what is received, and the heir's configuration, in one commit with the step. Raises Halt for a bundle
    that cannot be inherited."""
    birth, heir_id = course.birth(), course.dead.heir_id
    content = course.standing.last["compiled"].configuration or course.configuration()
    source, why = f"successor of {course.dead.golem_id}", f"succession, {course.mode}"
    said = configured(course.context, content, source, why)
    try:
        events: list[LifeEvent] = beginning(course.context, heir_id, birth, course.at).events
    except BundleError as error:
        raise Halt(f"what it would inherit is not what was published: {error}") from error
    events.append(life_event(heir_id, course.at, said))
    return {"bundle_hash": birth.bundle_hash, "why": "born; the next run lives it", "events": events}


def configured(context: DerivationContext, content: str, source: str, why: str) -> Configured:
    """A configuration of a golem's own, as it is recorded. content: canonical JSON."""
    return Configured(
        configuration_hash=configuration_hash(content), configuration=content, policy_hash=context.policy.hash,
        source=source, run=None, why=why,
    )  # fmt: skip


_MAKE: dict[Step, Callable[[Course], dict[str, Any]]] = {
    "exported": check_export,
    "compiled": _compiled,
    "compared": check_copy,
    "provisioned": _provisioned,
    "funded": _funded,
    "registered": _registered,
    "booted": _booted,
}
