"""Verify: everything that a home has on record is walked, and the first break of each kind is named.

Nothing is believed: not Delta, not the index, not this project's own writers. Works while writers run: versions are
pinned first, and maintenance, which alone takes files away, waits until this is done.
Source: X-9.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from bardo_pipeline.errors import BardoError, ConfigError, StoreError
from bardo_pipeline.events.custody.hash_chain import KeyRing, Tip, rings_after
from bardo_pipeline.events.life.events import LifeEvent
from bardo_pipeline.events.record.arrow_schema import LIFE_SCHEMA, to_models
from bardo_pipeline.events.record.upcast import upcast
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.checksum_manifest import Sums
from bardo_pipeline.storage.log.protocol import LIFE_LOG_SCHEMA
from bardo_pipeline.storage.log.stream_heads import Heads
from bardo_pipeline.storage.verification.check_chain import Chain, check_chains
from bardo_pipeline.storage.verification.check_delta_files import (
    Described,
    Pin,
    check_bounds,
    check_count,
    newest_version,
    walk_table,
)
from bardo_pipeline.storage.verification.check_rows import Rows, check_rows
from bardo_pipeline.storage.verification.check_side_files import (
    check_bundles,
    check_heads,
    check_journals,
    check_quarantine,
    check_tip,
    check_waiting,
    read_index,
)
from bardo_pipeline.storage.verification.report import Findings, Report

_EXPECTED = re.compile(r"(?:([0-9]+):)?([0-9a-f]{64})")
_LACKING = frozenset({"commit", "file", "rows"})
"""Breaks for which rows are not there: journals and the index of heads cannot be held against what is left."""
_PIECE_ROWS = 65_536


def verify(home: Home, *, expect: str | None = None) -> Report:
    """Walk chains, signatures, counts, gaps, tables, journals and bundles of a home.

    expect: what an earlier verification gave as its digest; the log of then must be a part of this one.
    Raises ConfigError for an `expect` that is none, StoreError for a home that may not be read.
    """
    asked = _asked(expect)
    try:
        return _walked(home, asked)
    except OSError as error:
        raise StoreError(f"{home.root} cannot be read ({error}): see to its folders and their owner") from error


def _walked(home: Home, asked: _Asked | None) -> Report:
    findings = Findings()
    with home.lock("maintenance", shared=True):
        # What goes to the log meanwhile is seen twice rather than not at all.
        waiting, index = check_journals(home, findings), read_index(home, findings)
        pins = pinned(home)
        files = {pin.path: walk_table(pin, home.cycles.parent, findings) for pin in pins}
        life = _check_life(files.get(home.life, []), findings)
        rows = Rows(findings, home.bucket_count, _check_rings(life, findings), _struck(life))
        check_rows(files.get(home.cycles, []), rows)
        _check_others(home, files, findings)
        check_bundles(home, life, findings)
        is_whole = _LACKING.isdisjoint(findings.counts)
        heads, then = Heads(), dict[str, Tip]()
        for chain in check_chains(rows.readable, home.bucket_count, findings):
            _learn(chain, heads)
            then[chain.golem_id] = chain.tip_at(asked.version if asked is not None else None)
            if is_whole:
                check_waiting(waiting.pop(chain.golem_id, ()), chain, findings)
                check_tip(index, chain, findings)
    version = next((pin.version for pin in pins if pin.path == home.cycles), 0)
    _accept(life, heads)
    if is_whole:
        for frames in waiting.values():
            check_waiting(frames, None, findings)
        if index is not None and index.version == version:
            _accept(life, index.heads)
            check_heads(index, heads, findings)
    if asked is not None and fleet_digest(then) != asked.digest:
        fact = f"it is {fleet_digest(then)}, expected {asked.digest}: records of then are missing, or others"
        findings.broken("digest of the fleet", fact)
    tips = {golem_id: head.tip for golem_id, head in heads.of.items()}
    findings.facts["golems"] = sum(head.highest > 0 for head in heads.of.values())
    return findings.report(heads.missing(), f"{version}:{fleet_digest(tips)}")


def _learn(chain: Chain, heads: Heads) -> None:
    head = heads.head(chain.golem_id)
    head.record(chain.ticks)
    head.tip = chain.tip


def fleet_digest(tips: Mapping[str, Tip]) -> str:
    """SHA-256 (hex) over the tips of all golems with a link, by id: the id, 00, the number as 8 bytes, the hash."""
    digest = hashlib.sha256(b"bardo/fleet/1\0")
    for golem_id, tip in sorted(tips.items()):
        if tip.number:
            digest.update(golem_id.encode() + b"\0" + tip.number.to_bytes(8, "big") + tip.hash)
    return digest.hexdigest()


def pinned(home: Home) -> list[Pin]:
    """Every table of the log as it is at one moment, nobody committing."""
    with still(home):
        return pins_of(home)


@contextmanager
def still(home: Home) -> Iterator[None]:
    """Nobody commits to a table of the log; records are acknowledged all the same."""
    with home.lock("quarantine"), home.lock("log"):
        yield


def pins_of(home: Home) -> list[Pin]:
    """Every table of the log as it is now, for whoever keeps it still."""
    quarantine = [home.quarantine / "items", home.quarantine / "rulings"]
    found = (
        (path, newest_version(path)) for path in (home.cycles, home.life, home.vectors, home.embedding, *quarantine)
    )
    return [_pin(home, path, version) for path, version in found if version is not None]


def _pin(home: Home, path: Path, version: int) -> Pin:
    sums = Sums(home, path).path
    return Pin(path, version, sums, sums.stat().st_size if sums.exists() else 0)


class _Asked(NamedTuple):
    """An earlier digest, and the version of the log of then; None for today's."""

    version: int | None
    digest: str


