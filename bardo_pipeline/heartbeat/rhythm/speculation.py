"""Speculation: prefetched reads, learned from the order of a golem's own calls. Pure.

Only reads are prefetched; the worst case is a wasted read. Source: HB S8.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

from bardo_pipeline.policy import ClockPolicy


class CoOccurrence:
    """Probability that a tool call follows another one, by exponential moving averages."""

    def __init__(self, rules: ClockPolicy) -> None:
        self._rules = rules
        self._after: dict[str, dict[str, float]] = {}

    def note(self, tools: Sequence[str]) -> None:
        """Learn from the calls of a tick, in their order."""
        rules = self._rules
        for first, then in pairwise(tools):
            known = self._after.setdefault(first, {})
            for other in known:
                if other != then:
                    known[other] *= rules.absent_decay
            known[then] = (
                known[then] * rules.follow_memory + 1.0 - rules.follow_memory
                if then in known
                else (1.0 - rules.follow_memory)
            )
            self._after[first] = {tool: chance for tool, chance in known.items() if chance > rules.follow_chance_min}

    def chances(self, tool: str) -> dict[str, float]:
        """Return the calls that may follow this one, with their probabilities."""
        return dict(self._after.get(tool, {}))

    def predicted(self, tool: str, reads: Collection[str]) -> list[str]:
        """Return the reads to prefetch with this call, most probable first."""
        rules = self._rules
        likely = [(-chance, other) for other, chance in self._after.get(tool, {}).items()]
        chosen = [other for chance, other in sorted(likely) if -chance >= rules.prefetch_chance_min and other in reads]
        return chosen[: rules.prefetch_max]


class ReadRun(NamedTuple):
    """A read of a deliberation: its tool, the time that the golem waited for it, and whether it was prefetched."""

    tool: str
    seconds: float
    prefetched: bool


class Reads(NamedTuple):
    """The reads of a deliberation, and the number of prefetched reads."""

    runs: tuple[ReadRun, ...] = ()
    prefetched: int = 0

    @property
    def hits(self) -> int:
        """Number of prefetched reads that the golem asked for."""
        return sum(run.prefetched for run in self.runs)

    @property
    def seconds(self) -> float:
        """Time until the last read is there."""
        return sum(run.seconds for run in self.runs)


def schedule_reads(tools: Sequence[str], learned: CoOccurrence, reads: Collection[str], seconds: float) -> Reads:
    """Return the reads of a deliberation that asks for these tools one after another.

    A call starts its predicted followers at the same moment. A prefetched read is there when its own time has passed.

    Parameters
    ----------
    seconds : time of a read
    """
    now, ready, runs = 0.0, dict[str, float](), list[ReadRun]()
    for tool in tools:
        began, is_hit = now, tool in ready
        for follower in learned.predicted(tool, reads):
            ready.setdefault(follower, began + seconds)
        now = max(now, ready[tool]) if is_hit else now + seconds
        runs.append(ReadRun(tool, now - began, is_hit))
    return Reads(tuple(runs), len(ready))
