"""Verify all files of a home and report the first break of each kind.

The checks read the files themselves and use neither the Delta library nor the index of stream heads. They work while
writers run: table versions are pinned first, and maintenance, the only process that deletes files, waits.
Source: X-9.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bardo_pipeline.errors import BardoError, ConfigError, StoreError
from bardo_pipeline.events.custody.authority import unaccepted
from bardo_pipeline.events.custody.hash_chain import KeyRing, Tip, rings_after
from bardo_pipeline.events.life.events import LifeEvent
from bardo_pipeline.events.life.life_schema import LIFE_SCHEMA
from bardo_pipeline.events.record.arrow_columns import upcast
from bardo_pipeline.events.record.arrow_schema import to_models
from bardo_pipeline.storage.delta.checksum_manifest import Sums
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.protocol import LIFE_LOG_SCHEMA
from bardo_pipeline.storage.log.stream_heads import Heads
from bardo_pipeline.storage.verification.check_chain import check_chains
from bardo_pipeline.storage.verification.check_delta_files import (
    Described,
    Pin,
    check_bounds,
    check_count,
    newest_version,
    walk_table,
)
from bardo_pipeline.storage.verification.check_projections import check_projections
from bardo_pipeline.storage.verification.check_rows import Rows, check_rows
from bardo_pipeline.storage.verification.check_side_files import (
    check_bundles,
    check_conversations,
    check_heads,
    check_journals,
    check_keys,
    check_quarantine,
    check_tip,
    check_waiting,
    read_index,
)
from bardo_pipeline.storage.verification.report import Findings, Report

_EXPECTED = re.compile(r"(?:([0-9]+):)?([0-9a-f]{64})")
_LACKING = frozenset({"commit", "file", "rows"})
"""Breaks that make rows unavailable; journals and the index of heads then cannot be compared with the log."""
_PIECE_ROWS = 65_536


def verify(home: Home, *, expect: str | None = None) -> Report:
    """Check chains, signatures, counts, gaps, tables, journals, bundles, conversations, keys and derived tables.

    Parameters
    ----------
    expect : digest of an earlier verification; the log of then must be a prefix of the present one

    Raises
    ------
    ConfigError : `expect` is not a digest
    StoreError : the home cannot be read
    """
    expected_version, expected_digest = _parse_digest(expect)
    try:
        return _check_home(home, expected_version, expected_digest)
    except OSError as error:
        raise StoreError(f"{home.root} cannot be read ({error}): see to its folders and their owner") from error


def _check_home(home: Home, expected_version: int | None, expected_digest: str | None) -> Report:
    findings = Findings()
    with home.lock("maintenance", shared=True):
        # Journals are read before the tables: a record that is drained meanwhile is seen twice rather than never.
        waiting, index = check_journals(home, findings), read_index(home, findings)
        with commits_paused(home):
            pins = pins_of(home)
        files = {pin.path: walk_table(pin, home.cycles.parent, findings) for pin in pins}
        life = _check_life(files.get(home.life, []), findings)
        findings.unaccepted = [f"{event.kind} {event.event_id}: {reason}" for event, reason in unaccepted(life)]
        struck = frozenset((event.golem_id, event.struck.tick) for event in life if event.struck is not None)
        rows = Rows(findings, home.bucket_count, _check_rings(life, findings), struck)
        check_rows(files.get(home.cycles, []), rows)
        _check_others(home, files, findings)
        check_bundles(home, life, findings)
        check_conversations(home, findings)
        check_keys(home, life, findings)
        check_projections(home, findings)
        is_whole = _LACKING.isdisjoint(findings.counts)
        heads, past_tips = Heads(), dict[str, Tip]()
        for chain in check_chains(rows.readable, home.bucket_count, findings):
            head = heads.head(chain.golem_id)
            head.record(chain.ticks)
            head.tip = chain.tip
            past_tips[chain.golem_id] = chain.tip_at(expected_version)
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
    if expected_digest is not None and fleet_digest(past_tips) != expected_digest:
        fact = f"it is {fleet_digest(past_tips)}, expected {expected_digest}: earlier records are missing or changed"
        findings.broken("digest of the fleet", fact)
    tips = {golem_id: head.tip for golem_id, head in heads.of.items()}
    findings.facts["golems"] = sum(head.highest > 0 for head in heads.of.values())
    return findings.report(heads.missing(), f"{version}:{fleet_digest(tips)}")


def fleet_digest(tips: Mapping[str, Tip]) -> str:
    """Return the SHA-256 (hex) over the tips of all golems with a link, by id: id, 00, number as 8 bytes, hash."""
    digest = hashlib.sha256(b"bardo/fleet/1\0")
    for golem_id, tip in sorted(tips.items()):
        if tip.number:
            digest.update(golem_id.encode() + b"\0" + tip.number.to_bytes(8, "big") + tip.hash)
    return digest.hexdigest()


@contextmanager
def commits_paused(home: Home) -> Iterator[None]:
    """Pause commits to the tables of the log; writers still acknowledge records."""
    with home.lock("quarantine"), home.lock("log"):
        yield


def pins_of(home: Home) -> list[Pin]:
    """Return the pins of all tables of the log; the caller pauses commits."""
    quarantine = [home.quarantine / "items", home.quarantine / "rulings"]
    pins = []
    for path in (home.cycles, home.life, home.vectors, home.embedding, *quarantine):
        if (version := newest_version(path)) is not None:
            sums = Sums(home, path).path
            pins.append(Pin(path, version, sums, sums.stat().st_size if sums.exists() else 0))
    return pins


def _parse_digest(expect: str | None) -> tuple[int | None, str | None]:
    """Return log version (None for the present one) and hash of an earlier digest; None twice without one."""
    if expect is None:
        return None, None
    match = _EXPECTED.fullmatch(expect.strip().lower())
    if match is None:
        raise ConfigError(f"--expect {expect!r}: give the digest as `bardo verify` printed it, VERSION:HEX or HEX")
    return None if match.group(1) is None else int(match.group(1)), match.group(2)


def _accept(life: Iterable[LifeEvent], heads: Heads) -> None:
    for event in life:
        if event.gap is not None:
            heads.head(event.golem_id).accept((event.gap.tick_from, event.gap.tick_to))


# life events


def _check_life(files: Iterable[Described], findings: Findings) -> list[LifeEvent]:
    """Check that ids of life events are unique and match their content; return the readable events."""
    by_id: dict[str, LifeEvent] = {}
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
            name = f"{event.kind} {event.event_id}"
            if event.event_id != event.content_id():
                fact = f"the id of {name} is not that of its content"
                findings.broken("life event", fact, file=described.place, golem_id=event.golem_id)
            if event.event_id in by_id:
                fact = f"{name} is on record twice"
                findings.broken("life event", fact, file=described.place, golem_id=event.golem_id)
            by_id[event.event_id] = event
    findings.facts["life events"] = len(by_id)
    return list(by_id.values())


def _check_rings(life: Iterable[LifeEvent], findings: Findings) -> dict[str, KeyRing]:
    """Return the key rings by golem, and check that key events follow each other."""
    rings: dict[str, KeyRing] = {}
    keys = [event for event in life if event.kind in ("KeyRegistered", "KeyRotated", "KeyRevoked")]
    for golem_id in sorted({event.golem_id for event in keys}):
        try:
            rings |= rings_after((event for event in keys if event.golem_id == golem_id), {})
        except BardoError as error:
            findings.broken("key", str(error), golem_id=golem_id)
    return rings


# tables without chains


def _check_others(home: Home, files: Mapping[Path, Sequence[Described]], findings: Findings) -> None:
    for path in files.keys() - {home.cycles, home.life}:
        for described in files[path]:
            _check_plain(described, findings)
    items, rulings = (files.get(home.quarantine / name, []) for name in ("items", "rulings"))
    check_quarantine(home, items, rulings, findings)


def _check_plain(described: Described, findings: Findings) -> None:
    count = 0
    try:
        with pq.ParquetFile(described.path, page_checksum_verification=True) as file:
            for batch in file.iter_batches(_PIECE_ROWS):
                batch.validate(full=True)
                count += len(batch)
    except (pa.ArrowException, OSError, ValueError) as error:
        findings.unreadable(described.place, error)
        return
    check_count(described, count, findings)
