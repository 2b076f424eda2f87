"""Append: seconds per batch against bare Parquet; reading the newest commit of a long log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.event_log import EventLog
from benchmarks.figures import Figure, seconds
from benchmarks.world import GOLEMS, NOW, SPAN, World

BATCH = 50_000
ROUNDS = 2
COMMITS = 10_000
COMMIT_RECORDS = 25
LOOKS = 40
COLUMNS = ["golem_id", "tick", "tier"]


def append_figures(world: World, root: Path) -> list[Figure]:
    """Compare appending a batch of about 50,000 records with writing it as bare Parquet."""
    spent: dict[str, list[float]] = {"bare": [], "durable": [], "parquet": []}
    for turn in range(ROUNDS):
        folder = root / f"append-{turn}"
        folder.mkdir(parents=True)
        logs = {
            "bare": EventLog(_home(folder / "bare", world), world.policy, durable=False, chained=False),
            "durable": EventLog(_home(folder / "durable", world), world.policy),
        }
        for number, batch in enumerate(_batches(world)):
            for name, log in logs.items():
                spent[name].append(
                    seconds(
                        lambda b=batch, k=log, n=number: k.append(
                            b, writer="bench", segment=n, recorded_at=NOW, simulated=True
                        )
                    )
                )
            path = folder / f"{number}.parquet"
            spent["parquet"].append(
                seconds(lambda b=batch, p=path: pq.write_table(b, p, compression="zstd", compression_level=1))
            )
    bare, durable, peer = (median(spent[name]) for name in ("bare", "durable", "parquet"))
    batches = f"median of {len(spent['bare'])} batches of about {BATCH:,} records, golem by golem"
    peer_text = "peer: pyarrow's write_table of the same Arrow data, zstd 1, without fsync, alternating runs"
    return [
        Figure(
            "append_50k_vs_parquet",
            bare,
            "s",
            peer,
            bare / peer,
            "ratio <= 1.5",
            f"{batches}: checked, digested, deduplicated, committed; no chain, no fsync; {peer_text}",
        ),
        Figure(
            "append_durable_vs_parquet",
            durable,
            "s",
            peer,
            durable / peer,
            "ratio <= 2.2",
            f"{batches}: the same, chained with SHA-256, and Parquet, commit and folders fsynced; {peer_text}",
        ),
    ]


def tail_figure(world: World, root: Path, commits: int = COMMITS) -> Figure:
    """Measure milliseconds to read a new commit on a handle opened before it."""
    home = _home(root, world)
    pieces = _pieces(pa.concat_tables(world.cycles), commits + LOOKS + 1)
    ours: list[float] = []
    peer_times: list[float] = []
    with EventLog(home, world.policy, durable=False, chained=False) as writer:
        for number in range(commits):
            writer.append(next(pieces), writer="bench", segment=number, recorded_at=NOW, simulated=True)
        reader, peer = EventLog(home, world.policy), DeltaTable(home.cycles)
        for number in range(commits, commits + LOOKS):
            seen = reader.version
            piece = next(pieces)
            writer.append(piece, writer="bench", segment=number, recorded_at=NOW, simulated=True)
            count = len(piece)
            ours.append(seconds(lambda s=seen, n=count: _read(reader, s, n)))
            peer_times.append(seconds(lambda s=seen, n=count: _read_changes(peer, s, n)))
    how = (
        f"median of {LOOKS} reads of {COMMIT_RECORDS} new records in a log of {commits:,} commits, columns "
        f"{', '.join(COLUMNS)}; peer: Delta's load_cdf on an open handle, same columns, alternating runs"
    )
    value, peer_value = median(ours) * 1_000, median(peer_times) * 1_000
    return Figure("tail_ms", value, "ms", peer_value, value / peer_value, "value <= 20", how)


def _read(log: EventLog, seen: int, count: int) -> None:
    rows = log.read_cycles(COLUMNS, since_version=seen)
    assert len(rows) == count, f"{len(rows)} records of {count}"


def _read_changes(table: DeltaTable, seen: int, count: int) -> None:
    table.update_incremental()
    rows = pa.table(table.load_cdf(starting_version=seen + 1, columns=COLUMNS).read_all())
    assert len(rows) == count, f"{len(rows)} records of {count}"


def _home(root: Path, world: World) -> Home:
    return Home.create(root, world.policy, NOW)


def _batches(world: World) -> Iterator[pa.Table]:
    """Yield the records in batches of about 50,000, sorted by golem; an incomplete last batch is left out."""
    each = min(max(BATCH // (GOLEMS * SPAN), 1), len(world.cycles))
    for at in range(0, len(world.cycles) - each + 1, each):
        table = pa.concat_tables(world.cycles[at : at + each])
        yield table.sort_by([("golem_id", "ascending"), ("tick", "ascending")]).combine_chunks()


def _pieces(records: pa.Table, count: int) -> Iterator[pa.Table]:
    """Yield `count` pieces of COMMIT_RECORDS records; at the end of the world they repeat at later ticks."""
    whole = records.combine_chunks()
    ticks, last = whole.column("tick"), SPAN * (len(records) // (GOLEMS * SPAN))
    at = whole.schema.get_field_index("tick")
    turns = 0
    while True:
        later = pa.compute.add(ticks, turns * last)
        again = whole.set_column(at, whole.schema.field("tick"), later)
        for first in range(0, len(whole) - COMMIT_RECORDS + 1, COMMIT_RECORDS):
            yield again.take(pa.array(range(first, first + COMMIT_RECORDS)))  # a copy, like a batch from a sender
            count -= 1
            if not count:
                return
        turns += 1
