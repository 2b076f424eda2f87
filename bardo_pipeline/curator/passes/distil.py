"""Distil, consolidate and phage: turn evidence into insights and baselines, and vote on the active ones. Pure.

Distil: a pattern with enough witnesses whose interval excludes zero becomes a rule (ADD). From then on each cycle's own
evidence votes on it: the same direction is an upvote, the opposite a downvote, so that a rule that stops holding loses
confidence. The stated effect follows all evidence so far; a change of its size band is an EDIT.

Phage: every hundred ticks, a golem's weakest entries with evidence in the closing cycle are tested against all of its
own evidence, and downvoted if it says the opposite. This removes inherited knowledge that does not hold for the golem.

Consolidate: a baseline states the median, the quartiles and the 10th and 90th percentile of all its readings. A cycle
votes for a baseline if its own median lies between the percentiles stated so far, widened by `level_tolerance`, else
against it. Mean and spread would follow the tail: volume and gas are heavy-tailed. Its evidence is the number of market
days, because consecutive ticks are correlated.
Source: TOOLS (ExpeL operations), MEM (Baseline: from at least 3 episodes, confidence 0.7, reinforced and not
duplicated), canon ("phage pass"), canon 6, 16, 17, MEM-6; docs/adr/0074.
"""

from __future__ import annotations

import numpy as np

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.curator.passes.weigh import own_effect
from bardo_pipeline.curator.state import grimoire_state as grimoire
from bardo_pipeline.curator.state.decision_log import CONTRADICTED, CREATED, EDITED, REINFORCED, STAGED, CycleBatch
from bardo_pipeline.curator.state.grimoire_state import GrimoireState, is_quarantined, size_bands
from bardo_pipeline.curator.state.level_readings import medians
from bardo_pipeline.grimoire.confidence import CLASS_FACT, PPM, ppm
from bardo_pipeline.mortality.random_streams import rank_within
from bardo_pipeline.policy import Policy


def distil(state: GrimoireState, wave: CycleBatch, policy: Policy) -> None:
    """Create, vote on and restate the patterns that got evidence in this wave."""
    chosen = np.flatnonzero((state["decay_class"][wave.rows] != CLASS_FACT) & ~is_quarantined(state, wave.rows))
    rows, causes = wave.rows[chosen], wave.causes[chosen]
    mean, low, high, sign = own_effect(state, rows, policy)
    sure = sign != 0
    active, claim = state["status"][rows] == grimoire.ACTIVE, state["sign"][rows]
    direction = cycle_direction(wave, chosen, policy)
    agrees, opposes = (active & (direction != 0) & (direction == side * claim) for side in (1, -1))
    created = ~active & sure & (state["status"][rows] != grimoire.FOLDED)
    at = wave.closing(state, rows)
    before = np.where(active, state.confidence_at(rows, at, policy.decay), 0)

    restated = created | (active & sure & (sign == claim))
    edited = active & restated & (size_bands(state["effect_mean_ppm"][rows]) != size_bands(mean))
    for name, values in (("effect_mean_ppm", mean), ("effect_low_ppm", low), ("effect_high_ppm", high)):
        state[name][rows[restated]] = values[restated]
    state["evidence_count"][rows[restated]] = state["own_count"][rows[restated]]
    create(state, rows[created], sign[created], wave, confidence=ppm(policy.curator.confidence_insight))
    vote_both_ways(state, rows, before, at, agrees, opposes, policy)
    wave.doubted = rows[opposes]

    staged = ~(created | agrees | opposes | edited)
    for operation, noted in (
        (STAGED, staged), (CREATED, created), (REINFORCED, agrees), (CONTRADICTED, opposes), (EDITED, edited),
    ):  # fmt: skip
        wave.note(state, operation, rows[noted], before[noted], causes[noted])


def cycle_direction(wave: CycleBatch, chosen: Int64Array, policy: Policy) -> Int64Array:
    """Return the sign of each chosen row's effect in this cycle, 0 if its mean is below `effect_min_ppm`."""
    large = np.abs(wave.total[chosen]) >= policy.curator.effect_min_ppm * wave.count[chosen]
    return np.where(large, np.sign(wave.total[chosen]), 0)


def create(state: GrimoireState, rows: Int64Array, sign: Int64Array, wave: CycleBatch, *, confidence: int) -> None:
    """Turn candidates or removed entries into active insights of the golem's own. confidence: ppm."""
    place = wave.place(state, rows)
    at = wave.at_us[place]
    for name, value in (
        ("status", grimoire.ACTIVE),
        ("kind", grimoire.INSIGHT),
        ("sign", sign),
        ("confidence_ppm", confidence),
        ("confidence_origin_ppm", confidence),
        ("origin", state["golem"][rows]),
        ("created_cycle", wave.cycle[place]),
        ("anchor_us", at),
        ("created_us", at),
        ("validated_us", at),
    ):
        state[name][rows] = value
    for name in ("validations", "contradictions", "generation", "provenance", "is_anti_knowledge", "is_bloodstain"):
        state[name][rows] = 0


def vote(state: GrimoireState, rows: Int64Array, confidence: Int64Array, at: Int64Array, counter: str) -> None:
    """Set the confidence (ppm, clipped to [0, 1e6]) as of `at` and count the vote in the column `counter`."""
    state["confidence_ppm"][rows] = np.clip(confidence, 0, PPM)
    state["anchor_us"][rows] = at
    state[counter][rows] += 1
    if counter == "validations":
        state["validated_us"][rows] = at


