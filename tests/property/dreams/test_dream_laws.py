"""Laws of dreams over whole lives: batch sizes, order and strikes do not matter, and the reports are correct."""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation import record_overrides
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.curation.record_overrides import grimoire_of
from bardo_pipeline.derivation.dreams.derive_dreams import DREAM_TABLES, derive_dreams
from bardo_pipeline.derivation.memory import ask
from bardo_pipeline.derivation.memory.search import search
from bardo_pipeline.derivation.repair.removal_proof import remains
from bardo_pipeline.derivation.reports.lineage import lineage_of
from bardo_pipeline.derivation.strikes_and_reorgs import reorg, strike
from bardo_pipeline.dreams import counterfactual_simulation as im
from bardo_pipeline.dreams import recorded_market as walks
from bardo_pipeline.errors import OverrideError
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, GAS_BANDS
from bardo_pipeline.policy import Policy
from tests.conftest import NOW
from tests.property.derivation.test_laws import beside, counting_reads, stores_at
from tests.reference import dreams as twin
from tests.support.example_count import some
from tests.support.fleets.memory_fleets import Lived
from tests.support.homes.dreaming_homes import births_of, home_of, long_lives, tagged, without_positions
from tests.unit.curator.test_choice_rules import advice, lived_with

POLICY = Policy()
HURRY = {"every_hours": 2.0, "confirm_days": 0.7, "expire_days": 0.9, "witnesses_min": 2, "interval_z": 1.0}
BANDS = {"anomaly_edges": (0.01, 0.02, 0.03, 0.9), "gas_edges": (0.001, 1_000.0)}
HASTY = POLICY.model_copy(
    update={
        "dreams": POLICY.dreams.model_copy(update=HURRY),
        "curator": POLICY.curator.model_copy(update=BANDS),
    }
)
"""Dreams every two hours, broad bands, hypotheses that expire and are confirmed soon: three days have all results."""
SHARING = POLICY.dreams.model_copy(update={"clade_confidence": 0.1})

pytestmark = pytest.mark.row("MEM-16", "MEM-23")


@cache
def day() -> Lived:
    """Three days of two golems of one owner, with some tagged episodes."""
    lived = long_lives(4_000, golems=2)
    births = {golem_id: birth.model_copy(update={"owner_id": "owner-1"}) for golem_id, birth in lived.births.items()}
    return Lived(tagged(lived.records, [60, 777, 1_203]), births, lived.deaths)


LEARNED = (*DREAM_TABLES, "lessons")


