"""Packs and reads a bundle, the content-addressed files that an heir receives. Pure: bytes in, bytes out.

Packing is deterministic: rows are sorted by rank, JSON keys are sorted. The bundle hash is the SHA-256 of the manifest,
which lists the SHA-256 of every file. Source: INH S7, MEM, architecture, canon 41.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from bardo_pipeline.errors import BundleError
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA, STRUCTURE_FIELDS
from bardo_pipeline.grimoire.entry_columns import query_tables
from bardo_pipeline.inheritance.bottleneck import SELECTED_SCHEMA
from bardo_pipeline.inheritance.canonical_json import canonical, jsonl
from bardo_pipeline.inheritance.choice_evidence import ChoiceEvidence, evidence_of
from bardo_pipeline.inheritance.divergence import divergence_counts
from bardo_pipeline.inheritance.testament import CATEGORIES

BUNDLE_VERSION = 3
"""Layout version written by this code; higher versions are refused. Version 2 added links, procedures and learning,
version 3 the outer percentiles of levels."""

ENTRIES, EPISODES, LINEAGE, PLAYBOOK = "entries.jsonl", "episodes.jsonl", "lineage.json", "playbook.md"
TESTAMENT, TESTAMENT_PAGE, MANIFEST = "testament.json", "testament.md", "manifest.json"
LINKS, PROCEDURES, LEARNING = "links.jsonl", "procedures.jsonl", "learning.json"
FILES = (ENTRIES, EPISODES, LEARNING, LINEAGE, LINKS, PLAYBOOK, PROCEDURES, TESTAMENT, TESTAMENT_PAGE)
"""Every file except the manifest and the signature."""

_FILES_OF_FIRST = (ENTRIES, EPISODES, LINEAGE, PLAYBOOK, TESTAMENT, TESTAMENT_PAGE)

LIBRARIAN = "library"
"""Value of golem_id and selected_by in a kit, which has no dead golem and no bottleneck."""

CLADE = "clade"
"""Value of selected_by in a parcel, whose entries passed the gates of the bridge."""

SIGNATURE = "signature.json"
"""The owner's signature over the bundle's hash; the manifest does not list it, because it is made later."""

FILE_BYTES_MAX = 8 * 1024 * 1024
"""Maximal size of a bundle's file; 2,048 entries and 64 episodes take about 2 MB."""

CROSSING_COLUMNS = (
    "entry_id", *[f.name for f in STRUCTURE_FIELDS], "kind", "text", "provenance", "origin_golem_id", "decay_class",
    "is_anti_knowledge", "is_bloodstain", "sign", "confidence_ppm", "confidence_origin_ppm", "generation",
    "effect_mean_ppm", "effect_low_ppm", "effect_high_ppm", "evidence_count", "anchor_at", "created_at", "validated_at",
    "level_p10", "level_p90", "selected_by", "rank",
)  # fmt: skip
"""Columns of an entry in a bundle: content, confidence, origin and selection rule. Own sums, mood, confirmations and
cycles are left out, because an heir must earn them again."""

CROSSING_SCHEMA = pa.schema(
    [ENTRY_SCHEMA.field(n) if n in ENTRY_SCHEMA.names else SELECTED_SCHEMA.field(n) for n in CROSSING_COLUMNS]
)
"""One row per entry of a bundle, in the order of rank."""

_SINCE_THIRD = ("level_p10", "level_p90")
"""Columns of version 3; an earlier bundle states the quartiles of a level alone, and these are read as 0."""

_WRITTEN = pa.schema([f.with_type(pa.string()) if pa.types.is_timestamp(f.type) else f for f in CROSSING_SCHEMA])
_WRITTEN_BEFORE_THIRD = pa.schema([f for f in _WRITTEN if f.name not in _SINCE_THIRD])

PROCEDURE_COLUMNS = (
    "entry_id",
    "in_force",
    "regime",
    "anomaly_band",
    "gas_band",
    "action_type",
    "acts",
    "confidence_ppm",
)
"""One row per crossing rule in the golem's playbook, in force or staged. acts: true if it re-centres, false if it
holds."""

