"""Replicants: short-lived offspring that test a golem's open hypothesis. Source: INH S7.6.

The documents leave open when a golem sends one. Here, if the run allows it, a golem sends one at the close of a cycle
about the candidate with most evidence: one at a time, each hypothesis once. A replicant has its parent's owner and
market, no knowledge, and a slightly lower rebalance threshold, because acts are judged more often than inaction. It
dies of age after 200 to 400 ticks. Its report reaches a living parent at the next close of a cycle. It has no heirs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime

import numpy as np

from bardo_pipeline.curator.state.grimoire_state import CANDIDATE, is_quarantined, rule_texts
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curator_state import CuratorState
from bardo_pipeline.derivation.strikes_and_reorgs import withdraw
from bardo_pipeline.derivation.succession.birth_events import BirthRecord
from bardo_pipeline.derivation.succession.deliver_bundle import replicant_report
from bardo_pipeline.events.life.events import Born, life_event
from bardo_pipeline.events.life.received_knowledge import Replicant
from bardo_pipeline.heartbeat.fleet import Fleet, born
from bardo_pipeline.runtime.run_settings import Run

LIFESPAN_TICKS = (200, 400)
"""Bounds of a replicant's lifespan: four to eight cycles of the curator."""


class Replicants:
    """The replicants of one run, with their parents and hypotheses."""

    def __init__(self, context: DerivationContext, run: Run) -> None:
        self._context, self._run = context, run
        self._missions: dict[str, Replicant] = {}
        self._away: set[str] = set()

    def __contains__(self, golem_id: str) -> bool:
        return golem_id in self._missions

    def sent(self, fleet: Fleet, mind: CuratorState) -> list[tuple[str, Born]]:
        """Return the births of replicants that are sent now."""
        if not self._run.replicants:
            return []
        lives = dict(zip(fleet.golem_ids, fleet.births, strict=True))
        busy = {self._missions[golem_id].parent_id for golem_id in self._away}
        ready = {
            g for g in lives if g not in self and g not in busy and len(self._hypotheses_of(g)) < self._run.replicants
        }
        return [self._born(g, lives[g], asked) for g, asked in sorted(self._open(mind, ready).items())]

    def beginning(self, golem_id: str, birth: Born, at: datetime) -> BirthRecord | None:
        """Return a replicant's birth record; None for other golems."""
        if golem_id not in self:
            return None
        return BirthRecord(
            [life_event(golem_id, at, birth), life_event(golem_id, at, self._missions[golem_id])], None, None
        )

    def report(
        self, dead: Collection[str], bundles: Mapping[str, str], fleet: Fleet, *, at: datetime, now: datetime
    ) -> None:
        """Record the reports of dead replicants to living parents. bundles: published bundles of the dead."""
        ticks = dict(zip(fleet.golem_ids, fleet.tick.tolist(), strict=True))
        returned = sorted(self._away.intersection(dead))
        self._away.difference_update(returned)
        reports = [
            (g, self._missions[g].parent_id) for g in returned if g in bundles and self._missions[g].parent_id in ticks
        ]
        events = [
            replicant_report(self._context, g, bundles[g], tick_seen=ticks[parent], at=at) for g, parent in reports
        ]
        if events:
            self._context.log.record(events, now)
            withdraw(self._context, now=now)  # its sources may have been retracted meanwhile

    def _hypotheses_of(self, golem_id: str) -> set[str]:
        return {mission.hypothesis for mission in self._missions.values() if mission.parent_id == golem_id}

    def _open(self, mind: CuratorState, golems: Collection[str]) -> dict[str, str]:
        """Return each golem's candidate rule with most evidence, in words, except those tested before."""
        state = mind.state
        is_rule = np.array([row.source == "pattern" for row in state.structures.rows], bool)
        codes = [state.golem_code(golem_id) for golem_id in golems]
        is_open = (state["status"] == CANDIDATE) & (state["own_count"] > 0) & ~is_quarantined(state)
        rows = np.flatnonzero(is_open & np.isin(state["golem"], codes))
        rows = rows[is_rule[state["structure"][rows]]]
        out: dict[str, str] = {}
        candidates = zip(
            state["own_count"][rows].tolist(), rule_texts(state, rows), state["golem"][rows].tolist(), strict=True
        )
        for _, text, code in sorted(candidates, key=lambda row: (-row[0], row[1])):
            if text not in self._hypotheses_of(state.golems[code]):
                out.setdefault(state.golems[code], text)
        return out

    def _born(self, parent_id: str, parent: Born, hypothesis: str) -> tuple[str, Born]:
        context, market = self._context, self._run.market
        threshold = parent.traits.rebalance_threshold - context.policy.traits.threshold_step
        traits = parent.traits.model_copy(update={"rebalance_threshold": max(round(threshold, 4), 0.0)})
        golem_id, birth = born(
            lineage_id=f"{parent.lineage_id}-{parent.generation}-replicant-{len(self._hypotheses_of(parent_id)) + 1}",
            generation=0, owner_id=parent.owner_id, founding=replace(self._run.founding, lifespan_ticks=LIFESPAN_TICKS),
            market=market.name, market_hash=market.content_hash, derivation_id=context.derivation_id,
            policy=context.policy, traits=traits,
        )  # fmt: skip
        self._missions[golem_id] = Replicant(parent_id=parent_id, hypothesis=hypothesis)
        self._away.add(golem_id)
        return golem_id, birth
