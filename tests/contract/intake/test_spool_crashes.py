"""Crashes of a spool reader at any point, two concurrent readers, and files of life events."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from bardo_pipeline.events.custody.hash_chain import content_of
from bardo_pipeline.events.life.events import Gap, KeyRegistered, LifeEvent, life_event
from bardo_pipeline.events.life.life_schema import LIFE_SCHEMA
from bardo_pipeline.events.record.arrow_schema import to_models
from bardo_pipeline.storage.intake.spool_ingest import IngestReport
from bardo_pipeline.storage.leases import Lease
from bardo_pipeline.storage.log.event_log import EventLog
from tests.conftest import NOW
from tests.support.homes.spool_homes import OWNER_KEY, PUBLIC, Place, line_of, lines, opened, record_owned_birth, signed

pytestmark = pytest.mark.row("EV-4")


class Crash(BaseException):
    """Simulates the end of the process."""


def crashing(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: int, *, before: bool = False) -> None:
    """Raise Crash at the nth call of a method, before or after the method runs."""
    real, calls = getattr(owner, name), [0]

    def fails(*args: Any, **options: Any) -> Any:
        if isinstance(args[0], Path) and "spool" not in args[0].parts:
            return real(*args, **options)
        calls[0] += 1
        if calls[0] == after and before:
            raise Crash
        result = real(*args, **options)
        if calls[0] == after:
            raise Crash
        return result

    monkeypatch.setattr(owner, name, fails)


class TestCrashesAndConcurrentReaders:
    @pytest.fixture
    def sent(self) -> list[bytes]:
        sent = lines(40)
        sent[5], sent[33] = b"{", sent[33].replace(b'"tier":"', b'"tier":"X')
        return sent

    def test_a_crash_at_any_point_loses_and_repeats_no_record(
        self, tmp_path: Path, sent: list[bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        uncrashed = opened(tmp_path / "whole")
        uncrashed.drop("a.jsonl", sent, signatures=[b""])
        uncrashed.take()
        tip, refused = uncrashed.log.tip("g-1"), uncrashed.refused()
        links = uncrashed.log.read_cycles(["tick", "link", "payload"]).sort_by("tick")
        quarantine = type(uncrashed.spool.quarantine)
        points: list[tuple[Any, str, int, bool]] = [
            (Path, "replace", 1, True), (Path, "replace", 1, False), (Path, "replace", 2, False),
            (EventLog, "admit", 1, True), (EventLog, "admit", 1, False), (EventLog, "admit", 3, False),
            (quarantine, "put", 1, True), (quarantine, "put", 1, False), (quarantine, "put", 2, False),
            (Path, "unlink", 1, True), (Path, "unlink", 1, False), (Path, "unlink", 2, False),
        ]  # fmt: skip
        for at, (owner, name, count, before) in enumerate(points):
            point = f"{'before' if before else 'behind'} {owner.__name__}.{name} {count}"
            cut = opened(tmp_path / f"{at}")
            cut.drop("a.jsonl", sent, signatures=[b""])
            with monkeypatch.context() as patched:
                crashing(patched, owner, name, count, before=before)
                with pytest.raises(Crash):
                    cut.take()
            reopened = opened(tmp_path / f"{at}")
            reopened.take()
            assert reopened.take() == [], point
            assert reopened.log.tip("g-1") == tip, point
            assert reopened.log.read_cycles(["tick", "link", "payload"]).sort_by("tick").equals(links), point
            assert reopened.refused() == refused, point
            assert [path for path in reopened.home.spool.rglob("*") if path.is_file()] == [], point

    def test_a_line_refused_before_a_crash_may_be_accepted_after_it(
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

    def test_two_readers_share_the_files(self, tmp_path: Path) -> None:
        first, second = opened(tmp_path / "home"), opened(tmp_path / "home")
        for at in range(12):
            first.drop(f"{at:02}.jsonl", lines(4, tick=1 + 4 * at))
        taken: list[list[IngestReport]] = [[], []]
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

    def test_a_new_file_named_like_an_interrupted_file_is_taken_after_it(
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
    def drop(self, place: Place, name: str, sent: list[bytes], golem_id: str) -> None:
        """Put life events into the spool, signed by the owner of the golem."""
        place.drop(name, sent, [signed(golem_id, content_of(line), OWNER_KEY) for line in sent])

    def test_life_events_are_taken_before_records_with_ids_of_their_content(self, place: Place) -> None:
        event = life_event("keyed", NOW, KeyRegistered(key_id="key-1", public_key=PUBLIC, tick_from=1))
        record_owned_birth(place, "keyed")
        place.drop("a.jsonl", lines(1, golem_id="keyed"))
        self.drop(place, "z.life.jsonl", [line_of(event), line_of(event, event_id=event.event_id)], "keyed")
        assert [(taken.written, taken.repeated, taken.quarantined) for taken in place.take()] == [(1, 1, 0), (0, 0, 1)]
        assert to_models(place.log.life("KeyRegistered").select(LIFE_SCHEMA.names), LifeEvent) == [event]
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
    def test_an_invalid_life_event_is_refused_and_the_others_are_accepted(
        self, place: Place, line: bytes, word: str
    ) -> None:
        good = life_event("g-1", NOW, Gap(tick_from=1, tick_to=2, why="lost"))
        record_owned_birth(place, "g-1")
        self.drop(place, "a.life.jsonl", [line, line_of(good)], "g-1")
        (taken,) = place.take()
        assert (taken.written, taken.quarantined) == (1, 1)
        assert word in place.refused()[0].reason

    def test_a_life_event_with_wrong_id_golem_or_sequence_is_refused_alone(self, place: Place) -> None:
        key = life_event("g-1", NOW, KeyRegistered(key_id="key-1", public_key=PUBLIC, tick_from=1))
        second = life_event("g-1", NOW, KeyRegistered(key_id="key-2", public_key=PUBLIC, tick_from=2))
        other = life_event("g-2", NOW, Gap(tick_from=1, tick_to=2, why="lost"))
        gap = life_event("g-1", NOW, Gap(tick_from=1, tick_to=2, why="lost"))
        event_lines = [
            line_of(key),
            line_of(second),
            line_of(other),
            line_of(gap, event_id="mine"),
            line_of(gap),
        ]
        record_owned_birth(place, "g-1")
        self.drop(place, "g-1/a.life.jsonl", event_lines, "g-1")
        (taken,) = place.take()
        assert (taken.written, taken.quarantined) == (2, 3)
        assert sorted(reason[1:] for reason in place.reasons()) == [
            (2, "RecordError"),
            (3, "IdentityError"),
            (4, "RecordError"),
        ]
