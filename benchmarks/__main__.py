"""`make bench`: run all benchmarks, print figures and methods, write benchmarks/results.json and cost.png."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import orjson
from rich.console import Console
from rich.table import Table

from benchmarks.ack import ack_figures
from benchmarks.append import append_figures, tail_figure
from benchmarks.buckets import bucket_figure
from benchmarks.checksums import checksum_figures
from benchmarks.curves import growth_figures, plot
from benchmarks.deaths import death_figures
from benchmarks.derive import curator_figures, derive_figures
from benchmarks.embed import embed_figures
from benchmarks.figures import Figure, fleet_figures, probes_figure
from benchmarks.free_texts import free_text_figures
from benchmarks.large_fleet import large_fleet_figures
from benchmarks.large_home import large_home_figures
from benchmarks.relay import relay_figures
from benchmarks.retrieve import retrieve_figures
from benchmarks.serve import serve_figures
from benchmarks.sizes import sizes_figure
from benchmarks.spool import spool_figures
from benchmarks.world import World

RESULTS, PLOT = Path(__file__).parent / "results.json", Path(__file__).parent / "cost.png"


def main() -> None:
    """Run every benchmark; the options reduce its size."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--records", type=int, default=200_000, help="records of the measured world (64 golems)")
    parser.add_argument(
        "--largest", type=int, default=5_000_000, help="largest log of the growth benchmark, in records"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of the 16-caller append benchmark")
    parser.add_argument("--minutes", type=int, default=2_880, help="minutes of the run of 1,000 golems")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="bardo-bench-") as folder:
        root = Path(folder)
        with console.status("acknowledged appends: 16 callers, against an event store and a file per tick") as status:
            figures.extend(ack_figures(root / "ack", options.seconds))
            status.update("running 64 golems through a synthetic market")
            world = World(ticks=max(options.records // 64, 400))
            figures.extend((*fleet_figures(world), probes_figure(world.policy)))
            status.update("appending to the log, against raw Parquet")
            figures.extend(append_figures(world, root / "append"))
            status.update("checksums, against files without")
            figures.extend(checksum_figures(world, root / "checksums"))
            status.update("reading the newest commit of a log of 10,000")
            figures.append(tail_figure(world, root / "tail"))
            status.update("ingesting spool files, clean and damaged")
            figures.extend(spool_figures(world, root / "spool"))
            status.update("bytes per record on disk, against a file per tick")
            figures.append(sizes_figure(world, root / "sizes"))
            status.update("curating, against the row-at-a-time reference")
            figures.extend(curator_figures(world))
            figures.extend(derive_figures(world, root / "derive", status.update))
            status.update("two hash buckets of golems: two processes at once, against one after the other")
            figures.append(bucket_figure(world, root / "buckets"))
            status.update("retrieval from 10,000 to 1,000,000 entries, against a matrix product")
            figures.extend(retrieve_figures())
            status.update("embedding texts, against fastembed; searching 100,000 vectors")
            figures.extend(embed_figures(world, root / "embed"))
            status.update("searching 10,000 and 100,000 stored texts")
            figures.extend(free_text_figures(root / "texts"))
            status.update("the server: 16 callers over HTTP, against the same work without it")
            figures.extend(serve_figures(root / "serve"))
            status.update(
                "the relay: 200 connected golems, a golem that was away for seven days, a life with all layers"
            )
            figures.extend(relay_figures(root / "relay"))
            status.update("deaths: the bottleneck over 1,000,000 entries, 1,000 deaths in one run")
            figures.extend(death_figures(root / "deaths"))
            status.update("1,000 golems for two days; 300 golems that die in the same tick")
            figures.extend(large_fleet_figures(root / "large", options.minutes))
            status.update("10,000 golems with 10 ticks each under Dagster: sensors and a curator run")
            figures.extend(large_home_figures(root / "home"))
            growth, curves = growth_figures(root / "growth", options.largest, status.update)
            figures.extend(growth)
    plot(curves, PLOT)
    table = Table(title=f"{world.records:,} records of 64 golems")
    for column in ("figure", "value", "unit", "peer", "ratio", "aim"):
        table.add_column(column, justify="right" if column in ("value", "peer", "ratio") else "left", no_wrap=True)
    for f in figures:
        table.add_row(f.name, _short(f.value), f.unit, _short(f.peer), f"{f.ratio:,.3g}", f.aim)
    console.print(table)
    for f in figures:
        console.print(f"{f.name}: {f.how}", highlight=False)
    RESULTS.write_bytes(
        orjson.dumps(
            {f.name: {"value": f.value, "unit": f.unit, "peer": f.peer, "ratio": f.ratio} for f in figures},
            option=orjson.OPT_INDENT_2,
        )
    )


def _short(value: float) -> str:
    return f"{value / 1000:,.1f} k" if value >= 1000 else f"{value:,.3g}"


if __name__ == "__main__":
    main()
