"""A home of two owners whose texts carry canaries: each owner has a pair of its own to trade."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import duckdb

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.record_overrides import pin
from bardo_pipeline.derivation.legacy.death_queries import commit_credit
from bardo_pipeline.derivation.memory.derive_episodes import refresh_index
from bardo_pipeline.derivation.versions.rebuild import derive_everything
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.market.synthetic import synthetic_market
from bardo_pipeline.policy import Policy
from bardo_pipeline.runtime.fleet_run import FleetRun
from bardo_pipeline.runtime.run_settings import Run
from bardo_pipeline.storage.conversations.conversations import Conversations
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.keys.owner_signing_keys import OwnerKeys
from tests.conftest import NOW

CORAL, PEARL = "coral", "pearl"
"""The owners; their names are their canaries, in the pair, the market, the conversations and the reasons too."""


@dataclass(frozen=True)
class Belongings:
    """Things of an owner, to name on a command line, and all their names, to find in an output."""

    owner: str
    golem: str
    heir: str
    entry: str
    bundle: str
    names: frozenset[str]

    def traces(self, output: str, given: str = "") -> list[str]:
        """Return the names of the owner that an output shows, except where it repeats a word of `given`."""
        for word in given.split():
            output = output.replace(word, "")
        return sorted(
            {name for name in self.names if name in output} | {*re.findall(rf"\S*{self.owner}\S*", output, re.I)}
        )


def two_owners(root: Path, *, bars: int = 330) -> Path:
    """Make a home in which both owners have a dead golem with a bundle, and its living heir; every table is derived."""
    shutil.rmtree(root, ignore_errors=True)
    Home.create(root, Policy(), NOW)
    for owner in (CORAL, PEARL):
        _live(root, owner, bars)
    stores = DerivationContext.open(root)
    derive_everything(stores, now=NOW)
    refresh_index(stores)
    for owner in (CORAL, PEARL):
        own = belongings(root, owner)
        commit_credit(stores, owner, 9_000_000, f"{owner} funds its heirs", now=NOW)
        OwnerKeys(stores.home, stores.log).make(owner, owner.encode().ljust(32), NOW)
        Conversations(stores.home, stores.log).append(own.golem, "owner", f"{owner} spoke", NOW)
        pin(stores, own.heir, _entries(stores, own.heir)[0], f"{owner} likes it", now=NOW)
    stores.log.close()
    return root


def _live(root: Path, owner: str, bars: int) -> None:
    market = synthetic_market(seed=7, bars=bars, start=datetime(2026, 1, 1, tzinfo=UTC))
    market = replace(market, name=f"{owner} market", pair=f"{owner.upper()}/USDC")
    founding = Founding(owners=(owner,), lifespan_ticks=(150, 170))
    stores = DerivationContext.open(root)
    ending = FleetRun(stores, Run(f"run of {owner}", market, 1, 2, founding), lambda: NOW).live()
    stores.log.close()
    assert (ending.births, ending.deaths, ending.published) == (2, 1, 1), f"the heir must live: {ending}"


def belongings(root: Path, owner: str) -> Belongings:
    """Read the belongings of an owner."""
    stores = DerivationContext.open(root, owner=owner)
    (golem,) = stores.life("DeathDeclared")["golem_id"].to_pylist()
    (heir,) = set(stores.life("GolemBorn")["golem_id"].to_pylist()) - {golem}
    bundle = stores.life_fields("BundlePublished", "bundle_hash")["bundle_hash"][0].as_py()
    entries = {entry[:10] for name in (golem, heir) for entry in _entries(stores, name)}
    return Belongings(owner, golem, heir, _entries(stores, golem)[0], bundle,
                      frozenset({golem, heir, bundle[:10], *entries}))  # fmt: skip


def _entries(stores: DerivationContext, golem: str) -> list[str]:
    rows = stores.projections.replaceable("grimoire").read(only=[golem]).to_pylist()
    return [row["entry_id"] for row in sorted(rows, key=lambda row: row["status"] != "active")]


def write_small_warehouse(root: Path) -> None:
    """Write two marts with a row of each owner, and the shared mart with a claim of each, in place of dbt's build."""
    (root / "warehouse.duckdb").unlink(missing_ok=True)
    with duckdb.connect(root / "warehouse.duckdb") as connection:
        for mart in ("dim_golem", "fct_knowledge"):
            connection.execute(f"create table {mart} (golem_id text, owner_id text, text text)")
            for owner in (CORAL, PEARL):
                own = belongings(root, owner)
                connection.execute(f"insert into {mart} values (?, ?, ?)", [own.golem, owner, f"{owner} text"])
        connection.execute("create table fct_consensus (proposition_id text, claim text)")
        rows = DerivationContext.open(root).projections.read("consensus").select(["proposition_id", "claim"])
        connection.register("claims", rows)
        connection.execute("insert into fct_consensus from claims")
