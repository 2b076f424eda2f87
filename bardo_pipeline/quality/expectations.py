"""What a good bundle looks like, as data: each expectation with its measure, its limits and what failing means. Pure.

Great Expectations is not imported here; derivation/verdicts.py measures and judges. Each expectation concerns one column
of a frame with a row per bundle (grain "bundle") or per bundle and entry (grain "entry").
Source: P-5; INH S7; canon 8, 40, 41, 44; MEM (what dies with the golem).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from bardo_pipeline.policy import InheritancePolicy

FORBIDDEN_NAMES = frozenset(
    {
        "amount", "balance", "capital_micros", "cause_ticks", "credits_micros", "decision_tick", "earned_micros", "fees_owed_micros",
        "golem_id", "idle_micros", "impermanent_loss_micros", "liquidity", "net_asset_value_micros", "observed_at", "own_count",
        "own_sum", "own_sumsq", "owner_id", "pnl", "pnl_impact_micros", "position_id", "private_key", "recent_count", "recent_sum",
        "size", "tick", "tick_lower", "tick_upper", "tx_hash", "value_micros", "wallet",
    }
)  # fmt: skip
"""Names that no entry of a bundle has: positions, sizes, moments of trades, profit and loss, and whose it was."""

FORBIDDEN_PATTERNS = (
    r"0x[0-9a-fA-F]{40,64}",
    r"(?i)\bp\s?[&n]\s?l\b",
    r"\$\s?\d",
    r"(?i)\btick \d",
    r"\d{4}-\d{2}-\d{2}",
    r"(?i)\bposition (id|size)\b",
)
"""Patterns that no words of an entry match: addresses and transactions, dollar amounts, profit, ticks, dates, sizes."""

PROVENANCE_FIELDS = (
    "entry_id",
    "structure",
    "source",
    "kind",
    "text",
    "provenance",
    "origin_golem_id",
    "decay_class",
    "confidence_ppm",
    "confidence_origin_ppm",
    "generation",
    "anchor_at",
    "created_at",
    "validated_at",
)
"""What every entry must say of where it comes from and how it is trusted."""


class Expectation(NamedTuple):
    """One expectation: `type` is the name of Great Expectations' class, `arguments` go to it as they are."""

    name: str
    type: str
    arguments: dict[str, Any]
    severity: Literal["critical", "warning"]
    description: str


def bundle_expectations(policy: InheritancePolicy) -> tuple[Expectation, ...]:
    """The suite that every bundle passes before it may be inherited; a critical failure stops that bundle."""
    return (
        _between("entries_within_budget", "entry_count", 0, policy.budget, "At most so many entries cross a death."),
        _between("episodes_within_budget", "episode_count", 0, policy.episode_count, "At most so many episodes go with them."),
        Expectation(
            "entry_ids_unique", "ExpectCompoundColumnsToBeUnique",
            {"column_list": ["candidate", "entry_id"], "ignore_row_if": "any_value_is_missing"},
            "critical", "No entry is in a bundle twice.",
        ),
        Expectation(
            "confidence_attenuated", "ExpectColumnPairValuesAToBeGreaterThanB",
            {"column_A": "confidence_limit_ppm", "column_B": "confidence_death_ppm", "or_equal": True, "ignore_row_if": "either_value_is_missing"},
            "critical", "At the moment of death an entry is trusted at most 0.85 of what the dead trusted it, or its floor.",
        ),
        _between("confidence_in_range", "confidence", 0.0, 1.0, "A confidence is in [0, 1]."),
        _between("anti_knowledge_present", "anti_knowledge_missing", 0, 0, "All anti-knowledge crosses, up to the budget."),
        _between("provenance_complete", "provenance_missing", 0, 0, "Every entry says where it comes from and how it is trusted."),
        _between("hashes_match", "hash_mismatches", 0, 0, "Each file has the hash that the manifest says, and so has the manifest."),
        _between("no_forbidden_field", "forbidden_fields", 0, 0, "No entry has a field of a position, a size, a moment or a profit."),
        Expectation(
            "no_forbidden_value", "ExpectColumnValuesToNotMatchRegexList",
            {"column": "words", "regex_list": list(FORBIDDEN_PATTERNS)},
            "critical", "No entry's words hold an address, an amount, a profit, a tick or a date.",
        ),
        _between("testament_short", "testament_bytes", 1, policy.testament_bytes_max, "The testament is there and fits its size.", "warning"),
        _between("knows_something", "entry_count", 1, None, "A bundle without entries teaches nothing.", "warning"),
    )  # fmt: skip


def _between(
    name: str,
    column: str,
    low: float,
    high: float | None,
    description: str,
    severity: Literal["critical", "warning"] = "critical",
) -> Expectation:
    limits = {"column": column, "min_value": low, "max_value": high}
    return Expectation(name, "ExpectColumnValuesToBeBetween", limits, severity, description)
