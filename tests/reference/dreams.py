"""The row-at-a-time twin of replay selection, counterfactual simulation and hypothesis staging.

It handles one cycle, one branch and one effect at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bardo_pipeline.policy import Policy
from tests.reference.market.position import amounts, fees_micros, root_of, share_in_range, slippage_ppm, worth

Row = Mapping[str, Any]
HOUR_US, DAY_US = 3_600_000_000, 86_400_000_000


def salience(arousal: float, valence: float, age: int, novelty: float) -> float:
    """KAT's weights."""
    return 0.4 * max(arousal, 0.0) + 0.3 * abs(valence) + 0.2 * math.exp(-age / 100) + 0.1 * novelty


def likeness(row: Row, other: Row, policy: Policy) -> float:
    """Return the similarity of two situations (regime, anomaly_band, gas_band); an entry without a situation is
    slightly similar to all.
    """
    rules, bands = policy.retrieval, ("calm", "stirred", "strained", "stretched", "broken")
    if None in (other["regime"], other["anomaly_band"], other["gas_band"]):
        return rules.like_baseline
    away = abs(bands.index(row["anomaly_band"]) - bands.index(other["anomaly_band"])) / 4
    same = rules.like_regime * (row["regime"] == other["regime"]) + rules.like_gas * (
        row["gas_band"] == other["gas_band"]
    )
    return same + rules.like_anomaly * (1 - away)


def eased(arousal: float) -> float:
    """Apply one REM cycle: 0.12 less, at least 0.10; lower values stay."""
    return arousal if arousal <= 0.10 else max(0.10, arousal - 0.12)


def dreams_due(
    cycles: Sequence[Row], *, last_us: int, last_cycle: int, imported: bool, policy: Policy
) -> Iterator[tuple[int, str]]:
    """Cycle and reason of each dream of one golem, cycle by cycle. cycles: cycle, at_us, idle, tags."""
    tagged = False
    for cycle in cycles:
        if cycle["cycle"] <= last_cycle:
            continue
        tagged = tagged or cycle["tags"] > 0
        if not cycle["idle"]:
            continue
        by_clock = cycle["at_us"] - last_us >= policy.dreams.every_hours * HOUR_US
        why = "schedule" if by_clock else "import" if imported else "tag" if tagged else None
        if why is not None:
            yield cycle["cycle"], why
            last_us, imported, tagged = cycle["at_us"], False, False


def decisions(rows: Sequence[Row], policy: Policy) -> Iterator[tuple[list[Row], Row]]:
    """The judged decisions of one golem (rows by tick): the ticks of each trial, and the verdict."""
    by_tick = {row["tick"]: row for row in rows}
    for row in rows:
        for verdict in row["resolutions"]:
            first = verdict["decision_tick"]
            trial = [by_tick[t] for t in range(first, row["tick"] + 1) if t in by_tick]
            if len(trial) != policy.prediction.check_ticks + 1 or len(trial) != row["tick"] - first + 1:
                continue
            moves = [a for a in trial[0]["actions"] if a["action_type"] == "rebalance"]
            done = bool(moves) and moves[0]["status"] == "executed"
            fits = done if verdict["chosen"] == "act" else not moves
            alone = len(pooled(trial[0]["observation"])) == 1
            if fits and alone and verdict["verified"] and verdict["action_type"] == "rebalance":
                yield trial, verdict


def pooled(observation: Row) -> list[Row]:
    """Return the value in the pool, without a loan."""
    return [p for p in observation["positions"] if p["protocol"] == observation["protocol"]]


def pool_tick(observation: Row) -> int:
    """The pool's tick at the recorded price."""
    return round(math.log(1e12 / observation["price"]) / math.log(1.0001))


def reach(observation: Row) -> tuple[float, float, int]:
    """Lowest and highest pool tick of a record's stretch, and the last."""
    tick = pool_tick(observation)
    low, high = (math.log(1e12 / observation[n]) / math.log(1.0001) for n in ("price_high", "price_low"))
    return min(low, tick), max(high, tick), tick


