"""Checks a bundle by itself, without the log of its golem: bytes, shapes, ranges, ends of links. Pure.

A home that receives a foreign bundle has no log of its golem, so it cannot use the expectations of published bundles.
Source: INH-7 ("checked before it is published and again before it is used"); canon 40, 41.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import datetime
from functools import reduce
from itertools import pairwise
from typing import Annotated, Any, NamedTuple, Protocol

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from bardo_pipeline.curator.state.grimoire_state import entry_id
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.errors import BundleError
from bardo_pipeline.events.record.model import REGIMES, Moment, Name, Whole
from bardo_pipeline.grimoire import entries as vocabulary
from bardo_pipeline.grimoire.conditions import are_conditions
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.grimoire.gas_bands import GAS_SPANS
from bardo_pipeline.inheritance import bundle_files as layout
from bardo_pipeline.inheritance.bottleneck import RULES
from bardo_pipeline.inheritance.bundle_files import ENTRIES, EPISODES, LINEAGE, MANIFEST, TESTAMENT, Bundle
from bardo_pipeline.inheritance.learning_state import gate_faults
from bardo_pipeline.inheritance.router_learning import router_faults
from bardo_pipeline.inheritance.testament import CATEGORIES
from bardo_pipeline.policy import InheritancePolicy

_WORDS = {
    "kind": vocabulary.ENTRY_KINDS, "decay_class": vocabulary.DECAY_CLASSES, "source": vocabulary.SOURCES,
    "selected_by": (*RULES, layout.LIBRARIAN, layout.CLADE), "provenance": vocabulary.PROVENANCES,
    "category": tuple(vocabulary.CATEGORIES), "domain": vocabulary.DOMAINS, "regime": REGIMES,
    "anomaly_band": vocabulary.ANOMALY_BANDS, "gas_band": GAS_SPANS, "metric": vocabulary.BASELINE_METRICS,
    "cause": (*vocabulary.CAUSAL_VARIABLES, *vocabulary.CHANGE_CATEGORY), "effect": tuple(vocabulary.EFFECT_CATEGORY),
}  # fmt: skip
"""Columns of an entry with a fixed set of values; null is allowed."""

_SITUATION = ("tool", "action_type", "regime", "anomaly_band", "gas_band")
_PARTS = {
    "pattern": _SITUATION, "baseline": ("metric",), "causal": ("cause", "effect", "lag_ticks"),
    "dream": (*_SITUATION, "cause"), "choice": ("tool", "action_type"), "strategy": ("action_type",),
    "report": ("action_type",),
}  # fmt: skip
"""Required columns of an entry by its source."""

_FACTS = ("baseline", "causal")
"""Sources whose entries decay as facts; all others must not (canon 6)."""

_PERCENTILES = ("level_p10", "effect_low_ppm", "effect_mean_ppm", "effect_high_ppm", "level_p90")
"""Columns of the percentiles that a baseline states, from the 10th to the 90th, all in the metric's unit."""

WHOLE_MAX = 2**53
"""Maximal absolute value of an integer in a bundle: exact in every JSON reader, and sums do not overflow."""

_RANGES = {f.name: (-WHOLE_MAX, WHOLE_MAX) for f in layout.CROSSING_SCHEMA if pa.types.is_integer(f.type)} | {
    "confidence_ppm": (0, PPM), "confidence_origin_ppm": (0, PPM), "generation": (1, WHOLE_MAX),
    "evidence_count": (0, WHOLE_MAX), "lag_ticks": (0, WHOLE_MAX), "sign": (-1, 1),
}  # fmt: skip
_MOMENTS = tuple(f.name for f in layout.CROSSING_SCHEMA if pa.types.is_timestamp(f.type))
_HASH, _TRANSACTION = re.compile(r"[0-9a-f]{64}"), re.compile(r"0x[0-9a-fA-F]{64}")
_ABOUT = (
    (layout.LINKS, layout.LINK_COLUMNS, ("entry_id", "other_id")),
    (layout.PROCEDURES, layout.PROCEDURE_COLUMNS, ("entry_id",)),
)

_PARTS_MAX = 250_000  # a bundle of 2,048 entries and 64 episodes has about 10,000


