"""The bundle: what a successor receives, as files named by their content. Pure: bytes in, bytes out.

The same death gives the same bytes: rows are in the order of their rank, JSON keys are sorted, and the bundle's name is
the SHA-256 of its manifest, which names the SHA-256 of every file. Source: INH S7, MEM, architecture, canon 41.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from bardo_pipeline.errors import BundleError
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA, STRUCTURE_FIELDS
from bardo_pipeline.inheritance.bottleneck import SELECTED_SCHEMA
from bardo_pipeline.inheritance.canonical_json import canonical, jsonl
from bardo_pipeline.inheritance.divergence import divergence_counts
from bardo_pipeline.inheritance.testament import CATEGORIES

BUNDLE_VERSION = 2
"""The layout that this code writes; bundles of a higher version are refused. 2 brought links, procedures, learning."""

ENTRIES, EPISODES, LINEAGE, PLAYBOOK = "entries.jsonl", "episodes.jsonl", "lineage.json", "playbook.md"
TESTAMENT, TESTAMENT_PAGE, MANIFEST = "testament.json", "testament.md", "manifest.json"
LINKS, PROCEDURES, LEARNING = "links.jsonl", "procedures.jsonl", "learning.json"
FILES = (ENTRIES, EPISODES, LEARNING, LINEAGE, LINKS, PLAYBOOK, PROCEDURES, TESTAMENT, TESTAMENT_PAGE)
"""Every file beside the manifest."""

_FILES_OF_FIRST = (ENTRIES, EPISODES, LINEAGE, PLAYBOOK, TESTAMENT, TESTAMENT_PAGE)

LIBRARIAN = "library"
"""Who left a bundle that is a kit of library entries, and what chose them: nobody who lived, and no bottleneck."""

SIGNATURE = "signature.json"
"""The owner's signature over the bundle's hash; it stands beside the manifest, which cannot name it."""

FILE_BYTES_MAX = 32 * 1024 * 1024
"""No file of a bundle is larger: 2,048 entries and 64 episodes take about two megabytes."""

CROSSING_COLUMNS = (
    "entry_id", *[f.name for f in STRUCTURE_FIELDS], "kind", "text", "provenance", "origin_golem_id", "decay_class",
    "is_anti_knowledge", "is_bloodstain", "sign", "confidence_ppm", "confidence_origin_ppm", "generation",
    "effect_mean_ppm", "effect_low_ppm", "effect_high_ppm", "evidence_count", "anchor_at", "created_at", "validated_at",
    "selected_by", "rank",
)  # fmt: skip
"""What of an entry crosses: what it says, how far it is trusted, where it comes from, and why it was chosen. The
golem's own sums, mood, confirmations and cycles do not: what crosses must be earned again."""

CROSSING_SCHEMA = pa.schema(
    [ENTRY_SCHEMA.field(n) if n in ENTRY_SCHEMA.names else SELECTED_SCHEMA.field(n) for n in CROSSING_COLUMNS]
)
"""One row per entry of a bundle, in the order of rank."""

_WRITTEN = pa.schema([f.with_type(pa.string()) if pa.types.is_timestamp(f.type) else f for f in CROSSING_SCHEMA])

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
"""One row per rule that crosses and stood in the golem's playbook, in force or staged: when it applies, and whether it
acts (re-centres) or holds."""

LINK_COLUMNS = ("entry_id", "other_id", "relation", "across", "strength_ppm")
"""One row per link among what crosses; strengths are those after the crossing."""


