"""Logs of older versions are read unchanged and accept new records."""

from __future__ import annotations

import hashlib
import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bardo_pipeline.curator.state.evidence import gather_evidence
from bardo_pipeline.curator.state.structures import Structures
from bardo_pipeline.errors import ForkError, SchemaVersionError
from bardo_pipeline.events.record.arrow_columns import upcast
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.events.record.model import SCHEMA_VERSION
from bardo_pipeline.events.record.row_digest import digest_column, row_digests
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.reason_checks import contradictions
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.event_log import EventLog
from tests.support.records.drawn_records import records

LOGS = Path(__file__).parent / "event_logs"
NOW = datetime(2026, 11, 20, tzinfo=UTC)
VERSIONS = sorted(path.name for path in LOGS.iterdir() if path.is_dir())


def hashed(row: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(row, sort_keys=True, default=str).encode()).hexdigest()


@pytest.fixture(params=VERSIONS)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    root = tmp_path / "home"
    shutil.copytree(LOGS / request.param, root)
    return root, json.loads((LOGS / f"{request.param}.json").read_text())


@pytest.mark.row("EV-1", "EV-2")
def test_every_row_reads_as_it_was_written(written: tuple[Path, dict[str, Any]]) -> None:
    root, expected = written
    with EventLog(Home.open(root)) as log:
        cycles = log.read_cycles().sort_by([("golem_id", "ascending"), ("tick", "ascending")])
        rows = [
            {
                "golem_id": row["golem_id"],
                "tick": row["tick"],
                "content_hash": row["content_hash"].hex(),
                "row_sha256": hashed({name: row[name] for name in expected["cycles_columns"]}),
            }
            for row in cycles.to_pylist()
        ]
        assert rows == expected["cycles"]
        again = digest_column(row_digests(cycles.select(RECORD_SCHEMA.names)))
        assert cycles["content_hash"].combine_chunks().equals(again), "an old record keeps its digest"
        life = [
            {
                "event_id": row["event_id"],
                "kind": row["kind"],
                "row_sha256": hashed({name: row[name] for name in expected["life_columns"]}),
            }
            for row in log.life().sort_by("event_id").to_pylist()
        ]
        assert life == expected["life"]


@pytest.mark.row("EV-2")
def test_an_old_log_accepts_records_of_the_current_schema(written: tuple[Path, dict[str, Any]]) -> None:
    root, expected = written
    with EventLog(Home.open(root)) as log:
        old = log.read_cycles(RECORD_SCHEMA.names).cast(RECORD_SCHEMA)
        again = log.append(old, writer="again", segment=1, recorded_at=NOW)
        assert (again.written, again.repeated) == (0, len(expected["cycles"]))
        with pytest.raises(ForkError):
            log.append(records(2, golems=2, tick=8, seed=99), writer="fork", segment=1, recorded_at=NOW)
        more = records(1, golems=1, tick=9, seed=3)
        assert log.append(more, writer="more", segment=1, recorded_at=NOW).written == 1
    assert json.loads((root / "home.json").read_text())["schema_version"] == SCHEMA_VERSION
    with EventLog(Home.open(root), Policy()) as log:
        assert len(log.read_cycles()) == len(expected["cycles"]) + 1
        assert log.read_cycles(golems=["golem-0000"])["tick"].to_pylist().count(9) == 1


@pytest.mark.row("HB-4", "EV-2")
def test_a_tick_that_attention_passed_over_before_version_4_keeps_its_tier_and_reason(tmp_path: Path) -> None:
    shutil.copytree(LOGS / "v3", tmp_path / "home")
    with EventLog(Home.open(tmp_path / "home")) as log:
        rows = upcast(log.read_cycles(RECORD_SCHEMA.names), RECORD_SCHEMA).to_pylist()
    over = [r for r in rows if r["golem_id"].startswith("g-") and r["prediction_error"] >= r["deliberation_threshold"]]
    assert [(r["schema_version"], r["tier"], r["forced_by"], r["gating_reason"]) for r in over] == [
        (3, "T0", None, "T0: surprise 0.4000 is below the threshold 0.3494")
    ]
    assert {r[name] for r in over for name in ("attention", "credit_partitions")} == {None}
    assert contradictions(pa.Table.from_pylist(over, RECORD_SCHEMA)) == []


@pytest.mark.row("HB-24", "EV-2")
def test_records_before_version_5_have_no_trials_and_keep_their_judged_decisions(tmp_path: Path) -> None:
    shutil.copytree(LOGS / "v4", tmp_path / "home")
    with EventLog(Home.open(tmp_path / "home")) as log:
        table = upcast(log.read_cycles(RECORD_SCHEMA.names), RECORD_SCHEMA)
    fleet = [r for r in table.to_pylist() if r["golem_id"].startswith("g-")]
    assert {(r["schema_version"], r["trials"]) for r in fleet} == {(4, None)}
    assert sorted(len(r["resolutions"]) for r in fleet) == [0, 0, 0, 1]
    assert contradictions(pa.Table.from_pylist(fleet, RECORD_SCHEMA)) == []
    golem, cycle = np.zeros((2, len(table)), np.int64)
    structures = Structures()
    gather_evidence(table, golem=golem, cycle=cycle, structures=structures, policy=Policy().curator)
    assert {row.source for row in structures.rows} == {"pattern", "baseline"}


@pytest.mark.row("HB-24", "EV-2")
def test_records_before_version_7_teach_half_widths_and_presence_alone(tmp_path: Path) -> None:
    shutil.copytree(LOGS / "v6", tmp_path / "home")
    with EventLog(Home.open(tmp_path / "home")) as log:
        table = upcast(log.read_cycles(RECORD_SCHEMA.names), RECORD_SCHEMA)
    fleet = table.filter(pa.compute.starts_with(table["golem_id"], "g-"))
    tried = {(t["choice"], t["horizon"]) for row in fleet.to_pylist() for t in row["trials"] or ()}
    assert tried >= {("presence", "4_hours"), ("width", "4_hours")}
    assert {choice for choice, _ in tried} == {"presence", "width"}
    assert contradictions(fleet) == []
    golem, cycle = np.zeros((2, len(fleet)), np.int64)
    structures = Structures()
    gather_evidence(fleet, golem=golem, cycle=cycle, structures=structures, policy=Policy().curator)
    assert {row.action_type for row in structures.rows if row.source == "choice"} == {
        "add_liquidity", "remove_liquidity",
    }  # fmt: skip


def test_rows_of_an_unknown_version_are_refused() -> None:
    table = pa.table({"golem_id": ["g"], "luck": [1]})
    with pytest.raises(SchemaVersionError, match="luck"):
        upcast(table, RECORD_SCHEMA)
