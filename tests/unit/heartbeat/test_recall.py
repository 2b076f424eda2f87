"""Recall: the five entries that fit a situation best, skipping and dormancy, and the warning that blocks acting."""

from datetime import timedelta
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bardo_pipeline.curator.state.grimoire_state import from_table
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, GAS_BANDS
from bardo_pipeline.grimoire.entry_columns import half_life_of
from bardo_pipeline.heartbeat.entry_names import EntryNames
from bardo_pipeline.heartbeat.fleet import RECALL
from bardo_pipeline.heartbeat.recall_table import Recall, recall_of
from bardo_pipeline.heartbeat.recollection import Moment, Recollection, retrieved
from bardo_pipeline.mortality.affect import pad_congruence
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.credit_totals import CreditTotals
from bardo_pipeline.retrieval.situation import CONTRARIAN, EMPTY, ROUTINE, SURPRISED, UNCOVERED
from tests.support.example_count import times
from tests.support.knowledge.handmade_grimoires import DAY, DIED, baseline, confidence_at, entry, grimoire, pattern

POLICY = Policy()
NOW = int(DIED.timestamp() * 10**6)
ALL_CELLS = list(product(REGIMES, ANOMALY_BANDS, GAS_BANDS))
HERE = ("volatile", "strained", "normal")
BELIEVED = round(POLICY.retrieval.confidence_min * 10**6)

Row = dict[str, Any]


def about(cell: tuple[str, str, str], tool: str = "uniswap_rebalance", **parts: Any) -> Any:
    return pattern(tool, regime=cell[0], anomaly_band=cell[1], gas_band=cell[2], **parts)


def sure(when: Any, **fields: Any) -> Row:
    """Return an entry that is believed now."""
    return entry(about=when, **({"anchor_at": DIED} | fields))


def laid_out(
    *rows: Row, golems: list[str] | None = None, at_us: int = NOW, credits: CreditTotals | None = None
) -> Recall:
    return recall_of(from_table(grimoire(*rows)), golems or ["g-1"], at_us, EntryNames(), POLICY, credits)


def moment(cell: tuple[str, str, str] = HERE, **changed: Any) -> Moment:
    """Return the situation of one golem that is surprised, has known one regime, and thought a tick ago."""
    bands = (REGIMES, ANOMALY_BANDS, GAS_BANDS)
    regime, anomaly, gas = (np.array([words.index(word)]) for words, word in zip(bands, cell, strict=True))
    usual: dict[str, Any] = {
        "at_us": NOW, "regime": regime, "anomaly": anomaly, "gas": gas, "regime_before": -1, "regime_ticks": 400,
        "tick": 450, "thought_tick": 449, "mood": np.zeros((3, 1)), "surprise": 1.0, "coverage": 0.0,
    }  # fmt: skip
    return Moment(**{n: v if isinstance(v, np.ndarray) else np.array([v]) for n, v in (usual | changed).items()})


def look(recall: Recall, cell: tuple[str, str, str] = HERE, golem: int = 0, **changed: Any) -> Recollection:
    return retrieved(np.array([golem]), moment(cell, **changed), recall, POLICY)


def recalled_ids(recall: Recall, cell: tuple[str, str, str] = HERE, golem: int = 0, **changed: Any) -> list[str]:
    """Return the ids of the entries recalled in a situation, best first."""
    places = look(recall, cell, golem, **changed).recalled[:, 0]
    return [recall.names.ids[recall.code[e]] for e in places if e >= 0]


def likeness(structure: Any, cell: tuple[str, str, str]) -> float:
    """Return 0.5 for the regime, up to 0.3 for the band by its distance and 0.2 for gas; 0.3 for a baseline."""
    if structure["regime"] is None:
        return 0.3
    away = abs(ANOMALY_BANDS.index(structure["anomaly_band"]) - ANOMALY_BANDS.index(cell[1]))
    return 0.5 * (structure["regime"] == cell[0]) + 0.3 * (1 - away / 4) + 0.2 * (structure["gas_band"] == cell[2])


