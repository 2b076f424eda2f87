"""Links: how the entries of a grimoire bear on each other, as in a Zettelkasten. Pure, one self-join over columns.

Two rules about the same act in situations that differ in one respect agree across it, or differ, and then that respect
decides; a causal link leads to another where its effect is the other's cause; a folded rule is told by the one that
stands for it. Source: MEM (cross-reference; "the
Zettelkasten link structure"), canon 17 ("another regime separates").
"""

from __future__ import annotations

import pyarrow as pa

from bardo_pipeline.grimoire.columns import asked
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS
from bardo_pipeline.grimoire.spans import WIDE_GAS_BANDS

LINK_SCHEMA = pa.schema(
    [
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("entry_id", pa.string(), nullable=False),
        pa.field("other_id", pa.string(), nullable=False),
        pa.field("relation", pa.string(), nullable=False),
        pa.field("across", pa.string(), nullable=False),
        pa.field("strength_ppm", pa.int64(), nullable=False),
    ]
)
"""One row per pair of active entries of a golem that bear on each other, and per folded entry and the active one that
stands for it; key (golem_id, entry_id, other_id).

relation: agrees, differs, leads_to or told_by. across: in what their situations differ (regime, gas, anomaly:
neighbouring bands), or "cause" for a chain of causes. A chain has a direction, and what is told by another stands
before it; other pairs stand once, the smaller id first. strength_ppm: the lesser of the two confidences at their
anchors (of what stands for another: its own), in parts per million."""

_LINKS = """
with known as (
    select golem_id, entry_id, source, sign, confidence_ppm, cause, effect, regime, gas_band as gas,
        chain || '|' || protocol || '|' || pair as market, tool || '|' || action_type as act,
        list_position($bands, anomaly_band) as anomaly
    from entries where status = 'active' and sign <> 0
),
pairs as (
    select a.golem_id, a.entry_id, b.entry_id as other_id,
        case when a.sign = b.sign then 'agrees' else 'differs' end as relation,
        case
            when a.regime = b.regime and a.gas = b.gas and abs(a.anomaly - b.anomaly) = 1 then 'anomaly'
            when a.regime <> b.regime and a.gas = b.gas and a.anomaly = b.anomaly then 'regime'
            when a.regime = b.regime and a.gas <> b.gas and a.anomaly = b.anomaly then 'gas'
        end as across,
        least(a.confidence_ppm, b.confidence_ppm) as strength_ppm
    from known as a
    join known as b using (golem_id, market, act)
    where a.source = 'pattern' and b.source = 'pattern' and a.entry_id < b.entry_id
),
chains as (
    select a.golem_id, a.entry_id, b.entry_id as other_id, 'leads_to' as relation, 'cause' as across,
        least(a.confidence_ppm, b.confidence_ppm) as strength_ppm
    from known as a
    join known as b on a.golem_id = b.golem_id and a.market = b.market and a.effect = b.cause
    where a.entry_id <> b.entry_id
),
folds as (
    select a.golem_id, a.entry_id, b.entry_id as other_id, 'told_by' as relation, 'gas' as across, b.confidence_ppm
    from entries as a
    join entries as b using (golem_id, chain, protocol, pair, tool, action_type, regime, anomaly_band)
    where a.status = 'folded' and b.status = 'active' and b.source = 'pattern'
        and list_contains($spans, b.gas_band || '|' || a.gas_band)
)
select * from pairs where across is not null
union all
select * from chains
union all
select * from folds
order by golem_id, entry_id, other_id
"""


def links_of(entries: pa.Table) -> pa.Table:
    """The links among entries (ENTRY_SCHEMA), each golem's among its own: LINK_SCHEMA, in the order of its key."""
    spans = [f"{span}|{band}" for span, bands in WIDE_GAS_BANDS.items() for band in bands]
    return asked(_LINKS, {"bands": list(ANOMALY_BANDS), "spans": spans}, entries=entries).cast(LINK_SCHEMA)
