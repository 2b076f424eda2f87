"""Verify the files outside the Delta tables: journals, leases, bundles, conversations, quarantined bytes, heads.

Source: X-9.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bardo_pipeline.errors import BundleError, DamagedError, StoreError
from bardo_pipeline.events.custody.hash_chain import Tip
from bardo_pipeline.events.custody.sealing import SECRET_BYTES, SealKey
from bardo_pipeline.events.life.events import LifeEvent
from bardo_pipeline.inheritance.bundle_files import SIGNATURE, read_bundle
from bardo_pipeline.inheritance.bundle_signature import signature_fault
from bardo_pipeline.storage.conversations.session_files import read_archives, read_session
from bardo_pipeline.storage.delta.checksum_manifest import hash_file
from bardo_pipeline.storage.home import Home, children
from bardo_pipeline.storage.journal.frames import Frame, parse, segment_numbers, segment_path, stated_sizes
from bardo_pipeline.storage.journal.segment_files import journal_folders
from bardo_pipeline.storage.keys.golem_seal_keys import SealKeys
from bardo_pipeline.storage.keys.owner_signing_keys import owner_key_path
from bardo_pipeline.storage.leases import stale_leases
from bardo_pipeline.storage.log.stream_heads import Head, Heads
from bardo_pipeline.storage.projections.derivation_folders import derivation_folders
from bardo_pipeline.storage.verification.check_chain import Chain
from bardo_pipeline.storage.verification.check_delta_files import Described
from bardo_pipeline.storage.verification.report import Findings

# journals


def check_journals(home: Home, findings: Findings) -> dict[str, list[tuple[str, Frame]]]:
    """Check every segment that is not yet drained; return its frames, with their file, by golem."""
    waiting: dict[str, list[tuple[str, Frame]]] = {}
    for folder in journal_folders(home):
        sizes, numbers = stated_sizes(folder), segment_numbers(folder)
        for number in numbers:
            path = segment_path(folder, number)
            try:
                raw = path.read_bytes()
            except FileNotFoundError:  # drained since the listing
                continue
            place = path.relative_to(home.root).as_posix()
            segment = parse(path, raw, sealed=number != numbers[-1], size_stated=sizes.get(number, 0))
            for fault in segment.faults:
                fact = f"at byte {fault.offset}, {len(fault.raw)} bytes {fault.why}"
                findings.broken("journal", fact, file=place, golem_id=fault.golem_id, tick=fault.tick)
            findings.facts["torn bytes in journals"] += segment.torn
            for frame in segment.frames:
                waiting.setdefault(frame.golem_id, []).append((place, frame))
    findings.facts["records in journals"] = sum(map(len, waiting.values()))
    findings.facts["stale leases"] = len(stale_leases(home))
    return waiting


def check_waiting(waiting: Sequence[tuple[str, Frame]], chain: Chain | None, findings: Findings) -> None:
    """Check that a golem's frames are links of its chain or continue it from its tip."""
    tip = chain.tip if chain is not None else Tip()
    for place, frame in sorted(waiting, key=lambda item: item[1].number):
        about = {"tick": frame.tick, "number": frame.number}
        if frame.number <= tip.number:
            if chain is not None and chain.link(frame.number) not in (None, frame.link):
                fact = "another link bears its number"
                findings.broken("journal", fact, file=place, golem_id=frame.golem_id, **about)
            continue
        if (frame.number, frame.previous) != (tip.number + 1, tip.hash):
            fact = f"it does not follow link {tip.number}"
            findings.broken("journal", fact, file=place, golem_id=frame.golem_id, **about)
        tip = Tip(frame.number, frame.link)


# the index of heads


@dataclass(frozen=True)
class Index:
    """Index of stream heads, which makes opening the log fast, and the log version that it describes."""

    version: int
    heads: Heads


def read_index(home: Home, findings: Findings) -> Index | None:
    """Return the index; None if it is missing or unreadable."""
    path = home.index / "heads.arrow"
    try:
        with pa.ipc.open_file(path) as file:
            index = file.read_all()
        index.validate(full=True)
        return Index(int((index.schema.metadata or {})[b"version"]), Heads.from_index(index))
    except FileNotFoundError:
        return None
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        findings.unreadable(_INDEX, error)
        return None


def check_tip(index: Index | None, chain: Chain, findings: Findings) -> None:
    """Check that the index has the golem's tip at the version of the index."""
    indexed = None if index is None else index.heads.of.get(chain.golem_id)
    if index is not None and indexed is not None and indexed.tip != chain.tip_at(index.version):
        fact = "its newest link differs from the log: delete this file, and it is rebuilt"
        findings.broken("index", fact, file=_INDEX, golem_id=chain.golem_id, number=indexed.tip.number)


