"""Bundles: equal bytes for equal deaths, a hash over every byte, and the entries that an heir receives."""

from datetime import timedelta

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bardo_pipeline.curator.passes.admit_received import _as_entries
from bardo_pipeline.curator.state.decision_log import fold
from bardo_pipeline.curator.state.grimoire_state import from_table, to_table
from bardo_pipeline.errors import BundleError
from bardo_pipeline.events.life.received_knowledge import Arrival
from bardo_pipeline.inheritance.bundle_files import (
    BUNDLE_VERSION,
    CROSSING_COLUMNS,
    ENTRIES,
    FILES,
    MANIFEST,
    Bundle,
    open_bundle,
    read_bundle,
    seal,
)
from bardo_pipeline.inheritance.canonical_json import canonical, jsonl
from bardo_pipeline.inheritance.heir_entries import inherited_entries, received_decisions
from bardo_pipeline.inheritance.weismann import SHED_COLUMNS
from bardo_pipeline.quality.bundle_expectations import FORBIDDEN_NAMES, FORBIDDEN_PATTERNS
from tests.support.example_count import times
from tests.support.knowledge.handmade_bundles import bundle_of, crossing_of
from tests.support.knowledge.handmade_grimoires import (
    DAY,
    DIED,
    POLICY,
    baseline,
    confidence_at,
    entry,
    grimoire,
    shuffled,
)

ROWS = (
    entry(about="w", kind="warning", sign=-1, is_anti_knowledge=True),
    entry(about="h", kind="heuristic", validations=3, confidence_ppm=900_000),
    entry(about=baseline("gas_price"), own_count=40, own_sum=900_000, effect_mean_ppm=22_500),
)


def test_a_bundle_has_equal_bytes_for_any_order_of_entries() -> None:
    first, other = bundle_of(*ROWS), bundle_of(*reversed(ROWS))
    assert first.files == other.files == bundle_of(*ROWS, entries=shuffled(crossing_of(*ROWS), 2)).files
    assert first.bundle_hash == other.bundle_hash


def test_different_contents_have_different_bundle_hashes() -> None:
    names = {
        bundle_of(*ROWS).bundle_hash, bundle_of(*ROWS[:2]).bundle_hash, bundle_of(*ROWS, playbook="other").bundle_hash,
        bundle_of(*ROWS, derivation_id="other").bundle_hash,
    }  # fmt: skip
    assert len(names) == 4


def test_the_manifest_lists_every_file_and_its_counts() -> None:
    bundle = bundle_of(*ROWS)
    assert set(bundle.manifest["files"]) == set(FILES)
    assert bundle.manifest["files"][ENTRIES]["rows"] == 3
    assert (bundle.manifest["anti_knowledge"], bundle.manifest["bloodstains"]) == (1, 1)
    assert orjson.loads(bundle.files[MANIFEST]) == bundle.manifest
    assert read_bundle(bundle.files) == bundle


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_an_altered_or_missing_file_is_named_in_the_error(name: str) -> None:
    files = dict(bundle_of(*ROWS).files)
    with pytest.raises(BundleError, match=name.replace(".", r"\.")):
        read_bundle(files | {name: files[name] + b" "})
    with pytest.raises(BundleError, match=name.replace(".", r"\.")):
        read_bundle({n: data for n, data in files.items() if n != name})


@settings(deadline=None)
@given(st.sampled_from([*FILES, MANIFEST]), st.integers(0, 10**6), st.integers(1, 255))
def test_a_change_of_any_byte_is_detected(name: str, place: int, by: int) -> None:
    files = dict(WHOLE.files)
    data = bytearray(files[name] or b"\n")
    data[place % len(data)] ^= by
    with pytest.raises(BundleError, match=name.replace(".", r"\.")):
        read_bundle(files | {name: bytes(data)})


def test_a_foreign_file_is_refused_even_if_the_manifest_lists_it() -> None:
    bundle = bundle_of(*ROWS)
    with pytest.raises(BundleError, match=r"notes\.md: no file of a bundle"):
        read_bundle(dict(bundle.files) | {"notes.md": b"hi"})
    listed = resealed(bundle, {"../notes.md": b"hi"})
    with pytest.raises(BundleError, match=r"notes\.md: no file of a bundle"):
        read_bundle(listed.files)


