"""The library: deposits by channel, merged entries, validators, and their effect on confidence."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from bardo_pipeline.inheritance.library.deposits import DEPOSIT_SCHEMA, death_deposits, pull_deposits
from bardo_pipeline.inheritance.library.library_entries import (
    EQUIPPED_SCHEMA,
    KIT_SCHEMA,
    LIBRARY_SCHEMA,
    LIVES_SCHEMA,
    libraries,
)
from tests.support.knowledge.handmade_grimoires import DAY, DIED, POLICY, baseline, causal, entry, grimoire, pattern

pytestmark = pytest.mark.row("INH-16")

RULES = POLICY.library


def dead(*golems: str, owner: str = "o-1") -> pa.Table:
    rows = [{"golem_id": g, "owner_id": owner, "at": DIED, "event_id": f"death of {g}"} for g in golems]
    return pa.Table.from_pylist(rows, schema=pa.schema([("golem_id", pa.string()), ("owner_id", pa.string()),
                                ("at", pa.timestamp("us", tz="UTC")), ("event_id", pa.string())]))  # fmt: skip


def lives(*golems: str, owner: str = "o-1") -> list[dict[str, str]]:
    return [{"golem_id": g, "owner_id": owner, "lineage_id": f"line of {g}"} for g in golems]


def shelves(
    *rows: dict[str, Any], deaths: pa.Table | None = None, owners: list[dict[str, str]] | None = None,
    equipped: list[dict[str, Any]] | None = None, deposits: pa.Table | None = None,
) -> tuple[pa.Table, pa.Table]:  # fmt: skip
    """Return the libraries of these entries; by default all golems are alive and of one owner."""
    held = grimoire(*rows)
    golems = sorted(set(held["golem_id"].to_pylist()))
    given = [DEPOSIT_SCHEMA.empty_table()]
    given += [death_deposits(held, deaths, POLICY)] if deaths is not None else []
    given += [deposits] if deposits is not None else []
    library, kits = libraries(
        pa.concat_tables(given), held, pa.Table.from_pylist(owners or lives(*golems), schema=LIVES_SCHEMA),
        pa.Table.from_pylist(equipped or [], schema=EQUIPPED_SCHEMA), POLICY,
    )  # fmt: skip
    assert library.schema.equals(LIBRARY_SCHEMA)
    assert kits.schema.equals(KIT_SCHEMA)
    return library, kits


def shelf(*rows: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    return shelves(*rows, **fields)[0].to_pylist()


def sure(golem: str, about: Any, confidence: float, **fields: Any) -> dict[str, Any]:
    """An entry that has this confidence at death."""
    return entry(golem, about, confidence_ppm=round(confidence * 1e6), anchor_at=DIED, **fields)


def confirmed_entry(golem: str, about: Any, *, origin: str = "", **fields: Any) -> dict[str, Any]:
    """Return an entry that the golem's own outcomes confirm."""
    return entry(golem, about, origin_golem_id=origin or golem, **({"own_count": 4, "validations": 2} | fields))


@pytest.mark.parametrize(
    ("row", "comes"),
    [
        (sure("g-1", pattern("a"), 0.6), True),
        (sure("g-1", pattern("a"), 0.599), False),
        (sure("g-1", pattern("a"), 0.6, kind="heuristic"), True),
        (sure("g-1", pattern("a"), 0.599, kind="heuristic"), False),
        (sure("g-1", pattern("a"), 0.01, kind="warning", sign=-1), True),
        (sure("g-1", causal("crash", "gas_gwei"), 0.5, kind="causal_link", sign=1, evidence_count=3), True),
        (sure("g-1", causal("crash", "gas_gwei"), 0.5, kind="causal_link", sign=1, evidence_count=2), False),
        (sure("g-1", causal("crash", "gas_gwei"), 0.499, kind="causal_link", sign=1, evidence_count=9), False),
        (sure("g-1", pattern("a"), 0.9, status="candidate"), False),
    ],
)
def test_a_death_deposits_trusted_entries_and_every_warning(row: dict[str, Any], comes: bool) -> None:
    assert bool(shelf(row, deaths=dead("g-1"))) is comes
    assert not shelf(row), "a living golem deposits nothing by itself"


