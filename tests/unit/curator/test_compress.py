"""Compression: which rules are folded, which stay separate, and when folded rules are split."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bardo_pipeline.curator.curate import Curation, curate
from bardo_pipeline.curator.playbook import Playbooks
from bardo_pipeline.curator.state.decision_log import fold
from bardo_pipeline.curator.state.grimoire_state import GrimoireState, entry_id, from_table, to_table
from bardo_pipeline.curator.views.crossings import links_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.reports.lineage import lineage_of
from bardo_pipeline.events.life.events import life_event
from bardo_pipeline.events.life.override_events import Order
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA
from bardo_pipeline.grimoire.gas_bands import split_by_band
from bardo_pipeline.heartbeat.entry_names import EntryNames
from bardo_pipeline.heartbeat.fleet import Founding, born
from bardo_pipeline.heartbeat.recall_table import CELL_GAS, recall_of
from bardo_pipeline.inheritance.weismann import SHED_COLUMNS, with_fade_time
from bardo_pipeline.katabasis.propositions import with_claims
from bardo_pipeline.quality.calibration import beliefs_at_closes
from bardo_pipeline.storage.home import Home
from tests.support.homes.owner_events import order
from tests.support.records.handmade_records import (
    GALE,
    KEEN,
    SPAN,
    SQUALL,
    START,
    STORM,
    Chapter,
    Life,
    Situation,
    cycles_of,
    full,
    stream,
)

POLICY = KEEN
INSTANT = timedelta(milliseconds=1)
STRONG, WORSE, SILENCE, ONE = Chapter(14, 6_000), Chapter(14, -6_000), Chapter(0), Chapter(1, 6_000)
BOTH = {SQUALL: (STRONG, STRONG), STORM: (STRONG, STRONG)}
"""Eight witnesses each, and an upvote: in the second cycle one rule replaces both."""
NOT_DEAR, ANY = (STORM.structure._replace(gas_band=span) for span in ("not_dear", "any"))

Row = dict[str, Any]


class CuratedLife:
    """The curator's result for one golem's life."""

    def __init__(
        self, plot: dict[Situation, Sequence[Chapter]], *orders: Order, every: timedelta = INSTANT,
        state: GrimoireState | None = None, golem_id: str = "g-1",
    ) -> None:  # fmt: skip
        by_key = {when: tuple(story) for when, story in plot.items()}
        records = stream([Life(golem_id, by_key, (0,), every, SPAN * max(len(story) for story in by_key.values()))])
        self.state = state or GrimoireState()
        self.made: Curation = curate(
            self.state, Playbooks(), records, cycles_of(records), policy=POLICY, policy_hash=POLICY.hash, orders=orders
        )
        self.grimoire = to_table(self.state, POLICY.curator, POLICY.decay)
        self.decisions: list[Row] = self.made.decisions.to_pylist()

    def decided(self, key: str) -> list[tuple[int, str]]:
        """Cycle and operation of the decisions about a structure."""
        return [(row["cycle"], row["operation"]) for row in self.decisions if row["structure"] == key]

    def entry(self, key: str) -> Row:
        """Return the present entry of a structure."""
        (row,) = [row for row in self.grimoire.to_pylist() if row["structure"] == key]
        return row

    def status(self) -> dict[str, str]:
        """Status by gas band."""
        return {row["gas_band"]: row["status"] for row in self.grimoire.to_pylist() if row["gas_band"]}


def after(*more: Chapter, cheap: Sequence[Chapter] | None = None) -> dict[Situation, Sequence[Chapter]]:
    """Return both rules' evidence and later chapters of the normal rule; those of the cheap rule are equal unless
    given.
    """
    return {SQUALL: (*BOTH[SQUALL], *(more if cheap is None else cheap)), STORM: (*BOTH[STORM], *more)}


@pytest.mark.row("MEM-4", "MEM-6")
def test_two_rules_that_differ_only_in_gas_fold_into_one_rule() -> None:
    life = CuratedLife(dict(BOTH))
    assert life.status() == {"cheap": "folded", "normal": "folded", "not_dear": "active"}
    wide, part = life.entry(NOT_DEAR.key), life.entry(SQUALL.structure.key)
    assert (wide["kind"], wide["sign"], wide["validations"]) == (part["kind"], part["sign"], part["validations"])
    assert " at the edge of its range and gas cheap or normal, prefer re-centring" in wide["text"]
    (made,) = [row for row in life.decisions if row["operation"] == "generalized"]
    assert made["reason"].startswith("rules that differ in gas alone agree; it stands for them; n=8; interval ")
    folded = [row for row in life.decisions if row["operation"] == "folded"]
    assert {row["structure"] for row in folded} == {SQUALL.structure.key, STORM.structure.key}
    assert all(row["cause_ticks"] and row["confidence_before_ppm"] == 700_000 for row in folded)
    assert [row["cause_ticks"] for row in folded] == [made["cause_ticks"]] * 2, "the evidence that folded them"
    assert fold(life.made.decisions).equals(life.grimoire)


@pytest.mark.row("MEM-4")
def test_evidence_for_the_wider_rule_counts_once() -> None:
    life = CuratedLife(after(STRONG))
    wide, cheap, normal = (life.entry(s.key) for s in (NOT_DEAR, SQUALL.structure, STORM.structure))
    assert (cheap["own_count"], normal["own_count"]) == (12, 12)
    assert wide["own_count"] == 12, "eight of the better supported part, then each window once"
    assert wide["own_sum"] == normal["own_sum"]
    assert life.decided(NOT_DEAR.key) == [(2, "generalized"), (3, "reinforced")]
    assert wide["confidence_ppm"] == 800_000, "one vote a cycle for any number of agreeing parts"
    assert life.decided(SQUALL.structure.key)[-2:] == [(2, "folded"), (3, "staged")]


@pytest.mark.row("MEM-4")
def test_the_wider_rule_starts_with_the_evidence_of_its_better_supported_part() -> None:
    for late in (SQUALL, STORM):
        life = CuratedLife({late: (SILENCE, STRONG, STRONG), ({SQUALL, STORM} - {late}).pop(): [STRONG] * 3})
        assert life.decided(NOT_DEAR.key) == [(3, "generalized")]
        assert (life.entry(late.structure.key)["own_count"], life.entry(NOT_DEAR.key)["own_count"]) == (8, 12)


@pytest.mark.row("MEM-6")
def test_a_folded_rule_is_not_created_again_while_its_wider_rule_is_active() -> None:
    life = CuratedLife(after(*[SILENCE] * 4, cheap=[STRONG] * 4))
    assert [o for c, o in life.decided(SQUALL.structure.key) if c > 2] == ["staged"] * 4
    assert life.status() == {"cheap": "folded", "normal": "folded", "not_dear": "active"}
    assert [o for _, o in life.decided(NOT_DEAR.key)].count("reinforced") == 4


@pytest.mark.row("MEM-4", "MEM-6")
@pytest.mark.parametrize(
    ("cheap", "why"),
    [
        ((WORSE, WORSE), "the signs are opposite"),
        ((Chapter(14, 900), Chapter(14, 900)), "the effect is much smaller"),
        ((STRONG, SILENCE), "four witnesses are too few"),
        ((Chapter(2, 6_000), STRONG), "only one rule is validated, so their kinds differ"),
    ],
)
def test_rules_with_different_evidence_are_not_folded(cheap: tuple[Chapter, ...], why: str) -> None:
    life = CuratedLife({SQUALL: cheap, STORM: BOTH[STORM]})
    assert life.status() == {"cheap": "active", "normal": "active"}, why


@pytest.mark.row("MEM-4", "MEM-6")
def test_rules_of_different_regimes_or_range_bands_are_not_folded() -> None:
    for other in (SQUALL._replace(regime="trending_up"), SQUALL._replace(score=0.95)):
        life = CuratedLife({other: BOTH[SQUALL], STORM: BOTH[STORM]})
        assert {row["status"] for row in life.grimoire.to_pylist() if row["gas_band"]} == {"active"}


@pytest.mark.row("MEM-4", "MEM-6")
def test_folded_parts_are_split_when_their_evidence_diverges() -> None:
    life = CuratedLife(after(*[STRONG] * 6, cheap=[Chapter(14, -30_000)] * 6))
    parted = [row for row in life.decisions if row["operation"] == "parted"]
    cycle = parted[0]["cycle"]
    assert [row["structure"] for row in parted if row["gas_band"] == "not_dear"] == [NOT_DEAR.key]
    assert all(row["reason"].startswith("what was told as one differs by now") for row in parted)
    assert life.status() == {"cheap": "active", "normal": "active", "not_dear": "pruned"}
    assert life.entry(STORM.structure.key)["sign"] == 1
    assert life.entry(SQUALL.structure.key)["sign"] == -1
    assert "folded" not in [row["operation"] for row in life.decisions if row["cycle"] >= cycle]
    normal = [row for row in parted if row["gas_band"] == "normal"]
    (wide,) = [row for row in parted if row["gas_band"] == "not_dear"]
    assert [row["confidence_ppm"] for row in normal] == [wide["confidence_ppm"]], (
        "a part takes the confidence of its wider rule"
    )


@pytest.mark.row("MEM-4", "MEM-6")
def test_folded_parts_with_equal_signs_but_different_effects_are_split() -> None:
    life = CuratedLife(after(*[STRONG] * 8, cheap=[Chapter(14, 400)] * 8))
    assert life.status() == {"cheap": "active", "normal": "active", "not_dear": "pruned"}
    cheap, normal = (life.entry(s.structure.key) for s in (SQUALL, STORM))
    assert cheap["effect_high_ppm"] < normal["effect_low_ppm"], "each part has its own effect"
    assert cheap["sign"] == normal["sign"] == 1
    assert cheap["validations"] > 1, "validations of the wider rule count for its parts"


@pytest.mark.row("MEM-6")
def test_three_gas_bands_fold_into_one_rule_step_by_step() -> None:
    life = CuratedLife({when: [STRONG] * 3 for when in (SQUALL, STORM, GALE)})
    assert life.status() == {
        "cheap": "folded", "normal": "folded", "dear": "folded", "not_dear": "pruned", "any": "active"
    }  # fmt: skip
    assert life.decided(ANY.key) == [(3, "generalized")]
    assert life.entry(ANY.key)["own_count"] == 12
    assert life.decided(NOT_DEAR.key)[-1] == (3, "folded")


@pytest.mark.row("MEM-6")
def test_pruning_a_wider_rule_prunes_its_parts_and_they_can_be_relearned() -> None:
    life = CuratedLife(after(*[SILENCE] * 12, *BOTH[STORM]), every=timedelta(days=2))
    assert life.decided(STORM.structure.key)[3:] == [(7, "pruned"), (15, "created"), (16, "reinforced"), (16, "folded")]
    pruned = [row for row in life.decisions if row["operation"] == "pruned"]
    assert {row["gas_band"] for row in pruned} == {"cheap", "normal", "not_dear"}
    assert len({row["cycle"] for row in pruned}) == 1
    assert all(row["own_count"] == 0 for row in pruned)


def owner_order(kind: str, cycle: int, **fields: Any) -> Order:
    """An override of the wider rule in a cycle."""
    rule = entry_id("g-1", NOT_DEAR.key)
    return order("g-1", 1, f"Entry{kind}", rule, POLICY.curator.cycle_ticks * (cycle - 1), **fields)


@pytest.mark.row("MEM-6", "X-8")
def test_an_order_of_the_owner_on_the_wider_rule_applies_to_its_parts() -> None:
    gone = CuratedLife(after(SILENCE), owner_order("Retracted", 3))
    assert gone.status() == {"cheap": "retracted", "normal": "retracted", "not_dear": "retracted"}
    selected_decisions = [row for row in gone.decisions if row["operation"] == "retracted"]
    assert [row["cause_event"] for row in selected_decisions] == ["g-1-1"] * 3
    turned = CuratedLife(after(SILENCE), owner_order("Corrected", 3, verdict="harms"))
    assert turned.entry(NOT_DEAR.key)["sign"] == -1
    assert turned.status()["not_dear"] == "active", "evidence for the old verdict does not split the rule"
    assert {turned.entry(s.structure.key)["own_count"] for s in (SQUALL, STORM)} == {0}


@pytest.mark.row("MEM-6", "X-8")
def test_a_pinned_rule_is_not_folded() -> None:
    rule = entry_id("g-1", STORM.structure.key)
    life = CuratedLife(dict(BOTH), order("g-1", 1, "EntryPinned", rule, POLICY.curator.cycle_ticks))
    assert life.status() == {"cheap": "active", "normal": "active"}


def heir_of(life: CuratedLife) -> GrimoireState:
    """Return an heir's initial entries: the active ones, without their sums of evidence."""
    kept = [row for row in life.grimoire.to_pylist() if row["status"] == "active" and row["gas_band"]]
    shed = dict.fromkeys(SHED_COLUMNS, 0) | {"golem_id": "g-2", "provenance": "death_testament"}
    rows = [row | shed | {"generation": row["generation"] + 1} for row in kept]
    return from_table(with_fade_time(pa.Table.from_pylist(rows, schema=ENTRY_SCHEMA), POLICY))


