"""Replicants in a run: sent for open questions, short-lived, and received by their sender."""

from __future__ import annotations

from pathlib import Path

import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.death_queries import births_of, deaths_of
from bardo_pipeline.derivation.versions.rebuild import rebuild
from bardo_pipeline.runtime.replicants import LIFESPAN_TICKS
from tests.conftest import NOW
from tests.support.processes.bardo_command import bardo

RUN = ("run", "--bars", "800", "--golems", "1", "--generations", "2", "--lifespan", "700-720", "--seed", "12",
       "--no-marts")  # fmt: skip


@pytest.mark.full
@pytest.mark.row("INH-13")
def test_a_golem_sends_a_replicant_and_receives_its_report(tmp_path: Path) -> None:
    bardo(*RUN, "--replicants", "1", home=tmp_path)
    stores = DerivationContext.open(tmp_path)
    (sent,) = stores.life("ReplicantSent").to_pylist()
    parent, word = sent["replicant"]["parent_id"], sent["replicant"]["hypothesis"]
    births, deaths = births_of(stores), deaths_of(stores)
    assert {b.predecessor_id for b, _ in births.values()} == {None, parent}, "a replicant has no heir"
    own, foreign = births[sent["golem_id"]][0], births[parent][0]
    assert own.bundle_hash is None, "a replicant inherits no bundle"
    assert own.owner_id == foreign.owner_id
    assert own.traits.rebalance_threshold < foreign.traits.rebalance_threshold
    died, at = deaths[sent["golem_id"]]
    assert LIFESPAN_TICKS[0] <= died.tick <= LIFESPAN_TICKS[1]
    assert "it is open whether" in word

    (report,) = stores.life("KnowledgeReceived", [parent]).to_pylist()
    assert (report["received"]["source"], report["received"]["from_golem_id"]) == ("replicant", sent["golem_id"])
    way = report["quarantined"]
    assert (way["parent_id"], way["replicant_id"], way["hypothesis"]) == (parent, sent["golem_id"], word)
    assert report["observed_at"] >= at
    decided = stores.projections.growing("curation").read(golems=[parent])
    came = [row for row in decided.to_pylist() if row["cause_event"] == report["event_id"]]
    assert came, "the parent must judge the report"
    assert all(f"sent to find out: {word}" in row["reason"] for row in came)
    assert {row["cycle"] for row in came} == {way["tick_seen"] // 50 + 1}
    assert all(row["confidence_ppm"] <= 300_000 for row in came if row["operation"] == "quarantined")

    count = stores.log.life().num_rows
    bardo(*RUN, "--replicants", "1", home=tmp_path)
    assert DerivationContext.open(tmp_path).log.life().num_rows == count, "a repeated run sent a replicant"
    assert all(table.equal for table in rebuild(DerivationContext.open(tmp_path), now=NOW)), "the rebuild differs"
