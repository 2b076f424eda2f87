"""What a good bundle looks like, as data: each expectation with its measure, its limits and what failing means. Pure.

Great Expectations is not imported here; derivation/legacy/bundle_verdicts.py measures and judges. Each expectation
concerns a column of a frame that has one row per bundle and one per bundle and entry.
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
"""Names that no entry of a bundle has: positions, sizes, moments of trades, profit and loss, and whose it was."""

_SPACE = r"[\t-\r\x1c-\x20\x85\xa0" + "\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
"""What backslash s matches, spelt out: pandas asks Python, row by row, where a pattern says it so."""

FORBIDDEN_PATTERNS = (
    r"0x[0-9a-fA-F]{40,64}",
    rf"(?i)\bp{_SPACE}?[&n]{_SPACE}?l\b",
    rf"\${_SPACE}?\d",
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

    @property
    def limits(self) -> dict[str, float]:
        """Least and most that its measure may be, where it has such."""
        named = (("at least", "min_value"), ("at most", "max_value"))
        return {word: self.arguments[name] for word, name in named if self.arguments.get(name) is not None}


def bundle_expectations(policy: Policy) -> tuple[Expectation, ...]:
    """The suite that every bundle passes before it may be inherited; a critical failure stops that bundle.

    A warning is a steward's to look at; it may be waived (`bardo bundle waive`).
    """
    return (
        *_integrity(policy.inheritance),
        *_distributions(policy.steward),
        *_drift(policy.steward),
        *_mandate(policy),
    )


def _integrity(policy: InheritancePolicy) -> tuple[Expectation, ...]:
    """What a bundle is: its size, its bytes, what must be in it and what must not."""
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
        Expectation(
            "decay_classes_known",
            "ExpectColumnValuesToBeInSet",
            {"column": "decay_class", "value_set": list(DECAY_CLASSES)},
            "critical",
            "An entry fades by one of the rules that there are.",
        ),
        _within("link_ends_present", "links_loose", 0, 0, "Both ends of a link are entries of the bundle."),
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


def _distributions(policy: StewardPolicy) -> tuple[Expectation, ...]:
    """How what crosses is spread: over confidence, decay, age and domains."""
    return (
        _asked(
            "confidence_spread", "confidence_mean", policy.confidence_mean_min, policy.confidence_mean_max,
            "Nobody knows nothing for sure, and nobody knows everything for sure.",
        ),
        _asked("confidence_earned", "unsure_share", 0.0, policy.unsure_share_max, "Few are about to be pruned."),
        _asked("knowledge_fades", "lasting_share", 0.0, policy.lasting_share_max, "Few entries never fade."),
        _asked("knowledge_fresh", "stale_share", 0.0, policy.stale_share_max, "Few entries went long unvalidated."),
        _asked("domains_covered", "domain_count", policy.domains_min, None, "It is not about one thing alone."),
        _asked("domains_kept", "domains_lost", 0, 0, "Every domain of which the dead knew something crosses."),
    )  # fmt: skip


def _drift(policy: StewardPolicy) -> tuple[Expectation, ...]:
    """How far it is from the bundle that its golem was born with."""
    ends = (1.0 / policy.size_factor_max, policy.size_factor_max)
    return (
        _asked("confidence_steady", "confidence_drift", 0.0, policy.confidence_drift_max,
               "Heirs are not trusted quite otherwise than their predecessors."),
        _asked("domains_steady", "domain_drift", 0.0, policy.domain_drift_max, "Heirs know much the same domains."),
        _asked("size_steady", "size_ratio", *ends, "It neither lost most entries nor drowns in them."),
    )  # fmt: skip


def _mandate(policy: Policy) -> tuple[Expectation, ...]:
    """What its golem made of what it was given (INH S8); a founder is asked for gaps and questions alone."""
    rules = policy.divergence
    return (
        _asked(
            "no_low_divergence", "divergence", rules.divergence_min, None, "It is not a copy of what was inherited."
        ),
        _asked("something_novel", "novel_count", rules.novel_min, None, "A generation adds entries of its own."),
        _asked(
            "something_invalidated", "invalidated_missing", 0, 0, "It tests what it was given, and lets go of some."
        ),
        _asked("gaps_named", "gap_count", rules.gaps_min, None, "The testament says what is open."),
        _asked(
            "questions_asked", "question_ratio", rules.question_ratio_min, None, "It asks, and does not only command."
        ),
    )


def _asked(name: str, column: str, low: float | None, high: float | None, description: str) -> Expectation:
    return _within(name, column, low, high, description, "warning")


def _within(
    name: str, column: str, low: float | None, high: float | None, description: str, severity: Severity = "critical"
) -> Expectation:
    limits = {"column": column, "min_value": low, "max_value": high}
    return Expectation(name, "ExpectColumnValuesToBeBetween", limits, severity, description)
