"""Laws of failures and scars: they equal their twins in every order of arrival, and a struck record's scars are
retracted.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.katabasis.scars import derive_failures, derive_scars
from bardo_pipeline.derivation.repair.removal_proof import remains
from bardo_pipeline.derivation.strikes_and_reorgs import strike
from bardo_pipeline.events.life.events import LifeEvent
from bardo_pipeline.katabasis.action_outcomes import ENDED_SCHEMA, OUTCOME_SCHEMA, outcomes_of
from bardo_pipeline.katabasis.scar_rules import FAILURE_SCHEMA, SCAR_SCHEMA, scars_of
from tests.conftest import NOW
from tests.property.derivation.test_laws import beside, birth_of, death_of, stores_at
from tests.reference.katabasis.scars import outcomes_by_row, scars_by_row
from tests.support.example_count import some, times
from tests.support.records.failing_records import POLICY, act, check, deaths, failures, moment, table
from tests.support.records.handmade_records import GOOD, LULL, RALLY, SPAN, STORM, Life, full, record

pytestmark = pytest.mark.row("KAT-1", "KAT-2", "P-2")
GOLEMS = ("g-10", "g-20", "g-1")
"""Two siblings and a stranger (`birth_of` gives an owner by the last digit)."""

LOSSES = st.sampled_from([None, -50_000, -20_001, -20_000, -3_001, -3_000, -2_999, -580, 900])
ACTS = st.builds(
    act,
    st.sampled_from(GOLEMS[:2]),
    st.integers(1, 40),
    pnl_ppm=LOSSES,
    status=st.sampled_from(["executed", "reverted", "blocked"]),
    slippage_ppm=st.sampled_from([None, 700, 10_000, 10_001]),
    verified=st.booleans(),
)
ENDS = st.dictionaries(st.sampled_from(GOLEMS), st.integers(41, 60))
CHECKS = st.builds(
    lambda golem, decided, late, effect, **fields: check(golem, decided + late, decided, effect, **fields),
    st.sampled_from(GOLEMS[:2]),
    st.integers(1, 40),
    st.sampled_from([1, 30]),
    st.sampled_from([-2_000_000, -3_000, -2_999, 40]),
    verified=st.booleans(),
    chosen=st.sampled_from(["act", "hold"]),
)


def merged_by_tick(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge the records of each tick: their failures together, their actions from the first with any."""
    out: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        known = out.setdefault((row["golem_id"], row["tick"]), row)
        if known is not row:
            acts = row if not known["actions"] else known
            both = known["resolutions"] + row["resolutions"]
            out[row["golem_id"], row["tick"]] = known | {
                "actions": acts["actions"], "outcome": acts["outcome"], "resolutions": both,
            }  # fmt: skip
    return list(out.values())


@settings(max_examples=times(30), deadline=None)
@given(st.lists(ACTS, max_size=8), st.lists(CHECKS, max_size=8), ENDS)
def test_outcomes_equal_their_row_by_row_twin(
    acts: list[dict[str, Any]], checks: list[dict[str, Any]], dead: dict[str, int]
) -> None:
    records = table(merged_by_tick([*acts, *checks]))
    ended = {g: {"tick": tick, "at": moment(tick)} for g, tick in dead.items()}
    selected = pa.Table.from_pylist([{"golem_id": g, **end} for g, end in ended.items()], schema=ENDED_SCHEMA)
    result = outcomes_of(records, selected, POLICY)
    assert result.schema.equals(OUTCOME_SCHEMA)
    rows = records.to_pylist()
    assert result.to_pylist() == outcomes_by_row(rows, ended, POLICY)


@st.composite
def drawn_failures(draw: st.DrawFn) -> pa.Table:
    """Draw failures of a clade and of another owner's golem, with few structures, so that one covers another."""
    rows = []
    for golem in GOLEMS:
        for tick in sorted(draw(st.sets(st.integers(1, 200), max_size=5))):
            when = draw(st.sampled_from([STORM, RALLY, LULL]))
            kind = draw(st.sampled_from([{"status": "reverted"}, {"pnl_ppm": -30_000}, {"slippage_ppm": 10_001}]))
            rows.append(act(golem, tick, when=when, **kind))  # type: ignore[arg-type]
    derived = failures(rows, owners={g: f"owner-{1 + (g == 'g-1')}" for g in GOLEMS})
    sure = pa.array([draw(st.sampled_from([649_999, 650_000])) for _ in range(derived.num_rows)], pa.int64())
    derived = derived.set_column(FAILURE_SCHEMA.get_field_index("confidence_ppm"), "confidence_ppm", sure)
    return derived.take(pa.array(draw(st.permutations(range(derived.num_rows))), pa.int64()))


