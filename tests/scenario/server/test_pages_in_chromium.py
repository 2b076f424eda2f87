"""The pages of a server in a real Chromium: the home with its plots, the Data Docs, and the dbt docs."""

from __future__ import annotations

from pathlib import Path

import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.data_docs import judge_with_docs
from bardo_pipeline.storage.warehouse.build import build_warehouse
from tests.conftest import NOW, copy_home
from tests.support.homes.served_homes import Served, served
from tests.support.homes.two_owners import CORAL, belongings
from tests.support.processes.browser import Browser, browser, needs_chromium

pytestmark = [needs_chromium, pytest.mark.full]

_PLOTS = """
return [...document.querySelectorAll("svg")].map((plot) => [...plot.querySelectorAll("rect")]
  .map((bar) => bar.getBoundingClientRect()).filter((box) => box.width > 1 && box.height > 1).length)
"""


def sign_in(session: Browser, server: Served, owner: str | None) -> None:
    """Give the token of an owner to the form, as a user does."""
    session.open(server.url)
    session.wait_for("Give a token")
    field = session.find("input[name=token]")
    session.command("POST", f"/element/{field}/value", text=server.tokens[owner])
    session.command("POST", f"/element/{session.find('input[type=submit]')}/click")
    session.wait_for("Golems alive")
    session.complaints()  # the form itself is answered with 401


@pytest.mark.row("X-11", "P-4", "P-5")
def test_pages_load_nothing_from_elsewhere_and_show_their_figures(two_owners_home: Path, tmp_path: Path) -> None:
    home = copy_home(two_owners_home, tmp_path / "home")
    context = DerivationContext.open(home)
    again = judge_with_docs(context, now=NOW, run="again")
    assert again.page is not None
    build_warehouse(context.home, context.derivation_id, context.policy)
    heir = belongings(home, CORAL).heir
    context.log.close()

    with served(home, CORAL) as server, browser(tmp_path) as session:
        sign_in(session, server, None)
        assert heir in session.text()
        assert all(bars >= 1 for bars in session.run(_PLOTS)), "each plot has a visible bar"
        assert len(session.run(_PLOTS)) == 3
        assert session.complaints() == []

        for part in ("data", "dbt"):
            session.open(server.url)
            link = session.find(f"a[href='/docs/{part}/']")
            session.command("POST", f"/element/{link}/click")
            session.wait_for({"data": "Checks of the bundles", "dbt": "auto-generated documentation"}[part])
            assert session.complaints() == [], part

        session.open(f"{server.url}/docs/data/")
        pages = session.run("return [...document.querySelectorAll('td a')].map((link) => link.href)")
        assert len(pages) >= 6
        for page in pages:
            session.open(page)
            assert "Expectation" in session.text(), page
            assert session.complaints() == [], page
            boxes = session.run(
                "return [...document.querySelectorAll('table')].filter((t) => t.offsetHeight > 10).length"
            )
            assert boxes >= 1 or "/expectations/" in page, page

        session.open(f"{server.url}/docs/dbt/#!/model/model.bardo.fct_deaths")
        session.wait_for("One row per golem that died")
        assert session.complaints() == []
        (own,) = session.loads()
        assert own == server.url.removeprefix("http://")


@pytest.mark.row("X-12")
def test_an_owner_does_not_see_data_docs_of_all_owners(two_owners_home: Path, tmp_path: Path) -> None:
    home = copy_home(two_owners_home, tmp_path / "home")
    with served(home, CORAL) as server, browser(tmp_path) as session:
        sign_in(session, server, CORAL)
        session.open(f"{server.url}/docs/data/")
        assert "AccessError" in session.text()
