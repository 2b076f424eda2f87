"""Inspection: whether a bundle may be read at all, told without its golem's record. Pure.

The expectations judge a bundle beside what is on record of the golem that left it; whoever gets a bundle from elsewhere
has no such record. What can be said of the bundle alone is said here: bytes, shapes, ranges, ends of links.
Source: INH-7 ("checked before it is published and again before it is used"); canon 40, 41.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.errors import BundleError
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.grimoire.entries import DECAY_CLASSES, ENTRY_KINDS, PROVENANCES, SOURCES
from bardo_pipeline.inheritance.bottleneck import RULES
from bardo_pipeline.inheritance.bundle import (
    ENTRIES,
    EPISODES,
    FILE_BYTES_MAX,
    FILES,
    LEARNING,
    LIBRARIAN,
    LINEAGE,
    LINK_COLUMNS,
    LINKS,
    MANIFEST,
    PROCEDURE_COLUMNS,
    PROCEDURES,
    SIGNATURE,
    TESTAMENT,
    Bundle,
    mismatches,
    open_bundle,
)
from bardo_pipeline.inheritance.testament import CATEGORIES
from bardo_pipeline.policy import InheritancePolicy

_WORDS = {"kind": ENTRY_KINDS, "decay_class": DECAY_CLASSES, "source": SOURCES, "selected_by": (*RULES, LIBRARIAN),
          "provenance": PROVENANCES}  # fmt: skip
_WHOLE_PPM = ("confidence_ppm", "confidence_origin_ppm")
_HASH = re.compile(r"[0-9a-f]{64}")
_ABOUT = ((LINKS, LINK_COLUMNS, ("entry_id", "other_id")), (PROCEDURES, PROCEDURE_COLUMNS, ("entry_id",)))
_HEAD = {"golem_id": str, "lineage_id": str, "died_at": str, "derivation_id": str, "policy_hash": str}


def inspected(files: Mapping[str, bytes], policy: InheritancePolicy) -> Bundle:
    """The bundle in these files. Raises BundleError that names every fault: nothing of it may be used then."""
    faults = faults_of(files, policy)
    if faults:
        raise BundleError("; ".join(faults))
    return open_bundle(files)


def faults_of(files: Mapping[str, bytes], policy: InheritancePolicy) -> list[str]:
    """What is wrong with a bundle, one sentence each, the file first; empty if it may be read.

    Sizes first, then hashes, and only of what its manifest vouches for, what is in it. The signature is not asked here.
    """
    large = [name for name, data in files.items() if len(data) > FILE_BYTES_MAX]
    if large:
        return [f"{name}: larger than {FILE_BYTES_MAX:,} bytes, which no bundle needs" for name in sorted(large)]
    bundle = open_bundle(files)
    altered = mismatches(files, bundle.manifest)
    if altered:
        return altered
    try:
        return [*_head(bundle.manifest), *_entries(bundle, policy), *_beside(bundle, policy)]
    except BundleError as error:
        return [str(error)]


def _head(manifest: Mapping[str, Any]) -> list[str]:
    faults = [
        f"{MANIFEST}: {name} is {manifest.get(name)!r}"
        for name, kind in _HEAD.items()
        if not isinstance(manifest.get(name), kind) or not manifest[name]
    ]
    for name in ("generation", "source_watermark"):
        value = manifest.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            faults.append(f"{MANIFEST}: {name} is {value!r}, not a number from 0 up")
    return faults


def _entries(bundle: Bundle, policy: InheritancePolicy) -> list[str]:
    """Faults of entries.jsonl, by column."""
    entries = bundle.entries()
    if entries.num_rows > policy.budget:
        return [f"{ENTRIES}: {entries.num_rows:,} entries, and {policy.budget:,} cross a death"]
    faults = []
    for name in _WHOLE_PPM:
        wrong = pc.or_(pc.less(entries[name], 0), pc.greater(entries[name], PPM))
        faults += _named(entries, wrong, lambda row, n=name: f"{n} is {row[n] / PPM:g}, not in [0, 1]")
    for name in ("generation", "evidence_count"):
        low = 1 if name == "generation" else 0
        faults += _named(entries, pc.less(entries[name], low), lambda row, n=name: f"{n} is {row[n]}")
    for name, known in _WORDS.items():
        foreign = pc.invert(pc.is_in(entries[name], value_set=pa.array(known, pa.string())))
        faults += _named(entries, foreign, lambda row, n=name: f"{n} is {row[n]!r}, which is none of ours")
    twice = [name for name, count in Counter(entries["entry_id"].to_pylist()).items() if count > 1]
    faults += [f"{ENTRIES}: entry {name} is in it twice" for name in sorted(twice)]
    if entries["rank"].to_pylist() != list(range(1, entries.num_rows + 1)):
        faults.append(f"{ENTRIES}: ranks do not run from 1 to {entries.num_rows}")
    return faults


def _named(entries: pa.Table, wrong: pa.Array, say: Any) -> list[str]:
    rows = entries.filter(wrong).slice(0, 3).to_pylist()
    return [f"{ENTRIES}: entry {row['entry_id']}: {say(row)}" for row in rows]


def _beside(bundle: Bundle, policy: InheritancePolicy) -> list[str]:
    """Faults of the other files: rows of the right shape, about entries that are there."""
    known = set(bundle.entries()["entry_id"].to_pylist())
    faults = []
    episodes = len(bundle.rows(EPISODES))
    if episodes > policy.episode_count:
        faults.append(f"{EPISODES}: {episodes} episodes, and {policy.episode_count} go with a bundle")
    for name, columns, ends in _ABOUT:
        for number, row in enumerate(bundle.rows(name) if name in bundle.files else (), 1):
            if set(row) != set(columns):
                faults.append(f"{name}, line {number}: not the columns {', '.join(columns)}")
            elif not all(row[end] in known for end in ends):
                faults.append(f"{name}, line {number}: about an entry that is not in the bundle")
    testament = _object(bundle, TESTAMENT)
    faults += [f"{TESTAMENT}: {name} is no list" for name in CATEGORIES if not isinstance(testament.get(name), list)]
    if not isinstance(_object(bundle, LINEAGE).get("ancestors"), list):
        faults.append(f"{LINEAGE}: names no ancestors")
    if LEARNING in bundle.files:
        _object(bundle, LEARNING)
    return faults


def _object(bundle: Bundle, name: str) -> dict[str, Any]:
    try:
        value = orjson.loads(bundle.files[name])
    except orjson.JSONDecodeError as error:
        raise BundleError(f"{name}: not JSON ({error})") from None
    if not isinstance(value, dict):
        raise BundleError(f"{name}: not an object")
    return value


def is_hash(text: str) -> bool:
    """Whether a text is a bundle's hash: 64 hex digits, which no path can be hidden in."""
    return _HASH.fullmatch(text) is not None


def file_names() -> frozenset[str]:
    """Every name that a file of a bundle may have."""
    return frozenset({*FILES, MANIFEST, SIGNATURE})
