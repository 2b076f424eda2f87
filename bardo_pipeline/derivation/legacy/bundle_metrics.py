"""Measures candidate bundles: one frame with a row per bundle, one with a row per entry. Pure.

Limits and severities are in quality/bundle_expectations.py. Source: P-5; INH S7, S8.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.clock import micros_of
from bardo_pipeline.errors import BundleError
from bardo_pipeline.events.record.arrow_columns import all_nullable, contiguous
from bardo_pipeline.grimoire import confidence as conf
from bardo_pipeline.grimoire.confidence import DAY_US, PPM
from bardo_pipeline.grimoire.entries import DECAY_CLASSES
from bardo_pipeline.grimoire.entry_columns import bool_column, confidence_of, floor_of, int_column, micros
from bardo_pipeline.inheritance.bundle_files import ENTRIES, EPISODES, LINKS, TESTAMENT_PAGE, Bundle, mismatches
from bardo_pipeline.inheritance.weismann import crossing_limit
from bardo_pipeline.katabasis.anonymous_votes import entries_of_dead_golems
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.bundle_expectations import (
    FORBIDDEN_NAMES,
    PROVENANCE_MOMENTS,
    PROVENANCE_NUMBERS,
    PROVENANCE_TEXTS,
    WORDED_FIELDS,
)

BUNDLE_FRAME = {
    "candidate": "int64",
    "bundle_hash": "string",
    "golem_id": "string",
    "entry_count": "Int64",
    "episode_count": "Int64",
    "anti_knowledge_missing": "Int64",
    "hash_mismatches": "Int64",
    "testament_bytes": "Int64",
    "links_loose": "Int64",
    "confidence_mean": "Float64",
    "unsure_share": "Float64",
    "lasting_share": "Float64",
    "stale_share": "Float64",
    "domain_count": "Int64",
    "domains_lost": "Int64",
    "confidence_drift": "Float64",
    "domain_drift": "Float64",
    "size_ratio": "Float64",
    "divergence": "Float64",
    "novel_count": "Int64",
    "invalidated_missing": "Int64",
    "gap_count": "Int64",
    "question_ratio": "Float64",
}
"""Column -> pandas type; one row per candidate. A measure that does not apply is null, which fails no expectation."""

ENTRY_FRAME = pa.schema(
    [
        pa.field("candidate", pa.int64()),
        *all_nullable(pa.string(), "bundle_hash", "golem_id", "entry_id"),
        pa.field("confidence", pa.float64()),
        *all_nullable(pa.int64(), "confidence_death_ppm", "confidence_limit_ppm"),
        pa.field("decay_class", pa.string()),
        *all_nullable(pa.int64(), "provenance_missing", "forbidden_fields"),
        pa.field("words", pa.string()),
    ]
)
"""One row per entry of a candidate."""

ENTRY_MEASURES = tuple(ENTRY_FRAME.names[3:])

_CODED = ("bundle_hash", "golem_id", "decay_class")
"""Columns that become pandas categoricals, to save memory."""

_LASTING = "structural"
_EXACT = 2**53

Row = Mapping[str, Any]


class AtDeath(NamedTuple):
    """A golem's entries at its death: entry -> (confidence, floor) in ppm, ids of anti-knowledge, domains."""

    at_us: int
    confidence: dict[str, tuple[int, int]]
    anti_knowledge: set[str]
    domains: set[str]


class Candidate(NamedTuple):
    """A bundle to judge, its recorded hash, its golem's entries, and the bundle the golem was born with (or None)."""

    bundle_hash: str
    bundle: Bundle
    facts: AtDeath
    before: Bundle | None = None


def at_death(entries: pa.Table, deaths: pa.Table, policy: Policy) -> dict[str, AtDeath]:
    """Return golem -> its entries at death.

    Parameters
    ----------
    entries : pa.Table, ENTRY_SCHEMA, with bloodstains (`leave_bloodstains`)
    deaths : pa.Table with golem_id and at
    """
    active = entries.filter(pc.equal(entries.column("status"), "active"))
    dead, at_us = entries_of_dead_golems(active, deaths)
    names, ids = dead.column("golem_id").to_pylist(), dead.column("entry_id").to_pylist()
    confidence = confidence_of(dead, at_us, policy.decay).tolist()
    floor, immune = floor_of(dead, policy.decay).tolist(), bool_column(dead, "is_anti_knowledge").tolist()
    moments = dict(zip(deaths.column("golem_id").to_pylist(), micros(deaths, "at").tolist(), strict=True))
    facts = {name: AtDeath(moment, {}, set(), set()) for name, moment in moments.items()}
    columns = (names, ids, confidence, floor, immune, dead.column("domain").to_pylist())
    for name, entry_id, ppm, floor_ppm, is_immune, domain in zip(*columns, strict=True):
        facts[name].confidence[entry_id] = (ppm, floor_ppm)
        facts[name].domains.add(domain)
        if is_immune:
            facts[name].anti_knowledge.add(entry_id)
    return facts


