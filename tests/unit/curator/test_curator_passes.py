"""Decisions of each curator pass, on streams of a few records."""

from collections import Counter
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from pydantic import ValidationError

from bardo_pipeline.curator.curate import PASSES
from bardo_pipeline.curator.passes.weigh import interval
from bardo_pipeline.curator.state.decision_log import DECISION_SCHEMA
from bardo_pipeline.curator.state.grimoire_state import GrimoireState, from_table
from bardo_pipeline.derivation.incremental.record_queries import cycle_of
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.entries import CATEGORIES, DOMAINS, ENTRY_KINDS, ENTRY_SCHEMA, PROVENANCES
from bardo_pipeline.policy import CuratorPolicy, Policy
from tests.support.example_count import times
from tests.support.knowledge.curated_lives import BAD, GOOD, INSTANT, POLICY, SILENCE, STRONG, WORSE, CuratedLife, lived
from tests.support.knowledge.handmade_grimoires import entry, grimoire
from tests.support.records.handmade_records import (
    FOG,
    LULL,
    RALLY,
    SITUATIONS,
    SPAN,
    START,
    STORIES,
    STORM,
    Chapter,
    Life,
    Situation,
    judged,
    lives,
    record,
    stream,
    table,
)

WEEK = timedelta(days=7)
examples = settings(max_examples=times(20), deadline=None, derandomize=True)


@pytest.mark.row("MEM-6")
def test_the_passes_run_in_the_documented_order() -> None:
    names = [step.__name__ for step in PASSES]
    assert names == [
        "apply_overrides", "carry_up_evidence", "weigh", "consolidate", "stage_additions", "distil",
        "vote_on_quarantined", "apply_proposed_votes", "promote", "bind_fragments", "phage", "learn_causal_links",
        "prune", "apply_retractions", "compress", "quarantine_received",
    ]  # fmt: skip


@pytest.mark.row("MEM-6")
def test_a_cycle_has_50_ticks_and_the_phage_runs_every_100_ticks() -> None:
    rules = POLICY.curator
    assert (rules.cycle_ticks, rules.cycle_ticks * rules.phage_cycles) == (50, 100)
    assert cycle_of([1, 49, 50, 51, 100, 101], rules.cycle_ticks).tolist() == [1, 1, 1, 2, 2, 3]


# confidence of an insight


@pytest.mark.row("MEM-5", "MEM-6")
def test_an_insight_starts_at_60_percent_and_each_upvote_adds_10_percent() -> None:
    life = lived((STORM, [GOOD] * 6))
    steps = [600_000, 700_000, 800_000, 900_000, 1_000_000, 1_000_000]
    assert [c for _, o, c in life.decided(STORM) if o != "promoted"] == steps
    assert [o for _, o, _ in life.decided(STORM) if o != "promoted"] == ["created"] + ["reinforced"] * 5


@pytest.mark.row("MEM-5", "MEM-6")
def test_each_downvote_subtracts_15_percent_down_to_zero() -> None:
    policy = POLICY.model_copy(update={"curator": POLICY.curator.model_copy(update={"prune_confidence": 0.0})})
    life = lived((STORM, [GOOD, *[WORSE] * 8]), policy=policy)
    falls = [c for _, o, c in life.decided(STORM) if o == "contradicted"]
    assert falls[:5] == [450_000, 300_000, 150_000, 0, 0]
    assert falls[-1] == 0
    assert life.entry(STORM)["contradictions"] == len(falls)


@pytest.mark.row("MEM-5")
def test_a_vote_is_added_to_the_decayed_confidence() -> None:
    life = lived((STORM, [GOOD, SILENCE, SILENCE, GOOD]), every=timedelta(days=1))
    last = life.of(STORM)[-1]
    assert last["operation"] == "reinforced"
    assert last["confidence_before_ppm"] == pytest.approx(600_000 * 2 ** (-12 / 14), abs=1)
    assert last["confidence_ppm"] == last["confidence_before_ppm"] + 100_000
    assert last["anchor_at"] == last["validated_at"] == last["at"]


