"""Legacy: what the dead leave: testaments, candidate bundles, verdicts, and the bundles that may be inherited.

Testaments and candidates are projections; verdicts and publications are events. A bundle that fails is kept where
it was made and goes no further; the others do. Source: INH S7, architecture ("Running", "Projections").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.episodes import EPISODE_SCHEMA, TEXT_FIELDS
from bardo_pipeline.curator.links import links_of
from bardo_pipeline.derivation.belief import recorded_deaths
from bardo_pipeline.derivation.bundles import load_bundle, read_bundle_folder, write_bundle
from bardo_pipeline.derivation.dying import pass_away
from bardo_pipeline.derivation.identity import knowledge_id
from bardo_pipeline.derivation.measures import Candidate, at_death
from bardo_pipeline.derivation.memory import derive_episodes
from bardo_pipeline.derivation.reading import curated, stretches
from bardo_pipeline.derivation.repairing import Heeded, because, first_cycles, from_cycle, heeded_by
from bardo_pipeline.derivation.stores import Stores
from bardo_pipeline.derivation.verdicts import Verdicts, judge
from bardo_pipeline.derivation.vouching import Voucher
from bardo_pipeline.errors import BundleError
from bardo_pipeline.events.life import LifeEvent, Published, life_event
from bardo_pipeline.grimoire.columns import PerGolem, asked
from bardo_pipeline.inheritance.bottleneck import bottleneck
from bardo_pipeline.inheritance.bundle import Bundle, open_bundle, pack
from bardo_pipeline.inheritance.learning import (
    LEARNING_COLUMNS,
    THOUGHT_COLUMNS,
    Learning,
    attended,
    attention_of,
    learned,
)
from bardo_pipeline.inheritance.procedures import procedures_of
from bardo_pipeline.inheritance.testament import testaments
from bardo_pipeline.inheritance.weismann import attenuate, leave_bloodstains, shed
from bardo_pipeline.storage.projections import Written
from bardo_pipeline.storage.tables import CANDIDATE_SCHEMA

PRIVATE_EPISODE_FIELDS = ("value_micros", "gas_cost_micros", "pnl_impact_micros", "golem_id")
"""What of an episode is a size or a profit, or says whose it was: it dies with the golem."""


BEFORE_CANDIDATES = ("curation", "episodes", "testaments")
"""Consumers of the log whose tables a candidate is made from."""


def _unwritten(stores: Stores, table: str, *, after: tuple[str, ...] = ()) -> pa.Table:
    """Deaths that are curated to their last cycle and known to these tables, but not to this one, with their lives."""
    sources, target = [stores.projections.growing(n) for n in after], stores.projections.growing(table)
    deaths = recorded_deaths(stores)
    keep = [
        target.done(g) is None
        and all(known is not None and known >= c for known in (curated(stores, g), *(t.done(g) for t in sources)))
        for g, c in zip(deaths["golem_id"].to_pylist(), deaths["cycle"].to_pylist(), strict=True)
    ]
    return with_lives(stores, deaths.filter(pa.array(keep, pa.bool_())))


def with_lives(stores: Stores, deaths: pa.Table) -> pa.Table:
    """Deaths with the generation, lineage, cause and tick that a testament and a bundle name."""
    births = _births(stores)
    died = {e["golem_id"]: e["died"] for e in stores.life("DeathDeclared").select(["golem_id", "died"]).to_pylist()}
    names = deaths["golem_id"].to_pylist()
    columns = {
        "generation": pa.array([births[g]["generation"] for g in names], pa.int64()),
        "lineage_id": pa.array([births[g]["lineage_id"] for g in names], pa.string()),
        "cause": pa.array([died[g]["cause"] for g in names], pa.string()),
        "tick": pa.array([died[g]["tick"] for g in names], pa.int64()),
    }
    ticks = columns["tick"].to_numpy()
    columns["is_record_left_out"] = pa.array(stores.left_out().records(deaths["golem_id"], ticks), pa.bool_())
    for name, column in columns.items():
        deaths = deaths.append_column(name, column)
    return deaths


def _entries_of(stores: Stores, deaths: pa.Table) -> pa.Table:
    grimoire = stores.projections.renewed("grimoire")
    return grimoire.read(only=deaths["golem_id"].to_pylist())


def derive_testaments(stores: Stores) -> list[Written]:
    """Write the testament of every golem that died since, and again where something it rests on is left out since."""
    with stores.deriving():
        written = _repair(stores, "testaments", _testaments, after=("curation",))
        deaths = _unwritten(stores, "testaments")
        if deaths.num_rows:
            written.append(stores.projections.growing("testaments").put(_testaments(stores, deaths), _upto(deaths)))
        return written


def _testaments(stores: Stores, deaths: pa.Table) -> pa.Table:
    decisions = stores.projections.growing("curation").read(golems=deaths["golem_id"].to_pylist())
    return testaments(_entries_of(stores, deaths), decisions, deaths, stores.policy)


def _repair(
    stores: Stores, table: str, make: Callable[[Stores, pa.Table], pa.Table], *, after: tuple[str, ...]
) -> list[Written]:
    """Make again the rows of the dead that rest on something that is left out since their row was made.

    after: consumers that must have heeded a cause before.
    """
    heeded, span = Heeded(stores, table), stores.policy.curator.cycle_ticks
    due, target = (
        heeded.due(stores.left_out(), after=[Heeded(stores, n) for n in after]),
        stores.projections.growing(table),
    )
    deaths = recorded_deaths(stores).filter(from_cycle(recorded_deaths(stores), first_cycles(due, span)))
    made = pa.array([target.done(g) is not None for g in deaths["golem_id"].to_pylist()], pa.bool_())
    deaths = with_lives(stores, deaths.filter(made))
    written = []
    if deaths.num_rows:
        standing = target.read(golems=deaths["golem_id"].to_pylist(), hidden=True)
        written.append(target.repair(standing, make(stores, deaths), because(standing, due, span)))
    heeded.keep(cause.event_id for cause in due)
    return written


def _upto(deaths: pa.Table) -> dict[str, int]:
    return dict(zip(deaths["golem_id"].to_pylist(), deaths["cycle"].to_pylist(), strict=True))


def derive_candidates(stores: Stores) -> list[Written]:
    """Press every golem that died since through the bottleneck, and make the bundle it would leave.

    A bundle that rests on something that is left out since is made again; the one that was made before keeps its bytes.
    """
    with stores.deriving():
        written = _repair(stores, "candidates", _candidates, after=BEFORE_CANDIDATES)
        deaths = _unwritten(stores, "candidates", after=("testaments", "episodes"))
        if deaths.num_rows:
            written.append(stores.projections.growing("candidates").put(_candidates(stores, deaths), _upto(deaths)))
        return written


def _candidates(stores: Stores, deaths: pa.Table) -> pa.Table:
    """The bundles that these dead would leave, written to their folders; one row each."""
    told = stores.projections.growing("testaments").read(golems=deaths["golem_id"].to_pylist())
    testament = {row["golem_id"]: row for row in told.to_pylist()}
    entries = leave_bloodstains(_entries_of(stores, deaths), deaths, stores.policy)
    chosen = bottleneck(entries, deaths, stores.policy)
    crossing = shed(attenuate(chosen, stores.policy), stores.policy)
    books = _last_playbooks(stores, deaths)
    mine = PerGolem(crossing), PerGolem(_episodes_of_the_dead(stores, deaths)), PerGolem(entries)
    links, procedures = PerGolem(links_of(crossing)), PerGolem(procedures_of(crossing, books))
    page = dict(zip(books["golem_id"].to_pylist(), books["markdown"].to_pylist(), strict=True))
    births = _births(stores)
    learning = _learned(stores, deaths, births)
    left = heeded_by(stores, BEFORE_CANDIDATES)
    rows = []
    for death in deaths.to_pylist():
        golem_id = death["golem_id"]
        crossed, remembered, known = (table.of(golem_id) for table in mine)
        bundle = pack(
            golem_id=golem_id,
            generation=death["generation"],
            lineage_id=death["lineage_id"],
            lineage=_ancestors(births, golem_id),
            died_at=death["at"],
            entries=crossed,
            episodes=_most_telling(remembered, stores),
            playbook=page.get(golem_id, ""),
            testament=testament[golem_id],
            links=links.of(golem_id),
            procedures=procedures.of(golem_id),
            learning=learning[golem_id],
            derivation_id=knowledge_id(stores.policy),
            policy_hash=stores.policy.hash,
            source_watermark=death["tick"],
            left_out=left.listing(golem_id),
        )
        write_bundle(candidate_folder(stores), bundle)
        rows.append(_candidate_row(death, bundle, known))
    return pa.Table.from_pylist(rows, schema=CANDIDATE_SCHEMA)


def candidate_folder(stores: Stores) -> Path:
    """Where candidate bundles lie."""
    return stores.projections.root / "bundles"


def _candidate_row(death: dict[str, Any], bundle: Bundle, entries: pa.Table) -> dict[str, Any]:
    crossed = bundle.rows("entries.jsonl")
    held = pc.and_(entries["is_anti_knowledge"], pc.equal(entries["status"], "active"))
    return {
        "golem_id": death["golem_id"],
        "owner_id": death["owner_id"],
        "lineage_id": death["lineage_id"],
        "generation": death["generation"],
        "died_at": death["at"],
        "bundle_hash": bundle.bundle_hash,
        "entry_count": len(crossed),
        "episode_count": len(bundle.rows("episodes.jsonl")),
        "anti_knowledge_count": sum(1 for e in crossed if e["is_anti_knowledge"]),
        "anti_knowledge_at_death": pc.sum(held).as_py() or 0,
        "cause_entries": sorted(e["entry_id"] for e in crossed),
    }


def _births(stores: Stores) -> dict[str, dict[str, Any]]:
    return {e["golem_id"]: e["born"] for e in stores.life("GolemBorn").select(["golem_id", "born"]).to_pylist()}


def _learned(stores: Stores, deaths: pa.Table, births: Mapping[str, Mapping[str, Any]]) -> dict[str, Learning]:
    """What the forecasts of the dead had learned, from the records of their last cycle, and where their thoughts came
    to nothing, from those of their lives and what they were born with."""
    span, golems = stores.policy.curator.cycle_ticks, deaths["golem_id"].to_pylist()
    ticks = {g: (max(t - span + 1, 1), t) for g, t in zip(golems, deaths["tick"].to_pylist(), strict=True)}
    records = stretches(stores, LEARNING_COLUMNS, ticks, stores.left_out())
    memory = {g: births[g]["traits"]["forecast_memory"] for g in golems}
    lives = {g: (1, t) for g, t in zip(golems, deaths["tick"].to_pylist(), strict=True)}
    thoughts = stretches(stores, THOUGHT_COLUMNS, lives, stores.left_out())
    begun = {g: _attention_at_birth(stores, births[g]["bundle_hash"]) for g in golems}
    return learned(records, memory, attended(thoughts, begun, stores.policy), stores.policy)


def _attention_at_birth(stores: Stores, bundle_hash: str | None) -> tuple[list[float], list[float]]:
    return attention_of(None if bundle_hash is None else load_bundle(stores.home, bundle_hash).learning)


def _ancestors(births: Mapping[str, Mapping[str, Any]], golem_id: str) -> list[dict[str, Any]]:
    """Who came before, oldest first, the golem itself last."""
    line: list[dict[str, Any]] = []
    at: str | None = golem_id
    while at is not None and at in births:
        line.append({"golem_id": at, "generation": births[at]["generation"], "bundle_hash": births[at]["bundle_hash"]})
        at = births[at]["predecessor_id"]
    return line[::-1]


def _episodes_of_the_dead(stores: Stores, deaths: pa.Table) -> pa.Table:
    """Episodes of these golems, without their vectors."""
    names = [n for n in EPISODE_SCHEMA.names if n not in TEXT_FIELDS]
    return stores.projections.growing("episodes").read(names, golems=deaths["golem_id"].to_pylist())


def _most_telling(episodes: pa.Table, stores: Stores) -> pa.Table:
    """The most important verified episodes without what must not cross; ties to curiosity, then the newest."""
    verified = episodes.filter(episodes["verified"])
    keys = [("importance", "descending"), ("curiosity", "descending"), ("tick", "descending")]
    ordered = verified.sort_by(keys).slice(0, stores.policy.inheritance.episode_count)
    names = [n for n in EPISODE_SCHEMA.names if n not in (*TEXT_FIELDS, *PRIVATE_EPISODE_FIELDS)]
    return ordered.select(names)


def _last_playbooks(stores: Stores, deaths: pa.Table) -> pa.Table:
    """The last version of each golem's playbook: one row a golem, by golem."""
    names = ["golem_id", "version", "markdown", "cause_entries", "staged_entries"]
    rows = stores.projections.growing("playbooks").read(names, golems=deaths["golem_id"].to_pylist())
    last = "select * from books qualify row_number() over (partition by golem_id order by version desc) = 1 order by 1"
    return asked(last, books=rows)


