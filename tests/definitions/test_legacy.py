"""The death job: only an invalid candidate is refused; a published bundle that is altered stops the marts."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import dagster as dg
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.derive_thanatopsis import phases_of
from bardo_pipeline.derivation.legacy.bundle_candidates import candidate_folder
from bardo_pipeline.derivation.legacy.bundle_store import invalid_publications, load_bundle, published_bundles
from tests.conftest import copy_home, home_without_verdicts
from tests.definitions.running import checks, data_version, materializations, metadata_value, run

pytestmark = pytest.mark.full

BEFORE_VERDICTS = ["episodes", "curation", "cycles", "grimoire", "playbooks", "testaments", "bundle_candidates"]


class Story(NamedTuple):
    """A home after a death with one invalid candidate."""

    stores: DerivationContext
    spoilt: dict[str, str]
    result: dg.ExecuteInProcessResult
    instance: dg.DagsterInstance


@pytest.fixture(scope="module")
def story(small_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    root = home_without_verdicts(small_home, tmp_path_factory.mktemp("legacy") / "home")
    instance = dg.DagsterInstance.ephemeral()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BARDO_HOME", str(root))
        run("death_job", instance, asset_selection=[dg.AssetKey(k) for k in BEFORE_VERDICTS])
        stores = DerivationContext.open(root)
        heir = next(r for r in stores.projections.read("candidates").to_pylist() if r["generation"] == 1)
        with (candidate_folder(stores) / heir["bundle_hash"] / "entries.jsonl").open("ab") as file:
            file.write(b'{"entry_id":"whispered"}\n')
        yield Story(stores, heir, run("death_job", instance), instance)


@pytest.mark.row("P-5", "P-3")
def test_only_the_altered_candidate_is_refused(story: Story) -> None:
    golems = set(story.stores.projections.read("candidates")["golem_id"].to_pylist())
    assert len(golems) > 3
    assert story.result.success, "a refused bundle is no failure of the run"
    assert set(published_bundles(story.stores)) == golems - {story.spoilt["golem_id"]}
    assert not (story.stores.home.bundles / story.spoilt["bundle_hash"]).exists()
    made = materializations(story.result)
    assert metadata_value(made["verdicts"], "rows_written") == len(golems)
    assert metadata_value(made["verdicts"], "refused_count") == 1
    assert metadata_value(made["bundles"], "rows_written") == len(golems) - 1


@pytest.mark.row("INH-2", "INH-4")
def test_the_death_job_records_the_same_phases_as_the_runtime(story: Story, small_home: Path) -> None:
    done, lived = phases_of(story.stores), phases_of(DerivationContext.open(small_home))
    assert metadata_value(materializations(story.result)["thanatopsis"], "rows_written") == 4 * len(lived) > 12
    spoilt = story.spoilt["golem_id"]
    assert {g: phases for g, phases in done.items() if g != spoilt} == {g: p for g, p in lived.items() if g != spoilt}
    assert done[spoilt][:3] == lived[spoilt][:3]
    left = done[spoilt][3].payload
    assert not left["published"]
    assert "which was refused" in left["notice"]
    assert left["bundle_hash"] == story.spoilt["bundle_hash"]
    again = run("death_job", story.instance, asset_selection=[dg.AssetKey("thanatopsis")])
    assert metadata_value(materializations(again)["thanatopsis"], "rows_written") == 0


@pytest.mark.row("INH-17")
def test_the_metadata_of_bundles_show_inheritance_previews(story: Story) -> None:
    made = materializations(story.result)["bundles"]
    seen = {item["golem_id"]: item for item in metadata_value(made, "inheritance_previews")}
    published = published_bundles(story.stores)
    assert seen.keys() == published.keys()
    for golem_id, item in seen.items():
        entries = load_bundle(story.stores.home, published[golem_id]).rows("entries.jsonl")
        assert item["entry_count"] == sum(item["before"]) == sum(item["after"]) == len(entries)
        assert item["mean_after_ppm"] < item["mean_before_ppm"]
        assert item["bloodstain_count"] == sum(entry["is_bloodstain"] for entry in entries)
        assert golem_id in metadata_value(made, "inheritance")


@pytest.mark.row("P-5")
def test_the_verdict_names_the_failed_expectation(story: Story) -> None:
    made = materializations(story.result)
    (line,) = [line for line in metadata_value(made["verdicts"], "judged").splitlines() if "REFUSED" in line]
    assert story.spoilt["golem_id"] in line
    assert "hashes_match" in line
    refused = checks(story.result)["every_candidate_passed"]
    assert not refused.passed
    assert refused.severity == dg.AssetCheckSeverity.WARN
    assert story.spoilt["golem_id"] in refused.metadata["refused"].value


@pytest.mark.row("P-5")
def test_the_metadata_links_the_data_docs_at_the_server_and_has_their_path(story: Story) -> None:
    link = metadata_value(materializations(story.result)["verdicts"], "data_docs")
    assert link == "http://127.0.0.1:8642/docs/data/", "no server runs, so the link has the default port"
    page = Path(metadata_value(materializations(story.result)["verdicts"], "data_docs_path"))
    assert page.is_relative_to(story.stores.home.root / "data_docs")
    assert page.exists()
    (detail,) = page.parent.glob("validations/**/candidates-bundles.html")
    assert "hash_mismatches" in detail.read_text()
    assert (page.parent / "static" / "styles").is_dir()


@pytest.mark.row("P-5")
def test_the_guard_passes_if_only_passed_bundles_are_published(story: Story) -> None:
    guard = checks(story.result)["only_passed_bundles_are_published"]
    assert guard.passed
    assert guard.blocking
    assert guard.severity == dg.AssetCheckSeverity.ERROR
    assert "fct_knowledge" in materializations(story.result)


@pytest.mark.row("P-5")
@pytest.mark.parametrize("job", ["death_job", "curator_job"])
def test_an_altered_bundle_stops_the_marts(
    story: Story, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = copy_home(story.stores.home.root, tmp_path / "home")
    monkeypatch.setenv("BARDO_HOME", str(root))
    stores = DerivationContext.open(root)
    altered = sorted(published_bundles(stores).values())[0]
    (root / "bundles" / altered / "playbook.md").write_text("do as I say")
    result = run(job, dg.DagsterInstance.ephemeral(), raise_on_error=False)
    assert not result.success
    assert invalid_publications(stores) == [altered]
    assert checks(result)["only_passed_bundles_are_published"].metadata["wrong"].value == [altered]
    assert "grimoire" in materializations(result), "tables that do not depend on bundles are derived"
    assert "fct_ticks" not in materializations(result)
    assert stores.home.warehouse.read_bytes() == story.stores.home.warehouse.read_bytes()


@pytest.mark.row("P-5")
def test_bundles_judged_by_the_runtime_get_data_docs_and_equal_verdicts(copied_home: Path, at_home) -> None:
    at_home(copied_home)
    instance = dg.DagsterInstance.ephemeral()
    only = {"asset_selection": [dg.AssetKey("verdicts")]}
    made = materializations(first := run("death_job", instance, **only))["verdicts"]
    repeated = checks(first)["verdicts_repeat"]
    assert repeated.passed
    assert repeated.metadata["judged_again"].value == metadata_value(made, "dagster/row_count") > 3
    assert metadata_value(made, "rows_written") == 0
    assert Path(metadata_value(made, "data_docs_path")).exists()
    second = run("death_job", instance, **only)
    assert checks(second)["verdicts_repeat"].metadata["judged_again"].value == 0, "data docs are written once"
    assert metadata_value(materializations(second)["verdicts"], "data_docs_path") == metadata_value(
        made, "data_docs_path"
    )
    assert data_version(materializations(second)["verdicts"]) == data_version(made)


@pytest.mark.row("P-5")
def test_a_candidate_altered_after_its_verdict_fails_the_repeat_check(copied_home: Path, at_home) -> None:
    at_home(copied_home)
    stores = DerivationContext.open(copied_home)
    bundle_hash = stores.projections.read("candidates")["bundle_hash"][0].as_py()
    shutil.copy(
        candidate_folder(stores) / bundle_hash / "playbook.md", candidate_folder(stores) / bundle_hash / "testament.md"
    )
    result = run("death_job", dg.DagsterInstance.ephemeral(), asset_selection=[dg.AssetKey("verdicts")])
    repeated = checks(result)["verdicts_repeat"]
    assert not repeated.passed
    assert repeated.metadata["changed"].value == [bundle_hash]
