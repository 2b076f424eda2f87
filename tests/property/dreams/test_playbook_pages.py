"""PLAYBOOK.md lists the lessons of a golem's dreams as staged revisions, and every writer of the page keeps them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.dreams.derive_dreams import derive_dreams
from bardo_pipeline.derivation.dreams.playbook_pages import HEADING, lesson_sections, pages_of, write_playbooks
from bardo_pipeline.derivation.repair.removal_proof import remains
from bardo_pipeline.derivation.strikes_and_reorgs import strike
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA
from bardo_pipeline.storage.delta.replaceable_table import ReplaceableTable
from tests.conftest import NOW
from tests.property.derivation.test_laws import stores_at
from tests.property.dreams.test_dream_laws import HASTY, day
from tests.support.homes.dreaming_homes import home_of
from tests.support.knowledge.handmade_grimoires import dreamt, entry

pytestmark = pytest.mark.row("MEM-8", "KAT-7")


class PowerCut(Exception):
    pass


SITUATION = {"regime": "volatile", "anomaly_band": "broken", "gas_band": "dear"}
LINE = (
    "- rebalanceThreshold moves 30 % of the way {} edge of the band (volatile, broken, gas dear): "
    "mean effect {} ppm, interval {} ppm, n=5"
)


def lesson(change: str, golem_id: str = "g-1", **fields: object) -> dict[str, object]:
    figures = {"confidence_ppm": 300_000, "effect_mean_ppm": 1_300, "effect_low_ppm": 200, "effect_high_ppm": 2_400}
    return entry(golem_id, dreamt(change, **SITUATION), **({"sign": 1} | figures | fields))


def rows(*entries: dict[str, object]) -> pa.Table:
    return pa.Table.from_pylist(list(entries), schema=ENTRY_SCHEMA)


def test_a_section_lists_the_active_lessons_about_the_threshold_in_one_order() -> None:
    loss = {"sign": -1, "effect_mean_ppm": -900, "effect_low_ppm": -1_000, "effect_high_ppm": -800}
    known = [
        lesson("threshold_lower"), lesson("threshold_higher"), lesson("range_wider"), lesson("wait_for_gas"),
        lesson("threshold_lower", "g-2", **loss), lesson("threshold_lower", "g-3", status="pruned"),
        lesson("threshold_higher", "g-4", status="candidate"), lesson("threshold_higher", "g-5", sign=0),
    ]  # fmt: skip
    gain = ("+1,300", "+200 to +2,400")
    sections = {
        "g-1": [LINE.format("down to the lower", *gain), LINE.format("up to the upper", *gain)],
        "g-2": [LINE.format("up to the upper", "-900", "-1,000 to -800")],
    }
    wanted = {golem: f"\n{HEADING}\n\n" + "\n".join(lines) + "\n" for golem, lines in sections.items()}
    assert lesson_sections(rows(*known)) == lesson_sections(rows(*reversed(known))) == wanted


def test_a_page_is_the_newest_playbook_and_a_golem_without_lessons_keeps_it_byte_for_byte() -> None:
    written = [("g-1", 10, "ten\n"), ("g-1", 9, "nine\n"), ("g-2", 1, "one\n")]
    versions = pa.table(
        dict(zip(("golem_id", "version", "markdown"), map(list, zip(*written, strict=True)), strict=True))
    )
    known = rows(lesson("threshold_lower"))
    assert dict(pages_of(versions, known)) == {"g-1": "ten\n" + lesson_sections(known)["g-1"], "g-2": "one\n"}


def derive(stores: DerivationContext) -> None:
    derive_curation(stores)
    derive_dreams(stores)


def files(stores: DerivationContext) -> dict[str, str]:
    return {path.parent.name: path.read_text() for path in stores.home.playbooks.glob("*/PLAYBOOK.md")}


def expected(stores: DerivationContext) -> dict[str, str]:
    return dict(pages_of(stores.projections.read("playbooks"), stores.projections.read("lessons")))


@pytest.fixture(scope="module")
def dreamt_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which two golems lived for days and dreamt. Copy it before writing."""
    stores = home_of(day(), tmp_path_factory.mktemp("pages") / "home", HASTY)
    derive(stores)
    stores.log.close()
    return stores.home.root


@pytest.fixture
def stores(dreamt_home: Path, tmp_path: Path) -> DerivationContext:
    shutil.copytree(dreamt_home, tmp_path / "home")
    return stores_at(tmp_path / "home", HASTY)


@pytest.mark.full
def test_pages_of_dreaming_golems_are_the_playbooks_with_their_lessons(stores: DerivationContext) -> None:
    pages = files(stores)
    assert pages == expected(stores)
    assert sum(HEADING in page for page in pages.values()) > 0
    write_playbooks(stores, stores.projections.read("playbooks"))  # as a change of the playbook or an adoption does
    assert files(stores) == pages


@pytest.mark.full
def test_pages_of_an_earlier_version_get_their_lessons_with_the_next_derivation(stores: DerivationContext) -> None:
    pages = files(stores)
    for golem_id, page in pages.items():
        stores.home.playbook(golem_id).write_text(page.split(f"\n{HEADING}")[0])
    (stores.home.playbooks / ".lessons").unlink()
    assert files(stores) != pages
    assert derive_dreams(stores) == []
    assert files(stores) == pages


@pytest.mark.full
@pytest.mark.row("X-4")
def test_an_interrupted_run_and_a_strike_leave_the_pages_of_the_lessons_on_record(
    stores: DerivationContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = {golem_id for golem_id, page in files(stores).items() if HEADING in page}
    rows_of = stores.projections.growing("hypotheses").read(golems=listed)
    causes = rows_of.filter(pc.equal(rows_of["operation"], "confirmed"))
    for row in causes.select(["golem_id", "cause_ticks"]).to_pylist():
        strike(stores, row["golem_id"], min(row["cause_ticks"]), "its sensor lied", now=NOW)
    before = files(stores)
    derive_curation(stores)
    replace = ReplaceableTable.replace

    def cut(table: ReplaceableTable, *words: object, **names: object) -> object:
        if table.name == "lessons":
            raise PowerCut
        return replace(table, *words, **names)

    with monkeypatch.context() as patch:
        patch.setattr(ReplaceableTable, "replace", cut)
        with pytest.raises(PowerCut):
            derive_dreams(stores)
    interrupted = files(stores)
    again = stores_at(stores.home.root, HASTY)
    derive(again)
    assert before != files(again) == interrupted == expected(again)
    assert "playbook files" not in {remnant.place for remnant in remains(again)}
    page = again.home.playbook(min(listed))
    page.write_text(before[min(listed)] + "- rebalanceThreshold moves by the struck record\n")
    assert str(page) in {remnant.row for remnant in remains(again) if remnant.place == "playbook files"}


@pytest.mark.full
@pytest.mark.row("X-4")
def test_the_proof_of_a_removal_expects_the_lessons_that_remain(stores: DerivationContext) -> None:
    golem_id = min(golem_id for golem_id, page in files(stores).items() if HEADING in page)
    strike(stores, golem_id, stores.log.head_of(golem_id).highest, "its sensor lied", now=NOW)
    derive(stores)
    page = files(stores)[golem_id]
    assert HEADING in page
    assert "playbook files" not in {remnant.place for remnant in remains(stores)}
    stores.home.playbook(golem_id).write_text(page.split(f"\n{HEADING}")[0])
    assert [r.golem_id for r in remains(stores) if r.place == "playbook files"] == [golem_id]
