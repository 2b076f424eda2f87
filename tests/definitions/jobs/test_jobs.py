"""The curator's job on a real log: its rows, its metadata, and a second run that writes nothing."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from assets.log import CYCLES
from bardo_pipeline.cli.fleet.fleet_commands import DEMO_JOBS
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.memory.derive_episodes import derive_episodes
from bardo_pipeline.derivation.reports.lineage import surest
from bardo_pipeline.storage.delta import table_specs
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.warehouse.build import query
from definitions import defs
from tests.conftest import NOW, copy_home, home_without_verdicts
from tests.crash.roles import line_of
from tests.definitions.running import checks, data_version, materializations, metadata_value, run, undrained
from tests.support.processes.notebook import NOTEBOOK, answers

TABLES = (
    "episodes", "curation", "cycles", "grimoire", "playbooks", "facts", "links", "crossings", "credits",
    "failures", "scars", "votes", "vote_causes", "consensus", "library", "kits", "shelved_playbooks",
)  # fmt: skip
FEW = ("links", "failures", "scars", "kits")
"""Tables that stay empty here: the lives are too short for links, recurrences and scars."""
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
    "fct_tier_costs",
    "fct_tier_verdicts",
    "fct_ticks",
    "fct_votes",
    "fct_withdrawals",
)


@pytest.fixture(scope="module")
def stores(small_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DerivationContext]:
    root = home_without_verdicts(small_home, tmp_path_factory.mktemp("jobs") / "home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BARDO_HOME", str(root))
        yield DerivationContext.open(root)


@pytest.fixture(scope="module")
def first(stores: DerivationContext) -> dg.ExecuteInProcessResult:
    """A run over a log of which nothing is derived."""
    return run("curator_job", dg.DagsterInstance.ephemeral())


@pytest.fixture(scope="module")
def second(first: dg.ExecuteInProcessResult, stores: DerivationContext) -> dg.ExecuteInProcessResult:
    """A run in a copy of the derived home, in which a living writer's records are not drained."""
    root = stores.home.root.parent / "second"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BARDO_HOME", str(copy_home(stores.home.root, root)))
        with undrained(Home.open(root), timedelta(minutes=3)):
            return run("curator_job", dg.DagsterInstance.ephemeral())


@pytest.mark.row("P-2", "P-3")
def test_the_curator_job_derives_every_table_from_the_log(
    first: dg.ExecuteInProcessResult, stores: DerivationContext
) -> None:
    made = materializations(first)
    assert set(made) == {*TABLES, "episode_index", *MARTS}
    for table in TABLES:
        assert metadata_value(made[table], "rows_written") == metadata_value(made[table], "dagster/row_count"), table
        assert metadata_value(made[table], "dagster/row_count") or table in FEW, table
    assert metadata_value(made["episode_index"], "rows_written") == metadata_value(
        made["episodes"], "dagster/row_count"
    )
    assert metadata_value(made["fct_ticks"], "dagster/row_count") == stores.log.read_cycles(["tick"]).num_rows
    assert query(stores.home, "select count(*) from fct_ticks")[1] == [
        (metadata_value(made["fct_ticks"], "dagster/row_count"),)
    ]


@pytest.mark.row("P-4")
def test_the_notebook_answers_five_questions_with_plots_from_the_marts_of_the_job(
    first: dg.ExecuteInProcessResult, stores: DerivationContext, tmp_path: Path
) -> None:
    assert first.success
    assert not any(cell.get("outputs") for cell in json.loads(NOTEBOOK.read_text())["cells"]), "it ships no outputs"
    asked = answers(stores.home.root, tmp_path)
    assert len(asked) == 5
    for question, answer in asked.items():
        assert question.endswith("?")
        assert answer.sentence.rstrip().endswith((".", "”")), question
        assert "<table" in answer.rows, question
        assert len(answer.plots) == 1, question
    counted = "select count(*), count(worth_micros) from fct_retrievals"
    [(retrieved, judged)] = query(stores.home, counted)[1]
    assert f"{judged:,} of {retrieved:,} retrieved entries have a verdict" in list(asked.values())[4].sentence


@pytest.mark.row("P-2", "X-1")
def test_a_materialization_carries_the_fingerprint_of_its_table(
    first: dg.ExecuteInProcessResult, stores: DerivationContext
) -> None:
    made = materializations(first)
    for table in TABLES:
        digest = stores.projections.digest(table)
        assert data_version(made[table]) == metadata_value(made[table], "fingerprint") == digest.fingerprint, table
        assert metadata_value(made[table], "dagster/row_count") == digest.rows


@pytest.mark.row("P-2", "X-1")
def test_a_rebuild_has_the_recorded_data_versions(
    first: dg.ExecuteInProcessResult, stores: DerivationContext, tmp_path: Path
) -> None:
    beside = DerivationContext.open(stores.home.root, beside=tmp_path / "beside")
    derive_episodes(beside, now=NOW)
    derive_curation(beside)
    made = materializations(first)
    for table in ("episodes", "curation", "cycles", "grimoire", "playbooks"):
        assert beside.projections.digest(table).fingerprint == data_version(made[table]), table


