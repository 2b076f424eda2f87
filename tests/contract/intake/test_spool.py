"""The spool: each file is taken exactly once, in bulk; invalid lines never delay valid lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bardo_pipeline.events.custody.hash_chain import GENESIS, content_of, link_of
from bardo_pipeline.events.life.events import Gap, life_event
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA, to_models
from bardo_pipeline.events.record.model import DecisionCycleRecord
from bardo_pipeline.storage.intake import spool_folder
from bardo_pipeline.storage.intake.line_buffer import Lines
from bardo_pipeline.storage.intake.spool_folder import never_taken, waiting
from bardo_pipeline.storage.intake.spool_ingest import IngestReport
from bardo_pipeline.storage.leases import Lease
from tests import fuzz
from tests.conftest import NOW
from tests.support.homes.spool_homes import Place, lines, register_key, some

pytestmark = pytest.mark.row("EV-4")
ROOT = Path(__file__).parents[3]


class TestLineFile:
    def test_each_record_is_stored_with_the_bytes_of_its_line(self, place: Place) -> None:
        sent_lines = lines(40)
        place.drop("a.jsonl", sent_lines)
        (taken,) = place.take()
        assert taken == IngestReport("a.jsonl", len(b"\n".join(sent_lines)) + 1, records=40, written=40)
        rows = place.log.read_cycles().sort_by("tick")
        assert rows.column("payload").to_pylist() == sent_lines
        models = [DecisionCycleRecord.model_validate_json(line, strict=True) for line in sent_lines]
        assert to_models(rows.select(RECORD_SCHEMA.names), DecisionCycleRecord) == models
        assert place.refused() == []

    @pytest.mark.row("X-9")
    def test_each_line_is_a_link_over_its_bytes_in_the_order_of_the_file(self, place: Place) -> None:
        sent_lines = lines(40)
        place.drop("a.jsonl", sent_lines)
        place.take()
        links = {row["number"]: row for row in place.log.read_cycles(["link"]).column("link").to_pylist()}
        previous = GENESIS
        for number, line in enumerate(sent_lines, 1):
            assert links[number]["previous"] == previous
            previous = link_of("g-1", number, previous, content_of(line))
            assert links[number]["hash"] == previous
        assert place.log.tip("g-1") == (40, previous)

    @pytest.mark.row("X-9")
    def test_the_chain_is_the_same_in_every_order_of_its_groups(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        groups, runs = [], Lines.runs

        def last_first(some: Lines, bytes_max: int) -> list[range]:
            groups.append(list(runs(some, 5_000))[::-1])
            return groups[-1]

        monkeypatch.setattr(Lines, "runs", last_first)
        sent_lines = lines(20)
        sent_lines[5:5], sent_lines[15:15] = [b"{}"], [b"[]"]
        place.drop("a.jsonl", sent_lines)
        (taken,) = place.take()
        assert (taken.written, taken.quarantined) == (20, 2)
        assert max(map(len, groups)) > 3
        assert [item.raw for item in place.refused()] == [b"{}", b"[]"]
        rows = sorted(place.log.read_cycles(["payload", "link"]).to_pylist(), key=lambda row: row["link"]["number"])
        previous = GENESIS
        for row, line in zip(rows, lines(20), strict=True):
            assert row["payload"] == line
            previous = link_of("g-1", row["link"]["number"], previous, content_of(line))
            assert row["link"]["hash"] == previous

    def test_the_taken_file_and_its_signatures_are_deleted(self, place: Place) -> None:
        place.drop("a.jsonl", lines(2), signatures=[])
        place.drop("g-1/b.jsonl", lines(2, tick=3))
        place.take()
        assert [path for path in place.home.spool.rglob("*") if path.is_file()] == []
        assert place.take() == []

    def test_the_same_content_in_a_second_file_is_a_repeat(self, place: Place) -> None:
        place.drop("a.jsonl", lines(20))
        place.take()
        version = place.log.version
        place.drop("b.jsonl", lines(20))
        assert place.take()[0].repeated == 20
        assert place.log.version == version

    def test_a_file_with_the_beginning_of_another_is_taken_completely(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Both have the same file name in the log's transactions, so the second file's segment numbers follow the
        first's.
        """
        monkeypatch.setattr(spool_folder, "_NAMED_BY_BYTES", len(lines(1)[0]))
        place.drop("a.jsonl", lines(20))
        place.take()
        place.drop("b.jsonl", lines(30))
        (taken,) = place.take()
        assert (taken.repeated, taken.written) == (20, 10)
        assert sorted(place.log.read_cycles(["tick"]).column("tick").to_pylist()) == list(range(1, 31))

    def test_line_endings_do_not_matter_and_blank_lines_are_skipped(self, place: Place) -> None:
        first, two, three = lines(3)
        place.drop("a.jsonl", b"\n" + first + b"\r\n\r\n \t\n" + two + b"\n\n" + three)
        (taken,) = place.take()
        assert (taken.records, taken.written) == (3, 3)
        assert place.log.read_cycles(["payload", "tick"]).sort_by("tick").column("payload").to_pylist() == [
            first,
            two,
            three,
        ]

    def test_an_empty_file_is_taken(self, place: Place) -> None:
        place.drop("a.jsonl", b"")
        assert place.take() == [IngestReport("a.jsonl", 0)]

    def test_records_of_a_golem_without_birth_are_accepted(self, place: Place) -> None:
        place.drop("a.jsonl", lines(3, golem_id="nobody"))
        assert place.take()[0].written == 3