def test_a_bundle_of_a_newer_schema_version_is_refused() -> None:
    bundle = bundle_of(*ROWS)
    head = {n: v for n, v in bundle.manifest.items() if n not in ("files", "bundle_hash")}
    newer = seal({n: bundle.files[n] for n in FILES}, head | {"schema_version": 99})
    with pytest.raises(BundleError, match=r"manifest\.json: schema version 99"):
        read_bundle(newer.files)


@pytest.mark.parametrize("manifest", [b"", b"nonsense", b"[]", b"{}"])
def test_an_unreadable_manifest_opens_as_empty_and_fails_verification(manifest: bytes) -> None:
    files = dict(bundle_of(*ROWS).files) | {MANIFEST: manifest}
    assert open_bundle(files).bundle_hash == ""
    with pytest.raises(BundleError, match=r"manifest\.json"):
        read_bundle(files)


@pytest.mark.parametrize("line", [b"nonsense", b"[1]", b'{"rank":"first"}'])
def test_unreadable_entries_are_refused_with_their_file_name(line: bytes) -> None:
    bundle = resealed(bundle_of(*ROWS), {ENTRIES: line + b"\n"})
    with pytest.raises(BundleError, match=r"entries\.jsonl"):
        read_bundle(bundle.files).entries()


def resealed(bundle: Bundle, files: dict[str, bytes]) -> Bundle:
    head = {n: v for n, v in bundle.manifest.items() if n not in ("files", "bundle_hash")}
    return seal({n: bundle.files[n] for n in FILES} | files, head)


def test_no_forbidden_name_is_a_crossing_column() -> None:
    names, patterns = FORBIDDEN_NAMES, FORBIDDEN_PATTERNS
    assert not names & set(CROSSING_COLUMNS)
    assert names >= {"liquidity", "tick_lower", "value_micros", "pnl", "own_sum", "recent_sum"}
    assert patterns


@settings(max_examples=times(25), deadline=None)
@given(st.integers(10**9, 10**15), st.integers(10**9, 10**15))
def test_a_bundle_contains_no_sums_of_its_golem(total: int, squares: int) -> None:
    own = {"own_sum": total, "recent_sum": total, "own_sumsq": squares, "pleasure_sum_milli": total}
    bundle = bundle_of(entry(**own), entry(about=baseline("gas_price"), own_count=40, **own))
    everything = b"".join(bundle.files.values())
    assert str(total).encode() not in everything
    assert str(squares).encode() not in everything


def test_moments_read_back_to_the_microsecond() -> None:
    exact = DIED - timedelta(days=3, microseconds=1)
    (row,) = bundle_of(entry(anchor_at=exact)).entries().to_pylist()
    assert row["anchor_at"] == exact


def test_an_heir_receives_the_entries_without_their_experience_sums() -> None:
    bundle = bundle_of(*ROWS)
    heir = inherited_entries(bundle, "heir", POLICY)
    for row in heir.to_pylist():
        assert (row["golem_id"], row["provenance"], row["status"]) == ("heir", "death_testament", "active")
        assert (row["origin_golem_id"], row["generation"]) == ("g-1", 1)
        assert [row[name] for name in SHED_COLUMNS] == [0] * len(SHED_COLUMNS)
    assert {r["text"] for r in heir.to_pylist()} == {r["text"] for r in ROWS}


LEVEL = {"level_p10": 900, "effect_low_ppm": 1_200, "effect_mean_ppm": 1_500, "effect_high_ppm": 2_100}
LEVEL |= {"level_p90": 9_000}


def stated(rows: pa.Table) -> list[dict[str, int]]:
    return [{name: row[name] for name in LEVEL} for row in rows.to_pylist()]