@settings(max_examples=times(15), deadline=None)
@given(drawn_failures(), st.dictionaries(st.sampled_from(GOLEMS), st.integers(150, 200)))
def test_scars_of_a_clade_equal_their_row_by_row_twin(failure_rows: pa.Table, dead: dict[str, int]) -> None:
    died = deaths(*dead.items())
    by_key = {row["scar_id"]: row for row in scars_of(failure_rows, died, POLICY).to_pylist()}
    last = {row["golem_id"]: row for row in died.to_pylist()}
    wanted = scars_by_row(failure_rows.to_pylist(), last, POLICY)
    assert by_key == {name: {n: row[n] for n in SCAR_SCHEMA.names} for name, row in wanted.items()}


# on disk


def life(golem_id: str, ticks: int, *items: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a life in which these ticks have events."""
    by_key = {row["tick"]: row for row in merged_by_tick(list(items))}
    return [by_key.get(tick) or record(golem_id, tick) for tick in range(1, ticks + 1)]


LIVES = {
    "g-10": (36, act("g-10", 2, pnl_ppm=-5_000), check("g-10", 32, 2, -6_000), act("g-10", 34, pnl_ppm=-4_000)),
    "g-20": (40, act("g-20", 3, status="reverted"), act("g-20", 5, status="reverted", when=RALLY),
             act("g-20", 6, pnl_ppm=-30_000, cause="utilization")),
    "g-1": (33, act("g-1", 1), check("g-1", 31, 1, -6_000)),
}  # fmt: skip
"""A golem that dies at the end of a cycle with an open check, its living sibling, and another owner's golem."""

ROWS = {g: life(g, *steps) for g, steps in LIVES.items()}  # type: ignore[arg-type]
STORIES = {g: Life(g, {}, (0,), moment(1) - moment(0), len(rows)) for g, rows in ROWS.items()}


def derived_rows(stores: DerivationContext) -> dict[str, list[dict[str, Any]]]:
    return {name: stores.projections.read(name).to_pylist() for name in ("failures", "scars")}


SCAR_DERIVATIONS = (derive_curation, derive_failures, derive_scars)
PARCEL = 3
"""Cycles that arrive together."""


def arrive(stores: DerivationContext, parcel: tuple[str, int] | LifeEvent, number: int) -> None:
    if isinstance(parcel, LifeEvent):
        stores.log.record([parcel], NOW)
    else:
        golem_id, cycle = parcel
        rows = ROWS[golem_id][SPAN * cycle : SPAN * (cycle + PARCEL)]
        stores.log.append(full(rows), writer="w", segment=number, recorded_at=NOW)


PARCELS = [(g, cycle) for g, rows in ROWS.items() for cycle in range(0, -(-len(rows) // SPAN), PARCEL)]
DEATHS = [death_of(STORIES["g-10"]), death_of(STORIES["g-1"])]


@pytest.fixture(scope="module")
def orderly(tmp_path_factory: pytest.TempPathFactory) -> DerivationContext:
    """A home in which everything arrived in order, derived once."""
    stores = stores_at(tmp_path_factory.mktemp("scars") / "home")
    stores.log.record([birth_of(value) for value in STORIES.values()], NOW)
    for number, parcel in enumerate([*PARCELS, *DEATHS]):
        arrive(stores, parcel, number)
    for derive in SCAR_DERIVATIONS:
        derive(stores)
    return stores


def test_failures_and_scars_have_recorded_causes(orderly: DerivationContext) -> None:
    result = derived_rows(orderly)
    seen = [(r["scar_id"], r["outcome_class"], r["confirmed"], r["cycle"]) for r in result["failures"]]
    assert seen == [
        ("scar-g-1-1", "lasting", "deferred", 8), ("scar-g-10-1", "lasting", "deferred", 8),
        ("scar-g-10-2", "lasting", "at_death", 9), ("scar-g-20-1", "revert", "immediate", 1),
        ("scar-g-20-2", "revert", "immediate", 2), ("scar-g-20-3", "drawdown", "immediate", 2),
    ]  # fmt: skip
    stained = {r["scar_id"]: r["is_bloodstain"] for r in result["scars"]}
    assert stained == {
        "scar-g-1-1": False, "scar-g-10-1": False, "scar-g-20-1": False, "scar-g-20-2": False, "scar-g-20-3": False,
    }, "a failure confirmed at death repeats an earlier scar of its clade"  # fmt: skip
    ticks = orderly.log.read_cycles(["golem_id", "tick"]).to_pylist()
    known = {(r["golem_id"], r["tick"]) for r in ticks}
    for row in result["failures"]:
        assert {(row["golem_id"], tick) for tick in row["cause_ticks"]} <= known


@some(3)
@given(st.permutations(PARCELS), st.data())
def test_failures_and_scars_are_independent_of_arrival_order(
    orderly: DerivationContext, parcels: list[tuple[str, int]], data: st.DataObject
) -> None:
    arriving: list[tuple[str, int] | LifeEvent] = list(parcels)
    for death in DEATHS:
        arriving.insert(data.draw(st.integers(0, len(arriving))), death)
    with TemporaryDirectory() as folder:
        stores = stores_at(Path(folder) / "home")
        stores.log.record([birth_of(value) for value in STORIES.values()], NOW)
        for number, parcel in enumerate(arriving):
            arrive(stores, parcel, number)
            if data.draw(st.integers(0, 3)) == 0:
                for derive in data.draw(st.permutations(SCAR_DERIVATIONS)):
                    derive(stores)
        for derive in SCAR_DERIVATIONS:
            derive(stores)
        assert derived_rows(stores) == derived_rows(orderly)
        assert not derive_failures(stores), "nothing is new"
        assert not derive_scars(stores)


@pytest.mark.full
@pytest.mark.row("X-4")
def test_striking_an_act_retracts_its_scar_and_promotes_the_next_scar(
    orderly: DerivationContext, tmp_path: Path
) -> None:
    stores = beside(orderly, tmp_path / "beside")
    for derive in SCAR_DERIVATIONS:
        derive(stores)
    strike(stores, "g-10", 2, "its sensor lied", now=NOW)
    for derive in SCAR_DERIVATIONS:
        derive(stores)
    result = derived_rows(stores)
    own_rows = [r for r in result["failures"] if r["golem_id"] == "g-10"]
    assert [(r["scar_id"], r["confirmed"]) for r in own_rows] == [("scar-g-10-1", "at_death")]
    assert {r["scar_id"]: r["is_bloodstain"] for r in result["scars"]}["scar-g-10-1"], (
        "the scar must be the first of its clade"
    )
    assert [remnant for remnant in remains(stores) if remnant.place in ("failures", "scars")] == []
    again = beside(orderly, tmp_path / "again")
    for derive in SCAR_DERIVATIONS:
        derive(again)
    assert derived_rows(again) == result


@pytest.mark.full
@pytest.mark.row("X-4")
def test_the_removal_proof_names_stale_failures_and_scars(orderly: DerivationContext, tmp_path: Path) -> None:
    root = tmp_path / "home"
    shutil.copytree(orderly.home.root, root)
    stores = DerivationContext.open(root, policy=orderly.policy)
    old = {name: stores.projections.read(name) for name in ("failures", "scars")}
    strike(stores, "g-20", 3, "its sensor lied", now=NOW)
    assert {remnant.place for remnant in remains(stores)} >= {"failures", "scars"}, (
        "rows must remain before the next derivation"
    )
    for derive in SCAR_DERIVATIONS:
        derive(stores)
    lie = old["failures"].filter(pc.equal(old["failures"]["scar_id"], "scar-g-20-1"))
    stores.projections.growing("failures").put(lie, {"liar": 1})
    chosen_rows = [remnant for remnant in remains(stores) if remnant.place == "failures"]
    assert [(remnant.golem_id, remnant.row, remnant.says) for remnant in chosen_rows] == [
        ("g-20", "seq 1", "names tick 3, which is left out")
    ]
    scars_table = stores.projections.replaceable("scars")
    selected = old["scars"].filter(pc.equal(old["scars"]["owner_id"], "owner-1"))
    scars_table.replace(selected, scars_table.buckets(["owner-1"]))
    assert "scars" in {remnant.place for remnant in remains(stores)}


def test_the_confidence_of_failures_is_independent_of_batches(tmp_path: Path) -> None:
    rows = Life("g-20", {STORM: (GOOD,) * 10}, (0,), moment(1) - moment(0), SPAN * 20).rows()
    for tick in (41, 45):
        rows[tick - 1] |= {n: act("g-20", tick)[n] for n in ("actions", "outcome", "regime", "observation")}
        rows[tick + 29]["resolutions"] = check("g-20", tick + 30, tick, -6_000)["resolutions"]
    stores = stores_at(tmp_path / "home")
    stores.log.record([birth_of(Life("g-20", {}, (0,), moment(1) - moment(0), 1))], NOW)
    for number in range(0, len(rows), 2 * SPAN):
        stores.log.append(full(rows[number : number + 2 * SPAN]), writer="w", segment=number, recorded_at=NOW)
        for derive in SCAR_DERIVATIONS:
            derive(stores)
    result = derived_rows(stores)
    assert [r["tick"] for r in result["failures"]] == [41, 45]
    assert all(r["confidence_ppm"] < 650_000 for r in result["failures"]), "its rule is positive about acting"
    assert result["scars"] == []
    again = beside(stores, tmp_path / "again")
    for derive in SCAR_DERIVATIONS:
        derive(again)
    assert derived_rows(again) == result
