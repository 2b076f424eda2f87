"""The fate of a proposal: the curator's gate at the close of the cycle after its record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import pytest
from pydantic import ValidationError

from bardo_pipeline.curator.curate import curate
from bardo_pipeline.curator.playbook import Playbooks
from bardo_pipeline.curator.state.grimoire_state import GrimoireState, entry_id, to_table
from bardo_pipeline.curator.state.proposal_schema import Proposals
from bardo_pipeline.events.life.proposal_events import AnomalyBand, GasBand, Proposal
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, GAS_BANDS
from bardo_pipeline.policy import Policy
from tests.support.knowledge.drawn_proposals import SOURCE, Disputed, situation
from tests.support.records.handmade_records import KEEN, RALLY, SPAN, STORM, Situation, cycles_of, table

pytestmark = pytest.mark.row("MEM-4")

POLICY = KEEN.model_copy(update={"curator": KEEN.curator.model_copy(update={"cycle_ticks": SPAN})})
PAYS, HARMS, MIXED, SILENT = (9_000, 8_000, 9_000, 8_500), (-9_000, -8_000, -9_000, -8_500), (900, -900, 0, 0), (0,) * 4
RULE = entry_id("g-0", STORM.structure.key)

Cycles = Sequence[tuple[int, ...]]


def proposal(operation: str, seen: int, *evidence: int, about: Situation = STORM, **fields: Any) -> Proposal:
    """One proposal about a situation's rule, made after a tick."""
    adds = operation == "ADD"
    plain: dict[str, Any] = {
        "golem_id": "g-0", "tick_seen": seen, "event_id": "event", "number": 0, "source": SOURCE,
        "operation": operation, "reason": "so it seems", "evidence": evidence,
        "entry_id": None if adds else entry_id("g-0", about.structure.key),
        "situation": situation(about.structure) if adds else None, "sign": 1 if adds else None,
        "note": "mind the gas" if operation == "EDIT" else None,
    }  # fmt: skip
    return Proposal(**plain | fields)


class Judged:
    """The results of proposals in a life."""

    def __init__(self, cycles: Cycles, *rows: Proposal, policy: Policy = POLICY) -> None:
        records = table(Disputed("g-0", {STORM: tuple(cycles)}).rows())
        self.state = GrimoireState()
        made = curate(
            self.state, Playbooks(), records, cycles_of(records), policy=policy, policy_hash=policy.hash,
            proposals=rows, cited=records,
        )  # fmt: skip
        self.decisions = made.decisions.to_pylist()
        self.entries = {e["structure"]: e for e in to_table(self.state, policy.curator, policy.decay).to_pylist()}

    @property
    def reactions(self) -> list[tuple[int, str]]:
        """Cycle and operation of the decisions that an event caused."""
        return [(row["cycle"], row["operation"]) for row in self.decisions if row["cause_event"]]

    @property
    def rule(self) -> dict[str, Any]:
        """Return the present rule."""
        return self.entries[STORM.structure.key]


def test_an_upvote_counts_if_fresh_citations_and_own_evidence_agree() -> None:
    vote = proposal("UPVOTE", 12, 8)
    judged = Judged([PAYS, PAYS, MIXED, SILENT], vote)
    without = Judged([PAYS, PAYS, MIXED, SILENT])
    assert judged.reactions == [(4, "reinforced")]
    assert judged.rule["validations"] == without.rule["validations"] + 1
    assert judged.rule["confidence_ppm"] > without.rule["confidence_ppm"]
    (row,) = [row for row in judged.decisions if row["cause_event"]]
    assert row["cause_event"] == "event"
    assert row["cause_ticks"] == [7, 8, 9], "of the decisions taken at that tick or judged at it"
    assert row["reason"] == f"own evidence agrees; {SOURCE} proposed the upvote: so it seems"