@pytest.mark.row("INH-7", "MEM-3")
def test_the_outer_percentiles_of_a_level_cross_a_death_and_a_purchase() -> None:
    bundle = bundle_of(entry(about=baseline("gas_price"), own_count=9, **LEVEL))
    assert bundle.manifest["schema_version"] == BUNDLE_VERSION == 3
    heir = inherited_entries(bundle, "heir", POLICY)
    assert stated(heir) == [LEVEL]
    assert stated(fold(received_decisions(heir, bundle.bundle_hash, DIED, POLICY.hash))) == [LEVEL]
    arrival = Arrival("g-2", 1, "an event", DIED, "import", bundle.bundle_hash, "g-1")
    assert stated(_as_entries(bundle.entries(), arrival)) == [LEVEL]


@pytest.mark.row("INH-7", "EV-2")
def test_a_bundle_of_the_second_version_is_read_and_states_no_outer_percentiles() -> None:
    bundle = bundle_of(entry(about=baseline("gas_price"), own_count=9, **LEVEL))
    bare = [{n: v for n, v in row.items() if n not in ("level_p10", "level_p90")} for row in bundle.rows(ENTRIES)]
    head = {n: v for n, v in bundle.manifest.items() if n not in ("files", "bundle_hash")} | {"schema_version": 2}
    files = {name: content for name, content in bundle.files.items() if name != MANIFEST}
    lines = jsonl(pa.Table.from_pylist(bare))
    for content in (lines, lines.replace(b"{", b'{"note":"",', 1)):  # in bulk, and row by row
        former = read_bundle(seal(files | {ENTRIES: content}, head).files)
        assert (former.plain_entries() is None) is (content != lines)
        assert stated(inherited_entries(former, "heir", POLICY)) == [LEVEL | {"level_p10": 0, "level_p90": 0}]
    assert open_bundle(seal(files | {ENTRIES: lines}, head | {"schema_version": 3}).files).plain_entries() is None


def test_inherited_confidence_is_85_percent_at_death_or_the_floor() -> None:
    known = {r["entry_id"]: r for r in ROWS}
    heir = inherited_entries(bundle_of(*ROWS), "heir", POLICY)
    for row, now in zip(heir.to_pylist(), confidence_at(heir, DIED), strict=True):
        before = confidence_at(grimoire(known[row["entry_id"]]), DIED)[0]
        assert now == pytest.approx(max(before * 0.85, 300_000 if row["is_anti_knowledge"] else 0), abs=2)


def test_the_fold_of_received_decisions_equals_the_inherited_entries() -> None:
    bundle = bundle_of(*ROWS)
    rows = inherited_entries(bundle, "heir", POLICY)
    received = received_decisions(shuffled(rows, 1), bundle.bundle_hash, DIED + DAY, POLICY.hash)
    assert fold(received).equals(rows)
    assert set(received.column("cause_bundle").to_pylist()) == {bundle.bundle_hash}
    assert set(received.column("operation").to_pylist()) == {"received"}
    assert received.column("seq").to_pylist() == list(range(rows.num_rows))


def test_inherited_entries_survive_a_round_trip_through_the_curator_state() -> None:
    rows = inherited_entries(bundle_of(*ROWS), "heir", POLICY)
    assert to_table(from_table(rows), POLICY.curator, POLICY.decay).equals(rows)


@pytest.mark.row("INH-19")
def test_an_entry_keeps_its_origin_golem_across_two_generations() -> None:
    child = inherited_entries(bundle_of(*ROWS), "child", POLICY).to_pylist()
    grandchild = inherited_entries(bundle_of(*child, golem_id="child"), "grandchild", POLICY).to_pylist()
    assert {(r["origin_golem_id"], r["generation"]) for r in grandchild} == {("g-1", 2)}
    assert {r["entry_id"] for r in grandchild} == {r["entry_id"] for r in ROWS}


def test_a_golem_without_entries_leaves_an_empty_bundle() -> None:
    bundle = bundle_of()
    rows = inherited_entries(bundle, "heir", POLICY)
    assert rows.num_rows == 0
    assert fold(received_decisions(rows, bundle.bundle_hash, DIED, POLICY.hash)).num_rows == 0
    assert bundle.files[ENTRIES] == b""
    assert canonical({}) == b"{}\n"


WHOLE = bundle_of(*ROWS)