@pytest.mark.row("MEM-5")
def test_a_downvote_moves_the_anchor_and_does_not_validate() -> None:
    life = lived((STORM, [GOOD, WORSE]), every=timedelta(hours=1))
    created, against = life.of(STORM)[0], life.of(STORM)[-1]
    assert against["operation"] == "contradicted"
    assert against["anchor_at"] == against["at"] > created["at"]
    assert against["validated_at"] == created["at"]


@pytest.mark.row("MEM-5")
def test_a_cycle_without_evidence_writes_no_decision() -> None:
    life = lived((STORM, [GOOD, *[SILENCE] * 6]), every=timedelta(hours=6))
    assert [row["cycle"] for row in life.decisions if row["source"] == "pattern"] == [1]
    assert life.made.cycles.num_rows == 7


# new entries


def test_a_cluster_needs_three_decisions_and_an_interval_that_excludes_zero() -> None:
    for chapter in (Chapter(2, 9_000), Chapter(14, 30), Chapter(3, 300)):
        life = lived((STORM, [chapter]))
        assert [o for _, o, _ in life.decided(STORM)] == ["staged"]
        assert life.entry(STORM)["status"] == "candidate"
    assert lived((STORM, [Chapter(3, 1_500)])).entry(STORM)["status"] == "active"


def test_a_candidate_becomes_an_entry_with_evidence_of_several_cycles() -> None:
    life = lived((STORM, [Chapter(1, 1_500)] * 3))
    assert [o for _, o, _ in life.decided(STORM)] == ["staged", "staged", "created"]
    assert life.entry(STORM)["evidence_count"] == 3
    assert life.of(STORM)[-1]["reason"].startswith("evidence is decisive; n=3; interval ")


def test_opposite_evidence_contradicts_a_rule_and_another_regime_has_its_own() -> None:
    other = STORM._replace(regime="range_bound")
    life = lived((STORM, [SILENCE, GOOD, WORSE]), (other, [SILENCE, SILENCE, WORSE]))
    assert [o for _, o, _ in life.decided(STORM)] == ["created", "contradicted"]
    assert [o for _, o, _ in life.decided(other)] == ["created"]
    assert (life.entry(STORM)["sign"], life.entry(other)["sign"]) == (1, -1)


@pytest.mark.parametrize("part", ["regime", "score", "gas"])
def test_situations_that_differ_in_any_part_have_separate_entries(part: str) -> None:
    other = STORM._replace(**{part: getattr(LULL if part != "score" else RALLY, part)})
    life = lived((STORM, [GOOD]), (other, [GOOD]))
    assert {life.entry(STORM)["entry_id"]} != {life.entry(other)["entry_id"]}


# promotion


@pytest.mark.row("MEM-6")
def test_a_paying_insight_becomes_a_heuristic_and_a_harmful_insight_a_warning() -> None:
    life = lived((STORM, [GOOD, STRONG]), (FOG, [Chapter(14, -450)] * 3), (LULL, [BAD, WORSE]))
    by_key = {s: (life.entry(s)["kind"], life.entry(s)["is_anti_knowledge"]) for s in (STORM, FOG, LULL)}
    assert by_key == {STORM: ("heuristic", False), FOG: ("warning", False), LULL: ("warning", True)}
    assert life.entry(LULL)["effect_high_ppm"] <= -200 < life.entry(FOG)["effect_high_ppm"]


def test_an_unconfirmed_or_decayed_insight_is_not_promoted() -> None:
    assert lived((STORM, [STRONG])).entry(STORM)["kind"] == "insight"
    late = lived((STORM, [GOOD, SILENCE, SILENCE, GOOD]), every=timedelta(days=1))
    assert (late.entry(STORM)["validations"], late.entry(STORM)["kind"]) == (1, "insight")


# the phage

AGAINST = Chapter(4, -1_500)
"""Evidence that contradicts a strong rule without reversing it."""


