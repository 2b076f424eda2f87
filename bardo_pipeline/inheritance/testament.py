"""The testament: what a dying golem has to say, in nine categories, each sentence with its evidence. Pure.

This is the structured form, written from what is on record; nothing in it is invented. `causes_what` stays empty until
causal links exist. Source: MEM (death reflection, about 5 KB), INH S8 (questions, not orders), canon 42.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from bardo_pipeline.curator.weigh import interval
from bardo_pipeline.events.record import REGIMES
from bardo_pipeline.grimoire.columns import asked, confidence_of, whole
from bardo_pipeline.grimoire.entries import MOMENT
from bardo_pipeline.grimoire.wording import ACTION_WORDS, ANOMALY_WORDS, GAS_WORDS, REGIME_WORDS
from bardo_pipeline.katabasis.votes import of_the_dead
from bardo_pipeline.policy import Policy

CATEGORIES: dict[str, str] = {
    "worked": "What worked",
    "failed": "What failed",
    "confused": "What was uncertain or confused me",
    "suspected": "What I suspect but cannot prove",
    "untested": "What I never had time to test",
    "regime": "How the regime behaved",
    "causes": "What causes what",
    "forget": "What to forget",
    "ask": "What I would ask my successor to find out",
}
"""The nine reflection categories (canon 42)."""

ITEM = pa.struct(
    [
        pa.field("statement", pa.string(), nullable=False),
        pa.field("entry_ids", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
        pa.field("ticks", pa.list_(pa.field("element", pa.int64(), nullable=False)), nullable=False),
    ]
)
"""One sentence and what it rests on: entries, and ticks of this golem's own log, newest last."""

TESTAMENT_SCHEMA = pa.schema(
    [
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("at", MOMENT, nullable=False),
        pa.field("generation", pa.int64(), nullable=False),
        pa.field("cause", pa.string(), nullable=False),
        *[pa.field(name, pa.list_(pa.field("element", ITEM, nullable=False)), nullable=False) for name in CATEGORIES],
        pa.field("markdown", pa.string(), nullable=False),
    ]
)
"""One row per dead golem; key golem_id."""

_SELECT = [
    "golem_id",
    "entry_id",
    "source",
    "status",
    "kind",
    "sign",
    "text",
    "action_type",
    "regime",
    "anomaly_band",
    "gas_band",
    "protocol",
    "pair",
]
_CAUSES = {
    "economic": "my credits ran out",
    "epistemic": "my predictions stopped holding",
    "stochastic": "my time was up",
}


def testaments(entries: pa.Table, decisions: pa.Table, deaths: pa.Table, policy: Policy) -> pa.Table:
    """The testament of each golem that died. Returns TESTAMENT_SCHEMA sorted by golem.

    entries: ENTRY_SCHEMA as folded at death, candidates and pruned ones included. decisions: DECISION_SCHEMA of those
    golems (for the ticks behind each entry). deaths: golem_id, at, cause, tick, generation.
    """
    items = _items(entries, decisions, deaths, policy)
    rows = [_testament(death, items.get(death["golem_id"], {}), policy) for death in _deaths(deaths)]
    return pa.Table.from_pylist(rows, schema=TESTAMENT_SCHEMA)


def _deaths(deaths: pa.Table) -> list[dict[str, Any]]:
    return deaths.select(["golem_id", "at", "cause", "tick", "generation"]).sort_by("golem_id").to_pylist()


def _testament(death: dict[str, Any], items: dict[str, list[dict[str, Any]]], policy: Policy) -> dict[str, Any]:
    """One row; a loop over golems, because each ends in sentences (at most 9 x 8 a golem)."""
    end = {
        "statement": f"I died at tick {death['tick']}: {_CAUSES[death['cause']]}.",
        "entry_ids": [],
        "ticks": [death["tick"]],
    }
    said = {name: list(items.get(name, ())) for name in CATEGORIES}
    said["failed"] = [end, *said["failed"]]
    head = {name: death[name] for name in ("golem_id", "at", "generation", "cause")}
    return {**head, **said, "markdown": testament_markdown(death, said, policy.inheritance.testament_bytes_max)}


