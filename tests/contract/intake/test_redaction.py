"""Redaction: private parts appear nowhere in plain text and are unreadable once their key is destroyed;
nothing else changes.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from bardo_pipeline.cli.app import app_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.event_stream.sources import Place
from bardo_pipeline.derivation.event_stream.watch import Fabric
from bardo_pipeline.derivation.versions.rebuild import derive_everything
from bardo_pipeline.errors import LeaseError, SealError
from bardo_pipeline.events.custody.sealing import PRIVATE, PrivateParts, SealKey, is_plain, open_parts, seal_table
from bardo_pipeline.events.life.events import LifeEvent, SealKeyMade, life_event
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA, to_models
from bardo_pipeline.events.record.validate import examine
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.intake.quarantine import Quarantine
from bardo_pipeline.storage.intake.quarantine_retry import retry
from bardo_pipeline.storage.intake.spool_folder import Spool
from bardo_pipeline.storage.journal.event_writer import EventWriter
from bardo_pipeline.storage.keys.golem_seal_keys import SealKeys, sealing_golems, states_of
from bardo_pipeline.storage.leases import Lease
from bardo_pipeline.storage.log.batch import Stamp
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.operations.backup import back_up, restore
from bardo_pipeline.storage.verification.verify import verify
from tests.doubles.memory_event_log import Log
from tests.support.processes.bardo_command import run
from tests.support.records.drawn_records import records
from tests.support.records.log_queries import GOLEM, NOW, OTHER
from tests.support.records.private_records import MARK, SECRET, models, private, some

pytestmark = pytest.mark.row("X-7")

LATER = datetime(2026, 11, 9, 12, 30, tzinfo=UTC)


def files_with_mark(home: Home) -> list[str]:
    """Return the files below a home that contain the mark, as raw bytes or in rows."""
    hits = []
    for path in sorted(p for p in home.root.rglob("*") if p.is_file()):
        raw = path.read_bytes()
        if MARK.encode() in raw or (path.suffix == ".parquet" and MARK in str(pq.read_table(path).to_pylist())):
            hits.append(str(path.relative_to(home.root)))
    return hits


# keys


def test_a_seal_key_is_stored_outside_the_log_with_mode_600(home: Home) -> None:
    with EventLog(home) as log:
        key = SealKeys(home).make(log, "../../etc/passwd", SECRET, NOW)
        path = SealKeys(home).path("../../etc/passwd")
        assert path.parent == home.keys
        assert (path.read_bytes(), path.stat().st_mode & 0o777, home.keys.stat().st_mode & 0o777) == (
            SECRET,
            0o600,
            0o700,
        )
        (state,) = states_of(home, log)
        assert (state.key_id, state.made_at, state.destroyed_at, state.present) == (key.key_id, NOW, None, True)
    assert SECRET not in b"".join(p.read_bytes() for p in home.root.rglob("*") if p.is_file() and p != path)


def test_a_destroyed_key_is_recorded_with_day_and_reason_and_can_be_replaced(home: Home) -> None:
    keys = SealKeys(home)
    with EventLog(home) as log:
        first = keys.make(log, GOLEM, SECRET, NOW)
        with pytest.raises(SealError, match="destroy it before you make another"):
            keys.make(log, GOLEM, SECRET, NOW)
        second_name = home.root / "another name of the same file"
        second_name.hardlink_to(keys.path(GOLEM))
        keys.destroy(log, GOLEM, "the owner asked", LATER)
        assert not keys.path(GOLEM).exists()
        assert second_name.read_bytes() == bytes(32), "the bytes are overwritten, not only unlinked"
        with pytest.raises(SealError, match=r"the key was destroyed on 2026-11-09 12:30 UTC \(the owner asked\)"):
            keys.to_open(log, GOLEM, first.key_id)
        with pytest.raises(SealError, match="nothing to destroy"):
            keys.destroy(log, GOLEM, "again", LATER)
        second = keys.make(log, GOLEM, SECRET[::-1], LATER)
        assert keys.in_force(log, GOLEM).key_id == second.key_id
        with pytest.raises(SealError, match="destroyed on"):
            keys.to_open(log, GOLEM, first.key_id)
        with pytest.raises(SealError, match="no seal key on record"):
            keys.in_force(log, OTHER)


def test_an_interrupted_key_operation_can_be_repeated(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = SealKeys(home)
    with EventLog(home) as log:
        with monkeypatch.context() as cut:
            cut.setattr(log, "record", _fail)
            with pytest.raises(OSError, match="cut"):
                keys.make(log, GOLEM, SECRET, NOW)
        assert keys.make(log, GOLEM, SECRET[::-1], NOW).secret == SECRET, "the key on file counts"
        with monkeypatch.context() as cut:
            cut.setattr("bardo_pipeline.storage.keys.golem_seal_keys._overwrite", _fail)
            with pytest.raises(OSError, match="cut"):
                keys.destroy(log, GOLEM, "asked", LATER)
        with pytest.raises(SealError, match="destroyed on"):
            keys.in_force(log, GOLEM)
        keys.destroy(log, GOLEM, "asked", LATER)
        assert not keys.path(GOLEM).exists()
        assert len(log.life("SealKeyDestroyed")) == 1


def _fail(*_: object, **__: object) -> int:
    raise OSError("cut")


def test_an_invalid_key_file_is_named(home: Home) -> None:
    keys = SealKeys(home)
    with EventLog(home) as log:
        keys.make(log, GOLEM, SECRET, NOW)
        keys.path(GOLEM).write_bytes(b"x")
        assert [state.present for state in states_of(home, log)] == [False]
        with pytest.raises(SealError, match="is not a seal key"):
            keys.in_force(log, GOLEM)
        keys.path(GOLEM).write_bytes(SECRET[::-1])
        with pytest.raises(SealError, match="does not hold key"):
            keys.in_force(log, GOLEM)


# the log


def test_the_log_refuses_plain_private_parts_of_sealing_golems_only(log: Log) -> None:
    before = some(2, golems=2)
    log.append(before, writer="w", segment=1, recorded_at=NOW)
    log.record([life_event(GOLEM, NOW, SealKeyMade(key_id=SealKey(SECRET).key_id))], NOW)
    assert sealing_golems(log) == {GOLEM}
    assert log.append(before, writer="w", segment=2, recorded_at=NOW).repeated == 2, (
        "plain records from before are repeats"
    )
    fresh = some(4, golems=2, tick=2)
    with pytest.raises(SealError, match=f"golem {GOLEM}: tick 2 has private parts in plain text"):
        log.append(fresh, writer="w", segment=3, recorded_at=NOW)
    admitted = log.admit(examine(fresh), Stamp("w", 3, NOW))
    assert admitted.appended.written == 2
    assert [(row, type(error)) for row, error in admitted.refused.items()] == [(0, SealError), (2, SealError)]
    sealed = seal_table(fresh, {GOLEM: SealKey(SECRET)})
    assert log.append(sealed, writer="w", segment=4, recorded_at=NOW).written == 2
    assert log.append(sealed, writer="w", segment=5, recorded_at=NOW).repeated == 4


def test_making_a_seal_key_is_refused_while_the_golem_is_leased(home: Home) -> None:
    with EventLog(home) as log:
        lease = Lease(home, GOLEM, "somebody")
        with pytest.raises(LeaseError, match="somebody"):
            SealKeys(home).make(log, GOLEM, SECRET, NOW)
        lease.release()
        assert SealKeys(home).make(log, GOLEM, SECRET[::-1], NOW).secret == SECRET, "the first try left its key"


# writer and spool


def sealing_home(home: Home) -> SealKey:
    with EventLog(home) as log:
        return SealKeys(home).make(log, GOLEM, SECRET, NOW)


def on_record(home: Home, golem_id: str = GOLEM) -> list[dict]:
    with EventLog(home) as log:
        return sorted(log.read_cycles(golems=[golem_id]).to_pylist(), key=lambda row: row["tick"])


def opened_parts(home: Home, row: dict) -> PrivateParts:
    (record,) = models(pa.Table.from_pylist([row], schema=RECORD_SCHEMA))
    assert record.sealed is not None
    return open_parts(record.sealed, record.golem_id, record.tick, SealKey(SECRET))


def test_a_writer_seals_private_parts_before_writing_them(home: Home) -> None:
    sealing_home(home)
    private_records = models(some(6))
    with EventWriter.open(home, GOLEM, clock=lambda: NOW) as writer:
        for record in private_records[:3]:
            writer.append(record)
        for record in private_records[3:]:
            writer.append(record.model_dump_json().encode())
        assert files_with_mark(home) == [], "the journal holds no plain text"
        assert writer.append(private_records[0]).repeated
    assert files_with_mark(home) == []
    rows = on_record(home)
    assert [opened_parts(home, row).reasoning_summary for row in rows] == [MARK] * 6
    assert all(MARK not in row["payload"].decode() for row in rows)
    assert verify(home).clean


def test_a_writer_without_the_key_refuses_only_records_with_private_parts(home: Home) -> None:
    sealing_home(home)
    with EventLog(home) as log:
        SealKeys(home).destroy(log, GOLEM, "asked", LATER)
    first, second = models(some(2))
    bare = second.model_copy(
        update={
            "observation": second.observation.model_copy(update={"positions": ()}),
            "deliberation": second.deliberation and second.deliberation.model_copy(update={"reasoning_summary": ""}),
        }
    )
    with EventWriter.open(home, GOLEM, clock=lambda: NOW) as writer:
        with pytest.raises(SealError, match="destroyed on 2026-11-09"):
            writer.append(first)
        writer.append(bare)
    assert [row["tick"] for row in on_record(home)] == [2]
    assert files_with_mark(home) == []


def taken(home: Home, *, policy: Policy | None = None) -> Quarantine:
    with EventLog(home) as log:
        spool = Spool(home, log, policy)
        assert list(spool.take(NOW))
        return spool.quarantine


def test_the_spool_seals_lines_and_quarantines_no_private_text(home: Home) -> None:
    sealing_home(home)
    private_lines = [record.model_dump_json().encode() for record in models(some(8))]
    other_lines = [record.model_dump_json().encode() for record in models(records(4, golems=2, seed=9).filter(
        pc.equal(records(4, golems=2, seed=9)["golem_id"], OTHER)))]  # fmt: skip
    long = json.loads(private_lines[0])
    long["tick"], long["deliberation"]["reasoning_summary"] = 40, MARK * 10_000  # quoted in the schema's own error
    lines = [
        *private_lines[:4],
        private_lines[4][:-20],  # truncated
        orjson.dumps(json.loads(private_lines[5]) | {"tick": 0}),  # out of range
        orjson.dumps(long),
        orjson.dumps(json.loads(private_lines[6]) | {"golem_id": 7}),
        private_lines[7].replace(b'"', b"'"),
        *other_lines,
        b'{"golem_id":"golem-0001","oops":1}',
    ]
    (home.spool / "records.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    quarantine = taken(home)
    assert files_with_mark(home) == []
    rows = on_record(home)
    assert [row["tick"] for row in rows] == [1, 2, 3, 4]
    assert all(opened_parts(home, row).positions[0].pair == MARK for row in rows)
    assert len(on_record(home, OTHER)) == 2
    kept = [quarantine.show(item_id) for item_id in quarantine.open()["item_id"].to_pylist()]
    assert len(kept) == 6
    assert [item.raw for item in kept if item.golem_id == OTHER] == [b'{"golem_id":"golem-0001","oops":1}']
    assert all(item.raw == b"" and "seals its private parts" in item.reason for item in kept if item.golem_id != OTHER)


def test_the_spool_seals_arrow_batches_and_keeps_no_unreadable_file(home: Home) -> None:
    sealing_home(home)
    table = some(4)
    with pa.OSFile(str(home.spool / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, RECORD_SCHEMA) as out:
        out.write_table(table)
    raw = (home.spool / "a.arrow").read_bytes()
    (home.spool / "b.arrow").write_bytes(raw[: len(raw) // 2] + MARK.encode())
    quarantine = taken(home)
    assert files_with_mark(home) == []
    assert [opened_parts(home, row).reasoning_summary for row in on_record(home)] == [MARK] * 4
    (item,) = (quarantine.show(item_id) for item_id in quarantine.open()["item_id"].to_pylist())
    assert (item.file, item.raw) == ("b.arrow", b"")


def test_an_oversized_line_of_a_sealing_golem_is_not_kept(home: Home) -> None:
    sealing_home(home)
    policy = Policy.model_validate({"writer": {"record_bytes_max": 2_000}})
    (home.spool / "long.jsonl").write_bytes(models(some(1))[0].model_dump_json().encode() + b"\n")
    quarantine = taken(home, policy=policy)
    assert files_with_mark(home) == []
    assert quarantine.open()["raw_bytes"].to_pylist() == [0]


def test_without_sealing_golems_quarantine_keeps_every_byte(home: Home) -> None:
    line = models(some(1))[0].model_dump_json().encode()[:-9]
    (home.spool / "torn.jsonl").write_bytes(line + b"\n")
    quarantine = taken(home)
    assert [quarantine.show(item_id).raw for item_id in quarantine.open()["item_id"].to_pylist()] == [line]


@pytest.mark.parametrize("form", ["lines", "arrow"])
def test_older_quarantined_records_are_sealed_when_they_are_retried(home: Home, form: str) -> None:
    lease = Lease(home, GOLEM, "somebody")
    if form == "lines":
        (home.spool / "a.jsonl").write_bytes(models(some(1))[0].model_dump_json().encode() + b"\n")
    else:
        with pa.OSFile(str(home.spool / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, RECORD_SCHEMA) as out:
            out.write_table(some(1))
    quarantine = taken(home)
    lease.release()
    sealing_home(home)
    with EventLog(home) as log:
        (item_id,) = quarantine.open()["item_id"].to_pylist()
        assert retry(log, quarantine, [item_id], at=LATER, policy=Policy()).taken == [item_id]
    assert [opened_parts(home, row).reasoning_summary for row in on_record(home)] == [MARK]
    assert {name.split("/")[1] for name in files_with_mark(home)} == {"quarantine"}, (
        "the quarantined bytes are older than the seal key"
    )


# derived tables


def digests(root: Path) -> dict[str, str]:
    """Return the fingerprints of every table derived from a home's log."""
    stores = DerivationContext.open(root)
    derive_everything(stores, now=NOW)
    return {name: stores.projections.digest(name).fingerprint for name in TABLES}


