"""The warehouse: marts agree with the log, have descriptions and tests, and are replaced atomically."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.derive_thanatopsis import PHASE_WORDS, phases_of
from bardo_pipeline.derivation.incremental.record_queries import last_event_time
from bardo_pipeline.errors import ConfigError, DerivationError, QueryError
from bardo_pipeline.events.experience.stored_text import StoredText
from bardo_pipeline.events.life.bundle_events import KitOrdered
from bardo_pipeline.events.life.events import EVERY_GOLEM, Steered, life_event
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire import entries as vocabulary
from bardo_pipeline.grimoire.confidence import FOREVER_US
from bardo_pipeline.grimoire.entry_columns import confidence_of, half_life_of, micros, with_columns
from bardo_pipeline.katabasis.weighted_consensus import CONSENSUS_SCHEMA
from bardo_pipeline.policy import Policy
from bardo_pipeline.project_files import DBT_PROJECT
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.keys.owner_signing_keys import OwnerKeys
from bardo_pipeline.storage.warehouse.build import WarehouseReport, build_warehouse, query
from tests.conftest import NOW, copy_home
from tests.contract.warehouse.test_dbt_project import described, sources
from tests.support.homes.tool_homes import tool_facts

pytestmark = pytest.mark.full

MARTS = (
    "dim_golem",
    "fct_choices",
    "fct_consensus",
    "fct_deaths",
    "fct_decisions",
    "fct_dreams",
    "fct_dying",
    "fct_episodes",
    "fct_equipped",
    "fct_executions",
    "fct_experiences",
    "fct_knowledge",
    "fct_library",
    "fct_retrievals",
    "fct_scars",
    "fct_strategies",
    "fct_ticks",
    "fct_tier_costs",
    "fct_tier_verdicts",
    "fct_votes",
    "fct_withdrawals",
)
UNCHANGED_NAMES = ("golem_id", "tick", "regime", "tier", "phase", "prediction_error", "primary_emotion", "cycle_seen")
TICK = {
    **{name: name for name in UNCHANGED_NAMES},
    "observed_at": "observed_at", "threshold": "deliberation_threshold", "inference_micros": "cost.inference_micros",
    "gas_micros": "cost.gas_micros", "total_cost_micros": "cost.total_micros",
    "pnl_impact_micros": "outcome.pnl_impact_micros", "vitality": "vitality.composite",
    "credits_micros": "credits_micros",
}  # fmt: skip


@dataclass
class Built:
    """A home with its warehouse. seen: the results of two readers, one opened before the build, one after it."""

    stores: DerivationContext
    report: WarehouseReport
    seen: list[tuple[Any, ...]]

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return query(self.stores.home, sql)[1]

    def table(self, sql: str) -> pa.Table:
        with duckdb.connect(self.stores.home.warehouse, read_only=True) as connection:
            return connection.sql(sql).to_arrow_table()


@pytest.fixture(scope="module")
def built(marts_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    """Return a home with a space and quotes in its path, a month later, with entries of every decay class, and its
    warehouse.
    """
    root = copy_home(marts_home, tmp_path_factory.mktemp("warehouse") / "owner's-home")
    stores = DerivationContext.open(root)
    grimoire = stores.projections.replaceable("grimoire")
    known = grimoire.read()
    grimoire.replace(
        pa.concat_tables([known, of_every_decay(known, 500)]), grimoire.buckets(known["golem_id"].to_pylist())
    )
    steer = Steered(intervention_id="i-1", due_tick=10**6, severity="low", intent="rest")
    stores.log.record([life_event(known["golem_id"][0].as_py(), last_moment(stores) + timedelta(days=30), steer)], NOW)
    told = [life_event(known["golem_id"][0].as_py(), last_moment(stores), fact) for fact in tool_facts()]
    later = life_event(known["golem_id"][0].as_py(), NOW, StoredText(sort="insight", text="Gas doubles at noon."))
    stores.log.record([*told, later], NOW)  # a text carries its caller's clock
    heir = stores.life("KnowledgeReceived").slice(0, 1).to_pylist()[0]
    kits = enumerate((heir["received"]["content_hash"], "nobody-was-born-since"), 1)
    orders = [KitOrdered(owner_id="owner-0", number=i, bundle_hash=h, entry_count=1, why="a try") for i, h in kits]
    stores.log.record([life_event(EVERY_GOLEM, NOW, order) for order in orders], NOW)
    # by the operator's clock, later than every event of the log
    OwnerKeys(stores.home, stores.log).make("owner-1", bytes(32), NOW)
    asked = "select max(as_of), avg(confidence) from fct_knowledge where entry_id not like 'made-%'"
    with duckdb.connect(stores.home.warehouse, read_only=True) as reader:
        report = build_warehouse(stores.home, stores.derivation_id, stores.policy)
        seen = [reader.execute(asked).fetchall()[0], query(stores.home, asked)[1][0]]
    yield Built(stores, report, seen)
    stores.log.close()


def last_moment(stores: DerivationContext) -> datetime:
    """Return the last event time of the log's records and life events."""
    return max(
        pc.max(stores.log.read_cycles(["observed_at"])["observed_at"]).as_py(),
        pc.max(stores.log.life().filter(pc.field("golem_id") != EVERY_GOLEM)["observed_at"]).as_py(),
    )