class Frames(NamedTuple):
    """Pandas frames: bundles (BUNDLE_FRAME), entries (ENTRY_FRAME without words), and the words of the entries.

    Words are kept apart, because they need most of the memory.
    """

    bundles: Any
    entries: Any
    words: Any


def frames_of(candidates: Iterable[Candidate], policy: Policy) -> Frames:
    """Measure candidates, numbered from 0; each bundle is released after its measurement."""
    import pandas as pd

    bundles: list[dict[str, Any]] = []
    entries = [ENTRY_FRAME.empty_table()]
    for number, candidate in enumerate(candidates):
        facts = entry_facts(candidate.bundle, candidate.facts.at_us, policy)
        key = {"candidate": number, "bundle_hash": candidate.bundle_hash, "golem_id": candidate.bundle.golem_id}
        measures = _measures_of_bundle(candidate, facts, policy)
        bundles.append(
            {**key, **measures, **_distributions(candidate, facts, policy), **_divergence(candidate.bundle, policy)}
        )
        columns = {name: pa.repeat(value, len(facts.ids)) for name, value in key.items()}
        columns |= _measures_of_entries(candidate.facts, facts, policy)
        entries.append(pa.table(columns, schema=ENTRY_FRAME))
    bundle_frame, entry_table = pd.DataFrame(bundles), pa.concat_tables(entries)
    for name in _CODED:
        place = entry_table.schema.get_field_index(name)
        entry_table = entry_table.set_column(place, name, entry_table[name].combine_chunks().dictionary_encode())
    texts = pd.StringDtype(na_value=np.nan)
    return Frames(
        bundle_frame.reindex(columns=list(BUNDLE_FRAME)).astype(BUNDLE_FRAME),
        entry_table.drop_columns("words").to_pandas(types_mapper={pa.string(): texts}.get),
        entry_table.select(["candidate", "bundle_hash", "words"]).to_pandas(types_mapper={pa.string(): texts}.get),
    )


def _rows(bundle: Bundle, name: str) -> tuple[list[dict[str, Any]], int]:
    try:
        return bundle.rows(name), 0
    except (BundleError, KeyError):
        return [], 1


class EntryFacts(NamedTuple):
    """Columns of a bundle's entries.

    stated: recorded confidence in ppm. now: confidence decayed to the golem's death in ppm. domains: of the entries
    with one. missing: number of absent provenance fields. forbidden: number of forbidden fields. unreadable: 1 if the
    entries file cannot be read.
    """

    ids: pa.Array
    stated: pa.Array
    now: Int64Array
    validated_us: pa.Array
    domains: pa.Array
    classes: pa.Array
    missing: list[int]
    forbidden: list[int]
    words: pa.Array
    unreadable: int = 0


def entry_facts(bundle: Bundle, at_us: int, policy: Policy) -> EntryFacts:
    """Return the columns of a bundle's entries: vectorised if all rows are well-formed, else row by row."""
    table = bundle.plain_entries()
    if table is not None and pc.max(pc.abs(table["confidence_ppm"])).as_py() <= _EXACT:
        return _in_bulk(table, at_us, policy)
    rows, unreadable = _rows(bundle, ENTRIES)
    return row_by_row(rows, at_us, policy, unreadable)


def _in_bulk(table: pa.Table, at_us: int, policy: Policy) -> EntryFacts:
    empty = [pc.equal(table[name], "").cast(pa.int64()).to_numpy() for name in PROVENANCE_TEXTS]
    classes = pc.index_in(table["decay_class"], value_set=pa.array(DECAY_CLASSES)).fill_null(0)
    codes = classes.to_numpy().astype(np.int64)
    stained = bool_column(table, "is_bloodstain")
    half_life = conf.half_life_us(codes, int_column(table, "evidence_count"), stained, policy.decay)
    floor = conf.floor_ppm(bool_column(table, "is_anti_knowledge"), stained, policy.decay)
    now = conf.confidence_at(int_column(table, "confidence_ppm"), micros(table, "anchor_at"), at_us, half_life, floor)
    words = [table[name].combine_chunks() for name in WORDED_FIELDS]
    return EntryFacts(
        ids=contiguous(table["entry_id"]),
        stated=contiguous(table["confidence_ppm"]),
        now=now,
        validated_us=pa.array(micros(table, "validated_at")),
        domains=contiguous(table["domain"]),
        classes=contiguous(table["decay_class"]),
        missing=np.sum(empty, axis=0).tolist(),
        forbidden=[0] * table.num_rows,  # a well-formed table has no other columns
        words=pc.binary_join_element_wise(*words, " ", null_handling="skip"),
    )