@dataclass
class Branch:
    """One simulated continuation of a decision."""

    lower: float
    upper: float
    liquidity: float
    fees: float = 0.0
    gas: float = 0.0

    def recentre(self, row: Row, half: int, slip: float | None, world: tuple[int, int], policy: Policy) -> None:
        """Move to a new range; slip None: what a simulation expects."""
        seen, (fee, native) = row["observation"], world
        tick = pool_tick(seen)
        value = worth(self.liquidity, self.lower, self.upper, tick)
        swap, lower, upper = self.swap(row, half)
        if slip is None:
            luck = (seen["price_high"] / seen["price_low"], 0.5)
            slip = slippage_ppm(swap, seen["liquidity"], tick, fee, *luck) if swap > 0 else 0
        kept = value - swap * slip / 10**6
        self.lower, self.upper, self.liquidity = lower, upper, kept / worth(1.0, lower, upper, tick)
        self.gas += round(policy.cost.rebalance_gas_units * seen["gas_gwei"] / 10**9 * native)

    def swap(self, row: Row, half: int) -> tuple[float, float, float]:
        """Return the amount that re-centring swaps, and the new bounds."""
        tick = pool_tick(row["observation"])
        lower, upper = math.floor((tick - half) / 10) * 10, math.ceil((tick + half) / 10) * 10
        value = worth(self.liquidity, self.lower, self.upper, tick)
        shares = []
        for low, high in ((self.lower, self.upper), (lower, upper)):
            first, second = amounts(1.0, low, high, tick)
            shares.append(second / 1.0001**tick / (first + second / 1.0001**tick))
        return value * abs(shares[1] - shares[0]), lower, upper

    def score(self, row: Row, policy: Policy) -> float:
        """The anomaly score at this tick."""
        ratio = row["observation"]["sigma_ratio"]
        stir = 0.0 if ratio is None else min(max(ratio - 1, 0.0), 1.0)
        middle, width = (self.lower + self.upper) / 2, (self.upper - self.lower) / 2
        away = abs(pool_tick(row["observation"]) - middle) / width
        return min(policy.anomaly.away_gain * away + policy.anomaly.stir_gain * stir, 1.0)


def follow(
    trial: Sequence[Row],
    world: tuple[int, int],
    policy: Policy,
    *,
    half: int,
    slip: float | None,
    when: str,
    edge: float,
) -> float:
    """Worth of one branch at the end of its trial, in micro-dollars."""
    held = pooled(trial[0]["observation"])[0]
    branch = Branch(held["tick_lower"], held["tick_upper"], held["liquidity"])
    waiting = True
    for k, row in enumerate(trial):
        seen = row["observation"]
        if k:
            low, high, tick = reach(seen)
            inside = share_in_range(branch.lower, branch.upper, low, high, tick)
            branch.fees += fees_micros(branch.liquidity, seen["liquidity"], seen["volume_micros"], world[0], inside)
        if not waiting or k > policy.prediction.check_ticks // 2:
            continue
        cheaper = seen["gas_gwei"] < trial[0]["observation"]["gas_gwei"] or k == policy.dreams.wait_ticks
        due = {
            "now": k == 0,
            "never": False,
            "score": k > 0 and branch.score(row, policy) >= edge,
            "gas": k > 0 and cheaper,
        }
        if due[when]:
            branch.recentre(row, half, slip if k == 0 else None, world, policy)
            waiting = False
    end = worth(branch.liquidity, branch.lower, branch.upper, pool_tick(trial[-1]["observation"]))
    return end + branch.fees - branch.gas


def imagine(
    trial: Sequence[Row], verdict: Row, world: tuple[int, int], half: int, policy: Policy
) -> dict[str, int] | None:
    """Return the gain of each change over the executed action, ppm; None if no half-width meets the verdict."""
    imagined = (imagine_with(trial, verdict, world, w, policy) for w in (half, *policy.playbook.width_ladder_ticks))
    return next((gains for gains in imagined if gains is not None), None)