def redone(root: Path, target: Path, change: Callable[[pa.Table], pa.Table]) -> Path:
    """Return a new home with the same lives and changed records, from which nothing is derived yet."""
    source_tables, home = DerivationContext.open(root), Home.create(target, Policy(), NOW)
    events = to_models(source_tables.log.life(), LifeEvent)
    for bundle_hash in {e.born.bundle_hash for e in events if e.born is not None and e.born.bundle_hash is not None}:
        shutil.copytree(source_tables.home.bundles / bundle_hash, home.bundles / bundle_hash)
    rows = source_tables.log.read_cycles(RECORD_SCHEMA.names).cast(RECORD_SCHEMA)
    with EventLog(home) as log:
        log.record([event for event in events if event.kind not in ("BundleJudged", "BundlePublished")], NOW)
        log.append(change(rows), writer="copy", segment=1, recorded_at=NOW)
    return target


def emptied(rows: pa.Table) -> pa.Table:
    """Return the records with their private parts removed."""
    lean = rows.to_pylist()
    for row in lean:
        row["observation"]["positions"] = []
        if row["deliberation"] is not None:
            row["deliberation"]["reasoning_summary"] = ""
    return pa.Table.from_pylist(lean, schema=RECORD_SCHEMA)


@pytest.mark.full
def test_no_table_except_dreams_depends_on_private_parts(small_home: Path, tmp_path: Path) -> None:
    plain = redone(small_home, tmp_path / "plain", lambda rows: rows)
    bare = redone(small_home, tmp_path / "bare", emptied)
    assert is_plain(EventLog(Home.open(plain)).read_cycles(RECORD_SCHEMA.names)).any()
    assert not is_plain(EventLog(Home.open(bare)).read_cycles(RECORD_SCHEMA.names)).any()
    derived = digests(plain)
    assert {n for n, digest in digests(bare).items() if digest != derived[n]} == {"dreams"}, (
        "dreams are derived from positions"
    )
    assert len(set(derived.values())) > 6, "there is something to derive"
    texts = [
        [e.model_copy(update={"position": ""}) for e in Fabric(DerivationContext.open(r)).behind(Place())]
        for r in (plain, bare)
    ]
    assert texts[0] == texts[1]


