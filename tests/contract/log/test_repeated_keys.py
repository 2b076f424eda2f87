"""A JSON object with a key twice has two readings; every door refuses it with the reason."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from bardo_pipeline.errors import RecordError
from bardo_pipeline.events.custody.hash_chain import content_of
from bardo_pipeline.events.life.events import KeyRegistered, life_event
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.intake.quarantine import Quarantine
from bardo_pipeline.storage.intake.spool_folder import Spool
from bardo_pipeline.storage.log.event_log import EventLog
from tests.support.homes.spool_homes import PUBLIC, signed
from tests.support.records.log_queries import GOLEM, NOW, accepted
from tests.support.records.writer_records import Opener, line, on_record

REPEATS = {
    "the tick": (b'"tick":3,', b'"tick":3,"tick":2,'),
    "the same value": (b'"tick":3,', b'"tick":3,"tick":3,'),
    "a nested key": (b'"rsi":', b'"rsi":0.5,"rsi":'),
    "a key in a list": (b'"severity":', b'"severity":"low","severity":'),
    "white space before the colon": (b'"tick":3,', b'"tick" :2,"tick"\t:1,'),
    "an escaped key": (b'"tick":3,', b'"\\u0074ick":2,"tick":3,'),
    "an optional key": (b'"dream_tag":', b'"dream_tag":null,"dream_tag":'),
    "in place of an optional key": (b'"sealed":null,', b'"dream_tag":null,'),
}
assert all(before in line(3) for before, _ in REPEATS.values())
repeats = pytest.mark.parametrize("repeat", REPEATS.values(), ids=REPEATS)


@pytest.mark.row("EV-4")
@repeats
def test_the_spool_quarantines_a_record_with_a_repeated_key(home: Home, repeat: tuple[bytes, bytes]) -> None:
    (home.spool / "a.jsonl").write_bytes(b"\n".join([line(3).replace(*repeat, 1), line(2)]))
    with EventLog(home) as log:
        (report,) = Spool(home, log).take(NOW)
        assert (report.written, report.quarantined) == (1, 1)
        assert log.read_cycles(["tick"])["tick"].to_pylist() == [2]
    assert "twice: send each key once" in Quarantine(home).open()["reason"][0].as_py()


@repeats
def test_a_writer_refuses_bytes_with_a_repeated_key(home: Home, opened: Opener, repeat: tuple[bytes, bytes]) -> None:
    with opened() as writer:
        with pytest.raises(RecordError, match=r"golem golem-0000, tick \d: an object has the key '\w+' twice"):
            writer.append(line(3).replace(*repeat, 1))
        writer.append(line(3))
    assert [row["tick"] for row in on_record(home)] == [3]


@pytest.mark.parametrize(
    "text", [b'"', b'say \\"tick\\": 1', b"half : half", b"\\\\", b"\xc3\xa9 ::", b'\\"sealed\\":null']
)
def test_a_text_with_colons_and_quotes_is_no_repeated_key(opened: Opener, text: bytes) -> None:
    with opened() as writer:
        before, after = b'"gating_reason":"', b'"gating_reason":"' + (b'\\"' if text == b'"' else text)
        assert writer.append(line(3).replace(before, after, 1)).tick == 3


def test_a_life_event_with_a_repeated_key_is_quarantined(home: Home, tmp_path: Path) -> None:
    event = orjson.dumps({k: v for k, v in accepted(1, 1).model_dump(mode="json").items() if k != "event_id"})
    twice = event.replace(b'"golem_id":', b'"golem_id":"g-2","golem_id":', 1)
    nested = event.replace(b'"tick_to":', b'"tick_to":9,"tick_to":', 1)
    sent = [twice, nested, event]
    (home.spool / "a.life.jsonl").write_bytes(b"\n".join(sent))
    (home.spool / "a.life.jsonl.sig").write_bytes(b"\n".join(signed(GOLEM, content_of(line)) for line in sent))
    with EventLog(home) as log:
        log.record([life_event(GOLEM, NOW, KeyRegistered(key_id="key-1", public_key=PUBLIC, tick_from=1))], NOW)
        (report,) = Spool(home, log).take(NOW)
        assert (report.written, report.quarantined) == (1, 2)
        assert log.life()["golem_id"].to_pylist() == [GOLEM, GOLEM]
    assert all("twice" in reason for reason in Quarantine(home).open()["reason"].to_pylist())
