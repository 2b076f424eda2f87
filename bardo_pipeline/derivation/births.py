"""Births: the events with which a golem's life begins, the same ones whoever records them: a run or a succession."""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa

from bardo_pipeline.derivation.bundles import load_bundle
from bardo_pipeline.derivation.stores import Stores
from bardo_pipeline.events.life import Born, LifeEvent, Received, life_event
from bardo_pipeline.inheritance.succession import inherited_entries


def birth_events(stores: Stores, golem_id: str, birth: Born, at: datetime) -> tuple[list[LifeEvent], pa.Table | None]:
    """The birth and, where it inherits, what was received; and the entries that it begins with, None without a bundle.

    Raises BundleError for a bundle that is not there or not what its hash says.
    """
    events = [life_event(golem_id, at, birth)]
    if birth.bundle_hash is None:
        return events, None
    bundle = load_bundle(stores.home, birth.bundle_hash)
    inherited = inherited_entries(bundle, golem_id, stores.policy)
    received = Received(
        source="succession",
        from_golem_id=bundle.golem_id,
        content_hash=birth.bundle_hash,
        entry_count=inherited.num_rows,
    )
    return [*events, life_event(golem_id, at, received)], inherited