def dreamt(stores: DerivationContext) -> dict[str, tuple[int, str]]:
    by_key = {name: stores.projections.digest(name) for name in LEARNED}
    return {name: (d.rows, d.fingerprint) for name, d in by_key.items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> DerivationContext:
    """A home with these days, derived in one run. Read-only."""
    stores = home_of(day(), tmp_path_factory.mktemp("dreams") / "whole", HASTY)
    derive_curation(stores)
    derive_dreams(stores)
    rows = set(stores.projections.read("hypotheses")["operation"].to_pylist())
    assert rows >= {"imagined", "staged", "gathered", "confirmed", "expired"}
    assert "active" in stores.projections.read("lessons")["status"].to_pylist()
    return stores


@pytest.mark.full
@some(2)
@given(st.data())
def test_dreams_are_independent_of_batches_and_order(whole: DerivationContext, data: st.DataObject) -> None:
    lived = day()
    cuts = {g: sorted(data.draw(st.sets(st.integers(1, 3_500), max_size=3))) for g in lived.births}
    parts = [
        lived.of(g).filter((pc.field("tick") > first) & (pc.field("tick") <= last))
        for g, at in cuts.items()
        for first, last in pairwise([0, *at, 10**6])
    ]
    with TemporaryDirectory() as folder:
        stores = stores_at(Path(folder), HASTY)
        stores.log.record(births_of(lived), NOW)
        for segment, part in enumerate(data.draw(st.permutations(parts))):
            stores.log.append(part, writer="w", segment=segment, recorded_at=NOW)
            for derive in data.draw(st.lists(st.sampled_from((derive_curation, derive_dreams)), max_size=3)):
                derive(stores)
        derive_curation(stores)
        derive_dreams(stores)
        assert dreamt(stores) == dreamt(whole)


def test_dreams_rebuilt_from_the_log_are_equal(whole: DerivationContext, tmp_path: Path) -> None:
    again = beside(whole, tmp_path / "beside")
    derive_curation(again)
    derive_dreams(again)
    assert dreamt(again) == dreamt(whole)
    assert derive_dreams(again) == [], "nothing is new"


def lessons_by_golem(stores: DerivationContext) -> set[tuple[str, str]]:
    known = stores.projections.read("lessons")
    return set(zip(known["golem_id"].to_pylist(), known["entry_id"].to_pylist(), strict=True))


@pytest.mark.full
@pytest.mark.row("X-4")
def test_a_late_strike_removes_dreams_and_lessons_of_struck_records(tmp_path: Path) -> None:
    stores = home_of(day(), tmp_path / "home", HASTY)
    derive_curation(stores)
    derive_dreams(stores)
    before, learned = dreamt(stores), lessons_by_golem(stores)
    first, second = sorted(day().births)
    rows = stores.projections.growing("hypotheses").read(golems=[first])
    confirming = rows.filter(pc.equal(rows["operation"], "confirmed"))["cause_ticks"].to_pylist()
    for cause in min(confirming, key=len):
        strike(stores, first, cause, "its sensor lied", now=NOW)
    reorg(stores, second, day().records["observation"][0]["chain"].as_py(), ticks=(400, 460), now=NOW)
    derive_curation(stores)
    assert {remnant.place for remnant in remains(stores)} >= set(LEARNED), "the dreams are not derived again yet"
    derive_dreams(stores)
    assert not {remnant.place for remnant in remains(stores)} & set(LEARNED)
    again = beside(stores, tmp_path / "beside")
    derive_curation(again)
    derive_dreams(again)
    assert dreamt(stores) == dreamt(again)
    assert all(now != then for now, then in zip(dreamt(stores).values(), before.values(), strict=True))
    lost = learned - lessons_by_golem(stores)
    assert lost
    for golem_id, entry_id in lost:
        (held,) = lineage_of(stores, entry_id, now=NOW)
        assert (held.golem_id, held.status) == (golem_id, "withdrawn")
        assert "created" in [decision["operation"] for decision in held.decisions]
        assert held.because


@pytest.mark.full
@pytest.mark.row("P-2")
def test_a_dream_reads_only_records_since_the_last_dream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: DerivationContext
) -> None:
    lived, stores = day(), stores_at(tmp_path / "home", HASTY)
    stores.log.record(births_of(lived), NOW)
    for segment, (first, last) in enumerate(pairwise((0, 1_550, 1_700, 1_850, 10_000))):
        part = lived.records.filter((pc.field("tick") > first) & (pc.field("tick") <= last))
        stores.log.append(part, writer="w", segment=segment, recorded_at=NOW)
        derive_curation(stores)
        with counting_reads(monkeypatch) as read:
            by_key = {table.table: table.rows_written for table in derive_dreams(stores)}
        if first:
            assert all(by_key[name] for name in (LEARNED if last < 10_000 else DREAM_TABLES))
            assert read["dreams", "files"] == 0
            assert read["hypotheses", "rows"] == by_key["hypotheses"]
            assert read["curation", "files"] <= 2, "those of the last dream, and of this one"
    assert dreamt(stores) == dreamt(whole)


def test_dreams_and_hypotheses_cite_only_existing_earlier_ticks(whole: DerivationContext) -> None:
    known = {g: set(day().of(g)["tick"].to_pylist()) for g in day().births}
    ends = {(r["golem_id"], r["cycle"]): r["tick"] for r in whole.projections.read("dreams").to_pylist()}
    for row in whole.projections.read("dreams").to_pylist():
        ticks = [item["tick"] for item in row["replayed"]]
        assert set(ticks) <= known[row["golem_id"]]
        assert row["tick"] - POLICY.dreams.lookback_ticks < min(ticks)
        assert max(ticks) <= row["tick"]
        assert len(ticks) + len(row["scars"]) <= row["replay_budget"] == 60
        assert row["branch_count"] <= row["counterfactual_budget"] == 40
    for row in whole.projections.read("hypotheses").to_pylist():
        assert set(row["cause_ticks"]) <= known[row["golem_id"]]
        assert max(row["cause_ticks"], default=0) <= ends[row["golem_id"], row["cycle"]]
        assert row["cause_ticks"] or row["operation"] in ("expired", "faded", "pushed")


