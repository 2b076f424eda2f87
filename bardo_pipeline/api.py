"""Functions of the public API: open a home, record a birth, derive, ask, search, trace and watch.

Each function takes a home as `Home` or as the path of its folder, opens what it needs and closes it again.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from bardo_pipeline.cli.fleet.run_command import RunSettings, go
from bardo_pipeline.clock import utc_now
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.derive_home import derive_home
from bardo_pipeline.derivation.dreams.derive_lessons import known_entries
from bardo_pipeline.derivation.event_stream.watch import watch as _watch
from bardo_pipeline.derivation.memory.ask import ask as _ask
from bardo_pipeline.derivation.memory.ask import golem_moment
from bardo_pipeline.derivation.memory.free_texts import Stored, TextsFound, store_texts
from bardo_pipeline.derivation.memory.free_texts import search_texts as _search_texts
from bardo_pipeline.derivation.memory.search import search as _search
from bardo_pipeline.derivation.memory.search import search_table
from bardo_pipeline.derivation.reports.lineage import Holding, lineage_of
from bardo_pipeline.derivation.succession.birth_events import UNKNOWN, record_founder
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.events.experience.stored_text import SORTS, stored_text
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA, to_models
from bardo_pipeline.events.record.model import DecisionCycleRecord
from bardo_pipeline.events.stream.catalogue import GolemEvent
from bardo_pipeline.grimoire.entry_columns import confidence_of
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.advice import Advice
from bardo_pipeline.retrieval.hybrid_search import Filters
from bardo_pipeline.retrieval.retrieve import Answer
from bardo_pipeline.runtime.run_settings import Ending
from bardo_pipeline.storage.home import Home, local_folder, typed_disk_errors


def open_home(path: Path | str, *, policy: Policy | None = None, owner: str | None = None) -> Home:
    """Open the home in a folder; create it if missing.

    With an owner, the functions of this module return what that owner may see, and act for that owner only.

    Parameters
    ----------
    path : folder of the home
    policy : sets the bucket count of a new home; an existing home keeps its own
    owner : owner of golems, of a key or of credit; its first golem (`birth`) makes an owner known

    Raises
    ------
    SchemaVersionError : a newer version of the library created the home
    StoreError : home.json cannot be read

    Examples
    --------
    >>> home = open_home("memory")
    >>> home.bucket_count
    16
    """
    home = Home.create(local_folder(path), policy or Policy(), utc_now())
    home.owner = owner
    return home


def birth(
    home: Home | Path | str,
    *,
    owner: str | None = None,
    lineage: str | None = None,
    market: str = UNKNOWN,
    budget_micros: int = 50_000_000,
    lifespan_ticks: tuple[int, int] = (2_000, 8_000),
    at: datetime | None = None,
) -> str:
    """Record the birth of a golem of generation 0 and return its id.

    A second call with the same lineage records nothing and returns the same id.

    Parameters
    ----------
    owner : by default the owner for whom the home was opened, else "me"
    lineage : name of the line of descent; random by default, so each call founds another golem
    budget_micros : capital and credits at birth, in micro-dollars
    lifespan_ticks : bounds between which the lifespan is drawn
    at : UTC moment of the birth, not after the first record's `observed_at`; the current moment by default

    Raises
    ------
    ConfigError : the budget does not cover the death reserve, or the home was opened for another owner

    Examples
    --------
    >>> home = open_home("memory")
    >>> birth(home, lineage="mine/1")
    'g-202940c9'
    """
    now, opened_for = utc_now(), _owner(home)
    owner = owner or opened_for or "me"
    if opened_for not in (None, owner):
        raise ConfigError(f"owner {owner!r}: the home was opened for {opened_for!r}: open it for that owner")
    founding = Founding((owner,), budget_micros, lifespan_ticks=lifespan_ticks)
    with _opened(_root(home)) as context:
        golem_id, _ = record_founder(
            context, None, owner_id=owner, lineage_id=lineage or f"{owner}/{secrets.token_hex(8)}", founding=founding,
            market=market, at=at or now, now=now,
        )  # fmt: skip
    return golem_id


def read_records(home: Home | Path | str, golem_id: str) -> list[DecisionCycleRecord]:
    """Return one golem's records in the log, ordered by tick.

    Examples
    --------
    >>> records = read_records(home, golem_id)
    >>> [record.tick for record in records[:3]]
    [1, 2, 3]
    """
    with _opened(home) as context:
        rows = context.log.read_cycles(RECORD_SCHEMA.names, golems=[golem_id])
        return to_models(rows.sort_by("tick"), DecisionCycleRecord)


def derive(home: Home | Path | str, *, marts: bool = False) -> None:
    """Update every derived table to the end of the log; judge and publish bundles of dead golems.

    Parameters
    ----------
    marts : build the DuckDB warehouse with dbt afterwards

    Raises
    ------
    DerivationError : a table cannot be derived, or a model or test of dbt failed
    ConfigError : the home was opened for one owner

    Examples
    --------
    >>> derive(home)
    """
    _require_whole(home)
    with _opened(home) as context:
        derive_home(context, clock=utc_now, marts=marts)


def ask(
    home: Home | Path | str,
    golem_id: str,
    question: str,
    *,
    k: int | None = None,
    at: datetime | None = None,
    tick: int | None = None,
    regime: str | None = None,
    clade: bool = False,
) -> Answer:
    """Return the entries of a golem's grimoire that score highest for a question.

    Parameters
    ----------
    k : number of entries, the policy's five by default
    at, tick : an earlier moment (UTC, event time) or tick of the golem's life; the newest by default
    regime : assume this market regime
    clade : include entries of the owner's other golems at a discounted score

    Returns
    -------
    Answer with `hits`, one row per entry with its score and four factors

    Raises
    ------
    QueryError : unknown golem or tick, or an empty or too long question

    Examples
    --------
    >>> answer = ask(home, golem_id, "what does gas usually cost?", k=3)
    >>> answer.hits.num_rows <= 3
    True
    """
    with _opened(home) as context:
        moment = golem_moment(context, golem_id, at=at, tick=tick)
        moment = moment if regime is None else moment.in_regime(regime)
        return _ask(context, moment, question, now=utc_now(), k=k, clade=clade)


def search(
    home: Home | Path | str,
    question: str,
    *,
    store: str = "both",
    golem_id: str | None = None,
    filters: Filters | None = None,
    limit: int | None = None,
) -> pa.Table:
    """Search entries and episodes of all golems by words and by meaning.

    Parameters
    ----------
    store : "entries", "episodes" or "both"
    golem_id : search only this golem's
    filters : conditions on kind, category, domain, regime, status, chain, pair, tool and confidence
    limit : number of texts, the policy's ten by default

    Returns
    -------
    Table with one row per text, best first: rank, score, id, golem_id, kind, text, ...

    Raises
    ------
    QueryError : unknown store or golem, or an empty or too long question

    Examples
    --------
    >>> search(home, "gas in a falling trend", limit=2).num_rows
    2
    """
    with _opened(home) as context:
        rows = _search(context, question, now=utc_now(), store=store, golem_id=golem_id, filters=filters, limit=limit)
        return search_table(rows)


def store_episode(
    home: Home | Path | str,
    golem_id: str,
    text: str,
    *,
    sort: str = "episode",
    at: datetime | None = None,
    **fields: Any,
) -> Stored:
    """Store a text of a golem in its own words, embed it, and make it found at once.

    Parameters
    ----------
    sort : "episode", "insight" or "reflection"
    at : UTC moment of the text; the current moment by default
    fields : tool, outcome (any JSON value), reflection, importance ("routine", "notable", "critical", "emergency"),
        tags, category, session, place, speaker, told_at, chain, pair, dream_tag

    Returns
    -------
    Stored with the id of the text, and the id of an earlier text that it confirms

    Raises
    ------
    QueryError : no golem of this name was born, or it is dead
    RecordError : a field is invalid

    Examples
    --------
    >>> living = birth(home, lineage="mine/2")
    >>> stored = store_episode(home, living, "The noon swap slipped by 40 bps.", tool="swap", outcome={"bps": 40})
    >>> stored.count_after - stored.count_before
    1
    """
    now = utc_now()
    with _opened(home) as context:
        (stored,) = store_texts(context, golem_id, [stored_text(text, sort=sort, **fields)], at=at or now, now=now)
        return stored


def search_texts(
    home: Home | Path | str,
    question: str,
    *,
    golem_id: str | None = None,
    sorts: Collection[str] = SORTS,
    facets: Mapping[str, str] | None = None,
    limit: int | None = None,
    decay: bool = True,
) -> TextsFound:
    """Search the stored texts of all golems, or of one, by words and by meaning.

    Parameters
    ----------
    sorts : sorts of texts to search
    facets : values that the texts must have: tool, category, chain, pair, session
    limit : number of texts, the policy's ten by default
    decay : whether age and confidence lower the score

    Returns
    -------
    TextsFound with `hits`, best first

    Raises
    ------
    QueryError : unknown golem, sort or facet, or an empty or too long question

    Examples
    --------
    >>> stored = store_episode(home, birth(home, lineage="mine/3"), "The bridge stalled for two hours.")
    >>> search_texts(home, "how long did the bridge stall?").hits[0].text
    'The bridge stalled for two hours.'
    """
    golem_ids = None if golem_id is None else [golem_id]
    with _opened(home) as context:
        return _search_texts(
            context, question, now=utc_now(), golem_ids=golem_ids, sorts=sorts, facets=facets, limit=limit, decay=decay
        )


def advice(home: Home | Path | str, golem_id: str) -> Advice:
    """Return a golem's rules about the actions that its runtime reported.

    Returns
    -------
    Advice whose `holding(situation)` lists the rules for a situation, and whose `best(situation, actions)` chooses

    Raises
    ------
    QueryError : unknown golem

    Examples
    --------
    >>> advice(home, golem_id).best({"task": "sum"}, ["search", "calculator"])
    'search'
    """
    with _opened(home) as context:
        as_of, entries = golem_moment(context, golem_id).situation.at_us, known_entries(context, [golem_id])
        return Advice.of(entries, confidence_of(entries, as_of, context.policy.decay))


def lineage(home: Home | Path | str, entry: str, golem_id: str | None = None) -> list[Holding]:
    """Trace an entry through generations to the ticks that it was derived from.

    Parameters
    ----------
    entry : id of an entry, or a unique prefix
    golem_id : return only this golem and its ancestors

    Raises
    ------
    QueryError : no entry or several entries match

    Examples
    --------
    >>> entry_id = search(home, "gas", store="entries")["id"][0].as_py()
    >>> lineage(home, entry_id)[0].entry_id == entry_id
    True
    """
    with _opened(home) as context:
        return lineage_of(context, entry, golem_id, now=utc_now())


def watch(
    home: Home | Path | str,
    categories: Collection[str] | None = None,
    *,
    golems: Collection[str] | None = None,
    replay: int | None = None,
    since: str | None = None,
    follow: bool = True,
) -> AsyncIterator[GolemEvent]:
    """Iterate over the newest events of a home, then over new ones as they are recorded.

    Parameters
    ----------
    categories, golems : yield only their events
    replay : number of newest events to start with, the policy's 10,000 by default
    since : position of an event; continue after it instead of replaying
    follow : wait for new events; otherwise the iteration ends after the replay

    Raises
    ------
    NoHomeError, QueryError : no home in this folder; an unknown category or position

    Examples
    --------
    >>> import asyncio
    >>> async def names():
    ...     return [event.name async for event in watch(home, replay=3, follow=False)]
    >>> len(asyncio.run(names()))
    3
    """
    return _watch(_root(home), categories, golems=golems, replay=replay, since=since, follow=follow, owner=_owner(home))


def run_fleet(
    home: Home | Path | str,
    *,
    golems: int = 8,
    generations: int = 3,
    seed: int = 7,
    bars: int = 5_760,
    lifespan_ticks: tuple[int, int] = (2_000, 8_000),
    owners: tuple[str, ...] = ("owner-1",),
    trace: Path | None = None,
    marts: bool = False,
) -> Ending:
    """Run golems through a market, record every tick and derive their knowledge.

    Parameters
    ----------
    golems, generations : number of golems in the first generation; generations until a lineage ends
    seed, bars : seed of the synthetic market, its length in minutes
    trace : folder with a recorded market (CSV of demeter-fetch) instead of the synthetic one
    marts : build the DuckDB warehouse with dbt afterwards

    Returns
    -------
    Ending with the counts of records, births, deaths and published bundles

    Raises
    ------
    TraceError, ConfigError : the recorded market or a parameter is invalid, or the home was opened for one owner

    Examples
    --------
    >>> ending = run_fleet("other", golems=1, generations=1, bars=120, lifespan_ticks=(60, 80))
    >>> ending.births, ending.deaths
    (1, 1)
    """
    _require_whole(home)
    settings = RunSettings(
        golems=golems, generations=generations, seed=seed, bars=bars, lifespan_ticks=lifespan_ticks, owners=owners,
        trace=trace,
    )  # fmt: skip
    with typed_disk_errors():
        return go(_root(home), settings, clock=utc_now, console=Console(quiet=True), derive=True, marts=marts)


def _root(home: Home | Path | str) -> Path:
    return home.root if isinstance(home, Home) else Path(home)


def _owner(home: Home | Path | str) -> str | None:
    return home.owner if isinstance(home, Home) else None


def _require_whole(home: Home | Path | str) -> None:
    """Raise ConfigError for a home that was opened for one owner."""
    if (owner := _owner(home)) is not None:
        raise ConfigError(f"this acts on the whole home, not on owner {owner!r} alone: open the home without an owner")


@contextmanager
def _opened(home: Home | Path | str) -> Iterator[DerivationContext]:
    """Open the active derivation of a home for its owner; close its log afterwards."""
    with typed_disk_errors():
        context = DerivationContext.open(_root(home), owner=_owner(home))
        try:
            yield context
        finally:
            context.log.close()
