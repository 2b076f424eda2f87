"""Export and import of a grimoire by the memory tools, on real homes."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import orjson
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.errors import ToolError
from bardo_pipeline.inheritance.canonical_json import canonical
from bardo_pipeline.storage.verification.verify import verify
from tests.conftest import copy_home
from tests.support.homes.tool_homes import ToolHome, tool_home

pytestmark = pytest.mark.row("MEM-20")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> ToolHome:
    """A home whose golem knows two insights, three episodes and a strategy. Copy it before writing."""
    home = tool_home(tmp_path_factory.mktemp("told") / "home")
    for text in ("The swap slipped on a thin pool.", "Gas was cheap before dawn.", "The range held for a week."):
        home.call("memory_store_episode", tool="swap", outcome={"pnl_usd": 1}, reflection=text, chain="base")
        home.wait(hours=1)
    insight = add(home, "Thin pools make large swaps slip.")
    home.call("memory_manage_insight", operation="UPVOTE", insight_id=insight)
    add(home, "Volatility doubles on Mondays.", "volatility")
    home.call(
        "memory_store_strategy", strategy_name="narrow", parameters={"width": 0.04}, description="", chains=["base"],
        token_pairs=[],
    )  # fmt: skip
    return home


@pytest.fixture
def home(told: ToolHome, tmp_path: Path) -> ToolHome:
    """A copy of that home."""
    return ToolHome(copy_home(told.root, tmp_path / "home"), told.golem, told.other, told.at)


def add(home: ToolHome, content: str, category: str = "slippage") -> str:
    """Add an insight; return its id."""
    added = home.call("memory_manage_insight", operation="ADD", content=content, category=category)
    return str(added.insight_id)


def knowledge(home: ToolHome, golem: str) -> dict[str, float]:
    """Return the confidence of each insight of a golem by content."""
    insights = home.call("memory_get_insights", golem=golem, limit=100).insights
    return {insight.content: insight.confidence for insight in insights}


def test_an_archive_carries_the_grimoire_to_another_golem_at_low_confidence(home: ToolHome) -> None:
    exported = home.call("memory_export_grimoire")
    counts = (exported.episodes_exported, exported.insights_exported, exported.strategies_exported)
    assert counts == (3, 2, 1)
    assert exported.file_size_bytes == Path(exported.path).stat().st_size
    before = home.kinds()
    preview = home.call("memory_import_grimoire", golem=home.other, path=exported.path, dry_run=True)
    assert (preview.episodes_imported, preview.insights_imported, preview.strategies_imported) == counts
    assert (home.kinds(), preview.dream_queued) == (before, False)
    done = home.call("memory_import_grimoire", golem=home.other, path=exported.path)
    assert [(c.before, c.expected, c.after) for c in done.counts] == [(0, 5, 5), (0, 2, 2), (0, 1, 1), (0, 1, 1)]
    assert (done.confidence_override, done.dream_queued) == (0.4, True)
    contents = ("Thin pools make large swaps slip.", "Volatility doubles on Mondays.")
    assert knowledge(home, home.other) == pytest.approx(dict.fromkeys(contents, 0.4))
    (hit, *_) = home.call("memory_search", golem=home.other, query="Which swap slipped?", store="episodes").results
    assert hit.content == "The swap slipped on a thin pool."
    (strategy,) = home.call("memory_retrieve_strategies", golem=home.other).strategies
    assert (strategy.from_golem_id, strategy.parameters, strategy.version) == (home.golem, {"width": 0.04}, 1)
    with pytest.raises(ToolError, match="imported this archive at"):
        home.call("memory_import_grimoire", golem=home.other, path=exported.path)


@pytest.mark.full
def test_each_further_crossing_attenuates_the_starting_confidence(home: ToolHome, tmp_path: Path) -> None:
    first = home.call("memory_export_grimoire").path
    home.call("memory_import_grimoire", golem=home.other, path=first, import_confidence=0.5)
    second = home.call("memory_export_grimoire", golem=home.other, min_confidence=0.5)
    assert second.insights_exported == 2
    heir = tool_home(tmp_path / "heir")
    heir.call("memory_import_grimoire", path=second.path)
    assert list(knowledge(heir, heir.golem).values()) == pytest.approx([0.4 * 0.85] * 2)


@pytest.mark.full
def test_an_import_neither_repeats_nor_replaces_what_the_golem_has(home: ToolHome) -> None:
    home.call("memory_import_grimoire", golem=home.other, path=home.call("memory_export_grimoire").path)
    returned = home.call("memory_export_grimoire", golem=home.other).path
    before = knowledge(home, home.golem)
    home.wait(hours=1)
    assert home.call("memory_import_grimoire", path=returned).insights_imported == 0
    assert knowledge(home, home.golem) == before
    names = {s.strategy_name: s.from_golem_id for s in home.call("memory_retrieve_strategies").strategies}
    assert names == {"narrow": None, f"narrow ({home.other})": home.other}


@pytest.mark.full
def test_imported_episodes_are_consolidated_first(home: ToolHome) -> None:
    path = home.call("memory_export_grimoire").path
    for number in range(3):
        home.call(
            "memory_store_episode", golem=home.other, tool="own", outcome={}, reflection=f"Run {number}.", chain=""
        )
    home.wait(hours=1)
    home.call("memory_import_grimoire", golem=home.other, path=path)
    done = home.call("memory_consolidate", golem=home.other, max_episodes=3)
    assert done.insights[0].content.startswith("swap on base pays")


def test_own_episodes_and_not_the_imported_ones_vote_for_an_imported_insight(home: ToolHome, tmp_path: Path) -> None:
    home.call("memory_consolidate")
    path = home.call("memory_export_grimoire").path
    home.wait(hours=1)
    home.call("memory_import_grimoire", golem=home.other, path=path)

    def consolidated() -> tuple[int, int, float]:
        done = home.call("memory_consolidate", golem=home.other)
        (now,) = (c for content, c in knowledge(home, home.other).items() if content.startswith("swap on base"))
        return done.insights_created, done.insights_reinforced, now

    assert consolidated() == (0, 0, 0.4)
    for number in range(3):
        told = {"tool": "swap", "chain": "base", "outcome": {"pnl_usd": 2.0}}
        home.call("memory_store_episode", golem=home.other, reflection=f"The swap number {number} paid.", **told)
    assert consolidated() == (0, 1, pytest.approx(0.5))
    packed = orjson.loads(Path(path).read_bytes())
    for insight in packed["grimoire"]["insights"]:
        del insight["structure"]  # as earlier versions wrote
    packed["content_hash"] = hashlib.sha256(canonical(packed["grimoire"])).hexdigest()
    earlier = tmp_path / "earlier.json"
    earlier.write_bytes(canonical(packed))
    heir = tool_home(tmp_path / "heir")
    assert heir.call("memory_import_grimoire", path=str(earlier)).insights_imported == 3


def test_decayed_episodes_and_weak_insights_stay_out_unless_requested(home: ToolHome) -> None:
    home.wait(days=30)
    home.call("memory_store_episode", tool="swap", outcome={}, reflection="A month later.", chain="base")
    assert home.call("memory_export_grimoire").episodes_exported == 1
    assert home.call("memory_export_grimoire", include_decayed=True).episodes_exported == 4
    assert home.call("memory_export_grimoire", min_confidence=0.65).insights_exported == 1


def test_equal_grimoires_give_equal_bytes(home: ToolHome) -> None:
    first = Path(home.call("memory_export_grimoire").path).read_bytes()
    again = home.call("memory_export_grimoire")
    assert Path(again.path).read_bytes() == first


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\x00", b'{"content_hash": 1, "grimoire": {"secret": "pearl"}}'])
def test_a_file_that_is_no_archive_is_refused_without_a_word_of_it(
    home: ToolHome, tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "other.json"
    file.write_bytes(content)
    with pytest.raises(ToolError, match="no archive of a grimoire") as error:
        home.call("memory_import_grimoire", path=str(file))
    assert "pearl" not in str(error.value).replace(str(file), "")


def test_an_altered_archive_is_refused(home: ToolHome, tmp_path: Path) -> None:
    packed = orjson.loads(Path(home.call("memory_export_grimoire").path).read_bytes())
    packed["grimoire"]["insights"][0]["content"] = "Always trust this."
    file = tmp_path / "altered.json"
    file.write_bytes(orjson.dumps(packed))
    before = home.kinds()
    with pytest.raises(ToolError, match="altered after its export"):
        home.call("memory_import_grimoire", golem=home.other, path=str(file))
    assert home.kinds() == before


def test_an_owner_reads_only_archives_of_its_own_golems(home: ToolHome, tmp_path: Path) -> None:
    path = home.call("memory_export_grimoire", owner="coral").path
    outside = tmp_path / "copy.json"
    outside.write_bytes(Path(path).read_bytes())
    relative = str(Path(path).relative_to(home.root / "archives"))
    for name in (path, relative, str(outside), "/etc/passwd", "../home.json", "nothing.json", "\0"):
        with pytest.raises(ToolError, match="no archive at this path that the caller may read"):
            home.call("memory_import_grimoire", golem=home.other, owner="pearl", path=name)
    home.wait(hours=1)
    assert home.call("memory_import_grimoire", owner="coral", path=relative).episodes_imported == 3


@pytest.mark.full
def test_a_curated_grimoire_is_exported_whole_and_its_home_stays_sound(small_home: Path, tmp_path: Path) -> None:
    root = copy_home(small_home, tmp_path / "home")
    context = DerivationContext.open(root)
    golems: list[str] = sorted(context.life("GolemBorn")["golem_id"].to_pylist())
    dead = next(g for g in golems if context.log.death_of(g) is not None)
    home: Any = ToolHome(root, dead, dead)
    exported = home.call("memory_export_grimoire", include_decayed=True)
    episodes = context.projections.growing("episodes").read(["golem_id"], golems=[dead]).num_rows
    assert exported.episodes_exported == episodes > 0
    assert exported.insights_exported == len(home.call("memory_get_insights", limit=1_000).insights)
    target = tool_home(tmp_path / "target")
    done = target.call("memory_import_grimoire", path=exported.path)
    assert done.episodes_imported == episodes
    assert verify(target.context.home).breaks == ()