def unjudged(stores: Stores) -> list[dict[str, Any]]:
    """Candidates that have no verdict, by golem."""
    judged = stores.life("BundleJudged")
    known = (
        set(pc.struct_field(judged["judged"].combine_chunks(), "bundle_hash").to_pylist()) if judged.num_rows else set()
    )
    rows = stores.projections.growing("candidates").read().to_pylist()
    return sorted((r for r in rows if r["bundle_hash"] not in known), key=lambda r: r["golem_id"])


def judge_candidates(
    stores: Stores, *, now: datetime, data_docs_dir: Path | None = None, read: Callable[[Path], Bundle] | None = None
) -> Verdicts:
    """One Great Expectations run over all candidates without a verdict; each verdict is recorded as an event.

    now: the moment of recording. read: how a candidate's folder is read, by default with its hashes checked by the run.
    """
    rows = unjudged(stores)
    if not rows:
        return Verdicts((), None)
    verdicts = judge(candidates_of(stores, rows, read or loosely_read), stores.policy, data_docs_dir)
    events = [life_event(r["golem_id"], r["died_at"], v) for r, v in zip(rows, verdicts.judged, strict=True)]
    stores.log.record(events, now)
    return verdicts


def candidates_of(stores: Stores, rows: Sequence[Mapping[str, Any]], read: Callable[[Path], Bundle]) -> list[Candidate]:
    """Candidates (CANDIDATE_SCHEMA) with what is on record of their golems, and the bundles these were born with."""
    deaths = recorded_deaths(stores)
    wanted = pa.array([r["golem_id"] for r in rows], pa.string())
    deaths = deaths.filter(pc.is_in(deaths["golem_id"], value_set=wanted))
    facts = at_death(leave_bloodstains(_entries_of(stores, deaths), deaths, stores.policy), deaths, stores.policy)
    births, folder = _births(stores), candidate_folder(stores)
    given = {births[r["golem_id"]]["bundle_hash"] for r in rows} - {None}
    before = {name: loosely_read(stores.home.bundles / name) for name in sorted(given)}
    return [
        Candidate(
            r["bundle_hash"], read(folder / r["bundle_hash"]), facts[r["golem_id"]],
            before.get(births[r["golem_id"]]["bundle_hash"]),
        )
        for r in rows
    ]  # fmt: skip


