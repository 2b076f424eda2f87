"""Bloodstains: the artefacts of deaths, assembled from the log and the projections on each request.

Bloodstains are not stored, so a retraction that changes a projection changes them too.
Source: KAT (Bloodstain integration).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import records_between, values_by_golem
from bardo_pipeline.derivation.legacy.bundle_store import published_bundles
from bardo_pipeline.derivation.legacy.death_queries import deaths_with_ticks
from bardo_pipeline.derivation.legacy.derive_legacies import with_lives
from bardo_pipeline.errors import QueryError
from bardo_pipeline.events.record.arrow_columns import contiguous, rows_of_golems
from bardo_pipeline.grimoire.entries import GAS_BANDS
from bardo_pipeline.katabasis.bloodstain_artefact import bloodstain_of
from bardo_pipeline.katabasis.scar_rules import market_regimes

_MARKET_COLUMNS = ("golem_id", "tick", "observation", "regime")
_OBSERVED_FIELDS = ("chain", "protocol", "pair", "price_return", "sigma_ratio", "gas_gwei", "gas_hour_ratio")


def bloodstains(context: DerivationContext, golem_ids: Collection[str] | None = None) -> list[dict[str, Any]]:
    """Return the bloodstain of each death by golem id, of all dead golems or of these; living golems have none."""
    deaths = deaths_with_ticks(context)
    if golem_ids is not None:
        deaths = rows_of_golems(deaths, golem_ids)
    if not deaths.num_rows:
        return []
    deaths = with_lives(context, deaths.drop_columns(["tick"]))
    golems = deaths["golem_id"].to_pylist()
    scars, votes, conditions = _scars(context, deaths), _death_votes(context, golems), _conditions(context, deaths)
    pages = values_by_golem(context.projections.growing("testaments").read(golems=golems), "markdown")
    candidates = context.projections.growing("candidates").read(["golem_id", "bundle_hash"], golems=golems)
    bundles, published = values_by_golem(candidates, "bundle_hash"), published_bundles(context, golems)
    return [
        bloodstain_of(
            death,
            scars=scars.get(golem_id, []),
            votes=votes.get(golem_id, []),
            conditions=conditions.get(golem_id),
            testament_hash=hashlib.sha256(page.encode()).hexdigest() if (page := pages.get(golem_id)) else None,
            bundle_hash=bundles.get(golem_id),
            published=golem_id in bundles and published.get(golem_id) == bundles[golem_id],
        )
        for golem_id, death in zip(golems, deaths.to_pylist(), strict=True)
    ]


def bloodstain(context: DerivationContext, golem_id: str, *, public: bool = False) -> dict[str, Any]:
    """Return the bloodstain of one death, or its echo if `public`. Raises QueryError for an unknown or living golem."""
    rows = bloodstains(context, [golem_id])
    if not rows:
        is_born = golem_id in context.life("GolemBorn")["golem_id"].to_pylist()
        reason = "lives: only a dead golem has a bloodstain" if is_born else "no golem of this name was born"
        raise QueryError(f"golem {golem_id}: {reason}; `bardo graveyard` lists the dead")
    echo: dict[str, Any] = rows[0]["echo"]
    return echo if public else rows[0]


def _group_by_golem(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["golem_id"], []).append(row)
    return groups


def _scars(context: DerivationContext, deaths: pa.Table) -> dict[str, list[dict[str, Any]]]:
    """Return the scars that these deaths published."""
    rows = context.projections.replaceable("scars").read(only=deaths["owner_id"].unique().to_pylist())
    rows = rows_of_golems(rows.filter(rows["is_bloodstain"]), deaths["golem_id"].to_pylist())
    return _group_by_golem(rows.to_pylist())


def _death_votes(context: DerivationContext, golems: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the death votes of these golems; only the owners' private causes name the golem of a vote."""
    causes = context.projections.growing("vote_causes").read(["vote_id", "golem_id"], golems=golems)
    is_wanted = pc.field("is_death_vote") & pc.field("vote_id").isin(contiguous(causes["vote_id"]))
    votes = context.projections.growing("votes").read(only=is_wanted)
    golem_by_vote = dict(zip(causes["vote_id"].to_pylist(), causes["golem_id"].to_pylist(), strict=True))
    return _group_by_golem([{**vote, "golem_id": golem_by_vote[vote["vote_id"]]} for vote in votes.to_pylist()])


def _conditions(context: DerivationContext, deaths: pa.Table) -> dict[str, dict[str, Any]]:
    """Return the market in each golem's last record, unless that record is retracted."""
    ticks = {golem_id: (tick, tick) for golem_id, tick in values_by_golem(deaths, "tick").items()}
    records = records_between(context, _MARKET_COLUMNS, ticks, context.left_out())
    regimes = market_regimes(records, context.policy).to_pylist()
    conditions = {}
    for row, market_regime in zip(records.to_pylist(), regimes, strict=True):
        observed = {name: row["observation"][name] for name in _OBSERVED_FIELDS}
        band = int(np.searchsorted(context.policy.curator.gas_edges, observed["gas_hour_ratio"], side="right"))
        conditions[row["golem_id"]] = {
            **observed, "regime": row["regime"], "market_regime": market_regime, "gas_band": GAS_BANDS[band],
        }  # fmt: skip
    return conditions
