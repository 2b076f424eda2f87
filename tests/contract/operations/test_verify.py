"""Verification: an unchanged log has no finding, and each changed file or row is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bardo_pipeline.errors import ConfigError, StoreError
from bardo_pipeline.events.custody.hash_chain import content_of, link_of
from bardo_pipeline.events.life.events import Gap, KeyRevoked, Struck, life_event
from bardo_pipeline.policy import CarePolicy, Policy
from bardo_pipeline.storage.delta.checksum_manifest import Sums, read_sums
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal.drainer import drain_once
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.log.protocol import LIFE_LOG_SCHEMA
from bardo_pipeline.storage.operations.maintenance import maintain
from bardo_pipeline.storage.verification.verify import verify
from tests.support.homes import tampered_homes
from tests.support.homes.tampered_homes import ARROW, JSON, NOW, append, change, data_files, forge, named, place

GOLDEN = Path(__file__).parents[2] / "golden" / "event_logs"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tampered_homes.make(tmp_path_factory.mktemp("custody") / "home").root


@pytest.fixture
def home(kept: Path, tmp_path: Path) -> Home:
    shutil.copytree(kept, tmp_path / "home")
    return Home.open(tmp_path / "home")


# clean homes


@pytest.mark.row("EV-3")
def test_an_unchanged_home_is_clean(home: Home) -> None:
    report = verify(home)
    assert report.clean, [broken.sentence() for broken in report.breaks]
    assert report.facts["records"] == 33
    assert report.facts["links"] == 4 * 2 + 9
    assert report.facts["signatures"] == 4
    assert (report.facts["records in journals"], report.facts["stale leases"]) == (4, 1)
    assert (report.facts["in quarantine"], report.facts["bundles"]) == (1, 1)
    assert report.facts["commits without a sum"] == 0


@pytest.mark.row("EV-1", "EV-3")
@pytest.mark.parametrize("version", sorted(path.name for path in GOLDEN.iterdir() if path.is_dir()))
def test_a_log_of_an_older_version_is_clean_before_and_after_an_append(version: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / version, tmp_path / "home")
    home = Home.open(tmp_path / "home")
    before = verify(home)
    assert before.clean, [broken.sentence() for broken in before.breaks]
    with EventLog(home) as log:
        log.append(tampered_homes.batch(1, prefix="young"), writer="late", segment=1, recorded_at=NOW)
    report = verify(home)
    assert report.clean, [broken.sentence() for broken in report.breaks]
    assert report.facts["records"] == before.facts["records"] + 6
    unlinked = before.facts["records"] if version == "v1" else 0  # version 2 introduced links
    assert report.facts["records without a link"] == before.facts["records without a link"] == unlinked


def test_a_home_is_clean_after_its_journals_are_drained(home: Home) -> None:
    with EventLog(home) as log:
        assert drain_once(home, log, clock=tampered_homes.clock).records == 4
    report = verify(home)
    assert report.clean, [broken.sentence() for broken in report.breaks]
    assert (report.facts["records"], report.facts["records in journals"], report.facts["stale leases"]) == (37, 0, 0)


def test_a_maintained_log_is_clean_and_keeps_its_digest(home: Home) -> None:
    before, files = verify(home), data_files(home)
    policy = Policy(care=CarePolicy(log_commits_kept=1, grace_seconds=1.0, lookback_ticks=1))
    for days in range(1, 4):
        with EventLog(home) as log:
            maintain(home, log, policy, now=NOW + timedelta(days=1_000 * days), in_force=())
            append(log, 10 + 3 * days)
        report = verify(home, expect=before.digest)
        assert report.clean, [broken.sentence() for broken in report.breaks]
    assert not tampered_homes.commits(home)[0].name.startswith("0" * 20), "it must have been trimmed"
    assert not any(path.exists() for path in files), "they must have been swept"
    last = next(home.cycles.rglob("*/part-*.parquet"))
    content = last.read_bytes()
    last.write_bytes(content[:50] + bytes([content[50] ^ 4]) + content[51:])
    assert place(home, last) in verify(home).files


@pytest.mark.full
@pytest.mark.row("EV-3")
def test_a_log_is_clean_during_writes_drains_and_compactions(home: Home) -> None:
    with tampered_homes.busy_writer(home) as acknowledged, EventLog(home) as log:
        for tick in range(200, 3_001, 900):
            acknowledged(tick)
            maintain(home, log, Policy(), now=NOW, in_force=())
            report = verify(home)
            assert report.clean, [broken.sentence() for broken in report.breaks]


def test_a_slice_in_two_files_counts_as_one_link(home: Home) -> None:
    path = data_files(home, ARROW)[0]
    rows = pq.read_table(path)
    other = data_files(home, ARROW)[1]
    tampered_homes.write(home, other, pa.concat_tables([pq.read_table(other), rows.slice(0, 1)]))
    tampered_homes.write(home, path, rows.slice(1))
    report = verify(home)
    assert {broken.kind for broken in report.breaks} == {"version", "stats"}, "a row contains the version of its commit"
    assert report.facts["links"] == 4 * 2 + 9


def test_gaps_are_reported_until_they_are_accepted(home: Home) -> None:
    with EventLog(home) as log:
        append(log, 20)
        report = verify(home)
        assert report.clean
        assert [(gap.golem_id, gap.tick_from, gap.tick_to) for gap in report.gaps] == [
            (ARROW, 13, 19),
            (tampered_homes.SIGNED, 13, 19),
        ]
        log.record([life_event(ARROW, NOW, Gap(tick_from=13, tick_to=19, why="lost"))], NOW)
    assert [gap.golem_id for gap in verify(home).gaps] == [tampered_homes.SIGNED]


# the digest of the fleet


@pytest.mark.full
@pytest.mark.row("EV-3", "X-9")
def test_an_earlier_digest_matches_a_longer_log_but_not_a_truncated_log(home: Home) -> None:
    before = verify(home).digest
    with EventLog(home) as log:
        append(log, 13)
    assert verify(home, expect=before).clean, "the earlier records are still in the log"
    assert named(verify(home, expect=before.split(":")[1]), "digest of the fleet"), (
        "a digest without a version is compared with the newest version"
    )
    after = verify(home).digest
    last = tampered_homes.commits(home)[-1]
    for add in tampered_homes.adds(last):
        (home.cycles / add["path"]).unlink()
    last.unlink()
    assert named(verify(home), "commit").file == place(home, last), "the list of sums names the removed commit"
    tampered_homes.rewrite_checksums(home)
    assert verify(home).clean, "the log itself no longer names the removed commit"
    assert not verify(home, expect=after).clean
    assert verify(home, expect=before).clean


def test_an_invalid_digest_is_refused(home: Home) -> None:
    with pytest.raises(ConfigError, match="VERSION:HEX"):
        verify(home, expect="12")


# rows and links


def test_an_edited_cell_of_a_batch_breaks_its_link(home: Home) -> None:
    path = data_files(home, ARROW)[0]
    forge(home, path, lambda rows: [row | {"credits_micros": row["credits_micros"] + 1} for row in rows])
    breaks = named(verify(home), "link")
    assert (breaks.golem_id, breaks.number, breaks.file) == (ARROW, 1, place(home, path))


def test_an_edited_cell_that_differs_from_its_payload_is_reported(home: Home) -> None:
    path = data_files(home, JSON)[1]
    forge(home, path, change(credits_micros=7))
    breaks = named(verify(home), "payload")
    assert (breaks.golem_id, breaks.tick, breaks.number) == (JSON, 6, 6)


def test_an_edited_payload_with_matching_columns_breaks_its_link(home: Home) -> None:
    path = data_files(home, JSON)[0]

    def edited(rows: tampered_homes.Rows) -> tampered_homes.Rows:
        document = orjson.loads(rows[1]["payload"]) | {"credits_micros": 7}
        rows[1] |= {"credits_micros": 7, "payload": orjson.dumps(document)}
        return rows

    forge(home, path, edited)
    breaks = named(verify(home), "link")
    assert (breaks.golem_id, breaks.tick, breaks.number) == (JSON, 2, 2)


def test_a_rebuilt_chain_of_an_edited_file_breaks_at_the_next_file(home: Home) -> None:
    path = data_files(home, JSON)[0]

    def edited(rows: tampered_homes.Rows) -> tampered_homes.Rows:
        document = orjson.loads(rows[1]["payload"]) | {"credits_micros": 7}
        rows[1] |= {"credits_micros": 7, "payload": orjson.dumps(document)}
        return tampered_homes.relinked(rows, JSON)

    forge(home, path, edited)
    breaks = named(verify(home), "chain")
    assert (breaks.golem_id, breaks.tick, breaks.number) == (JSON, 4, 4)


def test_an_altered_content_hash_is_reported(home: Home) -> None:
    path = data_files(home, JSON)[0]
    table = pq.read_table(path)
    at = table.schema.get_field_index("content_hash")
    zeros = pa.array([bytes(16)] * len(table), pa.binary())
    tampered_homes.write(home, path, table.set_column(at, table.schema.field(at), zeros))
    assert named(verify(home), "digest").tick == 1


def test_a_row_removed_from_a_batch_breaks_its_link(home: Home) -> None:
    path = data_files(home, ARROW)[1]
    forge(home, path, lambda rows: rows[1:])
    assert named(verify(home), "link").number == 2


def test_a_removed_single_record_breaks_the_chain(home: Home) -> None:
    path = data_files(home, JSON)[1]
    forge(home, path, lambda rows: rows[:1] + rows[2:])
    report = verify(home)
    breaks = named(report, "chain")
    assert (breaks.golem_id, breaks.tick, breaks.number) == (JSON, 6, 6)
    assert [(gap.tick_from, gap.tick_to) for gap in report.gaps] == [(5, 5)]


def test_swapped_single_records_break_their_links(home: Home) -> None:
    path = data_files(home, JSON)[0]

    def swapped(rows: tampered_homes.Rows) -> tampered_homes.Rows:
        rows[0]["link"], rows[1]["link"] = rows[1]["link"], rows[0]["link"]
        return rows

    forge(home, path, swapped)
    assert named(verify(home), "link").golem_id == JSON


def test_an_inserted_record_breaks_the_chain(home: Home) -> None:
    path, line = data_files(home, JSON)[0], tampered_homes.lines(50, 1)[0]

    def slipped(rows: tampered_homes.Rows) -> tampered_homes.Rows:
        before = rows[0]["link"]
        link = link_of(JSON, 2, before["hash"], content_of(line))
        forged = rows[0] | {"tick": 50, "payload": line}
        fields = {"number": 2, "previous": before["hash"], "hash": link, "key_id": None, "signature": None}
        return [rows[0], forged | {"link": fields}, *rows[1:]]

    forge(home, path, slipped)
    breaks = named(verify(home), "chain")
    assert (breaks.golem_id, breaks.number) == (JSON, 2)
    assert "two links" in breaks.fact


def test_a_record_without_a_link_is_reported(home: Home) -> None:
    path = data_files(home, JSON)[0]
    forge(home, path, lambda rows: [*rows, rows[0] | {"tick": 50, "link": None, "payload": None}])
    assert named(verify(home), "link").tick == 50


def test_a_duplicate_tick_is_reported(home: Home) -> None:
    first, other = data_files(home, JSON)[:2]
    row = pq.read_table(first).to_pylist()[0]
    forge(home, other, lambda rows: [*rows, row])
    breaks = named(verify(home), "duplicate")
    assert (breaks.golem_id, breaks.tick) == (JSON, 1)


def test_a_file_with_nulls_in_a_required_column_is_reported(home: Home) -> None:
    path = data_files(home, JSON)[0]
    table = pq.read_table(path)
    at = table.schema.get_field_index("tick")
    lacking = pa.array([None, 2, 3], pa.int64())
    tampered_homes.write(home, path, table.set_column(at, pa.field("tick", pa.int64()), lacking))
    breaks = named(verify(home), "file")
    assert breaks.file == place(home, path)
    assert "tick" in breaks.fact


def test_a_row_in_a_wrong_bucket_is_reported(home: Home) -> None:
    forge(home, data_files(home, JSON)[0], change(bucket=99))
    assert named(verify(home), "bucket").tick == 3


# signatures and keys


@pytest.mark.row("X-9")
def test_a_batch_with_a_wrong_or_missing_signature_is_reported(home: Home) -> None:
    path, other = data_files(home, tampered_homes.SIGNED)[0], Ed25519PrivateKey.from_private_bytes(bytes(32))

    def signed_by(value: bytes | None) -> Callable[[tampered_homes.Rows], tampered_homes.Rows]:
        key_id = None if value is None else tampered_homes.KEY_ID
        fields = {"signature": value, "key_id": key_id}
        return lambda rows: [
            row | ({"link": row["link"] | fields} if row["golem_id"] == tampered_homes.SIGNED else {}) for row in rows
        ]

    forge(home, path, signed_by(other.sign(b"anything")))
    assert "did not make" in named(verify(home), "signature").fact
    forge(home, path, signed_by(None))
    breaks = named(verify(home), "signature")
    assert (breaks.golem_id, breaks.number) == (tampered_homes.SIGNED, 1)
    assert "is not signed" in breaks.fact


@pytest.mark.row("X-9")
def test_a_record_signed_with_a_revoked_key_is_reported_until_it_is_struck(home: Home) -> None:
    with EventLog(home) as log:
        log.record(
            [
                life_event(
                    tampered_homes.SIGNED,
                    NOW,
                    KeyRevoked(key_id=tampered_homes.KEY_ID, tick_from=12, why="it was stolen"),
                )
            ],
            NOW,
        )
        assert "revoked from tick 12" in named(verify(home), "signature").fact
        log.record([life_event(tampered_homes.SIGNED, NOW, Struck(tick=12, why="nobody knows who wrote it"))], NOW)
    assert verify(home).clean


@pytest.mark.row("X-9")
def test_an_invalid_key_event_and_an_edited_life_event_are_reported(home: Home) -> None:
    path = next(home.life.glob("part-*"))
    rows = pq.read_table(path).to_pylist()
    key = next(row for row in rows if row["kind"] == "KeyRegistered")
    key["key_registered"]["public_key"] = "00" * 32
    again = life_event(
        tampered_homes.SIGNED, NOW, tampered_homes.KeyRegistered(key_id="key-2", public_key="11" * 32, tick_from=1)
    )
    rows.append(again.model_dump() | {"recorded_at": NOW})
    pq.write_table(pa.Table.from_pylist(rows, schema=LIFE_LOG_SCHEMA), path)
    report = verify(home)
    assert named(report, "life event").golem_id == tampered_homes.SIGNED
    assert named(report, "key").golem_id == tampered_homes.SIGNED
    assert named(report, "signature").golem_id == tampered_homes.SIGNED
    assert named(report, "rows").file == place(home, path)


# tables


def test_a_missing_data_file_is_reported(home: Home) -> None:
    path = data_files(home)[2]
    path.unlink()
    breaks = named(verify(home), "file")
    assert breaks.file == place(home, path)
    assert "missing" in breaks.fact


def test_two_swapped_files_are_reported(home: Home) -> None:
    first, other = data_files(home, JSON)[:2]
    kept = first.read_bytes()
    first.write_bytes(other.read_bytes())
    other.write_bytes(kept)
    report = verify(home)
    assert named(report, "sum").file in {place(home, first), place(home, other)}
    assert report.counts["sum"] == 2
    tampered_homes.rewrite_checksums(home)
    assert named(verify(home), "version"), "rows contain the version of their commit"


def test_a_missing_commit_is_reported(home: Home) -> None:
    path = tampered_homes.commits(home)[3]
    path.unlink()
    assert named(verify(home), "commit").file == place(home, path)


def test_a_disabled_append_only_flag_and_a_removed_file_are_reported(home: Home) -> None:
    first, last = tampered_homes.commits(home)[0], tampered_homes.commits(home)[-1]
    content = first.read_bytes().replace(b'"delta.appendOnly":"true"', b'"delta.appendOnly":"false"')
    first.write_bytes(content)
    gone = orjson.dumps({"remove": {"path": data_files(home)[0].name, "dataChange": True}})
    last.write_bytes(last.read_bytes() + gone + b"\n")
    tampered_homes.rewrite_checksums(home)
    report = verify(home)
    assert named(report, "append-only").file == place(home, first)
    assert named(report, "removed").file == place(home, last)


def test_a_transaction_with_a_lower_version_is_reported(home: Home) -> None:
    last = tampered_homes.commits(home)[-1]
    again = orjson.dumps({"txn": {"appId": "spool", "version": 1}})
    last.write_bytes(last.read_bytes() + again + b"\n")
    assert named(verify(home), "transaction").file == place(home, last)


def test_a_commit_with_wrong_bounds_or_row_counts_is_reported(home: Home) -> None:
    path = tampered_homes.commits(home)[2]
    text = path.read_text()
    path.write_text(text.replace('\\"numRecords\\":3', '\\"numRecords\\":4').replace('\\"tick\\":1', '\\"tick\\":2'))
    report = verify(home)
    assert named(report, "rows").file == named(report, "stats").file
    assert named(report, "sum").file == place(home, path)


def test_a_checkpoint_that_differs_from_its_commits_is_reported(home: Home) -> None:
    path = next((home.cycles / "_delta_log").glob("*.checkpoint.parquet"))
    table = pq.read_table(path)
    added = table["add"].is_valid().to_pylist().index(True)
    pq.write_table(pa.concat_tables([table.slice(0, added), table.slice(added + 1)]), path)
    (path.parent / "_last_checkpoint").unlink()
    Sums(home, home.cycles).path.unlink()
    Sums(home, home.cycles).catch_up()
    assert named(verify(home), "checkpoint").file == place(home, path)


# sums


def test_an_append_lists_the_sums_of_its_commit_and_files(home: Home) -> None:
    with EventLog(home) as log:
        append(log, 13)
        listed = read_sums(Sums(home, home.cycles).path)
    assert not listed.faults
    assert {place(home, path).removeprefix("log/") for path in tampered_homes.commits(home)} <= set(listed.sums)
    assert {place(home, path).removeprefix("log/") for path in data_files(home)} <= set(listed.sums)


def test_a_removed_line_of_the_list_of_sums_is_reported(home: Home) -> None:
    path = Sums(home, home.cycles).path
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:3] + whole[4:]))
    breaks = named(verify(home), "sums")
    assert breaks.file == place(home, path)
    assert "line 4" in breaks.fact


def test_a_torn_list_of_sums_is_repaired_when_the_log_is_opened(home: Home) -> None:
    path = Sums(home, home.cycles).path
    content, known = path.read_bytes(), read_sums(path).sums
    path.write_bytes(content[:-40])
    assert named(verify(home), "sums")
    with EventLog(home):
        assert read_sums(path).sums == known
    assert verify(home).clean


def test_a_missing_list_of_sums_is_reported_unless_the_log_is_short(home: Home) -> None:
    Sums(home, home.cycles).path.unlink()
    assert verify(home).clean, "after crashes, each of so few commits may lack its line"
    assert verify(home).facts["commits without a sum"] == 8
    with EventLog(home) as log:
        append(log, 13)
        append(log, 16)
    Sums(home, home.cycles).path.unlink()
    assert "cannot be seen" in named(verify(home), "sums").fact


# beside the tables


def test_a_flipped_bit_in_the_last_frame_is_reported_and_a_torn_end_is_not(home: Home) -> None:
    path = next(home.journal.glob("gone/*.seg"))
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    assert verify(home).clean, "a torn frame was never acknowledged"
    assert verify(home).facts["torn bytes in journals"] > 0
    path.write_bytes(content[:-50] + bytes([content[-50] ^ 1]) + content[-49:])
    assert named(verify(home), "journal").file == place(home, path)


def test_a_frame_removed_from_a_journal_is_reported(home: Home) -> None:
    path = next(home.journal.glob("gone/*.seg"))
    raw = path.read_bytes()
    starts = [at for at in range(len(raw)) if raw.startswith(b"FRAM", at)]
    path.write_bytes(raw[: starts[1]] + raw[starts[2] :])
    breaks = named(verify(home), "journal")
    assert (breaks.golem_id, breaks.number) == (tampered_homes.WAITING, 3)
    assert "does not follow link 1" in breaks.fact


def test_an_altered_or_missing_bundle_is_reported(home: Home) -> None:
    folder = next(path for path in home.bundles.iterdir() if path.is_dir())
    page = next(folder.glob("*.md"))
    page.write_bytes(page.read_bytes() + b"!")
    breaks = named(verify(home), "bundle")
    assert breaks.file == place(home, folder)
    assert page.name in breaks.fact
    shutil.rmtree(folder)
    assert "is missing" in named(verify(home), "bundle").fact


def test_an_index_of_heads_with_a_wrong_hash_is_reported(home: Home) -> None:
    with EventLog(home):
        pass
    tampered_homes.alter_heads(home)
    assert named(verify(home), "index").file == "index/heads.arrow"


# unreadable homes


def test_an_unreadable_home_raises_a_typed_error(home: Home) -> None:
    shutil.rmtree(home.life)
    home.life.write_bytes(b"")
    with pytest.raises(StoreError, match="cannot be read"):
        verify(home)
