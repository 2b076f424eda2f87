"""Lives described chapter by chapter, and the curator's result for them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa

from bardo_pipeline.curator.curate import Curation, curate
from bardo_pipeline.curator.playbook import Playbooks
from bardo_pipeline.curator.state.grimoire_state import GrimoireState, to_table
from bardo_pipeline.policy import Policy
from tests.support.records.handmade_records import KEEN, SPAN, Chapter, Life, Situation, cycles_of, stream

POLICY = KEEN
INSTANT = timedelta(milliseconds=1)
"""Between two ticks: too short for anything to fade."""

Row = dict[str, Any]
GOOD, BAD, STRONG, WORSE = Chapter(3, 1_500), Chapter(3, -1_500), Chapter(14, 6_000), Chapter(14, -6_000)
SILENCE = Chapter(0)


class CuratedLife:
    """The curator's result for a stream."""

    def __init__(self, records: pa.Table, policy: Policy = POLICY, state: GrimoireState | None = None) -> None:
        self.state = state or GrimoireState()
        self.made: Curation = curate(
            self.state, Playbooks(), records, cycles_of(records), policy=policy, policy_hash=policy.hash
        )
        self.decisions: list[Row] = self.made.decisions.to_pylist()
        self.entries: list[Row] = to_table(self.state, policy.curator, policy.decay).to_pylist()

    def of(self, when: Situation) -> list[Row]:
        """Decisions about one situation's rule."""
        return [row for row in self.decisions if row["structure"] == when.structure.key]

    def decided(self, when: Situation) -> list[tuple[int, str, int]]:
        """Cycle, operation and confidence of those decisions."""
        return [(row["cycle"], row["operation"], row["confidence_ppm"]) for row in self.of(when)]

    def entry(self, when: Situation) -> Row:
        """Return the present rule of a situation."""
        (row,) = [row for row in self.entries if row["structure"] == when.structure.key]
        return row

    def metric(self, name: str) -> Row:
        """Return the present baseline of a metric."""
        (row,) = [row for row in self.entries if row["metric"] == name]
        return row


def lived(
    *plots: tuple[Situation, Sequence[Chapter]], every: timedelta = INSTANT, episodes: int = 0, **fields: Any
) -> CuratedLife:
    """One golem's life, chapter by chapter."""
    plot = {when: tuple(story) for when, story in plots}
    ticks = SPAN * max(len(story) for story in plot.values())
    return CuratedLife(stream([Life("g-1", plot, (episodes,), every, ticks)]), **fields)