@dataclass(frozen=True)
class Bundle:
    """Files as bytes, the manifest among them, and the manifest as read."""

    files: Mapping[str, bytes]
    manifest: Mapping[str, Any]

    @property
    def bundle_hash(self) -> str:
        """SHA-256 of the canonical manifest without this hash, 64 hex characters."""
        return str(self.manifest.get("bundle_hash", ""))

    @property
    def golem_id(self) -> str:
        """Whose death left it."""
        return str(self.manifest.get("golem_id", ""))

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The rows of a .jsonl file as they stand there; BundleError names the file and the line that is no object."""
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
        """The golem's learning state as it stands there; None where there is none that can be read."""
        try:
            return orjson.loads(self.files.get(LEARNING, b"null"))
        except orjson.JSONDecodeError:
            return None

    def entries(self) -> pa.Table:
        """entries.jsonl as CROSSING_SCHEMA; BundleError if a row does not fit."""
        known = self.plain_entries()
        if known is not None:
            return known
        try:
            return pa.Table.from_pylist(self.rows(ENTRIES), schema=_WRITTEN).cast(CROSSING_SCHEMA)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise BundleError(f"{ENTRIES}: a row does not fit ({error})") from None

    def plain_entries(self) -> pa.Table | None:
        """entries.jsonl as CROSSING_SCHEMA, read in bulk; None where a row has another column, or a value of another
        kind, or none where there must be one."""
        content = self.files.get(ENTRIES)
        if not content:
            return None
        options = pj.ParseOptions(explicit_schema=_WRITTEN, unexpected_field_behavior="error")
        try:
            read = pj.read_json(pa.BufferReader(content), pj.ReadOptions(use_threads=False), options)
            table = read.select(CROSSING_SCHEMA.names).cast(CROSSING_SCHEMA)
            table.validate(full=True)
        except (pa.ArrowException, KeyError, ValueError):
            return None
        return table if table.num_rows == content.count(b"\n") and content.endswith(b"\n") else None


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
    """Make a golem's bundle.

    entries: what crosses (SELECTED_SCHEMA after attenuate and shed), of this golem alone. episodes: those to take
    along, any columns, in order. testament: a row of TESTAMENT_SCHEMA. links: LINK_COLUMNS among those entries.
    procedures: PROCEDURE_COLUMNS. learning: its learning state (learning_state.py). lineage: the golem's ancestors,
    oldest first, as JSON objects. died_at: UTC. source_watermark: the last tick of the log that this was derived from.
    left_out: what of the golem's stream it was made without (canon 20), as a JSON object; the manifest is silent where
    that is None.
    """
    said = {name: testament[name] for name in ("golem_id", "at", "generation", "cause", *CATEGORIES)}
    files = {
        ENTRIES: jsonl(entries.select(CROSSING_COLUMNS).sort_by("rank")),
        EPISODES: jsonl(episodes),
        LEARNING: canonical(dict(learning)),
        LINKS: jsonl(links.select(LINK_COLUMNS)),
        PROCEDURES: jsonl(procedures.select(PROCEDURE_COLUMNS)),
        LINEAGE: canonical({"lineage_id": lineage_id, "ancestors": list(lineage)}),
        PLAYBOOK: playbook.encode(),
        TESTAMENT: canonical(said),
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


def seal(files: Mapping[str, bytes], head: Mapping[str, Any]) -> Bundle:
    """Add the manifest: the head, then size, rows and hash of each file, then the hash of all that."""
    manifest = orjson.loads(canonical({**head, "files": {name: _listing(name, data) for name, data in files.items()}}))
    manifest["bundle_hash"] = manifest_hash(manifest)
    return Bundle({**files, MANIFEST: canonical(manifest)}, manifest)


def read_bundle(files: Mapping[str, bytes]) -> Bundle:
    """A bundle from its files, each verified; BundleError names the file that is missing, foreign or altered."""
    bundle = open_bundle(files)
    faults = mismatches(files, bundle.manifest)
    if faults:
        raise BundleError("; ".join(faults))
    return bundle


def open_bundle(files: Mapping[str, bytes]) -> Bundle:
    """A bundle from its files as they are, for the expectations to judge; an unreadable manifest is an empty one."""
    try:
        manifest = orjson.loads(files.get(MANIFEST, b""))
    except orjson.JSONDecodeError:
        manifest = {}
    return Bundle(dict(files), manifest if isinstance(manifest, dict) else {})


def mismatches(files: Mapping[str, bytes], manifest: Mapping[str, Any]) -> list[str]:
    """What does not agree between files and manifest, one sentence each, the file first; empty if all does."""
    if MANIFEST not in files:
        return [f"{MANIFEST}: missing"]
    listed, version = manifest.get("files"), manifest.get("schema_version")
    if not isinstance(listed, dict):
        return [f"{MANIFEST}: names no files"]
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= BUNDLE_VERSION:
        return [f"{MANIFEST}: schema version {version}; this program reads 1 to {BUNDLE_VERSION}"]
    known = _FILES_OF_FIRST if version == 1 else FILES
    faults = [f"{name}: missing" for name in known if name not in files]
    faults += [f"{name}: not in the manifest" for name in known if name in files and name not in listed]
    foreign = {*files, *listed} - {*known, MANIFEST, SIGNATURE} | ({SIGNATURE} & listed.keys())
    faults += [f"{name}: no file of a bundle" for name in sorted(foreign)]
    for name in known:
        if name in files and name in listed and listed[name] != _listing(name, files[name]):
            faults.append(f"{name}: altered, its SHA-256 is {sha256(files[name])}, the manifest lists {listed[name]}")
    found = manifest_hash(manifest)
    if manifest.get("bundle_hash") != found or files.get(MANIFEST) != canonical(manifest):
        faults.append(f"{MANIFEST}: altered, it hashes to {found} and says {manifest.get('bundle_hash')}")
    return faults


def manifest_hash(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical manifest without its own hash."""
    return sha256(canonical({name: value for name, value in manifest.items() if name != "bundle_hash"}))


def sha256(data: bytes) -> str:
    """64 hex characters."""
    return hashlib.sha256(data).hexdigest()


def _listing(name: str, data: bytes) -> dict[str, Any]:
    rows = data.count(b"\n") if name.endswith(".jsonl") else None
    return {"bytes": len(data), "rows": rows, "sha256": sha256(data)}
