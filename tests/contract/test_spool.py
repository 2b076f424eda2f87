"""The spool: each file exactly once, in bulk; what does not fit never holds back the rest."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bardo_pipeline.events.custody import GENESIS, content_of, link_of, signed_message, slice_contents
from bardo_pipeline.events.life import Gap, KeyRegistered, LifeEvent, life_event
from bardo_pipeline.events.record import DecisionCycleRecord
from bardo_pipeline.events.schema import LIFE_SCHEMA, RECORD_SCHEMA, to_models
from bardo_pipeline.policy import Policy, WriterPolicy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.leases import Lease
from bardo_pipeline.storage.log import EventLog
from bardo_pipeline.storage.quarantine import QuarantineItem
from bardo_pipeline.storage.spool import Spool, waiting
from bardo_pipeline.storage.spool_taking import Taken
from tests import fuzz
from tests.conftest import NOW
from tests.records import records

pytestmark = pytest.mark.row("EV-4")
ROOT = Path(__file__).parents[2]
SMALL = Policy(writer=WriterPolicy(spool_block_bytes=30_000, record_bytes_max=20_000))
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw().hex()


class Place(NamedTuple):
    """A home with its log open, and the spool at its door."""

    home: Home
    log: EventLog
    spool: Spool

    def drop(self, name: str, content: bytes | Sequence[bytes], signatures: Sequence[bytes] | None = None) -> None:
        """Put a file into the spool as the protocol says."""
        target = self.home.spool / name
        target.parent.mkdir(exist_ok=True)
        if signatures is not None:
            target.with_name(f"{target.name}.sig").write_bytes(b"\n".join(signatures))
        draft = target.with_name(f".{target.name}")
        draft.write_bytes(content if isinstance(content, bytes) else b"\n".join(content) + b"\n")
        draft.rename(target)

    def take(self) -> list[Taken]:
        """Take all that waits."""
        return list(self.spool.take(NOW))

    def refused(self) -> list[QuarantineItem]:
        """What is in quarantine, by file and line."""
        found = self.spool.quarantine
        return list(found.items(found.open([]).column("item_id").to_pylist()))

    def reasons(self) -> list[tuple[str, int, str]]:
        """File, line and error of what is in quarantine."""
        return [(item.file, item.line, item.error) for item in self.refused()]

    def ticks(self, golem_id: str) -> list[int]:
        """Ticks on record of a golem."""
        return sorted(self.log.read_cycles(["tick"], golems=[golem_id]).column("tick").to_pylist())


def opened(root: Path, policy: Policy = SMALL) -> Place:
    home = Home.create(root, policy, NOW)
    log = EventLog(home, policy)
    return Place(home, log, Spool(home, log, policy))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return opened(tmp_path / "home")


def some(count: int, *, golem_id: str = "g-1", tick: int = 1) -> list[dict[str, Any]]:
    """Records of one golem's ticks, as JSON has them."""
    made = fuzz.good_records(60, tick=1, seed=3)[:count]
    return [record | {"golem_id": golem_id, "tick": tick + at} for at, record in enumerate(made)]


def lines(*args: Any, **options: Any) -> list[bytes]:
    return [fuzz.dumps(record) for record in some(*args, **options)]


def signed(golem_id: str, content: bytes, key_id: str = "key-1") -> bytes:
    """A line of a .sig file."""
    value = KEY.sign(signed_message(golem_id, content))
    return f"{key_id} {base64.b64encode(value).decode()}".encode()


def arrow(table: pa.Table, *, stream: bool = False, batch_rows: int | None = None) -> bytes:
    """A table as an Arrow IPC file or stream."""
    sink = pa.BufferOutputStream()
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, table.schema) as out:
        out.write_table(table, max_chunksize=batch_rows)
    return sink.getvalue().to_pybytes()


def register_key(place: Place, golem_id: str) -> None:
    place.log.record([life_event(golem_id, NOW, KeyRegistered(key_id="key-1", public_key=PUBLIC, tick_from=1))], NOW)


