"""`bardo eval memory`: exit codes, the report, and a page without external files."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.support.processes.bardo_command import bardo

DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data"
SMALL = ("--seed", "3", "--golems", "1", "--days", "2", "--markets", "1")


class Page(HTMLParser):
    """The content of a page: its elements, its words, and every address that it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []
        self.addresses: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"{tag} closes something else"

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the folder and output of one evaluation. One golem learns too little in two days, so the recall bound is
    missed.
    """
    folder = tmp_path_factory.mktemp("graded")
    output = bardo("eval", "memory", *SMALL, "--out", str(folder / "page"), home=folder / "none", expect=1)
    assert not (folder / "none").exists(), "the evaluation must use a home of its own"
    return folder / "page", output


@pytest.mark.full
@pytest.mark.row("X-5")
def test_a_missed_bound_exits_with_1_and_every_bound_has_a_verdict(graded: tuple[Path, str]) -> None:
    folder, verdict = graded
    report = json.loads((folder / "report.json").read_text())
    assert not report["kept"]
    assert "MISSED" in verdict
    assert all(bound["name"] in verdict for bound in report["bounds"])
    names = {"precision", "recall", "junk", "decoys", "null market", "Brier score"}
    assert names <= {bound["name"] for bound in report["bounds"]}
    assert [round(look["day"]) for look in report["looks"]] == [1, 2]
    assert report["records"] > 2_000


@pytest.mark.full
@pytest.mark.row("X-5")
def test_the_page_shows_every_bound_and_loads_no_external_file(graded: tuple[Path, str]) -> None:
    folder, _ = graded
    page = Page((folder / "index.html").read_text())
    assert page.open == []
    assert page.addresses == []
    assert page.tags.count("svg") >= 4
    text = " ".join(page.words)
    assert all(word in text for word in ("Bounds", "Day by day", "Expired truths", "Null market", "missed"))
    assert all(b["name"] in text for b in json.loads((folder / "report.json").read_text())["bounds"])


@pytest.mark.full
@pytest.mark.row("X-5")
def test_the_same_seed_gives_the_same_report(graded: tuple[Path, str], tmp_path: Path) -> None:
    output = bardo("eval", "memory", *SMALL, "--json", "--out", str(tmp_path), home=tmp_path / "none", expect=1)
    report = json.loads((graded[0] / "report.json").read_text())
    assert json.loads((tmp_path / "report.json").read_text()) == report
    assert json.loads(output[output.index("{") : output.rindex("}") + 1]) == report


@pytest.mark.row("X-5")
def test_a_missing_trace_is_skipped_and_an_unknown_market_refused(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    output = bardo("eval", "memory", "--market", "recorded", "--trace", str(nowhere), home=tmp_path / "none")
    assert output.startswith("skipped: ")
    assert "--market 'moon' is unknown" in bardo("eval", "memory", "--market", "moon", home=tmp_path / "none", expect=2)


@pytest.mark.full
@pytest.mark.row("X-5")
@pytest.mark.skipif(not DATA.is_dir(), reason=f"no recorded market in {DATA}")
def test_a_recorded_market_yields_calibration(tmp_path: Path) -> None:
    out = tmp_path / "page"
    words = ("--market", "recorded", "--trace", str(DATA), "--golems", "2", "--out", str(out))
    assert "Calibration" in bardo("eval", "memory", *words, home=tmp_path / "none")
    report = json.loads((out / "report.json").read_text())
    assert report["records"] > 5_000
    calibration = report["calibration"]
    assert sum(band["belief_count"] for band in calibration["bands"]) == calibration["beliefs"]
    stated = report["stated_calibration"]
    for name in ("beliefs", "unjudged", "brier_base_ppm"):
        assert calibration[name] == stated[name], "foretold and stated confidence are judged on the same beliefs"
    assert all(50_000 <= band["confidence_mean_ppm"] <= 950_000 for band in calibration["bands"])
    assert "Calibration" in " ".join(Page((out / "index.html").read_text()).words)
