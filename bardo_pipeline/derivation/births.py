"""Births: the events with which a golem's life begins, the same ones whoever records them: a run or a succession."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import pyarrow as pa

from bardo_pipeline.derivation.bundles import load_bundle
from bardo_pipeline.derivation.stores import Stores
from bardo_pipeline.events.instincts import DefaultsInherited, Instincts
from bardo_pipeline.events.life import Born, LifeEvent, Received, life_event
from bardo_pipeline.inheritance.baldwin import defaults_of
from bardo_pipeline.inheritance.bundle import Bundle
from bardo_pipeline.inheritance.succession import inherited_entries


class Beginning(NamedTuple):
    """What a life begins with: the events to record, the bundle and its entries as the heir's own, None without one,
    and what its line has made a default."""

    events: list[LifeEvent]
    bundle: Bundle | None
    inherited: pa.Table | None
    instincts: Instincts = Instincts()


def beginning(stores: Stores, golem_id: str, birth: Born, at: datetime) -> Beginning:
    """The birth of a golem at a moment and, where it inherits, what it receives.

    Raises BundleError for a bundle that is not there or not what its hash says.
    """
    events = [life_event(golem_id, at, birth)]
    if birth.bundle_hash is None:
        return Beginning(events, None, None)
    bundle = load_bundle(stores.home, birth.bundle_hash)
    inherited = inherited_entries(bundle, golem_id, stores.policy)
    received = Received(
        source="succession",
        from_golem_id=bundle.golem_id,
        content_hash=birth.bundle_hash,
        entry_count=inherited.num_rows,
    )
    events.append(life_event(golem_id, at, received))
    died_at = datetime.fromisoformat(bundle.manifest["died_at"])
    defaults = defaults_of(inherited, died_at, birth.traits.rebalance_threshold, stores.policy)
    if not defaults:
        return Beginning(events, bundle, inherited)
    events.append(life_event(golem_id, at, DefaultsInherited(bundle_hash=birth.bundle_hash, defaults=defaults)))
    known = Instincts({golem_id: [default.model_dump() for default in defaults]})
    return Beginning(events, bundle, inherited, known)