class TestAFileOfLines:
    def test_every_record_is_on_record_with_the_very_bytes_that_were_sent(self, place: Place) -> None:
        sent = lines(40)
        place.drop("a.jsonl", sent)
        (taken,) = place.take()
        assert taken == Taken("a.jsonl", len(b"\n".join(sent)) + 1, records=40, written=40)
        found = place.log.read_cycles().sort_by("tick")
        assert found.column("payload").to_pylist() == sent
        models = [DecisionCycleRecord.model_validate_json(line, strict=True) for line in sent]
        assert to_models(found.select(RECORD_SCHEMA.names), DecisionCycleRecord) == models
        assert place.refused() == []

    @pytest.mark.row("X-9")
    def test_each_line_is_a_link_over_its_bytes_in_the_order_of_the_file(self, place: Place) -> None:
        sent = lines(40)
        place.drop("a.jsonl", sent)
        place.take()
        links = {row["number"]: row for row in place.log.read_cycles(["link"]).column("link").to_pylist()}
        previous = GENESIS
        for number, line in enumerate(sent, 1):
            assert links[number]["previous"] == previous
            previous = link_of("g-1", number, previous, content_of(line))
            assert links[number]["hash"] == previous
        assert place.log.tip("g-1") == (40, previous)

    def test_the_file_is_gone_and_so_are_its_signatures(self, place: Place) -> None:
        place.drop("a.jsonl", lines(2), signatures=[])
        place.drop("g-1/b.jsonl", lines(2, tick=3))
        place.take()
        assert [path for path in place.home.spool.rglob("*") if path.is_file()] == []
        assert place.take() == []

    def test_the_same_content_dropped_again_is_a_repeat(self, place: Place) -> None:
        place.drop("a.jsonl", lines(20))
        place.take()
        version = place.log.version
        place.drop("b.jsonl", lines(20))
        assert place.take()[0].repeated == 20
        assert place.log.version == version

    def test_ends_of_lines_do_not_matter_and_blank_lines_are_none(self, place: Place) -> None:
        one, two, three = lines(3)
        place.drop("a.jsonl", b"\n" + one + b"\r\n\r\n \t\n" + two + b"\n\n" + three)
        (taken,) = place.take()
        assert (taken.records, taken.written) == (3, 3)
        assert place.log.read_cycles(["payload", "tick"]).sort_by("tick").column("payload").to_pylist() == [
            one,
            two,
            three,
        ]

    def test_an_empty_file_is_taken_too(self, place: Place) -> None:
        place.drop("a.jsonl", b"")
        assert place.take() == [Taken("a.jsonl", 0)]

    def test_an_unborn_golem_is_written_down(self, place: Place) -> None:
        place.drop("a.jsonl", lines(3, golem_id="nobody"))
        assert place.take()[0].written == 3


class TestWhatWaits:
    def test_only_whole_files_of_ours_in_the_folder_or_in_a_golems(self, place: Place) -> None:
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

    def test_a_name_that_is_no_text_is_taken_all_the_same(self, place: Place) -> None:
        name = os.fsdecode(b"\xff\xfe.jsonl")
        (place.home.spool / name).write_bytes(b"{\n" + lines(1)[0])
        (taken,) = place.take()
        assert (taken.written, taken.quarantined) == (1, 1)
        assert place.reasons() == [("\\udcff\\udcfe.jsonl", 1, "RecordError")]