@pytest.mark.full
def test_a_destroyed_key_changes_no_fingerprint_no_count_and_no_link(brief_home: Path, tmp_path: Path) -> None:
    golems = EventLog(Home.open(brief_home)).heads()["golem_id"].to_pylist()
    keys = {golem_id: SealKey(golem_id.encode().ljust(32, b"*")) for golem_id in golems}
    root = redone(brief_home, tmp_path / "sealed", lambda rows: seal_table(private(rows), keys))
    home = Home.open(root)
    assert files_with_mark(home) == []
    with EventLog(home) as log:
        count = len(log.read_cycles(["tick"]))
        for golem_id, key in keys.items():
            SealKeys(home).make(log, golem_id, key.secret, NOW)
    derived = digests(root)
    with EventLog(home) as log:
        for golem_id in golems:
            SealKeys(home).destroy(log, golem_id, "asked", LATER)
            assert not SealKeys(home).path(golem_id).exists()
        assert len(log.read_cycles(["tick"])) == count
    assert verify(home).clean
    rebuilt = CliRunner().invoke(app_of("rebuild"), ["rebuild", "--home", str(root)])
    assert rebuilt.exit_code == 0, rebuilt.stdout
    assert digests(root) == derived
    assert files_with_mark(home) == []


def test_no_mart_reads_private_parts() -> None:
    models_of_dbt = Path(__file__).parents[3] / "dbt" / "models"
    sql = "".join(path.read_text() for path in sorted(models_of_dbt.rglob("*.sql")))
    assert "payload" not in sql
    assert not [path for path in PRIVATE if path.split(".")[1] in sql]


