"""Derives a dead golem's testament: sentences in nine categories, each with its recorded evidence. Pure.

Source: MEM (death reflection, about 5 KB), INH S8 (questions, not orders), canon 42.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from bardo_pipeline.curator.passes.weigh import interval
from bardo_pipeline.events.record.arrow_columns import listed, required
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.entries import MOMENT
from bardo_pipeline.grimoire.entry_columns import confidence_of, int_column, query_tables
from bardo_pipeline.grimoire.entry_text import ACTION_WORDS, REGIME_WORDS, scene_words
from bardo_pipeline.inheritance.divergence import (
    DIVERGENCE_FIELDS,
    SENTENCE_COUNT_SCHEMA,
    divergence_words,
    divergences,
)
from bardo_pipeline.katabasis.anonymous_votes import entries_of_dead_golems
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

ITEM = pa.struct([required("statement", pa.string()), listed("entry_ids", pa.string()), listed("ticks", pa.int64())])
"""One sentence with its evidence: entries, and ticks of this golem's own log, newest last."""

TESTAMENT_SCHEMA = pa.schema(
    [
        required("golem_id", pa.string()),
        required("at", MOMENT),
        required("generation", pa.int64()),
        required("cause", pa.string()),
        *[listed(name, ITEM) for name in CATEGORIES],
        *DIVERGENCE_FIELDS,
        required("markdown", pa.string()),
    ]
)
"""One row per dead golem; key golem_id. The nine categories are followed by the columns of DIVERGENCE_SCHEMA."""

OPEN = ("confused", "suspected", "untested", "ask")
"""Categories that count as explicit gaps (INH S8.1)."""

_WORDED = (
    "golem_id", "entry_id", "source", "status", "kind", "sign", "text", "action_type", "regime", "anomaly_band",
    "gas_band", "protocol", "pair", "own_count", "validations", "contradictions",
)  # fmt: skip
_CAUSES = {
    "economic": "my credits ran out",
    "epistemic": "my predictions stopped holding",
    "stochastic": "my time was up",
    "silence": "I fell silent",
}

PLACE = """
    with patterns as (
        select *, own_count as count, status = 'active' as active,
            status = 'candidate' and count >= $least and low <= 0 and high >= 0 as open,
            status = 'candidate' and count between 1 and $least - 1 as young,
            abs(mean) >= $effect as leans
        from entries where source = 'pattern'
    ),
    placed as (
        select 'worked' as category, golem_id, entry_id, kind = 'heuristic' as lead, confidence as weight
            from patterns where active and sign > 0
        union all select 'failed', golem_id, entry_id, kind = 'warning', confidence
            from patterns where active and sign < 0
        union all select if(sign > 0, 'worked', 'failed'), golem_id, entry_id, kind <> 'insight', confidence
            from entries where source in ('choice', 'report') and status = 'active'
        union all select 'confused', golem_id, entry_id, true, contradictions
            from patterns where active and contradictions > 0
        union all select 'confused', golem_id, entry_id, false, count
            from patterns where open and not leans and high - low >= 2 * $effect
        union all select 'suspected', golem_id, entry_id, true, count from patterns where open and leans
        union all select 'untested', golem_id, entry_id, true, count from patterns where young
        union all select 'forget', golem_id, entry_id, status in ('pruned', 'retracted'), contradictions
            from patterns where status in ('pruned', 'retracted') or (active and contradictions > validations)
        union all select 'ask', golem_id, entry_id, open, count from patterns where (open and leans) or young
        union all select 'regime', golem_id, entry_id, true, confidence
            from entries where source = 'baseline' and status = 'active'
        union all select 'causes', golem_id, entry_id, true, confidence
            from entries where source = 'causal' and status = 'active'
    ),
    ranked as (
        select *, row_number() over (partition by golem_id, category order by lead desc, weight desc, entry_id) as turn
        from placed qualify turn <= $kept
    ),
    evidence as (
        select golem_id, entry_id, list_sort(list_distinct(flatten(list(cause_ticks))))[-$ticks:] as ticks
        from causes where (golem_id, entry_id) in (select (golem_id, entry_id) from ranked) group by all
    ),
    judged as (
        select golem_id, regime, sum(count)::bigint as count,
            list(entry_id order by count desc, entry_id)[:4] as entry_ids
        from patterns where count > 0 group by golem_id, regime
    )
    select category, turn, entries.*, own_count as count, [entry_id] as entry_ids, coalesce(ticks, []) as ticks
    from ranked join entries using (golem_id, entry_id) left join evidence using (golem_id, entry_id)
    union all by name
    select 'regime' as category, list_position($regimes, regime) - 9 as turn, golem_id, regime, count, entry_ids,
        []::bigint[] as ticks
    from judged order by golem_id, category, turn
"""


