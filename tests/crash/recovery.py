"""Recovery: open a home whose processes were all killed, drain and derive, then check it in every known way."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import orjson
import pyarrow as pa

from bardo_pipeline.curator.state.decision_log import fold
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.errors import BardoError
from bardo_pipeline.storage.delta.append_only_table import AppendOnlyTable
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.intake.quarantine import Quarantine
from bardo_pipeline.storage.intake.spool_folder import Spool, waiting
from bardo_pipeline.storage.journal.drainer import drain_once
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.log.protocol import CYCLES_SCHEMA
from bardo_pipeline.storage.log.stream_heads import TickRange
from bardo_pipeline.storage.verification.verify import verify

CURATED = ("curation", "cycles", "playbooks", "grimoire")
Digests = Mapping[tuple[str, int], str]


@dataclass
class Faults:
    """Faults: records acknowledged and missing or changed, doubled, unexpected or unreadable, and broken tables.

    Each is a list of sentences.
    """

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def sentences(self) -> list[str]:
        """Return all sentences."""
        return [f"{name}: {text}" for name, texts in asdict(self).items() for text in texts[:20]]

    def packed(self) -> str:
        """Return the faults as one line."""
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def unpacked(cls, line: str) -> Faults:
        """Parse a line that `packed` wrote."""
        return cls(**orjson.loads(line))


def recover(
    root: Path, sent: Digests, acknowledged: Digests, *, gaps: tuple[TickRange, ...] = (), curate: bool = True
) -> Faults:
    """Open the home, drain and derive, then look for each record that was sent or acknowledged.

    gaps: allowed gaps. curate: whether to check derivations too.
    """
    faults = Faults()
    home = Home.open(root)
    with EventLog(home) as log:
        _drained(home, log, faults)
        _taken(home, log, faults)
        rows = _read(home, log, faults)
        if rows is not None:
            _compare(rows, sent, acknowledged, faults)
        faults.lost += [f"a gap: {gap}" for gap in log.gaps() if gap not in gaps]
    _verified(home, faults)
    if curate:
        _curated(root, faults)
    return faults


def _drained(home: Home, log: EventLog, faults: Faults) -> None:
    """Check that the journals are empty and that no record from them was refused."""
    report = drain_once(home, log, clock=lambda: datetime.now(UTC))
    faults.broken += [f"journal of {writer}: {error}" for writer, error in report.faults]
    faults.broken += [f"left in the journal: {path}" for path in home.journal.iterdir()]
    faults.broken += [f"left a lease: {path}" for path in home.leases.iterdir()]
    items = Quarantine(home).open(["source", "reason"]).to_pylist()  # also by an earlier drainer
    faults.lost += [f"in quarantine: {item['reason']}" for item in items if item["source"] == "journal"]


def _taken(home: Home, log: EventLog, faults: Faults) -> None:
    """Check that the spool is empty."""
    for _ in Spool(home, log).take(datetime.now(UTC)):
        pass
    faults.broken += [f"left in the spool: {name}" for name in waiting(home)]


def _read(home: Home, log: EventLog, faults: Faults) -> pa.Table | None:
    """Read every value of the log by pyarrow and by DuckDB."""
    try:
        rows = log.read_cycles()
        rows.validate(full=True)
        table = AppendOnlyTable(home.cycles, CYCLES_SCHEMA, ["golem_id", "tick"])
        files = [file.path for file in table.tail()[1]]
        if files:
            with duckdb.connect(":memory:") as connection:
                table = f"read_parquet({files}, union_by_name=true)"
                count = connection.sql(f"select count(*), bit_xor(hash(t)) from {table} t").fetchall()[0][0]
            if count != len(rows):
                faults.unreadable.append(f"DuckDB reads {count} rows, pyarrow {len(rows)}")
    except (BardoError, pa.ArrowException, duckdb.Error, OSError) as error:
        faults.unreadable.append(repr(error))
        return None
    return rows


def _compare(rows: pa.Table, sent: Digests, acknowledged: Digests, faults: Faults) -> None:
    keys = zip(rows["golem_id"].to_pylist(), rows["tick"].to_pylist(), strict=True)
    there = dict(zip(keys, map(_digest, rows["content_hash"].to_pylist(), rows["payload"].to_pylist()), strict=True))
    times = Counter(zip(rows["golem_id"].to_pylist(), rows["tick"].to_pylist(), strict=True))
    faults.doubled += [f"{key} is there {count} times" for key, count in times.items() if count > 1]
    faults.doubled += [f"{key} is there and was never sent" for key in there if key not in sent]
    faults.lost += [f"{key} is not there" for key in acknowledged if key not in there]
    fields = {**sent, **acknowledged}
    faults.lost += [f"{key} differs from the sent record" for key in there if fields.get(key, there[key]) != there[key]]


def _digest(content_hash: bytes, payload: bytes | None) -> str:
    """Return the digest as its writer computed it: of the columns of a batch, of the bytes of a JSON line."""
    return content_hash.hex() if payload is None else hashlib.sha256(payload).hexdigest()[:32]


def _verified(home: Home, faults: Faults) -> None:
    faults.broken += [each.sentence() for each in verify(home).breaks]


def _curated(root: Path, faults: Faults) -> None:
    """Return faults of derivations: a killed one must finish, and equal a derivation made elsewhere in one run."""
    stores = DerivationContext.open(root)
    derive_curation(stores)
    beside = root / "derivations" / "beside"
    shutil.rmtree(beside, ignore_errors=True)
    again = DerivationContext.open(root, beside=beside)
    derive_curation(again)
    faults.broken += list(_differences(stores, again))
    shutil.rmtree(beside)


def _differences(stores: DerivationContext, again: DerivationContext) -> Iterator[str]:
    for name in CURATED:
        if stores.projections.digest(name) != again.projections.digest(name):
            yield f"{name} differs from a derivation in one run"
    folded = fold(stores.projections.read("curation"))
    if not folded.equals(stores.projections.read("grimoire").cast(folded.schema)):
        yield "the grimoire is not the fold of its decisions"
