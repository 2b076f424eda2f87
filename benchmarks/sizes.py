"""Disk bytes per record, against the specification's design: a file per tick and an SQLite index.

Source: HB S6 ("bincode for storage, one file per tick", `index.sqlite` in WAL mode).
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.events.custody.hash_chain import Payloads
from bardo_pipeline.events.record.arrow_schema import field_annotation, split_optional
from bardo_pipeline.events.record.model import DecisionCycleRecord
from bardo_pipeline.events.record.validate import examine
from bardo_pipeline.storage.log.batch import Stamp
from bardo_pipeline.storage.operations.maintenance import maintain
from bardo_pipeline.storage.operations.retention import disk_bytes
from benchmarks.figures import Figure
from benchmarks.world import NOW, World

LIVED = 16  # golems measured; few long lives, so that most ticks are in the cold tier
DRAIN = 1_000  # records per commit, as by a drainer under load

CYCLE_INDEX = """
create table cycle_index (
    tick integer primary key, regime text not null, tier text not null, has_action boolean not null,
    has_outcome boolean not null, phase text not null, prediction_error real not null, total_cost real not null,
    pnl_impact real, primary_emotion text, timestamp text not null
);
create index idx_cycle_tier_regime on cycle_index(tier, regime);
create index idx_cycle_outcome on cycle_index(has_action, has_outcome);
create index idx_cycle_phase on cycle_index(phase);
create index idx_cycle_recent on cycle_index(tick desc);
"""
"""The specification's index of one golem."""


def sizes_figure(world: World, root: Path) -> Figure:
    """Compare disk bytes of a maintained home with those of the specification's design, same records."""
    records = whole_lives(world)
    stores = world.home(root / "sizes")
    lines = admit_json(stores, records)
    for hours in (0, 2):  # the second run deletes files that the first replaced, after their grace period
        now = datetime.fromtimestamp(root.stat().st_mtime, tz=NOW.tzinfo) + timedelta(hours=hours)
        maintain(stores.home, stores.log, world.policy, now=now, in_force=[])
    stores.log.close()
    ours, apparent = disk_bytes(stores.home.root), _lengths(stores.home.root)
    files = root / "files"
    write_files(files, records)
    foreign, their_lengths = disk_bytes(files), _lengths(files)
    count = records.num_rows
    cold = sum(path.stat().st_size for path in (stores.home.cycles / "cold").glob("*.parquet"))
    how = (
        f"{count:,} records of {LIVED} golems, received as JSON ({lines / count:,.0f} B each, kept), in drains of "
        f"{DRAIN:,}, after maintenance: the whole home, {ours / count:,.0f} B per record allocated, "
        f"{apparent / count:,.0f} apparent, {cold / apparent:.0%} of it cold files; peer: a bincode file per tick and "
        f"an SQLite WAL index per golem, {foreign / count:,.0f} B allocated, {their_lengths / count:,.0f} apparent"
    )
    return Figure("bytes_vs_files", ours, "B", foreign, ours / foreign, "ratio <= 0.25", how)


def whole_lives(world: World) -> pa.Table:
    """All records of the first golems, as they came, tick by tick."""
    names = pa.array(sorted(world.cycles[0]["golem_id"].unique().to_pylist())[:LIVED])
    rows = pa.concat_tables(t.filter(pc.is_in(t["golem_id"], value_set=names)) for t in world.cycles)
    return rows.take(pc.sort_indices(rows, [("tick", "ascending"), ("golem_id", "ascending")])).combine_chunks()


def admit_json(stores: DerivationContext, records: pa.Table) -> int:
    """Append the records with their JSON payloads, as writers send them; return the bytes of JSON."""
    total = 0
    for segment, start in enumerate(range(0, records.num_rows, DRAIN), 1):
        some = records.take(pa.array(range(start, min(start + DRAIN, records.num_rows))))
        lines = [orjson.dumps(row) for row in some.to_pylist()]
        total += sum(map(len, lines))
        admitted = stores.log.admit(
            examine(some),
            Stamp("bench", segment, NOW, checks_clock=False),
            payloads=Payloads.of(pa.array(lines, pa.binary())),
        )
        assert not admitted.refused, admitted.refused
    return total


def write_files(root: Path, records: pa.Table) -> None:
    """Write the specification's design: a folder per golem, a bincode file per tick, an SQLite index."""
    pack = packer(DecisionCycleRecord)
    for golem_id in records["golem_id"].unique().to_pylist():
        folder = root / golem_id / "cycles"
        folder.mkdir(parents=True)
        index = sqlite3.connect(folder / "index.sqlite")
        index.execute("pragma journal_mode = wal")
        index.executescript(CYCLE_INDEX)
        for row in records.filter(pc.equal(records["golem_id"], golem_id)).to_pylist():
            (folder / f"cycle-{row['tick']:06}.bincode").write_bytes(b"".join(pack(row)))
            index.execute(f"insert into cycle_index values ({','.join('?' * 11)})", index_row(row))
        index.commit()
        index.close()


def index_row(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return a record's row in the specification's index."""
    outcome = row["outcome"]
    pnl = None if outcome is None else outcome["pnl_impact_micros"]
    return (
        row["tick"], row["regime"], row["tier"], bool(row["actions"]), outcome is not None, row["phase"],
        row["prediction_error"], row["cost"]["total_micros"] / 1e6, None if pnl is None else pnl / 1e6,
        row["primary_emotion"], row["observed_at"].isoformat(),
    )  # fmt: skip


Pack = Callable[[Any], Iterator[bytes]]


def packer(model: type[BaseModel]) -> Pack:
    """Return a function that encodes a row like Rust's bincode: fixed widths, 8-byte lengths, option tags."""
    parts = [(name, _packer(field_annotation(field))) for name, field in model.model_fields.items()]

    def pack(row: Any) -> Iterator[bytes]:
        for name, part in parts:
            yield from part(row[name])

    return pack


def _packer(annotation: Any) -> Pack:
    optional, bare = split_optional(annotation)
    while get_origin(bare) is not None and hasattr(bare, "__metadata__"):
        inner, bare = split_optional(get_args(bare)[0])
        optional = optional or inner
    plain = _plain(bare)

    def pack(value: Any) -> Iterator[bytes]:
        if optional:
            yield b"\0" if value is None else b"\1"
        if value is not None:
            yield from plain(value)

    return pack


def _plain(kind: Any) -> Pack:
    if get_origin(kind) is Literal:
        places = {name: struct.pack("<I", place) for place, name in enumerate(get_args(kind))}
        return lambda value: iter((places[value],))
    if get_origin(kind) is tuple:
        each = _packer(get_args(kind)[0])

        def several(values: Any) -> Iterator[bytes]:
            yield struct.pack("<Q", len(values))
            for value in values:
                yield from each(value)

        return several
    if issubclass(kind, BaseModel):
        return packer(kind)
    if kind is str:
        return lambda value: iter((struct.pack("<Q", len(value.encode())), value.encode()))
    formats: dict[Any, Callable[[Any], bytes]] = {
        bool: lambda value: struct.pack("<?", value),
        int: lambda value: struct.pack("<q", value),
        float: lambda value: struct.pack("<d", value),
        datetime: lambda value: struct.pack("<QI", int(value.timestamp()), value.microsecond * 1_000),
    }
    return lambda value: iter((formats[kind](value),))


def _lengths(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