def worth(table: pa.Table) -> dict[str, float]:
    """Importance of each entry: confidence by how often it held, more for bloodstains."""
    out = {}
    for row, confidence in zip(table.to_pylist(), confidence_at(table, DIED), strict=True):
        votes = row["validations"] + row["contradictions"]
        stained = POLICY.retrieval.bloodstain_boost if row["is_bloodstain"] else 1.0
        out[row["entry_id"]] = confidence / 10**6 * (row["validations"] + 1) / (votes + 1) * stained
    return out


@st.composite
def knowledge(draw: st.DrawFn) -> list[Row]:
    """Entries of two golems, some of them pruned or candidates."""
    cells = draw(st.lists(st.sampled_from(ALL_CELLS), min_size=1, max_size=10, unique=True))
    rows = []
    for golem_id in ("g-1", "g-2"):
        for cell in cells[: draw(st.integers(0, 10))]:
            fields = {
                "confidence_ppm": draw(st.integers(0, 10**6)), "validations": draw(st.integers(0, 5)),
                "contradictions": draw(st.integers(0, 5)), "is_bloodstain": draw(st.booleans()),
                "kind": draw(st.sampled_from(["insight", "heuristic", "warning"])),
                "sign": draw(st.sampled_from([-1, 1])),
                "status": draw(st.sampled_from(["active", "active", "active", "candidate", "pruned"])),
            }  # fmt: skip
            rows.append(entry(golem_id, about(cell), **fields))
        rows.append(entry(golem_id, baseline("gas_price")))
    return rows


MOODS = st.sampled_from([(0.0, 0.0, 0.0), (0.5, -0.2, 0.1), (-0.4, 0.7, -0.9)])


@pytest.mark.row("MEM-9", "INH-9")
@settings(max_examples=times(30), deadline=None, derandomize=True)
@given(knowledge(), MOODS, st.sampled_from([None, *REGIMES]), st.sampled_from([0, 20, 50]), st.booleans())
def test_recall_equals_a_ranking_of_every_entry(
    rows: list[Row], mood: tuple[float, ...], before: str | None, since: int, contrarian: bool
) -> None:
    table = grimoire(*rows)
    recall, value, rules = laid_out(*rows, golems=["g-2", "g-1"]), worth(table), POLICY.retrieval
    items = list(zip(table.to_pylist(), confidence_at(table, DIED), strict=True))
    half_us = half_life_of(table, POLICY.decay) / (24 * 3600 * 10**6)
    halves = {(row["golem_id"], row["entry_id"]): h for row, h in zip(table.to_pylist(), half_us, strict=True)}
    changed = {
        "mood": np.array(mood)[:, None], "regime_ticks": since, "thought_tick": 399 if contrarian else 449,
        "regime_before": -1 if before is None else REGIMES.index(before),
    }  # fmt: skip
    felt = -np.array(mood) if contrarian else np.array(mood)

    def awake(row: Row, cell: tuple[str, str, str]) -> float:
        if row["regime"] in (None, cell[0]):
            return 1.0
        weight = rules.dormant_unclear if cell[0] == "unknown" else 0.0
        return max(weight, 1 - since / rules.dormant_transition_ticks) if row["regime"] == before else weight

    def scored(row: Row, cell: tuple[str, str, str]) -> float:
        own = np.array([row[f"{n}_sum_milli"] / max(row["own_count"], 1) for n in ("pleasure", "arousal", "dominance")])
        days, half = (DIED - row["validated_at"]) / DAY, halves[row["golem_id"], row["entry_id"]]
        factors = rules.semantic * likeness(row, cell) + rules.importance * value[row["entry_id"]]
        factors += rules.recency * 2 ** (-max(days, 0) / half)
        return (factors + rules.affect * float(pad_congruence(own[:, None], felt[:, None])[0])) * awake(row, cell)

    for place, golem_id in enumerate(["g-2", "g-1"]):
        known = [(r, c) for r, c in items if r["golem_id"] == golem_id and r["status"] == "active"]
        for cell in ALL_CELLS:
            own = [r for r, c in known if c >= BELIEVED and awake(r, cell) > 0]
            seen, got = look(recall, cell, place, **changed), recalled_ids(recall, cell, place, **changed)
            assert len(got) == len(set(got)) == min(RECALL, len(own))
            score = {r["entry_id"]: min(scored(r, cell), 1.0) for r in own}
            best = sorted(score.values(), reverse=True)[: len(got)]
            assert [score[i] for i in got] == pytest.approx(best, abs=4e-6)
            assert seen.score[: len(got), 0].tolist() == pytest.approx(best, abs=4e-6)
            dormant = sum(c >= BELIEVED for _, c in known) - len(own)
            assert (seen.awake[0], seen.asleep[0]) == (len(own), dormant)
            assert seen.contrarian[0] == (contrarian and bool(own))
            bars = [
                (r["entry_id"], c)
                for r, c in known
                if r["kind"] == "warning" and likeness(r, cell) == pytest.approx(1) and c >= 500_000
            ]
            block = recall.block[ALL_CELLS.index(cell), place]
            assert (recall.names.ids[recall.code[block]] if block >= 0 else None) == (
                max(bars, key=lambda b: b[1])[0] if bars else None
            )