@pytest.mark.row("MEM-6")
@pytest.mark.parametrize(("before", "operations"), [(1, ["contradicted"] * 2), (2, ["contradicted"])])
def test_the_phage_tests_a_rule_every_second_cycle_with_all_of_its_evidence(before: int, operations: list[str]) -> None:
    life = lived((STORM, [*[SILENCE] * (before - 1), GOOD, WORSE]))
    last = [row for row in life.of(STORM) if row["cycle"] == before + 1]
    assert [row["operation"] for row in last] == operations
    for row in last:
        assert row["confidence_ppm"] == row["confidence_before_ppm"] - 150_000
        assert row["cause_ticks"] == list(range(SPAN * before - 2, SPAN * before + SPAN + 1))


@pytest.mark.row("MEM-6")
@pytest.mark.parametrize(("witnesses", "operations"), [(2, ["contradicted"]), (3, ["contradicted"] * 2)])
def test_the_phage_needs_three_witnesses_against_an_inherited_rule(witnesses: int, operations: list[str]) -> None:
    came = {"provenance": "death_testament", "generation": 1, "anchor_at": START, "validated_at": START}
    knows = from_table(grimoire(entry("g-1", STORM.structure, **came)))
    life = lived((STORM, [SILENCE, Chapter(witnesses, -1_500)]), state=knows)
    assert [row["operation"] for row in life.of(STORM)] == operations, (
        "the vote of the cycle and, with enough witnesses, of the phage"
    )


@pytest.mark.row("MEM-6")
def test_the_phage_does_not_falsify_a_rule_that_all_evidence_supports() -> None:
    life = lived((STORM, [STRONG, STRONG, STRONG, AGAINST]))
    last = [row["operation"] for row in life.of(STORM) if row["cycle"] == 4]
    assert last == ["contradicted"], "the vote of the cycle only"


@pytest.mark.row("MEM-6")
def test_the_phage_tests_only_the_weakest_rules_and_no_facts() -> None:
    regimes = [STORM._replace(regime=regime) for regime in REGIMES]
    surest = LULL
    plots = [(when, [SILENCE, SILENCE, GOOD, WORSE]) for when in regimes]
    life = lived(*plots, (surest, [GOOD, GOOD, GOOD, WORSE]), episodes=SPAN)
    lost = Counter(row["structure"] for row in life.decisions if row["operation"] == "contradicted")
    assert lost == {surest.structure.key: 1} | {when.structure.key: 2 for when in regimes}
    assert len(regimes) == POLICY.curator.phage_count


def test_the_phage_selects_among_equal_rules_independently_of_other_golems() -> None:
    equal = [STORM._replace(regime=regime, gas=gas) for regime in REGIMES for gas in (0.5, 1.0)]
    plots = dict.fromkeys(equal, (SILENCE, SILENCE, GOOD, WORSE))
    life = Life("g-1", plots, (0,), INSTANT, 4 * SPAN)
    other = Life("g-0", {when: plots[when] for when in equal[6:]}, (0,), INSTANT, 4 * SPAN)
    alone = [r for r in CuratedLife(stream([life])).decisions if r["operation"] == "contradicted"]
    state = GrimoireState()
    CuratedLife(stream([other]), state=state)
    beside = [r for r in CuratedLife(stream([life]), state=state).decisions if r["operation"] == "contradicted"]
    assert len(alone) == len(equal) + POLICY.curator.phage_count
    assert beside == alone


def test_weak_or_missing_evidence_does_not_falsify_a_rule() -> None:
    faint = lived((STORM, [GOOD, SILENCE, SILENCE, Chapter(4, -20)]))
    silent = lived((STORM, [STRONG, STRONG, STRONG, SILENCE]))
    for result in (faint, silent):
        assert "contradicted" not in [o for _, o, _ in result.decided(STORM)]
    turned = lived((STORM, [SILENCE, SILENCE, GOOD, Chapter(4, -1_175)]))
    mean = turned.entry(STORM)["own_sum"] / turned.entry(STORM)["own_count"]
    assert -POLICY.curator.effect_min_ppm < mean < 0, "the mean is negative but below the minimum effect"
    assert [o for c, o, _ in turned.decided(STORM) if c == 4] == ["contradicted"], "the vote of the cycle only"


