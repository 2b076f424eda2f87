"""Motions: proposals of models with the evidence they cite, assigned to the cycle that judges them. Pure.

A cited tick counts if a decision was taken or judged at that tick and the judgement precedes the proposal. Other ticks
are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.curator.state.evidence import capped, judged_effects
from bardo_pipeline.curator.state.grimoire_state import GrimoireState, coded
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.events.life.proposal_events import Proposal
from bardo_pipeline.policy import CuratorPolicy


@dataclass(frozen=True)
class CitedProposal:
    """One proposal with its cited evidence.

    structure: code for ADD, -1 for other operations. cited, at_us, effect: structure, time of judgement and effect in
    ppm of each cited judged decision, sorted by structure and tick. first: index of the first one in the causes.
    """

    proposal: Proposal
    structure: int
    cited: Int64Array
    at_us: Int64Array
    effect: Int64Array
    first: int

    def about(self, structure: int) -> tuple[int, int]:
        """Return the range of the citations about a structure."""
        low, high = np.searchsorted(self.cited, [structure, structure + 1])
        return int(low), int(high)


@dataclass(frozen=True)
class Agenda:
    """Motions sorted by golem, tick seen, event and number; key is the packed (golem, cycle) of each.

    causes: int64 [citations, 2], decision and judgement ticks of all citations.
    """

    motions: tuple[CitedProposal, ...]
    key: Int64Array
    causes: Int64Array

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
        """Build the agenda. cited: records (EVIDENCE_COLUMNS) with cited ticks; offset: index of the first cause."""
        ordered = sorted(proposals)
        key = [(state.golem_code(p.golem_id) << 32) | p.cycle(policy.cycle_ticks) for p in ordered]
        judgements = _Judgements.of(state, cited, policy)
        motions, causes, first = [], [], offset
        for proposal in ordered:
            rows = judgements.cited_by(state, proposal)
            situation = proposal.situation
            structure = -1 if situation is None else state.structures.code(_structure(situation))
            columns = (judgements.structure[rows], judgements.at_us[rows], judgements.effect[rows])
            motions.append(CitedProposal(proposal, structure, *columns, first))
            causes.append(judgements.causes[rows])
            first += len(rows)
        return cls(tuple(motions), np.array(key, np.int64), np.concatenate([np.zeros((0, 2), np.int64), *causes]))

    def within(self, closed: Int64Array) -> Agenda:
        """Return the motions that are judged in these closed cycles (packed keys)."""
        kept = [i for i, key in enumerate(self.key.tolist()) if key in closed]
        return Agenda(tuple(self.motions[i] for i in kept), self.key[kept], self.causes)

    @property
    def additions(self) -> tuple[Int64Array, Int64Array]:
        """Return golem and structure of each ADD."""
        added = [i for i, motion in enumerate(self.motions) if motion.structure >= 0]
        return self.key[added] >> 32, np.array([self.motions[i].structure for i in added], np.int64)


def _structure(situation: tuple[str, ...]) -> Structure:
    chain, protocol, pair, tool, action_type, regime, anomaly_band, gas_band = situation
    return Structure("pattern", chain, protocol, pair, tool, action_type, regime, anomaly_band, gas_band)


@dataclass(frozen=True)
class _Judgements:
    golem: Int64Array
    tick: Int64Array
    decided: Int64Array
    at_us: Int64Array
    structure: Int64Array
    effect: Int64Array

    @classmethod
    def of(cls, state: GrimoireState, records: pa.Table | None, policy: CuratorPolicy) -> _Judgements:
        if records is None or not records.num_rows:
            return cls(*(np.zeros(0, np.int64) for _ in range(6)))
        row, structure, effect, decided, tick = judged_effects(records, state.structures, policy)
        golem = coded(records["golem_id"], state.golem_code)[row]
        at_us = records["observed_at"].cast(pa.int64()).to_numpy()[row]
        return cls(golem, tick, decided, at_us, structure, capped(effect))

    @property
    def causes(self) -> Int64Array:
        return np.stack([self.decided, self.tick], axis=1)

    def cited_by(self, state: GrimoireState, proposal: Proposal) -> Int64Array:
        """Return the rows that a proposal cites, sorted by structure and tick."""
        ticks = np.array(proposal.evidence, np.int64)
        visible = (self.golem == state.golem_code(proposal.golem_id)) & (self.tick <= proposal.tick_seen)
        place = np.flatnonzero(visible & (np.isin(self.tick, ticks) | np.isin(self.decided, ticks)))
        return place[np.lexsort((self.effect[place], self.decided[place], self.tick[place], self.structure[place]))]
