"""A stranger with one identity, and a sibling, that lie: what they can make golems believe is bounded."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from bardo_pipeline.derivation.clade.clade_exchange import exchange
from bardo_pipeline.derivation.clade.clade_notes import newest_tick_at
from bardo_pipeline.derivation.clade.lethe_exchange import exchange_posts
from bardo_pipeline.derivation.configuration import record_configuration
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.received_posts import HeardPosts, posts_received
from bardo_pipeline.events.custody.clade_secret import CladeSecret
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, GAS_BANDS
from bardo_pipeline.heartbeat.fleet import Founding, born
from bardo_pipeline.katabasis.public_consensus import beliefs_as_priors, held_beliefs, public_consensus
from bardo_pipeline.katabasis.public_posts import Belief, read_post
from bardo_pipeline.market.market import Market
from bardo_pipeline.market.synthetic import synthetic_market
from bardo_pipeline.market.synthetic_spec import START, swinging_spec
from bardo_pipeline.policy import Policy
from bardo_pipeline.policy.toml_config import parse
from bardo_pipeline.relay.ticket_office import Quota
from bardo_pipeline.runtime.fleet_run import FleetRun
from bardo_pipeline.runtime.lying_golem import DEAD, LIVING, BoardForger, LyingGolem
from bardo_pipeline.runtime.run_settings import Heir, Run
from bardo_pipeline.storage.home import Home
from tests.support.processes.clade_homes import OWNER, HeldRelay
from tests.support.processes.public_boards import MARKET, HeldBoard, belief, pheromone, put

OWN, FORGER, UNKNOWN = CladeSecret(b"o" * 32), CladeSecret(b"f" * 32), CladeSecret(b"u" * 32)
LATELY = datetime(2026, 1, 1, 1, tzinfo=UTC)
FOUNDING = Founding(owners=(OWNER,), credit_share=0.05, lifespan_ticks=(2_000, 3_000))
TRUSTED = Policy().reception.import_confidence
"""Largest threat that lies can raise."""


def golem(number: int, market: Market, derivation_id: str, policy: Policy) -> Heir:
    golem_id, birth = born(
        lineage_id=f"line/{number}", generation=0, owner_id=OWNER, founding=FOUNDING, market=market.name,
        market_hash=market.content_hash, derivation_id=derivation_id, policy=policy,
    )  # fmt: skip
    return Heir(golem_id, birth, START)


def lived(
    root: Path, layer: str, bars: int, hear: Callable[[DerivationContext, datetime, Heir], None]
) -> DerivationContext:
    """Let two golems with an open layer live; `hear` is called before each exchange. The third golem is not there."""
    policy, market = Policy(), synthetic_market(seed=8, bars=bars, start=START, spec=swinging_spec())
    Home.create(root, policy, START)
    context = DerivationContext.open(root, policy=policy)
    stated = parse(f"[styx]\n{layer}_enabled = true\n", "bardo.toml")
    record_configuration(context, stated, now=START, why="a test", at=START)
    golems = [golem(number, market, context.derivation_id, policy) for number in range(3)]

    def on_exchange() -> None:
        hear(context, newest_tick_at(context, OWNER) or START, golems[2])

    run = Run("r", market, 0, 1, FOUNDING, heirs=tuple(golems[:2]), exchange=on_exchange, commit_chunks=1)
    FleetRun(context, run, lambda: START).live()
    return context


def threats(context: DerivationContext) -> Iterator[tuple[datetime, float, str]]:
    """Yield time, value and severity of each probe of threats that heard of one."""
    for row in context.log.read_cycles(["observed_at", "probe_results"]).to_pylist():
        for probe in row["probe_results"]:
            if probe["probe"] == "pheromone_threat" and probe["value"] is not None:
                yield row["observed_at"], probe["value"], probe["severity"]


def retrieved(context: DerivationContext, kind: str) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield golem, tick and prior of each retrieved prior of a kind."""
    for row in context.log.read_cycles(["golem_id", "tick", "retrieval"]).to_pylist():
        for prior in (row["retrieval"] or {}).get("priors") or []:
            if prior["kind"] == kind:
                yield row["golem_id"], row["tick"], prior


@pytest.mark.row("KAT-4")
def test_an_identity_posts_no_more_than_its_quota_and_an_unknown_one_nothing(tmp_path: Path) -> None:
    board, forger = HeldBoard(tmp_path, FORGER, quota=Quota(living=25, death=9)), BoardForger(FORGER, UNKNOWN)
    for hours in range(3):
        forger.forge(board, [], MARKET, LATELY + timedelta(hours=hours))
    assert Counter(post.purpose for post in board.posts) == {"living": 25, "death": 9}
    assert forger.posts == {"posted": 34, "barred": 3 * (1 + LIVING + DEAD) - 34, "admitted": 0}
    facts = [read_post(post.purpose, post.content.encode()).facts for post in board.posts]  # type: ignore[arg-type]
    voters = [one.voter_id for one in facts if isinstance(one, Belief)]
    assert len(set(voters)) == len(voters) == 33, "one identity has as many voter ids as votes"


