"""Cost against log size: measure operations while a home grows to millions of records, and plot them (PNG)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bardo_pipeline.storage.log.event_log import EventLog
from benchmarks.figures import Figure, derive_incremental, seconds
from benchmarks.growth import TOGETHER, Grower, cycles_for
from benchmarks.index import index_figures
from benchmarks.world import GOLEMS, SPAN, World

SIZES = (50_000, 200_000, 1_000_000, 5_000_000)
FEW = 16
"""With 16 golems, 50,000 records are over 60 cycles each; their grimoires have nearly reached their final size by then,
so the cost of one more cycle depends on the log alone."""


@dataclass
class Curve:
    """Cost of one operation: points (records in the log, seconds)."""

    name: str
    points: list[tuple[int, float]] = field(default_factory=list)


class Measured(Grower):
    """A growing home with timed operations (seconds)."""

    def append_seconds(self) -> float:
        """Append 51,200 records."""
        return seconds(lambda: self.to(self.cycles + TOGETHER, derive=False))

    def derive_seconds(self) -> float:
        """Derive one more cycle of all golems, best of three."""
        derive_incremental(self.stores)
        return min(self.next_cycle_seconds() for _ in range(3))

    def open_seconds(self) -> float:
        """Open the log after a clean close."""
        self.stores.log.close()
        return seconds(lambda: EventLog(self.stores.home, self.world.policy).heads())

    def tail_seconds(self) -> float:
        """Read the last commit, best of three."""
        log = self.stores.log
        columns = ["golem_id", "tick", "tier"]
        return min(seconds(lambda: log.read_cycles(columns, since_version=log.version - 1)) for _ in range(3))

    @property
    def entry_count(self) -> int:
        """Number of entries in all grimoires."""
        return self.stores.projections.replaceable("grimoire").read().num_rows

    def next_cycle_seconds(self) -> float:
        """Append and derive one more cycle of all golems; only the derivation is timed."""
        self.to(self.cycles + 1, derive=False)
        return seconds(lambda: derive_incremental(self.stores))


def _aligned(cycles: int, world: World) -> int:
    """Round the cycle count up, so that the next cycle repeats the same part of the world at every size."""
    return cycles + (cycles_for(SIZES[0], world.golems) - cycles) % len(world.cycles)


def growth_figures(
    root: Path, largest: int, on_step: Callable[[str], None] = lambda _: None
) -> tuple[list[Figure], list[Curve]]:
    """Grow a home to `largest` records; measure incremental ratio, tick index, and operations at each size."""
    sizes = [size for size in SIZES if size <= largest] or [SIZES[0]]
    world = World(ticks=64 * SPAN)
    home = Measured(world, world.home(root / "home"))
    measures = {
        "append 51,200 records": home.append_seconds,
        "derive one more cycle of 64 golems": home.derive_seconds,
        "open the log": home.open_seconds,
        "read the last commit": home.tail_seconds,
    }
    curves = [Curve(name) for name in measures]
    for size in sizes:
        on_step(f"growing to {size:,} records")
        home.to(_aligned(cycles_for(size), world), derive=True)
        for curve, measure in zip(curves, measures.values(), strict=True):
            curve.points.append((home.records, measure()))
    incremental = _incremental(root, home, sizes[-1], on_step)
    on_step(f"the tick index over {home.records:,} ticks, against SQLite")
    (root / "sqlite").mkdir()
    index = index_figures(home.stores.home, home.stores.log, root / "sqlite")
    return [*incremental, *index], curves


def _incremental(root: Path, many: Measured, largest: int, on_step: Callable[[str], None]) -> list[Figure]:
    """Compare one more derived cycle in a large and a small home, with 64 golems and with 16."""
    on_step(f"one more cycle of {GOLEMS} golems, against a small home")
    figures = [_next_cycle("incremental_ratio", many, root / "small")]
    on_step(f"growing to {largest:,} records of {FEW} golems")
    world = World(ticks=64 * SPAN, golems=FEW)
    few = Measured(world, world.home(root / "few"))
    few.to(cycles_for(largest, FEW), derive=True)
    on_step(f"one more cycle of {FEW} golems, against a small home")
    return [*figures, _next_cycle(f"incremental_ratio_{FEW}_golems", few, root / "few-small")]


def _next_cycle(name: str, large: Measured, root: Path) -> Figure:
    """Compare one more cycle in this home with a small home of the same golems."""
    small = Measured(large.world, large.world.home(root))
    best = _next_cycle_of_each(large, small)
    how = (
        f"derive one more cycle of {large.world.golems} golems with {large.entry_count:,} entries on a log of "
        f"{large.records:,} records; peer: the same on {small.records:,} records with {small.entry_count:,} entries; "
        "best of the same ten cycles, alternating in one process"
    )
    return Figure(name, best[0], "s", best[1], best[0] / best[1], "ratio <= 1.3", how)


def _next_cycle_of_each(large: Measured, small: Measured) -> list[float]:
    """Return seconds of one more cycle in each home, best of ten.

    Runs alternate because machine speed varies; both homes derive the same cycles because their costs differ.
    """
    homes = (large, small)
    for home, cycles in zip(homes, (large.cycles, cycles_for(SIZES[0], small.world.golems)), strict=True):
        home.to(_aligned(cycles, home.world), derive=True)
        derive_incremental(home.stores)
    return [
        min(spent) for spent in zip(*([home.next_cycle_seconds() for home in homes] for _ in range(10)), strict=True)
    ]


def plot(curves: list[Curve], path: Path) -> None:
    """Draw the curves, both axes logarithmic."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5))
    for curve in curves:
        sizes, costs = zip(*curve.points, strict=True)
        axes.plot(sizes, [cost * 1000 for cost in costs], marker="o", label=curve.name)
    axes.set(xscale="log", yscale="log", xlabel="records in the log", ylabel="milliseconds")
    axes.set_title("Cost of operations as the log grows")
    axes.grid(which="both", alpha=0.2)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
