"""Quarantine: a refused line is kept unchanged, is listed until an operator decides, and can be retried."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from typer.testing import CliRunner, Result

from bardo_pipeline.cli.app import app_of
from bardo_pipeline.errors import QueryError, StoreError
from bardo_pipeline.events.custody.hash_chain import Signature, content_of
from bardo_pipeline.events.life.events import Gap, KeyRegistered, life_event
from bardo_pipeline.events.record_json import life_json_schema, record_json_schema
from bardo_pipeline.policy import Policy, WriterPolicy
from bardo_pipeline.signing import signed_message
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.intake.quarantine import Quarantine, QuarantineItem
from bardo_pipeline.storage.intake.quarantine_retry import Retried, retry
from bardo_pipeline.storage.leases import Lease
from tests import fuzz
from tests.conftest import NOW
from tests.support.homes.spool_homes import (
    KEY,
    OWNER_KEY,
    PUBLIC,
    Place,
    arrow,
    line_of,
    lines,
    opened,
    record_owned_birth,
    register_key,
    signed,
    some,
)
from tests.support.records.drawn_records import records

pytestmark = pytest.mark.row("EV-4")
LATER = NOW + timedelta(hours=1)


@pytest.fixture
def place(home: Home) -> Iterator[Place]:
    place = opened(home.root, Policy())
    yield place
    place.log.close()


def item(line: int = 1, raw: bytes = b"{", **facts: object) -> QuarantineItem:
    fields = {"golem_id": None, "tick": None, "error": "RecordError", "reason": "no JSON"} | facts
    return QuarantineItem(source="spool", file="a.jsonl", line=line, raw=raw, **fields)


class TestItems:
    def test_an_item_refused_twice_is_stored_once(self, home: Home) -> None:
        quarantine = Quarantine(home)
        assert quarantine.put([item(), item(2), item()], NOW) == 2
        assert quarantine.put([item(reason="another one today"), item(3)], LATER) == 1
        assert Quarantine(home).put([item(), item(2), item(3)], LATER) == 0
        listed = Quarantine(home).open(["line", "reason"]).select(["line", "reason"]).to_pylist()
        assert listed == [{"line": line, "reason": "no JSON"} for line in (1, 2, 3)]

    def test_an_item_is_read_back_unchanged(self, home: Home) -> None:
        whole = item(
            7, b"\x00\xff", golem_id="g/1", tick=5, error="SignatureError", signature=Signature("k", bytes(64))
        )
        Quarantine(home).put([whole], NOW)
        assert Quarantine(home).show(whole.item_id) == whole

    def test_long_items_are_stored_in_their_own_file_and_alterations_are_detected(self, home: Home) -> None:
        quarantine = Quarantine(home, Policy(writer=WriterPolicy(record_bytes_max=1024)))
        long = item(raw=b"x" * 2_000)
        quarantine.put([long], NOW)
        shown = quarantine.show(long.item_id)
        assert quarantine.raw_of(shown) == long.raw
        path = home.quarantine / "raw" / long.kept.hash
        path.write_bytes(b"y" * 2_000)
        with pytest.raises(StoreError, match="does not match its name"):
            quarantine.raw_of(shown)
        path.unlink()
        with pytest.raises(StoreError, match="is missing"):
            quarantine.raw_of(shown)

    def test_a_decided_item_leaves_the_list_and_its_decision_stays(self, home: Home) -> None:
        quarantine = Quarantine(home)
        quarantine.put([item(), item(2)], NOW)
        assert quarantine.rule([item().item_id], "dropped", at=LATER, why="noise") == 1
        assert quarantine.rule([item().item_id], "retried", at=LATER, why="again") == 0
        assert quarantine.put([item()], LATER) == 0
        assert quarantine.open(["line"]).column("line").to_pylist() == [2]
        assert quarantine.ruling_of(item().item_id) == ("dropped", LATER, "noise")
        assert quarantine.ruling_of(item(2).item_id) is None

    def test_a_unique_prefix_of_an_id_identifies_an_item(self, home: Home) -> None:
        quarantine = Quarantine(home)
        quarantine.put([item(), item(2)], NOW)
        assert quarantine.find(item().item_id[:8]) == item().item_id
        for asked in ("", item().item_id[:4], "0" * 12):
            with pytest.raises(QueryError, match="give at least 8 characters of an id"):
                quarantine.find(asked)
        with pytest.raises(QueryError, match="there is no item nothing"):
            quarantine.show("nothing")


class TestRetry:
    def retry_all(self, place: Place, policy: Policy | None = None) -> Retried:
        quarantine = place.spool.quarantine
        ids = quarantine.open([]).column("item_id").to_pylist()
        return retry(place.log, quarantine, ids, at=LATER, policy=policy or Policy())

    def test_an_item_that_fails_again_stays_with_its_new_reason(self, place: Place) -> None:
        place.drop("a.jsonl", [b"{", *lines(2)])
        place.take()
        retried = self.retry_all(place)
        assert retried.taken == []
        assert [type(error).__name__ for _, error in retried.stayed] == ["RecordError"]
        assert len(place.refused()) == 1

    def test_records_of_a_leased_golem_are_taken_after_its_lease_ends(self, place: Place) -> None:
        lease = Lease(place.home, "g-1", "somebody")
        place.drop("a.jsonl", [*lines(5), b"{"])
        place.take()
        assert len(self.retry_all(place).stayed) == 6
        lease.release()
        retried = self.retry_all(place)
        assert (len(retried.taken), len(retried.stayed)) == (5, 1)
        assert place.ticks("g-1") == [1, 2, 3, 4, 5]
        payloads = place.log.read_cycles(["tick", "payload"]).sort_by("tick").column("payload").to_pylist()
        assert payloads == lines(5)
        assert place.spool.quarantine.ruling_of(retried.taken[0]) == ("retried", LATER, "the log has it")
        assert [reason[1] for reason in place.reasons()] == [6]

    @pytest.mark.row("X-9")
    def test_signatures_are_kept_until_their_key_is_registered(self, place: Place) -> None:
        signed_lines = lines(3)
        place.drop("a.jsonl", signed_lines, signatures=[signed("g-1", content_of(line)) for line in signed_lines])
        place.take()
        assert [item.error for item in place.refused()] == ["SignatureError"] * 3
        register_key(place, "g-1")
        assert len(self.retry_all(place).taken) == 3
        links = place.log.read_cycles(["link"]).column("link").to_pylist()
        assert {link["key_id"] for link in links} == {"key-1"}

    @pytest.mark.row("X-9")
    def test_a_signed_slice_of_an_arrow_file_is_retried_as_a_whole(self, place: Place) -> None:
        from bardo_pipeline.events.custody.hash_chain import slice_contents

        table = records(10, golems=1)
        value = KEY.sign(signed_message("golem-0000", slice_contents(table, [0, 10])[0]))
        entry = {"golem_id": "golem-0000", "key_id": "key-1", "signature": base64.b64encode(value).decode()}
        place.drop("a.arrow", arrow(table), signatures=[json.dumps(entry).encode()])
        place.take()
        assert len(place.refused()) == 1
        register_key(place, "golem-0000")
        assert len(self.retry_all(place).taken) == 1
        assert place.ticks("golem-0000") == list(range(1, 11))

    def test_rows_and_life_events_are_retried_through_their_own_path(self, place: Place) -> None:
        lease = Lease(place.home, "golem-0001", "somebody")
        gap = life_event("golem-0001", NOW, Gap(tick_from=100, tick_to=101, why="lost"))
        place.drop("a.arrow", arrow(records(20, golems=2)))
        record_owned_birth(place, "golem-0001")
        place.drop("b.life.jsonl", [line_of(gap)], [signed("golem-0001", content_of(line_of(gap)), OWNER_KEY)])
        assert [taken.quarantined for taken in place.take()] == [1, 10]
        lease.release()
        retried = self.retry_all(place)
        assert (len(retried.taken), retried.stayed) == (11, [])
        assert place.ticks("golem-0001") == list(range(1, 11))
        assert place.log.life("GapAccepted").num_rows == 1
        assert place.log.read_cycles(["payload"]).column("payload").null_count == 20

    def test_a_long_line_is_taken_after_the_policy_raises_the_limit(self, tmp_path: Path) -> None:
        small = Policy(writer=WriterPolicy(record_bytes_max=1024))
        place = opened(tmp_path / "home", small)
        place.drop("a.jsonl", lines(2))
        assert place.take()[0].quarantined == 2
        assert len(self.retry_all(place, small).stayed) == 2
        assert len(self.retry_all(place).taken) == 2
        assert place.ticks("g-1") == [1, 2]

    @pytest.mark.row("X-9")
    def test_a_file_refused_as_a_whole_is_retried_with_its_signatures(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Retry a file that was refused as a whole, as after an upgrade that knows its columns."""
        from bardo_pipeline.errors import SchemaVersionError
        from bardo_pipeline.events.custody.hash_chain import slice_contents
        from bardo_pipeline.storage.intake import arrow_reader

        register_key(place, "golem-0000")
        table = records(10, golems=2)
        golem_rows = table.take([0, 2, 4, 6, 8])
        value = KEY.sign(signed_message("golem-0000", slice_contents(golem_rows, [0, 5])[0]))
        entry = {"golem_id": "golem-0000", "key_id": "key-1", "signature": base64.b64encode(value).decode()}
        place.drop("a.arrow", arrow(table), signatures=[json.dumps(entry).encode()])
        with monkeypatch.context() as older:

            def refuse(_: object) -> None:
                raise SchemaVersionError("has columns that no version up to this one knows")

            older.setattr(arrow_reader, "_as_records", refuse)
            place.take()
            assert place.reasons() == [("a.arrow", 0, "SchemaVersionError")]
            assert len(self.retry_all(place).stayed) == 1
        retried = self.retry_all(place)
        assert (len(retried.taken), retried.stayed) == (1, [])
        assert len(place.log.read_cycles(["tick"])) == 10

    def test_an_interrupted_retry_is_repeated(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        first, second = Lease(place.home, "g-1", "somebody"), Lease(place.home, "g-2", "somebody")
        place.drop("a.jsonl", [*lines(3), *lines(3, golem_id="g-2")])
        place.take()
        first.release()

        def cut(*_: object, **__: object) -> int:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Quarantine, "rule", cut)
            with pytest.raises(KeyboardInterrupt):
                self.retry_all(place)
        second.release()
        assert len(self.retry_all(place).taken) == 6
        assert place.ticks("g-1") == place.ticks("g-2") == [1, 2, 3]