def testaments(entries: pa.Table, decisions: pa.Table, deaths: pa.Table, policy: Policy) -> pa.Table:
    """Write the testament of each dead golem. Returns TESTAMENT_SCHEMA sorted by golem.

    - worked, failed: active rules, about choices and reports too, with positive or negative sign;
    - confused: contradicted active rules, and candidates with enough evidence and a wide interval around zero;
    - suspected: candidates with enough evidence whose mean has a clear sign, but whose interval includes zero;
    - untested: candidates with less evidence than `cluster_min`;
    - regime: number of judged decisions per regime, and baselines;
    - causes: causal links;
    - forget: rules that were pruned, or contradicted more often than confirmed;
    - ask: suspected and untested rules as questions.

    Parameters
    ----------
    entries : pa.Table, ENTRY_SCHEMA as folded at death, candidates and pruned entries included
    decisions : pa.Table, DECISION_SCHEMA of these golems, for the ticks behind each entry
    deaths : pa.Table, golem_id, at, cause, tick, generation; optional is_record_left_out: the record of that tick is
        retracted and not cited as evidence
    """
    items = _items(entries, decisions, deaths, policy)
    dead = deaths.sort_by("golem_id").to_pylist()
    sections = [_with_death(death, items.get(death["golem_id"], {})) for death in dead]
    counts = [_counted(death["golem_id"], section) for death, section in zip(dead, sections, strict=True)]
    divergence = divergences(
        entries, decisions, deaths, pa.Table.from_pylist(counts, schema=SENTENCE_COUNT_SCHEMA), policy
    )
    bytes_max = policy.inheritance.testament_bytes_max
    rows = [
        death | section | apart | {"markdown": testament_markdown(death, section, bytes_max, divergence_words(apart))}
        for death, section, apart in zip(dead, sections, divergence.to_pylist(), strict=True)
    ]
    return pa.Table.from_pylist(rows, schema=TESTAMENT_SCHEMA)


