"""Reading operations of the server: each takes a context and parameters, and returns a document or a table.

A result that reads a whole history is kept by the warm home while nothing is committed. A report has the facts that a
reading command of `bardo` prints. It never derives: it raises DerivationDueError if its command would derive first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import date, datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.clade.clade_notes import note_rows
from bardo_pipeline.derivation.clade.styx_doors import open_query
from bardo_pipeline.derivation.clade.styx_layers import sibling_texts
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.entry_documents import entry_document, grimoire_document
from bardo_pipeline.derivation.death.bundle_documents import bundle_document, bundle_rows
from bardo_pipeline.derivation.death.graveyard import death_document, golem_document, graves
from bardo_pipeline.derivation.death.owner_notices import notice_rows
from bardo_pipeline.derivation.dreams.derive_dreams import dreams_and_hypotheses
from bardo_pipeline.derivation.dreams.derive_lessons import known_entries
from bardo_pipeline.derivation.home_status import status_of
from bardo_pipeline.derivation.incremental.record_queries import require_born
from bardo_pipeline.derivation.katabasis.bloodstains import bloodstain
from bardo_pipeline.derivation.katabasis.scars import failures_with_scars
from bardo_pipeline.derivation.legacy.death_queries import births_of, deaths_of, successions_document
from bardo_pipeline.derivation.legacy.warning_waivers import bundle_failures
from bardo_pipeline.derivation.library.library_queries import library_document, library_item
from bardo_pipeline.derivation.memory.ask import answer_facts, ask_grimoire, golem_moment, open_grimoire, text_vectors
from bardo_pipeline.derivation.memory.derive_episodes import similar_with_times
from bardo_pipeline.derivation.memory.search import search, search_table
from bardo_pipeline.derivation.reports.lethe_report import belief_rows, pheromone_rows
from bardo_pipeline.derivation.reports.lineage import lineage_of
from bardo_pipeline.derivation.succession.succeed import due_successions
from bardo_pipeline.errors import QueryError
from bardo_pipeline.events.experience.reported_experience import word_of
from bardo_pipeline.events.life.clade_events import StyxLayer
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.grimoire.conditions import holds
from bardo_pipeline.grimoire.confidence import ppm
from bardo_pipeline.grimoire.entries import ENTRY_KINDS, STATUSES
from bardo_pipeline.grimoire.entry_columns import confidence_of, to_bools
from bardo_pipeline.retrieval.advice import Advice
from bardo_pipeline.retrieval.embedder_interface import check_question
from bardo_pipeline.retrieval.hybrid_search import Filters
from bardo_pipeline.retrieval.retrieve import Grimoire
from bardo_pipeline.server.page import Overview
from bardo_pipeline.server.parameters import (
    AdviceParameters,
    AskParameters,
    BloodstainParameters,
    BundleParameters,
    EntriesParameters,
    EntryParameters,
    GolemOrAllParameters,
    GolemParameters,
    GraveyardParameters,
    GrimoireParameters,
    LibraryItemParameters,
    LibraryParameters,
    LineageParameters,
    NoParameters,
    Parameters,
    RecordsParameters,
    ScarsParameters,
    SearchParameters,
    SimilarParameters,
    WarningsParameters,
)
from bardo_pipeline.server.warm_home import WarmHome
from bardo_pipeline.storage.log.owner_log import golems_in_view
from bardo_pipeline.storage.operations.live_files import read_views


class Asked(NamedTuple):
    """The stores and the moment of a request that reads. golem: "" if it names none."""

    warm: WarmHome
    context: DerivationContext
    golem: str
    now: datetime


@dataclass(frozen=True)
class Reply:
    """A result as a document, as a table, or as both.

    Parameters
    ----------
    facts : fields of the JSON answer
    table : rows that an Arrow reader gets instead; None if the answer has no table
    rows_name : field of the JSON answer with the rows of the table
    """

    facts: dict[str, Any]
    table: pa.Table | None = None
    rows_name: str = "rows"

    def document(self) -> dict[str, Any]:
        """Return the JSON answer, with the rows of the table."""
        return self.facts if self.table is None else {**self.facts, self.rows_name: self.table.to_pylist()}


def ask_reply(asked: Asked, given: AskParameters) -> Reply:
    """Answer a question to a golem. The newest state comes from the kept grimoire; an earlier one is read anew."""
    if given.at is None and given.tick is None:
        opened = asked.warm.grimoire(asked.context, given.golem, clade=given.clade, now=asked.now)
    else:
        moment = golem_moment(asked.context, given.golem, at=given.at, tick=given.tick)
        opened = open_grimoire(asked.context, moment, now=asked.now, clade=given.clade)
    opened = opened if given.regime is None else opened.in_regime(given.regime)
    answer = ask_grimoire(asked.context, opened, given.question, k=given.k, may_skip=given.may_skip)
    facts = answer_facts(opened.where, answer, asked.context.policy)
    return Reply({**facts, "warning": asked.warm.warning(asked.context)}, answer.hits, "hits")


def search_reply(asked: Asked, given: SearchParameters) -> Reply:
    """Search entries and episodes of the view."""
    filters = Filters(
        kind=given.kind, category=given.category, domain=given.domain, regime=given.regime,
        status=None if given.status == "any" else given.status, chain=given.chain, pair=given.pair, tool=given.tool,
        confidence_min=given.min_confidence,
    )  # fmt: skip
    hits = search(
        asked.context, given.words, now=asked.now, store=given.store, golem_id=given.golem, filters=filters,
        limit=given.limit, decay=given.decay,
    )  # fmt: skip
    newest_us, warning = asked.warm.newest_event_time_us(asked.context), asked.warm.warning(asked.context)
    return Reply({"newest_event_us": newest_us, "warning": warning}, search_table(hits), "hits")


def lineage_reply(asked: Asked, given: LineageParameters) -> Reply:
    """Trace an entry to the ticks that it was derived from, or a stored text to the operations on it."""
    holdings = lineage_of(asked.context, given.entry, given.golem, now=asked.now)
    return Reply({"holdings": [asdict(holding) for holding in holdings]})


def status_reply(asked: Asked, given: NoParameters) -> Reply:
    """Measure the health of the view."""
    return Reply(status_of(asked.context, asked.now))


GOLEM_SCHEMA = pa.schema(
    [
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("owner_id", pa.string(), nullable=False),
        pa.field("generation", pa.int64(), nullable=False),
        pa.field("predecessor_id", pa.string()),
        pa.field("born_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("died_at", pa.timestamp("us", tz="UTC")),
        pa.field("cause", pa.string()),
        pa.field("tick", pa.int64(), nullable=False),
        pa.field("lifespan_ticks", pa.int64(), nullable=False),
        pa.field("entries_active", pa.int64(), nullable=False),
    ]
)
"""One row per golem, by id. tick: newest recorded tick. entries_active: active entries of its grimoire."""


def golems_table(context: DerivationContext) -> pa.Table:
    """Return the golems of the view (GOLEM_SCHEMA)."""
    births, deaths = births_of(context), deaths_of(context)
    entries = known_entries(context).select(["golem_id", "status"])
    counts = entries.filter(pc.equal(entries["status"], "active")).group_by("golem_id").aggregate([([], "count_all")])
    active = dict(zip(counts["golem_id"].to_pylist(), counts["count_all"].to_pylist(), strict=True))
    heads = context.log.heads()
    ticks = dict(zip(heads["golem_id"].to_pylist(), heads["highest"].to_pylist(), strict=True))
    rows = [
        {
            "golem_id": golem_id,
            "owner_id": birth.owner_id,
            "generation": birth.generation,
            "predecessor_id": birth.predecessor_id,
            "born_at": born_at,
            "died_at": deaths[golem_id][1] if golem_id in deaths else None,
            "cause": deaths[golem_id][0].cause if golem_id in deaths else None,
            "tick": ticks.get(golem_id, 0),
            "lifespan_ticks": birth.lifespan_ticks,
            "entries_active": active.get(golem_id, 0),
        }
        for golem_id, (birth, born_at) in sorted(births.items())
    ]
    return pa.Table.from_pylist(rows, schema=GOLEM_SCHEMA)


def golems_reply(asked: Asked, given: NoParameters) -> Reply:
    """List the golems of the view."""
    return Reply({}, asked.warm.result(asked.context, "golems", golems_table), "golems")


def live_reply(asked: Asked, given: NoParameters) -> Reply:
    """List the golems of live runs in view, as of their last tick."""
    return Reply({"golems": live_golems(asked.context)})


def live_golems(context: DerivationContext) -> list[dict[str, Any]]:
    """Return the golems of live runs that the owner of this context may see."""
    golems = read_views(context.home)
    in_view = golems_in_view(context.log, [golem["golem_id"] for golem in golems])
    return [golem for golem in golems if in_view is None or golem["golem_id"] in in_view]


def golem_reply(asked: Asked, given: NoParameters) -> Reply:
    """Describe a golem, now or at its death."""
    return Reply(golem_document(asked.context, asked.golem))


def entries_reply(asked: Asked, given: EntriesParameters) -> Reply:
    """List entries of a golem (ENTRY_SCHEMA and `confidence`, decayed to its newest cycle), most confident first."""
    require_born(asked.context, asked.golem)
    if given.kind not in (None, *ENTRY_KINDS):
        raise QueryError(f"no kind is called {given.kind!r}: there are {', '.join(ENTRY_KINDS)}")
    if given.status not in ("any", *STATUSES):
        raise QueryError(f"no status is called {given.status!r}: there are {', '.join(STATUSES)} and any")
    rows = known_entries(asked.context, [asked.golem])
    wanted = {"kind": given.kind, "category": given.category, "status": None if given.status == "any" else given.status}
    for name, value in wanted.items():
        if value is not None:
            rows = rows.filter(pc.equal(rows[name], value))
    confidence = confidence_of(rows, asked.warm.newest_event_time_us(asked.context), asked.context.policy.decay)
    is_kept = confidence >= ppm(given.min_confidence)
    rows = rows.append_column("confidence", pa.array(confidence / 1e6)).filter(pa.array(is_kept))
    rows = rows.sort_by([("confidence", "descending"), ("entry_id", "ascending")])
    return Reply({"total": rows.num_rows}, rows.slice(0, given.limit), "entries")


def warnings_reply(asked: Asked, given: WarningsParameters) -> Reply:
    """List warnings, anti-knowledge and bloodstains of a golem about an action, by their score in the situation.

    An entry is about an action if it names the action or the tool, in its structure or in its text. Those of siblings
    are a paid query of the clade.
    """
    opened = asked.warm.grimoire(asked.context, asked.golem, now=asked.now)
    words = " and ".join(f"{name} is {word_of(value)}" for name, value in (given.conditions or {}).items())
    question = check_question(
        f"{given.action.replace('_', ' ')} {given.situation} {words}", asked.context.policy.retrieval.question_bytes_max
    )
    layers: tuple[StyxLayer, ...] = ("clade",)
    left_out: str | None = "the request leaves them out"
    known, cost = [opened.grimoire], 0
    if given.clade:
        query = open_query(
            asked.context,
            asked.golem,
            question,
            count=given.limit,
            confidence_min=0.0,
            layers=layers,
            now=asked.now,
        )
        (left_out,) = [layer.reason for layer in query.receipt.layers if layer.layer == "clade"]
        cost = query.receipt.cost_micros
        known += sibling_texts(asked.context, query.question, now=asked.now) if left_out is None else []
    facts = {"golem_id": asked.golem, "action": given.action, "siblings_left_out": left_out, "cost_micros": cost}
    about = [narrowed for grimoire in known if len(narrowed := _about(asked, grimoire, given))]
    if not about:
        return Reply({**facts, "warnings": []})
    (vector,) = asked.context.embedder.embed([question])
    situation = opened.where.situation
    found = pa.concat_tables(
        grimoire.retrieve(vector, situation, given.limit, may_skip=False).hits for grimoire in about
    )
    found = found.sort_by([("score_ppm", "descending"), ("entry_id", "ascending"), ("golem_id", "ascending")])
    found = found.slice(0, given.limit)
    place = found.schema.get_field_index("rank")
    found = found.set_column(place, found.schema.field(place), pa.array(range(1, found.num_rows + 1), pa.int64()))
    return Reply(facts, found, "warnings")


def _about(asked: Asked, grimoire: Grimoire, given: WarningsParameters) -> Grimoire:
    """Return the warnings of a grimoire about an action whose conditions may hold."""
    rows = grimoire.entries
    is_warning = pc.or_(pc.equal(rows["kind"], "warning"), pc.or_(rows["is_anti_knowledge"], rows["is_bloodstain"]))
    named = [pc.fill_null(pc.equal(rows[name], given.action), False) for name in ("tool", "action_type")]
    texts = pc.match_substring(rows["text"], given.action.replace("_", " "), ignore_case=True)
    is_about = to_bools(pc.and_(is_warning, pc.or_(pc.or_(*named), texts)))
    if given.conditions is not None:
        is_report = pc.equal(rows["source"], "report").to_pylist()
        causes = zip(is_report, rows["cause"].to_pylist(), strict=True)
        is_about &= np.array([not report or holds(cause, given.conditions) for report, cause in causes], bool)
    rows = rows.filter(pa.array(is_about))
    vectors, text_of = text_vectors(asked.context, rows["text"], asked.now)
    return Grimoire(
        rows, vectors, text_of, asked.context.policy, layer=grimoire.layer[is_about],
        modifier=grimoire.modifier[is_about], as_of=grimoire.as_of,
    )  # fmt: skip


def advice_reply(asked: Asked, given: AdviceParameters) -> Reply:
    """List the rules of a golem that hold in a situation: the most special first, then the surest."""
    opened = asked.warm.grimoire(asked.context, asked.golem, now=asked.now)
    entries = opened.grimoire.entries
    advice = Advice.of(entries, confidence_of(entries, opened.where.situation.at_us, asked.context.policy.decay))
    rules = advice.holding(given.conditions, given.action)
    actions = sorted({rule.action for rule in rules})
    worth = {action: advice.worth(given.conditions, action) for action in actions}
    return Reply({"golem_id": asked.golem, "worth": worth, "rules": [rule.document() for rule in rules]})


def records_reply(asked: Asked, given: RecordsParameters) -> Reply:
    """Return records of a golem (RECORD_SCHEMA), by tick."""
    require_born(asked.context, asked.golem)
    head = asked.context.log.head_of(asked.golem).highest
    last = min(head if given.tick_to is None else given.tick_to, given.tick_from + given.limit - 1)
    rows = asked.context.log.read_stretch(RECORD_SCHEMA.names, [asked.golem], given.tick_from, last).sort_by("tick")
    return Reply({"golem_id": asked.golem, "head_tick": head}, rows, "records")


def overview(warm: WarmHome, context: DerivationContext) -> Overview:
    """Read the figures of the page of the view; they are kept while nothing is committed."""
    return warm.result(context, "overview", lambda context: _overview(warm, context))


def _overview(warm: WarmHome, context: DerivationContext) -> Overview:
    fresh = warm.freshness(context)
    golems = warm.result(context, "golems", golems_table).to_pylist()
    entries = known_entries(context)
    entries = entries.filter(pc.equal(entries["status"], "active"))
    confidence = pa.array(confidence_of(entries, warm.newest_event_time_us(context), context.policy.decay) / 1e6)
    best = entries.append_column("confidence", confidence).sort_by(
        [("confidence", "descending"), ("entry_id", "ascending"), ("golem_id", "ascending")]
    )
    texts = best.select(["golem_id", "kind", "confidence", "text"]).slice(0, 20).to_pylist()
    return Overview(
        title="Bardo" if context.owner is None else f"Bardo: golems of {context.owner}",
        as_of=fresh.as_of,
        cycle=fresh.cycle,
        log_version=fresh.log_version,
        lag_ticks=fresh.lag_ticks,
        golems=golems,
        knowledge=dict(Counter(entries["kind"].to_pylist())),
        texts=[tuple(row.values()) for row in texts],
        deaths=dict(Counter(golem["cause"] for golem in golems if golem["cause"] is not None)),
        cost_micros=cost_by_day(context),
    )


def cost_by_day(context: DerivationContext) -> dict[date, int]:
    """Return the recorded cost of each day (UTC) in micro-dollars."""
    rows = context.log.read_cycles(["observed_at", "cost.total_micros"])
    days = rows.column(0).cast(pa.timestamp("us")).cast(pa.date32())
    totals = pa.table({"day": days, "cost": rows.column(1)}).group_by("day").aggregate([("cost", "sum")])
    return dict(sorted(zip(totals["day"].to_pylist(), totals["cost_sum"].to_pylist(), strict=True)))


class Report(NamedTuple):
    """A report. facts: returns a document, or rows."""

    summary: str
    parameters: type[Parameters]
    facts: Callable[[DerivationContext, Any, datetime], dict[str, Any] | list[dict[str, Any]]]

    def reply(self, asked: Asked, given: Parameters) -> Reply:
        """Return the report as the answer of its route."""
        facts = self.facts(asked.context, given, asked.now)
        return Reply({"rows": facts} if isinstance(facts, list) else facts)


REPORTS: Mapping[str, Report] = {
    "bloodstain": Report(
        "Bloodstain of a death.",
        BloodstainParameters,
        lambda context, given, _: bloodstain(context, given.golem, public=given.public),
    ),
    "bundle-checks": Report(
        "Failed expectations of bundles, and waivers.",
        BundleParameters,
        lambda context, given, _: [failure._asdict() for failure in bundle_failures(context, given.target)],
    ),
    "bundle-show": Report(
        "Content of a bundle, or a list of all.",
        BundleParameters,
        lambda context, given, _: bundle_document(context, given.target) if given.target else bundle_rows(context),
    ),
    "clade-beliefs": Report(
        "Consensus of the anonymous votes that golems received.",
        NoParameters,
        lambda context, given, _: belief_rows(context),
    ),
    "clade-pheromones": Report(
        "Threats and opportunities that golems received, by market.",
        NoParameters,
        lambda context, given, _: pheromone_rows(context),
    ),
    "clade-notes": Report(
        "What siblings told: scars, shifts of regime, playbooks, words, and reflections at a death.",
        NoParameters,
        lambda context, given, _: note_rows(context),
    ),
    "dreams": Report(
        "Dreams and hypotheses.",
        GolemOrAllParameters,
        lambda context, given, _: dreams_and_hypotheses(context, given.golem),
    ),
    "golem-death": Report(
        "Phases of a death.", GolemParameters, lambda context, given, _: death_document(context, given.golem)
    ),
    "golem-due": Report(
        "Due succession steps.",
        NoParameters,
        lambda context, _, now: [step.row() for step in due_successions(context, now)],
    ),
    "golem-notices": Report("Notices to owners.", NoParameters, lambda context, given, _: notice_rows(context)),
    "golem-successions": Report(
        "Successions, and credit of owners.",
        NoParameters,
        lambda context, given, _: successions_document(context),
    ),
    "graveyard": Report(
        "Deaths, latest first.",
        GraveyardParameters,
        lambda context, given, _: [asdict(grave) for grave in graves(context, lineage=given.lineage)],
    ),
    "grimoire-list": Report(
        "Entries of a golem at its last closed cycle, most confident first.",
        GrimoireParameters,
        lambda context, given, _: grimoire_document(
            context, given.golem, **given.model_dump(exclude={"golem"}), derives=False
        ),
    ),
    "grimoire-show": Report(
        "Entry of a golem with its evidence.",
        EntryParameters,
        lambda context, given, _: entry_document(context, given.golem, given.entry, derives=False),
    ),
    "library-list": Report(
        "Library of an owner.",
        LibraryParameters,
        lambda context, given, _: library_document(context, **given.model_dump(), derives=False),
    ),
    "library-show": Report(
        "Item of a library.",
        LibraryItemParameters,
        lambda context, given, _: library_item(context, given.entry, derives=False),
    ),
    "scars": Report(
        "Scars: verified failures that were new to their clade.",
        ScarsParameters,
        lambda context, given, _: failures_with_scars(context, given.golem, only_scars=not given.failures),
    ),
    "similar": Report(
        "Episodes most similar to a text.",
        SimilarParameters,
        lambda context, given, _: similar_with_times(context, given.text, given.golem, given.limit, derives=False),
    ),
}
"""Name of a command of `bardo`, with a dash for each space, to its report."""