def imagine_with(
    trial: Sequence[Row], verdict: Row, world: tuple[int, int], half: int, policy: Policy
) -> dict[str, int] | None:
    """Return the gain of each change with ranges of this half-width; None if the verdict is not met."""
    acted = verdict["chosen"] == "act"
    edges = [e for e in policy.curator.anomaly_edges if e <= verdict["anomaly_score"]]
    above = [e for e in policy.curator.anomaly_edges if e > verdict["anomaly_score"]]
    held, seen = pooled(trial[0]["observation"])[0], trial[0]["observation"]
    value = worth(held["liquidity"], held["tick_lower"], held["tick_upper"], pool_tick(seen))
    start = Branch(held["tick_lower"], held["tick_upper"], held["liquidity"])
    met = next((a["slippage_ppm"] or 0 for a in trial[0]["actions"] if a["action_type"] == "rebalance"), None)

    def slip(width: int) -> float | None:
        """Return the recorded slippage with the impact of another swap; None without a record."""
        swaps = [
            start.swap(trial[0], w)[0] * root_of(pool_tick(seen)) / seen["liquidity"] * 10**6 for w in (half, width)
        ]
        return None if met is None or swaps[0] == 0 else round(met - swaps[0] + swaps[1])

    def worth_of(when: str, width: int = half, edge: float = math.inf) -> float:
        return follow(trial, world, policy, half=width, slip=slip(width), when=when, edge=edge)

    act, hold = worth_of("now"), worth_of("never")
    if abs(round((act - hold) / value * 10**6) - verdict["effect_ppm"]) > policy.dreams.reproduced_ppm:
        return None
    narrow, wide = (max(int(half * scale) // 10 * 10, 10) for scale in policy.dreams.width_scales)
    collected: dict[str, float] = {}
    if acted:
        collected = {"range_narrower": worth_of("now", narrow), "range_wider": worth_of("now", wide)}
        collected["wait_for_gas"] = worth_of("gas")
        if above:
            collected["threshold_higher"] = worth_of("score", edge=above[0])
    elif edges:
        collected["threshold_lower"] = act
    return {name: round((other - (act if acted else hold)) / value * 10**6) for name, other in collected.items()}


@dataclass
class Hypothesis:
    """One hypothesis of one golem."""

    begun_us: int
    state: str = "imagined"
    imagined: list[int] = field(default_factory=list)
    lived: list[int] = field(default_factory=list)
    staged_us: int = 0
    staged_tick: int = 0
    sign: int = 0
    confidence: int = 0
    anchor_us: int = 0
    pushed: bool = False


def interval(effects: Sequence[int], policy: Policy) -> tuple[float, float]:
    """(mean, standard error) with the variance shrunk towards the prior's."""
    rules, count = policy.dreams, len(effects)
    mean = sum(effects) / count
    spread = max(sum(e * e for e in effects) - sum(effects) * mean, 0.0)
    prior = rules.variance_prior * rules.effect_sigma_prior_ppm**2
    return mean, math.sqrt((prior + spread) / (rules.variance_prior + count - 1) / count)


class Sleeper:
    """One golem's hypotheses, dream by dream. half_life_us: by key, undoubled."""

    def __init__(self, policy: Policy, half_life_us: Mapping[str, float]) -> None:
        self.policy, self.half_life_us = policy, half_life_us
        self.alive: dict[str, Hypothesis] = {}

    def dream(self, at_us: int, tick: int, lived: Sequence[Row], failed: Sequence[Row]) -> list[tuple[str, str, int]]:
        """(key, operation, confidence) of all that changes. lived, failed: key, effect, decided, judged_us."""
        judged_rows = [
            x for key in sorted(self.alive) for x in self._live_on(key, at_us, [e for e in lived if e["key"] == key])
        ]
        keys = sorted({e["key"] for e in failed})
        return judged_rows + [
            x for key in keys for x in self._stage(key, at_us, tick, [e for e in failed if e["key"] == key])
        ]

    def _live_on(self, key: str, at_us: int, lived: Sequence[Row]) -> Iterable[tuple[str, str, int]]:
        rules, curator, first = self.policy.dreams, self.policy.curator, self.alive[key]
        if first.state == "imagined":
            return
        until = first.staged_us + rules.confirm_days * DAY_US
        news = [
            e["effect"] for e in lived
            if e["decided"] > first.staged_tick and (first.state == "confirmed" or e["judged_us"] <= until)
        ]  # fmt: skip
        first.lived += news
        verdict = 0
        if len(first.lived) >= rules.witnesses_min:
            mean, error = interval(first.lived, self.policy)
            half = rules.interval_z * error
            sure = abs(round(mean)) >= rules.effect_min_ppm and (round(mean - half) > 0 or round(mean + half) < 0)
            verdict = (1 if mean > 0 else -1) * first.sign if sure else 0
        own = sum(news)
        points = own * first.sign if news and abs(own) >= rules.effect_min_ppm * len(news) else 0
        now = first.confidence
        if first.state == "confirmed":
            life = self.half_life_us[key] * self.policy.decay.dreamt_multiplier
            now = round(first.confidence * 2.0 ** (-(at_us - first.anchor_us) / life))
        operation, after = ("gathered" if news else ""), now
        if first.state == "staged":
            if verdict > 0:
                first.state, operation, after = (
                    "confirmed",
                    "confirmed",
                    max(now, round(rules.admitted_confidence * 10**6)),
                )
            elif verdict < 0:
                operation = "refuted"
            elif at_us >= first.staged_us + rules.expire_days * DAY_US:
                operation = "expired"
        elif points:
            step = curator.upvote if points > 0 else -curator.downvote
            operation, after = ("reinforced" if points > 0 else "contradicted"), now + round(step * 10**6)
            after = min(max(after, 0), 10**6)
        if operation in ("confirmed", "reinforced", "contradicted"):
            first.confidence, first.anchor_us = after, at_us
        faded = (
            first.state == "confirmed" and operation != "confirmed" and after < round(curator.prune_confidence * 10**6)
        )
        if operation:
            yield key, operation, first.confidence
        if (
            first.state == "confirmed"
            and not faded
            and after >= round(rules.clade_confidence * 10**6)
            and not first.pushed
        ):
            first.pushed = True
            yield key, "pushed", first.confidence
        if faded:
            yield key, "faded", first.confidence
        if faded or operation in ("refuted", "expired"):
            del self.alive[key]

    def _stage(self, key: str, at_us: int, tick: int, failed: Sequence[Row]) -> Iterable[tuple[str, str, int]]:
        rules, first = self.policy.dreams, self.alive.get(key)
        if first is not None and first.state != "imagined":
            return
        if first is None or at_us - first.begun_us > rules.expire_days * DAY_US:
            first = self.alive[key] = Hypothesis(at_us)
        first.imagined += [e["effect"] for e in failed]
        mean, error = interval(first.imagined, self.policy)
        size, error = abs(round(mean)), (round(mean + rules.interval_z * error) - round(mean)) / rules.interval_z
        if len(first.imagined) < rules.witnesses_min or size < rules.effect_min_ppm or size < error:
            yield key, "imagined", first.confidence
            return
        first.state, first.sign, first.staged_us, first.staged_tick, first.anchor_us = (
            "staged",
            (1 if mean > 0 else -1),
            at_us,
            tick,
            at_us,
        )
        first.confidence = min(200_000 + math.floor(100_000 * (1 - error / size)), 299_999)
        yield key, "staged", first.confidence


LEARNED = (
    "status", "confidence_ppm", "validations", "contradictions", "created_at", "validated_at", "own_count", "own_sum",
    "provenance", "anchor_at",
)  # fmt: skip


def lessons(rows: Iterable[Row]) -> dict[tuple[str, str, str], tuple[Any, ...]]:
    """Return the state by (golem, regime, change) after all results of hypotheses, in order."""
    known: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda r: (r["golem_id"], r["cycle"], r["seq"])):
        place, operation = (row["golem_id"], row["regime"], row["change"]), row["operation"]
        if operation == "confirmed":
            counts = {"validations": 0, "contradictions": 0}
            known[place] = {"of": row["hypothesis_id"], "created_at": row["at"], "validated_at": row["at"], **counts}
        if place not in known or known[place]["of"] != row["hypothesis_id"]:
            continue
        item = known[place]
        if operation == "reinforced":
            item |= {"validations": item["validations"] + 1, "validated_at": row["at"]}
        item["contradictions"] += operation == "contradicted"
        item |= {
            "status": "pruned" if operation == "faded" else "active", "confidence_ppm": row["confidence_ppm"],
            "own_count": row["live_count"], "own_sum": row["live_total"], "provenance": row["provenance"],
            "anchor_at": row["anchor_at"],
        }  # fmt: skip
    return {place: tuple(item[name] for name in LEARNED) for place, item in known.items()}
