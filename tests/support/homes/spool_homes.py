"""A home with spool files, lines, batches and signatures, for tests of the spool."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bardo_pipeline.events.life.events import KeyRegistered, LifeEvent, life_event
from bardo_pipeline.heartbeat.fleet import Founding, born
from bardo_pipeline.inheritance.bundle_signature import key_id_of
from bardo_pipeline.policy import Policy, WriterPolicy
from bardo_pipeline.signing import signed_message
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.intake.quarantine import QuarantineItem
from bardo_pipeline.storage.intake.spool_folder import Spool
from bardo_pipeline.storage.intake.spool_ingest import IngestReport
from bardo_pipeline.storage.keys.owner_signing_keys import OwnerKeys
from bardo_pipeline.storage.log.event_log import EventLog
from tests import fuzz
from tests.conftest import NOW
from tests.support.records.drawn_records import records

SMALL = Policy(writer=WriterPolicy(spool_block_bytes=30_000, record_bytes_max=20_000))
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw().hex()
OWNER_KEY = key_id_of(PUBLIC)
"""Id of KEY as an owner's key."""


class Place(NamedTuple):
    """A home with an open log and its spool."""

    home: Home
    log: EventLog
    spool: Spool

    def drop(self, name: str, content: bytes | Sequence[bytes], signatures: Sequence[bytes] | None = None) -> None:
        """Put a file into the spool by the protocol."""
        target = self.home.spool / name
        target.parent.mkdir(exist_ok=True)
        if signatures is not None:
            target.with_name(f"{target.name}.sig").write_bytes(b"\n".join(signatures))
        draft = target.with_name(f".{target.name}")
        draft.write_bytes(content if isinstance(content, bytes) else b"\n".join(content) + b"\n")
        draft.rename(target)

    def take(self) -> list[IngestReport]:
        """Take all that waits."""
        return list(self.spool.take(NOW))

    def refused(self) -> list[QuarantineItem]:
        """Return the quarantined lines, by file and line."""
        result = self.spool.quarantine
        return list(result.items(result.open([]).column("item_id").to_pylist()))

    def reasons(self) -> list[tuple[str, int, str]]:
        """Return file, line and error of the quarantined lines."""
        return [(item.file, item.line, item.error) for item in self.refused()]

    def ticks(self, golem_id: str) -> list[int]:
        """Ticks on record of a golem."""
        return sorted(self.log.read_cycles(["tick"], golems=[golem_id]).column("tick").to_pylist())


def opened(root: Path, policy: Policy = SMALL) -> Place:
    home = Home.create(root, policy, NOW)
    log = EventLog(home, policy)
    return Place(home, log, Spool(home, log, policy))


def some(count: int, *, golem_id: str = "g-1", tick: int = 1) -> list[dict[str, Any]]:
    """Records of one golem's ticks, as JSON has them."""
    made = deepcopy(_good()[:count])
    return [record | {"golem_id": golem_id, "tick": tick + at} for at, record in enumerate(made)]


@cache
def _good() -> list[dict[str, Any]]:
    return fuzz.good_records(60, tick=1, seed=3)


def lines(*args: Any, **options: Any) -> list[bytes]:
    return [fuzz.dumps(record) for record in some(*args, **options)]


def signed(golem_id: str, content: bytes, key_id: str = "key-1", key: Ed25519PrivateKey = KEY) -> bytes:
    """A line of a .sig file."""
    value = key.sign(signed_message(golem_id, content))
    return f"{key_id} {base64.b64encode(value).decode()}".encode()


def arrow(
    table: pa.Table, *, stream: bool = False, batch_rows: int | None = None, compression: str | None = None
) -> bytes:
    """A table as an Arrow IPC file or stream."""
    sink, options = pa.BufferOutputStream(), pa.ipc.IpcWriteOptions(compression=compression)
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, table.schema, options=options) as out:
        out.write_table(table, max_chunksize=batch_rows)
    return sink.getvalue().to_pybytes()


def take_altered(root: str, count: str) -> None:
    """Take this many Arrow files with three altered bytes each, and count full, partial and empty results."""
    place, random, result = opened(Path(root)), Random(5), Counter[str]()
    for at in range(int(count)):
        content = bytearray(arrow(records(30, golems=3, tick=1 + 10 * at), stream=at % 2 == 0))
        for _ in range(3):
            content[random.randrange(len(content))] = random.randrange(256)
        place.drop("a.arrow", bytes(content))
        (taken,) = place.take()
        assert taken.records == taken.written + taken.repeated + taken.quarantined
        result["taken" if taken.quarantined == 0 else "in part" if taken.written else "refused"] += 1
    print(json.dumps(result))


def record_owned_birth(place: Place, golem_id: str, owner: str = "owner-1") -> None:
    """Record a golem's birth and the key of its owner, whose private half is KEY."""
    _, birth = born(
        lineage_id=golem_id, generation=0, owner_id=owner, founding=Founding(), market="m", market_hash="-",
        derivation_id="d", policy=SMALL,
    )  # fmt: skip
    place.log.record([life_event(golem_id, NOW, birth)], NOW)
    OwnerKeys(place.home, place.log).register(owner, PUBLIC, NOW)


def line_of(event: LifeEvent, **changes: Any) -> bytes:
    """A life event as a line of a spool file, without its id."""
    fields = {k: v for k, v in event.model_dump(mode="json").items() if v is not None and k != "event_id"}
    return json.dumps(fields | changes).encode()


def register_key(place: Place, golem_id: str) -> None:
    place.log.record([life_event(golem_id, NOW, KeyRegistered(key_id="key-1", public_key=PUBLIC, tick_from=1))], NOW)