def _with_death(death: dict[str, Any], items: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Return category -> items of one golem (at most 9 x 8), with the sentence about its death first in `failed`."""
    statement = f"I died at tick {death['tick']}: {_CAUSES[death['cause']]}."
    sections = {name: list(items.get(name, ())) for name in CATEGORIES}
    evidence = [] if death.get("is_record_left_out") else [death["tick"]]
    sections["failed"].insert(0, {"statement": statement, "entry_ids": [], "ticks": evidence})
    return sections


def _counted(golem_id: str, sections: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return a row of SENTENCE_COUNT_SCHEMA. An entry in several open categories counts as one gap."""
    items = sum(len(sections[name]) for name in CATEGORIES)
    gaps = {tuple(item["entry_ids"]) for name in OPEN for item in sections[name]}
    return {"golem_id": golem_id, "items": items, "questions": len(sections["ask"]), "gaps": len(gaps)}


def _items(
    entries: pa.Table, decisions: pa.Table, deaths: pa.Table, policy: Policy
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return golem -> category -> items, best first."""
    dead, at_us = entries_of_dead_golems(entries, deaths)
    count = int_column(dead, "own_count")
    mean, low, high = interval(np.maximum(count, 1), int_column(dead, "own_sum"), int_column(dead, "own_sumsq"), policy)
    table = dead.select(_WORDED)
    figures = {"confidence": confidence_of(dead, at_us, policy.decay), "mean": mean, "low": low, "high": high}
    for name, values in figures.items():
        table = table.append_column(name, pa.array(values))
    numbers = {
        "least": policy.curator.cluster_min,
        "effect": policy.curator.effect_min_ppm,
        "kept": policy.inheritance.testament_items,
        "ticks": policy.inheritance.testament_items,
        "regimes": list(REGIMES),
    }
    causes = decisions.select(["golem_id", "entry_id", "cause_ticks"])
    items: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in query_tables(PLACE, numbers, entries=table, causes=causes).to_pylist():
        item = {"statement": _statement(row), "entry_ids": row["entry_ids"], "ticks": row["ticks"]}
        items.setdefault(row["golem_id"], {}).setdefault(row["category"], []).append(item)
    return items


def _statement(row: dict[str, Any]) -> str:
    """Return the sentence of an item: the entry's text for established entries, a hedged sentence for open ones."""
    category = row["category"]
    if category == "regime":
        return row["text"] or f"In {REGIME_WORDS[row['regime']]} {row['count']} of my decisions could be judged."
    if category in ("worked", "failed", "causes"):
        return str(row["text"])
    if category == "forget":
        return f"{row['text']} It did not last."
    if category == "confused" and row["status"] == "active":
        return f"{row['text']} What came later disagreed ({row['contradictions']} times)."
    act = ACTION_WORDS.get(row["action_type"], row["action_type"])
    scene = scene_words(*(row[name] for name in ("regime", "pair", "protocol", "anomaly_band", "gas_band")))
    scene = scene.replace("In ", "in ", 1)
    if category == "ask":
        return f"Does {act} {'lose to' if row['mean'] < 0 else 'beat'} holding {scene}?"
    if category == "suspected":
        side = "loses to" if row["mean"] < 0 else "beats"
        return f"I suspect that {act} {side} holding {scene}; {row['count']} decisions do not prove it."
    if category == "untested":
        return f"Whether {act} beats holding {scene}: too few decisions ({row['count']}) could be judged."
    return f"I could not tell whether {act} beats holding {scene}: {row['count']} decisions point both ways."


def testament_markdown(
    death: dict[str, Any], sections: dict[str, list[dict[str, Any]]], bytes_max: int, divergence: str
) -> str:
    """Return the testament as a page of at most bytes_max bytes, filled with the best items of each category in turn.

    divergence: the sentence of `divergence_words`.
    """
    lines = {name: [f"- {_line(item)}\n" for item in sections[name]] for name in CATEGORIES}
    kept = dict.fromkeys(CATEGORIES, 0)
    for turn in range(max(len(items) for items in lines.values())):
        for name, items in lines.items():
            if turn < len(items) and kept[name] == turn:
                kept[name] = turn + 1
                if len(_page(death, lines, kept, divergence).encode()) > bytes_max:
                    kept[name] = turn
    return _page(death, lines, kept, divergence)


def _page(death: dict[str, Any], lines: dict[str, list[str]], kept: dict[str, int], divergence: str) -> str:
    page = f"# Testament of {death['golem_id']}\n\n"
    page += f"Generation {death['generation']}, died at tick {death['tick']} ({death['cause']}).\n"
    page += f"\n{divergence}\n" if divergence else ""
    for name, title in CATEGORIES.items():
        rest = len(lines[name]) - kept[name]
        body = "".join(lines[name][: kept[name]]) + (f"- ({rest} more in testament.json)\n" if rest else "")
        page += f"\n## {title}\n\n{body or 'Nothing.' + chr(10)}"
    return page


def _line(item: dict[str, Any]) -> str:
    evidence = [f"entry {e[:8]}" for e in item["entry_ids"][:2]] + [f"tick {t}" for t in item["ticks"][-3:]]
    return f"{item['statement']} [{', '.join(evidence)}]"
