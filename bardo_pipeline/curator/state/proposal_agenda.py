"""Motions: what was proposed, with what the cited ticks say, laid before the cycle in which it is judged. Pure.

A citation counts where a record of that tick judged a decision, or the decision was taken at that tick and judged
since; ticks that the golem had not lived when it was proposed, or that are not on record, count for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from bardo_pipeline.curator.state.evidence import judged_effects
from bardo_pipeline.curator.state.grimoire_state import GrimoireState
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.events.life.proposal_events import Proposal
from bardo_pipeline.policy import CuratorPolicy


@dataclass(frozen=True)
class Motion:
    """One proposal. structure: of ADD, -1 for the others.

    cited, at_us, effect: structure, moment of judgement and effect in ppm of each judged decision that is cited, by
    structure and tick; first: where they begin among the causes.
    """

    proposal: Proposal
    structure: int
    cited: np.ndarray
    at_us: np.ndarray
    effect: np.ndarray
    first: int

    def about(self, structure: int) -> tuple[int, int]:
        """Bounds of what is cited about a structure."""
        low, high = np.searchsorted(self.cited, [structure, structure + 1])
        return int(low), int(high)


@dataclass(frozen=True)
class Agenda:
    """All motions at hand, by golem, tick seen, event and number. key: packed (golem, cycle) of each.

    causes: int64 [findings, 2], decision and judgement ticks of all that is cited.
    """

    motions: tuple[Motion, ...]
    key: np.ndarray
    causes: np.ndarray

    @classmethod
    def of(
        cls,
        state: GrimoireState,
        proposals: Sequence[Proposal],
        cited: pa.Table | None,
        policy: CuratorPolicy,
        *,
        offset: int,
    ) -> Agenda:
        """cited: records (EVIDENCE_COLUMNS) that may hold what is cited; None for none. offset: causes before these."""
        ordered = sorted(proposals)
        key = [(state.golem_code(p.golem_id) << 32) | p.cycle(policy.cycle_ticks) for p in ordered]
        found = _Found.of(state, cited, policy)
        motions, causes, first = [], [], offset
        for proposal in ordered:
            mine = found.cited_by(state, proposal)
            structure = -1 if proposal.situation is None else state.structures.code(_structure(proposal.situation))
            motions.append(
                Motion(proposal, structure, found.structure[mine], found.at_us[mine], found.effect[mine], first)
            )
            causes.append(found.causes[mine])
            first += len(mine)
        return cls(tuple(motions), np.array(key, np.int64), np.concatenate([np.zeros((0, 2), np.int64), *causes]))

    def within(self, closed: np.ndarray) -> Agenda:
        """Those that are judged in one of these closed cycles: one that nobody lived or spoke in judges nothing."""
        if not self.motions:
            return self
        kept = np.flatnonzero(np.isin(self.key, closed))
        return Agenda(tuple(self.motions[i] for i in kept), self.key[kept], self.causes)

    @property
    def additions(self) -> tuple[np.ndarray, np.ndarray]:
        """Golem and structure of what is to be added."""
        added = [i for i, motion in enumerate(self.motions) if motion.structure >= 0]
        return self.key[added] >> 32, np.array([self.motions[i].structure for i in added], np.int64)


def _structure(situation: tuple[str, ...]) -> Structure:
    chain, protocol, pair, tool, action_type, regime, anomaly_band, gas_band = situation
    return Structure("pattern", chain, protocol, pair, tool, action_type, regime, anomaly_band, gas_band)


@dataclass(frozen=True)
class _Found:
    """Judged decisions among the records that were looked up."""

    golem: np.ndarray
    tick: np.ndarray
    decided: np.ndarray
    at_us: np.ndarray
    structure: np.ndarray
    effect: np.ndarray

    @classmethod
    def of(cls, state: GrimoireState, records: pa.Table | None, policy: CuratorPolicy) -> _Found:
        if records is None or not records.num_rows:
            return cls(*(np.zeros(0, np.int64) for _ in range(6)))
        row, structure, effect, decided, tick = judged_effects(records, state.structures, policy)
        golem = np.array([state.golem_code(g) for g in records["golem_id"].to_pylist()], np.int64)[row]
        at_us = records["observed_at"].cast(pa.int64()).to_numpy()[row]
        return cls(golem, tick, decided, at_us, structure, effect)

    @property
    def causes(self) -> np.ndarray:
        return np.stack([self.decided, self.tick], axis=1)

    def cited_by(self, state: GrimoireState, proposal: Proposal) -> np.ndarray:
        """Places of what a proposal cites, by structure and tick."""
        wanted = np.array(proposal.evidence, np.int64)
        mine = (self.golem == state.golem_code(proposal.golem_id)) & (self.tick <= proposal.tick_seen)
        place = np.flatnonzero(mine & (np.isin(self.tick, wanted) | np.isin(self.decided, wanted)))
        return place[np.lexsort((self.effect[place], self.decided[place], self.tick[place], self.structure[place]))]
