"""What a reader keeps of golems: once each, nothing of the dead, and nothing where a file cannot be read."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from bardo_pipeline.derivation.incremental import checkpoints
from bardo_pipeline.derivation.incremental.checkpoints import ByGolem
from bardo_pipeline.storage.home import bucket_of
from tests.property.test_laws import deliver, learner, stores_at

SCHEMA = pa.schema([pa.field("golem_id", pa.string(), nullable=False), pa.field("cycle", pa.int64(), nullable=False)])
GOLEMS = [f"g-{k}" for k in range(6)]


def kept(files: ByGolem, golem_ids: list[str] = GOLEMS) -> dict[str, int]:
    rows = files.rows(golem_ids).to_pylist()
    assert len(rows) == len({row["golem_id"] for row in rows}), "each once"
    return {row["golem_id"]: row["cycle"] for row in rows}


def table(cycles: dict[str, int]) -> pa.Table:
    return pa.table({"golem_id": list(cycles), "cycle": list(cycles.values())}, schema=SCHEMA)


@pytest.mark.row("P-2")
def test_a_file_holds_each_living_golem_once_as_it_was_kept_last(tmp_path: Path) -> None:
    stores = stores_at(tmp_path / "home")
    files = ByGolem(stores, "some", SCHEMA)
    files.keep(table(dict.fromkeys(GOLEMS, 1)), GOLEMS)
    files.keep(table(dict.fromkeys(GOLEMS[:3], 2)), GOLEMS[:3])
    assert kept(files) == dict.fromkeys(GOLEMS[:3], 2) | dict.fromkeys(GOLEMS[3:], 1)
    files.keep(table({}), GOLEMS[:1])
    assert GOLEMS[0] not in kept(files)
    dead = learner("g-5")
    for number, parcel in enumerate([dead.birth, dead.part(1, 14), dead.death]):
        deliver(stores, parcel, number)
    files.keep(table({"h-1": 4}), ["h-1"])
    left = kept(files)
    assert "g-5" not in left
    assert left["h-1"] == 4


@pytest.mark.row("P-2")
def test_a_file_that_grows_is_halved_and_no_golem_is_kept_twice_or_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_SPAN_BYTES_MAX", 150)
    stores, random, known = stores_at(tmp_path / "home"), Random(7), dict[str, int]()
    files, counts = ByGolem(stores, "some", SCHEMA), list[int]()
    for turn in range(60):
        some = random.sample(range(5 + 2 * turn), 4)
        kept_now = {f"g-{k}": turn for k in some[:3]}
        files.keep(table(kept_now), [f"g-{k}" for k in some])
        known.pop(f"g-{some[3]}", None)
        known |= kept_now
        rows = files.rows(known).to_pylist()
        assert len(rows) == len(known)
        assert {row["golem_id"]: row["cycle"] for row in rows} == known
        counts.append(len(list((stores.projections.root / "readers" / "some").iterdir())))
    assert counts[0] == 1
    assert counts == sorted(counts)
    assert counts[-1] > 6
    assert files.rows(["g-1"]).num_rows < len(known) // 4, "who asks for one reads the files of few"


def test_what_lies_in_a_file_a_bucket_goes_on_so_and_other_names_are_nobodys(tmp_path: Path) -> None:
    stores = stores_at(tmp_path / "home")
    files, folder = ByGolem(stores, "some", SCHEMA), stores.projections.root / "readers" / "some"
    many, count = [f"g-{k}" for k in range(40)], stores.home.bucket_count
    for golem_id in many[:20]:
        path = folder / f"{bucket_of(golem_id, count)}.arrow"
        rows = [g for g in many[:20] if bucket_of(g, count) == bucket_of(golem_id, count)]
        path.parent.mkdir(parents=True, exist_ok=True)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as out:
            out.write_table(table(dict.fromkeys(rows, 1)))
    for name in ("0-3 (copy).arrow", "notes.arrow", ".0-3.arrow", "x-1.arrow"):
        (folder / name).write_bytes(b"")
    assert kept(files, many) == dict.fromkeys(many[:20], 1)
    files.keep(table(dict.fromkeys(many[10:], 2)), many[10:])
    assert kept(files, many) == dict.fromkeys(many[:10], 1) | dict.fromkeys(many[10:], 2)


def test_a_file_that_somebody_else_named_only_costs_time(tmp_path: Path) -> None:
    stores = stores_at(tmp_path / "home")
    files, folder = ByGolem(stores, "some", SCHEMA), stores.projections.root / "readers" / "some"
    folder.mkdir(parents=True)
    for name in ("5-3.arrow", "2-9.arrow", "7-99.arrow"):
        (folder / name).write_bytes(b"")
    many = [f"g-{k}" for k in range(200)]
    assert {bucket_of(golem_id, stores.home.bucket_count) for golem_id in many} == set(range(stores.home.bucket_count))
    assert kept(files, many) == {}
    files.keep(table(dict.fromkeys(many, 1)), many)
    assert len(kept(files, many)) > 100


def test_a_halved_file_that_a_power_cut_brings_back_is_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = stores_at(tmp_path / "home")
    files, folder = ByGolem(stores, "some", SCHEMA), stores.projections.root / "readers" / "some"
    many = [f"g-{k}" for k in range(40)]
    files.keep(table(dict.fromkeys(many, 1)), many)
    (whole,) = folder.iterdir()
    before = whole.read_bytes()
    monkeypatch.setattr(checkpoints, "_SPAN_BYTES_MAX", 150)
    files.keep(table(dict.fromkeys(many, 2)), many)
    assert not whole.exists()
    whole.write_bytes(before)
    assert kept(files, many) == dict.fromkeys(many, 2)
    files.keep(table(dict.fromkeys(many[:20], 3)), many[:20])
    assert kept(files, many) == dict.fromkeys(many[:20], 3) | dict.fromkeys(many[20:], 2)
    halves = sorted(path for path in folder.iterdir() if path != whole)
    halves[0].unlink()
    left = kept(files, many)
    assert set(left.values()) <= {2, 3}
    files.keep(table(dict.fromkeys(many, 4)), many)
    assert kept(files, many) == dict.fromkeys(many, 4)


def test_a_file_that_cannot_be_read_or_is_of_other_columns_holds_nothing(tmp_path: Path) -> None:
    stores = stores_at(tmp_path / "home")
    files = ByGolem(stores, "some", SCHEMA)
    files.keep(table({"g-1": 1}), ["g-1"])
    assert kept(files) == {"g-1": 1}
    assert kept(ByGolem(stores, "some", SCHEMA.append(pa.field("more", pa.int64())))) == {}
    (path,) = (stores.projections.root / "readers" / "some").iterdir()
    path.write_bytes(b"")
    assert kept(files) == {}
