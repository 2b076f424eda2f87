"""Structure-aware fuzzer of the spool: `python -m tests.fuzz --records 100000`.

Every line is either accepted, and reads back equal through pyarrow and DuckDB, or quarantined with a reason and its
original bytes. The oracle is pydantic, applied to each line alone, and Python's parser, which sees repeated keys. If
several lines hold records of the same golem and tick, the first one counts. A failure prints the seed that replays it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
from pydantic import ValidationError

from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA, to_models
from bardo_pipeline.events.record.model import DecisionCycleRecord
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.intake.quarantine import Quarantine
from bardo_pipeline.storage.intake.spool_folder import Spool
from bardo_pipeline.storage.log.event_log import EventLog
from tests.support.records.drawn_records import records

NOW = datetime(2026, 11, 1, tzinfo=UTC)
FILE_RECORDS = 2_000
BIG = 10_000_000


class Raw(NamedTuple):
    """Bytes written into a JSON line unchanged, whether or not they are valid JSON."""

    token: bytes


NUMBERS = [
    *(b"NaN", b"Infinity", b"-Infinity", b"Inf", b"nan", b"1e400", b"-1e400", b"1e-400", b"5e-324", b"-0", b"-0.0"),
    *(b"01", b"+1", b"1.", b".5", b"0x10", b"1e2", b"1E5", b"1.0", b"true", b"null", b"'1'", b'"1"', b"1_000"),
    *(b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"-9223372036854775809", b"4" * 30),
    *(b"9" * 400, b"9" * 5000, b"0." + b"3" * 500, b"1" + b"0" * 400 + b".5", b"4611686018427387904", b"2.5e-308"),
]
MOMENTS = [
    *("2024-01-01T00:00:00", "2024-01-01T00:00:00+01:00", "2024-01-01 00:00:00Z", "2024-01-01", "2024-02-30T00:00:00Z"),
    *("2024-01-01T24:00:00Z", "2024-01-01T23:59:60Z", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "1700000000"),
    *("9999-12-31T23:59:59.999999Z", "2024-01-01T00:00:00.1234567Z", "2024-01-01T00:00:00.123456789+00:00", "now", ""),
    *("2024-01-01t00:00:00z", "2024-01-01_00:00:00Z", "2024-01-01T00:00Z", "2024-01-01T00:00:00-00:00", "1700000000.5"),
    *(
        "2024-1-1T0:0:0Z",
        "10000-01-01T00:00:00Z",
        "-001-01-01T00:00:00Z",
        "2024-01-01T00:00:00,5Z",
        "٢٠٢٤-01-01T00:00:00Z",
    ),
]
IDS = [
    *("../../etc/passwd", "/", "..", ".", "", "C:\\aux", "con", "*", "a/b/c", "~", "%2e%2e%2f", "$(reboot)", "'; drop"),
    *(
        "a" * 256,
        "a" * 257,
        "é" * 256,
        "💥",
        "\u202e",
        "\u0000",
        "\n",
        "\ud83d\ude00",
        "g-1 ",
        " ",
        "{}",
        "null",
        "NaN",
    ),
]
OCTETS = [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe2\x82", b"\x00", b"\x01", b"\x1f", b"\x7f"]
ESCAPES = [
    b"\\ud800",
    b"\\udc00",
    b"\\ud83d\\ude00",
    b"\\u0000",
    b"\\q",
    b"\\/",
    b"\\u12g4",
    b"\\",
    b"\\u00e9",
    b'\\":',
]


def dumps(value: Any) -> bytes:
    """Return the value as JSON; `Raw` values are inserted unchanged."""
    if isinstance(value, Raw):
        return value.token
    if isinstance(value, dict):
        return b"{" + b",".join(dumps(k) + b":" + dumps(v) for k, v in value.items()) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(dumps, value)) + b"]"
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


class Mutator:
    """Mutates valid records into JSON lines; the seed determines every mutation."""

    def __init__(self, random: Random, *, big: float = 0.001) -> None:
        self._random, self._big = random, big
        self._ways: list[Callable[[dict[str, Any]], bytes]] = [
            self.retyped, self.numbered, self.nested, self.spoilt_text, self.escaped, self.grown, self.named,
            self.without, self.stranger, self.twice, self.truncated, self.flipped, self.doubled, self.dated,
            self.decorated, self.reordered, self.emptied, self.broken,
        ]  # fmt: skip

    def line(self, record: dict[str, Any]) -> bytes:
        """Return the record's line: unchanged in one of three cases, else mutated."""
        if self._random.random() < 1 / 3:
            return dumps(record)
        return self._random.choice(self._ways)(record)

    def places(self, value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Return the paths of all values nested in this one."""
        paths: list[tuple[Any, ...]] = []
        below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in below:
            paths += [(*path, key), *self.places(inner, (*path, key))]
        return paths

    def put(self, record: dict[str, Any], value: Any, want: Callable[[Any], bool] = lambda _: True) -> bytes:
        """Return the record's line with the value put at a random path whose present value satisfies `want`."""
        fit = [path for path in self.places(record) if want(_at(record, path))]
        if fit:
            path = self._random.choice(fit)
            _at(record, path[:-1])[path[-1]] = value
        return dumps(record)

    def retyped(self, record: dict[str, Any]) -> bytes:
        other = self._random.choice([None, True, 0, -1, 1.5, "", "x", [], {}, [[]], [None], {"a": 1}, 2**53 + 1, 1e30])
        return self.put(record, other)

    def numbered(self, record: dict[str, Any]) -> bytes:
        return self.put(record, Raw(self._random.choice(NUMBERS)), lambda v: isinstance(v, int | float))

    def nested(self, record: dict[str, Any]) -> bytes:
        depth = self._random.choice([2, 50, 300, 100_000])
        open_, close = self._random.choice([(b"[", b"]"), (b'{"a":', b"}"), (b'{"observation":', b"}"), (b"[{", b"")])
        return self.put(record, Raw(open_ * depth + b"1" + close * depth))

    def spoilt_text(self, record: dict[str, Any]) -> bytes:
        token = b'"a' + self._random.choice(OCTETS) + b'b"'
        if self._random.random() < 0.2:
            return dumps(record).replace(b'"', token[:-1], 1)
        return self.put(record, Raw(token), lambda v: isinstance(v, str))

    def escaped(self, record: dict[str, Any]) -> bytes:
        token = Raw(b'"a' + self._random.choice(ESCAPES) + b'b"')
        return self.put(record, token, lambda v: isinstance(v, str))

    def grown(self, record: dict[str, Any]) -> bytes:
        size = BIG if self._random.random() < self._big * 18 else self._random.choice([256, 65_536, 65_537, 300_000])
        return self.put(record, self._random.choice("xé") * size, lambda v: isinstance(v, str))

    def named(self, record: dict[str, Any]) -> bytes:
        if self._random.random() < 0.5:
            record["golem_id"] = self._random.choice(IDS) + (record["golem_id"] if self._random.random() < 0.7 else "")
            return dumps(record)
        return self.put(record, self._random.choice(IDS), lambda v: isinstance(v, str))

    def without(self, record: dict[str, Any]) -> bytes:
        path = self._random.choice([p for p in self.places(record) if isinstance(p[-1], str)])
        del _at(record, path[:-1])[path[-1]]
        return dumps(record)

    def stranger(self, record: dict[str, Any]) -> bytes:
        inner = [(), *(p for p in self.places(record) if isinstance(_at(record, p), dict))]
        _at(record, self._random.choice(inner))[self._random.choice(["x", "", "golem", "Tick", "price "])] = 1
        return dumps(record)

    def twice(self, record: dict[str, Any]) -> bytes:
        inner = self._random.choice(
            [(), *(p for p in self.places(record) if _at(record, p) and isinstance(p[-1], str))]
        )
        part = record if not isinstance(_at(record, inner), dict) else _at(record, inner)
        name = self._random.choice(list(part))
        other = self._random.choice([part[name], None, 1, self._random.choice(list(record.values()))])
        space = self._random.choice([b"", b" ", b"\t "])
        again = b"," + dumps(name) + space + b":" + dumps(other) + b"}"
        return dumps(record).replace(dumps(part), dumps(part)[:-1] + again, 1)

    def truncated(self, record: dict[str, Any]) -> bytes:
        line = dumps(record)
        return line[: self._random.randrange(1, len(line))]

    def flipped(self, record: dict[str, Any]) -> bytes:
        line = bytearray(dumps(record))
        for _ in range(self._random.choice([1, 1, 1, 3, 20])):
            line[self._random.randrange(len(line))] = self._random.randrange(256)
        return bytes(line)

    def doubled(self, record: dict[str, Any]) -> bytes:
        line = dumps(record)
        between = self._random.choice(
            [b"", b" ", b" null ", b",", b"\r", b"\n", b"\t", b"null", b"{}", b" {} ", b" [] "]
        )
        return self._random.choice([line + between + line, line + between, between + line, b"[" + line + b"]"])

    def dated(self, record: dict[str, Any]) -> bytes:
        record["observed_at"] = self._random.choice(MOMENTS)
        return dumps(record)

    def decorated(self, record: dict[str, Any]) -> bytes:
        line = dumps(record)
        around = [b"\xef\xbb\xbf", b" ", b"\t ", b"/* */", b"\x0c", b"\xa0", b"\x00", b"//"]
        return self._random.choice(
            [
                self._random.choice(around) + line,
                line + self._random.choice(around),
                line.replace(b",", b" , ").replace(b":", b" : "),
                line.replace(b'"tick"', b'"\\u0074ick"'),
                line + b"\r",
                line[:-1] + b",}",
                line.replace(b"null", b"None", 1),
            ]
        )

    def reordered(self, record: dict[str, Any]) -> bytes:
        names = list(record)
        self._random.shuffle(names)
        return json.dumps({name: record[name] for name in names}, indent=None, separators=(", ", ": ")).encode()

    def emptied(self, record: dict[str, Any]) -> bytes:
        return self.put(record, Raw(self._random.choice([b"{}", b"[]", b'""', b"null", b"[null]", b"[{}]"])))

    def broken(self, record: dict[str, Any]) -> bytes:
        return self._random.choice(
            [b"", b" ", b"{}", b"[]", b"null", b"nul", b"5", b'"x"', b"{", b"}", b"\x00", b"{null}", b"[" * 100_000]
        )


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def good_records(count: int, *, tick: int, seed: int) -> list[dict[str, Any]]:
    """Return `count` valid records as JSON objects, one tick of one golem each."""
    table = records(count, golems=50, tick=tick, seed=seed, prefix=f"golem-{seed}")
    return [model.model_dump(mode="json") for model in to_models(table, DecisionCycleRecord)]


def physical(content: bytes) -> list[bytes]:
    """Split the content into the lines that the spool reads, as docs/writing.md defines them."""
    lines = [line.removesuffix(b"\r") for line in content.split(b"\n")]
    return [line for line in lines if line.strip(b" \t\r")]


def verdict(line: bytes, limit: int) -> DecisionCycleRecord | None:
    """Return the record that pydantic parses from the line, or None if the line must be refused."""
    if len(line) > limit:
        return None
    try:
        record = DecisionCycleRecord.model_validate_json(line, strict=True)
        json.loads(line, object_pairs_hook=_different_keys)
    except (ValidationError, KeyError):
        return None
    return record


def _different_keys(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) < len(pairs):
        raise KeyError(pairs)


def key(model: DecisionCycleRecord) -> tuple[str, int]:
    """Return the record's key: golem and tick."""
    return model.golem_id, model.tick


def digest(model: DecisionCycleRecord) -> bytes:
    """Return a hash that is equal for equal records only; -0.0 and 0.0 hash alike."""
    return hashlib.sha256(model.model_dump_json().replace(":-0.0", ":0.0").encode()).digest()


def digests(table: pa.Table) -> dict[tuple[str, int], bytes]:
    """Map the (golem, tick) key of each row to its hash."""
    return {key(model): digest(model) for model in to_models(table, DecisionCycleRecord)}


def serve(root: Path, line: Connection) -> None:
    """Take spool files on request, in a process of its own, so that a crash or its memory is the spool's alone."""
    home = Home.open(root)
    with EventLog(home) as log:
        spool = Spool(home, log)
        while line.recv():
            taken = list(spool.take(NOW))
            line.send((taken, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


class Fuzz:
    """A home that is fed mutated lines, and the records that it should hold."""

    def __init__(self, root: Path, seed: int) -> None:
        self.random, self.seed = Random(seed), seed
        self.home = Home.create(root, Policy(), NOW)
        self.log = EventLog(self.home)
        self.quarantine = Quarantine(self.home)
        self.limit = Policy().writer.record_bytes_max
        self.mutator = Mutator(self.random)
        self.known: dict[tuple[str, int], bytes] = {}
        self.totals: Counter[str] = Counter()
        self.rss_mb: list[float] = []
        spawn = get_context("spawn")
        self.line, child_end = spawn.Pipe()
        self.taker = spawn.Process(target=serve, args=(root, child_end), daemon=True)
        self.taker.start()
        child_end.close()

    def close(self) -> None:
        """Stop the spool's process."""
        self.line.send(False)
        self.taker.join()

    def round(self, number: int, count: int) -> None:
        """Feed one file of mutated lines and compare the home with the oracle."""
        made = [self.mutator.line(r) for r in good_records(count, tick=1 + 1_000 * number, seed=self.seed)]
        content = b"\n".join(made) + self.random.choice([b"", b"\n", b"\n\n"])
        name = f"{number:05}.jsonl"
        (self.home.spool / f".{name}").write_bytes(content)
        (self.home.spool / f".{name}").rename(self.home.spool / name)
        before = self.log.version
        self.line.send(True)
        (taken,), rss_mb = self.line.recv()
        self.rss_mb.append(rss_mb)
        self._compare(taken, physical(content), before, name)

    def _compare(self, taken: Any, lines: list[bytes], before: int, name: str) -> None:
        fresh: dict[tuple[str, int], bytes] = {}
        refused: Counter[bytes] = Counter()
        repeated = 0
        for line in lines:
            model = verdict(line, self.limit)
            on_record = None if model is None else self.known.get(key(model))
            unfit = model is not None and (model.golem_id == "*" or model.observed_at > NOW + timedelta(minutes=5))
            if model is None or unfit or on_record not in (None, digest(model)):
                refused[line] += 1
            elif on_record is not None:
                repeated += 1
            else:
                self.known[key(model)] = fresh[key(model)] = digest(model)
        assert taken.records == len(lines), (taken, len(lines))
        assert (taken.written, taken.repeated, taken.quarantined) == (
            len(fresh), repeated, refused.total()
        ), (taken, len(fresh), repeated, refused.total())  # fmt: skip
        self._compare_quarantine(refused, name)
        self._compare_log(fresh, before)
        self.totals.update(taken.errors)
        self.totals.update(accepted=taken.written, repeated=taken.repeated, lines=len(lines))

    def _compare_quarantine(self, refused: Counter[bytes], name: str) -> None:
        held = self.quarantine
        opened = held.open(["file", "error", "reason"]).filter(pa.compute.field("file") == name).to_pylist()
        assert all(row["error"] and row["reason"].strip() for row in opened)
        raws = Counter(held.raw_of(item) for item in held.items([row["item_id"] for row in opened]))
        assert raws == refused, f"{(raws - refused).total()} too many, {(refused - raws).total()} missing"

    def _compare_log(self, fresh: dict[tuple[str, int], bytes], before: int) -> None:
        rows = self.log.read_cycles(RECORD_SCHEMA.names, since_version=before)
        assert digests(rows) == fresh
        assert len(rows) == len(fresh)

    def read_back(self) -> None:
        """Read all accepted records through DuckDB, which aborts on invalid UTF-8."""
        from bardo_pipeline.storage.delta.append_only_table import AppendOnlyTable
        from bardo_pipeline.storage.log.protocol import CYCLES_SCHEMA

        table = AppendOnlyTable(self.home.cycles, CYCLES_SCHEMA, ["golem_id", "tick"])
        files = [file.path for file in table.tail()[1]]
        with duckdb.connect() as con:
            con.execute("set timezone = 'UTC'")
            columns = ", ".join(RECORD_SCHEMA.names)
            table = con.sql(f"select {columns} from read_parquet({files}, union_by_name = true)").to_arrow_table()
        assert digests(table) == self.known
        assert len(table) == len(self.known)


def main() -> None:
    """Run the fuzzer and print its counts as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bardo-fuzz-") as folder:
        fuzz = Fuzz(Path(folder), asked.seed)
        for number in range(math.ceil(asked.records / FILE_RECORDS)):
            try:
                fuzz.round(number, min(FILE_RECORDS, asked.records - number * FILE_RECORDS))
            except BaseException:
                print(f"seed {asked.seed}, file {number}: python -m tests.fuzz --seed {asked.seed}", file=sys.stderr)
                raise
        fuzz.close()
        fuzz.read_back()
    grown = fuzz.rss_mb[-1] - fuzz.rss_mb[0]
    print(json.dumps({**fuzz.totals, "rss_mb": round(fuzz.rss_mb[-1]), "rss_grown_mb": round(grown)}))


if __name__ == "__main__":
    main()
