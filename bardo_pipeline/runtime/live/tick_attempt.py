"""One tick of a fleet, attempted on a copy, so that a steer can begin its deliberation again. Pure.

The steps are those of a simulated life (heartbeat/step.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.heartbeat.decide import ENTER, REBALANCE
from bardo_pipeline.heartbeat.defi.aave_loans import BORROW, REPAY
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.heartbeat.probes import Probes
from bardo_pipeline.heartbeat.recall_table import Recall
from bardo_pipeline.heartbeat.records.chunk_rows import Buffers, Chunk
from bardo_pipeline.heartbeat.refusals import CANCELLED, EXECUTED, NO_REFUSAL, RESTRICTED, REVERTED, Cut
from bardo_pipeline.heartbeat.step import Interventions, step
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.policy import Policy
from bardo_pipeline.runtime.live.heart import Reached

READS = ("read_price", "read_gas", "read_position", "read_loan", "read_liquidity")
"""Reads of a deliberation in their order: position and loan of a golem that has one, liquidity before a new range."""

UNCUT = 2**62
"""Calls that a golem without a cut may send."""


@dataclass(frozen=True)
class Scene:
    """Inputs that all attempts of a tick share: position on the tape, retrieval, dropped ticks, reorgs, kill switch."""

    tape: Tape
    t: int
    recall: Recall
    policy: Policy
    derivation_id: str | None
    dropped: tuple[Probes, ...]
    reorged: BoolArray | None
    killed: bool
    oracle: bool


@dataclass(frozen=True)
class Attempt:
    """The fleet after a tick, its columns, causes of death (a position in CAUSES, -1 alive), and calls sent, [golems].

    tier: of each golem, SUPPRESS to T2. calls: loan and position calls that a tick sends.
    """

    fleet: Fleet
    chunk: Chunk
    cause: Int64Array

    @property
    def thinkers(self) -> list[str]:
        """Golems that deliberate."""
        return self._named(np.isin(self.tier, (1, 2)) & self.lived)

    @property
    def simulated(self) -> list[str]:
        """Golems whose actions are simulated: those at T2."""
        return self._named((self.tier == 2) & self.lived)

    @property
    def tier(self) -> Int64Array:
        """Tier of each golem."""
        return self.chunk.out["tier"][:, 0]

    @property
    def lived(self) -> BoolArray:
        """Whether each golem lived at the beginning of the tick."""
        return self.fleet.alive | (self.cause >= 0)

    @property
    def calls(self) -> dict[str, int]:
        """Number of calls of the golems that send any."""
        out, number = self.chunk.out, np.zeros(self.fleet.size, np.int64)
        if "choice_action" in out:
            number += _sent(out, "choice", out["choice_action"][:, 0] > 0)
        if "lent_action" in out:
            number += _sent(out, "lent", np.isin(out["lent_action"][:, 0], (BORROW, REPAY)))
        return {self.fleet.golem_ids[i]: int(number[i]) for i in np.flatnonzero(number)}

    @property
    def reads(self) -> dict[str, list[str]]:
        """The reads of each golem's deliberation, in order."""
        out, golem_ids = self.chunk.out, self.fleet.golem_ids
        lends, mints = "loan_shares" in out, np.zeros(self.fleet.size, bool)
        if "choice_action" in out:
            mints = np.isin(out["choice_action"][:, 0], (REBALANCE, ENTER))
        has_loan = (out["loan_shares"][:, 0, 0] > 0.0) if lends else np.zeros(self.fleet.size, bool)
        always = np.ones(self.fleet.size, bool)
        asked = np.stack([always, always, out["open"][:, 0], has_loan, mints])
        return {golem_ids[i]: [READS[k] for k in np.flatnonzero(asked[:, i])] for i in range(len(golem_ids))}

    def _named(self, mask: BoolArray) -> list[str]:
        return [self.fleet.golem_ids[i] for i in np.flatnonzero(mask)]


def _sent(out: Buffers, name: str, acts: BoolArray) -> Int64Array:
    return (acts & np.isin(out[f"{name}_status"][:, 0], (EXECUTED, REVERTED))).astype(np.int64)


def attempt(fleet: Fleet, scene: Scene, reached: Sequence[Reached], calls_sent: Mapping[str, int]) -> Attempt:
    """Step a copy of the fleet by one tick.

    Parameters
    ----------
    reached : interventions of this tick
    calls_sent : golem -> number of calls after which its execution is cut
    """
    twin, out = fleet.copied(), Buffers(fleet.size, 1)
    place = {golem_id: i for i, golem_id in enumerate(fleet.golem_ids)}
    given = Interventions.none(fleet.size)
    why = np.full(fleet.size, NO_REFUSAL)
    left = np.full(fleet.size, UNCUT)
    for golem_id, sent in calls_sent.items():
        left[place[golem_id]], why[place[golem_id]] = sent, RESTRICTED
    for each in reached:
        i = place[each.steer.golem_id]
        if each.effect == "cancels":
            why[i] = CANCELLED if each.steer.golem_id in calls_sent else why[i]
        elif each.steer.is_high:
            given.steer[i] = True
        else:
            given.follow_up[i] += 1
    cut = Cut(left, why) if calls_sent else None
    given = Interventions(given.steer, given.follow_up, scene.reorged, scene.dropped, cut)
    cause = step(
        twin, scene.tape, scene.t, recall=scene.recall, policy=scene.policy, out=out, at=0, interventions=given,
        killed=scene.killed, oracle=scene.oracle,
    )  # fmt: skip
    chunk = Chunk(out, scene.tape, scene.t, twin.golem_ids, scene.recall, scene.derivation_id, scene.policy)
    return Attempt(twin, chunk, cause)
