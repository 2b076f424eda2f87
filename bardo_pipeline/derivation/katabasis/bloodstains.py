"""Bloodstains: the artefacts of the dead, put together from what the log and the projections say when asked.

A function of both: nothing of it is stored, and what is left out since changes it as it changes what it is made from.
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
from bardo_pipeline.derivation.incremental.record_queries import records_between
from bardo_pipeline.derivation.katabasis.recorded_deaths import deaths_with_ticks
from bardo_pipeline.derivation.legacy.derive_legacies import with_lives
from bardo_pipeline.derivation.legacy.published_bundles import published_bundles
from bardo_pipeline.errors import QueryError
from bardo_pipeline.grimoire.entries import GAS_BANDS
from bardo_pipeline.grimoire.entry_columns import contiguous
from bardo_pipeline.katabasis.bloodstain_artefact import bloodstain_of
from bardo_pipeline.katabasis.scar_rules import market_regimes

_MARKET = ("golem_id", "tick", "observation", "regime")
_OBSERVED = ("chain", "protocol", "pair", "price_return", "sigma_ratio", "gas_gwei", "gas_hour_ratio")


def bloodstains(context: DerivationContext, golem_ids: Collection[str] | None = None) -> list[dict[str, Any]]:
    """What each death left (katabasis.bloodstain), of all the dead or of these, by golem; none of who lives."""
    deaths = deaths_with_ticks(context)
    if golem_ids is not None:
        deaths = deaths.filter(pc.is_in(deaths["golem_id"], value_set=pa.array(sorted(golem_ids), pa.string())))
    if not deaths.num_rows:
        return []
    deaths = with_lives(context, deaths.drop_columns(["tick"]))
    golems = deaths["golem_id"].to_pylist()
    scars, votes = _scars(context, deaths), _votes(context, golems)
    conditions, told = _conditions(context, deaths), context.projections.growing("testaments").read(golems=golems)
    pages = dict(zip(told["golem_id"].to_pylist(), told["markdown"].to_pylist(), strict=True))
    rows = context.projections.growing("candidates").read(["golem_id", "bundle_hash"], golems=golems)
    bundles = dict(zip(rows["golem_id"].to_pylist(), rows["bundle_hash"].to_pylist(), strict=True))
    published = published_bundles(context, golems)
    return [
        bloodstain_of(
            death,
            scars=scars.get(death["golem_id"], []),
            votes=votes.get(death["golem_id"], []),
            conditions=conditions.get(death["golem_id"]),
            testament_hash=_sealed(pages.get(death["golem_id"])),
            bundle_hash=bundles.get(death["golem_id"]),
            published=bundles.get(death["golem_id"]) is not None
            and published.get(death["golem_id"]) == bundles[death["golem_id"]],
        )
        for death in deaths.to_pylist()
    ]


def bloodstain(context: DerivationContext, golem_id: str) -> dict[str, Any]:
    """What one death left. Raises QueryError for who was never born or lives."""
    found = bloodstains(context, [golem_id])
    if not found:
        born = golem_id in context.life("GolemBorn")["golem_id"].to_pylist()
        said = "lives: a bloodstain is what a death leaves" if born else "no golem of this name was born"
        raise QueryError(f'golem {golem_id}: {said}; `bardo sql "from fct_deaths"` lists the dead')
    return found[0]


def _sealed(page: str | None) -> str | None:
    return None if page is None else hashlib.sha256(page.encode()).hexdigest()


def _by_golem(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    out: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        out.setdefault(row["golem_id"], []).append(row)
    return out


def _scars(context: DerivationContext, deaths: pa.Table) -> dict[str, list[dict[str, Any]]]:
    """The scars that these deaths published."""
    rows = context.projections.replaceable("scars").read(only=deaths["owner_id"].unique().to_pylist())
    mine = pc.is_in(rows["golem_id"], value_set=contiguous(deaths["golem_id"]))
    return _by_golem(rows.filter(pc.and_(rows["is_bloodstain"], mine)).to_pylist())


def _votes(context: DerivationContext, golems: list[str]) -> dict[str, list[dict[str, Any]]]:
    """The last words of these dead: which they are, only their owner's private causes know."""
    causes = context.projections.growing("vote_causes").read(["vote_id", "golem_id"], golems=golems)
    wanted = pc.field("is_death_vote") & pc.field("vote_id").isin(contiguous(causes["vote_id"]))
    votes = context.projections.growing("votes").read(only=wanted)
    whose = dict(zip(causes["vote_id"].to_pylist(), causes["golem_id"].to_pylist(), strict=True))
    return _by_golem([{**vote, "golem_id": whose[vote["vote_id"]]} for vote in votes.to_pylist()])


def _conditions(context: DerivationContext, deaths: pa.Table) -> dict[str, dict[str, Any]]:
    """The market that each golem saw last, where that record counts."""
    ticks = {row["golem_id"]: (row["tick"], row["tick"]) for row in deaths.select(["golem_id", "tick"]).to_pylist()}
    records = records_between(context, _MARKET, ticks, context.left_out())
    regimes = market_regimes(records, context.policy).to_pylist()
    out = {}
    for row, market_regime in zip(records.to_pylist(), regimes, strict=True):
        seen = {name: row["observation"][name] for name in _OBSERVED}
        band = int(np.searchsorted(context.policy.curator.gas_edges, seen["gas_hour_ratio"], side="right"))
        out[row["golem_id"]] = {
            **seen, "regime": row["regime"], "market_regime": market_regime, "gas_band": GAS_BANDS[band],
        }  # fmt: skip
    return out