def _items(
    entries: pa.Table, decisions: pa.Table, deaths: pa.Table, policy: Policy
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """golem -> category -> items, best first, at most policy.inheritance.testament_items a category."""
    dead, at_us = of_the_dead(entries, deaths)
    table = dead.select(_SELECT)
    for name, values in _figures(dead, at_us, policy).items():
        table = table.append_column(name, pa.array(values))
    kept = min(policy.inheritance.testament_items, 64)
    causes = decisions.select(["golem_id", "entry_id", "cause_ticks"])
    answer = asked(_query(policy, kept), entries=table, causes=causes)
    out: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in answer.to_pylist():
        item = {"statement": _statement(row), "entry_ids": row["entry_ids"], "ticks": row["ticks"]}
        out.setdefault(row["golem_id"], {}).setdefault(row["category"], []).append(item)
    return out


def _figures(dead: pa.Table, at_us: np.ndarray, policy: Policy) -> dict[str, np.ndarray]:
    """What the choice of items rests on, by row: confidence at death, own evidence and its interval."""
    count = whole(dead, "own_count")
    mean, low, high = interval(np.maximum(count, 1), whole(dead, "own_sum"), whole(dead, "own_sumsq"), policy)
    return {
        "confidence": confidence_of(dead, at_us, policy.decay),
        "count": count,
        "mean": mean,
        "low": low,
        "high": high,
        "validations": whole(dead, "validations"),
        "contradictions": whole(dead, "contradictions"),
    }


def _query(policy: Policy, kept: int) -> str:
    """Each entry to the categories where it has something to say; the ticks of those that are kept."""
    least, effect = policy.curator.cluster_min, policy.curator.effect_min_ppm
    pattern, waiting = (
        "source = 'pattern'",
        f"source = 'pattern' and status = 'candidate' and count >= {least} and low <= 0 and high >= 0",
    )
    regimes = " ".join(f"when '{name}' then {place}" for place, name in enumerate(REGIMES))
    return f"""
        with placed as (
            select 'worked' as category, *, (kind = 'heuristic')::int as lead, confidence as weight from entries
                where {pattern} and status = 'active' and sign > 0
            union all select 'failed', *, (kind = 'warning')::int, confidence from entries
                where {pattern} and status = 'active' and sign < 0
            union all select 'confused', *, (status = 'active')::int, contradictions * 1000000 + count from entries
                where ({pattern} and status = 'active' and contradictions > 0)
                   or ({waiting} and abs(mean) < {effect} and high - low >= {round(2 * effect)})
            union all select 'suspected', *, 0, count from entries where {waiting} and abs(mean) >= {effect}
            union all select 'untested', *, 0, count from entries
                where {pattern} and status = 'candidate' and count > 0 and count < {least}
            union all select 'regime', *, 0, confidence from entries where source = 'baseline' and status = 'active'
            union all select 'forget', *, (status = 'pruned')::int, contradictions from entries
                where {pattern} and (status = 'pruned' or (status = 'active' and contradictions > validations))
            union all select 'ask', *, 1, count from entries where {waiting} and abs(mean) >= {effect}
            union all select 'ask', *, 0, count from entries
                where {pattern} and status = 'candidate' and count > 0 and count < {least}
        ),
        ranked as (
            select *, row_number() over (partition by golem_id, category order by lead desc, weight desc, entry_id) as turn
            from placed qualify turn <= {kept}
        ),
        ticks as (
            select golem_id, entry_id, list_sort(list_distinct(flatten(list(cause_ticks))))[-8:] as ticks
            from causes where (golem_id, entry_id) in (select golem_id, entry_id from ranked) group by all
        ),
        judged as (
            select golem_id, 'regime' as category, regime, sum(count) as count, list(entry_id order by count desc, entry_id)[:4] as entry_ids,
                -1 - case regime {regimes} else 9 end as turn
            from entries where {pattern} and count > 0 group by all
        )
        select golem_id, category, turn, source, kind, sign, text, action_type, regime, anomaly_band, gas_band, protocol, pair,
               count::bigint as count, sign(mean)::int as leaning, [entry_id] as entry_ids, coalesce(ticks, []) as ticks
        from ranked left join ticks using (golem_id, entry_id)
        union all by name
        select golem_id, category, turn, regime, count::bigint as count, entry_ids, []::bigint[] as ticks from judged
        order by golem_id, category, turn
    """


def _statement(row: dict[str, Any]) -> str:
    category = row["category"]
    if category == "regime":
        return row["text"] or f"In {REGIME_WORDS[row['regime']]} {row['count']} of my decisions could be judged."
    if category in ("worked", "failed", "forget") or (category == "confused" and row["sign"] != 0):
        return row["text"]
    act = ACTION_WORDS.get(row["action_type"], row["action_type"])
    scene = (
        f"in {REGIME_WORDS[row['regime']]}, with a {row['pair']} position on {row['protocol']} "
        f"{ANOMALY_WORDS[row['anomaly_band']]} and {GAS_WORDS[row['gas_band']]}"
    )
    if category == "ask":
        return f"Does {act} {'lose to' if row['leaning'] < 0 else 'beat'} holding {scene}?"
    side = "beats" if row["leaning"] > 0 else "loses to"
    if category == "suspected":
        return f"I suspect that {act} {side} holding {scene}; {row['count']} decisions do not prove it."
    if category == "untested":
        return f"Whether {act} beats holding {scene}: only {row['count']} decisions could be judged."
    return f"I could not tell whether {act} beats holding {scene}: {row['count']} decisions point both ways."


def testament_markdown(death: dict[str, Any], said: dict[str, list[dict[str, Any]]], bytes_max: int) -> str:
    """The testament as a page of at most bytes_max bytes: the best item of each category first, whole items only."""
    head = f"# Testament of {death['golem_id']}\n\nGeneration {death['generation']}, died at tick {death['tick']} ({death['cause']}).\n"
    lines = {name: [f"- {_line(item)}\n" for item in items] for name, items in said.items()}
    size = len(head.encode()) + sum(
        len(f"\n## {title}\n\n- (nothing)\n".encode()) + 40 for title in CATEGORIES.values()
    )
    kept = dict.fromkeys(CATEGORIES, 0)
    for turn in range(max((len(items) for items in lines.values()), default=0)):
        for name, items in lines.items():
            if turn < len(items) and kept[name] == turn and size + len(items[turn].encode()) <= bytes_max:
                kept[name], size = turn + 1, size + len(items[turn].encode())
    parts = [head]
    for name, title in CATEGORIES.items():
        rest = len(lines[name]) - kept[name]
        body = "".join(lines[name][: kept[name]]) + (f"- ({rest} more in testament.json)\n" if rest else "")
        parts.append(f"\n## {title}\n\n{body or '- (nothing)' + chr(10)}")
    return "".join(parts)


def _line(item: dict[str, Any]) -> str:
    evidence = [f"entry {e[:8]}" for e in item["entry_ids"][:2]] + [f"tick {t}" for t in item["ticks"][-3:]]
    return item["statement"] + (f" [{', '.join(evidence)}]" if evidence else "")
