"""Adopt and record the configuration of a bardo.toml, and read the configuration in force from the log.

Settings that determine content become a policy, whose derivation is built and adopted. Operational settings take effect
at once. One event records the whole configuration. Source: P-7; X-10.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import birth_rows, log_moment
from bardo_pipeline.derivation.versions.side_derivations import build, open_beside, switch_to
from bardo_pipeline.events.life.events import EVERY_GOLEM, life_event
from bardo_pipeline.events.life.succession_events import Configured
from bardo_pipeline.policy import Policy
from bardo_pipeline.policy.golem_configuration import Configuration
from bardo_pipeline.policy.toml_config import NO_CONFIG_FILE, ConfigFile, canonical, configuration_hash, read_recorded
from bardo_pipeline.storage.log.configuration_events import home_configuration, in_recording_order, newest


@dataclass(frozen=True)
class InForceNow:
    """A configuration in force and its event; None if no configuration was recorded."""

    configuration: Configuration
    event: Configured | None


def put_in_force(
    context: DerivationContext, stated: ConfigFile, *, now: datetime, why: str, at: datetime | None = None
) -> DerivationContext:
    """Adopt the stated configuration; return the context in force afterwards.

    If the policy changes, its derivation is built and adopted. Raises ConfigError for contradictory settings,
    DerivationError if the derivation in force is frozen.

    Parameters
    ----------
    at : event time of the adoption in an empty log
    """
    policy = stated.policy(context.policy)
    if policy.hash == context.policy.hash:
        return context
    with context.home.lock("adoption"):
        chosen = open_beside(context, policy)
        build(context, chosen, now=now)
        switch_to(context, chosen, f"{stated.name}: {why}", now=now, at=at)
    return DerivationContext.open(context.home.root)


def record_configuration(
    context: DerivationContext,
    stated: ConfigFile,
    *,
    now: datetime,
    why: str,
    run: str | None = None,
    at: datetime | None = None,
) -> Configured:
    """Record the whole configuration: the stated settings and the others in force. Equal configurations are not
    repeated.

    Parameters
    ----------
    run : the run that begins with it
    at : event time; default: the last one of the log
    """
    content = canonical(stated.complete(context.policy))
    configured = Configured(
        configuration_hash=configuration_hash(content),
        configuration=content,
        policy_hash=context.policy.hash,
        source=stated.name,
        run=run,
        why=why,
    )
    events = context.life("ConfigurationAdopted")
    of_home, of_run = home_configuration(events), _of_run(events, run)
    recorded = [of_home] if run is None else [of_home, of_run]
    if all(r is not None and r.configuration_hash == configured.configuration_hash for r in recorded):
        return configured
    moment = at if at is not None and of_run is None else log_moment(context, "ConfigurationAdopted")
    context.log.record([life_event(EVERY_GOLEM, moment, configured)], now)
    return configured


def in_force_now(context: DerivationContext, golem_id: str | None = None) -> InForceNow:
    """Return the configuration in force in the home, or that of a golem's birth (`in_force_of`)."""
    if golem_id is not None:
        return in_force_of(context, [golem_id])[golem_id]
    return _in_force(context.policy, home_configuration(context.life("ConfigurationAdopted")))


def in_force_of(context: DerivationContext, golem_ids: Collection[str]) -> dict[str, InForceNow]:
    """Return the configuration with which each golem was born.

    That is the golem's own, else that of its run, else the home's last one, else the policy in force.
    """
    events, births = in_recording_order(context.life("ConfigurationAdopted")), birth_rows(context, golem_ids)
    recorded = events["configured"].to_pylist()
    of_golem = {golem_id: place for place, golem_id in enumerate(events["golem_id"].to_pylist())}
    of_run = {content["run"]: place for place, content in enumerate(recorded)}

    def place_of(golem_id: str) -> int | None:
        run = births[golem_id]["lineage_id"].rpartition("/")[0] if golem_id in births else ""
        return of_golem.get(golem_id, of_run.get(run, of_golem.get(EVERY_GOLEM)))

    places = {golem_id: place_of(golem_id) for golem_id in golem_ids}
    by_place = {
        place: _in_force(context.policy, None if place is None else Configured.model_validate(recorded[place]))
        for place in set(places.values())
    }
    return {golem_id: by_place[place] for golem_id, place in places.items()}


def _in_force(policy: Policy, configured: Configured | None) -> InForceNow:
    if configured is None:
        return InForceNow(NO_CONFIG_FILE.complete(policy), None)
    return InForceNow(read_recorded(configured.configuration), configured)


def _of_run(events: pa.Table, run: str | None) -> Configured | None:
    if not run or not events.num_rows:
        return None
    return newest(events.filter(pc.equal(pc.struct_field(events["configured"].combine_chunks(), "run"), run)))
