"""Retrieves the entries of a golem that answer a question, now or as of an earlier moment of its life.

Gathers entries, their vectors and the golem's situation; `retrieval` scores them. Its only writes are the vectors of
texts that were never embedded; vectors are events.
Source: MEM (four-factor retrieval), KAT, canon 21-24, 56.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Float32Array, Int64Array
from bardo_pipeline.clock import moment_at
from bardo_pipeline.curator.views.crossings import dreams_that_cross
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.judged_outcomes import foretold_decisions
from bardo_pipeline.derivation.dreams.derive_lessons import known_entries, known_entries_at
from bardo_pipeline.derivation.incremental.record_queries import records_between, require_born
from bardo_pipeline.derivation.legacy.death_queries import owners_of
from bardo_pipeline.derivation.memory.embed_texts import recorded_vectors
from bardo_pipeline.derivation.memory.shared_texts import holds_insights, shared_texts
from bardo_pipeline.errors import QueryError
from bardo_pipeline.events.record.arrow_columns import contiguous, required
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA, MOMENT
from bardo_pipeline.grimoire.entry_columns import confidence_of, micros
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.foretold_confidence import ForetoldMap, chances_of, foretold_maps, foretold_ppm
from bardo_pipeline.retrieval.credit_rules import totals
from bardo_pipeline.retrieval.credit_totals import Uses
from bardo_pipeline.retrieval.embedder_interface import check_question
from bardo_pipeline.retrieval.insight_votes import insight_entries
from bardo_pipeline.retrieval.retrieve import HIT_SCHEMA, Answer, AsOf, Grimoire
from bardo_pipeline.retrieval.scoring import CLADE, FACTORS, VAULT, weights_of
from bardo_pipeline.retrieval.situation import SILENT_TIERS, Situation

_STOOD = (
    "golem_id", "tick", "observed_at", "regime", "tier", "prediction_error", "pad_after", "observation.protocol",
)  # fmt: skip


@dataclass(frozen=True)
class GolemMoment:
    """A golem at a moment: its situation, the log position of its knowledge, and True in `earlier` for a past moment.

    died_at_tick is None if the golem was alive then.
    """

    golem_id: str
    situation: Situation
    as_of: AsOf
    earlier: bool
    died_at_tick: int | None = None

    @property
    def at(self) -> datetime:
        """Time of the golem's newest tick, or of its birth."""
        return moment_at(self.situation.at_us)

    def in_regime(self, regime: str) -> GolemMoment:
        """Return a copy in which the market has long been in this regime."""
        situation = replace(self.situation, regime=regime, regime_before=None, regime_ticks=0)
        return replace(self, situation=situation)


@dataclass(frozen=True)
class OpenGrimoire:
    """A golem's entries at a moment, ready for questions.

    Parameters
    ----------
    foretold : golem and entry id -> the values of FORETOLD_FIELDS, from the decisions of the owner's golems up to the
        moment
    """

    where: GolemMoment
    grimoire: Grimoire
    foretold: Mapping[tuple[str, str], tuple[int, float]]

    def in_regime(self, regime: str) -> OpenGrimoire:
        """Return a copy in which the market has long been in this regime."""
        return replace(self, where=self.where.in_regime(regime))


def golem_moment(
    context: DerivationContext, golem_id: str, *, at: datetime | None = None, tick: int | None = None
) -> GolemMoment:
    """Return a golem's situation and knowledge at its newest record, or at an earlier moment or tick.

    The knowledge is that of the last cycle closed by then. Raises QueryError for an unknown golem, a moment before its
    birth, a tick without record, a moment and a tick at once, and an embedder without derived tables.
    """
    if at is not None and tick is not None:
        raise QueryError("a golem is asked as of a moment or as of a tick: give one of them")
    check_derived(context)
    require_born(context, golem_id)
    born_at = context.life("GolemBorn", [golem_id])["observed_at"][-1].as_py()
    records = records_between(context, _STOOD, {golem_id: (1, 2**53)}, context.left_out()).combine_chunks()
    ticks = records["tick"].to_numpy()
    record_count = _upto(records, golem_id, at, tick)
    if at is not None and at < born_at:
        raise QueryError(f"golem {golem_id}: it was born at {born_at:%Y-%m-%d %H:%M}, after that moment")
    moment = at or (records["observed_at"][record_count - 1].as_py() if record_count else born_at)
    at_us = pa.scalar(moment, MOMENT).cast(pa.int64()).as_py()
    cycle, last, closed = _closed(context, golem_id, moment)
    head = int(ticks[record_count - 1]) if record_count else 0
    as_of = AsOf(cycle, last, closed, head, context.log.version)
    earlier = record_count < len(ticks) or at is not None
    died = context.log.death_of(golem_id)
    died = died if died is not None and head >= died else None
    return GolemMoment(golem_id, _situation(records.slice(0, record_count), at_us), as_of, earlier, died)


