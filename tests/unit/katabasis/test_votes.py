"""Propositions and votes: their valid contents, the golems that may vote, and the anonymity of votes."""

import hashlib
from typing import Any

import pyarrow as pa
import pytest

from bardo_pipeline.curator.state.structures import Structure, choice_act
from bardo_pipeline.errors import DerivationError
from bardo_pipeline.katabasis.anonymous_votes import (
    VOTE_CAUSE_SCHEMA,
    VOTE_SCHEMA,
    backed_votes,
    death_votes,
    routine_votes,
)
from bardo_pipeline.katabasis.propositions import proposition_id, with_claims
from tests.support.knowledge.handmade_grimoires import (
    DAY,
    DIED,
    POLICY,
    baseline,
    deaths,
    decided,
    decisions,
    entry,
    grimoire,
    pattern,
)

OWNERS = pa.table({"golem_id": ["g-1", "g-2"], "owner_id": ["owner-1", "owner-2"]})


def claims(*rows: dict) -> list[str]:
    return with_claims(grimoire(*rows)).column("claim").to_pylist()


def test_a_claim_names_the_pool_the_regime_and_the_side_that_won() -> None:
    assert claims(entry()) == [
        "On ethereum, uniswap_v3 USDC/WETH: in a volatile market, with gas normal, "
        "re-centring a range at whose edge price stands beats holding."
    ]
    assert claims(entry(sign=-1))[0].endswith("re-centring a range at whose edge price stands loses to holding.")


def test_rules_that_differ_only_in_strength_make_the_same_claim() -> None:
    weak, strong = entry(effect_mean_ppm=60), entry("g-2", "another_tool", effect_mean_ppm=900, kind="heuristic")
    assert len(set(claims(weak, strong))) == 1


def test_a_claim_about_a_level_uses_bands_of_1_2_5() -> None:
    levels = [entry(about=baseline("gas_price"), effect_mean_ppm=mean) for mean in (20_000, 23_400, 49_999, 50_000)]
    assert claims(*levels) == [
        *["On ethereum, uniswap_v3 USDC/WETH: gas usually costs 20 to 50 gwei."] * 3,
        "On ethereum, uniswap_v3 USDC/WETH: gas usually costs 50 to 100 gwei.",
    ]
    assert claims(entry(about=baseline("pool_volume"), effect_mean_ppm=0))[0].startswith(
        "On ethereum, uniswap_v3 USDC/WETH: 0 to 1 dollars"
    )


@pytest.mark.row("KAT-4")
def test_entering_and_leaving_make_claims_and_half_widths_make_none() -> None:
    def choice(alternative: str, regime: str | None, sign: int) -> dict[str, Any]:
        act = choice_act(alternative, "range_160")
        return entry(about=Structure("choice", "ethereum", "uniswap_v3", "USDC/WETH", *act, regime), sign=sign)

    assert claims(choice("enter", "volatile", -1), choice("leave", None, 1), choice("range_400", None, 1)) == [
        "On ethereum, uniswap_v3 USDC/WETH: in a volatile market, entering loses to staying as it is.",
        "On ethereum, uniswap_v3 USDC/WETH: in any market, leaving beats staying as it is.",
    ]


def test_baselines_of_own_trades_make_no_claim() -> None:
    assert claims(entry(about=baseline("slippage")), entry(about=baseline("gas_cost"))) == []


def test_candidates_pruned_entries_and_undecided_rules_make_no_claim() -> None:
    assert claims(entry(status="candidate"), entry(status="pruned"), entry(sign=0)) == []


@pytest.mark.row("KAT-5")
def test_proposition_and_voter_ids_are_the_hashes_of_the_specification() -> None:
    cast = routine_votes(decisions(decided("created", 1, confidence_ppm=700_000)), OWNERS, POLICY)
    (vote,) = cast.votes.to_pylist()
    claim = hashlib.sha256((vote["domain"] + vote["claim"]).encode()).hexdigest()[:16]
    voter = hashlib.sha256(("g-1" + "owner-1" + claim).encode()).hexdigest()[:12]
    assert (vote["proposition_id"], vote["voter_id"]) == (claim, voter)
    public = f"{voter}|{claim}|{round(vote['at'].timestamp() * 10**6)}|false"
    assert vote["vote_id"] == hashlib.sha256(public.encode()).hexdigest()[:24]
    assert proposition_id(vote["domain"], vote["claim"]) == claim


def test_the_routine_gate_is_seventy_percent_at_the_moment_of_the_decision() -> None:
    cycles = decisions(
        decided("created", 1, confidence_ppm=699_999),
        decided("reinforced", 2, confidence_ppm=700_000),
        # Anchored fourteen days before: half of it is left when the entry is promoted.
        decided("promoted", 3, confidence_ppm=1_000_000, anchor_at=DIED - 41 * DAY, kind="heuristic"),
    )
    votes = routine_votes(cycles, OWNERS, POLICY).votes.to_pylist()
    assert [(v["confidence_ppm"], v["at"]) for v in votes] == [(700_000, DIED - 28 * DAY)]


@pytest.mark.row("KAT-4")
def test_a_confirmed_warning_of_a_large_loss_votes_from_sixty_five_percent() -> None:
    loss = {"kind": "warning", "sign": -1, "confidence_ppm": 650_000, "effect_mean_ppm": -3_000}
    for operation, changes, votes in (
        ("reinforced", {}, 1), ("created", {}, 0), ("reinforced", {"confidence_ppm": 649_999}, 0),
        ("reinforced", {"effect_mean_ppm": -2_999}, 0), ("reinforced", {"kind": "heuristic"}, 0),
    ):  # fmt: skip
        cast = routine_votes(decisions(decided(operation, 1, **(loss | changes))), OWNERS, POLICY)
        assert cast.votes.num_rows == votes, (operation, changes)