def test_deposits_use_the_confidence_at_death_and_warnings_are_bloodstains() -> None:
    faded = entry("g-1", pattern("a"), confidence_ppm=900_000, anchor_at=DIED - 60 * DAY)
    warned = entry("g-1", pattern("b"), kind="warning", sign=-1)
    (row,) = shelf(faded, warned, deaths=dead("g-1"))
    assert (row["kind"], row["is_bloodstain"], row["channel"]) == ("warning", True, "death")
    assert (row["golem_ids"], row["event_ids"]) == (["g-1"], ["death of g-1"])


def test_a_pull_deposits_an_entry_only_within_25_seconds_after_the_death() -> None:
    held = grimoire(sure("g-1", pattern("a"), 0.2), sure("g-1", pattern("b"), 0.2))
    first, second = held["entry_id"].to_pylist()

    def pulled(entry_id: str, seconds: float) -> int:
        at = pa.array([DIED + timedelta(seconds=seconds)], pa.timestamp("us", tz="UTC"))
        pulls = pa.table({"golem_id": ["g-1"], "entry_id": [entry_id], "event_id": ["e"], "at": at})
        return pull_deposits(held, dead("g-1"), pulls, POLICY).num_rows

    assert (pulled(first, 0), pulled(second, 25), pulled(first, 25.000001), pulled(first, -1)) == (1, 1, 0, 0)
    assert pulled("unknown", 1) == 0


def test_three_validating_siblings_deposit_an_entry_by_overflow() -> None:
    rule = pattern("a")
    own, heirs = confirmed_entry("g-0", rule), [confirmed_entry(f"g-{i}", rule, origin="g-0") for i in (1, 2, 3)]
    assert shelf(own, *heirs[:2]) == []
    (row,) = shelf(own, *heirs)
    assert (row["channel"], row["validator_count"], row["validator_ids"]) == (
        "overflow",
        4,
        ["g-0", "g-1", "g-2", "g-3"],
    )
    unproven = [confirmed_entry(f"g-{i}", rule, origin="g-0", validations=1, contradictions=1) for i in (1, 2, 3)]
    assert shelf(own, *unproven) == [], "a sibling with as many contradictions is no validator"
    idle = [confirmed_entry(f"g-{i}", rule, origin="g-0", own_count=0) for i in (1, 2, 3)]
    assert shelf(own, *idle) == [], "a sibling without outcomes of its own is no validator"


def test_libraries_of_different_owners_are_separate() -> None:
    rule = pattern("a")
    rows = [sure(f"g-{i}", rule, 0.8, own_count=4) for i in range(4)]
    apart = lives("g-0", "g-1") + lives("g-2", "g-3", owner="o-2")
    assert shelf(*rows, owners=apart) == []
    (row,) = shelf(*rows, owners=apart, deaths=dead("g-3", owner="o-2"))
    assert (row["owner_id"], row["validator_ids"]) == ("o-2", ["g-2", "g-3"])


def test_similar_entries_merge_into_one_row_with_the_sign_of_the_majority() -> None:
    rule = pattern("a")
    good = [sure(f"g-{i}", rule, 0.8, own_count=4, validations=i) for i in (1, 2)]
    bad = sure("g-3", rule, 0.9, own_count=4, sign=-1, kind="warning")
    (row,) = shelf(*good, bad, deaths=dead("g-1", "g-2", "g-3"))
    assert (row["sign"], row["validator_count"], row["refuter_count"]) == (1, 2, 1)
    assert row["golem_ids"] == ["g-1", "g-2"]
    assert row["entry_ids"] == sorted(e["entry_id"] for e in good)
    assert row["entry_id"] in row["entry_ids"]


def test_levels_within_one_step_of_1_2_5_are_merged() -> None:
    gas = [
        confirmed_entry(f"g-{i}", baseline("gas_price"), effect_mean_ppm=30_000 + i, validated_at=DIED - i * DAY)
        for i in range(4)
    ]
    assert len(shelf(*gas)) == 1
    one_day = [row | {"validated_at": DIED} for row in gas]
    assert shelf(*one_day) == [], "siblings of one market day are one witness of a level"
    gas[3]["effect_mean_ppm"] = 60_000
    assert shelf(*gas) == []


