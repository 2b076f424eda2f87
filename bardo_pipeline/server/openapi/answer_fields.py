"""Fields of the JSON answers of the routes, for the OpenAPI document. Results of tools have schemas of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Field = tuple[str, str]
"""JSON type, with `?` if the value may be null, and description."""

_GOLEM = ("string", "The golem.")
_STATE: Mapping[str, Field] = {
    "golem_id": _GOLEM,
    "cycle": ("integer", "Cycle of the state."),
    "tick": ("integer", "Tick of the state."),
    "at": ("string?", "Event time of the state, ISO 8601, UTC."),
    "died_at_tick": ("integer?", "Tick of the death; null while the golem lives."),
}
_ROWS: Mapping[str, Field] = {"rows": ("array", "The rows, in the order of the command.")}
_WAITING: Field = ("array", "Overrides that wait for the next derivation.")
_WARNING: Field = ("string?", "What the answer may lack, with the cure; null if nothing.")
_ACKNOWLEDGED: Mapping[str, Field] = {
    "acknowledged": ("array", "Each record or event: its golem and tick, and whether it was known already."),
    "durable": ("boolean", "Whether all of them survive a power cut."),
}
_ASKED: Mapping[str, Field] = {
    "golem_id": _GOLEM,
    "died_at_tick": ("integer?", "Tick of the death; null while the golem lives."),
    "situation": ("object", "Situation of the golem, by which entries are weighted."),
    "decision": ("object", "Whether retrieval was skipped, and why."),
    "contrarian": ("boolean", "Whether this is a contrarian turn."),
    "awake": ("integer", "Entries that were compared."),
    "asleep": ("integer", "Entries that are dormant in this regime."),
    "as_of": ("object", "Cycle, tick and log version of the knowledge."),
    "weights": ("object", "Weights of the parts of the score."),
    "warning": _WARNING,
    "hits": ("array", "Entries with the parts of their scores, the best first."),
}
_FOUND: Mapping[str, Field] = {
    "newest_event_us": ("integer?", "Newest event time of the view, microseconds since 1970, UTC."),
    "warning": _WARNING,
    "hits": ("array", "Entries and episodes with their scores, the best first."),
}

ANSWERS: Mapping[str, Mapping[str, Field]] = {
    "GET /v1/status": {
        "derivation_id": ("string", "Derivation in force."),
        "policy_hash": ("string", "Hash of its policy."),
        "adopted": ("object?", "The adoption that changed the derivation; null for the first one."),
        "frozen": ("object?", "The freeze of the home; null if derivations run."),
        "log": ("object", "Version, ticks and gaps of the log."),
        "health": ("object", "Measures of the home."),
        "faults": ("array", "Exceeded limits."),
        "unfinished_deaths": ("array", "Deaths that are not completed, with the reason."),
        "projections": ("object", "Digest of each projection."),
        "warehouse": ("string?", "Path of the warehouse; null before the first build."),
    },
    "GET /v1/golems": {"golems": ("array", "Golems of the view, with birth and death.")},
    "POST /v1/golems": {
        "golem_id": _GOLEM,
        "owner_id": ("string", "Its owner."),
        "is_new": ("boolean", "Whether this call recorded the birth."),
    },
    "GET /v1/golems/{golem_id}": {
        "golem_id": _GOLEM,
        "born": ("object?", "Its birth; null if none was recorded."),
        "born_at": ("string?", "Event time of the birth."),
        "died": ("object?", "Its death; null while it lives."),
        "died_at": ("string?", "Event time of the death."),
        "tick": ("integer?", "Newest recorded tick."),
        "phase": ("string?", "Phase of life at this tick."),
        "vitality": ("object?", "Three clocks of mortality and their composite."),
        "credits_micros": ("integer?", "Credits left, in micro-dollars."),
        "capital_micros": ("integer?", "Net asset value, in micro-dollars."),
        "knows": ("array", "Number of entries by kind and status."),
        "playbook_version": ("integer?", "Newest version of the playbook."),
        "lineage": ("array", "Ancestors, the oldest first."),
        "heirs": ("array", "Golems that were born with its bundle."),
        "bundle_hash": ("string?", "Bundle that it left."),
        "verdict": ("object?", "Verdict on this bundle."),
        "testament": ("object?", "Its testament."),
        "divergence_ppm": ("integer?", "Share of new knowledge beside the ancestor, in millionths."),
        "defaults": ("array", "Options of the birth that are defaults."),
        "configuration": ("object?", "Its configuration."),
        "succession": ("array", "Steps of its succession."),
        "in_words": ("string?", "The testament as a model wrote it."),
        "categories": ("object?", "Entries of the testament by category."),
        "last_steps": ("array", "Last reports of its execution before death."),
        "playbook_diff": ("array", "Changes of the playbook since birth."),
    },
    "GET /v1/golems/{golem_id}/entries": {
        "total": ("integer", "Entries that match, beyond the limit too."),
        "entries": ("array", "Entries as derived."),
    },
    "GET /v1/golems/{golem_id}/records": {
        "golem_id": _GOLEM,
        "head_tick": ("integer", "Newest recorded tick."),
        "records": ("array", "Records in the order of their ticks."),
    },
    "GET /v1/golems/{golem_id}/warnings": {
        "golem_id": _GOLEM,
        "action": ("string", "The action."),
        "warnings": ("array", "Warnings, the most fitting first."),
    },
    "GET /v1/golems/{golem_id}/advice": {
        "golem_id": _GOLEM,
        "worth": ("object", "Expected reward of each action, in [-1, 1]."),
        "rules": ("array", "Rules whose conditions hold."),
    },
    "POST /v1/golems/{golem_id}/experiences": _ACKNOWLEDGED,
    "POST /v1/golems/{golem_id}/drafts": {"records": ("array", "Lines for the golem to sign.")},
    "GET /v1/ask": _ASKED,
    "POST /v1/ask": _ASKED,
    "GET /v1/search": _FOUND,
    "POST /v1/search": _FOUND,
    "GET /v1/lineage": {"holdings": ("array", "Each golem that holds the entry, with its evidence.")},
    "GET /v1/reports/bloodstain": {},
    "GET /v1/reports/dreams": {
        "golem_id": ("string?", "The golem; null for all."),
        "dreams": ("array", "Dreams, the newest first."),
        "hypotheses": ("array", "Hypotheses of the dreams."),
    },
    "GET /v1/reports/golem-death": {
        "golem_id": _GOLEM,
        "phases": ("array", "Recorded phases of dying."),
        "waits_for": ("string?", "What the death waits for; null if it is completed."),
    },
    "GET /v1/reports/golem-successions": {
        "successions": ("array", "Successions, with their state."),
        "credit_micros": ("object", "Committed credit by owner, in micro-dollars."),
    },
    "GET /v1/reports/grimoire-list": {**_STATE, "entries": ("array", "Entries."), "waiting": _WAITING},
    "GET /v1/reports/grimoire-show": {
        **_STATE,
        "entry": ("object", "The entry."),
        "fading": ("array", "Its confidence in the next days without evidence."),
        "decisions": ("array", "Decisions of the curator about it."),
        "links": ("array", "Entries that it is linked to."),
        "crossing": ("object?", "Whether it may be shared, and why."),
        "notes": ("array", "Notes of the owner."),
        "waiting": _WAITING,
    },
    "GET /v1/reports/library-list": {
        "owner_id": ("string?", "The owner; null for all."),
        "total": ("integer", "Entries that match, beyond the limit too."),
        "entries": ("array", "Entries of the library."),
        "kits": ("array", "Kits."),
        "playbooks": ("array", "Playbooks on the shelf."),
        "waiting": ("array", "Bundles that wait for the library."),
    },
    "GET /v1/reports/library-show": {},
    **{f"GET /v1/reports/{name}": _ROWS for name in
       ("bundle-checks", "bundle-show", "golem-due", "golem-notices", "graveyard", "scars", "similar")},
    "POST /v1/records": _ACKNOWLEDGED,
    "POST /v1/events": _ACKNOWLEDGED,
    "POST /v1/texts": {
        "stored": ("array", "Each stored episode, by its index."),
        "refused": ("array", "Each refused episode with its error, by its index."),
        "counts": ("object?", "Texts of the golem before and after; null if none was stored."),
        "durable": ("boolean", "Whether all stored ones survive a power cut."),
    },
    "GET /v1/tools": {
        "tools": ("array", "Tools with their schemas."),
        "enabled": ("boolean", "Whether the memory tools are open."),
    },
}  # fmt: skip
"""Method and path -> fields of the answer beside `freshness`; {} if they depend on the thing that is named."""


def answer_fields(method: str, path: str) -> dict[str, Any]:
    """Return the JSON schemas of the fields of a route's answer."""
    return {
        name: {"type": [kind[:-1], "null"] if kind.endswith("?") else kind, "description": description}
        for name, (kind, description) in ANSWERS.get(f"{method} {path}", {}).items()
    }