@pytest.mark.parametrize("operation", ["received", "staged", "contradicted", "pruned"])
def test_only_created_or_reinforced_entries_vote(operation: str) -> None:
    assert routine_votes(decisions(decided(operation, 1, confidence_ppm=900_000)), OWNERS, POLICY).votes.num_rows == 0


def test_the_last_decision_of_a_cycle_determines_the_vote() -> None:
    sure = {"confidence_ppm": 900_000}
    withdrawn = decisions(decided("reinforced", 1, **sure), decided("contradicted", 1, confidence_ppm=750_000))
    assert routine_votes(withdrawn, OWNERS, POLICY).votes.num_rows == 0
    promoted = decisions(decided("reinforced", 1, **sure), decided("promoted", 1, kind="heuristic", **sure))
    assert routine_votes(promoted, OWNERS, POLICY).votes.num_rows == 1


def test_the_most_confident_entry_of_a_claim_votes() -> None:
    rows = [decided("created", 1, about=f"tool_{i}", confidence_ppm=700_000 + i) for i in range(3)]
    cast = routine_votes(decisions(*rows), OWNERS, POLICY)
    assert cast.votes.column("confidence_ppm").to_pylist() == [700_002]
    assert cast.causes.column("entry_id").to_pylist() == [rows[2]["entry_id"]]


def test_a_golem_votes_again_each_cycle_with_the_same_voter_id() -> None:
    cast = routine_votes(decisions(*(decided("reinforced", c, confidence_ppm=800_000) for c in (1, 2))), OWNERS, POLICY)
    assert len(set(cast.votes.column("vote_id").to_pylist())) == 2
    assert len(set(cast.votes.column("voter_id").to_pylist())) == 1


def test_a_newer_revision_of_a_cycle_replaces_its_votes() -> None:
    rows = [
        decided("created", 1, confidence_ppm=700_001, revision=1),
        decided("created", 1, confidence_ppm=700_000, revision=0),
        decided("created", 1, about="struck", regime="unknown", confidence_ppm=700_000, revision=0),
    ]
    votes = routine_votes(decisions(*rows), OWNERS, POLICY).votes
    assert votes.column("confidence_ppm").to_pylist() == [700_001]


def test_death_votes_have_no_gate_and_use_the_confidence_at_death() -> None:
    known = grimoire(
        entry(confidence_ppm=200_000, anchor_at=DIED - 14 * DAY),
        entry(about="other", sign=-1, kind="warning", confidence_ppm=900_000, anchor_at=DIED),
        entry("g-2", confidence_ppm=900_000),
    )
    cast = death_votes(known, deaths("g-1"), POLICY)
    seen = {(v["confidence_ppm"], v["weight_tenths"], v["is_death_vote"], v["at"]) for v in cast.votes.to_pylist()}
    assert seen == {(100_000, 25, True, DIED), (900_000, 25, True, DIED)}
    assert set(cast.causes.column("golem_id").to_pylist()) == {"g-1"}


@pytest.mark.row("KAT-5")
def test_a_death_vote_is_backed_only_by_a_recorded_death_at_its_own_moment() -> None:
    cast = death_votes(grimoire(entry(), entry("g-2")), deaths("g-1", "g-2"), POLICY)
    keys = {c["golem_id"]: c["vote_id"] for c in cast.causes.to_pylist()}
    assert backed_votes(*cast, deaths("g-1")).to_pylist() == [keys["g-1"]]
    assert backed_votes(*cast, deaths("g-1", at=DIED + DAY)).to_pylist() == []
    assert backed_votes(*cast, deaths()).to_pylist() == []
    assert backed_votes(*cast, deaths("g-1", "g-2")).to_pylist() == sorted(keys.values())


def test_a_public_vote_contains_no_golem_owner_or_entry() -> None:
    cast = death_votes(grimoire(entry("golem-x", own_sum=987_654_321)), deaths("golem-x", owner_id="0xowner"), POLICY)
    assert cast.votes.schema.equals(VOTE_SCHEMA)
    assert cast.causes.schema.equals(VOTE_CAUSE_SCHEMA)
    (public,), (private,) = cast.votes.to_pylist(), cast.causes.to_pylist()
    shown = repr(public)
    assert private["vote_id"] == public["vote_id"]
    assert not [word for word in ("golem-x", "0xowner", private["entry_id"], "987654321") if word in shown]


def test_a_golem_without_an_owner_on_record_cannot_vote() -> None:
    with pytest.raises(DerivationError, match="golem g-9: no owner"):
        routine_votes(decisions(decided("created", 1, golem_id="g-9", confidence_ppm=800_000)), OWNERS, POLICY)


def test_no_decisions_or_entries_give_no_votes() -> None:
    assert routine_votes(decisions(), OWNERS, POLICY).votes.schema.equals(VOTE_SCHEMA)
    assert death_votes(grimoire(), deaths("g-1"), POLICY).causes.num_rows == 0
    assert with_claims(grimoire(entry(about=pattern("t", regime="unknown")))).num_rows == 1


@pytest.mark.row("KAT-5")
def test_bands_of_one_level_share_question_and_voter_but_no_proposition() -> None:
    about = {"about": baseline("gas_price"), "confidence_ppm": 700_000}
    cast = [
        routine_votes(decisions(decided("created", 1, effect_mean_ppm=level, **about)), OWNERS, POLICY).votes
        for level in (30_000, 60_000)
    ]
    low, high = (votes.to_pylist()[0] for votes in cast)
    assert (low["question_id"], low["voter_id"]) == (high["question_id"], high["voter_id"])
    assert low["proposition_id"] != high["proposition_id"]
    assert low["question_id"] != low["proposition_id"]
