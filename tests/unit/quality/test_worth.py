"""The grader, against grimoires made by hand: perfect, inverted, empty, full of junk, and faded."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.grimoire.entries import MOMENT
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.grimoire_precision import NO_COSTS, Ground, Look, TrueReadings, judge_link, look
from bardo_pipeline.quality.known_questions import questions, score_answers, words_for
from bardo_pipeline.quality.memory_targets import Discoveries, bounds, fades
from bardo_pipeline.quality.true_effects import CELLS, Judged, PlantedTruth, Yardstick, cell_name, measure, windows_met
from bardo_pipeline.runtime.memory_evaluation import discoveries_in
from tests.support.knowledge.handmade_grimoires import DAY, DIED, decisions, entry, grimoire, pattern

POLICY = Policy()
START_US = int((DIED - 10 * DAY).timestamp() * 1_000_000)
DAY_US = 86_400_000_000
PAYS, LOSES, OPEN = 4, 7, 10
"""Cells in which acting pays, acting loses, and the effect is undecided."""

GAS = PlantedTruth("gas_follows_crash", "", "crash", "gas_gwei", 3, "any", 1, span_bars=20, size=2.5, sigma=0.25)
FLIGHT = PlantedTruth(
    "flight", "", "price_move", "liquidity", 5, "any", -1, span_bars=5, size=2.0, sigma=1.0, valid_until_bar=7_200
)
DECOY = PlantedTruth("clock", "", "volume", "gas_gwei", 0, "any", 1, kind="decoy")


def yardstick(**effects: float) -> Yardstick:
    """Cells (c4=900.0) with effects of two sigmas, a tenth of which is the error, met on twenty days."""
    effect = np.full(CELLS, np.nan)
    for name, value in effects.items():
        effect[int(name[1:])] = value
    there = ~np.isnan(effect)
    number = np.where(there, 20, 0)
    sure = np.nan_to_num(np.sign(effect)).astype(np.int64)
    return Yardstick(effect, np.abs(effect) / 10, np.abs(effect) / 2, number, number, sure)


LEVELS = TrueReadings(
    np.array([START_US] * 101),
    {"gas_price": np.linspace(20_000.0, 70_000.0, 101)},
    {"slippage": (0.0, 900.0)},
    NO_COSTS,
)
"""Gas at every tick: its quartiles are 32,500 and 57,500."""


def ground(*truths: PlantedTruth, after: Yardstick | None = None) -> Ground:
    """A market in which acting pays in one cell and loses in another; it turns after five days if `after` is given."""
    before = yardstick(c4=900.0, c7=-900.0)
    turn = None if after is None else START_US + 5 * DAY_US
    return Ground(before, after or before, truths, START_US, turn, LEVELS)


def rule(cell: int, sign: int, golem: str = "g-1", **fields: Any) -> dict[str, Any]:
    regime, band, gas = cell_name(cell)
    about = pattern("uniswap_rebalance", regime=regime, anomaly_band=band, gas_band=gas)
    return entry(golem, about, sign=sign, **fields)


def link(cause: str, effect: str, lag: int, sign: int, golem: str = "g-1", **fields: Any) -> dict[str, Any]:
    about = Structure("causal", "ethereum", "uniswap_v3", "USDC/WETH", cause=cause, effect=effect, lag_ticks=lag)
    return entry(golem, about, sign=sign, text="-", **fields)


def level(mean: int, golem: str = "g-1") -> dict[str, Any]:
    about = Structure("baseline", "ethereum", "uniswap_v3", "USDC/WETH", metric="gas_price")
    return entry(golem, about, effect_mean_ppm=mean, effect_low_ppm=mean * 3 // 4, effect_high_ppm=mean * 5 // 4)


def met(*pairs: tuple[str, int], windows: int = 30) -> pa.Table:
    golems, cells = zip(*pairs, strict=True) if pairs else ((), ())
    return pa.table(
        {
            "golem_id": pa.array(golems, pa.string()),
            "cell": pa.array(cells, pa.int64()),
            "windows": pa.array([windows] * len(pairs), pa.int64()),
        }
    )


def seen(*entries: dict[str, Any], truths: tuple[PlantedTruth, ...] = (), day: int = 10) -> Look:
    everyone = met(*((g, c) for g in ("g-1", "g-2") for c in (PAYS, LOSES)))
    return look(grimoire(*entries), everyone, START_US + day * DAY_US, ground(*truths), POLICY)


@pytest.mark.row("X-5")
def test_a_perfect_grimoire_keeps_every_bound() -> None:
    both = [e for g in ("g-1", "g-2") for e in (rule(PAYS, 1, g), rule(LOSES, -1, g), level(45_000, g))]
    links = [link("crash", "gas_gwei", 5, 1, g) for g in ("g-1", "g-2")]
    page = seen(*both, *links, truths=(GAS, DECOY))
    assert (page.precision, page.recall, page.junk, page.decoy_confidence) == (1.0, 1.0, 0.0, 0.0)
    result = bounds([page], None, Discoveries(100, 0, 2, 4, 0), POLICY.worth)
    assert all(bound.kept for bound in result)
    assert {bound.name for bound in result} == {"precision", "recall", "junk", "decoys", "null market"}


@pytest.mark.row("X-5")
def test_an_inverted_grimoire_misses_the_bounds() -> None:
    page = seen(rule(PAYS, -1), rule(LOSES, 1), link("crash", "gas_gwei", 5, -1), level(1), truths=(GAS,))
    assert (page.precision, page.recall, page.junk) == (0.0, 0.0, 1.0)
    assert [b.name for b in bounds([page], None, None, POLICY.worth) if not b.kept] == ["precision", "recall", "junk"]


@pytest.mark.row("X-5")
def test_an_empty_grimoire_misses_precision_and_recall() -> None:
    page = seen(rule(PAYS, 1, status="candidate"))
    assert (page.precision, page.junk) == (None, None)
    assert page.recall == 0.0
    assert not any(b.kept for b in bounds([page], None, None, POLICY.worth) if b.name in ("precision", "recall"))


@pytest.mark.row("X-5")
def test_a_bound_without_evidence_is_not_kept() -> None:
    page = seen(*(rule(cell, sign, g) for g in ("g-1", "g-2") for cell, sign in ((PAYS, 1), (LOSES, -1))))
    kept = {bound.name: bound.kept for bound in bounds([page], [], Discoveries(0, 0, 0, 4, 0), POLICY.worth)}
    assert not kept["fading"], "no golem held an expired truth"
    assert not kept["null market"], "nothing was tested in the null market"
    assert all(kept[name] for name in ("precision", "recall", "junk", "decoys"))


@pytest.mark.row("X-5")
def test_discoveries_count_entries_ever_held_and_still_held() -> None:
    gone, kept, staged = rule(PAYS, 1), rule(PAYS, -1, "g-3"), rule(LOSES, -1, "g-2")
    rows = [
        gone | {"operation": "created", "cycle": 1, "at": DIED},
        gone | {"operation": "pruned", "status": "pruned", "cycle": 2, "at": DIED},
        kept | {"operation": "created", "cycle": 1, "at": DIED},
        staged | {"operation": "staged", "status": "candidate", "cycle": 1, "at": DIED},
        level(45_000) | {"operation": "created", "cycle": 1, "at": DIED},
    ]
    assert discoveries_in(decisions(*rows), 4) == Discoveries(tested=3, living=1, ever=2, golems=4, golems_with=1)


@pytest.mark.row("X-5")
def test_a_golem_without_entries_counts_as_having_met_a_cause() -> None:
    page = seen(link("crash", "gas_gwei", 3, 1), truths=(GAS,))
    assert [(t.met, t.held) for t in page.recalled if t.kind == "cause"] == [(2, 1)]


@pytest.mark.row("X-5")
def test_an_entry_created_after_a_truth_expired_is_wrong() -> None:
    turned = ground(FLIGHT, after=yardstick(c4=-900.0, c7=-900.0))
    turn = DIED - 5 * DAY

    def verdicts(created: datetime) -> list[str]:
        rows = rule(PAYS, 1, created_at=created), link("price_move", "liquidity", 5, -1, created_at=created)
        return look(grimoire(*rows), met(), START_US + 10 * DAY_US, turned, POLICY).verdicts["verdict"].to_pylist()

    assert verdicts(turn) == ["expired", "expired"]
    assert verdicts(turn + timedelta(minutes=1)) == ["wrong", "wrong"]


@pytest.mark.row("X-5")
def test_an_unsupported_entry_is_junk_and_lowers_precision() -> None:
    page = seen(rule(PAYS, 1), rule(OPEN, 1), rule(OPEN + 1, -1), link("volume", "volume", 1, 1))
    assert page.precision == 0.25
    assert page.junk == 0.75


@pytest.mark.row("X-5", "MEM-6")
def test_a_wider_rule_is_judged_in_each_of_its_situations() -> None:
    regime, band, _ = cell_name(PAYS)
    wide = pattern("uniswap_rebalance", regime=regime, anomaly_band=band, gas_band="not_dear")
    page = seen(entry("g-1", wide, sign=1))
    assert sorted(row["verdict"] for row in page.verdicts.to_pylist()) == ["right", "unsupported"]
    assert page.precision == 0.5
    assert page.recall == seen(rule(PAYS, 1)).recall


@pytest.mark.row("X-5")
def test_a_decoy_counts_by_its_confidence() -> None:
    page = seen(link("volume", "gas_gwei", 2, 1, confidence_ppm=900_000, anchor_at=DIED), truths=(GAS, DECOY))
    assert page.decoy_confidence == pytest.approx(0.9)
    assert "decoys" in [b.name for b in bounds([page], None, None, POLICY.worth) if not b.kept]


@pytest.mark.row("X-5")
def test_recall_counts_only_golems_that_met_a_truth_often_enough() -> None:
    held = rule(PAYS, 1)
    rare = look(grimoire(held), met(("g-1", PAYS), windows=1), START_US, ground(), POLICY)
    assert [item.met for item in rare.recalled] == [0, 0]
    assert rare.recall is None
    often = look(grimoire(held), met(("g-1", PAYS), ("g-2", PAYS)), START_US, ground(), POLICY)
    assert [(item.met, item.held) for item in often.recalled] == [(2, 1), (0, 0)]
    assert often.recall == 0.5


@pytest.mark.row("X-5")
def test_a_link_without_a_regime_matches_the_truth_of_each_regime() -> None:
    up, down = (
        PlantedTruth(f"{regime}_persists", "", "past_return", "price_return", 60, regime, 1, span_bars=60, size=2.0)
        for regime in ("trending_up", "trending_down")
    )
    page = seen(link("past_return", "price_return", 1, 1), truths=(up, down))
    assert [t.held for t in page.recalled if t.kind == "cause"] == [1, 1]
    falls = PlantedTruth(
        "falls", "", "price_return", "gas_gwei", 3, "any", -1, span_bars=20, kind="entailed", restates=GAS.name
    )
    shown = seen(link("price_return", "gas_gwei", 2, -1), truths=(GAS, falls))
    assert [t.held for t in shown.recalled if t.kind == "cause"] == [1], "the same truth in another variable"


@pytest.mark.row("X-5")
def test_a_link_is_right_by_pair_sign_and_lag_while_its_truth_is_valid() -> None:
    back = PlantedTruth(
        "back", "", "price_move", "liquidity", 5, "any", 1, span_bars=5, kind="entailed", valid_from_bar=7_200
    )
    truths = (GAS, FLIGHT, DECOY, back)

    def verdict(*rows: Any, turned: bool = False) -> int:
        return judge_link(*rows, turned=turned, old=True, truths=truths)[0]

    assert verdict("crash", "gas_gwei", 3, 1) == 0
    assert verdict("crash", "gas_gwei", 60, 1) == 1
    assert verdict("crash", "gas_gwei", 3, -1) == 1
    assert verdict("volume", "gas_gwei", 3, 1) == 4
    assert verdict("volume", "price_return", 3, 1) == 2
    assert verdict("price_move", "liquidity", 5, -1) == 0
    assert verdict("price_move", "liquidity", 5, -1, turned=True) == 3
    assert verdict("price_move", "liquidity", 5, 1) == 1, "only one sign is right"
    assert verdict("price_move", "liquidity", 5, 1, turned=True) == 0


@pytest.mark.row("X-5")
@pytest.mark.parametrize("confidence", [600_000, 1_000_000])
def test_an_expired_entry_decays_below_retrieval_by_its_half_life(confidence: int) -> None:
    turned = ground(after=yardstick(c4=-900.0, c7=-900.0))
    anchor = DIED - 5 * DAY
    held = grimoire(rule(PAYS, 1, confidence_ppm=confidence, anchor_at=anchor))
    looks = [look(held, met(), START_US + day * DAY_US, turned, POLICY) for day in (5, 6, 10)]
    assert [item.count(0) for item in looks] == [1, 0, 0]
    assert [item.count(3) for item in looks] == [0, 1, 1]
    assert looks[-1].precision is None, "an expired entry does not lower precision"
    (fade,) = fades(looks, held, turned, POLICY)
    assert fade.half_life_days == 14.0
    assert fade.left == pytest.approx(confidence / 4e6, rel=0.01)
    assert fade.kept


@pytest.mark.row("X-5")
def test_an_entry_confirmed_after_expiry_misses_the_fading_bound() -> None:
    turned = ground(after=yardstick(c4=-900.0, c7=-900.0))
    early = grimoire(rule(PAYS, 1, confidence_ppm=900_000, anchor_at=DIED - 6 * DAY))
    late = grimoire(rule(PAYS, 1, confidence_ppm=1_000_000, anchor_at=DIED + 20 * DAY))
    looks = [look(g, met(), START_US + d * DAY_US, turned, POLICY) for g, d in ((early, 5), (late, 30))]
    (fade,) = fades(looks, late, turned, POLICY)
    assert fade.left > POLICY.worth.retrieval_confidence
    assert not fade.kept
    assert [b.kept for b in bounds(looks, [fade], None, POLICY.worth) if b.name == "fading"] == [False]


@pytest.mark.row("X-5")
def test_the_yardstick_counts_a_window_once_and_needs_days() -> None:
    minute, size = 60_000_000, 40
    day = np.arange(size) % 8
    storm = Judged(
        market=np.zeros(size, np.int64), golem=np.arange(size), at_us=day * DAY_US + np.arange(size) % 5 * minute,
        regime=np.zeros(size, np.int64), score=np.full(size, 0.95), gas_ratio=np.ones(size),
        effect_ppm=np.where(day == 7, 8_000, -1_000 + day),
    )  # fmt: skip
    yard = measure(storm, POLICY.curator, POLICY.worth)
    cell = int(np.flatnonzero(yard.windows)[0])
    assert cell_name(cell) == ("trending_up", "broken", "normal")
    assert (yard.windows[cell], yard.days[cell], yard.sure[cell]) == (8, 8, 0)
    without = Judged.together([Judged(**{n: v[day < 7] for n, v in vars(storm).items()})])
    assert measure(without, POLICY.curator, POLICY.worth).sure[cell] == -1
    short = Judged(**{n: v[day < 3] for n, v in vars(storm).items()})
    assert measure(short, POLICY.curator, POLICY.worth).sure[cell] == 0
    assert not measure(Judged(**{n: v[:0] for n, v in vars(storm).items()}), POLICY.curator, POLICY.worth).sure.any()


def test_windows_are_counted_up_to_the_moment() -> None:
    at = [DIED + timedelta(minutes=m) for m in (0, 1, 31, 61)]
    rows = pa.table(
        {
            "golem_id": ["g-1"] * 4, "regime": ["volatile"] * 4, "anomaly_band": ["broken"] * 4,
            "gas_band": ["normal"] * 4, "at": pa.array(at, MOMENT),
        }
    )  # fmt: skip
    upto = int((DIED + timedelta(minutes=40)).timestamp() * 1e6)
    assert windows_met(rows, upto, POLICY.worth)["windows"].to_pylist() == [2]


@pytest.mark.row("X-5")
def test_questions_about_right_entries_use_other_words() -> None:
    known = grimoire(rule(PAYS, 1), rule(LOSES, 1), level(45_000), link("crash", "gas_gwei", 3, 1))
    evaluation = look(known, met(), START_US, ground(GAS), POLICY)
    put = questions(known, evaluation.verdicts)
    right = {row["entry_id"]: row for row in known.to_pylist() if row["sign"] != 1 or row["source"] != "pattern"}
    assert len(put) == 3
    assert set(right) <= {q.entry_id for q in put}
    assert all(q.words not in known["text"].to_pylist() for q in put)
    assert words_for(link("crash", "gas_gwei", 3, 1)) == "After the price has crashed, what happens to the gas price?"
    result = score_answers([1, 2, None, 9], 5)
    assert (result.hit_rate, result.reciprocal_rank) == (0.5, 0.375)
    assert score_answers([], 5).hit_rate is None


@pytest.mark.row("X-5")
@pytest.mark.parametrize(
    ("stated", "is_right"),
    [
        ((32_500, 45_000, 57_500), True), ((20_000, 45_000, 48_000), True), ((20_000, 30_000, 40_000), False),
        ((32_500, 32_500, 32_500), False), ((45_000, 52_000, 57_500), True), ((0, 45_000, 900_000), False),
        ((46_000, 52_000, 57_500), False),
    ],
)  # fmt: skip
def test_a_level_is_right_if_its_quartiles_overlap_the_true_ones_by_half(
    stated: tuple[int, int, int], is_right: bool
) -> None:
    assert LEVELS.is_right("g-1", "gas_price", START_US, stated) == is_right


@pytest.mark.row("X-5")
def test_a_level_of_costs_is_graded_against_the_costs_of_its_golem() -> None:
    costs = pa.table(
        {"golem_id": ["g-1"] * 5 + ["g-2"], "metric": ["slippage"] * 6, "at_us": [1, 2, 3, 4, 9, 1],
         "value": [100, 200, 300, 400, 9_000, 800]}
    )  # fmt: skip
    levels = TrueReadings(LEVELS.at_us, LEVELS.market, LEVELS.usual, costs)
    assert levels.quartiles("g-1", "slippage", 4) == (175.0, 325.0)
    assert levels.is_right("g-1", "slippage", 4, (175, 250, 325))
    assert not levels.is_right("g-2", "slippage", 4, (175, 250, 325))
    assert not levels.is_right("g-3", "slippage", 4, (175, 250, 325)), "a golem without costs knows no cost"
    assert LEVELS.is_right("g-3", "slippage", 4, (175, 250, 325)), "no records at all: the usual range decides"
