"""Homes of golems that lived long enough to dream, made from fleets that lived in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.events.life.events import Died, life_event
from bardo_pipeline.events.record.model import Vitality
from bardo_pipeline.policy import Policy
from tests.conftest import NOW
from tests.property.derivation.test_laws import stores_at
from tests.support.fleets.memory_fleets import FOUNDING, START, Lived, live, lively_market

RICH = replace(FOUNDING, lifespan_ticks=(40_000, 50_000), budget_micros=500_000_000)
"""Golems that neither age nor run out of credits for weeks."""


def long_lives(bars: int, golems: int = 1, seed: int = 7) -> Lived:
    """Some golems of one generation in a market in which something happens every few minutes.

    No half-width but the standard one is on trial, so that they keep their trait's and re-centre often.
    """
    policy = Policy()
    playbook = policy.playbook.model_copy(update={"width_ladder_ticks": (policy.playbook.range_half_width_ticks,)})
    policy = policy.model_copy(update={"playbook": playbook})
    return live(lively_market(bars, seed), lineages=range(golems), founding=RICH, policy=policy)


def births_of(lived: Lived) -> list:
    return [life_event(golem_id, START - timedelta(minutes=1), born) for golem_id, born in sorted(lived.births.items())]


def home_of(lived: Lived, root: Path, policy: Policy | None = None) -> DerivationContext:
    """A home with these births and records, of which nothing is derived."""
    stores = stores_at(root, policy or Policy())
    stores.log.record(births_of(lived), NOW)
    stores.log.append(lived.records, writer="w", segment=1, recorded_at=NOW)
    return stores


def tagged(records: pa.Table, ticks: Sequence[int], tag: str = "what was that?") -> pa.Table:
    """The same records, those of these ticks with a dream tag."""
    own = pc.is_in(records["tick"], value_set=pa.array(ticks, pa.int64()))
    column = records.schema.get_field_index("dream_tag")
    return records.set_column(column, records.schema.field(column), pc.if_else(own, tag, records["dream_tag"]))


def without_positions(records: pa.Table) -> pa.Table:
    """The same records without positions, as of golems that seal them."""
    seen = records["observation"].combine_chunks()
    parts = {name: seen.field(name) for name in seen.type.names}
    kind = seen.type.field("positions").type
    offsets = pa.array([0] * (len(seen) + 1), pa.int32())
    parts["positions"] = pa.ListArray.from_arrays(offsets, pa.array([], kind.value_type)).cast(kind)
    bare = pa.StructArray.from_arrays(list(parts.values()), fields=list(seen.type), mask=seen.is_null())
    return records.set_column(records.schema.get_field_index("observation"), records.schema.field("observation"), bare)


def death(golem_id: str, tick: int, at) -> object:
    vitality = Vitality(economic=0.0, epistemic=0.7, stochastic=0.5, composite=0.0)
    payload = Died(
        cause="economic", tick=tick, phase="terminal", vitality=vitality, credits_micros=0, capital_micros=1,
        earned_micros=0,
    )  # fmt: skip
    return life_event(golem_id, at, payload)
