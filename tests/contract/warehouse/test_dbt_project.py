"""The dbt project: every name in it resolves, every mart has a key, and its sources are tables of a home."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import duckdb
import pyarrow as pa
import pytest
import yaml
from jinja2 import Template

from bardo_pipeline.curator.episodes import IMPORTANCE_TIERS
from bardo_pipeline.derivation.death.derive_thanatopsis import PHASE_WORDS
from bardo_pipeline.dreams.replay_selection import BEGAN_BY
from bardo_pipeline.errors import BardoError, ConfigError, NoHomeError
from bardo_pipeline.events.experience.stored_text import SORTS, StoredText
from bardo_pipeline.events.life.events import FREQUENT, Steered, life_event
from bardo_pipeline.events.life.retractions import WITHDRAWALS
from bardo_pipeline.events.life.thanatopsis_events import Accepted, Cause
from bardo_pipeline.events.life.tool_events import ToolCalled
from bardo_pipeline.events.record.model import EMOTIONS, PHASES, REGIMES, TIERS, Trial
from bardo_pipeline.grimoire import entries as vocabulary
from bardo_pipeline.grimoire.gas_bands import GAS_SPANS
from bardo_pipeline.heartbeat.refusals import STATUS
from bardo_pipeline.inheritance.library.deposits import CHANNELS
from bardo_pipeline.katabasis.action_outcomes import CONFIRMATIONS
from bardo_pipeline.katabasis.scar_rules import SCAR_REGIMES
from bardo_pipeline.katabasis.scar_text import MECHANISMS, UNEXPLAINED
from bardo_pipeline.policy import DecayPolicy, Policy
from bardo_pipeline.project_files import DBT_PROJECT
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal.event_writer import EventWriter
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.log.protocol import CYCLES_SCHEMA, LIFE_LOG_SCHEMA
from bardo_pipeline.storage.projections.projections import HIDDEN
from bardo_pipeline.storage.warehouse import kept_rows
from bardo_pipeline.storage.warehouse.build import dbt_environment
from bardo_pipeline.storage.warehouse.dbt_plugin import Plugin
from bardo_pipeline.storage.warehouse.dbt_process import run_dbt
from bardo_pipeline.storage.warehouse.derived_sources import DERIVED
from tests.conftest import NOW
from tests.crash.roles import line_of

FAILED = ("revert", "slippage", "drawdown", "lasting")
"""Classes of the outcomes that are failures (bardo_pipeline/katabasis/action_outcomes.py)."""


def model_test(model: dict[str, Any], name: str) -> Any:
    """Return the columns that a test of the model is about; none if the model has no such test."""
    tests = [test[name] for test in model["data_tests"] if isinstance(test, dict) and name in test]
    return tests[0]["arguments"]["columns"] if tests else {}


def described() -> list[dict[str, Any]]:
    return list(yaml.safe_load((DBT_PROJECT / "models/marts/schema.yml").read_text())["models"])


# descriptions of the models


@pytest.mark.row("P-4")
def test_the_words_of_a_column_equal_the_vocabularies_of_the_library() -> None:
    words = {
        "regime": REGIMES, "phase": PHASES, "primary_emotion": EMOTIONS, "cause": get_args(Cause),
        "kind": vocabulary.ENTRY_KINDS, "source": vocabulary.SOURCES, "category": vocabulary.CATEGORIES,
        "domain": vocabulary.DOMAINS, "anomaly_band": vocabulary.ANOMALY_BANDS, "gas_band": GAS_SPANS,
        "metric": vocabulary.BASELINE_METRICS, "provenance": vocabulary.PROVENANCES,
        "decay_class": vocabulary.DECAY_CLASSES, "effect_unit": vocabulary.METRIC_UNIT.values(),
        "event_kind": WITHDRAWALS, "dying_phase": PHASE_WORDS.values(), "channel": CHANNELS,
        "means": get_args(Accepted.model_fields["means"].annotation), "action_status": STATUS,
        "warning_effect": ("blocked", "heeded", "ignored", "none"), "confirmed": CONFIRMATIONS,
        "outcome_class": FAILED, "mechanism": {*MECHANISMS} - {UNEXPLAINED}, "market_regime": SCAR_REGIMES,
        "position_state": ("open", "closed", "impaired"), "published": ("life", "death"), "began_by": BEGAN_BY,
        "importance_tier": IMPORTANCE_TIERS, "sort": {"record", *SORTS} - {"insight"},
        "verdict": ("right", "missed", "needless"),
        "verdict_reason": ("quiet", "event", "exploration", "gain", "found", "nothing", "harm"),
        **{name: get_args(Trial.model_fields[name].annotation) for name in ("choice", "horizon")},
    }  # fmt: skip
    single_gas_bands = ("fct_choices", "fct_decisions", "fct_scars")
    checked = set()
    for model in described():
        for name, values in model_test(model, "one_of").items():
            if name == "tier":
                assert set(values) == set(TIERS) - ({"suppress"} if model["name"] == "fct_tier_costs" else set())
            elif name == "gas_band" and model["name"] in single_gas_bands:
                assert set(values) == set(vocabulary.GAS_BANDS)
            else:
                assert set(values) == set(words[name]), (model["name"], name)
            checked.add(name)
    assert checked == {*words, "tier"}


def test_every_mart_tests_its_key_for_uniqueness() -> None:
    for model in described():
        key = model_test(model, "unique_together")
        assert key, model["name"]
        columns = {column["name"]: column for column in model["columns"]}
        for name in key:
            assert {"type": "not_null"} in columns[name]["constraints"], (model["name"], name)


@pytest.mark.parametrize(
    ("rows", "wrong"), [("(1, 1), (1, 2)", 0), ("(1, 1), (1, 1)", 1), ("(1, null), (2, null)", 2), ("(null, 1)", 1)]
)
def test_unique_together_fails_on_duplicate_and_null_keys(rows: str, wrong: int) -> None:
    content = (DBT_PROJECT / "tests/generic/unique_together.sql").read_text()
    _, body = content.split("%}", 1)
    query = Template(body.split("{% endtest %}")[0]).render(model=f"(values {rows}) as t(a, b)", columns=["a", "b"])
    with duckdb.connect() as connection:
        assert len(connection.execute(query).fetchall()) == wrong


@pytest.mark.parametrize(("rows", "wrong"), [("('T0'), (null)", 0), ("('T0'), ('T9')", 1)])
def test_one_of_fails_on_values_that_are_not_listed(rows: str, wrong: int) -> None:
    content = (DBT_PROJECT / "tests/generic/one_of.sql").read_text()
    body = Template(content.split("%}", 1)[1].split("{% endtest %}")[0])
    query = body.render(model=f"(values {rows}) as t(tier)", columns={"tier": ["T0", "T1"]})
    with duckdb.connect() as connection:
        assert len(connection.execute(query).fetchall()) == wrong


def test_the_project_sends_no_usage_stats_and_contains_no_local_path() -> None:
    project = yaml.safe_load((DBT_PROJECT / "dbt_project.yml").read_text())
    assert project["flags"]["send_anonymous_usage_stats"] is False
    assert not list(DBT_PROJECT.rglob("__init__.py")), "it would shadow the dbt package"
    profile = yaml.safe_load((DBT_PROJECT / "profiles.yml").read_text())["bardo"]["outputs"]["home"]
    assert "env_var(" in profile["path"]
    assert profile["plugins"][0]["config"] == {}, "the environment selects the home, so dbt need not parse again"


def test_the_plugin_reads_its_configuration_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home.create(tmp_path, Policy(), NOW)
    monkeypatch.setenv("BARDO_HOME", str(home.root))
    monkeypatch.setenv("BARDO_DERIVATION", "none")
    monkeypatch.setenv("BARDO_POLICY", Policy(decay=DecayPolicy(tactical_days=0.1)).model_dump_json())
    with duckdb.connect() as connection:
        Plugin("home", {}).configure_connection(connection)
        assert connection.execute("select tactical_days from home.raw.policy").fetchall() == [(0.1,)]
        assert connection.execute("select count(*) from home.raw.log_life").fetchall() == [(0,)]


# sources


def sources(**config: str) -> Plugin:
    return Plugin("home", {"derivation": "", "policy": ""} | config)


def test_tables_without_files_are_empty_views_with_their_columns(tmp_path: Path) -> None:
    home = Home.create(tmp_path, Policy(), NOW)
    tables = {name: TABLES[name] for name in DERIVED}
    schemas = {"log_cycles": CYCLES_SCHEMA, "log_life": LIFE_LOG_SCHEMA} | {
        f"derived_{name}": pa.schema([*spec.schema, *(HIDDEN if spec.grows else ())]) for name, spec in tables.items()
    }
    with duckdb.connect() as connection:
        sources(home=str(home.root), derivation="none").configure_connection(connection)
        for name, schema in schemas.items():
            view = connection.sql(f"from home.raw.{name}")
            kinds = connection.from_arrow(schema.empty_table()).types
            assert (view.columns, view.types) == (schema.names, kinds)
            assert view.to_arrow_table().num_rows == 0


@pytest.mark.parametrize(("rows_max", "kind"), [(3, "BASE TABLE"), (2, "VIEW")])
def test_few_fresh_records_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_max: int, kind: str
) -> None:
    monkeypatch.setattr(kept_rows, "_TABLE_ROWS_MAX", rows_max)
    home = Home.create(tmp_path / "home", Policy(), NOW)
    with EventWriter.open(home, "g-1", clock=lambda: NOW, writer="runtime-1") as writer:
        for tick in range(1, 4):
            writer.append(line_of("g-1", tick))
    with duckdb.connect() as connection:
        sources(home=str(home.root), derivation="none").configure_connection(connection)
        kinds = "select table_type from information_schema.tables where table_name = 'fresh_cycles'"
        assert connection.execute(kinds).fetchall() == [(kind,)]
        rows = "from home.raw.{} order by tick"
        fresh = connection.sql(rows.format("fresh_cycles")).to_arrow_table()
        assert fresh.equals(connection.sql(rows.format("log_cycles")).to_arrow_table())
        assert fresh.num_rows == 3


def test_a_home_path_may_contain_spaces_quotes_and_percent_signs(tmp_path: Path) -> None:
    home = Home.create(tmp_path / "my hôme's 5 %", Policy(), NOW)
    with EventLog(home) as log, duckdb.connect() as connection:
        steer = Steered(intervention_id="i-0", due_tick=1, severity="low", intent="rest")
        log.record([life_event("g-1", NOW, steer)], NOW)
        sources(home=str(home.root), derivation="none").configure_connection(connection)
        assert connection.execute("select golem_id from home.raw.log_life").fetchall() == [("g-1",)]


def test_texts_and_tool_calls_do_not_move_the_as_of_of_the_marts(tmp_path: Path) -> None:
    home, later = Home.create(tmp_path, Policy(), NOW), NOW + timedelta(minutes=1)
    steered = life_event("g-1", NOW, Steered(intervention_id="i-1", due_tick=1, severity="low", intent="rest"))
    text = StoredText(sort="insight", text="Gas doubles at noon.")
    call = ToolCalled(
        call_id="c-1", tool_name="memory_search", params_hash="h", tick=None, steps=(), fact_count=0, duration_ms=1,
        result_summary="no hits",
    )  # fmt: skip
    frequent = [life_event("g-1", later, fact) for fact in (text, call)]
    assert {event.kind for event in frequent} == set(FREQUENT)
    asked = Template((DBT_PROJECT / "models/staging/stg_as_of.sql").read_text()).render(
        source=lambda _, table: f"home.raw.{table}", utc=lambda moment: f"({moment} at time zone 'UTC')"
    )
    with EventLog(home) as log, duckdb.connect() as connection:
        log.record([steered, *frequent], later)
        sources(home=str(home.root), derivation="none").configure_connection(connection)
        assert connection.execute(asked).fetchall() == [(NOW.replace(tzinfo=None),)]


def test_every_column_of_a_staging_model_is_described(tmp_path: Path) -> None:
    staging = DBT_PROJECT / "models" / "staging"
    models = yaml.safe_load((staging / "schema.yml").read_text())["models"]
    texts = {model["name"]: {c["name"]: c["description"] for c in model["columns"]} for model in models}
    assert all(text.endswith(".") for columns in texts.values() for text in columns.values())
    macros = "".join(path.read_text() for path in (DBT_PROJECT / "macros").glob("*.sql"))
    home = Home.create(tmp_path, Policy(), NOW)
    with duckdb.connect() as connection:
        sources(home=str(home.root), derivation="none").configure_connection(connection)

        def ref(name: str) -> str:
            sql = Template(macros + (staging / f"{name}.sql").read_text())
            connection.execute(f"create or replace view {name} as {sql.render(source=source, ref=ref)}")
            return name

        def source(_: str, table: str) -> str:
            return f"home.raw.{table}"

        columns = {path.stem: connection.sql(f"from {ref(path.stem)}").columns for path in staging.glob("*.sql")}
    assert {name: list(described) for name, described in texts.items()} == columns


@pytest.mark.full
@pytest.mark.row("P-4")
@pytest.mark.parametrize("command", ["build --exclude-resource-type unit_test", "docs generate", "source freshness"])
def test_dbt_gives_no_warning(tmp_path: Path, command: str) -> None:
    home = Home.create(tmp_path / "home", Policy(), NOW)
    (home.derivations / "none").mkdir()
    steered = life_event("g-1", NOW, Steered(intervention_id="i-1", due_tick=1, severity="low", intent="rest"))
    with EventLog(home) as log:
        log.record([steered], datetime.now(UTC))
    environment = dbt_environment(home, "none", Policy(), "warehouse.duckdb")
    ran = run_dbt(("--warn-error", *command.split()), tmp_path, environment, DBT_PROJECT)
    assert ran.code == 0, ran.output
    assert "[WARNING]" not in ran.output


def test_the_plugin_exposes_the_policy_of_its_configuration(tmp_path: Path) -> None:
    home = Home.create(tmp_path, Policy(), NOW)
    policy = Policy(decay=DecayPolicy(tactical_days=0.1, anti_knowledge_floor=0.25))
    with duckdb.connect() as connection:
        plugin = sources(home=str(home.root), derivation="none", policy=policy.model_dump_json())
        plugin.configure_connection(connection)
        names = "tactical_days, anti_knowledge_floor_ppm, cycle_ticks, prediction_floor_micros"
        asked = f"select {names} from home.raw.policy"
        assert connection.execute(asked).fetchall() == [(0.1, 250_000, 50, 10_000)]


@pytest.mark.parametrize(("derivations", "error"), [((), ConfigError), (("a", "b"), ConfigError), (None, NoHomeError)])
def test_the_plugin_requires_a_home_with_one_derivation(
    tmp_path: Path, derivations: tuple[str, ...] | None, error: type[BardoError]
) -> None:
    if derivations is not None:
        home = Home.create(tmp_path, Policy(), NOW)
        for name in derivations:
            (home.derivations / name).mkdir()
    with duckdb.connect() as connection, pytest.raises(error):
        sources(home=str(tmp_path)).configure_connection(connection)
