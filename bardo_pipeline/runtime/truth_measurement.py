"""Measures the true effects in markets of the graded kind, in a second process while the fleet runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from multiprocessing import get_context

from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.heartbeat.ground_truth import outcomes, usual_levels
from bardo_pipeline.market.synthetic import synthetic_market
from bardo_pipeline.market.synthetic_spec import SyntheticSpec
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.true_effects import Judged, Yardstick, measure

_ALONE_BARS = 50_000
"""Below this number of bars, measuring takes less time than starting a process."""


@dataclass(frozen=True)
class Other:
    """A market to measure on; number: its index among the markets of its spec."""

    seed: int
    spec: SyntheticSpec
    bars: int
    start: datetime
    number: int


def judged_on(other: Other, founding: Founding, policy: Policy) -> Judged:
    """Return all verdicts of a memoryless fleet in this market."""
    market = synthetic_market(seed=other.seed, bars=other.bars, start=other.start, spec=other.spec)
    return outcomes(market, founding, policy.worth.yardstick_golems, policy, number=other.number)


def levels_on(others: Sequence[Other], policy: Policy) -> dict[str, tuple[float, float]]:
    """Return the usual range of each baseline metric in these markets."""
    markets = [synthetic_market(seed=o.seed, bars=o.bars, start=o.start, spec=o.spec) for o in others]
    return usual_levels(markets, policy)


@contextmanager
def measuring(
    groups: Sequence[Sequence[Other]], founding: Founding, policy: Policy
) -> Iterator[Callable[[Callable[[float], None]], list[Yardstick]]]:
    """Start to measure groups of markets; yield a function that waits for their yardsticks."""
    if sum(o.bars for group in groups for o in group) < _ALONE_BARS or (os.cpu_count() or 1) < 2:
        yield lambda tell: _gathered(groups, lambda other: judged_on(other, founding, policy), policy, tell)
        return
    pool: Executor
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        running: dict[Other, Future[Judged]] = {
            other: pool.submit(judged_on, other, founding, policy) for group in groups for other in group
        }
        try:
            yield lambda tell: _gathered(groups, lambda other: running[other].result(), policy, tell)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _gathered(
    groups: Sequence[Sequence[Other]], judged: Callable[[Other], Judged], policy: Policy, tell: Callable[[float], None]
) -> list[Yardstick]:
    total, done, yards = sum(len(group) for group in groups), 0, []
    for group in groups:
        parts = []
        for other in group:
            tell(done / total)
            parts.append(judged(other))
            done += 1
        yards.append(measure(Judged.together(parts), policy.curator, policy.worth))
    return yards
