"""Negentropy of a real home's knowledge: by command, as a page, and by the row-at-a-time twin."""

from pathlib import Path

import orjson
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.judged_outcomes import judged_outcomes
from bardo_pipeline.derivation.reports.negentropy_report import order_of_home
from bardo_pipeline.quality.negentropy import ORDER_SCHEMA
from tests.conftest import LIVELY
from tests.reference.inheritance.negentropy import order_by_row
from tests.support.processes.bardo_command import bardo


@pytest.mark.full
@pytest.mark.row("INH-15")
def test_the_negentropy_of_a_home_equals_its_twin(lively_home: Path) -> None:
    stores = DerivationContext.open(lively_home, policy=LIVELY)
    result = order_of_home(stores)
    decisions = stores.projections.growing("curation").read().to_pylist()
    expected = order_by_row(decisions, judged_outcomes(stores).to_pylist(), LIVELY)
    rows = result.golems.select(ORDER_SCHEMA.names).to_pylist()
    assert {row.pop("golem_id"): row for row in rows} == expected
    assert sum(row["spoken_count"] for row in expected.values()) > 3
    assert any(row["inherited_ubits"] for row in expected.values())
    owners = {e["born"]["owner_id"] for e in stores.life("GolemBorn").to_pylist()}
    assert set(result.trends) == owners


@pytest.mark.row("INH-15")
def test_the_negentropy_command_writes_a_page_and_a_report(small_home: Path, tmp_path: Path) -> None:
    output = bardo("eval", "negentropy", "--out", str(tmp_path / "page"), home=small_home)
    assert "Clade " in output
    assert "undecided" in output
    page = (tmp_path / "page" / "index.html").read_text()
    assert page.count("<svg") == 2
    report = orjson.loads(bardo("eval", "negentropy", "--out", str(tmp_path / "page"), "--json", home=small_home))
    assert report == orjson.loads((tmp_path / "page" / "report.json").read_bytes())
    assert sum(row["judged_count"] for row in report["clades"]) == sum(row["judged_count"] for row in report["golems"])