@pytest.mark.row("MEM-9", "HB-28")
def test_a_contrarian_turn_prefers_the_entries_of_the_opposite_mood() -> None:
    """Six entries differ in their mood alone, so the mood decides which of them is left out."""
    glad = [sure(about(HERE, f"glad-{i}"), own_count=1, pleasure_sum_milli=900) for i in range(3)]
    sad = [sure(about(HERE, f"sad-{i}"), own_count=1, pleasure_sum_milli=-900) for i in range(3)]
    recall, mood = laid_out(*glad, *sad), np.array([[0.5], [0.1], [0.0]])
    ids = {kind: {row["entry_id"] for row in rows} for kind, rows in (("glad", glad), ("sad", sad))}
    usual = recalled_ids(recall, mood=mood, tick=450, thought_tick=449)
    assert ids["glad"] == set(usual[:3])
    for tick, thought, reversed_mood in ((500, 499, True), (502, 460, True), (502, 501, False), (502, 500, False)):
        seen = recalled_ids(recall, mood=mood, tick=tick, thought_tick=thought)
        assert set(seen[:3]) == ids["sad" if reversed_mood else "glad"], (tick, thought)
        assert len(seen) == RECALL
        assert look(recall, mood=mood, tick=tick, thought_tick=thought).contrarian[0] == reversed_mood
    assert look(recall, tick=500, thought_tick=499).rule[0] == CONTRARIAN


@pytest.mark.row("INH-9")
def test_entries_of_other_regimes_are_dormant_and_wake_with_their_regime() -> None:
    here, there = sure(about(HERE)), sure(about(("trending_up", *HERE[1:])))
    level = sure(baseline("gas_price"))
    recall = laid_out(here, there, level)

    def seen(regime: str, **changed: Any) -> set[str]:
        return set(recalled_ids(recall, (regime, *HERE[1:]), **changed))

    assert seen("volatile") == {here["entry_id"], level["entry_id"]}
    assert seen("trending_up") == {there["entry_id"], level["entry_id"]}
    assert seen("range_bound") == {level["entry_id"]}
    assert seen("unknown") == {row["entry_id"] for row in (here, there, level)}
    storm = REGIMES.index("volatile")
    for ticks, present in ((0, True), (49, True), (50, False), (80, False)):
        fresh = seen("trending_up", regime_before=storm, regime_ticks=ticks)
        assert (here["entry_id"] in fresh) is present, ticks
        weight = look(recall, ("trending_up", *HERE[1:]), regime_before=storm, regime_ticks=ticks).before_weight[0]
        assert weight == pytest.approx(max(1 - ticks / 50, 0))
    scores = [
        dict(zip(recall.code[x.recalled[:, 0]], x.score[:, 0], strict=True))[recall.names.ids.index(here["entry_id"])]
        for ticks in (0, 25)
        for x in [look(recall, ("trending_up", *HERE[1:]), regime_before=storm, regime_ticks=ticks)]
    ]
    assert scores[1] == pytest.approx(scores[0] / 2, abs=4e-6) != 0


