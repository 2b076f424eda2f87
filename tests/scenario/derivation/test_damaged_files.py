"""Damaged derived tables and bundles are refused by name; the named cure restores them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from assets.checks import derived_tables_are_whole
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.bundle_archives import import_bundle
from bardo_pipeline.errors import BardoError
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.projections.projections import Projections
from bardo_pipeline.storage.verification.verify import verify
from tests.conftest import copy_home
from tests.support.knowledge.handmade_bundles import bundle_of
from tests.support.knowledge.handmade_grimoires import entry
from tests.support.processes.bardo_command import bardo

NOW = datetime(2026, 11, 1, tzinfo=UTC)


def newest_commit(table: Path) -> Path:
    return max((table / "_delta_log").glob("*.json"))


def data_file(table: Path) -> Path:
    return max(table.glob("*.parquet"), key=lambda path: path.stat().st_size)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


DAMAGES: dict[str, tuple[Callable[[Path], Path], Callable[[Path], None]]] = {
    "emptied commit": (newest_commit, lambda path: path.write_bytes(b"") and None),
    "cut commit": (newest_commit, cut),
    "flipped commit": (newest_commit, flip),
    "missing commit": (newest_commit, Path.unlink),
    "missing first commit": (lambda table: min((table / "_delta_log").glob("*.json")), Path.unlink),
    "missing file": (data_file, Path.unlink),
    "cut file": (data_file, cut),
    "flipped file": (data_file, flip),
    "missing folder": (lambda table: table, shutil.rmtree),
}
QUICK = (("missing commit", "grimoire"),)


def fingerprints(root: Path) -> dict[str, str]:
    stores = DerivationContext.open(root)
    projections = Projections(stores.projections.root, stores.home.bucket_count, stores.policy)
    return {name: projections.digest(name).fingerprint for name in TABLES}


@pytest.mark.row("X-4")
@pytest.mark.parametrize(
    ("damage", "table"),
    [
        *QUICK,
        *(
            pytest.param(damage, table, marks=pytest.mark.full)
            for damage in DAMAGES
            for table in ("grimoire", "curation")
            if (damage, table) not in QUICK
        ),
    ],
)
def test_a_damaged_projection_is_refused_and_made_again_by_derive(
    brief_home: Path, tmp_path: Path, damage: str, table: str
) -> None:
    root = copy_home(brief_home, tmp_path / "home")
    before = fingerprints(root)
    stores = DerivationContext.open(root)
    first = stores.projections.replaceable("grimoire").read().slice(0, 1).to_pylist()[0]
    golem, entry_id = first["golem_id"], first["entry_id"]
    place, spoil = DAMAGES[damage]
    path = place(stores.projections.root / table)
    spoil(path)
    reader = ("grimoire", "list", golem) if table == "grimoire" else ("grimoire", "show", golem, entry_id)
    for words in (reader, ("status", "--check")):
        refused = bardo(*words, home=root, expect=2)
        assert "is damaged" in refused
        assert "`bardo derive` makes the derived tables again" in refused
    named = verify(DerivationContext.open(root).home).files
    damaged = str(path.relative_to(root))
    assert any(damaged.startswith(file) or file.startswith(damaged) for file in named)
    bardo("derive", "--no-marts", home=root)
    assert fingerprints(root) == before
    bardo(*reader, home=root)
    assert verify(DerivationContext.open(root).home).clean


@pytest.mark.full
@pytest.mark.row("INH-7")
def test_a_candidate_with_a_missing_file_is_made_again_by_derive(brief_home: Path, tmp_path: Path) -> None:
    root = copy_home(brief_home, tmp_path / "home")
    candidate = next((DerivationContext.open(root).projections.root / "bundles").iterdir())
    kept = (candidate / "testament.md").read_bytes()
    (candidate / "testament.md").unlink()
    assert "testament.md: missing" in bardo("status", "--check", home=root, expect=2)
    bardo("derive", "--no-marts", home=root)
    assert (candidate / "testament.md").read_bytes() == kept


@pytest.mark.row("X-9")
def test_the_rest_of_a_killed_rebuild_is_no_damage(brief_home: Path, tmp_path: Path) -> None:
    root = copy_home(brief_home, tmp_path / "home")
    derivation = DerivationContext.open(root).projections.root
    unfinished = derivation.with_name(f"{derivation.name}.rebuild")
    shutil.copytree(derivation, unfinished)
    next((unfinished / "bundles").iterdir()).joinpath("manifest.json").unlink()
    assert verify(Home.open(root)).clean
    next((derivation / "bundles").iterdir()).joinpath("manifest.json").unlink()
    assert not verify(Home.open(root)).clean


@pytest.mark.row("X-4")
def test_a_table_whose_first_commit_broke_off_is_no_damage(brief_home: Path, tmp_path: Path) -> None:
    root = copy_home(brief_home, tmp_path / "home")
    table = DerivationContext.open(root).projections.root / "kits"
    shutil.rmtree(table)
    table.with_name("kits.version").unlink()
    (table / "_delta_log").mkdir(parents=True)
    (table / "_delta_log" / "_commit_0.json.tmp").write_bytes(b"{")
    assert verify(Home.open(root)).clean


@pytest.mark.row("X-4")
def test_an_asset_check_names_a_damaged_projection(brief_home: Path, tmp_path: Path) -> None:
    root = copy_home(brief_home, tmp_path / "home")

    class Stores:
        stores = DerivationContext.open(root)

    assert derived_tables_are_whole(Stores()).passed  # type: ignore[arg-type]
    flip(data_file(Stores.stores.projections.root / "grimoire"))
    result = derived_tables_are_whole(Stores())  # type: ignore[arg-type]
    assert not result.passed
    assert "`bardo derive`" in (result.description or "")


def test_a_damaged_log_file_is_refused_with_its_name_and_cure(brief_home: Path, tmp_path: Path) -> None:
    root = copy_home(brief_home, tmp_path / "home")
    path = data_file(DerivationContext.open(root).home.life)
    flip(path)
    with pytest.raises(BardoError, match=rf"{path.name} is damaged .*: restore the home from a backup"):
        DerivationContext.open(root)


@pytest.mark.row("X-9")
def test_importing_a_bundle_again_restores_its_files(brief_home: Path, tmp_path: Path) -> None:
    stores = DerivationContext.open(copy_home(brief_home, tmp_path / "home"))
    bundle = bundle_of(entry(about="h", kind="heuristic", validations=3, confidence_ppm=900_000))
    folder = stores.home.bundles / bundle.bundle_hash
    assert import_bundle(stores, dict(bundle.files), public_key=None, now=NOW)[1]
    for damage in (lambda: shutil.rmtree(folder), (folder / "testament.md").unlink):
        damage()
        report = verify(stores.home)
        assert report.files == (f"bundles/{bundle.bundle_hash}",)
        assert "missing" in report.breaks[0].fact
        assert import_bundle(stores, dict(bundle.files), public_key=None, now=NOW)[1]
        assert verify(stores.home).clean
    assert not import_bundle(stores, dict(bundle.files), public_key=None, now=NOW)[1]
    assert stores.life_fields("BundleImported", "bundle_hash").num_rows == 1