# pruning


@pytest.mark.row("MEM-5", "MEM-6")
def test_a_decayed_entry_is_pruned_and_can_be_relearned() -> None:
    life = lived((FOG, [GOOD, *[SILENCE] * 5, GOOD]), every=WEEK / SPAN)
    assert [(c, o) for c, o, _ in life.decided(FOG)] == [(1, "created"), (4, "pruned"), (7, "created")]
    pruned, again = life.of(FOG)[1:]
    assert pruned["confidence_before_ppm"] == 600_000 / 2**3
    assert pruned["own_count"] == pruned["pleasure_sum_milli"] == 0
    assert again["evidence_count"] == GOOD.count
    assert again["confidence_ppm"] == 600_000


@pytest.mark.row("MEM-5")
def test_an_entry_with_a_floor_is_not_pruned_by_decay_below_the_limit() -> None:
    policy = POLICY.model_copy(update={"curator": POLICY.curator.model_copy(update={"prune_confidence": 0.4})})
    life = lived((STORM, [BAD, WORSE, WORSE, *[SILENCE] * 40]), every=timedelta(hours=12), policy=policy)
    entry = life.entry(STORM)
    assert entry["is_anti_knowledge"]
    assert entry["status"] == "active"
    assert "pruned" not in [o for _, o, _ in life.decided(STORM)]


@pytest.mark.row("MEM-5")
def test_falsified_anti_knowledge_is_pruned_and_its_opposite_can_be_learned() -> None:
    life = lived((STORM, [BAD, WORSE, WORSE, *[SILENCE] * 30, STRONG, STRONG, STRONG]), every=timedelta(hours=6))
    late = [(c, o) for c, o, _ in life.decided(STORM) if c > 33]
    assert late[:4] == [(34, "contradicted"), (35, "contradicted"), (35, "demoted"), (35, "pruned")]
    assert "created" in [o for c, o in late if c > 35]
    entry = life.entry(STORM)
    assert (entry["sign"], entry["is_anti_knowledge"]) == (1, False)


@pytest.mark.row("MEM-5")
def test_anti_knowledge_decays_to_its_floor_and_only_votes_lower_it_further() -> None:
    life = lived((STORM, [BAD, WORSE, WORSE, *[SILENCE] * 30, STRONG]), every=timedelta(hours=6))
    entry = life.entry(STORM)
    assert entry["is_anti_knowledge"]
    assert entry["fades_at"] is None
    last = life.of(STORM)[-1]
    assert (last["operation"], last["cycle"]) == ("contradicted", 34)
    votes = (last["confidence_before_ppm"], last["confidence_ppm"])
    assert votes == (300_000, 150_000), "a floor binds decay, not votes"
    assert "pruned" not in [o for _, o, _ in life.decided(STORM)], "an entry at its floor is not pruned"


# reports


