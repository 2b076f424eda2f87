"""Compares golems alone, in a clade, with one liar in it, with Lethe, and with a forger on Lethe, on the same markets.

The golems of a market are born one after the other, with equal traits, budgets, lifespans and luck in each arm. Each
arm is a home with the whole pipeline: log, curation, exchange of parcels and notes through a relay, quarantine, limits.
The planted truth is a property of the market: its volatile excursions are wider than the standard range, so wide ranges
earn more. Only the evaluation knows that. Source: KAT-9, KAT-4; INH S5, S6; ADR 0117.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Float64Array, Int64Array
from bardo_pipeline.clock import micros_of, moment_at
from bardo_pipeline.curator.state.decision_log import ADMITTED, OPERATIONS, REFUSED, SPOKEN_AGAINST
from bardo_pipeline.derivation.clade.clade_exchange import Relay, exchange
from bardo_pipeline.derivation.clade.clade_notes import newest_tick_at
from bardo_pipeline.derivation.clade.lethe_exchange import Board, exchange_posts
from bardo_pipeline.derivation.configuration import record_configuration
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.received_posts import posts_received
from bardo_pipeline.events.custody.clade_secret import CladeSecret
from bardo_pipeline.grimoire.entry_columns import query_tables
from bardo_pipeline.heartbeat.fleet import Founding, born
from bardo_pipeline.market.market import Market
from bardo_pipeline.market.synthetic import synthetic_market
from bardo_pipeline.market.synthetic_spec import START, swinging_spec
from bardo_pipeline.market.tick_series import Tape, tape_of
from bardo_pipeline.policy import Policy
from bardo_pipeline.policy.toml_config import parse
from bardo_pipeline.quality.memory_targets import Bound
from bardo_pipeline.runtime.fleet_run import FleetRun
from bardo_pipeline.runtime.lying_golem import BoardForger, LyingGolem
from bardo_pipeline.runtime.run_settings import Heir, Run
from bardo_pipeline.storage.home import Home

ARMS = ("alone", "clade", "lethe", "liar", "forger")
ALONE, CLADE, LETHE, LIAR, FORGER = ARMS

TRUTH = ("choice", "range_400_over_160", 1)
"""Source, action type and sign of the rule that states the planted truth, over all regimes."""

TIME_MAX, COST_MAX = 0.5, 0.1
"""Largest time of a clade as a share of the time alone; largest cost of a liar or a forger as a share of the gain."""

EXCHANGE_CHUNKS = 2
"""Cycles between exchanges. INH S6.2 exchanges after each cycle."""

_OWNER = "owner-1"
_FOUNDING = Founding(owners=(_OWNER,), credit_share=0.05)
"""Twice the usual credits, so that few golems die of poverty before they met the truth."""

_PUBLIC = (LETHE, FORGER)


class CladeTrial(NamedTuple):
    """Settings of one market: seed, golems, length in bars, ticks between two births."""

    seed: int
    golems: int
    bars: int
    apart: int


class Exchanging(Relay, Protocol):
    """A relay with its board (`relay.relay_in_process.RelayInProcess`)."""

    @property
    def board(self) -> Board:
        """Return the public board."""

    def close(self) -> None:
        """Close its database."""


OpenRelay = Callable[[Path, str, str, Sequence[str], Callable[[], datetime]], Exchanging]
"""Opens a relay: database, topic, token, verified identities, clock."""


class Lies(NamedTuple):
    """How a clade met its liar, in ticks since the liar's first message; None: not within the market.

    contradicted: until own outcomes voted against one of its entries. refused: until they refused one. throttled: until
    an exchange throttled it. admitted, refusals: its entries that own outcomes admitted and refused, over all golems.
    """

    contradicted: int | None
    refused: int | None
    throttled: int | None
    admitted: int
    refusals: int


class ArmLife(NamedTuple):
    """Figures of one arm in one market, by golem in the order of birth.

    known_at: position on the tape at which a golem first held the truth, the tape's length if it never did. worth: at
    the end of life or of the market, as a share of the budget. The liar's own place holds -1 and NaN. false_priors:
    pairs of a golem and a prior that it retrieved and that lies alone state. alarmed: share of the ticks at which the
    probe of threats was high. forged: posts on the board, beyond the quota, and let in without a known identity.
    """

    ticks: int
    known_at: tuple[int, ...]
    deaths: int
    worth: tuple[float, ...]
    lies: Lies | None = None
    forged: dict[str, int] | None = None
    false_priors: int = 0
    alarmed: float = 0.0

    @property
    def document(self) -> dict[str, object]:
        """Return the figures as a JSON object; the worth of the liar is null."""
        worth = [None if np.isnan(share) else share for share in self.worth]
        return self._asdict() | {"worth": worth, "lies": None if self.lies is None else self.lies._asdict()}


def live_arm(trial: CladeTrial, arm: str, policy: Policy, open_relay: OpenRelay) -> ArmLife:
    """Let the golems of one market live in one arm, in a temporary home."""
    market = synthetic_market(seed=trial.seed, bars=trial.bars, start=START, spec=swinging_spec())
    with TemporaryDirectory(prefix="bardo-eval-clade-") as folder:
        return _Arm(Path(folder), trial, arm, market, policy).live(open_relay)


class _Arm:
    """One arm of one market."""

    def __init__(self, root: Path, trial: CladeTrial, arm: str, market: Market, policy: Policy) -> None:
        self._trial, self._arm, self._market, self._root = trial, arm, market, root
        self._tape, self._now = tape_of(market, policy), START
        Home.create(root / "home", policy, START)
        self._context = DerivationContext.open(root / "home", policy=policy)
        if arm != ALONE:
            stated = parse("[styx]\nclade_enabled = true\n" + "lethe_enabled = true\n" * (arm in _PUBLIC), "bardo.toml")
            record_configuration(self._context, stated, now=START, why="the arm of an evaluation", at=START)
        self._secret = CladeSecret(f"{trial.seed:032d}".encode())
        golems = [self._born(number) for number in range(trial.golems)]
        self._place = liars_place(trial) if arm == LIAR else None
        self._honest = [golem for number, golem in enumerate(golems) if number != self._place]
        self._liar_born = None if self._place is None else golems[self._place]
        self._liar = self._liar_born and LyingGolem(self._context, *self._liar_born[:2], self._secret)
        forger, unknown = (CladeSecret(f"{trial.seed:031d}{letter}".encode()) for letter in "fu")
        self._verified = [self._secret.identity_name, forger.identity_name]
        self._forger = BoardForger(forger, unknown) if arm == FORGER else None
        self._first_lie: int | None = None
        self._throttled: int | None = None

    def _born(self, number: int) -> Heir:
        founding = replace(_FOUNDING, lifespan_ticks=(2 * self._trial.bars, 4 * self._trial.bars))
        golem_id, birth = born(
            lineage_id=f"clade/{self._trial.seed}/{number}", generation=0, owner_id=_OWNER, founding=founding,
            market=self._market.name, market_hash=self._market.content_hash,
            derivation_id=self._context.derivation_id, policy=self._context.policy,
        )  # fmt: skip
        first = min(number * self._trial.apart, self._tape.ticks - 1)
        return Heir(golem_id, birth, moment_at(int(self._tape.at_us[first])))

    def live(self, open_relay: OpenRelay) -> ArmLife:
        """Run the home through the market."""
        secret = self._secret
        relay = open_relay(self._root / "relay.db", secret.topic, secret.token, self._verified, lambda: self._now)
        run = Run(
            f"clade-{self._trial.seed}", self._market, 0, 1, _FOUNDING, heirs=tuple(self._honest),
            exchange=None if self._arm == ALONE else lambda: self._exchange(relay), commit_chunks=EXCHANGE_CHUNKS,
        )  # fmt: skip
        try:
            life = FleetRun(self._context, run, lambda: self._now)
            life.live()
            return self._figures(life)
        finally:
            relay.close()
            self._context.log.close()

    def _exchange(self, relay: Exchanging) -> None:
        """Let the liar and the forger lie, then exchange."""
        self._now = newest_tick_at(self._context, _OWNER) or START
        tick = _tick_of(self._tape, self._now)
        if self._liar is not None and self._liar_born is not None and self._liar_born.at <= self._now:
            self._liar.lie(relay, self._honest[0].golem_id, self._now)
            self._first_lie = tick if self._first_lie is None else self._first_lie
        done = exchange(self._context, _OWNER, self._secret, relay, now=self._now)
        if self._throttled is None and self._liar is not None and self._liar.golem_id in done.throttled:
            self._throttled = tick
        if self._forger is not None:
            market = {name: getattr(self._market, name) for name in ("chain", "protocol", "pair")}
            self._forger.forge(relay.board, posts_received(self._context), market, self._now)
        if self._arm in _PUBLIC:
            exchange_posts(self._context, _OWNER, self._secret, relay.board, now=self._now)

    def _figures(self, life: FleetRun) -> ArmLife:
        decisions, ticks = self._context.projections.growing("curation").read(), self._tape.ticks
        source, act, sign = TRUTH
        about = decisions.filter(
            (pc.field("source") == source) & (pc.field("action_type") == act) & pc.field("regime").is_null()
            & (pc.field("sign") == sign) & (pc.field("status") == "active")
        )  # fmt: skip
        rows = about.group_by("golem_id").aggregate([("at", "min")]).to_pylist()
        first = {row["golem_id"]: _tick_of(self._tape, row["at_min"]) for row in rows}
        ends = self._worth_by_golem(life)
        known = [first.get(golem.golem_id, ticks) for golem in self._honest]
        worth = [ends[golem.golem_id] / _FOUNDING.budget_micros for golem in self._honest]
        if self._place is not None:
            known.insert(self._place, -1)
            worth.insert(self._place, float("nan"))
        forged = None if self._forger is None else dict(self._forger.posts)
        return ArmLife(ticks, tuple(known), life.deaths, tuple(worth), self._lies(decisions), forged, *self._misled())

    def _misled(self) -> tuple[int, float]:
        """Return how many false priors golems retrieved, and the share of ticks with a high threat."""
        records = self._context.log.read_cycles(["golem_id", "retrieval", "probe_results"])
        lies = pa.table({"prior_id": pa.array(sorted(self._forger.false if self._forger else ()), pa.string())})
        liar = {"scars": "-" if self._liar is None else f"scar-{self._liar.golem_id}-"}
        (row,) = query_tables(
            """
            with priors as (select golem_id, unnest(retrieval.priors).prior_id as prior_id from records)
            select (select count(distinct (golem_id, prior_id)) from priors
                    where starts_with(prior_id, $scars) or prior_id in (select prior_id from lies)), avg((list_filter(
                probe_results, lambda p: p.probe = 'pheromone_threat' and p.severity = 'high') <> [])::int) from records
            """, liar, records=records, lies=lies,
        ).to_pylist()  # fmt: skip
        return tuple(row.values())

    def _worth_by_golem(self, life: FleetRun) -> dict[str, int]:
        """Return net asset value plus credits at the end of life or of the market, in micro-dollars."""
        fleet = life.fleet
        ends = {g: int(fleet.nav[i]) + int(fleet.credits[i]) for i, g in enumerate(fleet.golem_ids)}
        for row in self._context.life("DeathDeclared").select(["golem_id", "died"]).to_pylist():
            ends[row["golem_id"]] = row["died"]["capital_micros"] + row["died"]["credits_micros"]
        return ends

    def _lies(self, decisions: pa.Table) -> Lies | None:
        if self._liar is None or self._first_lie is None:
            return None
        of_liar = decisions.filter(pc.field("origin_golem_id") == self._liar.golem_id)
        since, operation = self._first_lie, of_liar["operation"].to_pylist()
        at = [_tick_of(self._tape, moment) - since for moment in of_liar["at"].to_pylist()]

        def first(code: int) -> int | None:
            ticks = (tick for tick, word in zip(at, operation, strict=True) if word == OPERATIONS[code])
            return min(ticks, default=None)

        return Lies(
            first(SPOKEN_AGAINST), first(REFUSED), None if self._throttled is None else self._throttled - since,
            operation.count(OPERATIONS[ADMITTED]), operation.count(OPERATIONS[REFUSED]),
        )  # fmt: skip


def liars_place(trial: CladeTrial) -> int:
    """Return which golem of a market is the liar, in the order of birth; it differs between seeds."""
    return trial.seed % trial.golems


def _tick_of(tape: Tape, moment: datetime) -> int:
    """Return the position on the tape of the first tick at or after a moment."""
    return int(np.searchsorted(tape.at_us, micros_of(moment)))


Interval = tuple[float, float, float]
"""Mean, and the low and high end of its 95 % interval by a bootstrap over markets."""


@dataclass(frozen=True)
class CladeReport:
    """Comparison over markets, each figure with its interval.

    Parameters
    ----------
    arms : figures by arm: all_know (ticks from the last birth until all golems knew the truth), share_known, deaths,
        worth, false_priors, alarmed
    gains : paired differences by name, positive if the second arm is better
    time_share : time of the clade as a share of the time alone; None if golems alone need no time
    liars_cost, forgers_cost : share of the gain of time, over the golems that live in all arms; None without a gain
    liar : ticks until the liar's entries were contradicted, refused and throttled; numbers of these and forged posts
    markets : figures of each market by arm
    """

    arms: dict[str, dict[str, Interval]]
    gains: dict[str, Interval]
    time_share: Interval | None
    liars_cost: Interval | None
    forgers_cost: Interval | None
    liar: dict[str, Interval | None]
    markets: dict[str, list[ArmLife]]
    apart: int

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """The bounds that a clade has to keep."""
        share, liar, forger = (own and own[0] for own in (self.time_share, self.liars_cost, self.forgers_cost))
        return (
            Bound.of("time of the clade", share, "at most", TIME_MAX, "share of the time alone, mean"),
            Bound.of("gain of time", self.gains[_TIME.format(CLADE, ALONE)][1], "above", 0.0, "ticks; low end of 95 %"),
            Bound.of("cost of a liar", liar, "at most", COST_MAX, "share of the clade's gain of time, mean"),
            Bound.of("cost of a forger", forger, "at most", COST_MAX, "share of Lethe's gain of time, mean"),
            *(Bound.of(f"{name} with Lethe", self.gains[form.format(LETHE, CLADE)][2], "at least", 0.0, unit)
              for name, form, unit in (
                  ("worth", _WORTH, "gain over the clade in shares of the budget; high end of 95 %"),
                  ("time", _TIME, "ticks gained over the clade; high end of 95 %"),
              )),
        )  # fmt: skip

    @property
    def kept(self) -> bool:
        """Whether every bound is kept."""
        return all(bound.kept for bound in self.bounds)

    def known_by_age(self, arm: str) -> list[tuple[float, float]]:
        """Return (age in ticks, share of golems that know the truth) in ascending order of age."""
        lives = self.markets[arm]
        ages = sorted(
            at - number * self.apart
            for life in lives
            for number, at in enumerate(life.known_at)
            if 0 <= at < life.ticks
        )
        golems = sum(at >= 0 for life in lives for at in life.known_at)
        steps = {float(age): (rank + 1) / golems for rank, age in enumerate(ages)}
        return [(0.0, 0.0), *steps.items()]


_TIME, _WORTH = "{} over {}, ticks until all know", "{} over {}, worth"
_PAIRS = ((CLADE, ALONE), (LETHE, ALONE), (LETHE, CLADE), (LIAR, CLADE), (LIAR, ALONE), (FORGER, LETHE))


def grade_clades(
    trials: Sequence[CladeTrial],
    policy: Policy,
    open_relay: OpenRelay,
    on_progress: Callable[[float], None],
    *,
    workers: int | None = None,
) -> CladeReport:
    """Run all arms of all markets; the result does not depend on `workers` (None: one per processor)."""
    tasks = [(trial, arm) for trial in trials for arm in ARMS]
    count, lives = min(workers or os.cpu_count() or 1, len(tasks)), []
    with ProcessPoolExecutor(max_workers=count, mp_context=get_context("spawn")) as pool:
        given = zip(*tasks, strict=True)
        for life in pool.map(live_arm, *given, [policy] * len(tasks), [open_relay] * len(tasks)):
            lives.append(life)
            on_progress(len(lives) / len(tasks))
    by_arm = {arm: lives[number :: len(ARMS)] for number, arm in enumerate(ARMS)}
    return graded_clades(trials, by_arm, policy)


def graded_clades(trials: Sequence[CladeTrial], markets: dict[str, list[ArmLife]], policy: Policy) -> CladeReport:
    """Compare the figures of markets, paired by market."""
    draws = np.random.default_rng(0).integers(0, len(trials), (policy.worth.bootstrap_draws, len(trials)))

    def mean_of(values: Sequence[float]) -> Interval:
        return _interval(np.asarray(values, np.float64), draws)

    def ratio_of(upper: Sequence[float], lower: Sequence[float]) -> Interval | None:
        above, below = np.asarray(upper, np.float64), np.asarray(lower, np.float64)
        if below.mean() <= 0:
            return None
        shares = above[draws].mean(axis=1) / np.maximum(below[draws].mean(axis=1), 1.0)
        low, high = np.percentile(shares, (2.5, 97.5))
        return float(above.mean() / below.mean()), float(low), float(high)

    def times(arm: str, *, honest: bool) -> list[float]:
        return [
            _until_all_know(life, trial, liars_place(trial) if honest else None)
            for life, trial in zip(markets[arm], trials, strict=True)
        ]

    def worths(arm: str, *, honest: bool) -> list[float]:
        return [
            float(np.mean([w for n, w in enumerate(life.worth) if not (honest and n == liars_place(trial))]))
            for life, trial in zip(markets[arm], trials, strict=True)
        ]

    arms = {
        arm: {
            "all_know": mean_of(times(arm, honest=arm == LIAR)),
            "share_known": mean_of([_share_known(life) for life in lives]),
            "deaths": mean_of([life.deaths for life in lives]),
            "worth": mean_of(worths(arm, honest=arm == LIAR)),
            **{name: mean_of([getattr(life, name) for life in lives]) for name in ("false_priors", "alarmed")},
        }
        for arm, lives in markets.items()
    }
    gains = {}
    for better, base in _PAIRS:
        honest = LIAR in (better, base)
        time = np.subtract(times(base, honest=honest), times(better, honest=honest))
        worth = np.subtract(worths(better, honest=honest), worths(base, honest=honest))
        gains[_TIME.format(better, base)] = mean_of(time.tolist())
        gains[_WORTH.format(better, base)] = mean_of(worth.tolist())
    alone, clade, liar = (np.array(times(arm, honest=True)) for arm in (ALONE, CLADE, LIAR))
    every, lethe, forger = (np.array(times(arm, honest=False)) for arm in (ALONE, LETHE, FORGER))
    share = ratio_of(times(CLADE, honest=False), every.tolist())
    return CladeReport(
        arms, gains, share, ratio_of((liar - clade).tolist(), (alone - clade).tolist()),
        ratio_of((forger - lethe).tolist(), (every - lethe).tolist()),
        _liar_figures("entries", Lies._fields, [life.lies and life.lies._asdict() for life in markets[LIAR]], policy)
        | _liar_figures("posts", ("posted", "barred", "admitted"), [life.forged for life in markets[FORGER]], policy),
        markets, trials[0].apart,
    )  # fmt: skip


def _interval(values: Float64Array, draws: Int64Array) -> Interval:
    low, high = np.percentile(values[draws].mean(axis=1), (2.5, 97.5))
    return float(values.mean()), float(low), float(high)


def _until_all_know(life: ArmLife, trial: CladeTrial, liar: int | None) -> float:
    """Return the ticks from the last birth until all golems knew the truth, without the one in the liar's place."""
    places = [number for number in range(trial.golems) if number != liar]
    return max(max(life.known_at[number] for number in places) - places[-1] * trial.apart, 0)


def _share_known(life: ArmLife) -> float:
    known = [at < life.ticks for at in life.known_at if at >= 0]
    return sum(known) / len(known)


def _liar_figures(of: str, names: Sequence[str], lies: Sequence[Any], policy: Policy) -> dict[str, Interval | None]:
    """Return the mean of each figure over the markets in which it exists, and in how many it does."""
    figures: dict[str, Interval | None] = {}
    for name in names:
        values = np.array([own[name] for own in lies if own is not None and own[name] is not None])
        words = f"ticks until {name}" if name in _MOMENTS else f"{of} {name}"
        if len(values):
            draws = np.random.default_rng(0).integers(0, len(values), (policy.worth.bootstrap_draws, len(values)))
            figures[words] = _interval(values.astype(np.float64), draws)
            if name in _MOMENTS:
                figures[f"markets where {name}"] = (float(len(values)),) * 3
        else:
            figures[words] = None
    return figures


_MOMENTS = ("contradicted", "refused", "throttled")
