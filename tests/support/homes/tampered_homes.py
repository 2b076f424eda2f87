"""A small home with one of each verified part, and changes by a forger that knows the format."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bardo_pipeline.events.custody.hash_chain import (
    GENESIS,
    Payloads,
    Signature,
    content_of,
    link_of,
    slice_contents,
)
from bardo_pipeline.events.life.events import KeyRegistered, Published, life_event
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA, to_models
from bardo_pipeline.events.record.model import DecisionCycleRecord
from bardo_pipeline.events.record.row_digest import digest_column, row_digests
from bardo_pipeline.events.record.validate import examine
from bardo_pipeline.policy import Policy, WriterPolicy
from bardo_pipeline.retrieval.embedder_interface import EmbedderIdentity
from bardo_pipeline.signing import signed_message
from bardo_pipeline.storage.delta.checksum_manifest import Sums
from bardo_pipeline.storage.delta.durable_commits import point_to, put_checkpoint
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.intake.quarantine import Quarantine, QuarantineItem
from bardo_pipeline.storage.journal.event_writer import EventWriter
from bardo_pipeline.storage.log.batch import Stamp
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.log.protocol import CYCLES_SCHEMA, VECTORS_SCHEMA
from bardo_pipeline.storage.verification.report import Break, Report
from tests.support.knowledge.handmade_bundles import bundle_of
from tests.support.knowledge.handmade_grimoires import entry
from tests.support.processes.forked_processes import Forked
from tests.support.records.drawn_records import records

NOW = datetime(2026, 11, 1, tzinfo=UTC)
ARROW, SIGNED, JSON, WAITING = "arrow-0000", "arrow-0001", "json-0000", "waiting-0000"
"""Golems: with batches, with signed batches, with single records, and with undrained records."""

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw().hex()
KEY_ID = "key-1"

Rows = list[dict[str, Any]]


def clock() -> datetime:
    """Return the recording time."""
    return NOW


def batch(tick: int, count: int = 3, prefix: str = "arrow") -> pa.Table:
    """Records of two golems, `count` ticks of each, from a tick on."""
    return records(2 * count, golems=2, tick=tick, seed=tick, prefix=prefix)


def lines(tick: int, count: int = 3, prefix: str = "json") -> list[bytes]:
    """Records of one golem as its runtime sends them."""
    made = to_models(records(count, golems=1, tick=tick, seed=tick, prefix=prefix), DecisionCycleRecord)
    return [model.model_dump_json().encode() for model in made]


def signature_of(golem_id: str, content: bytes, key: Ed25519PrivateKey = KEY, key_id: str = KEY_ID) -> Signature:
    """Return the signature by that key."""
    return Signature(key_id, key.sign(signed_message(golem_id, content)))


def signed(table: pa.Table) -> dict[str, Signature]:
    """The signature of the signed golem's slice of a batch."""
    own = table.take(pa.array(np.flatnonzero(np.array(table["golem_id"].to_pylist()) == SIGNED))).combine_chunks()
    return {SIGNED: signature_of(SIGNED, slice_contents(own, [0, len(own)])[0])}


def append(log: EventLog, tick: int, count: int = 3) -> None:
    """A batch of both golems, one of them signed."""
    table = batch(tick, count)
    log.append(table, writer="runtime", segment=tick, recorded_at=NOW, signatures=signed(table))


def admit(log: EventLog, tick: int, count: int = 3, prefix: str = "json") -> None:
    """Single records of a golem, as JSON."""
    given = Payloads.of(pa.array(lines(tick, count, prefix), pa.binary()))
    table = records(count, golems=1, tick=tick, seed=tick, prefix=prefix)
    log.admit(examine(table), Stamp("spool", tick, NOW), payloads=given)


def make(root: Path) -> Home:
    """The home: batches, signed ones, JSON, life, a vector, a bundle, a quarantined line, and a dead writer's journal.

    10 commits of cycles, a checkpoint at the sixth; ticks 1 to 12 of the batches, 1 to 9 of the single records.
    """
    alive = Home.create(root.parent / f".{root.name}.alive", Policy(), NOW)
    bundle = bundle_of(entry(about="h", kind="heuristic", validations=3, confidence_ppm=900_000))
    with EventLog(alive) as log:
        published = Published(bundle_hash=bundle.bundle_hash, entry_count=1, derivation_id="derivation-1")
        registered = KeyRegistered(key_id=KEY_ID, public_key=PUBLIC, tick_from=1)
        log.record([life_event(ARROW, NOW, published), life_event(SIGNED, NOW, registered)], NOW)
        for tick in (1, 4, 7):
            append(log, tick)
            admit(log, tick)
        put_checkpoint(alive.cycles, log.version, durable=False)
        point_to(alive.cycles, log.version)
        append(log, 10)
        log.record_vectors(_vector())
    folder = alive.bundles / bundle.bundle_hash
    folder.mkdir(parents=True)
    for name, content in bundle.files.items():
        (folder / name).write_bytes(content)
    Quarantine(alive).put([QuarantineItem("spool", "x.jsonl", 1, None, None, "RecordError", "no", b"{]")], NOW)
    with EventWriter.open(alive, WAITING, clock=clock, drain="none", writer="gone") as writer:
        for line in lines(1, 4, "waiting"):
            writer.append(line)
        shutil.copytree(alive.root, root)  # as after a kill at this point
    shutil.rmtree(alive.root)
    home = Home.open(root)
    for table in (home.cycles, home.life, home.vectors):
        Sums(home, table).catch_up()
    return home


