"""The page of a home: texts are escaped, plots have the figures, and an empty home is shown."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import UTC, date, datetime
from html.parser import HTMLParser
from typing import Any

import pytest

from bardo_pipeline.server.page import GOLEMS_SHOWN, Overview, live_page, overview_page, sign_in_page

EVIL = """<script>alert("1")</script><img src=x onerror='alert(2)'>&amp;</svg>"""
AT = datetime(2026, 1, 2, tzinfo=UTC)


def golem(name: str, *, died: bool = False) -> dict[str, Any]:
    return {"golem_id": name, "owner_id": EVIL, "generation": 1, "predecessor_id": None, "born_at": AT,
            "died_at": AT if died else None, "cause": EVIL if died else None, "tick": 1_234, "lifespan_ticks": 2_000,
            "entries_active": 3}  # fmt: skip


LIVE = {
    "golem_id": EVIL, "tick": 1, "at": AT.isoformat(), "state": EVIL, "phase": "stable", "emotion": "joy",
    "mood": [0.1, 0.2, 0.3], "vitality": 0.5, "net_asset_value_micros": 1, "positions": [EVIL], "spent_share": 0.1,
    "prefetch_hit_rate": None,
    "decisions": [{"tick": 1, "decision": "hold", "reason": EVIL, "actions": [EVIL], "steers": [EVIL]}],
}  # fmt: skip
HOME = Overview(
    title=EVIL, as_of=AT, cycle=7, log_version=19, lag_ticks=31, golems=[golem(EVIL), golem("g-2", died=True)],
    knowledge={EVIL: 4, "insight": 8}, texts=[(EVIL, EVIL, 0.5, EVIL)], deaths={EVIL: 1},
    cost_micros={date(2026, 1, 1): 1_500_000, date(2026, 1, 2): 3_000_000},
)  # fmt: skip


class Tags(HTMLParser):
    """Collects the tags and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.links: list[str | None] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value for name, value in attrs if name == "href"]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.row("X-11")
def test_texts_of_a_home_are_text_on_the_page() -> None:
    page = Tags(overview_page(HOME))
    assert not {"script", "img", "link", "iframe"} & set(page.tags)
    assert not {name for name in page.attributes if name.startswith("on") or name in ("src", "srcset")}
    assert page.links == ["/docs/data/", "/docs/dbt/", "/live"]
    assert page.text.count(EVIL) >= 6, "title, heading, golem, owner, kind and entry are shown unchanged"
    live = Tags(live_page([LIVE]))
    assert not {"script", "img", "link", "iframe"} & set(live.tags)
    assert live.text.count(EVIL) >= 6, "golem, state, position, reason, action and steer are shown unchanged"
    assert "form" in Tags(sign_in_page(EVIL)).tags
    assert "script" not in Tags(sign_in_page(EVIL)).tags


@pytest.mark.row("X-11")
def test_a_page_shows_a_name_without_its_control_characters() -> None:
    page = overview_page(replace(HOME, golems=[golem("g-\x1b]0;title\x07\x9b\u202e1")]))
    assert "<td>g-]0;title1</td>" in page


@pytest.mark.row("X-11")
def test_plots_are_images_of_the_figures() -> None:
    page = overview_page(HOME)
    plots = [ET.fromstring("<svg" + part.split("</svg>")[0] + "</svg>") for part in page.split("<svg")[1:]]
    assert len(plots) == 3
    heights = [[float(bar.get("height", 0)) for bar in plot.iter("rect")] for plot in plots]
    cost, knowledge, deaths = heights
    assert cost[0] == pytest.approx(cost[1] / 2)
    assert knowledge[0] == pytest.approx(knowledge[1] / 2)
    assert len(deaths) == 1
    free = overview_page(replace(HOME, cost_micros=dict.fromkeys(HOME.cost_micros, 0)))
    assert '<text x="0" y="11">0</text>' in free, "the axis of a home without costs ends at 0"
    for fact in ("$4.50", "cycle 7", "log version 19", "31 recorded ticks", "1,234", "alive"):
        assert fact in Tags(page).text


def test_an_empty_home_and_a_large_one_are_shown() -> None:
    empty = replace(HOME, as_of=None, golems=[], knowledge={}, texts=[], deaths={}, cost_micros={})
    text = Tags(overview_page(empty)).text
    for fact in ("no cycle is derived yet", "no record yet", "no entry yet", "no death yet", "$0.00"):
        assert fact in text
    large = replace(HOME, golems=[golem(f"g-{number}") for number in range(GOLEMS_SHOWN + 5)])
    assert "5 more" in Tags(overview_page(large)).text