class TestWaitingFiles:
    def test_only_complete_files_in_the_spool_or_a_golem_folder_are_taken(self, place: Place) -> None:
        for name in ("b.jsonl", "a.arrow", "g-1/c.jsonl", "z.life.jsonl", "a.arrow.sig"):
            place.drop(name, b"")
        for name in (".hidden.jsonl", "notes.txt", "d.json", ".drafts/e.jsonl", "g-1/deep/f.jsonl", "g-1/.g.jsonl"):
            (place.home.spool / name).parent.mkdir(exist_ok=True, parents=True)
            (place.home.spool / name).write_bytes(b"")
        (place.home.spool / "link.jsonl").symlink_to(place.home.root / "home.json")
        (place.home.spool / "folder.jsonl").mkdir()
        assert [name.as_posix() for name in waiting(place.home)] == [
            "z.life.jsonl",
            "a.arrow",
            "b.jsonl",
            "g-1/c.jsonl",
        ]

    @pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
    def test_a_file_whose_signatures_are_no_plain_file_is_never_taken_and_holds_up_no_other(
        self, place: Place, kind: str
    ) -> None:
        place.drop("a.jsonl", lines(1))
        place.drop("b.jsonl", lines(1, tick=2))
        signatures = place.home.spool / "a.jsonl.sig"
        if kind == "link":
            signatures.symlink_to(place.home.root / "home.json")
        else:
            (os.mkfifo if kind == "pipe" else os.mkdir)(signatures)
        assert [taken.file for taken in place.take()] == ["b.jsonl"]
        assert place.home.spool / "a.jsonl" in never_taken(place.home)
        assert place.refused() == [], "no reason quotes the linked file"

    def test_a_folder_name_that_is_not_utf8_belongs_to_no_golem(self, place: Place) -> None:
        folder = place.home.spool / os.fsdecode(b"\xff")
        folder.mkdir()
        (folder / "a.jsonl").write_bytes(lines(1)[0])
        place.drop("b.jsonl", lines(1, tick=2))
        assert [(taken.written, taken.quarantined) for taken in place.take()] == [(1, 0), (0, 1)]
        assert place.reasons() == [("\\udcff/a.jsonl", 1, "IdentityError")]

    def test_a_file_name_that_is_not_utf8_is_taken(self, place: Place) -> None:
        name = os.fsdecode(b"\xff\xfe.jsonl")
        (place.home.spool / name).write_bytes(b"{\n" + lines(1)[0])
        (taken,) = place.take()
        assert (taken.written, taken.quarantined) == (1, 1)
        assert place.reasons() == [("\\udcff\\udcfe.jsonl", 1, "RecordError")]


