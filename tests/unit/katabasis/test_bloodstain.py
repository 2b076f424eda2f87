"""The bloodstain: one content-addressed artefact per death; its echo names only a pool and the failures there."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bardo_pipeline.katabasis.bloodstain_artefact import PUBLIC_MECHANISMS, bloodstain_of, echo_of, pattern_words
from bardo_pipeline.katabasis.scar_rules import scars_of
from bardo_pipeline.katabasis.scar_text import MECHANISMS
from tests.support.example_count import times
from tests.support.records.failing_records import POLICY, act, deaths, failures, moment
from tests.support.records.handmade_records import RALLY, STORM

pytestmark = pytest.mark.row("KAT-8")
G = "g-5ec2e7"
CONDITIONS = {
    "chain": "polygon", "protocol": "uniswap_v3", "pair": "WETH/USDC", "price_return": -0.0123, "sigma_ratio": 2.2,
    "gas_gwei": 31.5, "gas_hour_ratio": 1.0, "regime": "volatile", "market_regime": "HighVol", "gas_band": "normal",
}  # fmt: skip
DEATH: dict[str, Any] = {
    "golem_id": G, "owner_id": "owner-9", "lineage_id": "line-9", "generation": 3, "tick": 70, "at": moment(70),
    "cause": "economic",
}  # fmt: skip
VOTE = {"vote_id": "a" * 24, "proposition_id": "b" * 16, "claim": "gas is dear", "confidence_ppm": 600_000}


def scars(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    table: list[dict[str, Any]] = scars_of(failures(rows), deaths((G, 70)), POLICY).to_pylist()
    return table


LEFT = scars(act(G, 60, status="reverted"), act(G, 61, status="reverted", when=RALLY))


def made(**fields: Any) -> dict[str, Any]:
    plain = {
        "scars": LEFT, "votes": [VOTE | {"weight_tenths": 25}], "conditions": CONDITIONS, "testament_hash": "c" * 64,
        "bundle_hash": "d" * 64, "published": True,
    }  # fmt: skip
    return bloodstain_of(DEATH, **(plain | fields))


def test_equal_deaths_have_equal_ids_and_different_deaths_different_ids() -> None:
    name = made()["bloodstain_id"]
    assert name == made(scars=LEFT[::-1])["bloodstain_id"], "a set has no order"
    words = [VOTE | {"weight_tenths": 25, "vote_id": letter * 24} for letter in "ab"]
    assert made(votes=words)["bloodstain_id"] == made(votes=words[::-1])["bloodstain_id"]
    others = [{"scars": LEFT[:1]}, {"votes": []}, {"conditions": None}, {"testament_hash": None}, {"published": False}]
    names = {name, *(made(**other)["bloodstain_id"] for other in others)}
    assert len(names) == 1 + len(others)


def test_a_bloodstain_contains_scars_votes_and_the_bundle_hash() -> None:
    result = made()
    assert [s["scar_id"] for s in result["scars"]] == [f"scar-{G}-1", f"scar-{G}-2"]
    assert result["death_votes"] == [VOTE | {"weight": 2.5}]
    assert (result["golem_id"], result["tick"], result["bundle_hash"]) == (G, 70, "d" * 64)
    assert orjson.loads(orjson.dumps(result)) == result, "all of it is plain JSON"


def test_every_mechanism_has_a_public_description() -> None:
    assert set(PUBLIC_MECHANISMS) == set(MECHANISMS) - {"unexplained"}
    by_key = {pattern_words(LEFT[0] | {"mechanism": m, "cause_variable": "crash"}) for m in PUBLIC_MECHANISMS}
    assert len(by_key) == len(PUBLIC_MECHANISMS)
    assert any("is hurt by a sharp fall" in words for words in by_key)


PRIVATE = st.fixed_dictionaries(
    {
        "pnl_ppm": st.integers(-(10**6), 10**6), "effect_ppm": st.none() | st.integers(-(10**6), 10**6),
        "tick": st.integers(1, 10**6), "golem_id": st.text(min_size=1, max_size=9), "playbook_version": st.integers(0),
        "causal_narrative": st.text(max_size=40), "cause_variable": st.sampled_from([None, "my threshold"]),
        "tool_name": st.text(min_size=1, max_size=9), "confidence_ppm": st.integers(650_000, 10**6),
        "pleasure": st.floats(-1, 1), "seen_count": st.integers(1, 99), "confirmed_tick": st.integers(1, 10**6),
        "confirmed_at": st.sampled_from([moment(1), moment(999)]),
    }
)  # fmt: skip


@settings(max_examples=times(40), deadline=None)
@given(PRIVATE, st.floats(-1, 1), st.floats(0, 9))
def test_private_fields_do_not_change_the_echo(private: dict[str, Any], fell: float, sigma: float) -> None:
    seen = CONDITIONS | {"price_return": fell, "sigma_ratio": sigma, "gas_gwei": sigma * 10}
    echo = echo_of([scar | private for scar in LEFT], seen, 1, "c" * 64)
    assert echo == made()["echo"]


def test_no_private_string_appears_in_the_echo() -> None:
    canary = "canary"
    rows = scars(
        act(G, 60, status="reverted", action_type=f"{canary}_leverage"), act(G, 61, status="reverted", when=STORM)
    )
    lines = [
        scar | {n: canary for n, v in scar.items() if isinstance(v, str) and n not in PUBLIC_NAMES} for scar in rows
    ]
    death = DEATH | {n: canary for n, v in DEATH.items() if isinstance(v, str)}
    result = bloodstain_of(
        death, scars=lines, votes=[dict.fromkeys(VOTE, canary) | {"weight_tenths": 25}], conditions=CONDITIONS,
        testament_hash="c" * 64, bundle_hash=canary, published=True,
    )  # fmt: skip
    assert canary not in orjson.dumps(result["echo"]).decode()
    plain = "".join(result["echo"]["failure_patterns"]).replace("uniswap_v3", "")
    assert not any(letter.isdigit() for letter in plain), "no size, no threshold, no moment"


PUBLIC_NAMES = ("chain", "protocol", "pair", "regime", "gas_band", "anomaly_band", "mechanism")
"""The fields of a scar that its echo uses, besides the action type."""