@pytest.mark.row("MEM-9")
def test_a_calm_routine_tick_skips_retrieval_and_other_ticks_do_not() -> None:
    levels = [sure(baseline(name)) for name in ("gas_price", "pool_volume", "slippage")]
    recall = laid_out(*levels, sure(about(HERE)))
    (share,) = recall.coverage.values()
    assert share.tolist() == [0.75]
    routine: Row = {"surprise": 0.29, "coverage": 0.75}
    aroused = np.array([[0.0], [0.5], [0.0]])
    for changed, rule in (
        ({}, ROUTINE), ({"surprise": 0.3}, SURPRISED), ({"coverage": 0.74}, UNCOVERED),
        ({"thought_tick": 399}, CONTRARIAN),
    ):  # fmt: skip
        seen = look(recall, **(routine | changed))
        assert seen.rule[0] == rule
        assert (seen.recalled >= 0).any() == (rule != ROUTINE)
        assert (seen.score > 0).any() == (rule != ROUTINE)
    assert (look(recall, **routine, mood=aroused).recalled >= 0).any(), "high arousal always retrieves"
    assert look(laid_out(entry("g-9"), golems=["g-1"]), **routine).rule[0] == EMPTY
    thin = laid_out(*levels, sure(about(HERE)), at_us=NOW + 9 * 24 * 3600 * 10**6)
    assert [v.tolist() for v in thin.coverage.values()] == [[0.0]], "levels that are no longer sure are not known"


