"""Carries evidence about choices across a death, at a discount. Pure.

Trials of choices by shadow positions measure the market, whatever the golem decided. So their sums are no private
experience, and a line can learn what one life is too short for. Count, sum and sum of squares of each structure are
multiplied by the attenuation of a crossing, and the mean is kept. Evidence about the golem's own decisions does not
cross (weismann.py). Source: INH S7.2, INH-8; docs/adr/0086.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.state.grimoire_state import from_table, to_table
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.entry_columns import int_column
from bardo_pipeline.policy import Policy

_COUNT_MAX, _SUM_MAX = 2**31, 2**62
_NAMES = ("chain", "protocol", "pair", "tool", "action_type")


class ChoiceEvidence(NamedTuple):
    """Sums of the trials of one choice that cross a death.

    Parameters
    ----------
    entry_id : id of the entry or candidate at the dead golem
    origin_golem_id : golem that the id names
    received_as : id under which the dead golem had inherited a part of these sums, None without one
    regime : None for the choice over all regimes
    windows, total, squares : number of windows, sum and sum of squares of their effects in ppm, after the discount
    """

    entry_id: str
    origin_golem_id: str
    received_as: str | None
    chain: str
    protocol: str
    pair: str
    tool: str
    action_type: str
    regime: str | None
    windows: int
    total: int
    squares: int

    @property
    def structure(self) -> Structure:
        """Structure of the choice."""
        return Structure("choice", self.chain, self.protocol, self.pair, self.tool, self.action_type, self.regime)


def crossing_evidence(
    entries: pa.Table, received: Mapping[str, Iterable[ChoiceEvidence]], policy: Policy
) -> dict[str, list[ChoiceEvidence]]:
    """Return golem -> the evidence about choices that crosses its death, by entry; none with `weismann = "reset"`.

    Parameters
    ----------
    entries : pa.Table, ENTRY_SCHEMA, entries and candidates of dead golems at death, every status
    received : golem -> the evidence that it had inherited
    """
    out: dict[str, list[ChoiceEvidence]] = {}
    if policy.inheritance.weismann == "reset":
        return out
    counts = pc.and_(pc.equal(entries["source"], "choice"), pc.greater(entries["own_count"], 0))
    rows = entries.filter(pc.and_(counts, pc.not_equal(entries["status"], "retracted")))
    columns = ["golem_id", "entry_id", "origin_golem_id", *_NAMES, "regime", "own_count", "own_sum", "own_sumsq"]
    ids = {(golem_id, e.structure): e.entry_id for golem_id, given in received.items() for e in given}
    for row in rows.select(columns).sort_by([("golem_id", "ascending"), ("entry_id", "ascending")]).to_pylist():
        count = row["own_count"]
        kept = int(count * policy.inheritance.attenuation)
        total, squares = (_share(row[name], kept, count) for name in ("own_sum", "own_sumsq"))
        named = {name: row[name] for name in ("entry_id", "origin_golem_id", *_NAMES, "regime")}
        evidence = ChoiceEvidence(**named, received_as=None, windows=kept, total=total, squares=squares)
        if kept:
            held = out.setdefault(row["golem_id"], [])
            held.append(evidence._replace(received_as=ids.get((row["golem_id"], evidence.structure))))
    return out


def _share(value: int, kept: int, count: int) -> int:
    """Return value * kept / count as an integer, halves rounded up."""
    return (2 * value * kept + count) // (2 * count)


def evidence_of(learning: Any) -> tuple[ChoiceEvidence, ...]:
    """Return the evidence of a bundle's learning state; rows without valid values are left out."""
    rows = learning.get("evidence") if isinstance(learning, dict) else None
    return tuple(ChoiceEvidence(**row) for row in rows if _is_valid(row)) if isinstance(rows, list) else ()


def _is_valid(row: Any) -> bool:
    if not isinstance(row, dict) or row.keys() != set(ChoiceEvidence._fields):
        return False
    words = all(isinstance(row[name], str) for name in ("entry_id", "origin_golem_id", *_NAMES))
    words &= row["received_as"] is None or isinstance(row["received_as"], str)
    limits = (("windows", 1, _COUNT_MAX), ("total", -_SUM_MAX, _SUM_MAX), ("squares", 0, _SUM_MAX))
    whole = all(type(row[name]) is int and low <= row[name] < high for name, low, high in limits)
    return words and whole and row["regime"] in (None, *REGIMES)