class _Head(BaseModel):
    """Manifest fields about the dead golem, validated as events require them."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    golem_id: Name
    lineage_id: Name
    died_at: Annotated[Moment, BeforeValidator(lambda text: datetime.fromisoformat(str(text)))]
    derivation_id: Name
    policy_hash: Name
    generation: Whole
    source_watermark: Whole


def inspected(files: Mapping[str, bytes], policy: InheritancePolicy) -> Bundle:
    """Return the bundle in these files. Raises BundleError with every fault; a faulty bundle must not be used."""
    faults = faults_of(files, policy)
    if faults:
        raise BundleError("; ".join(faults))
    return layout.open_bundle(files)


def faults_of(files: Mapping[str, bytes], policy: InheritancePolicy) -> list[str]:
    """Return one sentence per fault of a bundle, beginning with the file's name; empty for a valid bundle.

    Checks sizes, then hashes, then contents, and stops at the first group with faults. The signature is not checked.
    """
    if large := [fault for name in sorted(files) if (fault := _size_fault(name, files[name]))]:
        return large
    bundle = layout.open_bundle(files)
    altered = layout.mismatches(files, bundle.manifest)
    if altered:
        return altered
    if unreadable := [fault for name in sorted(files) if (fault := _text_fault(name, files[name]))]:
        return unreadable
    try:
        head = _Head.model_validate_json(files[MANIFEST], strict=True)
    except ValidationError as error:
        return [f"{MANIFEST}: {'.'.join(map(str, e['loc']))} is {e['input']!r}: {e['msg']}" for e in error.errors()]
    try:
        entries = bundle.entries()
        return [*_entry_faults(entries, head.died_at, policy), *_faults_of_other_files(bundle, entries, policy)]
    except BundleError as error:
        return [str(error)]


def _size_fault(name: str, data: bytes) -> str | None:
    """Return why a file may not be parsed, which would take memory in proportion to its size and to its parts."""
    if len(data) > layout.FILE_BYTES_MAX:
        return f"{name}: larger than {layout.FILE_BYTES_MAX:,} bytes, which no bundle needs"
    if sum(map(data.count, (b"[", b"{", b"\n", b"\r"))) > _PARTS_MAX:
        return f"{name}: more than {_PARTS_MAX:,} lines, lists and objects, which no bundle needs"
    return None


def _text_fault(name: str, data: bytes) -> str | None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return f"{name}: not UTF-8 (byte {error.start})"
    return None


def _entry_faults(entries: pa.Table, died_at: datetime, policy: InheritancePolicy) -> list[str]:
    """Return the faults of entries.jsonl by column."""
    if entries.num_rows > policy.budget:
        return [f"{ENTRIES}: {entries.num_rows:,} entries, and {policy.budget:,} cross a death"]
    faults = []
    for name, (low, high) in _RANGES.items():
        wrong = pc.or_(pc.less(entries[name], low), pc.greater(entries[name], high))
        faults += _named(entries, wrong, lambda row, n=name, a=low, b=high: f"{n} is {row[n]:,}, not in [{a:,}, {b:,}]")
    for name, values in _WORDS.items():
        foreign = pc.invert(pc.is_in(entries[name], value_set=pa.array(values, pa.string())))
        foreign = pc.and_(pc.is_valid(entries[name]), foreign)
        if name == "cause":
            foreign = pc.and_(foreign, pc.not_equal(entries["source"], "report"))
        if name == "domain":  # reports of bundles by earlier versions have the domain of their category
            is_reported = pc.and_(pc.equal(entries["source"], "report"), pc.equal(entries[name], entries["protocol"]))
            foreign = pc.and_(foreign, pc.invert(is_reported))
        faults += _named(entries, foreign, lambda row, n=name: f"{n} is {row[n]!r}, which this version does not know")
    for name in _MOMENTS:
        later = pc.greater(entries[name], pa.scalar(died_at, vocabulary.MOMENT))
        faults += _named(entries, later, lambda row, n=name: f"{n} is {row[n]}, after the death that left it")
    faults += _level_faults(entries)
    faults += _identity_faults(entries)
    if entries["rank"].to_pylist() != list(range(1, entries.num_rows + 1)):
        faults.append(f"{ENTRIES}: ranks do not run from 1 to {entries.num_rows}")
    return faults


def _level_faults(entries: pa.Table) -> list[str]:
    """Return baselines whose percentiles fall; one that states its quartiles alone has outer percentiles of 0."""
    levels = entries.filter(pc.equal(entries["source"], "baseline"))
    has_outer = pc.or_(pc.not_equal(levels["level_p10"], 0), pc.not_equal(levels["level_p90"], 0))
    first, *inner, last = (pc.greater(levels[lower], levels[upper]) for lower, upper in pairwise(_PERCENTILES))
    falls = reduce(pc.or_, [pc.and_(has_outer, pc.or_(first, last)), *inner])
    return _named(levels, falls, _falling_level)


def _falling_level(row: Mapping[str, Any]) -> str:
    figures = ", ".join(f"{name} {row[name]:,}" for name in _PERCENTILES)
    return f"{figures} must not fall from one to the next"


def _identity_faults(entries: pa.Table) -> list[str]:
    """Return missing parts, ids and structures that do not match the parts, and duplicates."""
    faults = []
    for source, parts in _PARTS.items():
        of_source = pc.equal(entries["source"], source)
        for name in parts:
            missing = pc.and_(of_source, pc.is_null(entries[name]))
            faults += _named(entries, missing, lambda _, s=source, n=name: f"a {s} without {n}")
    is_fact = pc.is_in(entries["source"], value_set=pa.array(_FACTS))
    wrong_decay = pc.xor(is_fact, pc.equal(entries["decay_class"], "fact"))
    faults += _named(entries, wrong_decay, lambda row: f"a {row['source']} does not decay as {row['decay_class']}")
    reports = entries.filter(pc.equal(entries["source"], "report"))
    faults += [
        f"{ENTRIES}: entry {row['entry_id']}: cause is {row['cause']!r}, which states no conditions"
        for row in reports.select(["entry_id", "cause"]).to_pylist()
        if not are_conditions(row["cause"])
    ]
    parts_of_each = entries.select(list(Structure._fields)).to_pydict()
    keys = [Structure(*parts).key for parts in zip(*parts_of_each.values(), strict=True)]
    ids = [entry_id(golem_id, key) for golem_id, key in zip(entries["origin_golem_id"].to_pylist(), keys, strict=True)]
    for name, expected in (("structure", keys), ("entry_id", ids)):
        differs = pc.not_equal(entries[name], pa.array(expected, pa.string()))
        faults += _named(entries, differs, lambda row, n=name: f"{n} {row[n]!r} does not fit its content")
    for name in ("entry_id", "structure"):
        counts = entries[name].value_counts()
        duplicates = counts.filter(pc.greater(pc.struct_field(counts, "counts"), 1))
        faults += [f"{ENTRIES}: {name} {row['values']} is in it twice" for row in duplicates.to_pylist()]
    return faults


def _named(entries: pa.Table, wrong: pa.ChunkedArray, say: Any) -> list[str]:
    """Return the fault sentences of the first three wrong entries; a null in `wrong` counts as correct."""
    if not pc.any(wrong).as_py():
        return []
    rows = entries.filter(wrong).slice(0, 3).to_pylist()
    return [f"{ENTRIES}: entry {row['entry_id']}: {say(row)}" for row in rows]


def _faults_of_other_files(bundle: Bundle, entries: pa.Table, policy: InheritancePolicy) -> list[str]:
    """Return rows of a wrong shape, and rows about entries that are not in the bundle."""
    entry_ids = set(entries["entry_id"].to_pylist())
    faults = []
    episodes = len(bundle.rows(EPISODES))
    if episodes > policy.episode_count:
        faults.append(f"{EPISODES}: {episodes} episodes, and {policy.episode_count} go with a bundle")
    for name, columns, ends in _ABOUT:
        for number, row in enumerate(bundle.rows(name) if name in bundle.files else (), 1):
            if set(row) != set(columns):
                faults.append(f"{name}, line {number}: not the columns {', '.join(columns)}")
            elif not all(row[end] in entry_ids for end in ends):
                faults.append(f"{name}, line {number}: about an entry that is not in the bundle")
    testament = _object(bundle, TESTAMENT)
    bad_categories = [name for name in CATEGORIES if not _are_statements(testament.get(name))]
    faults += [f"{TESTAMENT}: {name} is no list of statements" for name in bad_categories]
    if not isinstance(_object(bundle, LINEAGE).get("ancestors"), list):
        faults.append(f"{LINEAGE}: names no ancestors")
    if layout.LEARNING in bundle.files:
        learning = _object(bundle, layout.LEARNING)
        faults += [f"{layout.LEARNING}: {fault}" for fault in (*gate_faults(learning), *router_faults(learning))]
    return faults


def _are_statements(items: Any) -> bool:
    return isinstance(items, list) and all(
        isinstance(item, dict) and isinstance(item.get("statement"), str) for item in items
    )


def _object(bundle: Bundle, name: str) -> dict[str, Any]:
    try:
        value = orjson.loads(bundle.files[name])
    except orjson.JSONDecodeError as error:
        raise BundleError(f"{name}: not JSON ({error})") from None
    if not isinstance(value, dict):
        raise BundleError(f"{name}: not an object")
    return value


def is_hash(text: str) -> bool:
    """Return whether a text is a bundle hash, 64 hex digits; such a text is safe in a path."""
    return _HASH.fullmatch(text) is not None


FILE_NAMES = frozenset({*layout.FILES, MANIFEST, layout.SIGNATURE})
"""Every permitted file name of a bundle."""


class Claim(NamedTuple):
    """An entry's claim that a transaction exists; tx_hash is in lower case."""

    entry_id: str
    tx_hash: str


class ChainCheck(Protocol):
    """Looks up transactions on a chain."""

    def known(self, tx_hashes: Collection[str]) -> set[str]:
        """Return the given hashes (lower case) that exist on the chain."""
        ...


def claims_of(entries: pa.Table) -> tuple[Claim, ...]:
    """Return the transactions named by these entries (entry_id, text), sorted by entry and hash."""
    rows = zip(entries["entry_id"].to_pylist(), entries["text"].to_pylist(), strict=True)
    return tuple(sorted({Claim(entry, tx.lower()) for entry, text in rows for tx in _TRANSACTION.findall(text)}))


def unproven(claims: Collection[Claim], chain: ChainCheck) -> tuple[str, ...]:
    """Return the sorted ids of entries with a transaction that does not exist. Without claims, no lookup is made."""
    if not claims:
        return ()
    confirmed = chain.known({claim.tx_hash for claim in claims})
    return tuple(sorted({claim.entry_id for claim in claims if claim.tx_hash not in confirmed}))