class TestInvalidRecords:
    def test_an_invalid_line_is_quarantined_with_file_line_reason_and_bytes(self, place: Place) -> None:
        sent_lines = lines(30)
        sent_lines[17] = sent_lines[17].replace(b'"tick":18', b'"tick":"18"')
        place.drop("a.jsonl", sent_lines)
        (taken,) = place.take()
        assert (taken.written, taken.quarantined, taken.errors) == (29, 1, Counter(RecordError=1))
        (item,) = place.refused()
        assert (item.source, item.file, item.line, item.golem_id, item.tick) == ("spool", "a.jsonl", 18, "g-1", None)
        assert (item.error, item.raw) == ("RecordError", sent_lines[17])
        assert "tick: Input should be a valid integer, not '18'" in item.reason

    def test_each_fault_has_its_own_error_name(self, place: Place) -> None:
        register_key(place, "keyed")
        place.log.record([life_event("dead", NOW, Gap(tick_from=1, tick_to=9, why="lost"))], NOW)
        lease = Lease(place.home, "held", "somebody")
        faults: list[tuple[dict[str, object], str, str]] = [
            ({"prediction_error": 1.5}, "RecordError", "prediction_error is above 1.0: 1.5"),
            ({"prediction_error": float("nan")}, "RecordError", "prediction_error is not finite"),
            ({"tier": "T9"}, "RecordError", "tier is not one of T0, T1, T2, suppress: 'T9'"),
            ({"colour": 1}, "RecordError", "colour: Extra inputs are not permitted"),
            ({"schema_version": 99}, "SchemaVersionError", "schema version 99 is newer than"),
            ({"schema_version": 99, "colour": 1}, "SchemaVersionError", "schema version 99 is newer than"),
            ({"tick": 7}, "ForkError", "with different content"),
            ({"golem_id": "held"}, "LeaseError", "is held by writer somebody"),
            ({"golem_id": "dead", "tick": 5}, "RegressionError", "comes after its gap was accepted as lost"),
            ({"golem_id": "keyed"}, "SignatureError", "is not signed, though key key-1 is registered"),
        ]
        for number, (change, error, word) in enumerate(faults):
            sent_records = some(8, tick=1 + 8 * number)
            sent_records[5] |= change
            place.drop(f"{number}.jsonl", [fuzz.dumps(record) for record in sent_records])
            (taken,) = place.take()
            assert (taken.written, taken.quarantined) == (7, 1), change
            item = place.refused()[-1]
            assert (item.file, item.line, item.error) == (f"{number}.jsonl", 6, error), change
            assert word in item.reason, change
            assert item.raw == fuzz.dumps(sent_records[5]), change
        lease.release()

    def test_a_fork_of_a_recorded_tick_is_quarantined(self, place: Place) -> None:
        place.drop("a.jsonl", lines(5))
        place.take()
        other = some(8)
        other[3]["credits_micros"] += 1
        place.drop("b.jsonl", [fuzz.dumps(record) for record in other])
        (taken,) = place.take()
        assert (taken.written, taken.repeated, taken.quarantined) == (3, 4, 1)
        assert place.reasons() == [("b.jsonl", 4, "ForkError")]

    def test_a_golem_folder_accepts_only_records_of_its_golem(self, place: Place) -> None:
        place.drop("g-1/a.jsonl", [*lines(3), *lines(2, golem_id="g-2"), *lines(1, tick=4)])
        place.drop("a%2Fb/b.jsonl", lines(2, golem_id="a/b"))
        assert [taken.written for taken in place.take()] == [2, 4]
        assert place.reasons() == [("g-1/a.jsonl", 4, "IdentityError"), ("g-1/a.jsonl", 5, "IdentityError")]
        assert "folder of golem g-1" in place.refused()[0].reason

    def test_an_oversized_line_is_kept_completely_and_never_parsed(self, place: Place) -> None:
        long = b'{"golem_id": "' + b"x" * 200_000 + b'"}'
        first, two, three, four = lines(4)
        place.drop("a.jsonl", b"\n".join([first, long, two, three, long + b" " * 70_000, four, long]))
        (taken,) = place.take()
        assert (taken.records, taken.written, taken.quarantined) == (7, 4, 3)
        assert place.reasons() == [("a.jsonl", n, "RecordError") for n in (2, 5, 7)]
        assert [place.spool.quarantine.raw_of(item) for item in place.refused()] == [long, long + b" " * 70_000, long]
        assert "the line is 200,016 bytes long, more than the limit of 20,000" in place.refused()[0].reason

    @pytest.mark.full
    def test_a_file_of_one_huge_line_needs_bounded_memory(self, tmp_path: Path) -> None:
        size = 120_000_000
        completed = subprocess.run(
            [sys.executable, "-c", ENDLESS, str(tmp_path / "home"), str(size)], cwd=ROOT, capture_output=True, text=True
        )
        assert completed.returncode == 0, completed.stderr
        grown, kept = json.loads(completed.stdout)
        assert kept == size
        assert grown < 60


ENDLESS = """
import json, resource, sys
from pathlib import Path
from bardo_pipeline.policy import Policy
from tests.support.homes.spool_homes import lines, opened
place = opened(Path(sys.argv[1]), Policy())
place.drop("warm.jsonl", lines(60))
place.take()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with (place.home.spool / "a.jsonl").open("wb") as out:
    for _ in range(int(sys.argv[2]) // 1_000_000):
        out.write(b"[" * 1_000_000)
(taken,) = place.take()
(item,) = place.refused()
assert (taken.records, taken.quarantined) == (1, 1)
print(json.dumps([(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, item.kept.length]))
"""
