"""Failures of living golems: cycle by cycle those of the whole life, and those of the derived table."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bardo_pipeline.derivation.katabasis.line_knowledge import line_knowledge
from bardo_pipeline.derivation.legacy.death_queries import deaths_with_ticks
from bardo_pipeline.derivation.strikes_and_reorgs import strike
from bardo_pipeline.katabasis.action_outcomes import ENDED_SCHEMA, failures_among, outcomes_of
from bardo_pipeline.katabasis.lived_failures import LivedFailures
from bardo_pipeline.katabasis.priors import scars_as_priors
from bardo_pipeline.katabasis.scar_rules import RULE_COLUMNS
from bardo_pipeline.policy import Policy
from bardo_pipeline.runtime.fleet_run import FleetRun
from bardo_pipeline.runtime.run_settings import Progress, Run
from tests.conftest import NOW
from tests.property.derivation.test_laws import POLICY as HOME_POLICY
from tests.property.derivation.test_laws import derive_all, stores_at
from tests.support.fleets.memory_fleets import FOUNDING, lively_market
from tests.support.fleets.shared_fleets import crowd

POLICY = Policy()
NO_RULES = pa.table({n: pa.array([], pa.int64() if n in ("cycle", "revision", "seq", "sign", "confidence_ppm")
                                 else pa.string()) for n in RULE_COLUMNS})  # fmt: skip
NAMED = (
    "golem_id",
    "owner_id",
    "tick",
    "confirmed_tick",
    "cycle",
    "outcome_class",
    "mechanism",
    "structure",
    "seq",
    "confidence_ppm",
)


def described(failures: pa.Table) -> list[tuple[object, ...]]:
    rows = failures.select(NAMED).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


@cache
def lived() -> LivedFailures:
    """The failures of five lines, cycle by cycle. Losses count from 0.03 %, so that some last."""
    records, lived = crowd().records, LivedFailures(easily_hurt())
    cycle = (records["tick"].to_numpy() - 1) // POLICY.curator.cycle_ticks
    for number in range(int(cycle.max()) + 1):
        lived.close(records.filter(pa.array(cycle == number)), lambda _: NO_RULES)
    return lived


def easily_hurt() -> Policy:
    rules = POLICY.katabasis.model_copy(update={"loss_min": 0.0003})
    return POLICY.model_copy(update={"katabasis": rules})


@pytest.mark.row("KAT-1", "KAT-7")
def test_failures_found_cycle_by_cycle_are_those_of_the_whole_life() -> None:
    records, whole = crowd().records, LivedFailures(easily_hurt())
    whole.close(records, lambda _: NO_RULES)
    assert described(lived().rows) == described(whole.rows)
    expected = failures_among(outcomes_of(records, ENDED_SCHEMA.empty_table(), easily_hurt()))
    keys = {(row["golem_id"], row["tick"]) for row in expected.to_pylist()}
    assert {(row["golem_id"], row["tick"]) for row in lived().rows.to_pylist()} == keys
    late = expected.filter(pc.equal(expected["confirmed"], "deferred"))
    span = POLICY.curator.cycle_ticks
    crosses = (late["tick"].to_numpy() - 1) // span != (late["confirmed_tick"].to_numpy() - 1) // span
    assert crosses.any(), "a check judges a decision of the cycle before"
    assert (lived()._unchecked["tick"].to_numpy() > 0).sum() < 40, "records that no check can judge are dropped"


@pytest.mark.row("KAT-7")
def test_a_bloodstain_of_another_golem_lasts_longer_and_an_own_one_does_not() -> None:
    rows = lived().rows
    last = rows.group_by("golem_id").aggregate([("cycle", "max")]).rename_columns(["golem_id", "cycle"])
    deaths = last.append_column("tick", pc.multiply(last["cycle"], POLICY.curator.cycle_ticks))
    days, longer = POLICY.katabasis.scar_half_life_days, POLICY.decay.bloodstain_multiplier
    heirs = pa.array(["heir"] * rows.num_rows, pa.string())
    for owner, origins in ((heirs, {"sibling", "bloodstain"}), (rows["golem_id"], {"own"})):
        held = rows.set_column(rows.column_names.index("owner_id"), "owner_id", owner)
        priors = scars_as_priors(held, deaths, POLICY).to_pylist()
        assert {row["origin"] for row in priors} == origins
        for row in priors:
            assert row["is_bloodstain"] == (row["origin"] == "bloodstain")
            assert row["half_life_days"] == days * (longer if row["is_bloodstain"] else 1.0)


@pytest.mark.row("KAT-7")
def test_a_forgotten_golem_holds_no_failures() -> None:
    everything = lived()
    names = set(everything.rows["golem_id"].to_pylist())
    gone = min(names)
    copy = LivedFailures(easily_hurt(), everything.rows, everything._unchecked)
    copy.forget({gone})
    assert set(copy.rows["owner_id"].to_pylist()) == names - {gone}


@pytest.mark.row("KAT-7", "X-4")
def test_failures_of_a_golem_derived_apart_join_those_of_the_others() -> None:
    everything = lived()
    assert everything._unchecked is not None
    golems = {*everything.rows["owner_id"].to_pylist(), *everything._unchecked["golem_id"].to_pylist()}
    golem_id = min(everything._unchecked["golem_id"].to_pylist())
    apart, others = (LivedFailures(easily_hurt(), everything.rows, everything._unchecked) for _ in range(2))
    apart.forget(golems - {golem_id})
    others.forget({golem_id})
    others.absorb(apart)
    assert described(others.rows) == described(everything.rows)
    keys = [("golem_id", "ascending"), ("tick", "ascending")]
    assert others._unchecked.sort_by(keys).equals(everything._unchecked.sort_by(keys))
    none = LivedFailures(easily_hurt())
    none.absorb(LivedFailures(easily_hurt()))
    assert none.rows.num_rows == 0


@pytest.mark.full
@pytest.mark.row("KAT-7", "X-4")
def test_a_strike_leaves_a_living_heir_its_other_failures_and_those_of_its_line(tmp_path: Path) -> None:
    stores = stores_at(tmp_path / "home", HOME_POLICY.model_copy(update={"katabasis": easily_hurt().katabasis}))
    founding = replace(FOUNDING, lifespan_ticks=(300, 500))
    run = FleetRun(stores, Run("run", lively_market(900), 3, 2, founding), lambda: NOW)
    held: list[tuple[str, set[tuple[str, int]]]] = []

    def failures_of(golem_id: str) -> set[tuple[str, int]]:
        rows = run.failures.held_by(golem_id)
        return set(zip(rows["golem_id"].to_pylist(), rows["tick"].to_pylist(), strict=True)) - {(golem_id, 1)}

    def meanwhile(_: Progress) -> None:
        if len(held) == 1 and held[0][0] in run.fleet.golem_ids:
            held.append((held[0][0], failures_of(held[0][0])))
        for golem_id in run.fleet.golem_ids:
            failures = failures_of(golem_id)
            if not held and len({golem for golem, _ in failures}) == 2:
                held.append((golem_id, failures))
                strike(stores, golem_id, 1, "a lie", now=NOW)

    run.live(meanwhile)
    (_, failures), (_, kept) = held
    assert failures <= kept


@pytest.mark.full
@pytest.mark.row("KAT-7", "KAT-2")
def test_a_run_holds_the_failures_of_the_derived_table_and_an_heir_those_of_its_line(tmp_path: Path) -> None:
    stores = stores_at(tmp_path / "home", HOME_POLICY)
    founding = replace(FOUNDING, lifespan_ticks=(300, 500))
    run = FleetRun(stores, Run("run", lively_market(900), 3, 2, founding), lambda: NOW)
    held: dict[str, list[tuple[object, ...]]] = {}
    forget = run.failures.forget

    def forgetting(golem_ids: set[str]) -> None:
        for golem_id in golem_ids:
            own = run.failures.rows.filter(pc.equal(run.failures.rows["golem_id"], golem_id))
            held[golem_id] = described(own.filter(pc.equal(own["owner_id"], golem_id)))
        forget(golem_ids)

    run.failures.forget = forgetting  # type: ignore[method-assign]
    run.live()
    derive_all(stores)
    births = {e["golem_id"]: e["born"] for e in stores.life("GolemBorn").to_pylist()}
    table = stores.projections.read("failures")
    table = table.filter(pc.not_equal(table["confirmed"], "at_death"))
    for golem_id, own in held.items():
        derived = described(table.filter(pc.equal(table["golem_id"], golem_id)))
        assert [row[:1] + row[2:] for row in own] == [row[:1] + row[2:] for row in derived]
    heirs = {g: b["predecessor_id"] for g, b in births.items() if b["predecessor_id"] is not None}
    assert heirs
    line = line_knowledge(stores, heirs, stores.left_out())
    carried = {g: line.failures.filter(pc.equal(line.failures["owner_id"], g)) for g in heirs}
    given = {g: rows.filter(pc.equal(rows["golem_id"], heirs[g])) for g, rows in carried.items()}
    again = line_knowledge(stores, heirs, stores.left_out(), {heirs[g]: rows for g, rows in given.items()})
    assert described(again.failures) == described(line.failures), "two generations"
    assert again.propositions.equals(line.propositions)
    for heir, predecessor in heirs.items():
        own = line.failures.filter(pc.equal(line.failures["owner_id"], heir))
        of_predecessor = own.filter(pc.equal(own["golem_id"], predecessor))
        assert described(of_predecessor) == [(p, heir, *rest) for p, _, *rest in held[predecessor]]
        assert set(own["golem_id"].to_pylist()) <= set(births)
    assert line.failures.num_rows + line.propositions.num_rows > 0
    priors = scars_as_priors(line.failures, line.deaths, HOME_POLICY)
    assert set(priors["origin"].to_pylist()) <= {"sibling", "bloodstain"}
    assert set(line.propositions["origin"].to_pylist()) <= {"quorum", "contradicted"}
    dead = set(deaths_with_ticks(stores)["golem_id"].to_pylist())
    assert set(line.deaths["golem_id"].to_pylist()) <= dead
    assert np.isin(line.propositions["golem_id"].to_pylist(), list(heirs)).all()
