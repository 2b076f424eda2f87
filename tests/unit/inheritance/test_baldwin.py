"""A lasting lesson of a lineage becomes a default of its heir's configuration; the heir's outcomes still change it."""

from __future__ import annotations

from typing import Any

import pytest

from bardo_pipeline.curator.playbook import Playbooks
from bardo_pipeline.curator.state.grimoire_state import from_table
from bardo_pipeline.events.life.events import life_event
from bardo_pipeline.events.life.life_schema import LIFE_SCHEMA
from bardo_pipeline.events.life.succession_events import Default, DefaultsInherited, Instincts
from bardo_pipeline.events.record.arrow_schema import to_table
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.inheritance.heir_entries import defaults_of, inherited_entries
from bardo_pipeline.policy import InheritancePolicy, Policy
from tests.support.knowledge.handmade_bundles import bundle_of
from tests.support.knowledge.handmade_grimoires import DAY, DIED, POLICY, entry, grimoire, pattern

pytestmark = pytest.mark.row("INH-12")

BASE, VOLATILE = 0.7, REGIMES.index("volatile")


def rule(**fields: Any) -> dict[str, Any]:
    """A warning against re-centring in a storm that survived three generations at 0.7."""
    plain = {"kind": "warning", "sign": -1, "generation": 3, "confidence_ppm": 700_000, "anchor_at": DIED}
    return entry("g-1", pattern("uniswap_v3_rebalance"), **{**plain, **fields})


def born(*rows: dict[str, Any], policy: Policy = POLICY) -> tuple[Default, ...]:
    """Return the defaults of an heir of a golem with these entries."""
    inherited = inherited_entries(bundle_of(*rows, policy=policy), "g-heir", policy)
    return defaults_of(inherited, DIED, BASE, policy)


def test_a_warning_of_three_generations_raises_the_threshold_of_the_heir() -> None:
    (default,) = born(rule())
    assert (default.regime, default.rebalance_threshold) == ("volatile", 0.8), "the upper edge of its band"
    assert default.entry_ids == (rule()["entry_id"],)
    (lower,) = born(rule(kind="heuristic", sign=1, regime="volatile", **_band("stirred")))
    assert (lower.rebalance_threshold, len(lower.entry_ids)) == (0.5, 1)


def _band(name: str) -> dict[str, Any]:
    about = pattern("uniswap_v3_rebalance", anomaly_band=name)
    made = entry("g-1", about)
    return {column: made[column] for column in ("structure", "anomaly_band", "entry_id")}


@pytest.mark.parametrize(
    "short",
    [{"generation": 2}, {"confidence_ppm": 699_000}, {"kind": "insight"}, {"anchor_at": DIED - 5 * DAY},
     {"action_type": "add_liquidity"}],
)  # fmt: skip
def test_a_young_weak_or_unsuitable_entry_becomes_no_default(short: dict[str, Any]) -> None:
    assert born(rule(**short)) == ()


@pytest.mark.parametrize("flat", [0.4, 0.7])
def test_no_default_is_made_if_crossing_resets_confidence(flat: float) -> None:
    reset = Policy(inheritance=InheritancePolicy(weismann="reset", reset_confidence=flat))
    assert born(rule(confidence_ppm=990_000), policy=reset) == ()


def test_a_default_appears_in_the_playbook_and_is_overridden_by_own_rules() -> None:
    (default,) = born(rule())
    event = life_event("g-heir", DIED, DefaultsInherited(bundle_hash="b", defaults=(default,)))
    known = Instincts.of(to_table([event], LIFE_SCHEMA))
    assert known.base("g-heir", BASE)[VOLATILE] == 0.8
    assert known.base("g-heir", BASE)[:VOLATILE] == (BASE,) * VOLATILE
    assert known.base("g-other", BASE) == (BASE,) * len(REGIMES)
    books = Playbooks(base={"g-heir": known.base("g-heir", BASE)}, instincts={"g-heir": known.words("g-heir")})
    assert books.of("g-heir", POLICY) == (0, known.base("g-heir", BASE))
    late = int((DIED + 3_000 * DAY).timestamp() * 1_000_000)
    about = pattern("uniswap_v3_rebalance", regime="volatile", anomaly_band="stirred")
    entry_row = entry(
        "g-heir", about, kind="heuristic", validations=9, decay_class="structural", confidence_ppm=900_000
    )
    for rows, wanted in (((), 0.8), ((entry_row,), 0.5)):
        state = from_table(grimoire(*rows))
        code = state.golem_code("g-heir")
        (page,) = books.revise(state, *_array_of(code, 1, late), POLICY)
        assert page["rebalance_threshold"]["volatile"] == wanted
        assert f"volatile: 0.80, by {default.entry_ids[0][:12]}" in page["markdown"]


def _array_of(*numbers: int) -> Any:
    import numpy as np

    return [np.array([number]) for number in numbers]


def test_the_rule_behind_a_default_is_inherited_without_validations() -> None:
    heirs = inherited_entries(bundle_of(rule()), "g-heir", POLICY)
    (held,) = heirs.to_pylist()
    assert (held["generation"], held["status"], held["validations"]) == (4, "active", 0)
    assert held["confidence_ppm"] == 595_000