def _vector() -> pa.Table:
    identity = EmbedderIdentity(model="m", version="1", dimension=2, preprocess_hash="p", chunk_config="c")
    row = {
        "text_hash": "t", "embedder": identity.key, "vector": [0.5, 0.25], "created_at": NOW, **asdict(identity),
    }  # fmt: skip
    return pa.Table.from_pylist([row], schema=VECTORS_SCHEMA)


def write_much(root: str) -> None:
    """Append 3,000 records of one golem, and print each acknowledged tick."""
    policy = Policy(writer=WriterPolicy(batch_records=200, flush_seconds=0.05))
    sent = lines(1, 3_000, "busy")
    with EventWriter.open(Path(root), "busy-0000", clock=clock, policy=policy, drain="thread") as writer:
        for tick, line in enumerate(sent, 1):
            writer.append(line)
            print(tick, flush=True)
        sys.stdin.read()


@contextmanager
def busy_writer(home: Home) -> Iterator[Callable[[int], int]]:
    """A process that appends 3,000 records of one golem as fast as it can.

    Gives a function that returns once a tick is acknowledged: which one was, that one or a later.
    """
    writer = Forked(write_much, str(home.root))
    yield lambda tick: next(int(line) for line in writer.out if int(line) >= tick)
    writer.kill()
    writer.wait()


# the forger


def data_files(home: Home, golem_id: str | None = None) -> list[Path]:
    """Return the files of the cycles table with this golem, in commit order."""
    rows = [home.cycles / add["path"] for commit in commits(home) for add in adds(commit)]
    if golem_id is None:
        return rows
    return [path for path in rows if golem_id in pq.read_table(path, columns=["golem_id"])["golem_id"].to_pylist()]


def commits(home: Home) -> list[Path]:
    """The commits of the cycles."""
    return sorted((home.cycles / "_delta_log").glob("*.json"))


def adds(commit: Path) -> list[dict[str, Any]]:
    """Return the files that a commit adds."""
    actions = [orjson.loads(line) for line in commit.read_bytes().splitlines()]
    return [action["add"] for action in actions if "add" in action]


def forge(home: Home, path: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Change the rows of a file, and adjust digests, commit and checksums, which need no key."""
    rows = change(pq.read_table(path).to_pylist())
    table = pa.Table.from_pylist(rows, schema=CYCLES_SCHEMA)
    digests = digest_column(row_digests(table.select(RECORD_SCHEMA.names)))
    at = table.schema.get_field_index("content_hash")
    write(home, path, table.set_column(at, table.schema.field(at), digests))


def write(home: Home, path: Path, table: pa.Table) -> None:
    """Replace the rows of a file, and adjust its commit."""
    pq.write_table(table, path)
    for commit in commits(home):
        actions = [orjson.loads(line) for line in commit.read_bytes().splitlines()]
        for action in actions:
            if action.get("add", {}).get("path") == path.relative_to(home.cycles).as_posix():
                stats = orjson.loads(action["add"]["stats"]) | {"numRecords": len(table)}
                action["add"] |= {"size": path.stat().st_size, "stats": orjson.dumps(stats).decode()}
        commit.write_bytes(b"".join(orjson.dumps(action) + b"\n" for action in actions))
    rewrite_checksums(home)


def rewrite_checksums(home: Home) -> None:
    """Replace the checksums so that changed files look unchanged."""
    for path in [*(home.cycles / "_delta_log").glob("*checkpoint*"), home.index / "heads.arrow"]:
        path.unlink(missing_ok=True)
    sums = Sums(home, home.cycles)
    sums.path.unlink(missing_ok=True)
    sums.catch_up()


def relinked(rows: list[dict[str, Any]], golem_id: str) -> list[dict[str, Any]]:
    """Return a golem's records with a valid hash chain of their own over their payloads."""
    previous = GENESIS
    for number, row in enumerate((row for row in rows if row["golem_id"] == golem_id), 1):
        link = link_of(golem_id, number, previous, content_of(row["payload"]))
        row["link"] = {"number": number, "previous": previous, "hash": link, "key_id": None, "signature": None}
        previous = link
    return rows


def named(report: Report, kind: str) -> Break:
    by_key = {broken.kind: broken for broken in report.breaks}
    assert kind in by_key, f"no break of kind {kind}, but {[b.sentence() for b in report.breaks]}"
    return by_key[kind]


def place(home: Home, path: Path) -> str:
    return path.relative_to(home.root).as_posix()


def change(**fields: Any) -> Callable[[Rows], Rows]:
    """Change the last row of a file."""

    def changed(rows: Rows) -> Rows:
        rows[-1] |= fields
        return rows

    return changed


def alter_heads(home: Home) -> Path:
    """Write other link hashes into the index of heads; return its path."""
    path = home.index / "heads.arrow"
    with pa.ipc.open_file(path) as file:
        index = file.read_all()
    at = index.schema.get_field_index("link_hash")
    other = index.set_column(at, index.schema.field(at), pa.array([bytes(32)] * len(index), pa.binary()))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, other.schema) as out:
        out.write_table(other)
    return path