class TestOneBadRecordHoldsBackNothing:
    def test_the_bad_line_is_in_quarantine_with_file_line_reason_and_bytes(self, place: Place) -> None:
        sent = lines(30)
        sent[17] = sent[17].replace(b'"tick":18', b'"tick":"18"')
        place.drop("a.jsonl", sent)
        (taken,) = place.take()
        assert (taken.written, taken.quarantined, taken.errors) == (29, 1, Counter(RecordError=1))
        (item,) = place.refused()
        assert (item.source, item.file, item.line, item.golem_id, item.tick) == ("spool", "a.jsonl", 18, "g-1", None)
        assert (item.error, item.raw) == ("RecordError", sent[17])
        assert "tick: Input should be a valid integer, not '18'" in item.reason

    @pytest.mark.parametrize(
        ("change", "error", "word"),
        [
            ({"prediction_error": 1.5}, "RecordError", "prediction_error is above 1.0: 1.5"),
            ({"prediction_error": float("nan")}, "RecordError", "prediction_error is not finite"),
            ({"tier": "T9"}, "RecordError", "tier is none of T0, T1, T2, suppress: 'T9'"),
            ({"colour": 1}, "RecordError", "colour: Extra inputs are not permitted"),
            ({"schema_version": 99}, "SchemaVersionError", "schema version 99 is newer than"),
            ({"schema_version": 99, "colour": 1}, "SchemaVersionError", "schema version 99 is newer than"),
            ({"tick": 7}, "ForkError", "with different content"),
            ({"golem_id": "held"}, "LeaseError", "is held by writer somebody"),
            ({"golem_id": "dead", "tick": 5}, "RegressionError", "comes after its gap was accepted as lost"),
            ({"golem_id": "keyed"}, "SignatureError", "is not signed, though key key-1 is registered"),
        ],
    )
    def test_each_fault_under_its_own_name(self, place: Place, change: dict, error: str, word: str) -> None:
        register_key(place, "keyed")
        place.log.record([life_event("dead", NOW, Gap(tick_from=1, tick_to=9, why="lost"))], NOW)
        lease = Lease(place.home, "held", "somebody")
        sent = some(30)
        sent[11] |= change
        place.drop("a.jsonl", [fuzz.dumps(record) for record in sent])
        (taken,) = place.take()
        lease.release()
        assert (taken.written, taken.quarantined) == (29, 1)
        (item,) = place.refused()
        assert (item.line, item.error) == (12, error)
        assert word in item.reason
        assert item.raw == fuzz.dumps(sent[11])

    def test_a_fork_of_what_is_on_record(self, place: Place) -> None:
        place.drop("a.jsonl", lines(5))
        place.take()
        other = some(8)
        other[3]["credits_micros"] += 1
        place.drop("b.jsonl", [fuzz.dumps(record) for record in other])
        (taken,) = place.take()
        assert (taken.written, taken.repeated, taken.quarantined) == (3, 4, 1)
        assert place.reasons() == [("b.jsonl", 4, "ForkError")]

    def test_in_a_golems_folder_only_that_golem_speaks(self, place: Place) -> None:
        place.drop("g-1/a.jsonl", [*lines(3), *lines(2, golem_id="g-2"), *lines(1, tick=4)])
        place.drop("a%2Fb/b.jsonl", lines(2, golem_id="a/b"))
        assert [taken.written for taken in place.take()] == [2, 4]
        assert place.reasons() == [("g-1/a.jsonl", 4, "IdentityError"), ("g-1/a.jsonl", 5, "IdentityError")]
        assert "folder of golem g-1" in place.refused()[0].reason

    def test_a_line_that_is_too_long_is_kept_whole_and_never_parsed(self, place: Place) -> None:
        long = b'{"golem_id": "' + b"x" * 200_000 + b'"}'
        one, two, three, four = lines(4)
        place.drop("a.jsonl", b"\n".join([one, long, two, three, long + b" " * 70_000, four, long]))
        (taken,) = place.take()
        assert (taken.records, taken.written, taken.quarantined) == (7, 4, 3)
        assert place.reasons() == [("a.jsonl", n, "RecordError") for n in (2, 5, 7)]
        assert [place.spool.quarantine.raw_of(item) for item in place.refused()] == [long, long + b" " * 70_000, long]
        assert "the line is 200,016 bytes long, and at most 20,000 are taken" in place.refused()[0].reason

    def test_a_file_of_one_endless_line_fills_no_memory(self, tmp_path: Path) -> None:
        size = 300_000_000
        told = subprocess.run(
            [sys.executable, "-c", ENDLESS, str(tmp_path / "home"), str(size)], cwd=ROOT, capture_output=True, text=True
        )
        assert told.returncode == 0, told.stderr
        grown, kept = json.loads(told.stdout)
        assert kept == size
        assert grown < 150


