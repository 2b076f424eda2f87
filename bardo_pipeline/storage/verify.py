"""Verify: everything that a home has on record is walked, and the first break of each kind is named.

Nothing is believed: not Delta, not the index, not this project's own writers. Works while writers run: versions are
pinned first, and maintenance, which alone takes files away, waits until this is done.
Source: issue "Chain of custody"; X-9.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bardo_pipeline.errors import BardoError, BundleError
from bardo_pipeline.events.custody import KeyRing, Tip, in_order
from bardo_pipeline.events.life import LifeEvent
from bardo_pipeline.events.schema import to_models
from bardo_pipeline.inheritance.bundle import read_bundle
from bardo_pipeline.storage.findings import Findings, Report
from bardo_pipeline.storage.heads import Heads
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.protocols import LIFE_LOG_SCHEMA
from bardo_pipeline.storage.sums import Sums
from bardo_pipeline.storage.verify_chain import Rows, check_chains, check_contents
from bardo_pipeline.storage.verify_tables import Added, Pin, check_file, newest_version, walk_table


def verify(home: Home, *, expect: str | None = None) -> Report:
    """Walk chains, signatures, counts, gaps, tables and bundles of a home.

    expect: the digest that an earlier verification printed; a log that is not the one of then is broken.
    """
    findings = Findings()
    root = home.cycles.parent
    with home.lock("log"):
        pins = [pin for path in _tables(home) if (pin := _pinned(home, path)) is not None]
    files = {pin.path: walk_table(pin, root, findings) for pin in pins}
    life = _life(files.get(home.life, []), findings)
    rings = _check_life(life, findings)
    for path in files.keys() - {home.cycles, home.life}:
        for added in files[path]:
            _check_plain(added, findings)
    struck = frozenset((e.golem_id, e.struck.tick) for e in life if e.struck is not None)
    rows = Rows(rings, home.bucket_count, findings, struck)
    check_contents(files.get(home.cycles, []), rows)
    tips: dict[str, Tip] = {}
    heads = Heads()
    for golem_id, stream in check_chains(rows):
        tips[golem_id] = stream.tip
        head = heads.head(golem_id)
        head.record(stream.ticks)
        head.tip = stream.tip
    findings.facts["golems"] = len(tips)
    for event in life:
        if event.gap is not None:
            heads.head(event.golem_id).accept((event.gap.tick_from, event.gap.tick_to))
    _check_bundles(home, life, findings)
    digest = fleet_digest(tips)
    if expect is not None and expect.lower() != digest:
        findings.broken("digest of the fleet", f"it is {digest}, not {expect}: this is not the log of then")
    return findings.report(heads.missing(), digest)


def fleet_digest(tips: Mapping[str, Tip]) -> str:
    """SHA-256 (hex) over the tips of all golems by id: the id, 00, the number as 8 bytes, the hash."""
    digest = hashlib.sha256(b"bardo/fleet/1\0")
    for golem_id, tip in sorted(tips.items()):
        digest.update(golem_id.encode() + b"\0" + tip.number.to_bytes(8, "big") + tip.hash)
    return digest.hexdigest()


def _tables(home: Home) -> list[Path]:
    quarantine = [home.quarantine / "items", home.quarantine / "rulings"]
    return [home.cycles, home.life, home.vectors, *quarantine]


def _pinned(home: Home, path: Path) -> Pin | None:
    version, sums = newest_version(path), Sums(home, path).path
    if version is None:
        return None
    return Pin(path, version, sums, sums.stat().st_size if sums.exists() else 0)


def _check_plain(added: Added, findings: Findings) -> None:
    """A file of which the rows are not chained: it can be read, and holds as many rows as its commit says."""
    try:
        with pq.ParquetFile(added.path, page_checksum_verification=True) as file:
            count = sum(len(batch) for batch in file.iter_batches(65_536))
    except (pa.ArrowException, OSError) as error:
        findings.broken("file", f"it cannot be read: {str(error).splitlines()[0]}", file=f"log/{added.name}")
        return
    check_file(added, count, None, findings)


# life events


def _life(files: Iterable[Added], findings: Findings) -> list[LifeEvent]:
    """Every life event that can be read, each id once."""
    found: dict[str, LifeEvent] = {}
    for added in files:
        place = f"log/{added.name}"
        try:
            table = pq.read_table(added.path)
            check_file(added, len(table), table, findings)
            names = [column.name for column in LIFE_LOG_SCHEMA if column.name in table.column_names]
            events = to_models(_filled(table.select(names)), LifeEvent)
        except (pa.ArrowException, OSError, ValueError) as error:
            findings.broken("file", f"it cannot be read: {str(error).splitlines()[0]}", file=place)
            continue
        for event in events:
            what, golem_id = f"{event.kind} {event.event_id}", event.golem_id
            if event.event_id != event.content_id():
                findings.broken("life event", f"{what} has not the id of its content", file=place, golem_id=golem_id)
            if event.event_id in found:
                findings.broken("life event", f"{what} is on record twice", file=place, golem_id=golem_id)
            found[event.event_id] = event
    findings.facts["life events"] = len(found)
    return list(found.values())


def _filled(table: pa.Table) -> pa.Table:
    for column in LIFE_LOG_SCHEMA:
        if column.name not in table.column_names:
            table = table.append_column(column, pa.nulls(len(table), column.type))
    return table


def _check_life(life: Iterable[LifeEvent], findings: Findings) -> dict[str, KeyRing]:
    """The rings of all golems that have keys; key events follow each other."""
    rings: dict[str, KeyRing] = {}
    for event in in_order(life):
        ring = rings.get(event.golem_id) or KeyRing(event.golem_id)
        try:
            rings[event.golem_id] = ring.after(event)
        except BardoError as error:
            findings.broken("key", f"{event.kind} {event.event_id}: {error}", golem_id=event.golem_id)
    return rings


# bundles


def _check_bundles(home: Home, life: Iterable[LifeEvent], findings: Findings) -> None:
    """What each bundle's folder holds is what its name says; every published one is there."""
    there = {path.name for path in home.bundles.glob("[!.]*") if path.is_dir()}
    for name in sorted(there):
        folder = home.bundles / name
        try:
            bundle = read_bundle({p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()})
            fault = None if bundle.bundle_hash == name else f"it holds bundle {bundle.bundle_hash}"
        except BundleError as error:
            fault = str(error)
        if fault is not None:
            findings.broken("bundle", fault, file=f"bundles/{name}")
    findings.facts["bundles"] = len(there)
    for event in life:
        if event.published is not None and event.published.bundle_hash not in there:
            place = f"bundles/{event.published.bundle_hash}"
            findings.broken("bundle", "it was published and is not there", file=place, golem_id=event.golem_id)