def _asked(expect: str | None) -> _Asked | None:
    if expect is None:
        return None
    found = _EXPECTED.fullmatch(expect.strip().lower())
    if found is None:
        raise ConfigError(f"--expect {expect!r}: give the digest as `bardo verify` printed it, VERSION:HEX or HEX")
    return _Asked(None if found.group(1) is None else int(found.group(1)), found.group(2))


def _struck(life: Iterable[LifeEvent]) -> frozenset[tuple[str, int]]:
    return frozenset((event.golem_id, event.struck.tick) for event in life if event.struck is not None)


def _accept(life: Iterable[LifeEvent], heads: Heads) -> None:
    for event in life:
        if event.gap is not None:
            heads.head(event.golem_id).accept((event.gap.tick_from, event.gap.tick_to))


# life events


def _check_life(files: Iterable[Described], findings: Findings) -> list[LifeEvent]:
    """Every life event that can be read, each id once; its id is that of its content."""
    found: dict[str, LifeEvent] = {}
    for described in files:
        try:
            with pq.ParquetFile(described.path, page_checksum_verification=True) as file:
                table = upcast(file.read(), LIFE_LOG_SCHEMA)
            table.validate(full=True)
            check_count(described, len(table), findings)
            check_bounds(described, table, findings)
            events = to_models(table.select(LIFE_SCHEMA.names), LifeEvent)
        except (pa.ArrowException, OSError, ValueError, BardoError) as error:
            findings.unreadable(described.place, error)
            continue
        for event in events:
            what = f"{event.kind} {event.event_id}"
            if event.event_id != event.content_id():
                fact = f"{what} has not the id of its content"
                findings.broken("life event", fact, file=described.place, golem_id=event.golem_id)
            if event.event_id in found:
                fact = f"{what} is on record twice"
                findings.broken("life event", fact, file=described.place, golem_id=event.golem_id)
            found[event.event_id] = event
    findings.facts["life events"] = len(found)
    return list(found.values())


def _check_rings(life: Iterable[LifeEvent], findings: Findings) -> dict[str, KeyRing]:
    """The rings of all golems that have keys; key events follow each other."""
    rings: dict[str, KeyRing] = {}
    keys = [event for event in life if event.kind in ("KeyRegistered", "KeyRotated", "KeyRevoked")]
    for golem_id in sorted({event.golem_id for event in keys}):
        try:
            rings |= rings_after((event for event in keys if event.golem_id == golem_id), {})
        except BardoError as error:
            findings.broken("key", str(error), golem_id=golem_id)
    return rings


# tables of which the rows are not chained


def _check_others(home: Home, files: Mapping[Path, Sequence[Described]], findings: Findings) -> None:
    for path in files.keys() - {home.cycles, home.life}:
        for described in files[path]:
            _check_plain(described, findings)
    items, rulings = (files.get(home.quarantine / name, []) for name in ("items", "rulings"))
    check_quarantine(home, items, rulings, findings)


def _check_plain(described: Described, findings: Findings) -> None:
    """A file can be read, and holds as many rows as its commit says."""
    count = 0
    try:
        with pq.ParquetFile(described.path, page_checksum_verification=True) as file:
            for batch in file.iter_batches(_PIECE_ROWS):
                batch.validate(full=True)
                count += len(batch)
    except (pa.ArrowException, OSError) as error:
        findings.unreadable(described.place, error)
        return
    check_count(described, count, findings)