def of_every_decay(known: pa.Table, count: int) -> pa.Table:
    """Return active entries of these golems with every class, flag, age and number of witnesses that decay depends
    on.
    """
    rng = np.random.default_rng(11)
    rows = known.take(pa.array(rng.integers(0, known.num_rows, count)))
    anchors = pc.min(known["anchor_at"]).cast(pa.int64()).as_py() - rng.integers(0, 40 * 86_400_000_000, count)
    return with_columns(
        rows,
        entry_id=pa.array([f"made-{i:04}" for i in range(count)]),
        status=pa.array(["active"] * count),
        decay_class=pa.array(vocabulary.DECAY_CLASSES).take(pa.array(rng.integers(0, 5, count))),
        is_bloodstain=rng.random(count) < 0.3,
        is_anti_knowledge=rng.random(count) < 0.3,
        confidence_ppm=rng.integers(0, 1_000_001, count),
        evidence_count=rng.integers(0, 60, count),
        own_count=rng.integers(0, 60, count),
        anchor_at=pa.array(anchors).cast(known["anchor_at"].type),
    )


def cycles(stores: DerivationContext) -> pa.Table:
    """The log's records as the columns of fct_ticks."""
    read = stores.log.read_cycles([*TICK.values(), "actions", "outcome"])
    table = pa.table({name: read[path] for name, path in TICK.items()})
    table = table.append_column("has_action", pc.greater(pc.list_value_length(read["actions"]), 0))
    table = table.append_column("has_outcome", pc.is_valid(read["outcome"]))
    return table.sort_by([("golem_id", "ascending"), ("tick", "ascending")])


