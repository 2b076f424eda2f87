"""The public API: every name imports lazily, has documentation, and its examples print the shown output."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path

import pytest

import bardo_pipeline
from bardo_pipeline import api
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.errors import ConfigError, QueryError
from tests.conftest import copy_home
from tests.support.homes.two_owners import CORAL, PEARL, belongings

FUNCTIONS = [name for name in bardo_pipeline.__all__ if hasattr(api, name) and name[0].islower() and name != "errors"]


@pytest.mark.parametrize("name", bardo_pipeline.__all__)
def test_a_public_name_exists_and_is_documented(name: str) -> None:
    assert name in dir(bardo_pipeline)
    assert (getattr(bardo_pipeline, name).__doc__ or "").strip()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = bardo_pipeline.nothing


def test_importing_the_package_loads_no_library() -> None:
    loaded = "import sys, bardo_pipeline; print(*{'pyarrow', 'deltalake', 'duckdb', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert not done.stdout.strip()


@pytest.mark.full
def test_the_examples_of_the_package_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _run(bardo_pipeline, "bardo_pipeline", {})
    assert set(bardo_pipeline.__all__) - set(FUNCTIONS) <= set(
        bardo_pipeline.__doc__.replace("`", " ").replace(",", " ").replace(".", " ").split()
    ) | {"Ack", "Home"}, "a class without an example"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_example_of_a_function_runs(
    name: str, brief_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    home = api.open_home(copy_home(brief_home, tmp_path / "lived"))
    golem_id = DerivationContext.open(home.root).life("GolemBorn")["golem_id"][0].as_py()
    _run(getattr(api, name), name, {"home": home, "golem_id": golem_id} | {n: getattr(api, n) for n in FUNCTIONS})


@pytest.mark.row("X-12")
def test_a_home_that_is_opened_for_an_owner_shows_and_changes_only_what_is_that_owners(
    two_owners_home: Path, tmp_path: Path
) -> None:
    root = copy_home(two_owners_home, tmp_path / "home")
    home, coral, pearl = api.open_home(root, owner=CORAL), belongings(root, CORAL), belongings(root, PEARL)
    texts = api.search(home, "pool")["text"].to_pylist()
    assert any("CORAL" in text for text in texts)
    assert pearl.traces(repr(texts)) == []
    assert api.read_records(home, pearl.golem) == []
    assert len(api.read_records(home, coral.golem)) > 0
    with pytest.raises(QueryError, match="no golem of this name was born"):
        api.ask(home, pearl.heir, "what does gas cost?")
    with pytest.raises(QueryError, match="no entry begins with"):
        api.lineage(home, pearl.entry)
    for refused in (lambda: api.derive(home), lambda: api.birth(home, owner=PEARL)):
        with pytest.raises(ConfigError, match="open"):
            refused()
    born = DerivationContext.open(root, owner=CORAL).life
    assert api.birth(home, lineage="coral/2") in born("GolemBorn")["golem_id"].to_pylist()


def _run(thing: object, name: str, names: dict[str, object]) -> None:
    """Run the examples in a docstring; it must have some."""
    result = doctest.DocTestFinder(recurse=False, exclude_empty=False).find(thing, name, globs=names)
    assert result[0].examples, f"{name} has no example"
    rows: list[str] = []
    doctest.DocTestRunner(verbose=False).run(result[0], out=rows.append)
    assert not rows, "".join(rows)
