"""Reception: what a golem's own knowledge says of knowledge that comes from elsewhere, entry by entry. Pure, set-based.

The layers of INH S5.2 in order: claims about the chain that did not check; what contradicts the golem's own entries, or
repeats them; what lies outside of all that it knows; and how many it can take at once, the most surprising first. What
passes waits in quarantine (quarantine.py). Distance is told by structure and by size: texts are made of structure here,
so that a vector of them would say nothing more (canon 17).
Source: INH S4, S5.2, S5.3, S7.6; canon 2, 3, 17.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.curator.views.surprise_ranking import NOVELTY_SCHEMA, PARTS, parts_apart, ranked
from bardo_pipeline.events.life.received_knowledge import Arrival
from bardo_pipeline.grimoire.confidence import ppm
from bardo_pipeline.grimoire.entries import CAME_OVER
from bardo_pipeline.grimoire.entry_columns import confidence_of, int_column, query_tables, to_bools, with_columns
from bardo_pipeline.grimoire.gas_bands import split_by_band
from bardo_pipeline.policy import Policy

VERDICTS = ("accepted", "redundant", "contradicted", "anomalous", "unproven", "deferred")
"""What becomes of an entry: it waits in quarantine; the golem holds the same, or the opposite; it is about what lies
outside of its world, or too large for it; a claim about the chain did not check; more came than can be tried."""

VERDICT_SCHEMA = pa.schema(
    [
        *NOVELTY_SCHEMA,
        pa.field("verdict", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("confidence_ppm", pa.int64(), nullable=False),
    ]
)
"""NOVELTY_SCHEMA with the verdict (VERDICTS), why, and the confidence with which it enters, 0 where it does not."""


class Delivery(NamedTuple):
    """What came to a golem, and its entries as a bundle has them (CROSSING_SCHEMA)."""

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
    """What becomes of each entry that arrives. Returns VERDICT_SCHEMA by priority, the most surprising first.

    arriving: an entry's columns as a bundle has them (CROSSING_SCHEMA), one row an entry. held: the recipient's
    grimoire (ENTRY_SCHEMA); what is in quarantine there counts as held. at_us: the moment, UTC microseconds. source:
    import or replicant; what a replicant reports is expected to deviate, so nothing of it is anomalous (INH S7.6).
    unproven: ids of entries whose claims about the chain did not check.

    An entry enters with its source's base x 0.85^(crossings - 1), and never with more than it is worth where it comes
    from: nothing gains by crossing.
    """
    known = as_known(held)
    found = ranked(arriving, known, at_us, policy)
    order = pc.index_in(found["entry_id"], value_set=arriving["entry_id"].combine_chunks())
    mine = arriving.take(order)
    relation = found["relation"].to_numpy(zero_copy_only=False)
    reason = np.array([""] * len(relation), dtype=object)
    verdict = np.array(["accepted"] * len(relation), dtype=object)

    def rule(name: str, where: NDArray[np.bool_], words: NDArray[np.object_] | str) -> None:
        chosen = where & (verdict == "accepted")
        reason[chosen] = words if isinstance(words, str) else words[chosen]
        verdict[chosen] = name

    opposite = np.array([f"it holds the opposite ({held_id})" for held_id in found["held_id"].to_pylist()], object)
    same = np.array([f"it holds the same ({held_id})" for held_id in found["held_id"].to_pylist()], object)
    doubted = to_bools(pc.is_in(mine["entry_id"], value_set=pa.array(sorted(unproven), pa.string())))
    rule("unproven", doubted, "what it claims of the chain does not check")
    rule("contradicted", _retracted(mine, held), "its owner took that out")
    rule("contradicted", relation == "opposed", opposite)
    rule("redundant", relation == "same", same)
    if source != "replicant" and known.num_rows:
        rule("anomalous", parts_apart(mine, known) > len(PARTS) - _MARKET, "it knows nothing of that market")
        times = _times_larger(mine, known, policy)
        larger = np.array([f"states an effect {t:.0f} times the largest that it knows" for t in times], object)
        rule("anomalous", times > policy.reception.size_factor, larger)
    turn = np.cumsum(verdict == "accepted")
    most = policy.reception.entries_max
    rule("deferred", turn > most, f"more than {most} came at once: give it again later")
    rule("accepted", np.ones(len(relation), bool), "new to it: it waits in quarantine")
    entering = np.where(verdict == "accepted", entering_ppm(mine, at_us, source, policy), 0)
    columns = {"verdict": verdict.tolist(), "reason": reason.tolist(), "confidence_ppm": entering}
    for name, values in columns.items():
        found = found.append_column(name, pa.array(values))
    return found.select(VERDICT_SCHEMA.names).cast(VERDICT_SCHEMA)


def as_known(held: pa.Table) -> pa.Table:
    """What a claim is held against (ENTRY_SCHEMA): active entries, and candidates that say something already."""
    candidate = pc.equal(held["status"], "candidate")
    came = pc.is_in(held["provenance"], value_set=pa.array(CAME_OVER, pa.string()))
    claims = pc.or_(came, pc.and_(pc.equal(held["source"], "causal"), pc.not_equal(held["sign"], 0)))
    kept = held.filter(pc.or_(pc.equal(held["status"], "active"), pc.and_(candidate, claims)))
    return with_columns(kept, status=pa.array(["active"] * kept.num_rows, pa.string()))


def entering_ppm(arriving: pa.Table, at_us: int, source: str, policy: Policy) -> NDArray[np.int64]:
    """Confidence in ppm with which entries enter: the base of their source x 0.85^(crossings - 1), at most their own.

    crossings: how often an entry crossed, at least once (canon 2).
    """
    rules = policy.reception
    base = rules.replicant_confidence if source == "replicant" else rules.import_confidence
    crossings = np.maximum(int_column(arriving, "generation"), 1)
    most = np.rint(ppm(base) * policy.inheritance.attenuation ** (crossings - 1)).astype(np.int64)
    nothing = pa.array(np.zeros(arriving.num_rows, np.int64))
    for name in ("own_count", "pinned_ppm"):
        if name not in arriving.column_names:
            arriving = arriving.append_column(name, nothing)
    worth = confidence_of(arriving, at_us, policy.decay)
    return np.minimum(most, worth)


def _retracted(arriving: pa.Table, held: pa.Table) -> NDArray[np.bool_]:
    """Which entries say something of what the recipient's owner took out."""
    gone = split_by_band(held.filter(pc.equal(held["status"], "retracted")).select(["structure"]))["structure"]
    place = pa.array(np.arange(arriving.num_rows))
    told = split_by_band(arriving.select(["structure"]).append_column("place", place))
    hit = told.filter(pc.is_in(told["structure"], value_set=gone.combine_chunks()))["place"]
    return np.isin(np.arange(arriving.num_rows), hit.to_numpy())


def _times_larger(arriving: pa.Table, known: pa.Table, policy: Policy) -> NDArray[np.float64]:
    """How many times the largest effect of its kind that is known each entry states; 0 where too few are known."""
    out = np.zeros(arriving.num_rows)
    told = (_sized(table).append_column("place", pa.array(np.arange(table.num_rows))) for table in (arriving, known))
    mine, others = told
    answer = query_tables(_SIZES, {"least": policy.reception.size_entries_min}, arriving=mine, held=others)
    out[answer["place"].to_numpy()] = answer["times"].to_numpy()
    return out


def _sized(entries: pa.Table) -> pa.Table:
    """What each entry's effect is of, and its size: sizes of different metrics or effects do not compare."""
    parts = [pc.coalesce(entries[name], "-") for name in ("source", "metric", "effect")]
    about = pc.binary_join_element_wise(*parts, "|")
    return pa.table({"about": about, "size": pc.abs(entries["effect_mean_ppm"])})