@pytest.mark.row("MEM-6")
def test_evidence_of_an_heir_for_a_part_updates_the_inherited_wider_rule() -> None:
    ancestor = CuratedLife(dict(BOTH))
    life = CuratedLife({SQUALL: [STRONG]}, state=heir_of(ancestor), golem_id="g-2")
    assert life.decided(NOT_DEAR.key) == [(1, "reinforced")]
    assert life.status() == {"cheap": "folded", "not_dear": "active"}
    life = CuratedLife({SQUALL: [WORSE]}, state=heir_of(ancestor), golem_id="g-2")
    assert life.decided(NOT_DEAR.key) == [(1, "contradicted"), (1, "parted")]
    assert life.status() == {"cheap": "active", "normal": "active", "not_dear": "pruned"}
    assert (life.entry(SQUALL.structure.key)["sign"], life.entry(STORM.structure.key)["sign"]) == (-1, 1)
    normal = life.entry(STORM.structure.key)
    assert (normal["origin_golem_id"], normal["generation"]) == ("g-1", 1), "no evidence contradicted this part"


@pytest.mark.row("MEM-6", "MEM-14")
def test_a_folded_entry_links_to_its_wider_rule() -> None:
    life = CuratedLife(dict(BOTH))
    links = links_of(life.grimoire).to_pylist()
    wide = life.entry(NOT_DEAR.key)["entry_id"]
    parts = {life.entry(s.structure.key)["entry_id"] for s in (SQUALL, STORM)}
    assert {(row["entry_id"], row["other_id"], row["relation"], row["across"]) for row in links} == {
        (part, wide, "told_by", "gas") for part in parts
    }