# law 8: the twin


def situated(record: dict, policy: Policy) -> dict[str, str]:
    """Return the situation of a record as an entry's structure has it."""
    seen, rules = record["observation"], policy.curator
    anomaly = sum(seen["anomaly_score"] >= edge for edge in rules.anomaly_edges)
    gas = sum(seen["gas_hour_ratio"] >= edge for edge in rules.gas_edges)
    return {"regime": record["regime"], "anomaly_band": ANOMALY_BANDS[anomaly], "gas_band": GAS_BANDS[gas]}


def test_salience_and_arousal_of_replayed_ticks_equal_the_twin(
    whole: DerivationContext,
) -> None:
    golem_id = sorted(day().births)[0]
    records = {row["tick"]: row for row in day().of(golem_id).to_pylist()}
    decided = whole.projections.growing("curation").read(golems=[golem_id]).to_pylist()
    decided.sort(key=lambda row: (row["cycle"], row["seq"]))
    seen: dict[int, int] = {}
    novelties = set()
    for dream in sorted(
        whole.projections.growing("dreams").read(golems=[golem_id]).to_pylist(), key=lambda d: d["cycle"]
    ):
        vitality = records[dream["tick"]]["vitality"]["composite"]
        assert dream["mortality_pressure_ppm"] == round((1 - vitality) * 1_000_000)
        newest = {row["structure"]: row for row in decided if row["cycle"] <= dream["cycle"]}
        known = [row for row in newest.values() if row["status"] == "active"]
        for item in dream["replayed"]:
            record = records[item["tick"]]
            arousal = record["pad_after"]["arousal"]
            for _ in range(seen.get(item["tick"], 0)):
                arousal = twin.eased(arousal)
            here = situated(record, HASTY)
            novelty = 1 - max((twin.likeness(here, row, HASTY) for row in known), default=0.0)
            novelties.add(round(novelty, 3))
            asked = twin.salience(arousal, record["pad_after"]["pleasure"], dream["tick"] - item["tick"], novelty)
            assert item["salience_ppm"] == pytest.approx(asked * 1_000_000, abs=1)
            assert item["arousal_before_ppm"] == pytest.approx(arousal * 1_000_000, abs=1)
            assert item["arousal_after_ppm"] == pytest.approx(twin.eased(arousal) * 1_000_000, abs=1)
            seen[item["tick"]] = seen.get(item["tick"], 0) + 1
    assert max(seen.values()) > 1
    assert len(novelties) > 2, "all replayed ticks were equally novel"


def test_effects_of_imagined_changes_equal_the_twin() -> None:
    lived = day()
    ids = sorted(lived.births)
    golem = np.array([ids.index(g) for g in lived.records["golem_id"].to_pylist()])
    market = walks.recorded_market(lived.records, golem, POLICY)
    judged = im.decisions_of(lived.records, market, POLICY)
    half = np.array([lived.births[g].traits.range_half_width_ticks for g in ids])[golem[judged.row]]
    world = (np.full(judged.count, 500.0), np.full(judged.count, 650_000.0))
    result = im.simulate_changes(market, judged, half_width=half, fee_ppm=world[0], native=world[1], policy=POLICY)
    effects: dict[tuple[str, int], dict[str, int]] = {}
    for decision, change, effect in zip(result.decision, result.change, result.effect_ppm, strict=True):
        key = (ids[golem[judged.row[decision]]], int(market.tick[judged.row[decision]]))
        effects.setdefault(key, {})[im.CHANGES[change]] = int(effect)
    wanted = {}
    for golem_id in ids:
        width = lived.births[golem_id].traits.range_half_width_ticks
        for trial, verdict in twin.decisions(lived.of(golem_id).to_pylist(), POLICY):
            expected = twin.imagine(trial, verdict, (500, 650_000), width, POLICY)
            if expected:
                wanted[golem_id, trial[0]["tick"]] = expected
    assert len(wanted) > 20
    assert effects.keys() == wanted.keys()
    for key, expected in wanted.items():
        assert effects[key].keys() == expected.keys(), key
        assert all(abs(effects[key][name] - value) <= 1 for name, value in expected.items()), (
            key,
            effects[key],
            expected,
        )
    assert {name for expected in wanted.values() for name in expected} == set(im.CHANGES)


