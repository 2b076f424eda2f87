"""Reception: verdicts on entries that a golem receives during its life, by comparison with its own. Pure, set-based.

The checks of INH S5.2 in order: refuted claims about the chain; contradiction or repetition of own entries; entries
about unknown markets or with outsized effects; the number that can be tested at once, most surprising first. Accepted
entries wait in quarantine (admit_received.py). Distance compares structure and effect size only, because texts are
generated from structure, so text vectors would add nothing (canon 17).
Source: INH S4, S5.2, S5.3, S7.6; canon 2, 3, 17.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array, StringArray
from bardo_pipeline.curator.views.surprise_ranking import NOVELTY_SCHEMA, PARTS, parts_apart, ranked
from bardo_pipeline.events.life.received_knowledge import Arrival
from bardo_pipeline.events.record.arrow_columns import all_required, required
from bardo_pipeline.grimoire.confidence import ppm
from bardo_pipeline.grimoire.entries import CAME_OVER
from bardo_pipeline.grimoire.entry_columns import confidence_of, int_column, query_tables, to_bools, with_columns
from bardo_pipeline.grimoire.gas_bands import split_by_band
from bardo_pipeline.policy import Policy

VERDICTS = ("accepted", "redundant", "contradicted", "anomalous", "unproven", "deferred")
"""Verdicts on an entry. accepted: enters quarantine; redundant, contradicted: the golem holds the same, or the
opposite; anomalous: unknown market or outsized effect; unproven: a claim about the chain is refuted; deferred: beyond
the limit of one delivery."""

VERDICT_SCHEMA = pa.schema(
    [*NOVELTY_SCHEMA, *all_required(pa.string(), "verdict", "reason"), required("confidence_ppm", pa.int64())]
)
"""NOVELTY_SCHEMA with the verdict, its reason, and the entering confidence (0 unless accepted)."""


class Delivery(NamedTuple):
    """A delivery to a golem: its arrival event and its entries (CROSSING_SCHEMA)."""

    arrival: Arrival
    entries: pa.Table


_MARKET = PARTS.index("pair") + 1

_SIZES = """
    select arriving.place, arriving.size / greatest(max(held.size), 1) as times
    from arriving join held on arriving.about = held.about
    group by arriving.place, arriving.size having count(*) >= $least
