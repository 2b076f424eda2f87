"""Handmade knowledge that golems receive after birth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from bardo_pipeline.curator.curate import Curation, curate
from bardo_pipeline.curator.playbook import Playbooks
from bardo_pipeline.curator.state.grimoire_state import GrimoireState, to_table
from bardo_pipeline.curator.state.received_entries import Delivery
from bardo_pipeline.events.life.override_events import Order
from bardo_pipeline.events.life.received_knowledge import Arrival
from bardo_pipeline.grimoire.entry_columns import with_columns
from bardo_pipeline.inheritance.bundle_files import CROSSING_COLUMNS
from bardo_pipeline.policy import Policy
from tests.support.knowledge.handmade_bundles import crossing_of
from tests.support.knowledge.handmade_grimoires import entry
from tests.support.records.handmade_records import KEEN, SPAN, START, Situation, cycles_of

BRIEF = KEEN.model_copy(update={"curator": KEEN.curator.model_copy(update={"cycle_ticks": SPAN})})
"""Cycles of a few ticks, and low thresholds."""


def crossing(*rows: dict[str, Any]) -> pa.Table:
    """Return entries of another golem's bundle. A row's generation is its number of crossings."""
    generation = [row["generation"] for row in rows]
    whole = crossing_of(*(row | {"generation": 0} for row in rows), golem_id="g-far")
    at = {row["entry_id"]: crossed for row, crossed in zip(rows, generation, strict=True)}
    table = whole.select(CROSSING_COLUMNS)
    return with_columns(table, generation=pa.array([at[name] for name in table["entry_id"].to_pylist()], pa.int64()))


def claim(when: Situation | Any, sign: int = 1, **fields: Any) -> dict[str, Any]:
    """Return another golem's claim about a situation or a structure."""
    about = when.structure if isinstance(when, Situation) else when
    plain: dict[str, Any] = {"sign": sign, "generation": 1, "kind": "heuristic" if sign > 0 else "warning"}
    return entry("g-far", about, **({**plain, "confidence_ppm": 900_000, "decay_class": "structural"} | fields))


def delivery(
    *rows: dict[str, Any], golem_id: str = "g-1", seen: int = 0, source: str = "import", number: int = 0, **fields: Any
) -> Delivery:
    """These claims, given to a golem after a tick."""
    arrival = Arrival(golem_id, seen, f"event-{number}", START, source, f"{number:064x}", "g-far", **fields)
    return Delivery(arrival, crossing(*rows))


class Received:
    """The curator's result for a life with received knowledge."""

    def __init__(
        self, records: pa.Table, *given: Delivery, policy: Policy = BRIEF, orders: Sequence[Order] = (),
        cycle_by_cycle: bool = False,
    ) -> None:  # fmt: skip
        self.state, books, cycles = GrimoireState(), Playbooks(), cycles_of(records)
        stretches = sorted(set(cycles.tolist())) if cycle_by_cycle else [None]
        parts: list[Curation] = []
        for only in stretches:
            here = cycles == only if only is not None else cycles > 0
            due = [g for g in given if only in (None, g.arrival.cycle(policy.curator.cycle_ticks))]
            parts.append(
                curate(self.state, books, records.filter(pa.array(here)), cycles[here], policy=policy,
                       policy_hash=policy.hash, orders=orders, deliveries=due)
            )  # fmt: skip
        self.decisions = pa.concat_tables([part.decisions for part in parts]).to_pylist()
        self.playbooks = pa.concat_tables([part.playbooks for part in parts]).to_pylist()
        self.entries = {
            (e["golem_id"], e["structure"]): e for e in to_table(self.state, policy.curator, policy.decay).to_pylist()
        }

    def decided(self, when: Situation | Any, golem_id: str = "g-1") -> list[tuple[int, str]]:
        """Return cycle and operation of the decisions about a situation or a structure."""
        about = when.structure if isinstance(when, Situation) else when
        return [
            (row["cycle"], row["operation"])
            for row in self.decisions
            if (row["golem_id"], row["structure"]) == (golem_id, about.key)
        ]

    def entry(self, when: Situation | Any, golem_id: str = "g-1") -> dict[str, Any]:
        """Return the golem's entry about a situation or a structure."""
        return self.entries[golem_id, (when.structure if isinstance(when, Situation) else when).key]
