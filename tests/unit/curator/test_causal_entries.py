"""Causal links as entries: their structure, their text, and how they cross a death."""

from __future__ import annotations

from typing import Any

import pytest

from bardo_pipeline.curator.state.grimoire_state import from_table, to_table
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.inheritance import testament
from tests.support.knowledge.handmade_grimoires import DIED, POLICY, deaths, decided, decisions, entry, grimoire

LINK = Structure("causal", "polygon", "uniswap_v3", "WETH/USDC", cause="crash", effect="gas_gwei", lag_ticks=3)


def link(**fields: Any) -> dict[str, Any]:
    """An active causal link of a golem's own."""
    text = "For WETH/USDC on uniswap_v3: a sharp fall moves gas up 3 ticks later."
    return entry(about=LINK, kind="causal_link", sign=1, text=text, **fields)


@pytest.mark.row("MEM-22")
def test_the_key_of_a_link_contains_its_lag_and_other_keys_do_not() -> None:
    later = LINK._replace(lag_ticks=5)
    assert LINK.key != later.key
    assert LINK.key.endswith("|crash|gas_gwei|3")
    assert Structure("baseline", "polygon", "uniswap_v3", "WETH/USDC", metric="gas_price").key.endswith("-|gas_price")
    assert LINK.category == "gas_timing"


@pytest.mark.row("MEM-22")
def test_a_link_survives_a_round_trip_through_the_curator_state() -> None:
    table = grimoire(link())
    assert to_table(from_table(table), POLICY.curator, POLICY.decay).equals(table)


@pytest.mark.row("MEM-22")
def test_a_testament_states_the_causal_links_of_its_golem() -> None:
    entries = grimoire(link())
    (written_row,) = testament.testaments(
        entries, decisions(decided("created", 3, about=LINK)), deaths("g-1", at=DIED), POLICY
    ).to_pylist()
    assert [item["statement"] for item in written_row["causes"]] == [entries["text"][0].as_py()]
    assert written_row["regime"] == []
