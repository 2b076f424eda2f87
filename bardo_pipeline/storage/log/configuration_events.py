"""The recorded configurations: the one in force for a home, and its operational settings."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.life.events import EVERY_GOLEM
from bardo_pipeline.events.life.succession_events import Configured
from bardo_pipeline.policy import Policy
from bardo_pipeline.policy.toml_config import with_operations


def home_configuration(configurations: pa.Table) -> Configured | None:
    """Return the configuration in force for the whole home (life events of kind ConfigurationAdopted)."""
    return newest(configurations.filter(pc.equal(configurations["golem_id"], EVERY_GOLEM)))


def newest(configurations: pa.Table) -> Configured | None:
    """Return the configuration that was recorded last."""
    if not configurations.num_rows:
        return None
    return Configured.model_validate(in_recording_order(configurations)["configured"][-1].as_py())


def in_recording_order(configurations: pa.Table) -> pa.Table:
    """Sort life events by recording time, the newest last."""
    return configurations.sort_by([(name, "ascending") for name in ("recorded_at", "observed_at", "event_id")])


def with_recorded_operations(policy: Policy, configurations: pa.Table) -> Policy:
    """Return the policy with the operational settings of the recorded configuration; they change no content."""
    configured = home_configuration(configurations)
    return policy if configured is None else with_operations(policy, configured.configuration)