@pytest.mark.parametrize(
    ("evidence", "why"),
    [
        ((10,), "the evidence of the tick has the opposite sign"),
        ((9,), "the decision of the tick and the verdict at the tick disagree"),
        ((5, 6), "they were counted when their own cycle voted"),
        ((13,), "the tick is later than the proposal"),
        ((11,), "nothing was judged at that tick"),
        ((400,), "there is no such tick"),
    ],
)
def test_an_upvote_without_confirming_evidence_stays_staged(evidence: tuple[int, ...], why: str) -> None:
    judged = Judged([PAYS, PAYS, MIXED, SILENT], proposal("UPVOTE", 12, *evidence))
    without = Judged([PAYS, PAYS, MIXED, SILENT])
    assert judged.reactions == [(4, "staged")], why
    assert judged.rule == without.rule


def test_an_upvote_needs_decisive_own_evidence() -> None:
    judged = Judged([PAYS, (-7_000,) * 4, MIXED, SILENT], proposal("UPVOTE", 12, 8))
    assert (judged.rule["status"], judged.rule["own_sum"] > 0) == ("active", True)
    assert judged.reactions == [(4, "staged")]


def test_a_rule_with_a_vote_in_this_cycle_receives_no_second_vote() -> None:
    assert Judged([PAYS, PAYS, MIXED, PAYS], proposal("UPVOTE", 12, 8)).reactions == [(4, "staged")]


def test_a_cited_effect_below_the_minimum_gives_no_vote() -> None:
    least = round(POLICY.curator.effect_min_ppm)
    for effect, statement in ((least - 1, "staged"), (least, "reinforced")):
        # A second decision keeps the cycle itself from voting.
        judged = Judged([PAYS, PAYS, (effect, -effect, 0, 0), SILENT], proposal("UPVOTE", 12, 8))
        assert judged.reactions == [(4, statement)]


def test_a_verdict_after_the_proposal_cannot_be_cited() -> None:
    life = [PAYS, PAYS, MIXED, MIXED]
    assert Judged(life, proposal("UPVOTE", 13, 12)).reactions == [(4, "reinforced")]
    assert Judged(life, proposal("UPVOTE", 12, 12)).reactions == [(4, "staged")], (
        "tick 13 judges the decision of tick 12"
    )


def test_a_downvote_counts_if_all_own_evidence_contradicts_the_rule() -> None:
    life = [PAYS, tuple(3 * effect for effect in HARMS), MIXED, SILENT]
    result, without = Judged(life, proposal("DOWNVOTE", 12, 10)), Judged(life)
    assert without.rule["status"] == "active"
    assert result.reactions == [(4, "contradicted")]
    assert result.rule["contradictions"] == without.rule["contradictions"] + 1
    assert result.rule["confidence_ppm"] < without.rule["confidence_ppm"]
    assert Judged([PAYS, PAYS, MIXED, SILENT], proposal("DOWNVOTE", 12, 10)).reactions == [(4, "staged")]


def test_a_citation_counts_once_in_repeated_proposals() -> None:
    votes = [proposal("UPVOTE", 12, 8, event_id=f"event-{i}") for i in range(3)]
    assert Judged([PAYS, PAYS, MIXED, SILENT], *votes).reactions == [(4, "reinforced"), (4, "staged"), (4, "staged")]
    later = proposal("UPVOTE", 16, 8, event_id="event-3")
    judged = Judged([PAYS, PAYS, MIXED, SILENT, SILENT], votes[0], later)
    assert judged.reactions == [(4, "reinforced"), (5, "staged")]


def test_a_proposed_rule_becomes_active_only_by_own_evidence() -> None:
    few = [(9_000, 0, 0, 0), SILENT]
    judged = Judged(few, proposal("ADD", 4, 1))
    assert judged.reactions == [(2, "staged")]
    assert judged.rule["status"] == "candidate"
    (row,) = [row for row in judged.decisions if row["cause_event"]]
    assert row["cause_ticks"] == [1]
    assert row["reason"] == f"own evidence decides; {SOURCE} proposed it: so it seems"
    nothing = Judged([SILENT, SILENT, SILENT], proposal("ADD", 4, 1, about=RALLY))
    entry = nothing.entries[RALLY.structure.key]
    assert (entry["status"], entry["own_count"], entry["confidence_ppm"]) == ("candidate", 0, 0)
    assert Judged([PAYS, SILENT], proposal("ADD", 4, 1)).rule == Judged([PAYS, SILENT]).rule


