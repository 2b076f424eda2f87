"""Texts of runtimes: their doors, their owners, their order, and that a question finds them at once."""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

import pytest

from bardo_pipeline.api import birth, open_home
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.ask import ask, golem_moment
from bardo_pipeline.derivation.memory.free_texts import (
    Stored,
    search_texts,
    store_texts,
)
from bardo_pipeline.derivation.memory.search import search
from bardo_pipeline.derivation.memory.shared_texts import SharedTexts, _indexes, open_texts, shared_texts
from bardo_pipeline.derivation.reports.lineage import lineage_of
from bardo_pipeline.errors import QueryError, RecordError
from bardo_pipeline.events.custody.hash_chain import content_of
from bardo_pipeline.events.experience.stored_text import StoredText, stored_text
from bardo_pipeline.events.life.events import LifeEvent, golem_name, life_event
from bardo_pipeline.events.record.model import Part
from bardo_pipeline.heartbeat.fleet import Founding, born
from bardo_pipeline.storage.journal.event_writer import EventWriter
from tests.conftest import NOW, copy_home
from tests.support.homes.spool_homes import KEY, OWNER_KEY, SMALL, line_of, opened, record_owned_birth, signed
from tests.support.homes.tool_homes import ToolHome
from tests.support.homes.waiting_texts import embed_waiting
from tests.support.processes.bardo_command import bardo
from tests.support.records.log_queries import died

SLIP = "The swap at noon slipped by forty basis points because the pool was thin."
VAULT = "Depositing into the vault before its fee change saved a day of yield."
BRIDGE = "The bridge to the other chain stalled for two hours."


def text_event(text: str, hours: int = 0, **fields: object) -> LifeEvent:
    return life_event("g-1", NOW + timedelta(hours=hours), stored_text(text, **fields))  # type: ignore[arg-type]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A home with golem g-1 of owner-1, whose key is KEY."""
    place = opened(tmp_path / "home")
    record_owned_birth(place, "g-1")
    return place.home.root


def texts_found(root: Path, question: str, **options: object) -> list[str]:
    return texts_of(DerivationContext.open(root), question, **options)


def texts_of(context: DerivationContext, question: str, **options: object) -> list[str]:
    return [hit.text for hit in search_texts(context, question, now=NOW, **options).hits]  # type: ignore[arg-type]


def store(context: DerivationContext, *texts: StoredText, hours: int = 0, golem: str = "g-1") -> list[Stored]:
    return store_texts(context, golem, texts, at=NOW + timedelta(hours=hours), now=NOW)


def test_a_signed_text_in_the_spool_is_found_and_an_unsigned_one_is_refused(root: Path) -> None:
    place = opened(root)
    good, bad = line_of(text_event(SLIP, tool="swap", outcome={"bps": 40})), line_of(text_event(VAULT))
    place.drop("a.life.jsonl", [good], [signed("g-1", content_of(good), OWNER_KEY, KEY)])
    place.drop("b.life.jsonl", [bad])
    assert sum(report.written for report in place.take()) == 1
    assert [item.error for item in place.refused()] == ["AuthorityError"]
    assert texts_found(root, "which swap slipped?") == [SLIP]


def test_a_text_of_the_writer_is_found(root: Path) -> None:
    with EventWriter.open(DerivationContext.open(root).home, "g-1", clock=lambda: NOW) as writer:
        assert writer.record(text_event(SLIP)) == 1
    assert texts_found(root, "a slipping swap") == [SLIP]