def row_by_row(rows: Sequence[Row], at_us: int, policy: Policy, unreadable: int = 0) -> EntryFacts:
    """Return the columns of arbitrary, possibly malformed rows."""
    ids = [row.get("entry_id") if isinstance(row.get("entry_id"), str) else None for row in rows]
    stated = [row["confidence_ppm"] if _is_number(row.get("confidence_ppm")) else None for row in rows]
    words = [" ".join(str(row[n]) for n in WORDED_FIELDS if row.get(n) is not None) for row in rows]
    return EntryFacts(
        ids=pa.array(ids, pa.string()),
        stated=pa.array(stated, pa.int64()),
        now=_confidence_then(rows, at_us, policy),
        validated_us=pa.array([_micros(row.get("validated_at")) for row in rows], pa.int64()),
        domains=pa.array([row["domain"] for row in rows if isinstance(row.get("domain"), str)], pa.string()),
        classes=pa.array([str(row.get("decay_class")) for row in rows], pa.string()),
        missing=[_missing(row) for row in rows],
        forbidden=[len(FORBIDDEN_NAMES & row.keys()) for row in rows],
        words=pa.array(words, pa.string()),
        unreadable=unreadable,
    )


def _measures_of_bundle(candidate: Candidate, facts: EntryFacts, policy: Policy) -> dict[str, int | None]:
    bundle, anti_knowledge, entry_ids = (
        candidate.bundle,
        candidate.facts.anti_knowledge,
        {*facts.ids.drop_null().to_pylist()},
    )
    episodes, unreadable_episodes = _rows(bundle, EPISODES)
    faults = len(mismatches(bundle.files, bundle.manifest)) + (bundle.bundle_hash != candidate.bundle_hash)
    links, unreadable_links = _rows(bundle, LINKS) if LINKS in bundle.files else ([], 0)
    return {
        "entry_count": len(facts.ids),
        "episode_count": len(episodes),
        "anti_knowledge_missing": min(len(anti_knowledge), policy.inheritance.budget) - len(anti_knowledge & entry_ids),
        "hash_mismatches": faults + facts.unreadable + unreadable_episodes + unreadable_links,
        "testament_bytes": len(bundle.files.get(TESTAMENT_PAGE, b"")),
        "links_loose": sum(str(row.get(end)) not in entry_ids for row in links for end in ("entry_id", "other_id")),
    }


def _divergence(bundle: Bundle, policy: Policy) -> dict[str, float | None]:
    """Divergence from the inherited knowledge, from the manifest (divergence.py); null without inheritance."""
    divergence = bundle.manifest.get("divergence")
    fields: Mapping[str, Any] = divergence if isinstance(divergence, dict) else {}
    count = {name: value for name, value in fields.items() if _is_number(value)}
    given = count.get("inherited_count", 0)
    invalidated_min = min(policy.divergence.invalidated_min, given)

    def share(name: str) -> float | None:
        return count[name] / PPM if name in count else None

    return {
        "divergence": share("divergence_ppm") if given else None,
        "novel_count": count.get("novel_count") if given else None,
        "invalidated_missing": max(invalidated_min - count.get("invalidated_count", 0), 0) if given else None,
        "gap_count": count.get("gap_count"),
        "question_ratio": share("question_ratio_ppm"),
    }


def _distributions(candidate: Candidate, facts: EntryFacts, policy: Policy) -> dict[str, Any]:
    """Distribution measures, and their drift from the bundle that the golem was born with.

    Measures are null for fewer entries than the policy's minimum sample.
    """
    domains, rules, at_us = Counter(facts.domains.to_pylist()), policy.steward, candidate.facts.at_us
    measures: dict[str, Any] = {
        "domain_count": len(domains) if facts.ids else None,
        "domains_lost": len(candidate.facts.domains - domains.keys()),
    }
    if len(facts.ids) >= rules.sample_min:
        is_stale = pc.fill_null(pc.less(facts.validated_us, at_us - int(rules.stale_days * DAY_US)), True)
        measures |= {
            "confidence_mean": float(facts.now.mean()) / PPM,
            "unsure_share": float((facts.now < conf.ppm(policy.curator.prune_confidence)).mean()),
            "lasting_share": pc.sum(pc.equal(facts.classes, _LASTING)).as_py() / len(facts.ids),
            "stale_share": pc.sum(is_stale).as_py() / len(facts.ids),
        }
    return measures | _drift(candidate.before, facts.now, domains, policy)