def check_heads(index: Index, heads: Heads, findings: Findings) -> None:
    """Check that an index of the log's present version has the log's highest ticks and gaps."""
    for golem_id in sorted(index.heads.of.keys() | heads.of.keys()):
        indexed, actual = (of.get(golem_id) or Head() for of in (index.heads.of, heads.of))
        if (indexed.highest, indexed.missing) != (actual.highest, actual.missing):
            fact = "its ticks differ from the log: delete this file, and it is rebuilt"
            findings.broken("index", fact, file=_INDEX, golem_id=golem_id)


_INDEX = "index/heads.arrow"


# bundles, conversations and quarantine


def check_bundles(home: Home, life: Iterable[LifeEvent], findings: Findings) -> None:
    """Check that each folder, also of a candidate, contains the bundle of its name, and that none is missing."""
    names = {path.name for path in home.bundles.glob("[!.]*") if path.is_dir()}
    stores = [derivation / "bundles" for derivation in derivation_folders(home)]  # not of an unfinished rebuild
    candidates = [path for store in stores for path in children(store) if not path.name.startswith(".")]
    for folder in [*(home.bundles / name for name in sorted(names)), *candidates]:
        try:
            files = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
            bundle = read_bundle(files)
            fault = None if bundle.bundle_hash == folder.name else f"it holds bundle {bundle.bundle_hash}"
            if fault is None and SIGNATURE in files:
                fault = signature_fault(bundle)
        except FileNotFoundError:  # its derivation was dropped meanwhile
            continue
        except BundleError as error:
            fault = str(error)
        if fault is not None:
            findings.broken("bundle", fault, file=folder.relative_to(home.root).as_posix())
    findings.facts["bundles"] = len(names)
    for event in life:
        for payload, what, cure in (
            (event.published, "published", "restore it from a backup"),
            (event.imported, "imported", "import it again"),
        ):
            if payload is not None and payload.bundle_hash not in names:
                fact = f"it was {what} and is missing: {cure}"
                findings.broken("bundle", fact, file=f"bundles/{payload.bundle_hash}", golem_id=event.golem_id)


def check_conversations(home: Home, findings: Findings) -> None:
    """Check that each conversation has its header, every stated line and every numbered message, also archived ones."""
    paths = home.conversations.glob("*/*.jsonl")
    for path in sorted(
        {path.with_name(path.name.split(".archive-")[0].removesuffix(".jsonl") + ".jsonl") for path in paths}
    ):
        place = path.relative_to(home.root).as_posix()
        try:
            session = read_session(path)
            if session is None:
                findings.broken("conversation", "it is missing, and its archive is there: restore it", file=place)
                continue
            read_archives(path, session)
        except DamagedError as error:
            place = Path(error.path).relative_to(home.root).as_posix()
            findings.broken("conversation", str(error).removeprefix(f"{error.path} "), file=place)
        except StoreError as error:
            findings.broken("conversation", str(error), file=place)


def check_keys(home: Home, life: Iterable[LifeEvent], findings: Findings) -> None:
    """Check that each key file holds a key on record for its golem or owner; a destroyed key has no file."""
    on_record: dict[str, set[str]] = {}
    for event in life:
        if event.seal_key_made is not None:
            on_record.setdefault(SealKeys(home).path(event.golem_id).name, set()).add(event.seal_key_made.key_id)
        if (owner := event.owner_key_registered) is not None:
            on_record.setdefault(owner_key_path(home, owner.owner_id).name, set()).add(owner.public_key)
    for path in sorted(home.keys.glob("*.key")):
        secret, expected = path.read_bytes(), on_record.get(path.name)
        if expected is not None and (len(secret) != SECRET_BYTES or expected.isdisjoint(_names_of(secret))):
            findings.broken("key", "it holds no key on record", file=path.relative_to(home.root).as_posix())
        findings.facts["key files"] += 1


def _names_of(secret: bytes) -> set[str]:
    """Return the id of a seal key and the public key of a signing key with this secret."""
    return {SealKey(secret).key_id, Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw().hex()}


def check_quarantine(home: Home, items: Sequence[Described], rulings: Sequence[Described], findings: Findings) -> None:
    """Check the hashes of raw quarantined bytes, and count the items without a ruling."""
    waiting = _ids(items, findings) - _ids(rulings, findings)
    findings.facts["in quarantine"] = len(waiting)
    for path in sorted((home.quarantine / "raw").glob("[0-9a-f]*")):
        if not path.suffix and hash_file(path) != path.name:
            place = path.relative_to(home.root).as_posix()
            findings.broken("quarantine", "its bytes differ from those received", file=place)


def _ids(files: Sequence[Described], findings: Findings) -> set[str]:
    ids: set[str] = set()
    for described in files:
        try:
            ids.update(pq.read_table(Path(described.path), columns=["item_id"]).column("item_id").to_pylist())
        except (pa.ArrowException, OSError, ValueError) as error:
            findings.unreadable(described.place, error)
    return ids
