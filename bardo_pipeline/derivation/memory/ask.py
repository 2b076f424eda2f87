"""Asking: what a golem knows that bears on a question, where it stands and as of when.

Gathers entries, their vectors and the golem's situation; `retrieval` weighs them. Reads projections and records; what
it writes is vectors of texts that were never embedded, and those are events.
Source: MEM (four-factor retrieval), KAT, canon 21-24, 56.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.curator.views.crossings import dreams_that_cross
from bardo_pipeline.derivation.active_derivation import in_force
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.dreams.derive_lessons import known_entries, known_entries_at
from bardo_pipeline.derivation.katabasis.vote_and_consensus import golem_owners
from bardo_pipeline.derivation.memory.embed_texts import recorded_vectors
from bardo_pipeline.errors import QueryError
from bardo_pipeline.events.record.arrow_columns import one
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA, MOMENT
from bardo_pipeline.grimoire.entry_columns import micros
from bardo_pipeline.retrieval.credit_rules import totals
from bardo_pipeline.retrieval.embedder_interface import check_question
from bardo_pipeline.retrieval.retrieve import Answer, AsOf, Grimoire, Uses
from bardo_pipeline.retrieval.scoring import CLADE, VAULT
from bardo_pipeline.retrieval.situation import SILENT_TIERS, Situation

_STOOD = ("tick", "observed_at", "regime", "tier", "prediction_error", "pad_after", "observation.protocol")


@dataclass(frozen=True)
class Standing:
    """A golem as it stands: its situation, what its knowledge rests on, and whether that is an earlier moment.

    died_at_tick: of who was dead by then; None of who lived.
    """

    golem_id: str
    situation: Situation
    as_of: AsOf
    earlier: bool
    died_at_tick: int | None = None

    def in_regime(self, regime: str) -> Standing:
        """The same, as if the market had long been in this regime. Raises QueryError for an unknown one."""
        situation = replace(self.situation, regime=regime, regime_before=None, regime_ticks=0)
        return replace(self, situation=situation)


def standing(
    context: DerivationContext, golem_id: str, *, at: datetime | None = None, tick: int | None = None
) -> Standing:
    """Where a golem stands: at its newest record, or at an earlier moment or tick of its life.

    Its knowledge is that of its last cycle that had closed then. Raises QueryError for a golem that was never born, or
    not yet, for a tick that is not on record, for a moment and a tick at once, and for an embedder that made nothing.
    """
    if at is not None and tick is not None:
        raise QueryError("a golem is asked as of a moment or as of a tick: give one of them")
    must_be_derived(context)
    births = {e["golem_id"]: e["observed_at"] for e in context.life("GolemBorn").to_pylist()}
    if golem_id not in births:
        raise QueryError(f'golem {golem_id}: no golem of this name was born: `bardo sql "from dim_golem"` lists all')
    told = _records(context, golem_id)
    ticks = told["tick"].to_numpy()
    upto = _upto(told, golem_id, at, tick)
    if at is not None and at < births[golem_id]:
        raise QueryError(f"golem {golem_id}: it was born at {births[golem_id]:%Y-%m-%d %H:%M}, after that moment")
    moment = at or (told["observed_at"][upto - 1].as_py() if upto else births[golem_id])
    at_us = pa.scalar(moment, MOMENT).cast(pa.int64()).as_py()
    cycle, last, closed = _closed(context, golem_id, moment)
    head = int(ticks[upto - 1]) if upto else 0
    as_of = AsOf(cycle, last, closed, head, context.log.version)
    earlier = upto < len(ticks) or at is not None
    died = context.log.death_of(golem_id)
    died = died if died is not None and head >= died else None
    return Standing(golem_id, _situation(told.slice(0, upto), at_us), as_of, earlier, died)


def must_be_derived(context: DerivationContext) -> None:
    """Raise QueryError for another embedder than the one in force, if nothing was ever derived by it."""
    current = in_force(context.life("DerivationAdopted")).embedder
    if context.embedder_name != current and not context.projections.digest("cycles").rows:
        raise QueryError(
            f"nothing is derived by {context.embedder_name} here: {current} is in force, and `bardo reembed` goes from "
            "one to the other"
        )


def _records(context: DerivationContext, golem_id: str) -> pa.Table:
    """What every record of a golem says of its situation, in order, without what is left out."""
    rows = context.log.read_stretch(list(_STOOD), [golem_id], 1, 2**53)
    left = context.left_out()
    if left.causes and rows.num_rows:
        out = left.records(pa.chunked_array([pa.repeat(pa.scalar(golem_id), rows.num_rows)]), rows["tick"].to_numpy())
        rows = rows.filter(pa.array(~out))
    rows = rows.sort_by("tick")
    ticks = rows["tick"].to_numpy()
    first = np.r_[True, ticks[1:] != ticks[:-1]] if len(ticks) else np.zeros(0, bool)
    return rows.filter(pa.array(first)).combine_chunks()


def _upto(told: pa.Table, golem_id: str, at: datetime | None, tick: int | None) -> int:
    """How many of the records count."""
    ticks = told["tick"].to_numpy()
    if tick is not None:
        found = int(np.searchsorted(ticks, tick, side="left"))
        if found == len(ticks) or ticks[found] != tick:
            last = int(ticks[-1]) if len(ticks) else 0
            raise QueryError(f"golem {golem_id}: tick {tick} is not on record; its newest is {last}")
        return found + 1
    if at is None:
        return len(ticks)
    us = pa.scalar(at, MOMENT).cast(pa.int64()).as_py()
    return int(np.searchsorted(micros(told, "observed_at"), us, side="right"))


def _closed(context: DerivationContext, golem_id: str, at: datetime) -> tuple[int, int, datetime | None]:
    """The last cycle that had closed, its last tick and its moment; (0, 0, None) before the first."""
    rows = context.projections.growing("cycles").read(["cycle", "tick_last", "closed_at"], golems=[golem_id])
    rows = rows.filter(pc.less_equal(rows["closed_at"], pa.scalar(at, MOMENT))).sort_by("cycle")
    if not rows.num_rows:
        return 0, 0, None
    newest = rows.slice(rows.num_rows - 1).to_pylist()[0]
    return newest["cycle"], newest["tick_last"], newest["closed_at"]


def _situation(told: pa.Table, at_us: int) -> Situation:
    if not told.num_rows:
        return Situation(at_us)
    last: dict[str, Any] = told.slice(told.num_rows - 1).to_pylist()[0]
    regimes, ticks = told["regime"].to_pylist(), told["tick"].to_pylist()
    since = len(regimes) - 1
    while since > 0 and regimes[since - 1] == last["regime"]:
        since -= 1
    mood = last["pad_after"]
    thought = [t for t, tier in zip(ticks[:-1], told["tier"].to_pylist(), strict=False) if tier not in SILENT_TIERS]
    return Situation(
        at_us,
        tick=last["tick"],
        regime=last["regime"],
        regime_before=regimes[since - 1] if since else None,
        regime_ticks=last["tick"] - ticks[since],
        mood=(mood["pleasure"], mood["arousal"], mood["dominance"]),
        tier=last["tier"],
        surprise=last["prediction_error"],
        protocol=last[told.column_names[-1]],
        thought_tick=thought[-1] if thought else 0,
    )


def ask(
    context: DerivationContext,
    where: Standing,
    question: str,
    *,
    now: datetime,
    k: int | None = None,
    clade: bool = False,
    may_skip: bool = False,
) -> Answer:
    """The entries that matter most for a question, asked of a golem where it stands.

    k: how many, the policy's five by default. clade: what its owner's other golems know counts, too, at its discount.
    may_skip: let the golem decide to do without; otherwise it answers, and the answer says what it would have decided.
    now: when vectors made here are recorded. Raises QueryError for an empty or too long question and k < 1.
    """
    rules = context.policy.retrieval
    asked, count = check_question(question, rules.question_bytes_max), rules.results if k is None else k
    if count < 1:
        raise QueryError(f"at least one entry must be wanted, not {count}")
    grimoire = grimoire_of(context, where, now=now, clade=clade)
    (vector,) = context.embedder.embed([asked])
    return grimoire.retrieve(vector, where.situation, count, may_skip=may_skip)


def grimoire_of(context: DerivationContext, where: Standing, *, now: datetime, clade: bool = False) -> Grimoire:
    """What a golem knew where it stood, ready to be asked. clade: with what its owner's other golems knew."""
    entries = _entries(context, [where.golem_id], where)
    layer = np.full(entries.num_rows, VAULT)
    if clade:
        siblings = _entries(context, _siblings(context, where.golem_id), where)
        siblings = _unheld(siblings.filter(dreams_that_cross(siblings, context.policy)), entries)
        layer = np.concatenate([layer, np.full(siblings.num_rows, CLADE)])
        entries = pa.concat_tables([entries, siblings]).combine_chunks()
    vectors, text_of = text_vectors(context, entries["text"], now)
    uses = _uses(context, entries, where)
    return Grimoire(entries, vectors, text_of, context.policy, uses=uses, layer=layer, as_of=where.as_of)


