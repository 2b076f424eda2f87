"""Configured: what a bardo.toml says is put in force and recorded, and what is in force is read off the log.

What of a configuration decides content goes the way of every policy: built beside, then adopted by an event. What says
how a home is run acts at once. Both are in one event with the whole configuration. Source: P-7; X-10.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.versions.adoption import log_moment, switch_to
from bardo_pipeline.derivation.versions.side_derivations import build, open_beside
from bardo_pipeline.events.life.events import EVERY_GOLEM, life_event
from bardo_pipeline.events.life.succession_events import Configured
from bardo_pipeline.policy.golem_configuration import Configuration
from bardo_pipeline.policy.toml_config import NO_CONFIG_FILE, ConfigFile, canonical, configuration_hash, read_recorded
from bardo_pipeline.storage.log.configuration_events import home_configuration, in_recording_order, newest

Tell = Callable[[str], None]


@dataclass(frozen=True)
class InForceNow:
    """A configuration as it is in force. event: where it is on record, None where none was ever recorded."""

    configuration: Configuration
    event: Configured | None


def put_in_force(
    context: DerivationContext,
    stated: ConfigFile,
    *,
    now: datetime,
    why: str,
    at: datetime | None = None,
    tell: Tell = lambda _: None,
) -> DerivationContext:
    """Let the home go by what is stated. Returns the context that is in force then, under its policy.

    Where the policy that comes of it is another one, its derivation is built beside and adopted. at: the moment of that
    where nothing is on record yet. Raises ConfigError for what contradicts itself, DerivationError where the derivation
    in force is frozen.
    """
    wanted = stated.policy(context.policy)
    if wanted.hash == context.policy.hash:
        return context
    with context.home.lock("adoption"):
        chosen = open_beside(context, wanted)
        build(context, chosen, now=now, tell=tell)
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
    """Record the whole configuration: what is stated, and all else as it is in force; once.

    run: the run that begins with it, at the moment `at`; by default it is the log's last one. Where the same is on
    record of this run and in force, nothing is written.
    """
    content = canonical(stated.complete(context.policy))
    said = Configured(
        configuration_hash=configuration_hash(content),
        configuration=content,
        policy_hash=context.policy.hash,
        source=stated.name,
        run=run,
        why=why,
    )
    events = context.life("ConfigurationAdopted")
    standing, known = home_configuration(events), _of_run(events, run)
    needed = [standing] if run is None else [standing, known]
    if all(one is not None and one.configuration_hash == said.configuration_hash for one in needed):
        return said
    moment = at if at is not None and known is None else log_moment(context, "ConfigurationAdopted")
    context.log.record([life_event(EVERY_GOLEM, moment, said)], now)
    return said


def in_force_now(context: DerivationContext, golem_id: str | None = None) -> InForceNow:
    """The configuration that is in force in the home, or that a golem was born with (`in_force_of`)."""
    if golem_id is not None:
        return in_force_of(context, [golem_id])[golem_id]
    return _in_force(context, home_configuration(context.life("ConfigurationAdopted")))


def in_force_of(context: DerivationContext, golem_ids: Collection[str]) -> dict[str, InForceNow]:
    """The configuration that each of these golems was born with.

    A golem's own, else that of the run that it was born in, else the home's last; where none is on record, what the
    policy in force says.
    """
    events, births = in_recording_order(context.life("ConfigurationAdopted")), context.life("GolemBorn")
    said = events["configured"].combine_chunks()
    of_golem = dict(zip(events["golem_id"].to_pylist(), range(len(said)), strict=True))
    of_run = dict(zip(pc.struct_field(said, "run").to_pylist(), range(len(said)), strict=True))
    lineages = pc.struct_field(births["born"].combine_chunks(), "lineage_id").to_pylist()
    runs = {g: of_run.get(line.rpartition("/")[0])
            for g, line in zip(births["golem_id"].to_pylist(), lineages, strict=True)}  # fmt: skip
    home = of_golem.get(EVERY_GOLEM)
    places = {g: next((at for at in (of_golem.get(g), runs.get(g)) if at is not None), home) for g in golem_ids}
    known = {
        at: _in_force(context, None if at is None else Configured.model_validate(said[at].as_py()))
        for at in set(places.values())
    }
    return {g: known[at] for g, at in places.items()}


def _in_force(context: DerivationContext, found: Configured | None) -> InForceNow:
    if found is None:
        return InForceNow(NO_CONFIG_FILE.complete(context.policy), None)
    return InForceNow(read_recorded(found.configuration), found)


def _of_run(events: pa.Table, run: str | None) -> Configured | None:
    if not run or not events.num_rows:
        return None
    return newest(events.filter(pc.equal(pc.struct_field(events["configured"].combine_chunks(), "run"), run)))
