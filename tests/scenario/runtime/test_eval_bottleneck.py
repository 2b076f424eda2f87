"""`bardo eval bottleneck`: the value kept at each budget by each way of choosing, on a page without external files."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from bardo_pipeline.errors import ConfigError
from bardo_pipeline.grimoire.entries import MOMENT
from bardo_pipeline.policy import Policy
from bardo_pipeline.runtime.bottleneck_evaluation import BUDGETS, POOL, WAYS, Squeeze, chosen, merged_grimoire
from tests.scenario.runtime.test_eval_command import Page
from tests.support.knowledge.handmade_grimoires import DIED, entry, grimoire, pattern
from tests.support.processes.bardo_command import bardo

POLICY = Policy()
SMALL = ("--seed", "3", "--golems", "2", "--days", "1", "--heir-days", "1", "--heirs", "1", "--markets", "1",
         "--pairs", "2")  # fmt: skip


@pytest.mark.row("X-5")
def test_every_selection_fills_its_budget_by_its_own_rule() -> None:
    rows = [entry(POOL, about=pattern(f"t{i}"), confidence_ppm=500_000 + 1_000 * i, sign=1) for i in range(40)]
    pool = grimoire(*rows).sort_by("entry_id")
    deaths, at_us = pa.table({"golem_id": [POOL], "at": pa.array([DIED], MOMENT)}), int(DIED.timestamp() * 1e6)
    by_key = {way: chosen(pool, deaths, 16, way, at_us, 5, POLICY) for way in WAYS}
    assert {way: table.num_rows for way, table in by_key.items()} == dict.fromkeys(WAYS, 16)
    assert min(by_key["confidence"]["confidence_ppm"].to_pylist()) == 524_000, "the most confident entries"
    again = chosen(pool, deaths, 16, "random", at_us, 5, POLICY)
    assert again.equals(by_key["random"]), "equal seeds must draw equal samples"
    assert not chosen(pool, deaths, 16, "random", at_us, 6, POLICY).equals(by_key["random"])
    assert all(chosen(pool, deaths, 64, way, at_us, 5, POLICY).num_rows == 40 for way in WAYS)


@pytest.mark.row("X-5")
def test_pooled_knowledge_has_one_entry_per_structure() -> None:
    """Without this a choice by merit repeats the same few truths, and a random choice finds more of them."""
    triples = [(g, about, 500_000 + 10_000 * i) for i, g in enumerate(("g-1", "g-2", "g-3")) for about in ("a", "b")]
    rows = [entry(g, about=pattern(a), confidence_ppm=sure, sign=1) for g, a, sure in triples]
    rows.append(entry("g-3", about=pattern("c"), status="pruned", confidence_ppm=900_000, sign=1))
    pool = merged_grimoire(grimoire(*rows))
    assert set(pool["golem_id"].to_pylist()) == {POOL}
    assert len(set(pool["structure"].to_pylist())) == pool.num_rows == 2
    assert pool["confidence_ppm"].to_pylist() == [520_000] * 2, "the most confident entry of each structure"


def test_more_pairs_than_golems_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 golems cannot trade 3 pairs"):
        Squeeze(seed=1, golems=2, pairs=3)


@pytest.mark.full
@pytest.mark.row("X-5", "INH-5")
def test_the_command_reports_kept_value_for_each_budget(tmp_path: Path) -> None:
    output = bardo("eval", "bottleneck", *SMALL, "--out", str(tmp_path / "page"), home=tmp_path / "none")
    assert "What survives" in output
    report = json.loads((tmp_path / "page" / "report.json").read_text())
    assert [(k["budget"], k["way"]) for k in report["kept"]] == [(b, w) for b in BUDGETS for w in WAYS]
    whole = report["kept"][-3:]
    assert all(k["truths"] == k["answers"] == 1.0 for k in whole), "with room for all, nothing is lost"
    assert report["truths"] > 0
    page = Page((tmp_path / "page" / "index.html").read_text())
    assert page.tags.count("svg") == 3
    assert page.addresses == []