def check_derived(context: DerivationContext) -> None:
    """Raise QueryError if the embedder is not in force and has no derived tables."""
    current = context.current().embedder
    if context.embedder_name != current and not context.projections.growing("cycles").row_count:
        raise QueryError(
            f"nothing is derived by {context.embedder_name} here: {current} is in force, and `bardo reembed` goes from "
            "one to the other"
        )


def _upto(records: pa.Table, golem_id: str, at: datetime | None, tick: int | None) -> int:
    """Number of records up to the moment or tick."""
    ticks = records["tick"].to_numpy()
    if tick is not None:
        position = int(np.searchsorted(ticks, tick, side="left"))
        if position == len(ticks) or ticks[position] != tick:
            last = int(ticks[-1]) if len(ticks) else 0
            raise QueryError(f"golem {golem_id}: tick {tick} is not on record; its newest is {last}")
        return position + 1
    if at is None:
        return len(ticks)
    us = pa.scalar(at, MOMENT).cast(pa.int64()).as_py()
    return int(np.searchsorted(micros(records, "observed_at"), us, side="right"))


def _closed(context: DerivationContext, golem_id: str, at: datetime) -> tuple[int, int, datetime | None]:
    """The last cycle closed by then, its last tick and closing time; (0, 0, None) before the first."""
    rows = context.projections.growing("cycles").read(["cycle", "tick_last", "closed_at"], golems=[golem_id])
    rows = rows.filter(pc.less_equal(rows["closed_at"], pa.scalar(at, MOMENT))).sort_by("cycle")
    if not rows.num_rows:
        return 0, 0, None
    newest = rows.slice(rows.num_rows - 1).to_pylist()[0]
    return newest["cycle"], newest["tick_last"], newest["closed_at"]


def _situation(records: pa.Table, at_us: int) -> Situation:
    if not records.num_rows:
        return Situation(at_us)
    last: dict[str, Any] = records.slice(records.num_rows - 1).to_pylist()[0]
    regimes, ticks = records["regime"].to_pylist(), records["tick"].to_pylist()
    first = len(regimes) - 1
    while first > 0 and regimes[first - 1] == last["regime"]:
        first -= 1
    pad = last["pad_after"]
    deliberated_ticks = [
        t for t, tier in zip(ticks[:-1], records["tier"].to_pylist(), strict=False) if tier not in SILENT_TIERS
    ]
    return Situation(
        at_us,
        tick=last["tick"],
        regime=last["regime"],
        regime_before=regimes[first - 1] if first else None,
        regime_ticks=last["tick"] - ticks[first],
        mood=(pad["pleasure"], pad["arousal"], pad["dominance"]),
        tier=last["tier"],
        surprise=last["prediction_error"],
        protocol=last[records.column_names[-1]],
        thought_tick=deliberated_ticks[-1] if deliberated_ticks else 0,
    )


def ask(
    context: DerivationContext,
    where: GolemMoment,
    question: str,
    *,
    now: datetime,
    k: int | None = None,
    clade: bool = False,
    may_skip: bool = False,
) -> Answer:
    """Return the entries that matter most for a question to a golem at a moment.

    Raises QueryError for an empty or too long question and for k < 1.

    Parameters
    ----------
    now : datetime, recording time of new vectors
    k : number of entries, by default the policy's
    clade : include entries of the owner's other golems, discounted
    may_skip : return no entries if the golem's retrieval gate decides so; otherwise the decision is only reported
    """
    opened = open_grimoire(context, where, now=now, clade=clade)
    return ask_grimoire(context, opened, question, k=k, may_skip=may_skip)