"""


def verdicts(
    arriving: pa.Table, held: pa.Table, at_us: int, source: str, policy: Policy, *, unproven: Collection[str] = ()
) -> pa.Table:
    """Judge each arriving entry. Returns VERDICT_SCHEMA, most surprising first.

    An accepted entry enters with its source's base x 0.85^(crossings - 1), at most its confidence at the sender.

    Parameters
    ----------
    arriving : pa.Table, CROSSING_SCHEMA, one row per entry of the bundle
    held : pa.Table, ENTRY_SCHEMA, the recipient's grimoire; quarantined entries count as held
    at_us : int, time of comparison, UTC microseconds
    source : "import", "purchase" (another owner's bundle), "clade" (a sibling's parcel, with the base of an import,
        canon 3) or "replicant"; a replicant is expected to deviate, so its entries are never anomalous (INH S7.6)
    unproven : ids of entries with refuted claims about the chain
    """
    known = comparable_entries(held)
    ranking = ranked(arriving, known, at_us, policy)
    order = pc.index_in(ranking["entry_id"], value_set=arriving["entry_id"].combine_chunks())
    entries = arriving.take(order)
    relation = ranking["relation"].to_numpy(zero_copy_only=False)
    reason = np.array([""] * len(relation), dtype=object)
    verdict = np.array(["accepted"] * len(relation), dtype=object)

    def rule(name: str, where: BoolArray, words: StringArray | str) -> None:
        chosen = where & (verdict == "accepted")
        reason[chosen] = words if isinstance(words, str) else words[chosen]
        verdict[chosen] = name

    opposite = np.array([f"it holds the opposite ({held_id})" for held_id in ranking["held_id"].to_pylist()], object)
    same = np.array([f"it holds the same ({held_id})" for held_id in ranking["held_id"].to_pylist()], object)
    doubted = to_bools(pc.is_in(entries["entry_id"], value_set=pa.array(sorted(unproven), pa.string())))
    rule("unproven", doubted, "what it claims of the chain does not check")
    rule("contradicted", _retracted(entries, held), "its owner took that out")
    rule("contradicted", relation == "opposed", opposite)
    rule("redundant", relation == "same", same)
    if source != "replicant" and known.num_rows:
        rule("anomalous", parts_apart(entries, known) > len(PARTS) - _MARKET, "it knows nothing of that market")
        times = _times_larger(entries, known, policy)
        larger = np.array([f"states an effect {t:.0f} times the largest that it knows" for t in times], object)
        rule("anomalous", times > policy.reception.size_factor, larger)
    rank, limit = np.cumsum(verdict == "accepted"), policy.reception.entries_max
    rule("deferred", rank > limit, f"more than {limit} came at once: give it again later")
    rule("accepted", np.ones(len(relation), bool), "new to it: it waits in quarantine")
    entering = np.where(verdict == "accepted", entering_ppm(entries, at_us, source, policy), 0)
    judged = {"verdict": verdict.tolist(), "reason": reason.tolist(), "confidence_ppm": entering}
    return pa.table({name: ranking[name] for name in NOVELTY_SCHEMA.names} | judged, VERDICT_SCHEMA)


def comparable_entries(held: pa.Table) -> pa.Table:
    """Return the entries that claims are compared with: active ones, and candidates that already make a claim."""
    candidate = pc.equal(held["status"], "candidate")
    came = pc.is_in(held["provenance"], value_set=pa.array(CAME_OVER, pa.string()))
    claims = pc.or_(came, pc.and_(pc.equal(held["source"], "causal"), pc.not_equal(held["sign"], 0)))
    kept = held.filter(pc.or_(pc.equal(held["status"], "active"), pc.and_(candidate, claims)))
    return with_columns(kept, status=pa.array(["active"] * kept.num_rows, pa.string()))


def entering_ppm(arriving: pa.Table, at_us: int, source: str, policy: Policy) -> Int64Array:
    """Return the entering confidence in ppm: the source's base x 0.85^(crossings - 1), at most the entry's own.

    crossings: the number of inheritances of an entry, at least 1 (canon 2).
    """
    rules = policy.reception
    base = {"replicant": rules.replicant_confidence, "purchase": policy.library.purchase_confidence}.get(
        source, rules.import_confidence
    )
    crossings = np.maximum(int_column(arriving, "generation"), 1)
    confidence_max = np.rint(ppm(base) * policy.inheritance.attenuation ** (crossings - 1)).astype(np.int64)
    zeros = pa.array(np.zeros(arriving.num_rows, np.int64))
    for name in ("own_count", "pinned_ppm"):
        if name not in arriving.column_names:
            arriving = arriving.append_column(name, zeros)
    return np.minimum(confidence_max, confidence_of(arriving, at_us, policy.decay))


def _retracted(arriving: pa.Table, held: pa.Table) -> BoolArray:
    """Return which entries concern a structure that the recipient's owner retracted."""
    retracted = split_by_band(held.filter(pc.equal(held["status"], "retracted")).select(["structure"]))["structure"]
    place = pa.array(np.arange(arriving.num_rows))
    parts = split_by_band(arriving.select(["structure"]).append_column("place", place))
    hit = parts.filter(pc.is_in(parts["structure"], value_set=retracted.combine_chunks()))["place"]
    return np.isin(np.arange(arriving.num_rows), hit.to_numpy())


def _times_larger(arriving: pa.Table, known: pa.Table, policy: Policy) -> Float64Array:
    """Return each entry's effect over the largest known effect of its kind; 0 where too few are known."""
    out = np.zeros(arriving.num_rows)
    new, held = (
        _sized(table).append_column("place", pa.array(np.arange(table.num_rows))) for table in (arriving, known)
    )
    answer = query_tables(_SIZES, {"least": policy.reception.size_entries_min}, arriving=new, held=held)
    out[answer["place"].to_numpy()] = answer["times"].to_numpy()
    return out


def _sized(entries: pa.Table) -> pa.Table:
    """Return the kind and size of each effect; sizes of different metrics or effects are not comparable."""
    parts = [pc.coalesce(entries[name], "-") for name in ("source", "metric", "effect")]
    about = pc.binary_join_element_wise(*parts, "|")
    return pa.table({"about": about, "size": pc.abs(entries["effect_mean_ppm"])})