@pytest.mark.row("MEM-6")
@examples
@given(lives())
def test_a_cycle_report_counts_pruned_promoted_and_proposed_entries(lives: tuple[Life, ...]) -> None:
    life = CuratedLife(stream(lives))
    counted: dict[tuple[str, int], Counter[str]] = {}
    for row in life.decisions:
        own = counted.setdefault((row["golem_id"], row["cycle"]), Counter())
        own[row["operation"]] += 1
        own["proposed"] += (row["operation"], row["kind"]) == ("promoted", "heuristic")
    for row in life.made.cycles.to_pylist():
        own = counted.get((row["golem_id"], row["cycle"]), Counter())
        assert row["entries_pruned"] == own["pruned"]
        assert row["entries_promoted"] == own["promoted"]
        assert row["heuristics_proposed"] == own["proposed"]
        span = range(SPAN * (row["cycle"] - 1) + 1, row["tick_last"] + 1)
        assert row["record_count"] == len(span)
    lengths = {item.golem_id: item.ticks for item in lives}
    assert life.made.cycles.num_rows == sum(-(-ticks // SPAN) for ticks in lengths.values())


@pytest.mark.row("MEM-6")
@examples
@given(lives())
def test_decisions_are_numbered_in_order_and_name_causes_of_their_cycle(lives: tuple[Life, ...]) -> None:
    life = CuratedLife(stream(lives))
    at: dict[tuple[str, int], int] = {}
    for row in life.decisions:
        key = (row["golem_id"], row["cycle"])
        assert row["seq"] == at.get(key, 0)
        at[key] = row["seq"] + 1
        if row["operation"] in ("staged", "created", "reinforced", "contradicted", "edited"):
            assert row["cause_ticks"] == sorted(set(row["cause_ticks"]))
            assert (max(row["cause_ticks"]) - 1) // SPAN + 1 == row["cycle"]
        else:
            assert row["cause_ticks"] == []


@pytest.mark.row("MEM-6")
def test_only_heuristics_count_as_proposed() -> None:
    life = lived((STORM, [GOOD, STRONG]), (LULL, [BAD, WORSE]), episodes=SPAN)
    counts = [(row["entries_promoted"], row["heuristics_proposed"]) for row in life.made.cycles.to_pylist()]
    assert counts == [(0, 0), (2, 1)]


# entries


@pytest.mark.row("MEM-7")
def test_there_are_five_entry_kinds_and_nineteen_categories_in_six_domains() -> None:
    assert ENTRY_KINDS == ("insight", "heuristic", "warning", "causal_link", "strategy_fragment")
    assert len(CATEGORIES) == 19
    assert set(CATEGORIES.values()) <= set(DOMAINS)
    assert len(DOMAINS) == 6


@pytest.mark.row("MEM-7")
def test_an_entry_records_its_provenance_situation_and_mood() -> None:
    wanted = {
        "provenance", "origin_golem_id", "regime", "category", "domain", "generation", "confidence_ppm",
        "confidence_origin_ppm", "pleasure_sum_milli", "arousal_sum_milli", "dominance_sum_milli", "validated_at",
    }  # fmt: skip
    assert wanted <= set(ENTRY_SCHEMA.names) <= set(DECISION_SCHEMA.names) | {"golem_id"}
    mood = {"pad": (0.5, -0.25, 0.125)}
    parts = {"resolutions": [judged(STORM, 1_500)]}
    entry = CuratedLife(table(record("g-1", tick, **mood, **parts) for tick in (1, 2, 3))).entry(STORM)
    assert (entry["pleasure_sum_milli"], entry["arousal_sum_milli"], entry["dominance_sum_milli"]) == (1500, -750, 375)
    assert (entry["provenance"], entry["origin_golem_id"], entry["generation"]) == (PROVENANCES[0], "g-1", 0)
    assert (entry["regime"], entry["category"], entry["domain"]) == ("volatile", "rebalance_timing", "dex_lp")
    assert entry["created_at"] == START + timedelta(minutes=3)


@pytest.mark.parametrize("when", SITUATIONS)
def test_the_test_situations_lie_in_their_stated_bands(when: Situation) -> None:
    entry = lived((when, [GOOD])).entry(when)
    assert entry["structure"] == when.structure.key


@pytest.mark.row("MEM-6")
def test_contrary_new_evidence_is_a_downvote_even_if_all_evidence_agrees() -> None:
    life = lived((STORM, [STRONG, STRONG, AGAINST]))
    assert life.decided(STORM)[-1][1] == "contradicted"
    assert (life.entry(STORM)["validations"], life.entry(STORM)["contradictions"]) == (1, 1)


@pytest.mark.row("MEM-4")
def test_decisions_of_one_market_window_are_one_witness() -> None:
    wide = POLICY.model_copy(update={"curator": POLICY.curator.model_copy(update={"witness_ticks": SPAN})})
    life = lived((STORM, [Chapter(14, 6_000)] * 3), policy=wide)
    assert [row["own_count"] for row in life.of(STORM)] == [1, 2, 3]
    assert [row["operation"] for row in life.of(STORM)] == ["staged", "staged", "created"]
    assert life.entry(STORM)["effect_mean_ppm"] == pytest.approx(6_000, abs=37)


@pytest.mark.row("MEM-4")
def test_windows_that_do_not_fill_a_cycle_are_refused() -> None:
    with pytest.raises(ValidationError, match="witness_ticks 30 does not divide cycle_ticks 50"):
        CuratorPolicy(witness_ticks=30)


@pytest.mark.row("MEM-4")
def test_the_interval_keeps_its_false_alarm_rate_under_repeated_looks() -> None:
    rng, lives, looks = np.random.default_rng(5), 2_000, 400
    effects = rng.normal(0.0, 2_000.0, (lives, looks))
    count = np.arange(1, looks + 1)[None, :]
    _, low, high = interval(count, effects.cumsum(axis=1), (effects**2).cumsum(axis=1), Policy())
    false_alarms = (((low > 0) | (high < 0)) & (count >= Policy().curator.cluster_min)).any(axis=1).mean()
    assert false_alarms <= Policy().curator.false_alarm
    naive = 1.96 * effects.std() / np.sqrt(count)
    mean = effects.cumsum(axis=1) / count
    assert (np.abs(mean) > naive).any(axis=1).mean() > 0.3, (
        "a fixed interval gives many false alarms under repeated looks"
    )


@pytest.mark.row("MEM-4")
def test_a_rule_is_edited_with_a_reason_when_its_evidence_changes_its_text() -> None:
    life = lived((STORM, STORIES[6]))
    last = life.of(STORM)[-1]
    assert (last["operation"], last["cycle"]) == ("edited", 3)
    assert last["confidence_ppm"] == life.of(STORM)[-2]["confidence_ppm"], "an edit is no vote"
    assert "strongly" in life.of(STORM)[-2]["text"]
    assert "clearly" in last["text"]
    assert last["reason"].startswith("evidence moved what it says; n=11; interval ")


@pytest.mark.row("MEM-4")
def test_a_vote_that_changes_the_text_of_a_rule_also_edits_it() -> None:
    life = lived((STORM, [Chapter(8, 700), Chapter(8, 700), Chapter(14, 200)]))
    created, *last = [row for row in life.of(STORM) if row["cycle"] > 1 and row["operation"] != "promoted"]
    assert [row["operation"] for row in last] == ["reinforced", "edited"]
    assert ("strongly" in created["text"], "clearly" in last[1]["text"]) == (True, True)
    assert last[1]["cause_ticks"] == last[0]["cause_ticks"] != []
    assert last[1]["confidence_ppm"] == last[0]["confidence_ppm"] == 700_000


@pytest.mark.row("MEM-4", "MEM-6")
def test_a_heuristic_below_half_confidence_is_demoted_to_an_insight() -> None:
    life = lived((STORM, [GOOD, GOOD, GOOD, WORSE, WORSE, WORSE]))
    kinds = [(row["operation"], row["kind"]) for row in life.of(STORM) if row["operation"] in ("promoted", "demoted")]
    assert kinds == [("promoted", "heuristic"), ("demoted", "insight")]
    (fall,) = [row for row in life.of(STORM) if row["operation"] == "demoted"]
    assert fall["confidence_ppm"] < 500_000
    assert fall["validations"] == 0


@pytest.mark.row("MEM-6")
def test_a_rule_receives_one_vote_a_cycle_for_any_number_of_decisions() -> None:
    life = lived((STORM, [SILENCE, GOOD, WORSE]))
    last = [row["operation"] for row in life.of(STORM) if row["cycle"] == 3]
    assert last == ["contradicted"]