def vote_both_ways(
    state: GrimoireState,
    rows: Int64Array,
    before: Int64Array,
    at: Int64Array,
    agrees: BoolArray,
    opposes: BoolArray,
    policy: Policy,
) -> None:
    """Upvote and downvote the marked rows, starting from their confidence before the vote in ppm."""
    up, down = ppm(policy.curator.upvote), ppm(policy.curator.downvote)
    vote(state, rows[agrees], before[agrees] + up, at[agrees], "validations")
    vote(state, rows[opposes], before[opposes] - down, at[opposes], "contradictions")


def phage(state: GrimoireState, wave: CycleBatch, policy: Policy) -> None:
    """Downvote the refuted ones among the `phage_count` weakest entries of each golem, every `phage_cycles` cycles."""
    tested_golems = wave.golem[wave.cycle % policy.curator.phage_cycles == 0]
    if not len(tested_golems):
        return
    tested = np.zeros(len(state.golems), bool)
    tested[tested_golems] = True
    refuted = _refuted(state, wave.rows[wave.count > 0], policy)
    if not tested[state["golem"][refuted]].any():
        return
    rows = wave.living(state)
    rows = rows[tested[state["golem"][rows]] & (state["decay_class"][rows] != CLASS_FACT) & (state["sign"][rows] != 0)]
    now = state.confidence_at(rows, wave.closing(state, rows), policy.decay)
    order = np.lexsort((state.structures.stable()[state["structure"][rows]], now, state["golem"][rows]))
    rows, now = rows[order], now[order]
    downvoted = (rank_within(state["golem"][rows]) < policy.curator.phage_count) & np.isin(rows, refuted)
    rows, now = rows[downvoted], now[downvoted]
    at = np.searchsorted(wave.rows, rows)
    vote(state, rows, now - ppm(policy.curator.downvote), wave.closing(state, rows), "contradictions")
    wave.note(state, CONTRADICTED, rows, now, wave.causes[at])


def _refuted(state: GrimoireState, rows: Int64Array, policy: Policy) -> Int64Array:
    """Return the active rules among these rows whose whole own evidence points the other way."""
    rows = rows[(state["status"][rows] == grimoire.ACTIVE) & (state["decay_class"][rows] != CLASS_FACT)]
    count, total = state["own_count"][rows], state["own_sum"][rows]
    opposite = (np.sign(total) == -state["sign"][rows]) & (total != 0)
    total_min = policy.curator.effect_min_ppm * count
    return np.asarray(rows[opposite & (count >= policy.curator.cluster_min) & (np.abs(total) >= total_min)])


def consolidate(state: GrimoireState, wave: CycleBatch, policy: Policy) -> None:
    """Create baselines that have enough evidence and vote on the active ones."""
    levels = np.flatnonzero(state.structures.is_level()[state["structure"][wave.rows]])
    levels = levels[wave.causes[levels, 1] > wave.causes[levels, 0]]
    if not len(levels):
        return
    rows, causes = wave.rows[levels], wave.causes[levels]
    count, count_min = causes[:, 1] - causes[:, 0], policy.curator.baseline_min
    active = state["status"][rows] == grimoire.ACTIVE
    created = ~active & (state["own_sumsq"][rows] >= count_min)
    voted = active & (count >= count_min)
    at = wave.closing(state, rows)
    before = np.where(active, state.confidence_at(rows, at, policy.decay), 0)
    usual = _is_usual(state, rows, medians(wave.reading, causes), policy)
    agrees, opposes = voted & usual, voted & ~usual

    stated = created | active
    _restate_level(state, rows[stated], wave.slots[stated])
    no_signs = np.zeros(int(created.sum()), np.int64)
    create(state, rows[created], no_signs, wave, confidence=ppm(policy.curator.confidence_fact))
    vote_both_ways(state, rows, before, at, agrees, opposes, policy)
    for operation, chosen in (
        (STAGED, ~(created | voted)), (CREATED, created), (REINFORCED, agrees), (CONTRADICTED, opposes),
    ):  # fmt: skip
        wave.note(state, operation, rows[chosen], before[chosen], causes[chosen])


def _is_usual(state: GrimoireState, rows: Int64Array, median: Int64Array, policy: Policy) -> BoolArray:
    """Return whether each median lies between the percentiles that its baseline states, widened by the tolerance.

    A baseline from a library, or from a bundle of an earlier version, states its quartiles alone until it is restated.
    """
    tolerance, is_whole = policy.curator.level_tolerance, state["level_p90"][rows] > 0
    low = np.where(is_whole, state["level_p10"][rows], state["effect_low_ppm"][rows])
    high = np.where(is_whole, state["level_p90"][rows], state["effect_high_ppm"][rows])
    return np.asarray((median * tolerance >= low) & (median <= high * tolerance))


_STATED = ("level_p10", "effect_low_ppm", "effect_mean_ppm", "effect_high_ppm", "level_p90")
"""Columns of the quantiles that a baseline states, as QUANTILES_PERCENT."""


def _restate_level(state: GrimoireState, rows: Int64Array, slots: Int64Array) -> None:
    """Set the quantiles of all own readings, and the number of market days as evidence."""
    if not len(rows):
        return
    quantiles = state.readings.quantiles(slots)
    for name, values in zip(_STATED, quantiles.T, strict=True):
        state[name][rows] = values
    state["evidence_count"][rows] = state["own_count"][rows]