def _uses(context: DerivationContext, entries: pa.Table, where: Standing) -> Uses:
    """What became of earlier retrievals of each entry, by the golem that holds it, in cycles closed by then."""
    golems = entries["golem_id"].unique().to_pylist()
    columns = ["golem_id", "entry_id", "cycle", "useful", "misled", "last_access_at"]
    rows = context.projections.growing("credits").read(columns, golems=golems)
    if where.earlier:
        cycles = context.projections.growing("cycles").read(["golem_id", "cycle", "closed_at"], golems=golems)
        moment = pa.scalar(where.situation.at_us, pa.int64()).cast(MOMENT)
        closed = cycles.filter(pc.less_equal(cycles["closed_at"], moment))
        rows = rows.join(closed.select(["golem_id", "cycle"]), ["golem_id", "cycle"], join_type="inner")
    summed = totals(rows)
    place = pc.index_in(_held_by(entries), value_set=_held_by(summed))
    return Uses(
        *(
            pc.fill_null(summed[name].combine_chunks().take(place), 0).to_numpy(zero_copy_only=False)
            for name in ("useful", "misled", "last_us")
        )
    )


def _held_by(rows: pa.Table) -> pa.Array:
    return one(pc.binary_join_element_wise(rows["golem_id"], rows["entry_id"], "\x1f"))