def plain(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows with times in UTC without a zone, as in the marts."""
    return [
        {k: v.replace(tzinfo=None) if isinstance(v, datetime) else v for k, v in row.items()}
        for row in table.to_pylist()
    ]


# rows of the marts


@pytest.mark.row("EV-5")
def test_fct_ticks_equals_the_log(built: Built) -> None:
    expected = cycles(built.stores)
    assert expected.num_rows > 1_000
    rows = built.table(f"select {', '.join(expected.column_names)} from fct_ticks")
    assert rows.to_pylist() == plain(expected), "the same rows, in the order of their key"
    assert built.report.rows["fct_ticks"] == expected.num_rows


@pytest.mark.row("EV-5", "P-4")
def test_fct_ticks_answers_the_queries_of_the_sql_index(built: Built) -> None:
    ticks = cycles(built.stores)
    rows = plain(ticks)

    def keys_of(chosen: list[dict[str, Any]]) -> list[tuple[str, int]]:
        return [(r["golem_id"], r["tick"]) for r in chosen]

    replay = "select golem_id, tick from fct_ticks where tier in ('T1', 'T2') and regime = '{}' order by all"
    for regime in REGIMES:
        chosen = [r for r in rows if r["tier"] in ("T1", "T2") and r["regime"] == regime]
        assert built.rows(replay.format(regime)) == keys_of(chosen)
    verified = built.rows("select golem_id, tick from fct_ticks where has_action and has_outcome order by all")
    assert verified == keys_of([r for r in rows if r["has_action"] and r["has_outcome"]])
    assert verified, "some action has an outcome"
    phases = dict(built.rows("select phase, count(*) from fct_ticks group by phase"))
    assert phases == {v["values"]: v["counts"] for v in pc.value_counts(ticks["phase"]).to_pylist()}
    golem = rows[0]["golem_id"]
    recent = built.rows(f"select tick from fct_ticks where golem_id = '{golem}' order by tick desc limit 50")
    assert [t for (t,) in recent] == sorted((r["tick"] for r in rows if r["golem_id"] == golem), reverse=True)[:50]


@pytest.mark.row("P-4")
def test_dim_golem_matches_births_records_and_deaths(built: Built) -> None:
    stores = built.stores
    births = {e["golem_id"]: e for e in stores.life("GolemBorn").to_pylist()}
    deaths = {e["golem_id"]: e for e in stores.life("DeathDeclared").to_pylist()}
    received = {e["golem_id"]: e["received"]["entry_count"] for e in stores.life("KnowledgeReceived").to_pylist()}
    left = {e["golem_id"]: e["published"]["bundle_hash"] for e in stores.life("BundlePublished").to_pylist()}
    active = stores.projections.read("grimoire").filter(pc.field("status") == "active")["golem_id"].to_pylist()
    recorded = stores.log.read_cycles(["golem_id"])["golem_id"].to_pylist()
    rows = {r["golem_id"]: r for r in built.table("from dim_golem").to_pylist()}
    assert rows.keys() == births.keys()
    assert {g for g, r in rows.items() if not r["is_alive"]} == deaths.keys()
    for golem_id, row in rows.items():
        born, end = births[golem_id]["born"], deaths.get(golem_id)
        named = ("owner_id", "generation", "lineage_id", "predecessor_id", "bundle_hash", "lifespan_ticks")
        budget = ("credits_micros", "reserve_micros", "capital_micros")
        assert {n: row[n] for n in named + budget} == {n: born[n] for n in named + budget}
        assert {n: row[n] for n in born["traits"]} == born["traits"]
        assert row["ticks_recorded"] == recorded.count(golem_id)
        assert row["ticks_lived"] == (end["died"]["tick"] if end else row["ticks_recorded"])
        assert row["earned_micros"] == (end["died"]["earned_micros"] if end else None)
        assert row["knowledge_at_birth"] == received.get(golem_id, 0)
        assert row["knowledge_at_death"] == (active.count(golem_id) if end else None)
        assert row["bundle_hash_left"] == left.get(golem_id)
        assert row["born_at"].replace(tzinfo=UTC) == births[golem_id]["observed_at"]
    assert any(row["knowledge_at_birth"] for row in rows.values()), "some heir inherited knowledge"


@pytest.mark.row("P-4")
def test_fct_deaths_contains_cause_bundle_and_heir(built: Built) -> None:
    heirs = {e["born"]["predecessor_id"]: e["golem_id"] for e in built.stores.life("GolemBorn").to_pylist()}
    rows = {r["golem_id"]: r for r in built.table("from fct_deaths").to_pylist()}
    deaths = {e["golem_id"]: e for e in built.stores.life("DeathDeclared").to_pylist()}
    assert rows.keys() == deaths.keys()
    for golem_id, row in rows.items():
        died = deaths[golem_id]["died"]
        for name in ("cause", "tick", "phase", "credits_micros", "capital_micros", "earned_micros"):
            assert row[name] == died[name]
        assert row["vitality_stochastic"] == died["vitality"]["stochastic"]
        assert row["hayflick_ratio"] == died["tick"] / row["lifespan_ticks"]
        assert row["successor_id"] == heirs.get(golem_id)
        assert (row["bundle_passed"], row["bundle_entries"] is not None) == (True, True)


@pytest.mark.row("INH-14", "P-4")
def test_fct_deaths_contains_the_divergence_from_the_inheritance(built: Built) -> None:
    rows = {r["golem_id"]: r for r in built.stores.projections.read("testaments").to_pylist()}
    for row in built.table("from fct_deaths").to_pylist():
        own = rows[row["golem_id"]]
        share = own["divergence_ppm"]
        assert row["divergence"] == (None if share is None else share / 1e6)
        assert (row["low_divergence"], row["novel_entries"]) == (own["low_divergence"], own["novel_count"])
        assert (row["invalidated_entries"], row["gaps"]) == (len(own["invalidated"]), own["gap_count"])
        assert (share is None) == (row["knowledge_at_birth"] == 0)


@pytest.mark.row("INH-2", "INH-4", "P-4")
def test_fct_dying_contains_the_cost_of_each_phase_and_the_reserve(built: Built) -> None:
    births = {e["golem_id"]: e["born"] for e in built.stores.life("GolemBorn").to_pylist()}
    rows = built.table("from fct_dying order by golem_id, phase_number").to_pylist()
    for phases in zip(*(rows[i::4] for i in range(4)), strict=True):
        (golem_id,) = {row["golem_id"] for row in phases}
        assert [row["dying_phase"] for row in phases] == list(PHASE_WORDS.values())
        result = phases_of(built.stores, [golem_id])[golem_id]
        assert [row["cost_micros"] for row in phases] == [phase.payload["cost_micros"] for phase in result]
        assert {row["reserve_micros"] for row in phases} == {births[golem_id]["reserve_micros"]}
        assert phases[-1]["left_micros"] == births[golem_id]["reserve_micros"] - result[-1].payload["spent_micros"]
        assert {row["means"] for row in phases} == {result[0].payload["means"]}
        assert phases[2]["cost_micros"] == phases[2]["reflection_micros"] + phases[2]["compression_micros"] > 0
        assert phases[3]["cost_micros"] == phases[3]["upload_micros"] + phases[3]["indexing_micros"] > 0
    assert {row["golem_id"] for row in rows} == set(built.stores.life("LegacyLeft")["golem_id"].to_pylist())


@pytest.mark.row("INH-16", "P-4")
def test_fct_library_equals_the_library_and_fct_equipped_its_orders(built: Built) -> None:
    held = {"confidence_anchor_ppm": "confidence_ppm", "confidence_deposited_ppm": "deposited_ppm"}
    same = (
        "owner_id", "entry_id", "archetype", "kind", "text", "channel", "channels", "golem_ids", "is_bloodstain",
        "validator_count", "refuter_count", "equipped_lineage_count", "is_battle_tested", "is_default", "first_at",
    )  # fmt: skip
    shelved = built.stores.projections.read("library")
    rows = built.table(f"select {', '.join((*held, *same))} from fct_library order by owner_id, entry_id")
    assert rows.to_pylist() == plain(shelved.select([*held.values(), *same]).rename_columns([*held, *same]))
    assert rows.num_rows
    heir = built.stores.life("KnowledgeReceived")["golem_id"][0].as_py()
    equipped = built.rows("select owner_id, number, golem_id, equipped_at is null from fct_equipped order by number")
    assert equipped == [("owner-0", 1, heir, False), ("owner-0", 2, None, True)]


@pytest.mark.row("P-4")
def test_fct_tier_costs_equals_sums_over_the_log(built: Built) -> None:
    ticks = cycles(built.stores)
    tier = pc.if_else(pc.equal(ticks["tier"], "suppress"), "T0", ticks["tier"])
    days = pc.strftime(ticks["observed_at"], format="%Y-%m-%d")
    ticks = ticks.set_column(ticks.schema.get_field_index("tier"), "tier", tier).append_column("day", days)
    costs = ("inference_micros", "gas_micros", "total_cost_micros")
    summed = ticks.group_by(["golem_id", "day", "tier"]).aggregate([("tick", "count"), *((c, "sum") for c in costs)])
    expected = sorted(tuple(r.values()) for r in summed.to_pylist())
    assert expected == built.rows(
        f"select golem_id, day::varchar, tier, ticks, {', '.join(costs)} from fct_tier_costs order by all"
    )
    shares = built.rows("select sum(tick_share) from fct_tier_costs group by golem_id, day")
    assert [s for (s,) in shares] == pytest.approx([1.0] * len(shares))


@pytest.mark.row("P-4")
def test_confidence_decay_in_sql_equals_the_library(built: Built) -> None:
    known = built.stores.projections.read("grimoire")
    known = known.filter(pc.field("status") == "active")
    rows = built.table("from fct_knowledge order by golem_id, entry_id")
    assert rows.select(["golem_id", "entry_id"]).to_pylist() == known.select(["golem_id", "entry_id"]).to_pylist()
    assert set(rows["decay_class"].to_pylist()) == set(vocabulary.DECAY_CLASSES)
    policy = built.stores.policy.decay
    as_of = int(rows["as_of"].cast(pa.int64())[0].as_py())
    expected = confidence_of(known, as_of, policy)
    np.testing.assert_array_equal(rows["confidence_ppm"].to_numpy(), expected)
    assert (expected < known["confidence_ppm"].to_numpy()).any(), "some confidence has decayed"
    assert rows["confidence_anchor_ppm"].to_pylist() == known["confidence_ppm"].to_pylist()
    half_lives = half_life_of(known, policy)
    days = [None if h >= FOREVER_US else h / 86_400_000_000 for h in half_lives.tolist()]
    assert rows["half_life_days"].to_pylist() == [None if d is None else pytest.approx(d) for d in days]
    np.testing.assert_array_equal(micros(rows, "anchor_at"), micros(known, "anchor_at"))


@pytest.mark.row("P-4")
def test_an_effect_has_the_unit_of_its_metric(built: Built) -> None:
    units = dict(built.rows("select distinct metric, effect_unit from fct_knowledge"))
    assert units.items() <= {**vocabulary.METRIC_UNIT, None: "ppm"}.items()
    case = (DBT_PROJECT / "models/marts/fct_knowledge.sql").read_text()
    for metric, unit in vocabulary.METRIC_UNIT.items():
        assert unit == "ppm" or f"when '{metric}' then '{unit}'" in case


@pytest.mark.row("KAT-5", "P-4")
def test_fct_consensus_equals_the_consensus_table(built: Built) -> None:
    names = [n for n in CONSENSUS_SCHEMA.names if n not in ("total_weight_tenths", "variance_ppm2")]
    counted = built.stores.projections.read("consensus")
    rows = built.table(f"select {', '.join(names)} from fct_consensus order by proposition_id")
    assert rows.to_pylist() == plain(counted.select(names))
    assert rows.num_rows
    assert pc.sum(rows["death_vote_count"]).as_py(), "death votes are counted"
    weights = [w / 10 for w in counted["total_weight_tenths"].to_pylist()]
    assert [w for (w,) in built.rows("select total_weight from fct_consensus order by proposition_id")] == weights


@pytest.mark.row("P-4")
def test_the_as_of_of_every_mart_is_the_last_event_time(built: Built) -> None:
    last = last_moment(built.stores)
    assert built.report.as_of == last == last_event_time(built.stores)
    for mart in MARTS:
        # nothing was withdrawn here, no failure made a scar, no runtime reported, and the gate does not learn
        is_empty = mart in ("fct_withdrawals", "fct_scars", "fct_experiences", "fct_tier_verdicts")
        rows = [] if is_empty else [(last.replace(tzinfo=None),)]
        assert built.rows(f"select distinct as_of from {mart}") == rows


# documentation


@pytest.mark.row("P-4")
def test_every_mart_column_is_described_in_the_project_and_in_the_file(built: Built) -> None:
    models = described()
    assert {m["name"] for m in models} == set(MARTS) == built.report.rows.keys()
    for model in models:
        rows = built.rows(
            "select column_name, lower(data_type), comment, is_nullable from duckdb_columns() "
            f"where table_name = '{model['name']}' and database_name = 'warehouse' order by column_index"
        )
        assert rows == [
            (c["name"], c["data_type"], c["description"], {"type": "not_null"} not in c.get("constraints", []))
            for c in model["columns"]
        ], "the file has the not-null constraints of the project"
        assert all(comment.strip() for _, _, comment, _ in rows)
        assert built.rows(f"select comment from duckdb_tables() where table_name = '{model['name']}'") == [
            (model["description"],)
        ]
    staging = yaml.safe_load((DBT_PROJECT / "models/staging/schema.yml").read_text())["models"]
    assert {m["name"] for m in staging} == {p.stem for p in (DBT_PROJECT / "models/staging").glob("*.sql")}
    assert all(m["name"].startswith("stg_") and m["description"] for m in staging)


# atomic replacement of the file


@pytest.mark.row("P-4")
def test_the_warehouse_file_needs_no_other_file(built: Built, tmp_path: Path) -> None:
    alone = tmp_path / "elsewhere.duckdb"
    shutil.copy(built.stores.home.warehouse, alone)
    with duckdb.connect(alone, read_only=True, config={"enable_external_access": False}) as connection:
        for mart in MARTS:
            assert connection.sql(f"from {mart}").to_arrow_table().num_rows == built.report.rows[mart]
        assert connection.execute("select count(*) from duckdb_views() where not internal").fetchall() == [(0,)]
    content = alone.read_bytes()
    assert b".parquet" not in content
    assert str(built.stores.home.root).encode() not in content
    assert not list(built.stores.home.root.glob("warehouse.d*[!b]")), "no draft is left"


@pytest.mark.row("P-4")
def test_a_build_replaces_the_file_while_open_readers_keep_the_old_file(built: Built, marts_home: Path) -> None:
    before = last_moment(DerivationContext.open(marts_home))
    assert built.report.as_of == before + timedelta(days=30)
    old, new = built.seen
    assert old[0].replace(tzinfo=UTC) == before, "an open reader keeps the old file"
    assert new[0].replace(tzinfo=UTC) == built.report.as_of, "a new reader opens the new file"
    assert new[1] < old[1], "confidence is lower a month later"


@pytest.mark.row("P-4")
def test_a_failed_dbt_test_leaves_the_warehouse_unchanged(built: Built, tmp_path: Path) -> None:
    root = tmp_path / "home"
    shutil.copytree(built.stores.home.root, root, symlinks=True)
    stores = DerivationContext.open(root)
    grimoire = stores.projections.replaceable("grimoire")
    known = grimoire.read()
    buckets = grimoire.buckets(known["golem_id"].to_pylist())
    before = stores.home.warehouse.read_bytes()
    doubled = known.filter(pc.field("status") == "active").slice(0, 1)
    grimoire.replace(pa.concat_tables([known, doubled]), buckets)
    with pytest.raises(DerivationError, match="unique_together_fct_knowledge") as failed:
        build_warehouse(stores.home, stores.derivation_id, stores.policy)
    assert doubled["entry_id"][0].as_py() in str(failed.value), "the message shows the row"
    assert stores.home.warehouse.read_bytes() == before
    assert not list(root.glob("warehouse.draft*"))


@pytest.mark.full
@pytest.mark.row("P-4", "X-4")
def test_a_draft_that_a_killed_builds_dbt_still_writes_to_stops_no_build(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = DerivationContext.open(Path(shutil.copytree(built.stores.home.root, tmp_path / "home", symlinks=True)))
    left = stores.home.root / "warehouse.draft-of-a-killed-build"
    left.mkdir()
    (left / stores.home.warehouse.name).write_bytes(b"half a database")
    monkeypatch.setattr("bardo_pipeline.storage.warehouse.build.shutil.rmtree", lambda *_, **__: None)
    assert build_warehouse(stores.home, stores.derivation_id, stores.policy).rows == built.report.rows
    monkeypatch.undo()
    build_warehouse(stores.home, stores.derivation_id, stores.policy)
    assert not list(stores.home.root.glob("warehouse.draft*"))


@pytest.mark.row("P-4")
def test_a_wrong_amount_in_dollars_fails_the_build(built: Built, tmp_path: Path) -> None:
    project = tmp_path / "dbt"
    shutil.copytree(DBT_PROJECT, project)
    mart = project / "models/marts/fct_dying.sql"
    right, wrong = "{{ usd('cost_micros') }}", "cost_micros / 1e5"
    assert mart.read_text().count(right) == 1
    mart.write_text(mart.read_text().replace(right, wrong))
    with pytest.raises(DerivationError, match=r"(?s)dollars_fct_dying.*cost_usd"):
        build_warehouse(built.stores.home, built.stores.derivation_id, project=project)


def test_a_dbt_parse_error_is_raised_with_its_message(built: Built, tmp_path: Path) -> None:
    project = tmp_path / "dbt"
    shutil.copytree(DBT_PROJECT, project)
    (project / "models/marts/fct_ticks.sql").write_text("select * from {{ ref('nobody_made_this') }}")
    before = built.stores.home.warehouse.read_bytes()
    with pytest.raises(DerivationError, match="nobody_made_this"):
        build_warehouse(built.stores.home, built.stores.derivation_id, project=project)
    assert built.stores.home.warehouse.read_bytes() == before


def test_a_build_without_the_dbt_project_is_refused(built: Built, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="install the project again"):
        build_warehouse(built.stores.home, built.stores.derivation_id, project=tmp_path)


# queries


@pytest.mark.row("P-4")
def test_a_query_gives_names_and_rows_up_to_a_limit(built: Built) -> None:
    names, rows = query(built.stores.home, "select tick, tier from fct_ticks order by golem_id, tick", 3)
    assert names == ["tick", "tier"]
    assert [tick for tick, _ in rows] == [1, 2, 3]
    assert query(built.stores.home, "select 1 as one where false") == (["one"], [])


@pytest.mark.row("P-4")
@pytest.mark.parametrize(
    ("sql", "text"),
    [
        (
            "from fct_tocks",
            r"(?s)fct_tocks.*The tables are dim_golem, fct_choices, fct_consensus, fct_deaths, fct_decisions, fct",
        ),
        ("select tack from fct_ticks", "tack"),
        ("selekt 1", "syntax error"),
        (" -- nothing", "the query is empty"),
        ("delete from fct_ticks", "read-only"),
        ("create table mine as select 1", "read-only"),
        ("copy fct_ticks to 'ticks.csv'", "disabled by configuration"),
        ("from read_csv('/etc/hostname')", "disabled by configuration"),
        ("from names", "names does not exist"),
    ],
)
def test_an_invalid_query_is_refused_with_its_reason(built: Built, sql: str, text: str) -> None:
    before = built.stores.home.warehouse.read_bytes()
    with pytest.raises(QueryError, match=text):
        query(built.stores.home, sql)
    assert built.stores.home.warehouse.read_bytes() == before


@pytest.mark.row("P-4")
def test_a_query_without_a_warehouse_names_the_command_that_builds_it(tmp_path: Path) -> None:
    home = Home.create(tmp_path, Policy(), NOW)
    with pytest.raises(QueryError, match=r"no warehouse in .* yet: `bardo derive` builds it"):
        query(home, "from dim_golem")
    home.warehouse.write_bytes(b"not a database")
    with pytest.raises(QueryError, match="`bardo derive` builds it again"):
        query(home, "from dim_golem")


def test_all_models_of_a_build_see_one_version_of_the_log(built: Built, tmp_path: Path) -> None:
    root = tmp_path / "home"
    shutil.copytree(built.stores.home.root, root, symlinks=True)
    stores = DerivationContext.open(root)
    plugin = sources(home=str(root), derivation=stores.derivation_id)
    counted = "select count(*) from home.raw.log_life"
    with duckdb.connect() as first:
        plugin.configure_connection(first)
        before = first.execute(counted).fetchall()
    golem = stores.life("GolemBorn")["golem_id"][0].as_py()
    steer = Steered(intervention_id="i-2", due_tick=10**6, severity="low", intent="rest")
    stores.log.record([life_event(golem, NOW, steer)], NOW)
    with duckdb.connect() as second, duckdb.connect() as other:
        plugin.configure_connection(second)
        assert second.execute(counted).fetchall() == before, "dbt may connect again in the middle of a build"
        sources(home=str(root)).configure_connection(other)
        assert other.execute(counted).fetchall() == [(before[0][0] + 1,)]