def _drift(before: Bundle | None, now: Int64Array, domains: Counter[str], policy: Policy) -> dict[str, float]:
    """Drift from the inherited bundle: Kolmogorov-Smirnov distance of confidence, moved share of domains, size."""
    if before is None:
        return {}
    inherited = entry_facts(before, _micros(before.manifest.get("died_at")) or 0, policy)
    then, out = inherited.now, dict[str, float]()
    if max(len(then), len(now)) >= policy.steward.sample_min and len(then):
        out["size_ratio"] = len(now) / len(then)
    if min(len(then), len(now)) >= policy.steward.sample_min:
        out["confidence_drift"] = largest_gap(then, now)
        out["domain_drift"] = moved_share(Counter(inherited.domains.to_pylist()), domains)
    return out


def largest_gap(a: Int64Array, b: Int64Array) -> float:
    """Return the Kolmogorov-Smirnov statistic of two samples: the largest gap of their distributions, in [0, 1]."""
    both = np.sort(np.concatenate([a, b]))
    shares = [np.searchsorted(np.sort(sample), both, side="right") / len(sample) for sample in (a, b)]
    return float(np.abs(shares[0] - shares[1]).max())


def moved_share(a: Counter[str], b: Counter[str]) -> float:
    """Return half the L1 distance of two distributions: the share that would have to change its kind, in [0, 1]."""
    return sum(abs(a[name] / a.total() - b[name] / b.total()) for name in {*a, *b}) / 2


def _measures_of_entries(facts: AtDeath, columns: EntryFacts, policy: Policy) -> dict[str, Any]:
    """Entry measures as columns (ENTRY_MEASURES); entries unknown to the golem get confidence limit 0."""
    known = [facts.confidence.get(entry_id or "", (0, 0)) for entry_id in columns.ids.to_pylist()]
    at_death, floor = np.array(known, np.int64).reshape(-1, 2).T
    return {
        "entry_id": columns.ids,
        "confidence": pc.divide(columns.stated.cast(pa.float64()), float(conf.PPM)),
        "confidence_death_ppm": columns.now,
        "confidence_limit_ppm": crossing_limit(at_death, floor, policy.inheritance),
        "decay_class": columns.classes,
        "provenance_missing": columns.missing,
        "forbidden_fields": columns.forbidden,
        "words": columns.words,
    }


def _confidence_then(rows: Sequence[Row], at_us: int, policy: Policy) -> Int64Array:
    """Confidence in ppm at a moment, as an heir computes it; malformed fields count as 0."""

    def number(name: str) -> Int64Array:
        return np.array([row[name] if _is_number(row.get(name)) else 0 for row in rows], np.int64)

    def flagged(name: str) -> BoolArray:
        return np.array([row.get(name) is True for row in rows], bool)

    codes = {name: code for code, name in enumerate(DECAY_CLASSES)}
    classes = np.array([codes.get(str(row.get("decay_class")), 0) for row in rows], np.int64)
    moments = [_micros(row.get("anchor_at")) for row in rows]
    anchors = np.array([at_us if moment is None else moment for moment in moments], np.int64)
    stained = flagged("is_bloodstain")
    half_life = conf.half_life_us(classes, number("evidence_count"), stained, policy.decay)
    floor = conf.floor_ppm(flagged("is_anti_knowledge"), stained, policy.decay)
    return conf.confidence_at(number("confidence_ppm"), anchors, at_us, half_life, floor)


def _missing(row: Mapping[str, Any]) -> int:
    texts = sum(not (isinstance(row.get(name), str) and row[name]) for name in PROVENANCE_TEXTS)
    numbers = sum(not _is_number(row.get(name)) for name in PROVENANCE_NUMBERS)
    return texts + numbers + sum(_micros(row.get(name)) is None for name in PROVENANCE_MOMENTS)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _EXACT


def _micros(value: Any) -> int | None:
    try:
        return micros_of(datetime.fromisoformat(value))
    except (TypeError, ValueError, OverflowError):
        return None
