"""The home resource: its fields, its environment variables, and its end with the run."""

from pathlib import Path

import dagster as dg
import pytest

from assets.resources import HomeResource, LazyStores
from bardo_pipeline.errors import ConfigError


def seen_by_a_run(resource: HomeResource, **config: str) -> LazyStores:
    """Return the home that an asset of a run is given."""
    given: list[LazyStores] = []

    @dg.asset
    def seen(home: dg.ResourceParam[LazyStores]) -> None:
        given.append(home)

    chosen = {"run_config": {"resources": {"home": {"config": config}}}} if config else {}
    dg.materialize([seen], resources={"home": resource}, **chosen)
    return given[0]


def test_unset_fields_come_from_the_environment_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resource = HomeResource()
    monkeypatch.setenv("BARDO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BARDO_OWNER", "owner-1")
    home = seen_by_a_run(resource)
    assert (home.root, home.owner) == (tmp_path / "home", "owner-1")
    home = seen_by_a_run(HomeResource(root=str(tmp_path / "other"), owner="owner-2"))
    assert (home.root, home.owner) == (tmp_path / "other", "owner-2")


def test_a_run_can_be_launched_for_another_home(tmp_path: Path) -> None:
    assert seen_by_a_run(HomeResource.configure_at_launch(), root=str(tmp_path)).root == tmp_path


def test_a_root_with_a_scheme_is_refused() -> None:
    with pytest.raises(dg.DagsterError) as refused:
        seen_by_a_run(HomeResource(root="s3://bucket"))
    assert isinstance(refused.value.__cause__, ConfigError)


def test_the_home_is_closed_after_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[LazyStores] = []
    monkeypatch.setattr(LazyStores, "close", lambda home: closed.append(home))  # noqa: PLW0108
    assert closed == [seen_by_a_run(HomeResource())]