ENDLESS = """
import json, resource, sys
from pathlib import Path
from tests.contract.test_spool import NOW, Policy, lines, opened
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


class Crash(BaseException):
    """Stands for the end of the process."""


def crashing(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: int, *, before: bool = False) -> None:
    """Let the process end at the nth call of something, before or behind what it does."""
    real, calls = getattr(owner, name), [0]

    def fails(*args: Any, **options: Any) -> Any:
        if isinstance(args[0], Path) and "spool" not in args[0].parts:
            return real(*args, **options)
        calls[0] += 1
        if calls[0] == after and before:
            raise Crash
        done = real(*args, **options)
        if calls[0] == after:
            raise Crash
        return done

    monkeypatch.setattr(owner, name, fails)


class TestACrashAtAnyPointAndAnotherTakingChangeNothing:
    @pytest.fixture
    def sent(self) -> list[bytes]:
        sent = lines(40)
        sent[5], sent[33] = b"{", sent[33].replace(b'"tier":"', b'"tier":"X')
        return sent

    @pytest.mark.parametrize("point", range(12))
    def test_at_any_point(self, tmp_path: Path, sent: list[bytes], point: int, monkeypatch: pytest.MonkeyPatch) -> None:
        whole, cut = opened(tmp_path / "whole"), opened(tmp_path / "cut")
        for place in (whole, cut):
            place.drop("a.jsonl", sent, signatures=[b""])
        whole.take()
        points: list[tuple[Any, str, int, bool]] = [
            (Path, "replace", 1, True), (Path, "replace", 1, False), (Path, "replace", 2, False),
            (EventLog, "admit", 1, True), (EventLog, "admit", 1, False), (EventLog, "admit", 3, False),
            (type(cut.spool.quarantine), "put", 1, True), (type(cut.spool.quarantine), "put", 1, False),
            (type(cut.spool.quarantine), "put", 2, False),
            (Path, "unlink", 1, True), (Path, "unlink", 1, False), (Path, "unlink", 2, False),
        ]  # fmt: skip
        with monkeypatch.context() as patched:
            crashing(patched, points[point][0], points[point][1], points[point][2], before=points[point][3])
            with pytest.raises(Crash):
                cut.take()
        again = opened(tmp_path / "cut")
        again.take()
        assert again.take() == []
        assert again.log.tip("g-1") == whole.log.tip("g-1")
        links = [place.log.read_cycles(["tick", "link", "payload"]).sort_by("tick") for place in (again, whole)]
        assert links[0].equals(links[1])
        assert again.refused() == whole.refused()
        assert [path for path in again.home.spool.rglob("*") if path.is_file()] == []

    def test_what_was_refused_before_the_crash_may_be_taken_after_it(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        held = lines(3, golem_id="held")
        lease = Lease(place.home, "held", "somebody")
        place.drop("a.jsonl", [*held, *lines(20)])
        with monkeypatch.context() as patched:
            crashing(patched, EventLog, "admit", 2)
            with pytest.raises(Crash):
                place.take()
        lease.release()
        (taken,) = place.take()
        assert (taken.records, taken.quarantined) == (23, 0)
        assert place.ticks("held") == [1, 2, 3]
        assert place.ticks("g-1") == list(range(1, 21))

    def test_two_takers_share_the_files_between_them(self, tmp_path: Path) -> None:
        first, second = opened(tmp_path / "home"), opened(tmp_path / "home")
        for at in range(12):
            first.drop(f"{at:02}.jsonl", lines(4, tick=1 + 4 * at))
        taken: list[list[Taken]] = [[], []]
        threads = [
            threading.Thread(target=lambda k=k, p=p: taken[k].extend(p.take())) for k, p in enumerate((first, second))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(file.file for files in taken for file in files) == [f"{at:02}.jsonl" for at in range(12)]
        assert sum(file.written for files in taken for file in files) == 48
        assert first.ticks("g-1") == list(range(1, 49))

    def test_a_new_file_of_the_name_of_one_that_a_crash_left_comes_after_it(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place.drop("a.jsonl", lines(10))
        with monkeypatch.context() as patched:
            crashing(patched, EventLog, "admit", 1, before=True)
            with pytest.raises(Crash):
                place.take()
        place.drop("a.jsonl", lines(10, tick=11))
        place.take()
        place.take()
        assert place.ticks("g-1") == list(range(1, 21))


class TestLifeEvents:
    def life(self, event: LifeEvent, **changes: Any) -> bytes:
        told = {k: v for k, v in event.model_dump(mode="json").items() if v is not None and k != "event_id"}
        return json.dumps(told | changes).encode()

    def test_they_come_before_records_and_get_the_id_of_their_content(self, place: Place) -> None:
        event = life_event("keyed", NOW, KeyRegistered(key_id="key-1", public_key=PUBLIC, tick_from=1))
        place.drop("a.jsonl", lines(1, golem_id="keyed"))
        place.drop("z.life.jsonl", [self.life(event), self.life(event, event_id=event.event_id)])
        assert [(taken.written, taken.repeated, taken.quarantined) for taken in place.take()] == [(1, 1, 0), (0, 0, 1)]
        assert to_models(place.log.life().select(LIFE_SCHEMA.names), LifeEvent) == [event]
        assert place.refused()[0].error == "SignatureError"

    @pytest.mark.parametrize(
        ("line", "word"),
        [
            (b"{", "no JSON"),
            (b"[]", "no JSON object"),
            (b"\xff", "no JSON"),
            (b'{"kind": "GapAccepted"}', "Field required"),
            (b'{"a": ' + b"9" * 30 + b"}", "no JSON"),
        ],
    )
    def test_what_is_none_is_refused_and_the_others_are_taken(self, place: Place, line: bytes, word: str) -> None:
        good = life_event("g-1", NOW, Gap(tick_from=1, tick_to=2, why="lost"))
        place.drop("a.life.jsonl", [line, self.life(good)])
        (taken,) = place.take()
        assert (taken.written, taken.quarantined) == (1, 1)
        assert word in place.refused()[0].reason

    def test_one_with_a_wrong_id_of_another_golem_or_that_may_not_follow_is_refused_alone(self, place: Place) -> None:
        key = life_event("g-1", NOW, KeyRegistered(key_id="key-1", public_key=PUBLIC, tick_from=1))
        second = life_event("g-1", NOW, KeyRegistered(key_id="key-2", public_key=PUBLIC, tick_from=2))
        other = life_event("g-2", NOW, Gap(tick_from=1, tick_to=2, why="lost"))
        gap = life_event("g-1", NOW, Gap(tick_from=1, tick_to=2, why="lost"))
        sent = [self.life(key), self.life(second), self.life(other), self.life(gap, event_id="mine"), self.life(gap)]
        place.drop("g-1/a.life.jsonl", sent)
        (taken,) = place.take()
        assert (taken.written, taken.quarantined) == (2, 3)
        assert sorted(reason[1:] for reason in place.reasons()) == [
            (2, "RecordError"),
            (3, "IdentityError"),
            (4, "RecordError"),
        ]


class TestArrow:
    @pytest.mark.parametrize("stream", [False, True], ids=["file", "stream"])
    def test_a_file_or_stream_is_taken_batch_by_batch(self, place: Place, stream: bool) -> None:
        table = records(300, golems=5)
        place.drop("a.arrow", arrow(table, stream=stream, batch_rows=100))
        assert place.take()[0].written == 300
        order = [("golem_id", "ascending"), ("tick", "ascending")]
        found = place.log.read_cycles(RECORD_SCHEMA.names).cast(RECORD_SCHEMA)
        assert found.sort_by(order).equals(table.sort_by(order))
        assert set(place.log.read_cycles(["segment"]).column("segment").to_pylist()) == {0, 1, 2}

    def test_a_bad_row_is_refused_alone_with_its_very_row(self, place: Place) -> None:
        table = records(50, golems=5)
        bad = pc.if_else(pa.array(np.arange(50) == 31), 2.0, table.column("prediction_error"))
        spoilt = table.set_column(table.schema.get_field_index("prediction_error"), "prediction_error", bad)
        place.drop("a.arrow", arrow(pa.table(spoilt.columns, schema=RECORD_SCHEMA)))
        (taken,) = place.take()
        assert (taken.written, taken.quarantined) == (49, 1)
        (item,) = place.refused()
        assert (item.line, item.error, item.golem_id, item.tick) == (32, "RecordError", "golem-0001", 7)
        assert pa.ipc.open_stream(place.spool.quarantine.raw_of(item)).read_all().column(
            "prediction_error"
        ).to_pylist() == [2.0]

    def test_text_that_is_none_is_refused_alone(self, place: Place) -> None:
        content = arrow(records(20, golems=20))
        place.drop("a.arrow", content.replace(b"golem-0007", b"golem-\xff\xfe07"))
        (taken,) = place.take()
        assert (taken.written, taken.quarantined) == (19, 1)
        assert place.reasons() == [("a.arrow", 8, "RecordError")]
        assert "not UTF-8" in place.refused()[0].reason

    def test_other_writers_types_and_an_older_version_are_raised(self, place: Place) -> None:
        table = records(30, golems=3)
        foreign = pa.Table.from_pylist(table.drop_columns(["observed_at", "pipeline", "sealed"]).to_pylist())
        moments = table.column("observed_at").cast(pa.timestamp("ms", "Europe/Berlin"))
        place.drop("a.arrow", arrow(foreign.append_column("observed_at", moments)))
        (taken,) = place.take()
        assert taken.written == 30, place.refused()
        assert place.log.read_cycles(["pipeline"]).column("pipeline").null_count == 30

    @pytest.mark.parametrize(
        ("spoil", "error", "word"),
        [
            (lambda t: arrow(t)[:-9], "RecordError", "cannot be read"),
            (lambda t: arrow(t, stream=True)[:20_000], "RecordError", "cannot be read"),
            (lambda t: b"", "RecordError", "cannot be read"),
            (lambda t: b"ARROW1", "RecordError", "cannot be read"),
            (lambda t: b'{"golem_id": 1}', "RecordError", "cannot be read"),
            (lambda t: arrow(t.append_column("mood", t.column("tick"))), "SchemaVersionError", "mood"),
            (lambda t: arrow(t.drop_columns(["tick"])), "SchemaVersionError", "lack tick"),
            (
                lambda t: arrow(t.set_column(2, "tick", t.column("tick").cast(pa.string()))),
                "SchemaVersionError",
                "tick is of type string",
            ),
        ],
    )
    def test_a_file_that_cannot_be_read_is_kept_whole(
        self, place: Place, spoil: Callable[[pa.Table], bytes], error: str, word: str
    ) -> None:
        content = spoil(records(20))
        place.drop("a.arrow", content)
        (taken,) = place.take()
        assert (taken.written, taken.quarantined) == (0, 1)
        (item,) = place.refused()
        assert (item.line, item.error) == (0, error)
        assert word in item.reason
        assert place.spool.quarantine.raw_of(item) == content

    def test_what_came_before_the_break_is_taken(self, place: Place) -> None:
        content = arrow(records(300, golems=5), stream=True, batch_rows=100)
        place.drop("a.arrow", content[:-60_000])
        (taken,) = place.take()
        assert (taken.written, taken.quarantined) == (200, 1)

    def test_bytes_that_were_altered_anywhere_end_nothing(self, tmp_path: Path) -> None:
        """In a process of its own: what is guarded against ends it without a word."""
        told = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", ALTERED, str(tmp_path / "home")],
            cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
        assert told.returncode == 0, told.stderr[-2_000:]
        counts = json.loads(told.stdout)
        assert sum(counts.values()) == 150
        assert min(counts.values()) > 5, counts


ALTERED = """
import json, sys
from collections import Counter
from pathlib import Path
from random import Random
from tests.contract.test_spool import arrow, opened, records
place, random, told = opened(Path(sys.argv[1])), Random(5), Counter()
for at in range(150):
    content = bytearray(arrow(records(30, golems=3, tick=1 + 10 * at), stream=at % 2 == 0))
    for _ in range(3):
        content[random.randrange(len(content))] = random.randrange(256)
    place.drop("a.arrow", bytes(content))
    (taken,) = place.take()
    assert taken.records == taken.written + taken.repeated + taken.quarantined
    told["taken" if taken.quarantined == 0 else "in part" if taken.written else "refused"] += 1
