"""Drawn proposals of models, and lives with material for proposals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.events.life.proposal_events import Proposal
from tests.support.records.handmade_records import RALLY, SITUATIONS, SPAN, STORM, Situation, judged, record

SOURCE = "openai-chat:loopback-1"
ELSEWHERE = Structure("pattern", "base", "uniswap_v3", "WETH/USDC", "t", "rebalance", "volatile", "calm", "cheap")
"""A rule about a situation that no golem of the tests was in."""

ABOUTS = (*(when.structure for when in SITUATIONS), ELSEWHERE)


def situation(about: Structure) -> tuple[str, ...]:
    """A structure as a proposal names it."""
    parts = (about.tool, about.action_type, about.regime, about.anomaly_band, about.gas_band)
    return (about.chain, about.protocol, about.pair, *(str(part) for part in parts))


@dataclass(frozen=True)
class Disputed:
    """A life with contradictory evidence. plot: a situation's effects, cycle by cycle and tick by tick."""

    golem_id: str
    plot: dict[Situation, tuple[tuple[int, ...], ...]]

    @property
    def ticks(self) -> int:
        """How long it lasts."""
        return SPAN * max(len(story) for story in self.plot.values())

    def rows(self) -> list[dict[str, Any]]:
        """Its records: each judges the decision of the tick before, if there was one."""
        return [record(self.golem_id, tick, resolutions=self._judged(tick)) for tick in range(1, self.ticks + 1)]

    def _judged(self, tick: int) -> list[dict[str, Any]]:
        cycle, place = divmod(tick - 1, SPAN)
        by_key = {when: story[cycle] for when, story in self.plot.items() if cycle < len(story)}
        return [judged(w, effects[place], decided=max(1, tick - 1)) for w, effects in by_key.items() if effects[place]]


_STRONG, _MIXED = (9_000, 8_000, 9_000, 8_500), ((900, -900, 0, 0), (700, 0, -800, 0), (0, 30, 0, 0), (0, 0, 0, 0))


@st.composite
def disputed(draw: st.DrawFn, golems: int = 2) -> tuple[Disputed, ...]:
    """Golems that learned a rule and then lived cycles without a conclusion."""
    out = []
    for number in range(draw(st.integers(1, golems))):
        plot = {}
        for when in (STORM, RALLY)[: draw(st.integers(1, 2))]:
            side = draw(st.sampled_from((1, -1)))
            opening = draw(st.integers(1, 3)) * (_STRONG,)
            turned = tuple(-4 * effect for effect in _STRONG)
            later = (*_MIXED, *_MIXED, turned, turned)
            rest = draw(st.lists(st.sampled_from(later), min_size=1, max_size=4))
            plot[when] = tuple(tuple(side * effect for effect in cycle) for cycle in (*opening, *rest))
        out.append(Disputed(f"g-{number}", plot))
    return tuple(out)


@st.composite
def proposals(draw: st.DrawFn, lived: Sequence[Any], entries: Sequence[tuple[str, str]]) -> list[Proposal]:
    """Proposals about these golems (golem_id, ticks) and entries (golem, entry id), each made after some tick."""
    out: list[Proposal] = []
    for number in range(draw(st.integers(1, 10))):
        drawn = draw(st.sampled_from(lived))
        held = sorted(entry for golem_id, entry in entries if golem_id == drawn.golem_id)
        operation = draw(st.sampled_from(("ADD", "UPVOTE", "UPVOTE", "DOWNVOTE", "DOWNVOTE", "EDIT")))
        adds, seen = operation == "ADD", draw(st.integers(0, drawn.ticks))
        near = st.integers(max(1, seen - SPAN - 1), seen + 1)
        out.append(
            Proposal(
                drawn.golem_id, seen, f"event-{draw(st.integers(0, 3))}", number, SOURCE, operation, f"reason {number}",
                tuple(draw(st.lists(near, min_size=1, max_size=3, unique=True).map(sorted))),
                entry_id=None if adds else draw(st.sampled_from([*held, *held, "0" * 24])),
                situation=situation(draw(st.sampled_from(ABOUTS))) if adds else None,
                sign=draw(st.sampled_from((1, -1))) if adds else None,
                note="a note" if operation == "EDIT" else None,
            )
        )  # fmt: skip
    return out
