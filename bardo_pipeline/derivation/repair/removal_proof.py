"""Proof that no valid row names a retracted record or depends on one.

Two independent methods: the causes that rows name (ticks, entries, bundles) are looked up by joins over whole tables,
and the affected golems are derived again in memory from birth without the retracted records; valid rows that are
missing there are reported. Source: X-4, EV-8, canon 20.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.curate import Curation
from bardo_pipeline.curator.state.decision_log import fold
from bardo_pipeline.curator.state.evidence import flatten_lists
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curator_state import state_from_birth
from bardo_pipeline.derivation.curation.grimoire_views import GRIMOIRE_VIEWS, elders
from bardo_pipeline.derivation.dreams.derive_dreams import DreamResult, dream_again
from bardo_pipeline.derivation.dreams.derive_lessons import applied_orders, known_entries_of_buckets
from bardo_pipeline.derivation.dreams.playbook_pages import pages_of
from bardo_pipeline.derivation.incremental.record_queries import curated_through
from bardo_pipeline.derivation.katabasis.scars import rederive_failures
from bardo_pipeline.derivation.legacy.bundle_candidates import candidate_folder
from bardo_pipeline.derivation.legacy.bundle_store import read_bundle_folder
from bardo_pipeline.derivation.legacy.death_queries import deaths_with_ticks, golem_owners, recorded_deaths
from bardo_pipeline.derivation.legacy.derive_legacies import with_lives
from bardo_pipeline.derivation.library.derive_library import remake_libraries
from bardo_pipeline.derivation.memory.derive_episodes import episode_index
from bardo_pipeline.derivation.memory.retrieval_credits import rederive_credits
from bardo_pipeline.derivation.reports.lineage import named_ticks
from bardo_pipeline.dreams.lessons import lessons_of
from bardo_pipeline.errors import BundleError
from bardo_pipeline.events.record.arrow_columns import contiguous, rows_of_golems, rows_of_other_golems
from bardo_pipeline.events.record.row_digest import digest_column, row_digests
from bardo_pipeline.inheritance.bundle_files import EPISODES
from bardo_pipeline.inheritance.testament import CATEGORIES, testaments
from bardo_pipeline.katabasis.anonymous_votes import Ballots, backed_votes, death_votes, routine_votes
from bardo_pipeline.katabasis.scar_rules import FAILURE_SCHEMA, scars_of
from bardo_pipeline.katabasis.weighted_consensus import consensus
from bardo_pipeline.retrieval.credit_rules import signs_of
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.warehouse.build import query

NOT_GIVEN = "the log without the excluded records does not give it: it depends on them, or was not derived since"


class Remains(NamedTuple):
    """A wrong row: its place, golem (None: without one), key and fault."""

    place: str
    golem_id: str | None
    row: str
    says: str


def remains(context: DerivationContext) -> list[Remains]:
    """Return all rows, vectors, files and marts that name or depend on a retracted record.

    Reads whole tables of anonymous rows, and the records of golems with a retraction.
    """
    if not context.left_out().causes:
        return []
    proof = _Proof(context)
    faults: dict[tuple[str, str], Remains] = {}
    for check in CHECKS:
        for fault in check(proof):
            faults.setdefault((fault.place, f"{fault.golem_id}/{fault.row}"), fault)
    return sorted(faults.values(), key=lambda r: (r.place, r.golem_id or "", r.row))


class _Proof:
    """Inputs of the checks, each read or derived once."""

    def __init__(self, context: DerivationContext) -> None:
        self.context, self.left = context, context.left_out()
        born = set(context.life("GolemBorn")["golem_id"].to_pylist())
        self.golems = sorted(born & set(self.left.golem_ids))

    def standing(self, name: str) -> pa.Table:
        """Return the valid rows of the affected golems."""
        projections = self.context.projections
        if TABLES[name].grows:
            return projections.growing(name).read(golems=self.golems)
        return projections.replaceable(name).read(only=self.golems)

    @cached_property
    def rederived(self) -> Curation:
        """Curation of the affected golems from birth without retracted records."""
        upto = {g: done for g in self.golems if (done := curated_through(self.context, g)) is not None}
        return state_from_birth(self.context, upto, self.left).pending_curation()

    @cached_property
    def grimoire(self) -> pa.Table:
        """Grimoires of the affected golems without retracted records."""
        return fold(self.rederived.decisions)

    @cached_property
    def deaths(self) -> pa.Table:
        """Recorded deaths of the affected golems."""
        return rows_of_golems(recorded_deaths(self.context), self.golems)

    @cached_property
    def ballots(self) -> Ballots:
        """Votes of the affected golems without retracted records."""
        policy = self.context.policy
        living = routine_votes(self.rederived.decisions, golem_owners(self.context), policy)
        final = death_votes(self.grimoire, self.deaths, policy)
        return Ballots(*(pa.concat_tables(pair) for pair in zip(living, final, strict=True)))

    @cached_property
    def cast(self) -> tuple[pa.Table, pa.Table]:
        """Valid votes of the affected golems (also of retracted causes), and all other valid votes."""
        causes = self.context.projections.growing("vote_causes")
        valid, retracted = self.standing("vote_causes"), causes.taken_back(["vote_id"], golems=self.golems)
        ids = pa.chunked_array([*valid["vote_id"].chunks, *retracted["vote_id"].chunks], pa.string()).unique()
        votes = self.context.projections.growing("votes").read()
        is_affected = pc.is_in(votes["vote_id"], value_set=ids)
        return votes.filter(is_affected), votes.filter(pc.invert(is_affected))

    @cached_property
    def dream_result(self) -> DreamResult:
        """Dreams of the affected golems from birth without retracted records."""
        return dream_again(self.context, self.golems, self.left)

    @cached_property
    def failures(self) -> pa.Table:
        """Failures of the affected golems without retracted records, up to the derived cycle."""
        upto, none = self.through("failures"), FAILURE_SCHEMA.empty_table()
        first = dict.fromkeys(upto, 1)
        return rederive_failures(self.context, first, upto, self.left, earlier=none, decisions=self.rederived.decisions)

    @cached_property
    def lessons(self) -> pa.Table:
        """Lessons of the affected golems without retracted records."""
        return lessons_of(self.dream_result.hypotheses, applied_orders(self.context, self.golems), self.context.policy)

    def through(self, name: str) -> dict[str, int]:
        """Return the last derived cycle of each affected golem in a table."""
        table = self.context.projections.growing(name)
        return {g: done for g in self.golems if (done := table.done(g)) is not None}

    def is_retracted(self, rows: pa.Table, tick: str = "tick") -> pa.Array:
        """Return a mask of the rows (golem_id and a column of ticks) with a retracted tick."""
        if not rows.num_rows:
            return pa.array([], pa.bool_())
        return pa.array(self.left.records(rows["golem_id"], rows[tick].to_numpy()))


def _extra(place: str, key: tuple[str, ...], standing: pa.Table, wanted: pa.Table) -> Iterator[Remains]:
    """Yield the valid rows that are not in `wanted`, by key."""
    wrong = standing.filter(pc.invert(_within(standing, wanted)))
    columns = [n for n in ("golem_id", *key) if n in wrong.column_names]
    for row in wrong.select(columns).to_pylist():
        yield Remains(place, row.get("golem_id"), _named(row, key) or "its row", NOT_GIVEN)


def _within(rows: pa.Table, wanted: pa.Table) -> pa.Array:
    """Return a mask of the rows that equal a row of `wanted`."""
    names = wanted.schema.names
    have, want = (digest_column(row_digests(t.select(names).cast(wanted.schema))) for t in (rows, wanted))
    return pc.is_in(have, value_set=want)


def _named(row: Mapping[str, Any], key: Iterable[str]) -> str:
    return " ".join(f"{name} {row[name]}" for name in key)


def _by_causes(proof: _Proof, place: str, key: tuple[str, ...], wanted: pa.Table) -> Iterator[Remains]:
    """Yield the valid rows of a table that name a retracted tick as a cause, and those that are not in `wanted`."""
    rows = proof.standing(place)
    named = named_ticks(rows["golem_id"], contiguous(rows["cause_ticks"]))
    for out in named.filter(proof.is_retracted(named)).to_pylist():
        row = rows.slice(out["row"], 1).to_pylist()[0]
        yield Remains(place, row["golem_id"], _named(row, key), f"names tick {out['tick']}, which is left out")
    yield from _extra(place, key, rows, wanted)


def _episodes(proof: _Proof) -> Iterator[Remains]:
    rows = proof.context.projections.growing("episodes").read(["episode_id", "golem_id", "tick"], golems=proof.golems)
    for row in rows.filter(proof.is_retracted(rows)).to_pylist():
        yield Remains("episodes", row["golem_id"], row["episode_id"], f"tick {row['tick']} is left out")


def _curation(proof: _Proof) -> Iterator[Remains]:
    rows, key = proof.standing("curation"), ("entry_id", "revision", "cycle", "seq")
    first = rows.filter(pc.equal(rows["cycle"], 0))
    for row in first.select(["golem_id", *key, "cause_bundle"]).to_pylist():
        if row["entry_id"] in proof.left.entries(row["golem_id"]):
            fact = f"was retracted from bundle {row['cause_bundle']}"
            yield Remains("curation", row["golem_id"], _named(row, key), fact)
    yield from _by_causes(proof, "curation", key, proof.rederived.decisions)


def _cycles(proof: _Proof) -> Iterator[Remains]:
    rows = proof.standing("cycles")
    for row in rows.filter(proof.is_retracted(rows, "tick_last")).to_pylist():
        fact = f"ends with tick {row['tick_last']}, which is left out"
        yield Remains("cycles", row["golem_id"], f"cycle {row['cycle']}", fact)
    yield from _extra("cycles", ("cycle",), rows, proof.rederived.cycles)


def _entries(proof: _Proof) -> Iterator[Remains]:
    yield from _extra("grimoire", ("entry_id",), proof.standing("grimoire"), proof.grimoire)
    yield from _extra("lessons", ("entry_id",), proof.standing("lessons"), proof.lessons)
    both, old = pa.concat_tables([proof.grimoire, proof.lessons]), elders(proof.context)
    for name, derive in GRIMOIRE_VIEWS.items():
        key = TABLES[name].key[1:]
        yield from _extra(name, key, proof.standing(name), derive(both, proof.context.policy, old))


def _playbooks(proof: _Proof) -> Iterator[Remains]:
    yield from _extra("playbooks", ("version",), proof.standing("playbooks"), proof.rederived.playbooks)
    for golem_id, text in pages_of(proof.rederived.playbooks, proof.lessons):
        page = proof.context.home.playbook(golem_id)
        if page.exists() and page.read_text() != text:
            yield Remains("playbook files", golem_id, str(page), NOT_GIVEN)


def _credits(proof: _Proof) -> Iterator[Remains]:
    upto, signs = proof.through("credits"), signs_of(proof.rederived.decisions)
    expected = rederive_credits(proof.context, dict.fromkeys(upto, 1), upto, proof.left, signs)
    yield from _by_causes(proof, "credits", ("entry_id", "cycle"), expected)


def _failures_and_scars(proof: _Proof) -> Iterator[Remains]:
    """Check failures, and the scars of all clades, which depend on the failures of all golems."""
    yield from _by_causes(proof, "failures", ("seq",), proof.failures)
    failures = proof.context.projections.growing("failures").read()
    all_failures = pa.concat_tables([rows_of_other_golems(failures, proof.golems), proof.failures])
    wanted = scars_of(all_failures, deaths_with_ticks(proof.context), proof.context.policy)
    yield from _extra("scars", ("owner_id", "scar_id"), proof.context.projections.replaceable("scars").read(), wanted)


def _votes(proof: _Proof) -> Iterator[Remains]:
    """Check votes. They are anonymous; their golems are in the causes, including retracted ones."""
    yield from _extra("vote_causes", ("vote_id",), proof.standing("vote_causes"), proof.ballots.causes)
    yield from _extra("votes", ("vote_id",), proof.cast[0], proof.ballots.votes)
    projections = proof.context.projections
    ids = projections.growing("votes").read(["vote_id"])["vote_id"]
    backed = projections.growing("vote_causes").read(["vote_id"])["vote_id"].combine_chunks()
    for vote_id in ids.filter(pc.invert(pc.is_in(ids, value_set=backed))).to_pylist():
        yield Remains("votes", None, f"vote_id {vote_id}", "none of its causes is left")


def _consensus(proof: _Proof) -> Iterator[Remains]:
    """Check consensus against a new count of the valid votes."""
    causes, wanted = proof.context.projections.growing("vote_causes").read(), proof.ballots.votes
    affected, others = proof.cast
    votes = pa.concat_tables([others, affected.filter(_within(affected, wanted))])
    backed = backed_votes(votes, causes, recorded_deaths(proof.context))
    counted = consensus(votes, backed, proof.context.policy.katabasis)
    standing = proof.context.projections.replaceable("consensus").read()
    yield from _extra("consensus", ("proposition_id",), standing, counted)


def _dreams(proof: _Proof) -> Iterator[Remains]:
    """Check replayed ticks and causes of hypotheses, and compare with dreams derived again."""
    rows = proof.standing("dreams")
    row, parts = flatten_lists(contiguous(rows["replayed"]))
    ticks = pa.table({"golem_id": rows["golem_id"].take(pa.array(row)), "tick": pc.struct_field(parts, "tick")})
    for place in np.unique(row[np.asarray(proof.is_retracted(ticks), bool)]).tolist():
        dream = rows.slice(place, 1).to_pylist()[0]
        yield Remains("dreams", dream["golem_id"], f"cycle {dream['cycle']}", "replayed a tick which is left out")
    yield from _extra("dreams", ("cycle",), rows, proof.dream_result.dreams)
    key = ("hypothesis_id", "cycle", "seq")
    yield from _by_causes(proof, "hypotheses", key, proof.dream_result.hypotheses)


def _testaments(proof: _Proof) -> Iterator[Remains]:
    rows = proof.standing("testaments")
    for category in CATEGORIES:
        row, items = flatten_lists(contiguous(rows[category]))
        ticks = named_ticks(rows["golem_id"].take(pa.array(row)), pc.struct_field(items, "ticks"))
        for named in ticks.filter(proof.is_retracted(ticks)).to_pylist():
            fact = f"{category} names tick {named['tick']}, which is left out"
            yield Remains("testaments", named["golem_id"], "its row", fact)
    dead = with_lives(proof.context, proof.deaths)
    names, knowledge = dead["golem_id"].to_pylist(), (proof.grimoire, proof.rederived.decisions)
    entries, decisions = (rows_of_golems(table, names) for table in knowledge)
    yield from _extra("testaments", (), rows, testaments(entries, decisions, dead, proof.context.policy))


def _candidates(proof: _Proof) -> Iterator[Remains]:
    """Check the retractions in the manifest of each candidate, and its entries and episodes."""
    entries = set(zip(*(proof.grimoire[n].to_pylist() for n in ("golem_id", "entry_id")), strict=True))
    for row in proof.standing("candidates").to_pylist():
        golem_id, name = row["golem_id"], f"bundle_hash {row['bundle_hash']}"
        try:
            bundle = read_bundle_folder(candidate_folder(proof.context) / row["bundle_hash"])
        except BundleError as error:
            yield Remains("candidates", golem_id, name, str(error))
            continue
        if bundle.manifest.get("left_out") != proof.left.listing(golem_id):
            yield Remains("candidates", golem_id, name, "was made before some of its records were left out")
        for entry in sorted(e for e in row["cause_entries"] if (golem_id, e) not in entries):
            yield Remains("candidates", golem_id, name, f"holds entry {entry}: {NOT_GIVEN}")
        for tick in (e["tick"] for e in bundle.rows(EPISODES)):
            if proof.left.records(pa.array([golem_id]), np.array([tick])).any():
                yield Remains("candidates", golem_id, name, f"holds an episode of tick {tick}, which is left out")


def _libraries(proof: _Proof) -> Iterator[Remains]:
    for name, rows in remake_libraries(proof.context, proof.golems, proof.grimoire, proof.rederived).items():
        yield from _extra(name, TABLES[name].key, proof.context.projections.replaceable(name).read(), rows)


def _index(proof: _Proof) -> Iterator[Remains]:
    episodes, texts = episode_index(proof.context).held()
    for row in episodes.filter(proof.is_retracted(episodes)).to_pylist():
        yield Remains("index of episodes", row["golem_id"], row["episode_id"], f"tick {row['tick']} is left out")
    valid = proof.context.projections.growing("episodes").read(["text_hash"])["text_hash"].unique()
    for text_hash in texts["text_hash"].filter(pc.invert(pc.is_in(texts["text_hash"], value_set=valid))).to_pylist():
        yield Remains("index of episodes", None, f"text {text_hash}", "no valid episode has this text")


def _marts(proof: _Proof) -> Iterator[Remains]:
    """Check that each tick, entry and proposition in a mart is valid now."""
    home = proof.context.home
    if not home.warehouse.exists():
        return
    _, columns = query(home, MART_COLUMNS)
    marts: dict[str, set[str]] = {}
    for table, column in columns:
        marts.setdefault(table, set()).add(column)
    entries = known_entries_of_buckets(
        proof.context, proof.context.projections.replaceable("grimoire").buckets(proof.golems)
    )
    active = entries.filter(pc.equal(entries["status"], "active"))
    texts = set(zip(*(active[n].to_pylist() for n in ("golem_id", "entry_id", "text")), strict=True))
    beliefs = proof.context.projections.replaceable("consensus").read()
    agreed = set(zip(beliefs["proposition_id"].to_pylist(), beliefs["votes_hash"].to_pylist(), strict=True))
    for mart, names in sorted(marts.items()):
        if {"golem_id", "tick"} <= names and "died_at" not in names:
            rows = _mart_rows(proof, mart, "golem_id", "tick")
            for row in rows.filter(proof.is_retracted(rows)).to_pylist():
                yield Remains(mart, row["golem_id"], f"tick {row['tick']}", "is left out")
        if {"golem_id", "entry_id", "text"} <= names:
            rows = _mart_rows(proof, mart, "golem_id", "entry_id", "text")
            for row in rows_of_golems(rows, proof.golems).to_pylist():
                if tuple(row.values()) not in texts:
                    yield Remains(mart, row["golem_id"], f"entry_id {row['entry_id']}", NOT_GIVEN)
        if {"proposition_id", "votes_hash"} <= names:
            for row in _mart_rows(proof, mart, "proposition_id", "votes_hash").to_pylist():
                if tuple(row.values()) not in agreed:
                    yield Remains(mart, None, f"proposition_id {row['proposition_id']}", "was counted from other votes")


MART_COLUMNS = "select table_name, column_name from duckdb_columns() where database_name = 'warehouse' and not internal"


def _mart_rows(proof: _Proof, mart: str, *columns: str) -> pa.Table:
    names, rows = query(proof.context.home, f'select {", ".join(columns)} from "{mart}"')  # noqa: S608
    kinds = [pa.int64() if name == "tick" else pa.string() for name in names]  # an empty list has no type of its own
    return pa.table({n: pa.array([row[i] for row in rows], kinds[i]) for i, n in enumerate(names)})


CHECKS: tuple[Callable[[_Proof], Iterator[Remains]], ...] = (
    _episodes,
    _curation,
    _cycles,
    _entries,
    _playbooks,
    _credits,
    _failures_and_scars,
    _dreams,
    _votes,
    _consensus,
    _testaments,
    _candidates,
    _libraries,
    _index,
    _marts,
)
"""All checks, causes before effects."""
