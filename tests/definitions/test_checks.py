"""The checks that warn: each is run on a home with the fault that it reports."""

from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from assets.checks import (
    confidence_is_a_probability,
    every_candidate_passed,
    no_cycle_waits_behind_a_gap,
    playbook_versions_have_no_hole,
    reasons_match_their_records,
    some_proposition_has_its_quorum,
)
from assets.resources import LazyStores
from bardo_pipeline.derivation.katabasis.derive_consensus import derive_consensus
from bardo_pipeline.derivation.katabasis.derive_votes import derive_votes
from bardo_pipeline.derivation.versions.rebuild import derive_everything
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from tests.conftest import NOW, home_without_verdicts

WARN = dg.AssetCheckSeverity.WARN


def test_the_gap_check_names_missing_ticks(small_home: Path, tmp_path: Path) -> None:
    known = LazyStores(small_home).stores
    golem = known.log.heads()["golem_id"][0].as_py()
    records = known.log.read_cycles(RECORD_SCHEMA.names, golems=[golem]).cast(RECORD_SCHEMA)
    home = LazyStores(tmp_path / "home")
    Home.create(home.root, Policy(), NOW)
    kept = records.filter(pc.invert(pc.is_in(records["tick"], value_set=pa.array([60, 61]))))
    home.stores.log.append(kept, writer="w", segment=1, recorded_at=NOW)
    check = no_cycle_waits_behind_a_gap(home)
    assert (check.passed, check.severity) == (False, WARN)
    assert f"| {golem} | 60 | 61 |" in check.metadata["gaps"].value


@pytest.mark.row("HB-4")
def test_the_reason_check_names_records_that_contradict_themselves(small_home: Path, tmp_path: Path) -> None:
    known = LazyStores(small_home)
    assert reasons_match_their_records(known).passed
    golem = known.stores.log.heads()["golem_id"][0].as_py()
    records = known.stores.log.read_cycles(RECORD_SCHEMA.names, golems=[golem]).cast(RECORD_SCHEMA).slice(0, 40)
    place = RECORD_SCHEMA.get_field_index("deliberation_threshold")
    lowered = records.set_column(place, RECORD_SCHEMA.field(place), pa.array([0.0] * len(records)))
    home = LazyStores(tmp_path / "home")
    Home.create(home.root, Policy(), NOW)
    home.stores.log.append(lowered, writer="w", segment=1, recorded_at=NOW)
    check = reasons_match_their_records(home)
    assert (check.passed, check.severity) == (False, WARN)
    assert check.metadata["record_count"].value == 40
    assert f"| {golem} | " in check.metadata["contradictions"].value
    assert "against threshold 0.0" in check.metadata["contradictions"].value


def test_the_confidence_check_counts_values_above_1(copied_home: Path) -> None:
    home = LazyStores(copied_home)
    assert confidence_is_a_probability(home).passed
    grimoire = home.stores.projections.replaceable("grimoire")
    rows = grimoire.read()
    place = rows.column_names.index("confidence_ppm")
    raised = pa.array([1_000_001, *rows["confidence_ppm"].to_pylist()[1:]], pa.int64())
    grimoire.replace(rows.set_column(place, rows.schema.field(place), raised), set(range(grimoire.bucket_count)))
    check = confidence_is_a_probability(home)
    assert (check.passed, check.severity) == (False, WARN)
    assert check.metadata["out_of_range_count"].value == 1


def test_the_playbook_check_names_golems_with_missing_versions(copied_home: Path) -> None:
    home = LazyStores(copied_home)
    assert playbook_versions_have_no_hole(home).passed
    table = home.stores.projections.growing("playbooks")
    golem = table.read(["golem_id"])["golem_id"][0].as_py()
    last = table.read(golems=[golem]).sort_by([("version", "descending")]).slice(0, 1)
    place = last.column_names.index("version")
    skipped = last.set_column(place, last.schema.field(place), pc.add(last["version"], 2))
    table.put(skipped.combine_chunks(), {"a-later-app": 1})
    result = playbook_versions_have_no_hole(home)
    assert (result.passed, result.severity) == (False, WARN)
    assert result.metadata["torn"].value == [golem]


@pytest.mark.row("P-5")
def test_the_candidate_check_counts_candidates_without_a_verdict(small_home: Path, tmp_path: Path) -> None:
    home = LazyStores(home_without_verdicts(small_home, tmp_path / "home"))
    derive_everything(home.stores, now=NOW)
    check = every_candidate_passed(home)
    assert (check.passed, check.severity) == (False, WARN)
    assert check.metadata["waiting_count"].value == home.stores.projections.digest("candidates").rows > 3


def test_the_quorum_check_shows_the_share_of_propositions(copied_home: Path) -> None:
    home = LazyStores(copied_home)
    assert some_proposition_has_its_quorum(home).passed, "no votes exist yet"
    derive_votes(home.stores)
    derive_consensus(home.stores)
    check = some_proposition_has_its_quorum(home)
    rows = home.stores.projections.read("consensus")
    met = pc.sum(rows["quorum_met"]).as_py()
    assert check.metadata["quorum_share"].value == met / rows.num_rows
    assert check.passed == (met > 0)