def _entries(context: DerivationContext, golem_ids: list[str], where: Standing) -> pa.Table:
    """The active entries of these golems, as they were at the moment that is asked of."""
    if not golem_ids:
        return ENTRY_SCHEMA.empty_table()
    if where.earlier:
        rows = known_entries_at(context, golem_ids, pa.scalar(where.situation.at_us, pa.int64()).cast(MOMENT))
    else:
        rows = known_entries(context, golem_ids)
    return rows.filter(pc.equal(rows["status"], "active"))


def _siblings(context: DerivationContext, golem_id: str) -> list[str]:
    """The other golems of its owner."""
    known = golem_owners(context).to_pylist()
    mine = {row["owner_id"] for row in known if row["golem_id"] == golem_id}
    return sorted(row["golem_id"] for row in known if row["owner_id"] in mine and row["golem_id"] != golem_id)


def _unheld(siblings: pa.Table, own: pa.Table) -> pa.Table:
    """What others know and the golem does not hold itself: of one entry the copy that was validated last."""
    rows = siblings.filter(pc.invert(pc.is_in(siblings["entry_id"], value_set=own["entry_id"].combine_chunks())))
    rows = rows.sort_by([("entry_id", "ascending"), ("validated_at", "descending"), ("golem_id", "ascending")])
    ids = rows["entry_id"].to_numpy(zero_copy_only=False)
    first = np.r_[True, ids[1:] != ids[:-1]] if len(ids) else np.zeros(0, bool)
    return rows.filter(pa.array(first))


def text_vectors(
    context: DerivationContext, texts: pa.ChunkedArray, now: datetime
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Vectors of the distinct texts, float32 [distinct, dimension], and the row of each text in them.

    From the home's cache by the hash of the text; what was never embedded is, and is recorded (canon 56).
    """
    encoded = texts.combine_chunks().dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    distinct = encoded.dictionary.to_pylist()
    if not distinct:
        return np.zeros((0, context.embedder.identity.dimension), np.float32), np.zeros(0, np.int64)
    hashes, known = recorded_vectors(context, distinct, now)
    place = pc.index_in(pa.array(hashes, pa.string()), value_set=known["text_hash"].combine_chunks())
    rows = known["vector"].combine_chunks().take(place)
    matrix = rows.flatten().to_numpy(zero_copy_only=False).astype(np.float32).reshape(len(distinct), -1)
    return matrix, encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
