"""The page for operations explains each alert: asset checks, sensors and exceeded measures."""

from __future__ import annotations

import re
from pathlib import Path

import dagster as dg
import pytest

from assets import checks
from bardo_pipeline.derivation.reports import home_health
from definitions import defs

pytestmark = pytest.mark.row("P-3")

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guide" / "operations.md").read_text()
REPOSITORY = defs.get_repository_def()
MEASURES = set(re.findall(r'"([a-z]+\.[a-z_]+)"', Path(home_health.__file__).read_text()))


def test_the_page_explains_every_asset_check_of_the_code_location() -> None:
    stated = [part for part in vars(checks).values() if isinstance(part, dg.AssetChecksDefinition)]
    own = {key.name for part in stated for key in part.check_keys}
    assert {name for name in own if f"`{name}`" not in PAGE} == set()
    assert len(own) > 10


def test_the_page_explains_every_sensor() -> None:
    assert {sensor.name for sensor in REPOSITORY.sensor_defs if f"`{sensor.name}`" not in PAGE} == set()


def test_the_page_explains_every_measure_of_the_status() -> None:
    measures = {*MEASURES, "curation.waiting", "episodes.waiting", "marts.waiting"}
    assert {measure for measure in measures if f"`{measure}`" not in PAGE} == set()
    assert len(MEASURES) > 8


def test_the_files_that_the_page_names_exist() -> None:
    for name in re.findall(r"(?:/opt/bardo/|`)(deploy/[\w./-]+?)`?(?=[\s`])", PAGE):
        assert (ROOT / name).exists() or "*" in name, name