def open_grimoire(
    context: DerivationContext, where: GolemMoment, *, now: datetime, clade: bool = False
) -> OpenGrimoire:
    """Return a golem's entries at a moment, ready for questions; `clade` adds those of its owner's other golems."""
    grimoire = grimoire_of(context, where, now=now, clade=clade)
    at_us, owned = where.situation.at_us, [where.golem_id, *_siblings(context, where.golem_id)]
    maps = foretold_maps(foretold_decisions(context, owned, at_us=at_us), at_us, context.policy)
    return OpenGrimoire(where, grimoire, _foretold(grimoire.entries, maps, at_us, context.policy))


def ask_grimoire(
    context: DerivationContext, opened: OpenGrimoire, question: str, *, k: int | None = None, may_skip: bool = False
) -> Answer:
    """Return the entries of an open grimoire that matter most for a question. See `ask`."""
    rules = context.policy.retrieval
    text, count = check_question(question, rules.question_bytes_max), rules.results if k is None else k
    if count < 1:
        raise QueryError(f"at least one entry must be wanted, not {count}")
    (vector,) = context.embedder.embed([text])
    answer = opened.grimoire.retrieve(vector, opened.where.situation, count, may_skip=may_skip)
    return replace(answer, hits=_with_foretold(answer.hits, opened))


def _foretold(
    entries: pa.Table, maps: Mapping[str, ForetoldMap], at_us: int, policy: Policy
) -> dict[tuple[str, str], tuple[int, float]]:
    """Return FORETOLD_FIELDS of each entry by golem and entry id."""
    subjects, chance = chances_of(entries, policy)
    foretold = foretold_ppm(maps, subjects, chance, confidence_of(entries, at_us, policy.decay))
    witnesses = [maps[subject].witnesses if subject in maps else 0.0 for subject in subjects.tolist()]
    held = zip(entries["golem_id"].to_pylist(), entries["entry_id"].to_pylist(), strict=True)
    return dict(zip(held, zip(foretold.tolist(), witnesses, strict=True), strict=True))


def _with_foretold(hits: pa.Table, opened: OpenGrimoire) -> pa.Table:
    """Add FORETOLD_FIELDS to the hits."""
    held = zip(hits["golem_id"].to_pylist(), hits["entry_id"].to_pylist(), strict=True)
    values = [opened.foretold[key] for key in held]
    columns = (pa.array([row[place] for row in values], field.type) for place, field in enumerate(FORETOLD_FIELDS))
    return pa.Table.from_arrays([*hits.columns, *columns], schema=ASKED_SCHEMA)


FORETOLD_FIELDS = required("foretold_ppm", pa.int64()), required("witnesses", pa.float64())
"""The chance that an entry holds on the next day, in ppm, corrected by what held after this confidence, and the weight
of the market days and situations that were judged. Without any, a rule foretells its chance, another entry its own
confidence."""

ASKED_SCHEMA = pa.schema([*HIT_SCHEMA, *FORETOLD_FIELDS])
"""One row per entry that answers a question."""


def grimoire_of(context: DerivationContext, where: GolemMoment, *, now: datetime, clade: bool = False) -> Grimoire:
    """Return a golem's entries at a moment, ready for retrieval; `clade` adds those of its owner's other golems."""
    entries = _entries(context, [where.golem_id], where, now)
    layer = np.full(entries.num_rows, VAULT)
    if clade:
        siblings = _entries(context, _siblings(context, where.golem_id), where, now)
        siblings = _unheld(siblings.filter(dreams_that_cross(siblings, context.policy)), entries)
        layer = np.concatenate([layer, np.full(siblings.num_rows, CLADE)])
        entries = pa.concat_tables([entries, siblings]).combine_chunks()
    vectors, text_of = text_vectors(context, entries["text"], now)
    uses = _uses(context, entries, where)
    return Grimoire(entries, vectors, text_of, context.policy, uses=uses, layer=layer, as_of=where.as_of)


