"""Standings of the golems of a clade as sources: how the outcomes of this home's golems judged their entries.

A received entry waits in quarantine until own outcomes admit or refuse it. A source of which they refused several
entries, and most of those that they judged, is throttled: its parcels wait and its notes are refused, warnings
included. Verdicts count for as long as parcels are kept, so a throttled source is heard again.
Source: INH S5.3 ("prevents a compromised Golem from flooding the Clade with poisoned knowledge"); ADR 0117.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.state.decision_log import ADMITTED, OPERATIONS, QUARANTINED, REFUSED
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.grimoire.entry_columns import query_tables
from bardo_pipeline.policy.inheritance import CladePolicy


class SourceStanding(NamedTuple):
    """Received entries of one golem by the verdict of most golems here that judged them.

    Golems of one market see the same windows, so their verdicts on one entry count once.
    """

    refused: int
    admitted: int

    def is_throttled(self, rules: CladePolicy) -> bool:
        """Whether enough entries were refused, and more than the bearable share of the judged ones."""
        judged = self.refused + self.admitted
        return self.refused >= rules.refused_min and self.refused > rules.refused_share_max * judged


def standings_of(decisions: pa.Table, parcels: pa.Table, since: datetime) -> dict[str, SourceStanding]:
    """Return the standing of each golem whose entries were judged since a moment.

    Parameters
    ----------
    decisions : pa.Table, columns of DECISION_SCHEMA
    parcels : content_hash and from_golem_id of received parcels
    """
    words = {"quarantined": OPERATIONS[QUARANTINED], "admitted": OPERATIONS[ADMITTED], "refused": OPERATIONS[REFUSED]}
    rows = query_tables(_STANDINGS, {**words, "since": since}, decisions=decisions.select(_READ), parcels=parcels)
    return {row["source"]: SourceStanding(row["refused"], row["admitted"]) for row in rows.to_pylist()}


def throttled_sources(context: DerivationContext, golem_ids: Collection[str], now: datetime) -> dict[str, str]:
    """Return the siblings that these golems throttle at a moment of their time, each with the reason."""
    received = context.life_fields("KnowledgeReceived", "source", "content_hash", "from_golem_id")
    parcels = received.filter(pc.equal(received["source"], "clade")).select(["content_hash", "from_golem_id"])
    if not parcels.num_rows or not golem_ids:
        return {}
    verdicts = pc.field("operation").isin([OPERATIONS[code] for code in (QUARANTINED, ADMITTED, REFUSED)])
    decisions = context.projections.growing("curation").read(_READ, golems=sorted(golem_ids), only=verdicts)
    rules = context.policy.clade
    standings = standings_of(decisions, parcels, now - timedelta(days=rules.kept_days))
    return {
        source: f"golem {source} is throttled: own outcomes refused {standing.refused} of its entries"
        f" and admitted {standing.admitted}"
        for source, standing in standings.items()
        if standing.is_throttled(rules)
    }


_READ = ["golem_id", "entry_id", "revision", "cycle", "seq", "at", "operation", "cause_bundle"]

_STANDINGS = """
    with origins as (select distinct content_hash, from_golem_id from parcels),
    followed as (
        select golem_id, entry_id, operation, "at", last_value(cause_bundle ignore nulls) over (
            partition by golem_id, entry_id order by cycle, seq
        ) as bundle
        from (select * replace (case when operation = $quarantined then cause_bundle end as cause_bundle)
              from decisions where operation in ($quarantined, $admitted, $refused)
              qualify revision = max(revision) over (partition by golem_id))
    ),
    judged as (
        select from_golem_id as source, entry_id,
            count(*) filter (operation = $refused) > count(*) filter (operation = $admitted) as is_refused
        from followed join origins on bundle = content_hash
        where operation <> $quarantined and "at" >= $since
        group by all
    )
    select source, count(*) filter (is_refused)::int as refused, count(*) filter (not is_refused)::int as admitted
    from judged group by source order by source
"""