@pytest.mark.full
@pytest.mark.row("KAT-7", "KAT-11")
def test_false_propositions_are_few_and_lose_weight_by_own_outcomes_and_false_threats_stay_low(tmp_path: Path) -> None:
    board, forger = HeldBoard(tmp_path, FORGER), BoardForger(FORGER, UNKNOWN)

    def hear(context: DerivationContext, at: datetime, _: Heir) -> None:
        forger.forge(board, posts_received(context), MARKET, at)
        exchange_posts(context, OWNER, OWN, board, now=at)

    context = lived(tmp_path / "home", "lethe", 500, hear)
    assert max(value for _, value, _ in threats(context)) <= TRUSTED
    assert {severity for *_, severity in threats(context)} == {"low"}
    policy, held, tested = context.policy, defaultdict[tuple[str, int], set[str]](set), list[float]()
    for golem_id, tick, prior in retrieved(context, "proposition"):
        assert prior["prior_id"] in forger.false
        held[golem_id, (tick - 1) // policy.curator.cycle_ticks].add(prior["prior_id"])
        tested.append(prior["importance"] / prior["confidence"])
    assert max(map(len, held.values())) == 3
    assert max(tested) == pytest.approx(1.0), "no false proposition weighs more than its confidence"
    assert min(tested) == pytest.approx(2 / 3), "one decision that it misled, of two"


@pytest.mark.row("KAT-7")
def test_forged_votes_halve_an_honest_proposition_or_silence_it(tmp_path: Path) -> None:
    for honest, expected in (("abcdef", 1), ("abc", 0)):
        (tmp_path / honest).mkdir()
        board = HeldBoard(tmp_path / honest, OWN, FORGER)
        posts = put(board, OWN, [belief(voter) for voter in honest])
        (before,) = ranked(board)
        BoardForger(FORGER, UNKNOWN).forge(board, [HeardPosts(LATELY, OWNER, (), "", tuple(posts))], MARKET, LATELY)
        after = [prior for prior in ranked(board) if prior["prior_id"] == before["prior_id"]]
        assert before["origin"] == "quorum"
        assert [prior["origin"] for prior in after] == ["contradicted"] * expected
        assert Policy().retrieval.proposition_contradicted == 0.5


def ranked(board: HeldBoard) -> list[dict[str, Any]]:
    """Return the propositions in a volatile market that are sure enough to be held."""
    posts = [read_post(post.purpose, post.content.encode()) for post in board.posts]  # type: ignore[arg-type]
    counted = public_consensus(posts, Policy())
    priors = beliefs_as_priors(posts, counted, tuple(MARKET.values()), "volatile", LATELY, Policy())
    return held_beliefs(priors, "g", (), confidence_min=0.5, tokens_max=10_000, top=100).to_pylist()


@pytest.mark.row("KAT-11")
def test_posts_that_state_a_later_time_count_from_their_receipt(tmp_path: Path) -> None:
    board, received = HeldBoard(tmp_path, FORGER), list[datetime]()
    ahead = datetime(2030, 1, 1, tzinfo=UTC)
    places = product(REGIMES, ANOMALY_BANDS, GAS_BANDS)
    votes = [belief(f"{place}", is_death_vote=True, day="2030-01-01", regime=place[0], anomaly_band=place[1],
                    gas_band=place[2]) for place in places]  # fmt: skip
    put(board, FORGER, [pheromone(0.3, ahead), *votes])

    def hear(context: DerivationContext, at: datetime, _: Heir) -> None:
        received.append(at)
        exchange_posts(context, OWNER, OWN, board, now=at)

    context = lived(tmp_path / "home", "lethe", 250, hear)
    heard = list(threats(context))
    for at, value, _ in heard:
        assert value == pytest.approx(0.3 * 0.5 ** ((at - received[0]).total_seconds() / 86_400))
    assert len(heard) > 200
    assert list(retrieved(context, "proposition")), "a vote that states a later day does not silence a proposition"
    days = {facts.day for one in posts_received(context) for _, _, facts in one.posts if isinstance(facts, Belief)}
    assert days == {received[0].date()}, "every reader of posts gets the day of the receipt"


@pytest.mark.row("KAT-3", "KAT-9")
def test_false_scars_are_heard_and_raise_no_high_threat(tmp_path: Path) -> None:
    held, liars = HeldRelay(), dict[str, LyingGolem]()

    def hear(context: DerivationContext, at: datetime, heir: Heir) -> None:
        if at > LATELY:
            liar = liars.setdefault(heir.golem_id, LyingGolem(context, *heir[:2], OWN))
            liar.lie(held, min(context.golem_ids()), at)
            exchange(context, OWNER, OWN, held, now=at)

    context = lived(tmp_path / "home", "clade", 250, hear)
    (liar,) = liars
    assert [scar for *_, scar in retrieved(context, "scar") if scar["prior_id"].startswith(f"scar-{liar}-")]
    assert {severity for *_, severity in threats(context)} == {"low"}
