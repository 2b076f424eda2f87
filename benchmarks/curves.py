"""Cost against size: one home that grows to millions of records, measured on its way; and a plot of it (PNG)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bardo_pipeline.storage.log.event_log import EventLog
from benchmarks.figures import Figure, derive_incremental
from benchmarks.growth import TOGETHER, Grower, cycles_for
from benchmarks.index import index_figures
from benchmarks.world import GOLEMS, SPAN, World

SIZES = (50_000, 200_000, 1_000_000, 5_000_000)
FEW = 16
"""So few golems have lived for more than sixty cycles each where there are 50,000 records, and know about as much by
then as they ever will: what one more cycle costs is a matter of the log alone."""


@dataclass
class Curve:
    """What one operation cost at each size: records on record, seconds."""

    name: str
    points: list[tuple[int, float]] = field(default_factory=list)


class Measured(Grower):
    """A home in which golems live on and on, and what one operation costs in it, in seconds."""

    def append_seconds(self) -> float:
        """51,200 records more, appended."""
        return _seconds(lambda: self.to(self.cycles + TOGETHER, derive=False))

    def derive_seconds(self) -> float:
        """One more cycle of all golems, derived: the best of three."""
        derive_incremental(self.stores)
        return min(self.one_more_cycle() for _ in range(3))

    def open_seconds(self) -> float:
        """The log, opened after it was closed in order."""
        self.stores.log.close()
        return _seconds(lambda: EventLog(self.stores.home, self.world.policy).heads())

    def tail_seconds(self) -> float:
        """What the last commit brought, read: the best of three."""
        log = self.stores.log
        columns = ["golem_id", "tick", "tier"]
        return min(_seconds(lambda: log.read_cycles(columns, since_version=log.version - 1)) for _ in range(3))

    @property
    def known(self) -> int:
        """How many entries its golems know."""
        return self.stores.projections.replaceable("grimoire").read().num_rows

    def one_more_cycle(self) -> float:
        """One more cycle of all golems, derived."""
        self.to(self.cycles + 1, derive=False)
        return _seconds(lambda: derive_incremental(self.stores))


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _alike(cycles: int, world: World) -> int:
    """So many cycles or a few more, so that what comes next is the same part of the world at every size."""
    return cycles + (cycles_for(SIZES[0], world.golems) - cycles) % len(world.cycles)


def growth_figures(
    root: Path, largest: int, tell: Callable[[str], None] = lambda _: None
) -> tuple[list[Figure], list[Curve]]:
    """Grow a home to `largest` records: the incremental ratio, the tick index, what operations cost at each size."""
    sizes = [size for size in SIZES if size <= largest] or [SIZES[0]]
    world = World(ticks=64 * SPAN)
    home = Measured(world, world.home(root / "home"))
    found = {
        name: Curve(name)
        for name in (
            "append 51,200 records",
            "derive one more cycle of 64 golems",
            "open the log",
            "read the last commit",
        )
    }
    for size in sizes:
        tell(f"growing to {size:,} records")
        home.to(_alike(cycles_for(size), world), derive=True)
        for curve, measure in zip(
            found.values(),
            (home.append_seconds, home.derive_seconds, home.open_seconds, home.tail_seconds),
            strict=True,
        ):
            curve.points.append((home.records, measure()))
    incremental = _incremental(root, home, sizes[-1], tell)
    tell(f"the tick index over {home.records:,} ticks, beside SQLite")
    (root / "sqlite").mkdir()
    asked = index_figures(home.stores.home, home.stores.log, root / "sqlite")
    return [*incremental, *asked], list(found.values())


def _incremental(root: Path, many: Measured, largest: int, tell: Callable[[str], None]) -> list[Figure]:
    """One more cycle derived in a home that has grown and in a small one: of all golems, and of a few."""
    tell(f"one more cycle of {GOLEMS} golems, beside a small home")
    figures = [_one_more("incremental_ratio", many, root / "small")]
    tell(f"growing to {largest:,} records of {FEW} golems")
    world = World(ticks=64 * SPAN, golems=FEW)
    few = Measured(world, world.home(root / "few"))
    few.to(cycles_for(largest, FEW), derive=True)
    tell(f"one more cycle of {FEW} golems, beside a small home")
    return [*figures, _one_more(f"incremental_ratio_{FEW}_golems", few, root / "few-small")]


def _one_more(name: str, large: Measured, root: Path) -> Figure:
    """What one more cycle costs in this home, beside a small one of the same golems."""
    small = Measured(large.world, large.world.home(root))
    best = _one_more_in_each(large, small)
    how = (
        f"derive one more cycle of {large.world.golems} golems, who know {large.known:,} entries, on a log of "
        f"{large.records:,} records; peer: the same on {small.records:,}, where they know {small.known:,}; best of the "
        "same ten cycles each, by turns in one process"
    )
    return Figure(name, best[0], "s", best[1], best[0] / best[1], "ratio <= 1.1", how)


def _one_more_in_each(large: Measured, small: Measured) -> list[float]:
    """Seconds for one more cycle in each, by turns: a machine is not as fast every minute, and what a cycle costs
    depends on which part of the world it is of."""
    homes = (large, small)
    for home, cycles in zip(homes, (large.cycles, cycles_for(SIZES[0], small.world.golems)), strict=True):
        home.to(_alike(cycles, home.world), derive=True)
        derive_incremental(home.stores)
    return [min(spent) for spent in zip(*([home.one_more_cycle() for home in homes] for _ in range(10)), strict=True)]


def plot(found: list[Curve], path: Path) -> None:
    """Draw the curves, both axes logarithmic."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5))
    for curve in found:
        sizes, seconds = zip(*curve.points, strict=True)
        axes.plot(sizes, [s * 1000 for s in seconds], marker="o", label=curve.name)
    axes.set(xscale="log", yscale="log", xlabel="records in the log", ylabel="milliseconds")
    axes.set_title("What an operation costs as the log grows")
    axes.grid(which="both", alpha=0.2)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