@pytest.mark.row("MEM-11")
def test_a_retrieval_that_helped_raises_an_entry_and_its_access_refreshes_it() -> None:
    rows = [sure(about(HERE, name), validated_at=DIED - 14 * DAY) for name in ("helped", "misled", "unused")]
    ids, credits = [row["entry_id"] for row in rows], CreditTotals()
    day = 24 * 3600 * 10**6
    counts = {"retrieved": [1, 1], "useful": [3, 0], "misled": [0, 3], "last_us": [NOW, NOW - 14 * day]}
    moments = pa.array(counts.pop("last_us"), pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    credits.add(pa.table({"golem_id": ["g-1"] * 2, "entry_id": ids[:2], **counts, "last_access_at": moments}))
    recall = laid_out(*rows, credits=credits)
    seen, order = look(recall), recalled_ids(recall)
    assert order == ids[:1] + ids[2:] + ids[1:2]
    importance, fresh = (dict(zip(order, v[:3, 0].tolist(), strict=True)) for v in (seen.importance, seen.recency))
    plain = dict(zip(order, look(laid_out(*rows)).importance[:3, 0].tolist(), strict=True))[ids[2]]
    assert [importance[i] for i in ids] == pytest.approx([plain, plain / 4, plain])
    assert [fresh[i] for i in ids] == pytest.approx([1.0, 0.5, 0.5])
    other = laid_out(*(row | {"golem_id": "g-2"} for row in rows), golems=["g-2"], credits=credits)
    assert set(look(other).importance[:3, 0].tolist()) == {plain}, "the credits of another golem do not count"


def test_a_golem_without_entries_recalls_nothing() -> None:
    for recall in (laid_out(golems=["g-1", "g-2"]), laid_out(entry("g-9"), golems=["g-1", "g-2"])):
        for golem in (0, 1):
            assert recalled_ids(recall, golem=golem) == []
            assert look(recall, golem=golem).rule.tolist() == [EMPTY]
        assert (recall.block == -1).all()


@pytest.mark.row("HB-28", "MEM-9")
def test_likeness_is_1_only_in_the_same_situation() -> None:
    recall, row = laid_out(entry(about=about(HERE), anchor_at=DIED)), about(HERE)._asdict()
    whole = set()
    for cell in ALL_CELLS:
        always = {"regime_before": REGIMES.index(HERE[0]), "regime_ticks": 0}
        (like,) = look(recall, cell, **always).likeness[:1, 0]
        assert like == pytest.approx(likeness(row, cell))
        whole |= {cell} if like > 1 - 1e-9 else set()
    assert whole == {HERE}


@pytest.mark.row("HB-1")
def test_a_believed_warning_blocks_only_recentring_in_its_situation() -> None:
    def blocked(**fields: Any) -> set[tuple[str, str, str]]:
        when = fields.pop("about", about(HERE))
        recall = laid_out(entry(about=when, **({"kind": "warning", "sign": -1, "confidence_ppm": 900_000} | fields)))
        return {cell for i, cell in enumerate(ALL_CELLS) if recall.block[i, 0] >= 0}

    assert blocked() == {HERE}
    assert blocked(kind="heuristic", sign=1) == set()
    assert blocked(about=about(HERE, action_type="add_liquidity")) == set()
    assert blocked(confidence_ppm=499_999, anchor_at=DIED) == set()
    assert blocked(confidence_ppm=500_000, anchor_at=DIED) == {HERE}
    assert blocked(confidence_ppm=900_000, anchor_at=DIED - 14 * DAY) == set(), "a decayed warning does not block"


@pytest.mark.row("HB-1")
@pytest.mark.parametrize("surest", ["a", "b"])
def test_the_surest_of_two_warnings_blocks(surest: str) -> None:
    warnings = [
        entry(about=about(HERE, tool), kind="warning", sign=-1, anchor_at=DIED, confidence_ppm=ppm)
        for tool, ppm in (("a", 900_000 if surest == "a" else 600_000), ("b", 900_000 if surest == "b" else 600_000))
    ]
    recall = laid_out(*warnings)
    block = recall.block[ALL_CELLS.index(HERE), 0]
    assert recall.names.ids[recall.code[block]] == warnings["ab".index(surest)]["entry_id"]


@pytest.mark.row("MEM-9")
def test_an_entry_below_the_retrieval_threshold_is_not_recalled() -> None:
    def recalled(**fields: Any) -> bool:
        return bool(recalled_ids(laid_out(entry(about=about(HERE), **({"anchor_at": DIED} | fields))), HERE))

    assert recalled(confidence_ppm=500_000)
    assert not recalled(confidence_ppm=499_999)
    assert recalled(confidence_ppm=900_000)
    assert not recalled(confidence_ppm=900_000, anchor_at=DIED - 14 * DAY)
    assert recalled(confidence_ppm=900_000, anchor_at=DIED - 14 * DAY, pinned_ppm=900_000), "its owner pinned it"
    inherited = {"confidence_ppm": 400_000, "confidence_origin_ppm": 700_000}
    assert not recalled(**inherited, provenance="death_testament", generation=1), (
        "an inherited entry counts by its present confidence"
    )
    assert recalled(**inherited, provenance="import", generation=1), (
        "an import counts by its confidence at the origin (canon 23)"
    )


@pytest.mark.row("MEM-9")
def test_recency_halves_with_the_half_life_of_the_entry_since_validation() -> None:
    rows = [
        entry(about=about(HERE), validated_at=DIED - 14 * DAY, anchor_at=DIED),
        entry(about=about(HERE, "b"), validated_at=DIED - 14 * DAY, decay_class="structural", anchor_at=DIED),
        entry(about=about(HERE, "c"), validated_at=DIED - 14 * DAY, decay_class="tactical", anchor_at=DIED),
        entry(about=about(HERE, "d"), validated_at=DIED + 1 * DAY, anchor_at=DIED),
    ]
    recall = laid_out(*rows)
    by_id = dict(zip(recalled_ids(recall), look(recall).recency[:4, 0].tolist(), strict=True))
    assert [by_id[row["entry_id"]] for row in rows] == pytest.approx([0.5, 0.5, 0.25, 1.0])


def test_the_mood_of_an_entry_is_the_mean_of_its_evidence() -> None:
    row = entry(own_count=4, pleasure_sum_milli=2_000, arousal_sum_milli=-1_000, dominance_sum_milli=0)
    assert laid_out(row).pad[:, 0].tolist() == [0.5, -0.25, 0.0]


def test_an_entry_keeps_its_code_when_more_entries_are_added() -> None:
    names = EntryNames()
    state = from_table(grimoire(entry(about=about(HERE))))
    first = recall_of(state, ["g-1"], NOW, names, POLICY)
    more = from_table(grimoire(*[entry(about=about(cell)) for cell in ALL_CELLS[:6]], entry(about=about(HERE))))
    later = recall_of(more, ["g-1"], NOW + int(timedelta(hours=1).total_seconds() * 10**6), names, POLICY)
    known = names.ids[first.code[0]]
    place = next(e for e in range(len(later.code)) if later.code[e] == first.code[0])
    assert names.ids[later.code[place]] == known
    assert len(set(names.ids)) == len(names.ids) == 7
    assert np.unique(later.code).size == 7