def with_evidence(
    inherited: pa.Table,
    evidence: Iterable[ChoiceEvidence],
    golem_id: str,
    policy: Policy,
    withdrawn: frozenset[str] = frozenset(),
) -> pa.Table:
    """Return an heir's entries with the evidence about choices as own sums, and its further structures as candidates.

    Parameters
    ----------
    inherited : pa.Table, ENTRY_SCHEMA, entries of this heir at birth
    withdrawn : ids of entries whose evidence the heir does not get (canon 20)
    """
    kept = [e for e in evidence if e.entry_id not in withdrawn]
    if not kept:
        return inherited
    state = from_table(inherited)
    golem = np.full(len(kept), state.golem_code(golem_id))
    structure = np.array([state.structures.code(e.structure) for e in kept], np.int64)
    origins = np.array([state.golem_code(e.origin_golem_id) for e in kept], np.int64)
    before = state.keys()
    state.ensure(golem, structure)
    rows = state.find(golem, structure)
    is_new = ~np.isin((golem << 32) | structure, before)
    state["origin"][rows[is_new]] = origins[is_new]
    for name, values in (
        ("own_count", [e.windows for e in kept]),
        ("own_sum", [e.total for e in kept]),
        ("own_sumsq", [e.squares for e in kept]),
    ):
        state[name][rows] = values
    return to_table(state, policy.curator, policy.decay)


BUNDLE_EVIDENCE_COLUMNS = ["golem_id", "cycle", "structure", "source", "own_count", "cause_bundle"]
"""Columns of decisions from which `evidence_bundles` follows."""


def evidence_bundles(decisions: pa.Table) -> dict[tuple[str, str], str]:
    """Return (golem id, structure) -> the bundle whose evidence about that choice is in the golem's sums.

    Parameters
    ----------
    decisions : pa.Table, BUNDLE_EVIDENCE_COLUMNS; the first decisions of heirs, and the later ones that cleared the
        sums of a choice, or all
    """
    rows = decisions.filter(pc.equal(decisions["source"], "choice")).select(BUNDLE_EVIDENCE_COLUMNS)
    given: dict[tuple[str, str], str] = {}
    for row in rows.sort_by("cycle").to_pylist():
        key = row["golem_id"], row["structure"]
        if row["own_count"] == 0:
            given.pop(key, None)
        elif row["cycle"] == 0 and row["cause_bundle"] is not None:
            given[key] = row["cause_bundle"]
    return given


def name_bundles(
    decisions: pa.Table, bundles: Mapping[tuple[str, str], str]
) -> tuple[pa.Table, dict[tuple[str, str], str]]:
    """Name the bundle with inherited evidence as a cause of the decisions whose sums contain it.

    Return the decisions, and the bundles whose evidence is in the sums after them. An owner's order that clears the
    sums of a choice ends it.

    Parameters
    ----------
    decisions : pa.Table, DECISION_SCHEMA, sorted by key
    bundles : (golem id, structure) -> bundle, before these decisions
    """
    if not bundles or not decisions.num_rows:
        return decisions, dict(bundles)
    about = pc.binary_join_element_wise(decisions["golem_id"], decisions["structure"], "\n")
    keys = pa.array(["\n".join(key) for key in bundles], pa.string())
    place = pc.fill_null(pc.index_in(about, value_set=keys), -1).to_numpy().astype(np.int64)
    clearing = np.flatnonzero((place >= 0) & (int_column(decisions, "own_count") == 0))
    ends = np.full(len(bundles), decisions.num_rows)
    np.minimum.at(ends, place[clearing], clearing)
    is_named = (place >= 0) & (np.arange(decisions.num_rows) < ends[place])
    named = pa.array(bundles.values(), pa.string()).take(pa.array(place, pa.int64(), mask=~is_named))
    column = decisions.schema.get_field_index("cause_bundle")
    left = {key: bundle for i, (key, bundle) in enumerate(bundles.items()) if ends[i] == decisions.num_rows}
    causes = pc.coalesce(decisions["cause_bundle"], named)
    return decisions.set_column(column, decisions.schema.field(column), causes), left