def test_a_proposed_rule_is_judged_by_existing_evidence_without_new_evidence() -> None:
    strict = POLICY.model_copy(update={"curator": POLICY.curator.model_copy(update={"cluster_min": 4})})
    few = [(9_000, 8_000, 9_000, 0), SILENT, SILENT]
    state, books = GrimoireState(), Playbooks()
    records = table(Disputed("g-0", {STORM: tuple(few)}).rows())
    cycle = cycles_of(records)

    def closed(number: int, policy: Policy, *items: Proposal) -> list[str]:
        rows = records.filter(cycle == number)
        made = curate(
            state, books, rows, np.full(rows.num_rows, number), policy=policy, policy_hash=policy.hash,
            proposals=items, cited=records,
        )  # fmt: skip
        return [row["operation"] for row in made.decisions.to_pylist() if row["structure"] == STORM.structure.key]

    assert closed(1, strict) == ["staged"]
    assert closed(2, POLICY) == [], "a rule without new evidence is not judged"
    assert closed(3, POLICY, proposal("ADD", 8, 1)) == ["staged", "created"]


def test_a_proposed_note_is_recorded_and_does_not_change_the_rule() -> None:
    result, without = Judged([PAYS, PAYS], proposal("EDIT", 4, 1)), Judged([PAYS, PAYS])
    assert result.reactions == [(2, "noted")]
    assert result.rule == without.rule
    assert [r["reason"] for r in result.decisions if r["cause_event"]] == [f"{SOURCE} notes: mind the gas"]


def test_a_proposal_about_a_missing_entry_has_no_effect() -> None:
    for operation in ("UPVOTE", "DOWNVOTE", "EDIT"):
        judged = Judged([PAYS, PAYS], proposal(operation, 4, 1, entry_id="0" * 24))
        assert judged.reactions == []
        assert judged.entries == Judged([PAYS, PAYS]).entries
        assert Judged([(9_000, 0, 0, 0), SILENT], proposal(operation, 4, 1)).reactions == [], (
            "a candidate is not voted on"
        )


def test_a_proposal_is_judged_when_the_cycle_of_the_next_tick_closes() -> None:
    for seen, cycle in ((8, 3), (9, 3), (11, 3), (12, 4)):
        assert Judged([PAYS, PAYS, SILENT, SILENT], proposal("EDIT", seen, 1)).reactions == [(cycle, "noted")]
    assert Judged([PAYS, PAYS], proposal("EDIT", 8, 1)).reactions == [], "its cycle has not closed"


def test_bands_of_proposals_equal_the_bands_of_entries() -> None:
    assert get_args(AnomalyBand) == ANOMALY_BANDS
    assert get_args(GasBand) == GAS_BANDS


def test_a_confidence_of_1_7_is_refused_by_name() -> None:
    parts = ("chain", "protocol", "pair", "tool", "action_type", "regime", "anomaly_band", "gas_band")
    add = {
        "operation": "ADD", "situation": {name: getattr(STORM.structure, name) for name in parts}, "sign": 1,
        "confidence": 1.7, "reason": "so it seems", "evidence": [1],
    }  # fmt: skip
    with pytest.raises(ValidationError, match="confidence") as refused:
        Proposals.model_validate({"operations": [add]})
    assert "less than or equal to 1" in str(refused.value)
    (kept,) = Proposals.model_validate({"operations": [add | {"confidence": 0.7}]}).recorded()
    assert (kept.confidence, kept.sign) == (0.7, 1)