class TestCommand:
    def bardo(self, home: Home, *words: str, expect: int = 0) -> Result:
        done = CliRunner().invoke(app_of(), [*words, "--home", str(home.root)], catch_exceptions=False)
        assert done.exit_code == expect, done.output
        return done

    def test_commands_list_show_retry_and_drop_the_items_of_a_spool_file(self, home: Home) -> None:
        (home.spool / "a.jsonl").write_bytes(b"\n".join([*lines(3), b'{"golem_id": "g-9", "tick": 4', b"\xff[bold]{"]))
        assert "the quarantine is empty" in self.bardo(home, "quarantine", "list").output
        took = self.bardo(home, "spool", "take").output
        assert "5 records in a.jsonl: 3 new, 0 on record already, 2 in quarantine" in took
        assert "the spool is empty" in self.bardo(home, "spool", "take").output
        listed = json.loads(self.bardo(home, "quarantine", "list", "--format", "json").output)
        assert [(row["line"], row["golem_id"], row["tick"]) for row in listed] == [(4, "g-9", 4), (5, None, None)]
        first, second = (row["item_id"] for row in listed)
        assert first[:12] in self.bardo(home, "quarantine", "list").output
        output = self.bardo(home, "quarantine", "show", first[:12]).output
        assert "Invalid JSON: EOF while parsing" in output
        raw = self.bardo(home, "quarantine", "show", "--raw", second).stdout_bytes
        assert raw == b"\xff[bold]{"
        assert "0 taken, 2 still refused" in self.bardo(home, "quarantine", "retry", "--all", expect=1).output
        assert "1 dropped" in self.bardo(home, "quarantine", "drop", second, "--why", "noise").output
        assert "dropped at" in self.bardo(home, "quarantine", "show", second).output
        assert len(json.loads(self.bardo(home, "quarantine", "list", "--format", "json").output)) == 1

    def test_drop_requires_a_reason_and_retry_requires_items(self, home: Home) -> None:
        self.bardo(home, "quarantine", "drop", "--all", expect=2)
        with pytest.raises(Exception, match="name items, or give --all"):
            self.bardo(home, "quarantine", "retry")

    def test_spool_take_creates_a_missing_home(self, tmp_path: Path) -> None:
        done = CliRunner().invoke(app_of(), ["spool", "take", "--home", str(tmp_path / "new")])
        assert done.exit_code == 0
        assert (tmp_path / "new" / "spool").is_dir()