@pytest.mark.row("MEM-6")
def test_recall_applies_the_wider_rule_exactly_in_its_gas_bands() -> None:
    life = CuratedLife({SQUALL: [WORSE] * 2, STORM: [WORSE] * 2})
    assert life.entry(NOT_DEAR.key)["kind"] == "warning"
    at_us = int(life.entry(NOT_DEAR.key)["anchor_at"].timestamp() * 10**6)
    known = recall_of(life.state, ["g-1"], at_us, EntryNames(), POLICY)
    barred = np.flatnonzero(known.block[:, 0] >= 0)
    assert CELL_GAS[barred].tolist() == [0, 1]


@pytest.mark.row("MEM-6")
def test_claims_and_beliefs_of_a_wider_rule_are_those_of_its_parts() -> None:
    life = CuratedLife(dict(BOTH))
    apart = CuratedLife({STORM: BOTH[STORM]}), CuratedLife({SQUALL: BOTH[SQUALL]})
    assert set(with_claims(life.grimoire)["claim"].to_pylist()) == {
        claim for item in apart for claim in with_claims(item.grimoire)["claim"].to_pylist()
    }
    beliefs = beliefs_at_closes(life.made.decisions, life.made.cycles, POLICY.decay)
    last = [row["structure"] for row in beliefs.to_pylist() if row["cycle"] == 2]
    assert sorted(last) == sorted([SQUALL.structure.key, STORM.structure.key])


