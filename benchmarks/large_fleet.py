"""Runs of large fleets, end to end: records per second, memory, and the longest time without a step."""

from __future__ import annotations

import re
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.events.life.events import Born
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.market.synthetic import synthetic_market
from bardo_pipeline.policy import Policy
from bardo_pipeline.runtime.laned_run import LanedRun
from bardo_pipeline.runtime.run_settings import Ending, Progress, Run
from bardo_pipeline.storage.home import Home
from benchmarks.figures import Figure
from benchmarks.world import NOW

RECORDS_LIMIT, MEMORY_LIMIT_GB, STALL_LIMIT_S = 25_000, 2.5, 1.0
GOLEMS, DYING, DEATH_TICK = 1_000, 300, 200


@dataclass
class _Watched:
    """Seconds of a run, the longest time between two steps while golems live, and peak GB of both processes."""

    ending: Ending
    seconds: float
    stall: float
    peak_gb: float


def large_fleet_figures(root: Path, bars: int) -> list[Figure]:
    """Measure 1,000 golems over `bars` minutes, and 600 golems of which 300 die in the same tick."""
    founding = Founding(owners=("owner-1", "owner-2"))
    fleet = _in_new_process(LanedRun, root / "fleet", bars, GOLEMS, founding)
    rate = fleet.ending.records / fleet.seconds
    what = f"{GOLEMS:,} golems, {bars:,} minutes, {fleet.ending.records:,} records, {fleet.ending.deaths:,} deaths"
    founding = Founding(owners=("owner-1", "owner-2"), lifespan_ticks=(DEATH_TICK, DEATH_TICK))
    deaths = _in_new_process(_HalfMortal, root / "deaths", 5 * DEATH_TICK, 2 * DYING, founding)
    assert deaths.ending.deaths >= DYING, f"{deaths.ending.deaths} of {DYING} golems died"
    return [
        Figure(
            "fleet_1000_records_per_s", rate, "records/s", RECORDS_LIMIT, rate / RECORDS_LIMIT, "ratio >= 1",
            f"{what}; births, log, curation, deaths and heirs; peer: the limit",
        ),
        Figure(
            "fleet_1000_gb", fleet.peak_gb, "GB", MEMORY_LIMIT_GB, fleet.peak_gb / MEMORY_LIMIT_GB, "ratio <= 1",
            "peak memory of the run and of the process that completes deaths, in the same run; peer: the limit",
        ),
        Figure(
            "fleet_1000_stall_s", fleet.stall, "s", STALL_LIMIT_S, fleet.stall / STALL_LIMIT_S, "ratio <= 1",
            "longest time between two steps of the fleet while golems live, in the same run; peer: the limit",
        ),
        Figure(
            "deaths_300_stall_s", deaths.stall, "s", STALL_LIMIT_S, deaths.stall / STALL_LIMIT_S, "ratio <= 1",
            f"{2 * DYING} golems, of which {DYING} die in one tick; longest time between two steps; peer: the limit",
        ),
    ]  # fmt: skip


class _HalfMortal(LanedRun):
    """A run in which every second founder outlives the market."""

    def _birth(self, lineage_id: str, generation: int, owner_id: str, **options: Any) -> tuple[str, Born]:
        golem_id, birth = super()._birth(lineage_id, generation, owner_id, **options)
        is_mortal = generation == 0 and int(lineage_id.rpartition("/")[2]) % 2
        return golem_id, birth if is_mortal else birth.model_copy(update={"lifespan_ticks": 10**6})


def _in_new_process(kind: type[LanedRun], root: Path, bars: int, golems: int, founding: Founding) -> _Watched:
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_watched, kind, root, bars, golems, founding).result()


def _watched(kind: type[LanedRun], root: Path, bars: int, golems: int, founding: Founding) -> _Watched:
    """Live a run of three generations in a new home, and watch its steps and memory."""
    run = Run("bench", synthetic_market(seed=7, bars=bars, start=NOW), golems, 3, founding)
    context = DerivationContext.open(Home.create(root, Policy(), NOW).root)
    steps: list[tuple[float, int]] = []
    peak_kb: dict[int | None, int] = {}

    def on_progress(progress: Progress) -> None:
        steps.append((time.perf_counter(), progress.living))
        for child in active_children():
            peak_kb[child.pid] = max(peak_kb.get(child.pid, 0), _peak_kb(str(child.pid)))

    started = time.perf_counter()
    ending = kind(context, run, lambda: NOW).live(on_progress)
    spent = time.perf_counter() - started
    context.log.close()
    gaps = [after - before for (before, living), (after, _) in pairwise(steps) if living]
    return _Watched(ending, spent, max(gaps), (_peak_kb("self") + max(peak_kb.values())) / 1e6)


def _peak_kb(process: str) -> int:
    """Return a process's peak memory."""
    try:
        peak = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
    except FileNotFoundError:  # it ended
        return 0
    return int(peak[1]) if peak else 0
