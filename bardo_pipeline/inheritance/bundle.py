"""The bundle: what a successor receives, as files named by their content. Pure: bytes in, bytes out.

The same death gives the same bytes: rows are in the order of their key, JSON keys are sorted, and the bundle's name is the
SHA-256 of its manifest, which names the SHA-256 of every file. Source: INH S7, MEM, architecture, canon 41.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from bardo_pipeline.errors import BundleError
from bardo_pipeline.grimoire.entries import STRUCTURE_FIELDS
from bardo_pipeline.inheritance.testament import CATEGORIES
from bardo_pipeline.quality.expectations import FORBIDDEN_NAMES, FORBIDDEN_PATTERNS

BUNDLE_VERSION = 1
"""The layout that this code writes; bundles of a higher version are refused."""

ENTRIES, EPISODES, PLAYBOOK = "entries.jsonl", "episodes.jsonl", "playbook.md"
TESTAMENT, TESTAMENT_PAGE, LINEAGE, MANIFEST = "testament.json", "testament.md", "lineage.json", "manifest.json"
FILES = (ENTRIES, EPISODES, LINEAGE, PLAYBOOK, TESTAMENT, TESTAMENT_PAGE)
"""Every file beside the manifest."""

CROSSING_COLUMNS = (
    "entry_id", *[f.name for f in STRUCTURE_FIELDS], "kind", "text", "provenance", "origin_golem_id", "decay_class",
    "is_anti_knowledge", "is_bloodstain", "sign", "confidence_ppm", "confidence_origin_ppm", "generation", "effect_mean_ppm",
    "effect_low_ppm", "effect_high_ppm", "evidence_count", "anchor_at", "created_at", "validated_at", "selected_by", "rank",
)  # fmt: skip
"""What of an entry crosses: what it says, how it is trusted, where it comes from, and why it was chosen. The golem's own
sums, mood, confirmations and cycles do not: what crosses must be earned again. fades_at is computed by the heir."""


@dataclass(frozen=True)
class Bundle:
    """Files as bytes, the manifest among them, and the manifest as read."""

    files: Mapping[str, bytes]
    manifest: Mapping[str, Any]

    @property
    def bundle_hash(self) -> str:
        """SHA-256 of the canonical manifest without this hash, 64 hex characters."""
        return str(self.manifest["bundle_hash"])

    @property
    def golem_id(self) -> str:
        """Whose death left it."""
        return str(self.manifest["golem_id"])

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The rows of a .jsonl file, as they stand there; BundleError names the file and the line that is not JSON."""
        rows = []
        for number, line in enumerate(self.files[name].splitlines(), 1):
            try:
                rows.append(orjson.loads(line))
            except orjson.JSONDecodeError as error:
                raise BundleError(f"{name}, line {number}: not JSON ({error})") from None
        return rows


def forbidden_fields() -> tuple[frozenset[str], tuple[str, ...]]:
    """(names that no entry may have, patterns that no words of an entry may match)."""
    return FORBIDDEN_NAMES, FORBIDDEN_PATTERNS


def pack(
    *, golem_id: str, generation: int, lineage_id: str, lineage: Sequence[Mapping[str, Any]], died_at: Any, entries: pa.Table,
    episodes: pa.Table, playbook: str, testament: Mapping[str, Any], derivation_id: str, policy_hash: str, source_watermark: int,
) -> Bundle:  # fmt: skip
    """Make a golem's bundle.

    entries: what crosses (SELECTED_SCHEMA after attenuate and shed), of this golem alone. episodes: the episodes to take
    along, any columns, in order. testament: a row of TESTAMENT_SCHEMA. lineage: the golem's ancestors, oldest first, as
    JSON objects. died_at: UTC datetime. source_watermark: the last tick of the log that this was derived from.
    """
    entries = entries.sort_by("rank").select(CROSSING_COLUMNS)
    written = {name: testament[name] for name in ("golem_id", "at", "generation", "cause", *CATEGORIES)}
    files = {
        ENTRIES: jsonl(entries),
        EPISODES: jsonl(episodes),
        LINEAGE: canonical({"lineage_id": lineage_id, "ancestors": list(lineage)}),
        PLAYBOOK: playbook.encode(),
        TESTAMENT: canonical(written),
        TESTAMENT_PAGE: str(testament["markdown"]).encode(),
    }
    head = {
        "schema_version": BUNDLE_VERSION, "golem_id": golem_id, "generation": generation, "lineage_id": lineage_id,
        "died_at": died_at, "derivation_id": derivation_id, "policy_hash": policy_hash, "source_watermark": source_watermark,
        "learning_state": None,
    }  # fmt: skip
    return seal(files, head)


