"""Expectations of a bundle as data: each has a measure, its limits and a severity. Pure.

Great Expectations is not imported here; derivation/legacy/bundle_verdicts.py measures and judges. Each expectation
checks a column of a frame that has one row per bundle and one per bundle and entry.
Source: P-5; INH S7, S8; canon 8, 40, 41, 43, 44; MEM ("they die with it": position sizes, exact profit, raw trades).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from bardo_pipeline.grimoire.entries import DECAY_CLASSES
from bardo_pipeline.policy import InheritancePolicy, Policy, StewardPolicy

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
"""Field names that entries of a bundle must not have: positions, sizes, times of trades, profit and loss, owners."""

_SPACE = r"[\t-\r\x1c-\x20\x85\xa0" + "\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
"""The characters that backslash s matches. With backslash s itself, pandas runs the pattern row by row in Python."""

FORBIDDEN_PATTERNS = (
    r"0x[0-9a-fA-F]{40,64}",
    rf"(?i)\bp{_SPACE}?[&n]{_SPACE}?l\b",
    rf"\${_SPACE}?\d",
    r"(?i)\btick \d",
    r"\d{4}-\d{2}-\d{2}",
    r"(?i)\bposition (?:id|size)\b",
)
"""Patterns that texts of entries must not match: addresses, transactions, profit, amounts, ticks, dates, sizes."""

WORDED_FIELDS = (
    "text", "structure", "category", "chain", "protocol", "pair", "tool", "action_type", "metric", "cause", "effect",
)  # fmt: skip
"""Text fields of an entry that are searched for these patterns; ids are not searched."""

PROVENANCE_TEXTS = (
    "entry_id", "structure", "source", "kind", "text", "provenance", "origin_golem_id", "decay_class",
)  # fmt: skip
PROVENANCE_NUMBERS = ("confidence_ppm", "confidence_origin_ppm", "generation", "evidence_count")
PROVENANCE_MOMENTS = ("anchor_at", "created_at", "validated_at")
"""Required fields for origin and confidence of an entry, by type."""


class Expectation(NamedTuple):
    """One expectation: `type` is the class name in Great Expectations, `arguments` are passed to that class."""

    name: str
    type: str
    arguments: dict[str, Any]
    severity: Severity
    description: str

    @property
    def limits(self) -> dict[str, float]:
        """Lower and upper limit of the measure, if it has them."""
        named = (("at least", "min_value"), ("at most", "max_value"))
        return {word: self.arguments[name] for word, name in named if self.arguments.get(name) is not None}


def bundle_expectations(policy: Policy) -> tuple[Expectation, ...]:
    """Return the suite that a bundle must pass before inheritance.

    A critical failure refuses the bundle. A steward reviews warnings and may waive them (`bardo bundle waive`).
    """
    return (*_integrity(policy.inheritance), *_distributions(policy.steward), *_mandate(policy))


def _integrity(policy: InheritancePolicy) -> tuple[Expectation, ...]:
    """Expectations of size, hashes, required and forbidden content."""
    return (
        _within("entries_within_budget", "entry_count", 0, policy.budget, "At most this many entries cross a death."),
        _within(
            "episodes_within_budget",
            "episode_count",
            0,
            policy.episode_count,
            "At most this many episodes cross with them.",
        ),
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
            "Confidence at death is at most 0.85 of the confidence that the dead golem had, or the floor.",
        ),
        _within(
            "anti_knowledge_present", "anti_knowledge_missing", 0, 0, "All anti-knowledge crosses, up to the budget."
        ),
        _within("provenance_complete", "provenance_missing", 0, 0, "Each entry has its origin."),
        Expectation(
            "decay_classes_known",
            "ExpectColumnValuesToBeInSet",
            {"column": "decay_class", "value_set": list(DECAY_CLASSES)},
            "critical",
            "Each entry has a known decay class.",
        ),
        _within("link_ends_present", "links_loose", 0, 0, "Both ends of a link are entries of the bundle."),
        _within("hashes_match", "hash_mismatches", 0, 0, "Files and manifest match their hashes."),
        _within("no_forbidden_field", "forbidden_fields", 0, 0, "No field of a position, size, moment or profit."),
        Expectation(
            "no_forbidden_value",
            "ExpectColumnValuesToNotMatchRegexList",
            {"column": "words", "regex_list": list(FORBIDDEN_PATTERNS)},
            "critical",
            "No text of an entry contains an address, an amount, a profit, a tick or a date.",
        ),
        _within(
            "testament_short",
            "testament_bytes",
            1,
            policy.testament_bytes_max,
            "The testament is present and short.",
            "warning",
        ),
        _within("knows_something", "entry_count", 1, None, "A bundle without entries teaches nothing.", "warning"),
    )


def _distributions(policy: StewardPolicy) -> tuple[Expectation, ...]:
    """Expectations of confidence, decay, age and domains, and of their change since the bundle inherited at birth."""
    ends = (1.0 / policy.size_factor_max, policy.size_factor_max)
    return (
        _asked(
            "confidence_spread", "confidence_mean", policy.confidence_mean_min, policy.confidence_mean_max,
            "The mean confidence is neither very low nor very high.",
        ),
        _asked(
            "confidence_earned", "unsure_share", 0.0, policy.unsure_share_max,
            "Few entries are near the pruning threshold.",
        ),
        _asked("knowledge_fades", "lasting_share", 0.0, policy.lasting_share_max, "Few entries never fade."),
        _asked("knowledge_fresh", "stale_share", 0.0, policy.stale_share_max, "Few entries went long unvalidated."),
        _asked("domains_covered", "domain_count", policy.domains_min, None, "The entries cover several domains."),
        _asked("domains_kept", "domains_lost", 0, 0, "Every domain that the dead golem knew crosses."),
        _asked("confidence_steady", "confidence_drift", 0.0, policy.confidence_drift_max,
               "The mean confidence is near that of the inherited bundle."),
        _asked("domains_steady", "domain_drift", 0.0, policy.domain_drift_max,
               "The domains are similar to those of the inherited bundle."),
        _asked("size_steady", "size_ratio", *ends, "The number of entries is near that of the inherited bundle."),
    )  # fmt: skip


def _mandate(policy: Policy) -> tuple[Expectation, ...]:
    """Expectations of the golem's own contribution (INH S8). Only gaps and questions are measured for a founder."""
    rules = policy.divergence
    return (
        _asked(
            "no_low_divergence", "divergence", rules.divergence_min, None, "The bundle differs from the inherited one."
        ),
        _asked("something_novel", "novel_count", rules.novel_min, None, "A generation adds entries of its own."),
        _asked(
            "something_invalidated",
            "invalidated_missing",
            0,
            0,
            "The golem tested inherited entries and invalidated some.",
        ),
        _asked("gaps_named", "gap_count", rules.gaps_min, None, "The testament names open gaps."),
        _asked(
            "questions_asked",
            "question_ratio",
            rules.question_ratio_min,
            None,
            "The testament contains questions as well as instructions.",
        ),
    )


def _asked(name: str, column: str, low: float | None, high: float | None, description: str) -> Expectation:
    return _within(name, column, low, high, description, "warning")


def _within(
    name: str, column: str, low: float | None, high: float | None, description: str, severity: Severity = "critical"
) -> Expectation:
    limits = {"column": column, "min_value": low, "max_value": high}
    return Expectation(name, "ExpectColumnValuesToBeBetween", limits, severity, description)