LINK_COLUMNS = ("entry_id", "other_id", "relation", "across", "strength_ppm")
"""One row per link between crossing entries; strengths are computed after the crossing."""

_PROCEDURES = """
    with playbook_rules as (
        select golem_id, unnest(cause_entries) as entry_id, true as in_force from books
        union all select golem_id, unnest(staged_entries), false from books
    )
    select golem_id, entry_id, in_force, regime, anomaly_band, gas_band, action_type, kind = 'heuristic' as acts,
        confidence_ppm
    from crossing join playbook_rules using (golem_id, entry_id) order by golem_id, in_force desc, entry_id
"""


@dataclass(frozen=True)
class Bundle:
    """A bundle's files, manifest included, and the parsed manifest."""

    files: Mapping[str, bytes]
    manifest: Mapping[str, Any]

    @property
    def bundle_hash(self) -> str:
        """SHA-256 of the canonical manifest without this hash, 64 hex characters."""
        return str(self.manifest.get("bundle_hash", ""))

    @property
    def golem_id(self) -> str:
        """The golem whose death produced the bundle."""
        return str(self.manifest.get("golem_id", ""))

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a .jsonl file; BundleError names the file and the line that is not an object."""
        rows = []
        for number, line in enumerate(self.files[name].splitlines(), 1):
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise BundleError(f"{name}, line {number}: not JSON ({error})") from None
            if not isinstance(row, dict):
                raise BundleError(f"{name}, line {number}: not an object")
            rows.append(row)
        return rows

    @property
    def learning(self) -> Any:
        """The unvalidated content of learning.json; None if it is missing or not JSON."""
        try:
            return orjson.loads(self.files.get(LEARNING, b"null"))
        except orjson.JSONDecodeError:
            return None

    @property
    def _written(self) -> pa.Schema:
        """Columns of entries.jsonl in the version of the manifest."""
        version = self.manifest.get("schema_version")
        return _WRITTEN_BEFORE_THIRD if isinstance(version, int) and version < 3 else _WRITTEN

    def entries(self) -> pa.Table:
        """Return entries.jsonl as CROSSING_SCHEMA, parsed once; BundleError if a row does not fit."""
        return self._entries

    @cached_property
    def _entries(self) -> pa.Table:
        bulk = self.plain_entries()
        if bulk is not None:
            return bulk
        try:
            return _of_this_version(pa.Table.from_pylist(self.rows(ENTRIES), schema=self._written))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise BundleError(f"{ENTRIES}: a row does not fit ({error})") from None

    def plain_entries(self) -> pa.Table | None:
        """Read entries.jsonl in bulk as CROSSING_SCHEMA; None if a row has an extra column, a wrong type or a null."""
        content = self.files.get(ENTRIES)
        if not content:
            return None
        options = pj.ParseOptions(explicit_schema=self._written, unexpected_field_behavior="error")
        try:
            read = pj.read_json(pa.BufferReader(content), pj.ReadOptions(use_threads=False), options)
            table = _of_this_version(read)
            table.validate(full=True)
        except (pa.ArrowException, KeyError, ValueError):
            return None
        return table if table.num_rows == content.count(b"\n") and content.endswith(b"\n") else None


def _of_this_version(read: pa.Table) -> pa.Table:
    """Return entries as CROSSING_SCHEMA; columns that the version of their bundle lacks are 0."""
    if _SINCE_THIRD[0] not in read.column_names:
        for name in _SINCE_THIRD:
            read = read.append_column(name, pa.array([0] * read.num_rows, pa.int64()))
    return read.select(CROSSING_SCHEMA.names).cast(CROSSING_SCHEMA)


def pack(
    *,
    golem_id: str,
    generation: int,
    lineage_id: str,
    lineage: Sequence[Mapping[str, Any]],
    died_at: datetime,
    entries: pa.Table,
    episodes: pa.Table,
    playbook: str,
    testament: Mapping[str, Any],
    links: pa.Table,
    procedures: pa.Table,
    learning: Mapping[str, Any],
    derivation_id: str,
    policy_hash: str,
    source_watermark: int,
    left_out: Mapping[str, Any] | None = None,
) -> Bundle:
    """Pack a golem's bundle.

    Parameters
    ----------
    lineage : the golem's ancestors, oldest first, as JSON objects
    entries : pa.Table, SELECTED_SCHEMA after attenuate and shed, of this golem alone
    episodes : pa.Table, selected episodes in order, any columns
    testament : a row of TESTAMENT_SCHEMA
    links : pa.Table, LINK_COLUMNS between these entries
    procedures : pa.Table, PROCEDURE_COLUMNS
    learning : the golem's learning state (learning_state.py), with its evidence (choice_evidence.py)
    source_watermark : int, last tick of the log from which the bundle was derived
    left_out : JSON object, retractions under which it was made (canon 20); None leaves the key out
    """
    testament_content = {name: testament[name] for name in ("golem_id", "at", "generation", "cause", *CATEGORIES)}
    files = {
        ENTRIES: jsonl(entries.select(CROSSING_COLUMNS).sort_by("rank")),
        EPISODES: jsonl(episodes),
        LEARNING: canonical(dict(learning)),
        LINKS: jsonl(links.select(LINK_COLUMNS)),
        PROCEDURES: jsonl(procedures.select(PROCEDURE_COLUMNS)),
        LINEAGE: canonical({"lineage_id": lineage_id, "ancestors": list(lineage)}),
        PLAYBOOK: playbook.encode(),
        TESTAMENT: canonical(testament_content),
        TESTAMENT_PAGE: str(testament["markdown"]).encode(),
    }
    head = {
        "schema_version": BUNDLE_VERSION,
        "golem_id": golem_id,
        "generation": generation,
        "lineage_id": lineage_id,
        "died_at": died_at,
        "derivation_id": derivation_id,
        "policy_hash": policy_hash,
        "source_watermark": source_watermark,
        "anti_knowledge": pc.sum(entries["is_anti_knowledge"]).as_py() or 0,
        "bloodstains": pc.sum(entries["is_bloodstain"]).as_py() or 0,
        "divergence": divergence_counts(testament),
    }
    return seal(files, head if left_out is None else {**head, "left_out": left_out})


def procedures_of(crossing: pa.Table, books: pa.Table) -> pa.Table:
    """Return golem_id and PROCEDURE_COLUMNS of the crossing rules in a playbook, by golem, rules in force first.

    crossing: attenuated entries. books: the last playbook of each golem (golem_id, cause_entries, staged_entries).
    A warning raises the threshold of its regime (the golem holds), a heuristic lowers it (the golem acts).
    """
    names = ["golem_id", "entry_id", "kind", "regime", "anomaly_band", "gas_band", "action_type", "confidence_ppm"]
    return query_tables(_PROCEDURES, crossing=crossing.select(names), books=books)


def seal(files: Mapping[str, bytes], head: Mapping[str, Any]) -> Bundle:
    """Add the manifest: the head, size, rows and hash of each file, and the bundle hash."""
    manifest = orjson.loads(canonical({**head, "files": {name: _listing(name, data) for name, data in files.items()}}))
    manifest["bundle_hash"] = manifest_hash(manifest)
    return Bundle({**files, MANIFEST: canonical(manifest)}, manifest)


def read_bundle(files: Mapping[str, bytes]) -> Bundle:
    """Return the verified bundle; BundleError names each missing, foreign or altered file."""
    bundle = open_bundle(files)
    faults = mismatches(files, bundle.manifest)
    if faults:
        raise BundleError("; ".join(faults))
    return bundle


def open_bundle(files: Mapping[str, bytes]) -> Bundle:
    """Return the unverified bundle, for the expectations to judge; an unreadable manifest becomes empty."""
    try:
        manifest = orjson.loads(files.get(MANIFEST, b""))
    except orjson.JSONDecodeError:
        manifest = {}
    return Bundle(dict(files), manifest if isinstance(manifest, dict) else {})


def mismatches(files: Mapping[str, bytes], manifest: Mapping[str, Any]) -> list[str]:
    """Return one sentence per disagreement between files and manifest, beginning with the file's name."""
    if MANIFEST not in files:
        return [f"{MANIFEST}: missing"]
    listed, version = manifest.get("files"), manifest.get("schema_version")
    if not isinstance(listed, dict):
        return [f"{MANIFEST}: names no files"]
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= BUNDLE_VERSION:
        return [f"{MANIFEST}: schema version {version}; this program reads 1 to {BUNDLE_VERSION}"]
    required = _FILES_OF_FIRST if version == 1 else FILES
    faults = [f"{name}: missing" for name in required if name not in files]
    faults += [f"{name}: not in the manifest" for name in required if name in files and name not in listed]
    foreign = {*files, *listed} - {*required, MANIFEST, SIGNATURE} | ({SIGNATURE} & listed.keys())
    faults += [f"{name}: no file of a bundle" for name in sorted(foreign)]
    for name in required:
        if name in files and name in listed and listed[name] != _listing(name, files[name]):
            faults.append(f"{name}: altered, its SHA-256 is {sha256(files[name])}, the manifest lists {listed[name]}")
    actual = manifest_hash(manifest)
    if manifest.get("bundle_hash") != actual or files.get(MANIFEST) != canonical(manifest):
        faults.append(f"{MANIFEST}: altered, it hashes to {actual} and says {manifest.get('bundle_hash')}")
    return faults


