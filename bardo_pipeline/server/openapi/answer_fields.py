"""Fields of the JSON answers of the routes, for the OpenAPI document. Results of tools have schemas of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from bardo_pipeline.curator.state.decision_log import DECISION_SCHEMA
from bardo_pipeline.derivation.clade.clade_notes import NoteRow
from bardo_pipeline.derivation.clade.styx_doors import Reached
from bardo_pipeline.derivation.clade.styx_layers import Found
from bardo_pipeline.derivation.death.derive_thanatopsis import Phase
from bardo_pipeline.derivation.death.graveyard import GolemReport, Grave
from bardo_pipeline.derivation.death.owner_notices import Notice
from bardo_pipeline.derivation.death.unfinished_deaths import UnfinishedDeath
from bardo_pipeline.derivation.legacy.warning_waivers import BundleFailure
from bardo_pipeline.derivation.reports.home_health import Fault, Health
from bardo_pipeline.derivation.reports.lethe_report import BeliefRow, PheromoneRow
from bardo_pipeline.derivation.reports.lineage import DECISION_FIELDS, Holding
from bardo_pipeline.dreams.dream_cycle import DREAM_SCHEMA
from bardo_pipeline.dreams.hypothesis_table import HYPOTHESIS_SCHEMA
from bardo_pipeline.events.life.bundle_events import KitOrdered
from bardo_pipeline.events.life.events import Judged
from bardo_pipeline.events.life.override_events import Order
from bardo_pipeline.events.life.succession_events import Advanced
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA
from bardo_pipeline.inheritance.library.library_entries import KIT_SCHEMA, LIBRARY_SCHEMA, PLAYBOOK_DEPOSIT_SCHEMA
from bardo_pipeline.katabasis.scar_rules import FAILURE_SCHEMA, SCAR_SCHEMA
from bardo_pipeline.retrieval.advice import Rule
from bardo_pipeline.retrieval.hybrid_search import SEARCH_SCHEMA
from bardo_pipeline.retrieval.retrieve import HIT_SCHEMA, AsOf
from bardo_pipeline.retrieval.situation import Decision, Situation
from bardo_pipeline.server.openapi.row_schemas import (
    Schema,
    arrays_of,
    by_name,
    json_type,
    of_class,
    of_columns,
    of_fields,
    of_record,
    only,
    or_null,
    with_texts,
)
from bardo_pipeline.server.reading import GOLEM_SCHEMA
from bardo_pipeline.storage.log.stream_heads import TickRange
from bardo_pipeline.tools.schemas import WriteCounts

Field = tuple[str | Schema, str]
"""JSON type, with `?` if the value may be null, or schema; and description."""

_NUMBERS = by_name(json_type("number"))
_WORDS = arrays_of(json_type("string"))
_OBJECT = json_type("object")
_COUNTS = by_name(json_type("integer"))
_ENTRY = of_columns(ENTRY_SCHEMA, "fct_knowledge", confidence="number")
_ENTRY_NOW = of_columns(ENTRY_SCHEMA, "fct_knowledge", confidence_now_ppm="integer", half_life_days="number?")
_DECISION = of_columns(DECISION_SCHEMA, "fct_knowledge")
_CHANGE = of_columns(DECISION_SCHEMA, "fct_knowledge", cycle="integer?")
_ATTEMPT = of_class(Advanced)
_HIT = of_columns(HIT_SCHEMA, "fct_retrievals")
_ASKED_HIT = of_columns(HIT_SCHEMA, "fct_retrievals", foretold_ppm="integer", witnesses="number")
_SCAR_COLUMNS = pa.schema({column.name: column for column in (*FAILURE_SCHEMA, *SCAR_SCHEMA)}.values())
_SCAR = of_columns(_SCAR_COLUMNS, "fct_scars", confidence_now_ppm="integer", is_scar="boolean", because="string?")
_MARKET = "chain protocol pair regime market_regime gas_band"
_PUBLIC_DEATH = of_fields(
    string="testament_hash?",
    integer="version death_vote_count",
    boolean="is_bloodstain",
    conditions=or_null(of_fields("fct_scars", string=_MARKET)),
    failure_patterns=_WORDS,
)
_LEFT_SCAR = (
    "scar_id", "episode_id", "tick", "outcome_class", "mechanism", "causal_narrative", "causal_context",
    "market_regime", "confidence_ppm", "pnl_ppm", "effect_ppm", "emotion", "cause_ticks",
)  # fmt: skip
_BLOODSTAIN = of_fields(
    "fct_deaths",
    string="bloodstain_id golem_id owner_id lineage_id cause died_at testament_hash? bundle_hash?",
    integer="version generation tick",
    boolean="is_bloodstain bundle_published",
    conditions=or_null(
        of_fields("fct_scars", string=_MARKET, number="price_return sigma_ratio? gas_gwei gas_hour_ratio")
    ),
    scars=arrays_of(only(_SCAR, _LEFT_SCAR)),
    death_votes=arrays_of(
        of_fields("fct_votes", string="vote_id proposition_id claim", integer="confidence_ppm", number="weight")
    ),
    echo=_PUBLIC_DEATH,
)
_BUNDLE = of_fields(
    string="bundle golem lineage died_at made_by signed_by? testament",
    integer="generation entries anti_knowledge bloodstains episodes links procedures",
    domains=_COUNTS,
    confidence=_COUNTS,
    in_words=json_type("object?"),
)
_LIVE = of_fields(
    string="golem_id owner_id at state phase emotion regime tier reason",
    integer="tick net_asset_value_micros credits_micros queue_depth",
    number="price vitality spent_share prefetch_hit_rate?",
    boolean="is_replay",
    mood=arrays_of(json_type("number")),
    positions=_WORDS,
    decisions=arrays_of(of_fields(string="decision reason", integer="tick", actions=_WORDS, steers=_WORDS)),
)
_BUNDLE_ROW = of_fields(string="bundle golem signed_by? remark", integer="generation? entries?")
_LIBRARY_ENTRY = of_columns(LIBRARY_SCHEMA, "fct_library", confidence_now_ppm="integer")
_KIT, _SHELVED = of_columns(KIT_SCHEMA), of_columns(PLAYBOOK_DEPOSIT_SCHEMA)
_ORDERS = arrays_of(of_class(Order, cycle="integer"))
_REFUSED: Field = (
    arrays_of(of_fields(integer="index", string="error message cure?")),
    "Each refused one with its error, by its index.",
)


def _rows(row: Schema) -> dict[str, Field]:
    return {"rows": (arrays_of(row), "The rows, in the order of the command.")}


_GOLEM = ("string", "The golem.")
_STATE: Mapping[str, Field] = {
    "golem_id": _GOLEM,
    "cycle": ("integer", "Cycle of the state."),
    "tick": ("integer", "Tick of the state."),
    "at": ("string?", "Event time of the state, ISO 8601, UTC."),
    "died_at_tick": ("integer?", "Tick of the death; null while the golem lives."),
}
_WAITING: Field = (_ORDERS, "Overrides that wait for the next derivation.")
_WARNING: Field = ("string?", "What the answer may lack, with the cure; null if nothing.")
_ACKNOWLEDGED: Mapping[str, Field] = {
    "acknowledged": (
        arrays_of(of_fields(string="golem_id", integer="tick link?", boolean="repeated")),
        "Each record, in the order of its golem's ticks.",
    ),
    "durable": ("boolean", "Whether all of them survive a power cut."),
}
_ASKED: Mapping[str, Field] = {
    "golem_id": _GOLEM,
    "died_at_tick": ("integer?", "Tick of the death; null while the golem lives."),
    "situation": (of_class(Situation), "Situation of the golem, by which entries are weighted."),
    "decision": (of_class(Decision), "Whether retrieval was skipped, and why."),
    "contrarian": ("boolean", "Whether this is a contrarian turn."),
    "awake": ("integer", "Entries that were compared."),
    "asleep": ("integer", "Entries that are dormant in this regime."),
    "as_of": (of_class(AsOf), "Cycle, tick and log version of the knowledge."),
    "weights": (_NUMBERS, "Weights of the parts of the score."),
    "warning": _WARNING,
    "hits": (arrays_of(_ASKED_HIT), "Entries with the parts of their scores, the best first."),
}
_FOUND: Mapping[str, Field] = {
    "newest_event_us": ("integer?", "Newest event time of the view, microseconds since 1970, UTC."),
    "warning": _WARNING,
    "hits": (arrays_of(of_columns(SEARCH_SCHEMA)), "Entries and episodes with their scores, the best first."),
}

_LAYERS: Mapping[str, Field] = {
    "golem_id": _GOLEM,
    "layers": (arrays_of(of_class(Reached)), "Each layer, and whether the call reached it."),
    "cost_micros": ("integer", "Price of the call in micro-dollars."),
    "is_new": ("boolean", "Whether this call was paid; false if it repeats one whose time is not over."),
}

ANSWERS: Mapping[str, Mapping[str, Field] | Sequence[Schema]] = {
    "GET /v1/status": {
        "derivation_id": ("string", "Derivation in force."),
        "policy_hash": ("string", "Hash of its policy."),
        "adopted": ("string?", "Reason of the newest adoption of a derivation; null for the first derivation."),
        "frozen": ("string?", "Reason for which nothing may be derived; null if derivations run."),
        "log": (of_fields(integer="version ticks", gaps=arrays_of(of_class(TickRange))), "The log."),
        "health": (of_class(Health), "Measures of the home."),
        "faults": (arrays_of(of_class(Fault)), "Exceeded limits."),
        "unfinished_deaths": (arrays_of(of_class(UnfinishedDeath)), "Deaths that are not completed."),
        "projections": (by_name(of_fields(integer="rows", string="fingerprint")), "Digest of each projection."),
        "warehouse": ("string", "State of the warehouse, in words."),
    },
    "GET /v1/golems": {"golems": (arrays_of(of_columns(GOLEM_SCHEMA, "dim_golem")), "Golems of the view.")},
    "POST /v1/golems": {
        "golem_id": _GOLEM,
        "owner_id": ("string", "Its owner."),
        "is_new": ("boolean", "Whether this call recorded the birth."),
    },
    "GET /v1/golems/{golem_id}": [
        of_class(
            GolemReport,
            "dim_golem",
            vitality=or_null(_NUMBERS),
            in_words="object?",
            knows=arrays_of(of_fields(string="kind status", integer="entries")),
            verdict=or_null(of_class(Judged)),
            testament=or_null(by_name(_WORDS)),
            configuration="object",
            succession=arrays_of(only(_ATTEMPT, {*Advanced.model_fields} - {"configuration"})),
            categories=by_name(json_type("string")),
            last_steps=arrays_of(_ATTEMPT),
            playbook_diff=_WORDS,
        )
    ],
    "GET /v1/golems/{golem_id}/entries": {
        "total": ("integer", "Entries that match, beyond the limit too."),
        "entries": (arrays_of(_ENTRY), "Entries as derived."),
    },
    "GET /v1/golems/{golem_id}/records": {
        "golem_id": _GOLEM,
        "head_tick": ("integer", "Newest recorded tick."),
        "records": (arrays_of(of_record()), "Records in the order of their ticks."),
    },
    "GET /v1/golems/{golem_id}/warnings": {
        "golem_id": _GOLEM,
        "action": ("string", "The action."),
        "siblings_left_out": ("string?", "Reason why warnings of siblings are missing; null if they are included."),
        "cost_micros": ("integer", "Price of the call in micro-dollars."),
        "warnings": (arrays_of(_HIT), "Warnings, the most fitting first."),
    },
    "GET /v1/golems/{golem_id}/advice": {
        "golem_id": _GOLEM,
        "worth": (_NUMBERS, "Expected reward of each action, in [-1, 1]."),
        "rules": (arrays_of(of_class(Rule, conditions=by_name(json_type("string")))), "Rules whose conditions hold."),
    },
    "POST /v1/golems/{golem_id}/experiences": _ACKNOWLEDGED,
    "POST /v1/golems/{golem_id}/steers": {"golem_id": _GOLEM, "steer_id": ("string", "Id of the steer.")},
    "GET /v1/live": {"golems": (arrays_of(_LIVE), "Golems of live runs, by id.")},
    "POST /v1/golems/{golem_id}/drafts": {"records": (_WORDS, "Lines for the golem to sign.")},
    "GET /v1/ask": _ASKED,
    "POST /v1/ask": _ASKED,
    "GET /v1/search": _FOUND,
    "POST /v1/search": _FOUND,
    "POST /v1/styx/entries": _LAYERS,
    "GET /v1/styx/query": {
        **_LAYERS,
        "results": (arrays_of(of_class(Found, rank="integer")), "Results of all layers, the best first."),
    },
    "GET /v1/lineage": {
        "holdings": (
            arrays_of(of_class(Holding, decisions=arrays_of(only(_CHANGE, DECISION_FIELDS)))),
            "Each golem that holds the entry or the text, with its evidence.",
        )
    },
    "GET /v1/reports/bloodstain": [_BLOODSTAIN, _PUBLIC_DEATH],
    "GET /v1/reports/bundle-checks": _rows(of_class(BundleFailure)),
    "GET /v1/reports/bundle-show": [
        _BUNDLE,
        of_fields(rows=arrays_of(_BUNDLE_ROW)),
    ],
    "GET /v1/reports/clade-beliefs": _rows(of_class(BeliefRow)),
    "GET /v1/reports/clade-notes": _rows(of_class(NoteRow)),
    "GET /v1/reports/clade-pheromones": _rows(of_class(PheromoneRow)),
    "GET /v1/reports/dreams": {
        "golem_id": ("string?", "The golem; null for all."),
        "dreams": (arrays_of(of_columns(DREAM_SCHEMA, "fct_dreams")), "Dreams, the oldest first."),
        "hypotheses": (
            arrays_of(
                of_columns(
                    HYPOTHESIS_SCHEMA,
                    "fct_knowledge",
                    confidence_now_ppm="integer",
                    entry_id="string?",
                    revision="string?",
                    fate="string",
                )
            ),
            "Hypotheses of the dreams, the surest first.",
        ),
    },
    "GET /v1/reports/golem-death": {
        "golem_id": _GOLEM,
        "phases": (arrays_of(of_class(Phase, phase="string", payload="object")), "Recorded phases of dying."),
        "waits_for": ("string?", "What the death waits for; null if it is completed."),
    },
    "GET /v1/reports/golem-successions": {
        "successions": (
            arrays_of(of_fields(string="dead heir owner mode state why", integer="steps")),
            "Successions, with their state.",
        ),
        "credit_micros": (_COUNTS, "Committed credit by owner, in micro-dollars."),
    },
    "GET /v1/reports/golem-due": _rows(of_fields(string="golem why state")),
    "GET /v1/reports/golem-notices": _rows(of_class(Notice, posted="boolean")),
    "GET /v1/reports/graveyard": _rows(of_class(Grave, "dim_golem")),
    "GET /v1/reports/grimoire-list": {**_STATE, "entries": (arrays_of(_ENTRY_NOW), "Entries."), "waiting": _WAITING},
    "GET /v1/reports/grimoire-show": {
        **_STATE,
        "entry": (_ENTRY_NOW, "The entry."),
        "fading": (
            arrays_of(of_fields(string="at", integer="days confidence_ppm")),
            "Its confidence in the next days without evidence.",
        ),
        "decisions": (arrays_of(_DECISION), "Decisions of the curator about it."),
        "links": (
            arrays_of(of_fields(string="relation across? entry_id text")),
            "Entries that it is linked to.",
        ),
        "crossing": (
            or_null(of_fields(boolean="crosses", string="reason", integer="admission_ppm", parts_ppm=_COUNTS)),
            "Whether it may be shared, and why.",
        ),
        "notes": (arrays_of(of_fields(string="at note")), "Notes of the owner."),
        "waiting": _WAITING,
    },
    "GET /v1/reports/library-list": {
        "owner_id": ("string?", "The owner; null for all."),
        "total": ("integer", "Entries that match, beyond the limit too."),
        "entries": (arrays_of(_LIBRARY_ENTRY), "Entries of the library."),
        "kits": (arrays_of(_KIT), "Kits."),
        "playbooks": (arrays_of(_SHELVED), "Playbooks on the shelf."),
        "waiting": (arrays_of(of_class(KitOrdered)), "Orders of kits that no golem has received."),
    },
    "GET /v1/reports/library-show": [_LIBRARY_ENTRY, _KIT, _SHELVED],
    "GET /v1/reports/scars": _rows({**_SCAR, "required": [*FAILURE_SCHEMA.names, "is_scar", "because"]}),
    "GET /v1/reports/similar": _rows(of_fields("fct_episodes", string="episode_id at text", number="score")),
    "POST /v1/records": _ACKNOWLEDGED,
    "POST /v1/events": {
        "written": ("integer", "New events."),
        "repeated": ("integer", "Events that the log has already, or that the request repeats."),
        "refused": _REFUSED,
        "durable": ("boolean", "Whether all written ones survive a power cut."),
    },
    "POST /v1/texts": {
        "stored": (
            arrays_of(of_fields(string="episode_id importance estimated_retention_until", integer="index")),
            "Each stored episode.",
        ),
        "refused": _REFUSED,
        "counts": (or_null(of_class(WriteCounts)), "Texts of the golem before and after; null if none was stored."),
        "durable": ("boolean", "Whether all stored ones survive a power cut."),
    },
    "GET /v1/tools": {
        "tools": (
            arrays_of(
                of_fields(string="name description capability tick_budget", input_schema=_OBJECT, output_schema=_OBJECT)
            ),
            "Tools with their schemas.",
        ),
        "enabled": ("boolean", "Whether the memory tools are open."),
    },
}
"""Method and path -> fields of the answer beside `freshness`, or the schemas of its forms."""


def answer_schemas(method: str, path: str) -> Sequence[Schema]:
    """Return the schema of each form of a route's answer, without `freshness`."""
    answer = ANSWERS.get(f"{method} {path}", {})
    if not isinstance(answer, Mapping):
        return answer
    described = {
        name: {**(json_type(kind) if isinstance(kind, str) else kind), "description": text}
        for name, (kind, text) in answer.items()
    }
    return [with_texts({"type": "object", "required": [*described], "properties": described}, f"{method} {path}")]