@pytest.mark.row("P-2")
def test_a_materialization_records_its_inputs(first: dg.ExecuteInProcessResult, stores: DerivationContext) -> None:
    made = materializations(first)
    heads = stores.log.heads()
    for table in TABLES:
        assert metadata_value(made[table], "derivation_id") == stores.derivation_id
        assert metadata_value(made[table], "policy_hash") == stores.policy.hash
        assert metadata_value(made[table], "log_version") == stores.log.version
        assert metadata_value(made[table], "life_version") == stores.log.life_version
        assert metadata_value(made[table], "golem_count") == heads.num_rows
        assert metadata_value(made[table], "tick_max") == max(heads["contiguous"].to_pylist())
    read = metadata_value(made["consensus"], "inputs")
    assert read["votes"] == {
        "version": metadata_value(made["votes"], "table_version"),
        "fingerprint": metadata_value(made["votes"], "fingerprint"),
    }
    assert made["facts"].tags["dagster/input_data_version/grimoire"] == data_version(made["grimoire"])
    assert made["episodes"].tags["dagster/input_data_version/log/cycles"].startswith(f"{stores.log.version}/")


@pytest.mark.full
@pytest.mark.row("P-2")
def test_a_second_run_writes_nothing_and_keeps_data_versions(
    first: dg.ExecuteInProcessResult, second: dg.ExecuteInProcessResult
) -> None:
    before, after = materializations(first), materializations(second)
    for table in (*TABLES, "episode_index"):
        assert metadata_value(after[table], "rows_written") == 0, table
        assert metadata_value(after[table], "table_version") == metadata_value(before[table], "table_version"), table
    assert {k: data_version(m) for k, m in after.items()} == {k: data_version(m) for k, m in before.items()}


def test_the_checks_of_a_healthy_home_pass(first: dg.ExecuteInProcessResult) -> None:
    check = checks(first)
    assert {"confidence_is_a_probability", "no_cycle_waits_behind_a_gap", "only_passed_bundles_are_published"} <= set(
        check
    )
    assert [name for name, e in check.items() if not e.passed and name != "some_proposition_has_its_quorum"] == []


@pytest.mark.full
@pytest.mark.row("X-11")
def test_a_job_checks_health_at_its_end_and_observes_the_measures(
    first: dg.ExecuteInProcessResult, second: dg.ExecuteInProcessResult, stores: DerivationContext
) -> None:
    judged = checks(second)
    assert judged["curation_is_fresh"].passed, "it measures after the derivation"
    assert judged["marts_are_fresh"].passed
    assert not judged["journals_are_drained"].passed
    before, message = observed(first), observed(second)
    assert (message["journal_segments"], message["quarantine_open"]) == (1, 0)
    sent = sum(len(line_of("g-1", tick)) for tick in (1, 2, 3))
    assert sent < message["journal_bytes"] < sent + 3 * 200
    assert message["journal_oldest_seconds"] > 180
    assert before["lag_ticks"] == stores.log.read_cycles(["tick"]).num_rows, "nothing was derived yet"
    assert message["lag_ticks"] == 0, "g-1 was never born"
    assert before["dagster/last_updated_timestamp"] == message["dagster/last_updated_timestamp"] == NOW.timestamp()


def observed(result: dg.ExecuteInProcessResult) -> dict[str, object]:
    (seen,) = [e for e in result.get_asset_observation_events() if e.asset_key == CYCLES]
    return {name: value.value for name, value in seen.asset_observation_data.asset_observation.metadata.items()}


@pytest.mark.full
@pytest.mark.row("P-3", "X-1")
def test_the_rebuild_job_finds_every_projection_equal(first: dg.ExecuteInProcessResult) -> None:
    result = run("rebuild_job", dg.DagsterInstance.ephemeral())
    (output,) = [e for e in result.all_events if e.event_type_value == "STEP_OUTPUT"]
    table = output.step_output_data.metadata["compared"].value
    assert "| grimoire |" in table
    assert "False" not in table


@pytest.mark.row("X-2")
def test_the_materialization_of_the_grimoire_shows_the_lineage_of_rules(
    first: dg.ExecuteInProcessResult, stores: DerivationContext
) -> None:
    page = metadata_value(materializations(first)["grimoire"], "lineage")
    rules = surest(stores, 20)
    assert rules
    for rule in rules:
        line = next(
            row for row in page.splitlines() if f"`{rule['entry_id'][:12]}`" in row and f"| {rule['golem_id']} |" in row
        )
        assert rule["text"] in line
        assert (f"| {rule['ticks'][0]}" in line) if rule["ticks"] else ("none yet" in line)
        assert all(bundle[:12] in line for bundle in rule["bundles"])
        assert rule["ticks"] or rule["bundles"]


def test_the_jobs_of_the_demo_derive_every_table_that_a_death_does_not_derive() -> None:
    jobs = [defs.resolve_job_def(name) for name in DEMO_JOBS]
    derived = {key.path[-1] for job in jobs for key in job.asset_layer.selected_asset_keys}
    assert set(table_specs.TABLES) - derived == {"candidates", "testaments"}