def test_a_lesson_is_asked_searched_listed_and_shared_above_the_clade_threshold(
    whole: DerivationContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = whole.projections.read("lessons")
    (first, *_) = known.filter(pc.equal(known["status"], "active")).to_pylist()
    golem, entry, at = first["golem_id"], first["entry_id"], first["created_at"]
    sibling = next(g for g in day().births if g != golem)

    def answered(asked_of: str, **fields: object) -> set[str]:
        where = ask.golem_moment(whole, asked_of, at=fields.pop("at", None)).in_regime(first["regime"])
        result = ask.ask(whole, where, first["text"], now=NOW, k=500, **fields)
        return set(result.hits["entry_id"].to_pylist())

    assert entry in answered(golem)
    assert entry in answered(golem, at=at)
    assert entry not in answered(golem, at=at - timedelta(seconds=1)), "not confirmed before its creation"
    assert entry in {row.id for row in search(whole, first["text"], golem_id=golem, now=NOW, limit=50)}
    assert entry in grimoire_of(whole, golem).entries["entry_id"].to_pylist()
    others = whole.projections.replaceable("lessons").read(only=[sibling])["entry_id"].to_pylist()
    assert entry not in others
    assert entry not in answered(sibling)
    assert first["confidence_ppm"] < 500_000
    assert entry not in answered(sibling, clade=True), "not sure enough for others"
    monkeypatch.setattr(whole, "policy", whole.policy.model_copy(update={"dreams": SHARING}))
    assert entry in answered(sibling, clade=True)


def test_the_lineage_of_a_lesson_leads_to_recorded_failures_and_outcomes(whole: DerivationContext) -> None:
    known = whole.projections.read("lessons")
    for row in known.to_pylist():
        (held,) = lineage_of(whole, row["entry_id"], now=NOW)
        operations = [d["operation"] for d in held.decisions]
        assert (held.golem_id, held.status) == (row["golem_id"], row["status"])
        assert "staged" in operations[: operations.index("created")]
        begun = max(i for i, operation in enumerate(operations) if operation == "created")
        causes = {tick for d in held.decisions[: begun + 1] for tick in d["cause_ticks"]}
        judged = [e for tick in held.ticks if tick.tick in causes for e in tick.effects_ppm]
        assert causes <= {tick.tick for tick in held.ticks}
        assert len(judged) >= 2 * HASTY.dreams.witnesses_min, "the witnesses, and the decisions that confirmed"


def test_a_golem_with_sealed_positions_learns_no_lessons(tmp_path: Path) -> None:
    lived = day()
    bare = Lived(without_positions(lived.records), lived.births, lived.deaths)
    stores = home_of(bare, tmp_path / "home", HASTY)
    derive_curation(stores)
    derive_dreams(stores)
    rows = {name: count for name, (count, _) in dreamt(stores).items()}
    assert rows["dreams"]
    assert rows["hypotheses"] == rows["lessons"] == 0


@pytest.mark.full
@pytest.mark.row("X-8")
def test_a_retracted_lesson_stays_retracted_after_a_rebuild(tmp_path: Path) -> None:
    lived, stores = day(), stores_at(tmp_path / "home", HASTY)
    stores.log.record(births_of(lived), NOW)
    ends = (0, 2_800, 2_850, 10_000)  # the cycle between has no results of hypotheses
    for segment, (first, last) in enumerate(pairwise(ends)):
        part = lived.records.filter((pc.field("tick") > first) & (pc.field("tick") <= last))
        stores.log.append(part, writer="w", segment=segment, recorded_at=NOW)
        derive_curation(stores)
        derive_dreams(stores)
        if not first:
            known = stores.projections.read("lessons")
            (item, *_) = known.filter(pc.equal(known["status"], "active")).to_pylist()
            with pytest.raises(OverrideError, match="only outcomes correct it"):
                record_overrides.correct(stores, item["golem_id"], item["entry_id"], "no", now=NOW, confidence=0.9)
            answer = record_overrides.retract(
                stores, item["golem_id"], item["entry_id"], "I do not believe it", now=NOW
            )
            assert answer.event_id
        rows = stores.projections.read("lessons").to_pylist()
        now = {row["entry_id"]: row["status"] for row in rows}[item["entry_id"]]
        assert now == ("retracted" if first else "active"), "from the close of that cycle on"
    again = beside(stores, tmp_path / "beside")
    derive_curation(again)
    derive_dreams(again)
    assert dreamt(again) == dreamt(stores)
    assert derive_dreams(stores) == [], "nothing is new"


# which decisions count


def test_decisions_with_missing_records_are_not_imagined() -> None:
    lived = day()
    golem_id = sorted(lived.births)[0]
    records = lived.of(golem_id)
    golem = np.zeros(records.num_rows, np.int64)
    judged = im.decisions_of(records, walks.recorded_market(records, golem, POLICY), POLICY)
    row = int(judged.row[0]) + 7
    fewer = pa.concat_tables([records.slice(0, row), records.slice(row + 1)]).combine_chunks()
    left = im.decisions_of(fewer, walks.recorded_market(fewer, golem[1:], POLICY), POLICY)
    gone = [r for r in judged.row.tolist() if r <= row <= r + POLICY.prediction.check_ticks]
    assert judged.count - left.count == len(gone) > 0


def test_a_verdict_that_is_not_reproduced_is_not_imagined() -> None:
    lived = day()
    golem_id = sorted(lived.births)[0]
    rows = lived.of(golem_id).to_pylist()
    first = next(row for row in rows if row["resolutions"])
    first["resolutions"][0]["effect_ppm"] += POLICY.dreams.reproduced_ppm + 2
    records = pa.Table.from_pylist(rows, schema=lived.records.schema)
    market = walks.recorded_market(records, np.zeros(len(rows), np.int64), POLICY)
    judged = im.decisions_of(records, market, POLICY)
    half = np.full(judged.count, lived.births[golem_id].traits.range_half_width_ticks)
    world = {"fee_ppm": np.full(judged.count, 500.0), "native": np.full(judged.count, 650_000.0)}
    result = im.simulate_changes(market, judged, half_width=half, **world, policy=POLICY)
    assert result.unlike.tolist() == [0]
    assert 0 not in result.decision.tolist()
    assert set(range(1, judged.count)) >= set(result.decision.tolist()) != set()


@pytest.mark.row("HB-24")
def test_decisions_with_a_learned_half_width_are_reproduced_by_it() -> None:
    lived = lived_with(advice("range_400"))
    records = lived.records.filter(pa.compute.equal(lived.records["golem_id"], sorted(lived.births)[0]))
    market = walks.recorded_market(records, np.zeros(len(records), np.int64), POLICY)
    judged = im.decisions_of(records, market, POLICY)
    assert judged.count
    half = np.full(judged.count, 90)  # their trait
    world = {"fee_ppm": np.full(judged.count, 500.0), "native": np.full(judged.count, 650_000.0)}
    result = im.simulate_changes(market, judged, half_width=half, **world, policy=POLICY)
    assert len(result.unlike) == 0
    other = POLICY.model_copy(update={"playbook": POLICY.playbook.model_copy(update={"width_ladder_ticks": (160,)})})
    assert len(im.simulate_changes(market, judged, half_width=half, **world, policy=other).unlike)


def test_only_failures_stage_a_hypothesis_and_all_later_decisions_count(whole: DerivationContext) -> None:
    failed = {
        (row["golem_id"], item["decision_tick"]): item["effect_ppm"] != 0
        and (item["effect_ppm"] > 0) == (item["chosen"] == "hold")
        for row in day().records.to_pylist()
        for item in row["resolutions"]
    }
    fields: dict[str, list[bool]] = {"witnesses": [], "lived": []}
    for row in whole.projections.read("hypotheses").to_pylist():
        ticks = set(row["cause_ticks"])
        decided = [t for t in ticks if t + 30 in ticks and (row["golem_id"], t) in failed]
        side = "witnesses" if row["operation"] in ("imagined", "staged") else "lived"
        fields[side] += [failed[row["golem_id"], t] for t in decided]
    assert fields["witnesses"]
    assert all(fields["witnesses"])
    assert {True, False} == set(fields["lived"])
