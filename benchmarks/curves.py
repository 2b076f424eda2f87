"""Cost against size: one home that grows to millions of records, measured on its way; and a plot of it (PNG)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.life import life_event
from bardo_pipeline.storage.log import EventLog
from benchmarks.figures import Figure, derive_incremental
from benchmarks.world import GOLEMS, NOW, SPAN, World

BASE_CYCLES, EXTRA = 16, 3
SIZES = (50_000, 200_000, 1_000_000, 5_000_000)


@dataclass
class Curve:
    """What one operation cost at each size: records on record, seconds."""

    name: str
    points: list[tuple[int, float]] = field(default_factory=list)


class GrowingHome:
    """A home of 64 golems that go on living, and as many crowds of 64 beside them as the size asks for."""

    def __init__(self, root: Path, sizes: int) -> None:
        self.world = World(ticks=(BASE_CYCLES + EXTRA * sizes) * SPAN)
        self.stores = self.world.home(root)
        self.base = pa.concat_tables(self.world.cycles[:BASE_CYCLES]).combine_chunks()
        self.records, self._crowds, self._lived = 0, 0, BASE_CYCLES
        self._append(self.base)
        derive_incremental(self.stores)

    def grow(self, size: int) -> None:
        """Add crowds until there are this many records, and derive what they left."""
        while self.records + len(self.base) <= size + len(self.base) // 2:
            self._crowds += 1
            names = [(f"{g}-{self._crowds}", birth) for g, birth in self.world.births]
            self.stores.log.record([life_event(g, NOW, birth) for g, birth in names], NOW)
            self._append(self.crowd())
        derive_incremental(self.stores)

    def crowd(self) -> pa.Table:
        """The base's records under the newest crowd's names."""
        at = self.base.schema.get_field_index("golem_id")
        names = pc.binary_join_element_wise(self.base["golem_id"], f"-{self._crowds}", "")
        return self.base.set_column(at, self.base.schema.field(at), names).combine_chunks()

    def append_seconds(self) -> float:
        """What one more crowd costs to append."""
        self._crowds += 1
        names = [(f"{g}-{self._crowds}", birth) for g, birth in self.world.births]
        self.stores.log.record([life_event(g, NOW, birth) for g, birth in names], NOW)
        return self._append(self.crowd())

    def derive_seconds(self) -> float:
        """What one more cycle of the base's golems costs to derive: the best of three."""
        derive_incremental(self.stores)
        return min(self._one_more_cycle() for _ in range(EXTRA))

    def open_seconds(self) -> float:
        """What it costs to open the log after it was closed in order."""
        self.stores.log.close()
        return _seconds(lambda: EventLog(self.stores.home, self.world.policy).heads())

    def tail_seconds(self) -> float:
        """What the last commit brought: the best of three."""
        log = self.stores.log
        columns = ["golem_id", "tick", "tier"]
        return min(_seconds(lambda: log.read_cycles(columns, since_version=log.version - 1)) for _ in range(3))

    def _one_more_cycle(self) -> float:
        self._append(self.world.cycles[self._lived])
        self._lived += 1
        return _seconds(lambda: derive_incremental(self.stores))

    def _append(self, records: pa.Table) -> float:
        spent = _seconds(
            lambda: self.stores.log.append(records, writer=f"bench-{self.records}", segment=1, recorded_at=NOW)
        )
        self.records += len(records)
        return spent


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def curves(root: Path, largest: int, tell: Callable[[str], None] = lambda _: None) -> tuple[Figure, list[Curve]]:
    """Grow a home to `largest` records; the incremental ratio, and what each operation cost at each size."""
    sizes = [size for size in SIZES if size <= largest] or [SIZES[0]]
    home = GrowingHome(root, len(sizes))
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
        home.grow(size)
        for curve, measure in zip(
            found.values(),
            (home.append_seconds, home.derive_seconds, home.open_seconds, home.tail_seconds),
            strict=True,
        ):
            curve.points.append((home.records, measure()))
    small, large = (found["derive one more cycle of 64 golems"].points[k] for k in (0, -1))
    how = (
        f"derive one more cycle of {GOLEMS} golems on a log of {large[0]:,} records; peer: the same on {small[0]:,}; "
        "best of three each, in one home that grows"
    )
    ratio = large[1] / small[1]
    return Figure("incremental_ratio", large[1], "s", small[1], ratio, "ratio <= 1.1", how), list(found.values())


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