print(json.dumps(told))
"""


@pytest.mark.row("X-9")
class TestSignatures:
    def test_signed_lines_are_taken_and_others_are_not(self, place: Place) -> None:
        register_key(place, "g-1")
        sent = lines(6)
        signatures = [signed("g-1", content_of(line)) for line in sent]
        signatures[1] = b""
        signatures[2] = signed("g-1", content_of(b"another"))
        signatures[3] = b"key-1 nonsense"
        signatures[4] = signed("g-1", content_of(sent[4]), key_id="key-9")
        place.drop("a.jsonl", sent, signatures=signatures)
        (taken,) = place.take()
        assert (taken.written, taken.errors) == (2, Counter(SignatureError=4))
        says = {item.line: item.reason for item in place.refused()}
        assert "is not signed, though key key-1 is registered" in says[2]
        assert "carries a signature that key key-1 did not make" in says[3]
        assert 'line 4 of the signatures is not "KEY_ID BASE64"' in says[4]
        assert "is signed with key-9, but key-1 counts there" in says[5]
        kept = place.log.read_cycles(["tick", "link"]).sort_by("tick").column("link").to_pylist()
        assert [link["key_id"] for link in kept] == ["key-1", "key-1"]
        assert [link["signature"] for link in kept] == [base64.b64decode(signatures[k].split()[1]) for k in (0, 5)]

    def test_lines_and_signatures_keep_step_over_blank_and_long_lines_and_blocks(self, place: Place) -> None:
        register_key(place, "g-1")
        sent = lines(40)
        content, signatures = [], []
        for at, line in enumerate(sent):
            content += [line, b"", b"x" * 30_000] if at % 7 == 3 else [line]
            signatures += [signed("g-1", content_of(line))] + ([b"", b"y" * 9_000] if at % 7 == 3 else [])
        place.drop("a.jsonl", content, signatures=signatures)
        (taken,) = place.take()
        assert (taken.written, taken.quarantined) == (40, 6)

    def test_a_golems_slice_of_an_arrow_batch_is_signed_and_stands_or_falls_whole(self, place: Place) -> None:
        register_key(place, "golem-0000")
        register_key(place, "golem-0001")
        table = records(30, golems=3)
        own = {
            g: table.filter(pc.equal(table.column("golem_id"), g)).sort_by("tick") for g in ("golem-0000", "golem-0001")
        }
        signatures = [
            json.dumps(
                {
                    "golem_id": golem_id,
                    "key_id": "key-1",
                    "signature": signed(golem_id, slice_contents(rows, [0, len(rows)])[0]).split()[1].decode(),
                }
            ).encode()
            for golem_id, rows in own.items()
        ]
        bad = pc.if_else(pa.array(np.arange(30) == 4), 2.0, table.column("prediction_error"))  # a row of golem-0001
        spoilt = table.set_column(table.schema.get_field_index("prediction_error"), "prediction_error", bad)
        place.drop("a.arrow", arrow(pa.table(spoilt.columns, schema=RECORD_SCHEMA)), signatures=signatures)
        (taken,) = place.take()
        assert (taken.written, taken.quarantined, len(place.refused())) == (20, 10, 1)
        (item,) = place.refused()
        assert (item.golem_id, item.error, item.line) == ("golem-0001", "RecordError", 2)
        assert len(pa.ipc.open_stream(place.spool.quarantine.raw_of(item)).read_all()) == 10
        assert item.signature is not None
        assert item.signature.key_id == "key-1"

    def test_signatures_that_are_none_keep_the_whole_arrow_file_out(self, place: Place) -> None:
        place.drop("a.arrow", arrow(records(5)), signatures=[b"{}"])
        place.take()
        assert place.reasons() == [("a.arrow", 0, "SignatureError")]

    def test_signatures_left_by_a_file_that_never_came_sign_nothing(self, place: Place) -> None:
        register_key(place, "g-1")
        sent = lines(2)
        place.drop("a.jsonl", sent, signatures=[signed("g-1", content_of(line)) for line in sent])
        place.take()
        place.drop("a.jsonl", deepcopy(lines(2, tick=3)))
        (taken,) = place.take()
        assert taken.errors == Counter(SignatureError=2)
        assert "is not signed" in place.refused()[0].reason
