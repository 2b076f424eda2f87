"""Homes for repair tests: two lineages with every table derived, whose records tests strike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.derive_home import complete_deaths
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle
from bardo_pipeline.derivation.memory.derive_episodes import refresh_index
from bardo_pipeline.derivation.strikes_and_reorgs import withdraw
from bardo_pipeline.runtime import fleet_run
from bardo_pipeline.storage.delta.table_specs import TABLES
from tests.conftest import NOW
from tests.property.derivation.test_laws import POLICY, beside, derive_all, fingerprints, small_run, stores_at

GROWING = tuple(name for name, spec in TABLES.items() if spec.grows)
RENEWED = tuple(name for name, spec in TABLES.items() if not spec.grows)


def lived_home(root: Path) -> DerivationContext:
    """Return a home of two lineages over some hours, with deaths, heirs and every table derived."""
    stores = stores_at(root, POLICY)
    fleet_run.FleetRun(stores, small_run("run"), lambda: NOW).live()
    derive_all_again(stores)
    return stores


def derive_all_again(stores: DerivationContext) -> None:
    """Derive everything from the log: withdrawals from heirs, every table, verdicts, publications and the index."""
    withdraw(stores, now=NOW)
    derive_all(stores)
    complete_deaths(stores, now=NOW)
    refresh_index(stores)


def births(stores: DerivationContext) -> dict[str, dict[str, Any]]:
    return {e["golem_id"]: e["born"] for e in stores.life("GolemBorn").to_pylist()}


def line(stores: DerivationContext) -> tuple[str, str]:
    """A golem and its heir."""
    return next((b["predecessor_id"], g) for g, b in sorted(births(stores).items()) if b["predecessor_id"])


def inherited_evidence(stores: DerivationContext, golem_id: str, heir: str) -> tuple[int, str]:
    """Return a tick that is evidence of an inherited entry, and the entry."""
    inherited = load_bundle(stores.home, births(stores)[heir]["bundle_hash"]).entries()["entry_id"].to_pylist()
    for row in stores.projections.growing("curation").read(golems=[golem_id]).sort_by("cycle").to_pylist():
        if row["entry_id"] in inherited and row["cause_ticks"]:
            return row["cause_ticks"][0], row["entry_id"]
    raise AssertionError("the heir inherited nothing that was learned")


def rebuilt_fingerprints(stores: DerivationContext, folder: Path) -> dict[str, tuple[int, str]]:
    """Return the fingerprints of a rebuild from the log alone."""
    again = beside(stores, folder)
    derive_all(again)
    return fingerprints(again)
