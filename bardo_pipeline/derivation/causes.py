"""Causes: the causal moments of golems at a closed cycle, kept in a file a bucket beside the readers' places.

They are a function of the log alone. The files only save time: a golem whose moments are not kept, or not as of the
cycle and the records asked for, is read again from the log. Source: HB S4; architecture (law 5).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.causal import MOMENTS_SCHEMA, Moments, from_table
from bardo_pipeline.derivation.reading import closed_records, cycle_of
from bardo_pipeline.derivation.repairing import without
from bardo_pipeline.derivation.stores import Stores
from bardo_pipeline.events.left_out import LeftOut
from bardo_pipeline.storage.home import bucket_of

_READ = ("golem_id", "tick", "observed_at", "observation")
_KEPT_SCHEMA = pa.schema(
    [*MOMENTS_SCHEMA, pa.field("cycle", pa.int64(), nullable=False), pa.field("left", pa.string(), nullable=False)]
)


def moments_at(stores: Stores, done: Mapping[str, int], left: LeftOut) -> Moments:
    """The moments of these golems at their last cycles. done: golem to cycle; 0 and below has lived through nothing."""
    wanted = {g: cycle for g, cycle in done.items() if cycle > 0}
    made = Moments()
    for bucket in sorted({bucket_of(g, stores.home.bucket_count) for g in wanted}):
        kept = _kept(stores, bucket)
        current = [
            wanted.get(g) == cycle and _signature(left, g) == signature
            for g, cycle, signature in zip(*(kept[n].to_pylist() for n in ("golem_id", "cycle", "left")), strict=True)
        ]
        made.absorb(from_table(kept.filter(pa.array(current, pa.bool_())).select(MOMENTS_SCHEMA.names)))
    known = {golem_id for golem_id, _ in made.of}
    missing = {g: cycle for g, cycle in wanted.items() if g not in known}
    if missing:
        records = without(closed_records(stores, _READ, dict.fromkeys(missing, 1), missing), left)
        cycle = cycle_of(records["tick"].to_numpy(), stores.policy.curator.cycle_ticks)
        read = Moments()
        read.add(records, cycle, stores.policy)
        read.settle(missing, stores.policy)
        made.absorb(read)
    return made


def keep_moments(stores: Stores, moments: Moments, done: Mapping[str, int], left: LeftOut) -> None:
    """Keep the moments of these golems as of their last cycles; those of the dead are let go."""
    dead = set(stores.life("DeathDeclared")["golem_id"].to_pylist())
    by_bucket: dict[int, set[str]] = {}
    for golem_id in done:
        by_bucket.setdefault(bucket_of(golem_id, stores.home.bucket_count), set()).add(golem_id)
    for bucket, golem_ids in sorted(by_bucket.items()):
        others = _kept(stores, bucket)
        gone = pc.is_in(others["golem_id"], value_set=pa.array(sorted(golem_ids | dead), pa.string()))
        mine = moments.table(golem_ids - dead)
        owners = mine["golem_id"].to_pylist()
        mine = mine.append_column(_KEPT_SCHEMA.field("cycle"), pa.array([done[g] for g in owners], pa.int64()))
        mine = mine.append_column(
            _KEPT_SCHEMA.field("left"), pa.array([_signature(left, g) for g in owners], pa.string())
        )
        _write(_file(stores, bucket), pa.concat_tables([others.filter(pc.invert(gone)), mine]))


def _signature(left: LeftOut, golem_id: str) -> str:
    """What is left out of a golem's records, in words."""
    return repr(left.of_golem(golem_id)[0])


def _file(stores: Stores, bucket: int) -> Path:
    return stores.projections.root / "readers" / "moments" / f"{bucket}.arrow"


def _kept(stores: Stores, bucket: int) -> pa.Table:
    """What is kept of a bucket; nothing where there is no file, or one that cannot be read."""
    try:
        with pa.memory_map(str(_file(stores, bucket))) as source, pa.ipc.open_file(source) as file:
            rows = file.read_all()
    except (FileNotFoundError, pa.ArrowInvalid):
        return _KEPT_SCHEMA.empty_table()
    return rows if rows.schema.equals(_KEPT_SCHEMA) else _KEPT_SCHEMA.empty_table()


def _write(path: Path, rows: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}")
    with pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_file(sink, _KEPT_SCHEMA) as out:
        out.write_table(rows)
    os.replace(draft, path)