def test_a_wider_rule_is_validated_by_golems_that_confirm_all_its_parts() -> None:
    wide = sure("g-1", pattern("a", gas_band="not_dear"), 0.8, own_count=4)
    cheap, normal = (confirmed_entry("g-2", pattern("a", gas_band=band)) for band in ("cheap", "normal"))
    rows = {r["gas_band"]: r for r in shelf(wide, cheap, deaths=dead("g-1"))}
    assert rows["not_dear"]["validator_ids"] == ["g-1"]
    rows = {r["gas_band"]: r for r in shelf(wide, cheap, normal, deaths=dead("g-1"))}
    assert rows["not_dear"]["validator_ids"] == ["g-1", "g-2"]


def test_five_validators_make_an_entry_battle_tested_up_to_95_percent() -> None:
    def tested(confidence: float, golems: int) -> dict[str, Any]:
        rows = [sure(f"g-{i}", pattern("a"), confidence, own_count=4) for i in range(golems)]
        (row,) = shelf(*rows, deaths=dead("g-0"))
        return {n: row[n] for n in ("is_battle_tested", "confidence_ppm", "deposited_ppm")}

    assert tested(0.7, 4) == {"is_battle_tested": False, "confidence_ppm": 700_000, "deposited_ppm": 700_000}
    assert tested(0.7, 5) == {"is_battle_tested": True, "confidence_ppm": 770_000, "deposited_ppm": 700_000}
    assert tested(0.9, 5)["confidence_ppm"] == 950_000
    assert tested(0.97, 5)["confidence_ppm"] == 970_000, "nothing is lowered"


def test_five_equipped_lineages_make_an_entry_a_default_of_its_archetype() -> None:
    rule = pattern("a")
    rows = [confirmed_entry(f"g-{i}", rule, origin="g-0") for i in range(1, 7)]

    def default(lineages: dict[int, str], given: range) -> tuple[bool, int, str]:
        expected_rows = [
            {**life, "lineage_id": lineages.get(i, f"line {i}")}
            for i, life in enumerate(lives(*[f"g-{i}" for i in range(1, 7)]))
        ]
        kits = [{"golem_id": f"g-{i}", "structure": rule.key} for i in given]
        (row,) = shelf(*rows, owners=expected_rows, equipped=kits)
        return row["is_default"], row["equipped_lineage_count"], row["archetype"]

    assert default({}, range(1, 5)) == (False, 4, "uniswap_v3 USDC/WETH")
    assert default({}, range(1, 6)) == (True, 5, "uniswap_v3 USDC/WETH")
    assert default({0: "one", 1: "one"}, range(1, 6)) == (False, 4, "uniswap_v3 USDC/WETH"), "heirs are not independent"


def test_three_discoveries_in_a_week_and_two_validations_publish_a_kit() -> None:
    rule = pattern("a")

    def kits(created: list[float], validated: list[float]) -> list[dict[str, Any]]:
        rows = [
            sure(f"g-{i}", rule, 0.8, own_count=4, created_at=DIED - made * DAY, validated_at=DIED - then * DAY)
            for i, (made, then) in enumerate(zip(created, validated, strict=True))
        ]
        return shelves(*rows, deaths=dead("g-0"))[1].to_pylist()

    assert kits([20, 18], [1, 1]) == []
    assert kits([20, 18, 12.9], [1, 1, 1]) == []
    (kit,) = kits([20, 18, 13], [14, 13, 13])
    assert (kit["is_published"], len(kit["entry_ids"]), len(kit["proposed_ids"])) == (False, 0, 1)
    assert kit["proposed_at"] == DIED - 13 * DAY
    assert not kits([20, 18, 13], [14, 13, 12])[0]["is_published"]
    (kit,) = kits([20, 18, 13], [14, 12, 11])
    assert (kit["is_published"], len(kit["entry_ids"]), len(kit["proposed_ids"])) == (True, 1, 0)
    assert kit["golem_ids"] == ["g-0", "g-1", "g-2"]
    assert kit["name"] == "dex_lp on uniswap_v3 USDC/WETH"