@pytest.mark.row("MEM-6", "X-2")
def test_the_lineage_of_a_wider_rule_contains_the_ticks_of_its_parts(tmp_path: Path) -> None:
    policy = POLICY.model_copy(update={"curator": POLICY.curator.model_copy(update={"cycle_ticks": SPAN})})
    at = datetime(2024, 6, 1, tzinfo=UTC)
    Home.create(tmp_path, policy, at)
    stores = DerivationContext.open(tmp_path, policy=policy)
    _, birth = born(
        lineage_id="g-1", generation=0, owner_id="owner-1", founding=Founding(owners=("a",), lifespan_ticks=(100, 200)),
        market="by hand", market_hash="0", derivation_id="d", policy=policy,
    )  # fmt: skip
    stores.log.record([life_event("g-1", START, birth)], at)
    rows = Life("g-1", BOTH, (0,), timedelta(minutes=1), 2 * SPAN).rows()
    stores.log.append(full(rows), writer="w", segment=1, recorded_at=at)
    derive_curation(stores)
    (held,) = lineage_of(stores, entry_id("g-1", NOT_DEAR.key), now=at)
    assert [d["operation"] for d in held.decisions] == ["generalized"]
    assert [tick.tick for tick in held.ticks] == list(range(1, 2 * SPAN + 1)), (
        "including the cycle before it was created"
    )
    (part,) = lineage_of(stores, entry_id("g-1", SQUALL.structure.key), now=at)
    assert (part.status, part.decisions[-1]["operation"]) == ("folded", "folded")


def test_split_by_band_gives_a_row_for_each_band_of_a_wider_rule() -> None:
    life = CuratedLife(dict(BOTH))
    active = [r["status"] == "active" and r["source"] == "pattern" for r in life.grimoire.to_pylist()]
    rows = split_by_band(life.grimoire.filter(pa.array(active)))
    assert rows["structure"].to_pylist() == [SQUALL.structure.key, STORM.structure.key]
    assert rows["gas_band"].to_pylist() == ["cheap", "normal"]
    assert len(set(rows["entry_id"].to_pylist())) == 1
    plain = CuratedLife({STORM: BOTH[STORM]}).grimoire
    assert split_by_band(plain).equals(plain)