def manifest_hash(manifest: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the canonical manifest without its bundle_hash."""
    return sha256(canonical({name: value for name, value in manifest.items() if name != "bundle_hash"}))


def sha256(data: bytes) -> str:
    """Return the SHA-256 of data, 64 hex characters."""
    return hashlib.sha256(data).hexdigest()


def _listing(name: str, data: bytes) -> dict[str, Any]:
    rows = data.count(b"\n") if name.endswith(".jsonl") else None
    return {"bytes": len(data), "rows": rows, "sha256": sha256(data)}


class Root(NamedTuple):
    """A golem from whose stream entries of a bundle were derived. entries: CROSSING_SCHEMA. source_watermark: the last
    tick that they can depend on. made_without: the records retracted when they were packed. evidence: about choices, of
    that golem and its ancestors."""

    golem_id: str
    entries: pa.Table
    source_watermark: int
    made_without: LeftOut
    evidence: tuple[ChoiceEvidence, ...] = ()


def root_listing(golem_id: str, entry_ids: list[str], source_watermark: int, left: LeftOut) -> dict[str, Any]:
    """Return the JSON object of a root in a kit's manifest (`roots_of` reads it)."""
    return {
        "golem_id": golem_id, "entry_ids": sorted(entry_ids), "source_watermark": source_watermark,
        "left_out": left.listing(golem_id),
    }  # fmt: skip


def roots_of(bundle: Bundle) -> dict[str, Root]:
    """Return golem -> root for a bundle that this home made."""
    entries, manifest = bundle.entries(), bundle.manifest
    if "kit" not in manifest:
        return {bundle.golem_id: _root(manifest, entries)._replace(evidence=evidence_of(bundle.learning))}
    ids = entries["entry_id"]
    return {
        root["golem_id"]: _root(root, entries.filter(pc.is_in(ids, value_set=pa.array(root["entry_ids"], pa.string()))))
        for root in manifest["kit"]["roots"]
    }


def _root(listing: Mapping[str, Any], entries: pa.Table) -> Root:
    golem_id = listing["golem_id"]
    made_without = LeftOut.listed(golem_id, listing.get("left_out"))
    return Root(golem_id, entries, int(listing["source_watermark"]), made_without)