def loosely_read(folder: Path) -> Bundle:
    """A candidate as it lies there, empty if it is gone; whether its hashes match, the expectations say."""
    if not folder.is_dir():
        return open_bundle({})
    return open_bundle({p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()})


def publish(stores: Stores, *, now: datetime) -> list[str]:
    """Publish the candidates that passed and are not published. Returns their hashes.

    A candidate is read with its hashes checked once more: one that was altered since its verdict stays where it is, in
    nobody's way, and the check on waiting candidates names it.
    """
    verdict = {j["bundle_hash"]: j["passed"] for j in _payloads(stores, "BundleJudged", "judged")}
    out = {p["bundle_hash"] for p in _payloads(stores, "BundlePublished", "published")}
    published, voucher = [], Voucher(stores)
    events: list[LifeEvent] = []
    for row in sorted(stores.projections.growing("candidates").read().to_pylist(), key=lambda r: r["golem_id"]):
        if not verdict.get(row["bundle_hash"]) or row["bundle_hash"] in out:
            continue
        try:
            bundle = read_bundle_folder(candidate_folder(stores) / row["bundle_hash"])
        except BundleError:
            continue
        write_bundle(stores.home.bundles, bundle)
        signed = voucher.sign(bundle, row["owner_id"], row["died_at"])
        payload = Published(
            bundle_hash=row["bundle_hash"], entry_count=row["entry_count"], derivation_id=stores.derivation_id
        )
        events += [life_event(row["golem_id"], row["died_at"], payload), *([signed] if signed else [])]
        published.append(row["bundle_hash"])
    stores.log.record(events, now)
    return published