def _uses(context: DerivationContext, entries: pa.Table, where: GolemMoment) -> Uses:
    """Credits of each entry's earlier retrievals by its golem, in cycles closed by then."""
    golems = entries["golem_id"].unique().to_pylist()
    columns = ["golem_id", "entry_id", "cycle", "useful", "misled", "last_access_at"]
    rows = context.projections.growing("credits").read(columns, golems=golems)
    if where.earlier:
        cycles = context.projections.growing("cycles").read(["golem_id", "cycle", "closed_at"], golems=golems)
        moment = pa.scalar(where.situation.at_us, pa.int64()).cast(MOMENT)
        closed = cycles.filter(pc.less_equal(cycles["closed_at"], moment))
        rows = rows.join(closed.select(["golem_id", "cycle"]), ["golem_id", "cycle"], join_type="inner")
    credits = totals(rows)
    rows_of_entries = pc.index_in(_held_by(entries), value_set=_held_by(credits))
    return Uses(
        *(
            pc.fill_null(credits[name].combine_chunks().take(rows_of_entries), 0).to_numpy(zero_copy_only=False)
            for name in ("useful", "misled", "last_us")
        )
    )


def _held_by(rows: pa.Table) -> pa.Array:
    return contiguous(pc.binary_join_element_wise(rows["golem_id"], rows["entry_id"], "\x1f"))


def _entries(context: DerivationContext, golem_ids: list[str], where: GolemMoment, now: datetime) -> pa.Table:
    """The active entries of these golems at the moment, and the insights of their own words."""
    if not golem_ids:
        return ENTRY_SCHEMA.empty_table()
    moment = pa.scalar(where.situation.at_us, pa.int64()).cast(MOMENT) if where.earlier else None
    rows = known_entries(context, golem_ids) if moment is None else known_entries_at(context, golem_ids, moment)
    parts = [rows.filter(pc.equal(rows["status"], "active"))]
    if holds_insights(context, golem_ids):
        with shared_texts(context, now) as texts:
            texts.embed_insights(context, golem_ids, now)
            for golem_id in golem_ids:
                told = texts.insights(context, golem_id, None if moment is None else moment.as_py())
                parts.append(insight_entries(told.values(), golem_id))
    return pa.concat_tables(parts).combine_chunks()


def _siblings(context: DerivationContext, golem_id: str) -> list[str]:
    """The other golems of its owner."""
    owners = owners_of(context)
    return sorted(other for other, owner in owners.items() if owner == owners[golem_id] and other != golem_id)


def _unheld(siblings: pa.Table, own: pa.Table) -> pa.Table:
    """Entries that the golem itself does not hold; of several copies the one validated last."""
    rows = siblings.filter(pc.invert(pc.is_in(siblings["entry_id"], value_set=own["entry_id"].combine_chunks())))
    rows = rows.sort_by([("entry_id", "ascending"), ("validated_at", "descending"), ("golem_id", "ascending")])
    ids = rows["entry_id"].to_numpy(zero_copy_only=False)
    is_first = np.r_[True, ids[1:] != ids[:-1]] if len(ids) else np.zeros(0, bool)
    return rows.filter(pa.array(is_first))


def text_vectors(context: DerivationContext, texts: pa.ChunkedArray, now: datetime) -> tuple[Float32Array, Int64Array]:
    """Return a matrix [distinct texts, dimension] of vectors, and for each text its row in it.

    Vectors come from the log by text hash; texts without one are embedded and recorded (canon 56).
    """
    encoded = texts.combine_chunks().dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    distinct = encoded.dictionary.to_pylist()
    if not distinct:
        return np.zeros((0, context.embedder.identity.dimension), np.float32), np.zeros(0, np.int64)
    hashes, known = recorded_vectors(context, distinct, now)
    index = pc.index_in(pa.array(hashes, pa.string()), value_set=known["text_hash"].combine_chunks())
    rows = known["vector"].combine_chunks().take(index)
    matrix = rows.flatten().to_numpy(zero_copy_only=False).astype(np.float32).reshape(len(distinct), -1)
    return matrix, encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def answer_facts(moment: GolemMoment, answer: Answer, policy: Policy) -> dict[str, Any]:
    """Return golem, situation, weights and time of an answer. Its keys are stable; the hits are another table."""
    return {
        "golem_id": moment.golem_id,
        "died_at_tick": moment.died_at_tick,
        "situation": dict(vars(moment.situation)),
        "decision": dict(vars(answer.decision)),
        "contrarian": answer.contrarian,
        "awake": answer.awake,
        "asleep": answer.asleep,
        "as_of": dict(vars(moment.as_of)),
        "weights": dict(zip(FACTORS, weights_of(policy.retrieval), strict=True)),
    }
