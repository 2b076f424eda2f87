"""The configurations on record: which one a home goes by, and what of it says how the home is run."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.life.events import EVERY_GOLEM
from bardo_pipeline.events.life.succession_events import Configured
from bardo_pipeline.policy import Policy
from bardo_pipeline.policy.toml_config import with_operations


def last_of_home(configurations: pa.Table) -> Configured | None:
    """The configuration that the whole home goes by, by these life events (kind ConfigurationAdopted)."""
    return newest(configurations.filter(pc.equal(configurations["golem_id"], EVERY_GOLEM)))


def newest(configurations: pa.Table) -> Configured | None:
    """The configuration that was recorded last."""
    if not configurations.num_rows:
        return None
    return Configured.model_validate(in_order(configurations)["configured"][-1].as_py())


def in_order(configurations: pa.Table) -> pa.Table:
    """These life events as they were recorded, the newest last."""
    return configurations.sort_by([(name, "ascending") for name in ("recorded_at", "observed_at", "event_id")])


def operated(policy: Policy, configurations: pa.Table) -> Policy:
    """The policy with what the recorded configuration says of how the home is run: what decides no content."""
    found = last_of_home(configurations)
    return policy if found is None else with_operations(policy, found.configuration)