def _payloads(stores: Stores, kind: str, attribute: str) -> list[dict[str, Any]]:
    events = stores.life(kind)
    return events[attribute].to_pylist() if events.num_rows else []


def published_bundles(stores: Stores) -> dict[str, str]:
    """Golem to the hash of the bundle it left, for every bundle that was published.

    Of several it is the one that would be made now: a bundle is published anew where something that it rested on is
    left out since. Where that one waits for its verdict, the last of those that are out.
    """
    published: dict[str, list[str]] = {}
    events = stores.life("BundlePublished").sort_by([("observed_at", "ascending"), ("event_id", "ascending")])
    for event in events.select(["golem_id", "published"]).to_pylist():
        published.setdefault(event["golem_id"], []).append(event["published"]["bundle_hash"])
    several = [golem_id for golem_id, hashes in published.items() if len(hashes) > 1]
    now = _candidate_hashes(stores, several)
    return {g: now[g] if now.get(g) in hashes else hashes[-1] for g, hashes in published.items()}


def bundles_published_by(stores: Stores) -> set[str]:
    """Hashes of the bundles that this derivation published."""
    told = _payloads(stores, "BundlePublished", "published")
    return {p["bundle_hash"] for p in told if p["derivation_id"] == stores.derivation_id}


def _candidate_hashes(stores: Stores, golem_ids: Sequence[str]) -> dict[str, str]:
    """Golem to the hash of the bundle that it would leave now."""
    if not golem_ids:
        return {}
    rows = stores.projections.growing("candidates").read(["golem_id", "bundle_hash"], golems=golem_ids)
    return dict(zip(rows["golem_id"].to_pylist(), rows["bundle_hash"].to_pylist(), strict=True))