@pytest.mark.parametrize("step", ["_add", "_inherit"])
def test_a_text_whose_indexing_failed_is_found_by_the_next_question(
    step: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = DerivationContext.open(root)
    assert texts_of(context, "which swap slipped?") == []
    with monkeypatch.context() as patch:
        patch.setattr(SharedTexts, step, lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store(context, stored_text(SLIP))
    assert texts_of(context, "which swap slipped?") == [SLIP]


@pytest.mark.full
def test_the_command_stores_a_text_once(root: Path) -> None:
    words = ("remember", "g-1", BRIDGE, "--importance", "critical", "--tag", "bridges", "--at", "2026-11-01", "--json")
    first, second = (json.loads(bardo(*words, home=root)) for _ in range(2))
    assert (first["count_before"], first["count_after"], first["dimension"]) == (0, 1, 384)
    assert (second["count_before"], second["count_after"], second["text_id"]) == (1, 1, first["text_id"])
    assert texts_found(root, "how long did bridging stall?") == [BRIDGE]
    late = bardo("remember", "g-1", "text", "--at", "2999-01-01", home=root, expect=2)
    assert "--at 2999-01-01 is ahead of the clock" in late
    assert "--outcome is no JSON" in bardo("remember", "g-1", "text", "--outcome", "{", home=root, expect=2)
    assert "no golem of this name was born" in bardo("remember", "g-2", "text", home=root, expect=2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"text": " "}, "blank"), ({"text": "x", "importance": "huge"}, "importance"),
     ({"text": "x", "outcome": {1, 2}}, "JSON"), ({"text": "x", "sort": "poem"}, "sort"),
     ({"text": "x", "tags": ("t",) * 65}, "at most 64 tags"), ({"text": "x" * 16_385}, "16384 characters")],
)  # fmt: skip
def test_an_invalid_text_is_refused_by_name(fields: dict[str, object], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        stored_text(**fields)  # type: ignore[arg-type]


def test_a_search_names_a_wrong_request(root: Path) -> None:
    context = DerivationContext.open(root)
    for options, message in (({"limit": 51}, "1 to 50"), ({"facets": {"colour": "red"}}, "no 'colour'"),
                             ({"sorts": ("poem",)}, "no 'poem'"), ({"golem_ids": ["g-9"]}, "was born")):  # fmt: skip
        with pytest.raises(QueryError, match=message):
            texts_of(context, "swap", **options)
    assert texts_of(context, "swap") == []


def test_late_texts_give_the_scores_of_an_index_built_at_once(root: Path, tmp_path: Path) -> None:
    said = [stored_text(f"{who} saw pool {n} of the {what}", speaker=who, session=f"s{n // 4}")
            for n, (who, what) in enumerate([("Ada", "swap"), ("Bob", "vault"), ("Ada", "bridge")] * 4)]  # fmt: skip
    context = DerivationContext.open(root)
    for n in (5, 6, 0, 11, 1, 2, 3, 10, 4, 7, 9, 8):
        store(context, said[n], hours=n)
        texts_of(context, "Ada's bridge")
    other = opened(tmp_path / "other")
    record_owned_birth(other, "g-1")
    other.log.record([life_event("g-1", NOW + timedelta(hours=n), text) for n, text in enumerate(said)], NOW)
    at_once = search_texts(DerivationContext.open(other.home.root), "Ada's bridge", now=NOW, limit=12)
    assert search_texts(context, "Ada's bridge", now=NOW, limit=12).hits == at_once.hits
    assert len(at_once.hits) == 12


def test_a_statement_like_an_earlier_one_is_its_upvote_and_both_stay_in_the_log(root: Path) -> None:
    context = DerivationContext.open(root)
    texts = ["Gas doubles at noon on weekdays.", "On weekdays gas doubles at noon.", "Thin pools slip at night."]
    first, again, other = store(context, *(stored_text(text, sort="insight") for text in texts))
    assert (first.upvote_of, again.upvote_of, other.upvote_of) == (None, first.text_id, None)
    result = search_texts(context, "gas at noon", now=NOW)
    assert [hit.text_id for hit in result.hits] == [first.text_id, other.text_id]
    assert [(hit.upvotes, round(hit.retained, 6)) for hit in result.hits] == [(1, 0.7), (0, 0.6)]
    assert dict(result.searched) == {"episode": 0, "insight": 2, "reflection": 0}
    assert texts_of(context, "gas at noon", confidence_min=0.65) == [texts[0]]
    assert context.log.life("TextStored").num_rows == 3
    assert context.log.life().num_rows == 2, "the birth and the key, without texts"
    episodes = store(context, stored_text(SLIP), stored_text(SLIP), hours=1)
    assert [episode.upvote_of for episode in episodes] == [None, None], "an episode happened each time"
    store(context, stored_text(SLIP), stored_text(VAULT), hours=2)
    assert texts_of(context, "which swap slipped at noon?", limit=2) == [SLIP, VAULT], "each text is listed once"


def test_age_lowers_a_score_by_a_bounded_share_and_importance_slows_it(root: Path) -> None:
    context = DerivationContext.open(root)
    store(context, stored_text(SLIP))
    store(context, stored_text(f"{SLIP} ", speaker="Ada", importance="emergency"), hours=1)
    store(context, stored_text(VAULT), hours=24 * 100)
    hits = {hit.observed_at: hit for hit in search_texts(context, "which swap slipped at noon?", now=NOW).hits}
    old, lasting, new = (hits[moment] for moment in sorted(hits))
    share = context.policy.search.decay_penalty
    assert old.retained < 1e-5
    assert old.score == pytest.approx(old.relevance * (1.0 - share), rel=1e-4)
    assert lasting.retained == pytest.approx(0.574, abs=0.01)
    assert lasting.score > old.score > new.score, "an old text that matches ranks before a new one that does not"
    fresh = search_texts(context, "which swap slipped at noon?", now=NOW, decay=False).hits
    assert all(hit.score == pytest.approx(hit.relevance) for hit in fresh)


def test_two_copies_of_a_home_have_indexes_of_their_own(root: Path, tmp_path: Path) -> None:
    copy = copy_home(root, tmp_path / "copy")
    store(DerivationContext.open(root), stored_text(SLIP))
    store(DerivationContext.open(copy), stored_text(VAULT))
    assert (texts_found(root, "swap or vault"), texts_found(copy, "swap or vault")) == ([SLIP], [VAULT])


def test_texts_of_another_owner_neither_show_nor_count(root: Path) -> None:
    home = open_home(root, owner="owner-2")
    other = birth(home, lineage="other", at=NOW)
    context = DerivationContext.open(root)
    store(context, stored_text(SLIP), stored_text(VAULT))
    mine = DerivationContext.open(root, owner="owner-1")
    before = search_texts(mine, "which swap slipped?", now=NOW)
    store(context, *(stored_text(f"A secret swap slipped in pool {n}.") for n in range(5)), golem=other)
    after = search_texts(mine, "which swap slipped?", now=NOW)
    assert after.hits == before.hits
    assert after.searched == before.searched
    assert len(search_texts(context, "which swap slipped?", now=NOW).hits) == 7
    assert mine.log.life("TextStored").num_rows == mine.log.texts()[1].num_rows == 2


def test_a_text_without_a_vector_is_found_by_words_and_later_by_meaning(root: Path) -> None:
    context = DerivationContext.open(root)
    (stored,) = store_texts(context, "g-1", [stored_text(BRIDGE)], at=NOW, now=NOW, embed=False)
    assert stored.dimension == 0
    assert embed_waiting(context, now=NOW, limit=0) == 1
    result = search_texts(context, "bridge", now=NOW)
    assert (result.hits[0].text, result.waiting) == (BRIDGE, 0), "a question embeds what waits"
    assert embed_waiting(context, now=NOW) == 0


@pytest.mark.parametrize("is_collecting", [True, False])
def test_opened_texts_have_their_vectors_and_leave_the_collector_as_it_was(root: Path, *, is_collecting: bool) -> None:
    context = DerivationContext.open(root)
    store(context, stored_text(SLIP, outcome={"filled": True}, tags=("thin",)), stored_text(VAULT))
    store_texts(context, "g-1", [stored_text(BRIDGE)], at=NOW, now=NOW, embed=False)
    copied = DerivationContext.open(copy_home(root, root.parent / "copy"))
    was_collecting = gc.isenabled()
    (gc.enable if is_collecting else gc.disable)()
    try:
        open_texts(copied, NOW)
        assert gc.isenabled() is is_collecting
    finally:
        (gc.enable if was_collecting else gc.disable)()
    with shared_texts(copied, NOW) as texts:
        assert list(texts.index.waiting(texts.index.keys).values()) == [BRIDGE], "only recorded vectors are read"
    asked = [search_texts(each, "which swap slipped?", now=NOW) for each in (copied, context)]
    assert asked[0].hits == asked[1].hits
    assert asked[0].hits[0].stored["tags"] == ["thin"]


def test_a_text_that_finds_the_model_busy_is_found_by_words_and_gets_its_vector_with_the_next(root: Path) -> None:
    context = DerivationContext.open(root)
    store(context, stored_text(SLIP))
    with shared_texts(context, NOW) as texts:
        embedding = texts.embedding
    with embedding:
        (waiting,) = store_texts(context, "g-1", [stored_text(BRIDGE)], at=NOW, now=NOW, waits=False)
        assert (waiting.dimension, waiting.is_new, waiting.count_after) == (0, True, 2)
        while_busy = search_texts(context, "bridge", now=NOW)
        assert (while_busy.hits[0].text, while_busy.waiting) == (BRIDGE, 1)
    (last,) = store_texts(context, "g-1", [stored_text(VAULT)], at=NOW, now=NOW, waits=False)
    assert last.dimension == 384
    assert embed_waiting(context, now=NOW, limit=0) == 0


def test_threads_that_store_at_once_share_commits_and_count_their_own_texts(root: Path) -> None:
    contexts = [DerivationContext.open(root) for _ in range(8)]
    before = contexts[0].log.life_version

    def stored_by(place: int) -> Stored:
        texts = [stored_text(f"the swap of pool {place} slipped")]
        return store_texts(contexts[place], "g-1", texts, at=NOW + timedelta(seconds=place), now=NOW, waits=False)[0]

    with ThreadPoolExecutor(8) as threads, contexts[0].home.lock("log"):
        running = [threads.submit(stored_by, place) for place in range(8)]
        while contexts[0].log._waiting_writes.count < 7:
            Event().wait(0.001)
    results = [one.result() for one in running]
    assert contexts[0].log.life_version == before + 2
    assert [one.is_new and one.count_after - one.count_before for one in results] == [1] * 8
    assert search_texts(contexts[1], "the swap of pool 5", now=NOW).searched["episode"] >= 1
    assert contexts[2].log.texts()[1].num_rows == 8


def lineage(count: int) -> list[tuple[str, Part]]:
    """Golem and birth of each generation of a lineage whose deaths leave bundles."""
    return [
        born(
            lineage_id="line", generation=n, owner_id="owner-1", founding=Founding(), market="m", market_hash="-",
            derivation_id="d", policy=SMALL, bundle_hash="b" * 64 if n else None,
            predecessor_id=golem_name("line", n - 1) if n else None,
        )
        for n in range(count)
    ]  # fmt: skip


def test_a_text_that_is_later_than_a_death_does_not_cross_it_and_hinders_no_question(tmp_path: Path) -> None:
    place, ((founder, birth_of_founder), (heir, birth_of_heir)) = opened(tmp_path / "home"), lineage(2)
    place.log.record([life_event(founder, NOW - timedelta(days=30), birth_of_founder)], NOW)
    context = DerivationContext.open(place.home.root)
    store(context, stored_text(SLIP), golem=founder, hours=1)  # as of the machine's clock, in a market of the past
    place.log.record([died(9, founder), life_event(heir, NOW, birth_of_heir)], NOW)
    assert search_texts(context, "the swap", now=NOW, golem_ids=[heir]).hits == ()
    assert [hit.golem_id for hit in search_texts(context, "the swap", now=NOW).hits] == [founder]
    store(context, stored_text(SLIP), golem=heir, hours=2)
    assert [hit.golem_id for hit in search_texts(context, "the swap", now=NOW, golem_ids=[heir]).hits] == [heir]


def test_a_text_between_the_last_record_and_the_declared_death_crosses(tmp_path: Path) -> None:
    place, ((founder, birth_of_founder), (heir, birth_of_heir)) = opened(tmp_path / "home"), lineage(2)
    place.log.record([life_event(founder, NOW - timedelta(days=30), birth_of_founder)], NOW)
    context = DerivationContext.open(place.home.root)
    store(context, stored_text(SLIP), golem=founder, hours=1)  # behind its last record, before its silence is declared
    place.log.record([died(9, founder), life_event(heir, NOW, birth_of_heir)], NOW + timedelta(hours=3))
    hits = search_texts(context, "the swap", now=NOW, golem_ids=[heir]).hits
    assert [(hit.text, hit.origin_golem_id) for hit in hits] == [(SLIP, founder)]


def test_words_that_an_edit_replaced_cross_no_death_in_a_home_that_is_opened_later(tmp_path: Path) -> None:
    place, ((founder, birth_of_founder), (heir, birth_of_heir)) = opened(tmp_path / "home"), lineage(2)
    place.log.record([life_event(founder, NOW - timedelta(days=30), birth_of_founder)], NOW)
    home = ToolHome(place.home.root, founder, heir, NOW)
    arguments = {"content": "Gas is cheapest on Sunday mornings.", "category": "gas_timing"}
    added = home.call("memory_manage_insight", operation="ADD", **arguments)
    home.wait(minutes=1)
    new = "Bridges to Solana need a second confirmation."
    home.call("memory_manage_insight", operation="EDIT", insight_id=added.insight_id, content=new)
    home.wait(minutes=1)
    place.log.record([died(9, founder), life_event(heir, home.at, birth_of_heir)], home.at)
    for root in (home.root, copy_home(home.root, tmp_path / "opened")):
        hits = search_texts(DerivationContext.open(root), "gas on Sunday", now=home.at, golem_ids=[heir]).hits
        assert [hit.text for hit in hits] == [new]


def test_the_best_texts_cross_a_death_attenuated_and_the_heir_finds_them(tmp_path: Path) -> None:
    place, generations = opened(tmp_path / "home"), lineage(3)
    founder, heir, late = (golem_id for golem_id, _ in generations)
    place.log.record([life_event(founder, NOW - timedelta(days=30), generations[0][1])], NOW)
    context = altered_context(place.home.root, crossing=3)
    rule, again = "Gas doubles at noon on weekdays.", "On weekdays gas doubles at noon."
    store(context, stored_text(SLIP), stored_text(BRIDGE, importance="emergency"), golem=founder, hours=-480)
    store(context, stored_text(VAULT), golem=founder, hours=-2)
    store(context, stored_text(rule, sort="insight"), stored_text(again, sort="insight"), golem=founder, hours=-1)
    place.log.record([died(9, founder), life_event(heir, NOW, generations[1][1])], NOW)
    with pytest.raises(QueryError, match="died at tick 9"):
        store(context, stored_text(SLIP), golem=founder)
    inherited = search_texts(context, "gas, bridge, vault or swap", now=NOW, golem_ids=[heir]).hits
    assert {hit.text for hit in inherited} == {BRIDGE, VAULT, rule}, (
        "the routine text of twenty days ago is left behind"
    )
    assert {hit.origin_golem_id for hit in inherited} == {founder}
    (insight,) = (hit for hit in inherited if hit.sort == "insight")
    assert insight.retained == pytest.approx(0.7 * 0.85)
    (confirmed,) = store(context, stored_text(again, sort="insight"), golem=heir, hours=1)
    assert confirmed.upvote_of == insight.text_id
    (insight,) = search_texts(context, "gas", now=NOW, golem_ids=[heir], sorts=["insight"]).hits
    assert (insight.upvotes, insight.text) == (1, rule)
    assert insight.retained == pytest.approx(0.7 * 0.85 + 0.1)
    everywhere = [hit.text for hit in search_texts(context, "gas, bridge, vault or swap", now=NOW).hits]
    assert sorted(everywhere) == sorted([SLIP, BRIDGE, VAULT, rule]), "an inherited text is shown once"
    derived = {row.text: row.holders for row in search(context, "gas, bridge, vault or swap", now=NOW)}
    assert derived == dict.fromkeys(everywhere, 1), "`bardo search` counts it once too"
    assert {row.text for row in search(context, "gas", now=NOW, golem_id=heir)} == {BRIDGE, VAULT, rule}
    second = life_event(heir, NOW + timedelta(hours=2), died(5, heir).payload)
    place.log.record([second, life_event(late, NOW + timedelta(hours=3), generations[2][1])], NOW)
    found_by_third = search_texts(context, "gas", now=NOW, golem_ids=[late], sorts=["insight"]).hits
    assert [hit.retained for hit in found_by_third] == [pytest.approx((0.7 * 0.85 + 0.1) * 0.85)]
    assert found_by_third[0].origin_golem_id == founder
    line = lineage_of(context, insight.text_id, now=NOW)
    assert [(held.golem_id, held.from_golem_id) for held in line] == [(founder, None), (heir, founder), (late, heir)]
    assert [held.decisions[0]["operation"] for held in line] == ["stored", "received", "received"]
    assert [held.decisions[0]["at"] - NOW for held in line] == [timedelta(hours=h) for h in (-1, 0, 2)]
    assert [held.confidence_ppm for held in line] == [700_000, 695_000, 590_750]
    assert lineage_of(context, insight.text_id, heir, now=NOW) == line[:2]
    for _ in ("with the open index", "without one"):
        hits = ask(context, golem_moment(context, late), "when does gas double?", now=NOW).hits
        assert hits.select(["text", "confidence_ppm"]).to_pylist() == [{"text": rule, "confidence_ppm": 590_750}]
        _indexes.clear()


def test_ask_embeds_no_episode_that_waits(root: Path) -> None:
    context = DerivationContext.open(root)
    store(context, stored_text("Gas doubles at noon on weekdays.", sort="insight"))
    store_texts(context, "g-1", [stored_text(SLIP)], at=NOW, now=NOW, embed=False)
    assert ask(context, golem_moment(context, "g-1"), "when does gas double?", now=NOW).hits.num_rows == 1
    with shared_texts(context, NOW) as texts:
        assert texts.index.waiting_count(["g-1"]) == 1


def test_ask_opens_no_index_for_a_golem_without_insights(root: Path) -> None:
    context = DerivationContext.open(root)
    store(context, stored_text(SLIP), stored_text("The lamp was lit.", sort="reflection"))
    _indexes.clear()
    assert ask(context, golem_moment(context, "g-1"), "why did it slip?", now=NOW).hits.num_rows == 0
    assert context.text_index_key not in _indexes


def altered_context(root: Path, **search: object) -> DerivationContext:
    """Open a home with other settings of the search."""
    context = DerivationContext.open(root)
    policy = context.policy.model_copy(update={"search": context.policy.search.model_copy(update=search)})
    return replace(context, policy=policy)


@pytest.mark.parametrize(
    ("question", "places"),
    [("What did Ada say in May 2023?", {1}), ("When did Bob's sister marry?", {3}), ("and on 2023-06-09?", {2, 3})],
)
def test_speaker_and_date_count_as_words_also_in_an_outcome(root: Path, question: str, places: set[int]) -> None:
    context = DerivationContext.open(root)
    talk: Sequence[tuple[str, str, str]] = (
        ("Bob", "2023-05-07", "Any plans for the weekend, Ada?"),
        ("Ada", "2023-05-07", "I want to hike around the lake."),
        ("Ada", "2023-06-09", "How was the party, Bob?"),
        ("Bob", "2023-06-09", "My sister got married, we danced all night."),
    )
    by_field = [stored_text(text, speaker=who, told_at=datetime.fromisoformat(day).replace(tzinfo=UTC))
                for who, day, text in talk]  # fmt: skip
    store(context, *by_field)
    expected = {talk[place][2] for place in places}
    assert {*texts_of(context, question)[: len(places)]} == expected
    other = birth(open_home(root, owner="owner-1"), lineage="outcomes", at=NOW)
    by_outcome = [stored_text(text, tool="chat", outcome={"speaker": who, "date": day}) for who, day, text in talk]
    store(context, *by_outcome, golem=other)
    assert {*texts_of(context, question, golem_ids=[other])[: len(places)]} == expected
