"""The golem cache: each golem's rows once, none of dead golems, and none from a file that cannot be read."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from bardo_pipeline.derivation.incremental.golem_cache import GolemCache
from tests.property.derivation.test_laws import deliver, learner, stores_at

SCHEMA = pa.schema([pa.field("golem_id", pa.string(), nullable=False), pa.field("cycle", pa.int64(), nullable=False)])
GOLEMS = [f"g-{k}" for k in range(6)]


def cached(cache: GolemCache, golem_ids: list[str] = GOLEMS) -> dict[str, int]:
    rows = cache.read(golem_ids).to_pylist()
    assert len(rows) == len({row["golem_id"] for row in rows}), "each once"
    return {row["golem_id"]: row["cycle"] for row in rows}


def table(cycles: dict[str, int]) -> pa.Table:
    return pa.table({"golem_id": list(cycles), "cycle": list(cycles.values())}, schema=SCHEMA)


@pytest.mark.row("P-2")
def test_the_cache_holds_the_last_replacement_of_each_living_golem(tmp_path: Path) -> None:
    context = stores_at(tmp_path / "home")
    cache = GolemCache(context, "some", SCHEMA)
    cache.replace(table(dict.fromkeys(GOLEMS, 1)), GOLEMS)
    cache.replace(table(dict.fromkeys(GOLEMS[:3], 2)), GOLEMS[:3])
    assert cached(cache) == dict.fromkeys(GOLEMS[:3], 2) | dict.fromkeys(GOLEMS[3:], 1)
    cache.replace(table({}), GOLEMS[:1])
    assert GOLEMS[0] not in cached(cache)
    dead = learner("g-5")
    for number, parcel in enumerate([dead.birth, dead.part(1, 14), dead.death]):
        deliver(context, parcel, number)
    cache.replace(table({"g-5": 3, "h-1": 4}), ["g-5", "h-1"])
    assert cached(cache, ["g-5", "h-1"]) == {"h-1": 4}


@pytest.mark.row("P-2")
def test_random_replacements_neither_duplicate_nor_lose_a_golem(tmp_path: Path) -> None:
    context, random, expected = stores_at(tmp_path / "home"), Random(7), dict[str, int]()
    cache = GolemCache(context, "some", SCHEMA)
    for turn in range(60):
        golems = [f"g-{k}" for k in random.sample(range(5 + 2 * turn), 4)]
        cycles = dict.fromkeys(golems[:3], turn)
        cache.replace(table(cycles), golems)
        expected.pop(golems[3], None)
        expected |= cycles
        assert cached(cache, list(expected)) == expected
    assert cached(cache, ["g-1"]).keys() <= {"g-1"}
    assert len(list((context.projections.root / "readers" / "some").iterdir())) <= context.home.bucket_count


def test_the_cache_ignores_files_with_other_names(tmp_path: Path) -> None:
    context = stores_at(tmp_path / "home")
    cache, folder = GolemCache(context, "some", SCHEMA), context.projections.root / "readers" / "some"
    folder.mkdir(parents=True)
    with pa.OSFile(str(folder / "0-63.arrow"), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as out:
        out.write_table(table(dict.fromkeys(GOLEMS, 1)))
    for name in ("0-3 (copy).arrow", "notes.arrow", ".0-3.arrow", "5-3.arrow"):
        (folder / name).write_bytes(b"")
    assert cached(cache) == {}
    cache.replace(table(dict.fromkeys(GOLEMS, 2)), GOLEMS)
    assert cached(cache) == dict.fromkeys(GOLEMS, 2)


def test_the_cache_ignores_unreadable_files_and_files_with_other_columns(tmp_path: Path) -> None:
    context = stores_at(tmp_path / "home")
    cache = GolemCache(context, "some", SCHEMA)
    cache.replace(table({"g-1": 1}), ["g-1"])
    assert cached(cache) == {"g-1": 1}
    assert cached(GolemCache(context, "some", SCHEMA.append(pa.field("more", pa.int64())))) == {}
    (path,) = (context.projections.root / "readers" / "some").iterdir()
    path.write_bytes(b"")
    assert cached(cache) == {}