def overtaken_bundles(stores: Stores) -> list[tuple[str, str]]:
    """Published bundles that were made before something they may rest on was left out: golem and hash, by golem.

    They keep their bytes and their place; whoever inherits now gets the one that was made since.
    """
    concerned = set(stores.left_out().golem_ids)
    events = stores.life("BundlePublished").select(["golem_id", "published"]).to_pylist()
    out = [(e["golem_id"], e["published"]["bundle_hash"]) for e in events if e["golem_id"] in concerned]
    now = _candidate_hashes(stores, sorted({golem_id for golem_id, _ in out}))
    return sorted((golem_id, bundle_hash) for golem_id, bundle_hash in out if now.get(golem_id) != bundle_hash)


def wrongly_published(stores: Stores) -> list[str]:
    """Hashes of published bundles without a passing verdict, or whose bytes are not what their hash says."""
    passed = {j["bundle_hash"] for j in _payloads(stores, "BundleJudged", "judged") if j["passed"]}
    wrong = []
    for bundle_hash in sorted(p["bundle_hash"] for p in _payloads(stores, "BundlePublished", "published")):
        try:
            whole = read_bundle_folder(stores.home.bundles / bundle_hash).bundle_hash == bundle_hash
        except BundleError:
            whole = False
        if bundle_hash not in passed or not whole:
            wrong.append(bundle_hash)
    return wrong


def bequeath(stores: Stores, *, now: datetime, data_docs_dir: Path | None = None) -> list[str]:
    """All that follows a death, in order: testament, candidate, verdict, publication, and the phases of dying beside.

    Returns the hashes published.
    """
    pass_away(stores, now=now)  # acceptance and settlement come first, whatever befalls the rest
    derive_episodes(stores, now=now)
    derive_testaments(stores)
    derive_candidates(stores)
    judge_candidates(stores, now=now, data_docs_dir=data_docs_dir)
    published = publish(stores, now=now)
    pass_away(stores, now=now)
    return published