def seal(files: Mapping[str, bytes], head: Mapping[str, Any]) -> Bundle:
    """Add the manifest: the head, then count and hash of each file, then the hash of all that."""
    listed = {
        name: {
            "bytes": len(data),
            "rows": data.count(b"\n") if name.endswith(".jsonl") else None,
            "sha256": sha256(data),
        }
        for name, data in files.items()
    }
    manifest = orjson.loads(canonical({**head, "files": listed}))
    manifest["bundle_hash"] = manifest_hash(manifest)
    return Bundle({**files, MANIFEST: canonical(manifest)}, manifest)


def read_bundle(files: Mapping[str, bytes]) -> Bundle:
    """A bundle from its files, each verified; BundleError names the file that is missing, foreign or altered."""
    if MANIFEST not in files:
        raise BundleError(f"{MANIFEST}: missing")
    try:
        manifest = orjson.loads(files[MANIFEST])
    except orjson.JSONDecodeError as error:
        raise BundleError(f"{MANIFEST}: not JSON ({error})") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise BundleError(f"{MANIFEST}: names no files")
    version = manifest.get("schema_version")
    if not isinstance(version, int) or version > BUNDLE_VERSION:
        raise BundleError(f"{MANIFEST}: schema version {version}; this program reads up to {BUNDLE_VERSION}")
    faults = mismatches(files, manifest)
    if faults:
        raise BundleError("; ".join(faults))
    return Bundle(dict(files), manifest)


def mismatches(files: Mapping[str, bytes], manifest: Mapping[str, Any]) -> list[str]:
    """What does not agree between files and manifest, one sentence each, the file first; empty if all does."""
    listed = manifest["files"]
    faults = [f"{name}: missing" for name in sorted({*FILES, *listed} - set(files))]
    faults += [f"{name}: not in the manifest" for name in sorted(set(files) - set(listed) - {MANIFEST})]
    for name in sorted(set(listed) & set(files)):
        said, found = listed[name].get("sha256"), sha256(files[name])
        if said != found:
            faults.append(f"{name}: its SHA-256 is {found[:16]}..., the manifest says {str(said)[:16]}...")
    said, found = manifest.get("bundle_hash"), manifest_hash(manifest)
    if said != found or files.get(MANIFEST) != canonical(manifest):
        faults.append(f"{MANIFEST}: altered, its content hashes to {found[:16]}..., it says {str(said)[:16]}...")
    return faults


def manifest_hash(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical manifest without its own hash."""
    return sha256(canonical({name: value for name, value in manifest.items() if name != "bundle_hash"}))


def canonical(value: Any) -> bytes:
    """JSON with sorted keys, moments in UTC, one line."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE)


def jsonl(table: pa.Table) -> bytes:
    """One canonical line per row."""
    return b"".join(canonical(row) for row in _plain(table).to_pylist())


def sha256(data: bytes) -> str:
    """64 hex characters."""
    return hashlib.sha256(data).hexdigest()


def _plain(table: pa.Table) -> pa.Table:
    """Moments as text, so that rows turn into Python values faster and read back exactly."""
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            table = table.set_column(place, field.name, table.column(place).cast(pa.string()))
    return table
