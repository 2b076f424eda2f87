"""The status of a home as a document, for `bardo status` and for its server. Source: X-11."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

import pyarrow.compute as pc

from bardo_pipeline.derivation.active_derivation import adoptions_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.unfinished_deaths import unfinished_deaths
from bardo_pipeline.derivation.reports.home_health import faults, health_of
from bardo_pipeline.errors import BardoError
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.warehouse.build import query


def status_of(context: DerivationContext, now: datetime) -> dict[str, Any]:
    """Return the status of the view as JSON; its keys are stable."""
    health = health_of(context, now)
    digests = {name: context.projections.digest(name) for name in TABLES}
    heads = context.log.heads()
    in_order = pc.min_element_wise(heads["contiguous"], heads["highest"])  # without ticks that were lost at the end
    adopted = adoptions_of(context.log.life("DerivationAdopted"))
    return {
        "derivation_id": context.derivation_id,
        "policy_hash": context.policy.hash,
        "adopted": adopted[-1].why if adopted else None,
        "frozen": context.frozen,
        "log": {
            "version": context.log.version,
            "ticks": pc.sum(in_order).as_py() or 0,
            "gaps": [gap._asdict() for gap in context.log.gaps()],
        },
        "health": asdict(health),
        "faults": [asdict(fault) for fault in faults(health, context.policy)],
        "unfinished_deaths": [death._asdict() for death in unfinished_deaths(context)],
        "projections": {name: {"rows": d.rows, "fingerprint": d.fingerprint} for name, d in digests.items()},
        "warehouse": _state_of_warehouse(context.home),
    }


def _state_of_warehouse(home: Home) -> str:
    if not home.warehouse.exists():
        return "none yet: `bardo derive` builds it"
    try:
        _, rows = query(home, "select max(as_of) from dim_golem")
    except BardoError as error:
        return str(error)
    return f"as of {rows[0][0]}"
