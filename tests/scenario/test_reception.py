"""What comes from elsewhere: how much it would surprise a golem, and what becomes of it in that golem's life."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from tests.commands import bardo


@pytest.mark.row("INH-10")
def test_a_bundle_is_ranked_by_what_would_surprise_a_golem(asked_home: Path) -> None:
    bundles = orjson.loads(bardo("bundle", "show", "--format", "json", home=asked_home))
    heir = next(row for row in bundles if row["generation"] == 1)
    own = orjson.loads(
        bardo("bundle", "rank", heir["golem"], "--for", heir["golem"], "--format", "json", home=asked_home)
    )
    assert {row["relation"] for row in own} == {"same"}, "who left it knows it"
    other = next(row for row in bundles if row["generation"] == 0)
    ranked = orjson.loads(
        bardo("bundle", "rank", heir["golem"], "--for", other["golem"], "--format", "json", home=asked_home)
    )
    order = [("opposed", "unknown", "same").index(row["relation"]) for row in ranked]
    assert order == sorted(order)
    assert [row["priority"] for row in ranked] == list(range(1, heir["entries"] + 1))
    assert "nobody of this name" in bardo("bundle", "rank", heir["golem"], "--for", "g-x", home=asked_home, expect=2)
