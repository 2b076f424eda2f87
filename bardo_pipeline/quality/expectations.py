"""What a good bundle looks like, as data: each expectation with its measure, its limits and what failing means. Pure.

Great Expectations is not imported here; derivation/verdicts.py measures and judges. Each expectation concerns a column
of a frame that has one row per bundle and one per bundle and entry.
Source: P-5; INH S7; canon 8, 40, 41, 44; MEM ("they die with it": position sizes, exact profit, raw trades).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from bardo_pipeline.policy import InheritancePolicy

Severity = Literal["critical", "warning"]

FORBIDDEN_NAMES = frozenset(
    {
        "amount", "balance", "capital_micros", "cause_ticks", "credits_micros", "decision_tick", "earned_micros",
        "fees_owed_micros", "golem_id", "idle_micros", "impermanent_loss_micros", "liquidity", "net_asset_value_micros",
        "observed_at", "own_count", "own_sum", "own_sumsq", "owner_id", "pnl", "pnl_impact_micros", "position_id",
        "private_key", "recent_count", "recent_sum", "size", "tick", "tick_lower", "tick_upper", "tx_hash",
        "value_micros", "wallet",
    }
)  # fmt: skip
"""Names that no entry of a bundle has: positions, sizes, moments of trades, profit and loss, and whose it was."""

FORBIDDEN_PATTERNS = (
    r"0x[0-9a-fA-F]{40,64}",
    r"(?i)\bp\s?[&n]\s?l\b",
    r"\$\s?\d",
    r"(?i)\btick \d",
    r"\d{4}-\d{2}-\d{2}",
    r"(?i)\bposition (?:id|size)\b",
)
"""Patterns that no words of an entry match: addresses and transactions, profit, amounts, ticks, dates, sizes."""

WORDED_FIELDS = (
    "text", "structure", "category", "chain", "protocol", "pair", "tool", "action_type", "metric", "cause", "effect",
)  # fmt: skip
"""Fields of an entry whose words are searched for those patterns; ids are not words."""

PROVENANCE_TEXTS = (
    "entry_id", "structure", "source", "kind", "text", "provenance", "origin_golem_id", "decay_class",
)  # fmt: skip
PROVENANCE_NUMBERS = ("confidence_ppm", "confidence_origin_ppm", "generation", "evidence_count")
PROVENANCE_MOMENTS = ("anchor_at", "created_at", "validated_at")
"""What every entry says of where it comes from and how far it is trusted, each in its own type."""


class Expectation(NamedTuple):
    """One expectation: `type` is the name of Great Expectations' class, `arguments` go to it as they are."""

    name: str
    type: str
    arguments: dict[str, Any]
    severity: Severity
    description: str


def bundle_expectations(policy: InheritancePolicy) -> tuple[Expectation, ...]:
    """The suite that every bundle passes before it may be inherited; a critical failure stops that bundle."""
    return (
        _within("entries_within_budget", "entry_count", 0, policy.budget, "No more entries cross a death."),
        _within("episodes_within_budget", "episode_count", 0, policy.episode_count, "No more episodes go with them."),
        Expectation(
            "entry_ids_unique",
            "ExpectCompoundColumnsToBeUnique",
            {"column_list": ["candidate", "entry_id"], "ignore_row_if": "any_value_is_missing"},
            "critical",
            "No entry is in a bundle twice.",
        ),
        _within("confidence_in_range", "confidence", 0.0, 1.0, "A confidence is in [0, 1]."),
        Expectation(
            "confidence_attenuated",
            "ExpectColumnPairValuesAToBeGreaterThanB",
            {
                "column_A": "confidence_limit_ppm",
                "column_B": "confidence_death_ppm",
                "or_equal": True,
                "ignore_row_if": "either_value_is_missing",
            },
            "critical",
            "At the moment of death an entry is trusted at most 0.85 of what the dead trusted it, or its floor.",
        ),
        _within("anti_knowledge_present", "anti_knowledge_missing", 0, 0, "All anti-knowledge crosses, to the budget."),
        _within("provenance_complete", "provenance_missing", 0, 0, "An entry says where it comes from."),
        _within("hashes_match", "hash_mismatches", 0, 0, "Files and manifest are what their hashes say."),
        _within("no_forbidden_field", "forbidden_fields", 0, 0, "No field of a position, size, moment or profit."),
        Expectation(
            "no_forbidden_value",
            "ExpectColumnValuesToNotMatchRegexList",
            {"column": "words", "regex_list": list(FORBIDDEN_PATTERNS)},
            "critical",
            "No entry's words hold an address, an amount, a profit, a tick or a date.",
        ),
        _within(
            "testament_short", "testament_bytes", 1, policy.testament_bytes_max, "It is there, and short.", "warning"
        ),
        _within("knows_something", "entry_count", 1, None, "A bundle without entries teaches nothing.", "warning"),
    )


def _within(
    name: str, column: str, low: float, high: float | None, description: str, severity: Severity = "critical"
) -> Expectation:
    limits = {"column": column, "min_value": low, "max_value": high}
    return Expectation(name, "ExpectColumnValuesToBeBetween", limits, severity, description)