def test_a_backup_holds_sealed_parts_and_no_key(home: Home, tmp_path: Path) -> None:
    sealing_home(home)
    with EventWriter.open(home, GOLEM, clock=lambda: NOW) as writer:
        for record in models(some(3)):
            writer.append(record)
    back_up(home, tmp_path / "copy", NOW)
    assert SECRET not in b"".join(path.read_bytes() for path in (tmp_path / "copy").rglob("*") if path.is_file())
    restored, _ = restore(tmp_path / "copy", tmp_path / "again", NOW)
    assert files_with_mark(restored) == []
    with EventLog(restored) as log, pytest.raises(SealError, match="does not hold key"):
        SealKeys(restored).in_force(log, GOLEM)
    assert [opened_parts(restored, row).reasoning_summary for row in on_record(restored)] == [MARK] * 3


# the command


def bardo(home: Home, *arguments: str) -> tuple[int, str]:
    done = run([*arguments, "--home", str(home.root)], os.environ | {"COLUMNS": "200"})
    return done.returncode, done.stdout + done.stderr


@pytest.mark.full
def test_the_seal_command_makes_opens_lists_and_destroys_keys(home: Home) -> None:
    assert bardo(home, "seal", "make", GOLEM)[0] == 0
    with EventWriter.open(home, GOLEM, clock=lambda: NOW) as writer:
        writer.append(models(some(1))[0])
    code, output = bardo(home, "seal", "open", GOLEM, "1")
    assert (code, orjson.loads(output)["reasoning_summary"]) == (0, MARK)
    assert "no record of tick 9" in bardo(home, "seal", "open", GOLEM, "9")[1]
    assert GOLEM in bardo(home, "seal", "list")[1]
    assert bardo(home, "seal", "destroy", GOLEM, "--why", "the owner asked")[0] == 0
    code, output = bardo(home, "seal", "open", GOLEM, "1")
    assert code == 2
    assert "the key was destroyed on" in output
    assert "cannot be recovered" in output
    assert "the owner asked" in bardo(home, "seal", "list")[1]
    assert files_with_mark(home) == []
