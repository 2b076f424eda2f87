"""Other forms that a spool accepts: Arrow files, Arrow streams, and signed content."""

from __future__ import annotations

import base64
import json
import re
import tracemalloc
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bardo_pipeline.events.custody.hash_chain import content_of, slice_contents
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.storage.intake import arrow_reader
from tests.support.homes.spool_homes import Place, arrow, lines, register_key, signed, take_altered
from tests.support.processes.forked_processes import Forked
from tests.support.records.drawn_records import records

pytestmark = pytest.mark.row("EV-4")


class TestArrow:
    @pytest.mark.parametrize("stream", [False, True], ids=["file", "stream"])
    def test_a_file_or_stream_is_taken_batch_by_batch(self, place: Place, stream: bool) -> None:
        table = records(300, golems=5)
        place.drop("a.arrow", arrow(table, stream=stream, batch_rows=100))
        assert place.take()[0].written == 300
        order = [("golem_id", "ascending"), ("tick", "ascending")]
        rows = place.log.read_cycles(RECORD_SCHEMA.names).cast(RECORD_SCHEMA)
        assert rows.sort_by(order).equals(table.sort_by(order))
        assert set(place.log.read_cycles(["segment"]).column("segment").to_pylist()) == {0, 1, 2}

    def test_an_invalid_row_is_quarantined_alone_with_its_values(self, place: Place) -> None:
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

    def test_invalid_utf8_is_refused_alone(self, place: Place) -> None:
        content = arrow(records(20, golems=20))
        place.drop("a.arrow", content.replace(b"golem-0007", b"golem-\xff\xfe07"))
        (taken,) = place.take()
        assert (taken.written, taken.quarantined) == (19, 1)
        assert place.reasons() == [("a.arrow", 8, "RecordError")]
        assert "not UTF-8" in place.refused()[0].reason

    def test_other_column_types_and_older_versions_are_converted(self, place: Place) -> None:
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
    def test_an_unreadable_file_is_quarantined_as_a_whole(
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

    def test_batches_before_a_damaged_batch_are_taken(self, place: Place) -> None:
        content = arrow(records(300, golems=5), stream=True, batch_rows=100)
        place.drop("a.arrow", content[:-60_000])
        (taken,) = place.take()
        assert (taken.written, taken.quarantined) == (200, 1)

    @pytest.mark.row("X-4")
    @pytest.mark.parametrize("stream", [False, True], ids=["file", "stream"])
    @pytest.mark.parametrize("compression", ["zstd", "lz4", None])
    def test_a_batch_that_is_too_large_when_unpacked_is_quarantined_and_written_in_parts(
        self, place: Place, stream: bool, compression: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = records(320)
        small, large = table.slice(0, 20), table.slice(20)
        content = arrow(pa.concat_tables([small, large]), stream=stream, compression=compression)
        monkeypatch.setattr(arrow_reader, "BATCH_BYTES_MAX", 400_000)
        place.drop("a.arrow", content)
        (taken,) = place.take()
        assert (taken.written, taken.quarantined) == (20, 1), place.refused()
        (item,) = place.refused()
        size, most = (int(n.replace(",", "")) for n in re.findall(r"of (?:at most )?([\d,]+)", item.reason))
        rows = large.num_rows * most // size // 2  # each batch has bytes of its own
        place.drop("b.arrow", arrow(large, stream=stream, batch_rows=rows, compression=compression))
        assert place.take()[0].written == 300, place.refused()

    def test_a_file_whose_footer_names_other_batches_is_quarantined(self, place: Place) -> None:
        table = records(20)
        whole, halves = arrow(table), arrow(table, batch_rows=10)
        footer_at = len(halves) - 10 - int.from_bytes(halves[-10:-6], "little")
        stream_end = len(whole) - 10 - int.from_bytes(whole[-10:-6], "little")
        place.drop("a.arrow", whole[:stream_end] + halves[footer_at:])
        assert place.take()[0].quarantined == 1
        assert "its footer names 2" in place.refused()[0].reason

    @pytest.mark.full
    def test_corrupt_bytes_anywhere_do_not_end_the_process(self, tmp_path: Path) -> None:
        """Runs in a child process, because corrupt Arrow bytes may end the process without an exception.

        The number of files does not follow BARDO_EXAMPLES: a dozen would not reach each of the three results.
        """
        process = Forked(take_altered, str(tmp_path / "home"), "40")
        results = process.rest()
        assert process.returncode == 0, "the process ended without a result"
        counts = json.loads(results)
        assert sum(counts.values()) == 40
        assert min(counts[word] for word in ("taken", "in part", "refused")) > 1, counts


@pytest.mark.row("X-9")
class TestSignatures:
    def test_only_lines_with_a_valid_signature_are_taken(self, place: Place) -> None:
        register_key(place, "g-1")
        signed_lines = lines(6)
        signatures = [signed("g-1", content_of(line)) for line in signed_lines]
        signatures[1] = b""
        signatures[2] = signed("g-1", content_of(b"another"))
        signatures[3] = b"key-1 nonsense"
        signatures[4] = signed("g-1", content_of(signed_lines[4]), key_id="key-9")
        place.drop("a.jsonl", signed_lines, signatures=signatures)
        (taken,) = place.take()
        assert (taken.written, taken.errors) == (2, Counter(SignatureError=4))
        reason_of = {item.line: item.reason for item in place.refused()}
        assert "is not signed, though key key-1 is registered" in reason_of[2]
        assert "carries a signature that key key-1 did not make" in reason_of[3]
        assert 'line 4 of the signatures: the signature is not "KEY_ID BASE64"' in reason_of[4]
        assert "is signed with key-9, but key-1 is valid there" in reason_of[5]
        kept = place.log.read_cycles(["tick", "link"]).sort_by("tick").column("link").to_pylist()
        assert [link["key_id"] for link in kept] == ["key-1", "key-1"]
        assert [link["signature"] for link in kept] == [base64.b64decode(signatures[k].split()[1]) for k in (0, 5)]

    def test_signatures_match_their_lines_across_blank_and_long_lines_and_blocks(self, place: Place) -> None:
        register_key(place, "g-1")
        sent_lines = lines(40)
        content, signatures = [], []
        for at, line in enumerate(sent_lines):
            content += [line, b"", b"x" * 30_000] if at % 7 == 3 else [line]
            signatures += [signed("g-1", content_of(line))] + ([b"", b"y" * 9_000] if at % 7 == 3 else [])
        place.drop("a.jsonl", content, signatures=signatures)
        (taken,) = place.take()
        assert (taken.written, taken.quarantined) == (40, 6)

    def test_a_signed_slice_of_an_arrow_batch_is_accepted_or_refused_as_a_whole(self, place: Place) -> None:
        register_key(place, "golem-0000")
        register_key(place, "golem-0001")
        table = records(30, golems=3)
        golem_slices = {
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
            for golem_id, rows in golem_slices.items()
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

    def test_invalid_signatures_refuse_the_whole_arrow_file(self, place: Place) -> None:
        place.drop("a.arrow", arrow(records(5)), signatures=[b"{}"])
        place.take()
        assert place.reasons() == [("a.arrow", 0, "SignatureError")]

    def test_a_file_of_signatures_without_an_end_of_line_needs_bounded_memory(self, place: Place) -> None:
        place.drop("a.arrow", arrow(records(5)), signatures=[b""])
        with (place.home.spool / "a.arrow.sig").open("wb") as sparse:
            sparse.truncate(2**28)
        tracemalloc.start()
        try:
            place.take()
            assert tracemalloc.get_traced_memory()[1] < 2**25
        finally:
            tracemalloc.stop()
        assert place.reasons() == [("a.arrow", 0, "SignatureError")]

    def test_signatures_of_an_earlier_file_are_not_used_for_a_later_file(self, place: Place) -> None:
        register_key(place, "g-1")
        unsigned_lines = lines(2)
        place.drop("a.jsonl", unsigned_lines, signatures=[signed("g-1", content_of(line)) for line in unsigned_lines])
        place.take()
        place.drop("a.jsonl", deepcopy(lines(2, tick=3)))
        (taken,) = place.take()
        assert taken.errors == Counter(SignatureError=2)
        assert "is not signed" in place.refused()[0].reason