class TestSchema:
    def test_every_valid_record_matches_the_schema_that_the_command_prints(self) -> None:
        printed = json.loads(CliRunner().invoke(app_of(), ["schema"]).output)
        assert printed == record_json_schema() == json.loads(CliRunner().invoke(app_of(), ["schema", "record"]).output)
        Draft202012Validator.check_schema(printed)
        validator = Draft202012Validator(printed)
        for record in some(20):
            validator.validate(record)

    @pytest.mark.parametrize(
        "change",
        [{"colour": 1}, {"tick": 0}, {"tick": "1"}, {"tier": "T9"}, {"pad_after": {"pleasure": 0.0}}, {"golem_id": ""}],
    )
    def test_a_line_the_spool_refuses_does_not_match_the_schema(self, change: dict) -> None:
        with pytest.raises(ValidationError):
            Draft202012Validator(record_json_schema()).validate(some(1)[0] | change)

    def test_the_schema_refuses_unknown_names_at_every_level(self) -> None:
        for schema in (record_json_schema(), life_json_schema()):
            parts = [schema, *schema["$defs"].values()]
            assert all(part["additionalProperties"] is False for part in parts if part.get("type") == "object")
            assert all(part["description"] for part in parts)

    def test_the_life_schema_requires_the_payload_of_the_kind_but_no_id(self) -> None:
        validator = Draft202012Validator(json.loads(CliRunner().invoke(app_of(), ["schema", "life"]).output))
        key = life_event("g-1", NOW, KeyRegistered(key_id="k", public_key=PUBLIC, tick_from=1)).model_dump(mode="json")
        fields = {name: value for name, value in key.items() if value is not None and name != "event_id"}
        validator.validate(fields)
        validator.validate(key)
        for wrong in (
            fields | {"kind": "GolemBorn"},
            fields | {"key_registered": None},
            fields | {"gap": {"why": "x"}},
        ):
            with pytest.raises(ValidationError):
                validator.validate(wrong)

    def test_an_unknown_schema_name_is_refused_with_the_known_names(self) -> None:
        with pytest.raises(Exception, match="use record, life, report"):
            CliRunner().invoke(app_of(), ["schema", "golem"], catch_exceptions=False)


def test_fuzzer_records_match_the_schema() -> None:
    Draft202012Validator(record_json_schema()).validate(json.loads(fuzz.dumps(fuzz.good_records(1, tick=1, seed=9)[0])))
