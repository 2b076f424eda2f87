"""Choices of a playbook by regime, from rules about choices: half-width of a new range, presence, loan. Pure.

The value of a rule is its stated effect times its confidence. In a regime, the value of an act is a weighted mean of
the regime's rule and of the general rule, over all regimes. The first weighs its number of witnesses, the second
`pool_witnesses`; a missing general rule counts as zero. The half-width with the best value is chosen.
Source: HB-24; docs/adr/0070.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.curator.state.evidence import EVIDENCE_HORIZONS, LOAN, RECENTRING
from bardo_pipeline.curator.state.grimoire_state import ACTIVE, GrimoireState, entry_ids
from bardo_pipeline.events.record.arrow_columns import all_nullable, all_required, required
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, width_of_act
from bardo_pipeline.policy import Policy

PRESENCE = ("trait", "enter", "stay_out", "leave")
"""What a playbook says about being in the market: nothing, enter, do not enter, leave and do not enter."""

TRAIT, ENTER, STAY_OUT, LEAVE = range(len(PRESENCE))

LOANS = ("trait", "borrow", "unlevered", "repay")
"""What a playbook says about a loan: nothing, borrow, take no loan, repay and take no loan."""

BORROWS, UNLEVERED, REPAYS = range(1, len(LOANS))

_ENTERING, _LEAVING = "add_liquidity", "remove_liquidity"


@dataclass(frozen=True)
class Choices:
    """Choices of one golem by regime, each with the id of the rule that decided, None for none.

    width: half-width in pool ticks, 0 for the trait. presence: codes of PRESENCE. loan: codes of LOANS.
    """

    width: tuple[int, ...]
    width_rule: tuple[str | None, ...]
    presence: tuple[int, ...]
    presence_rule: tuple[str | None, ...]
    loan: tuple[int, ...]
    loan_rule: tuple[str | None, ...]

    @property
    def columns(self) -> dict[str, dict[str, Any]]:
        """Return the columns of CHOICE_FIELDS."""
        presence = tuple(PRESENCE[code] for code in self.presence)
        loan = tuple(LOANS[code] for code in self.loan)
        values = (self.width, self.width_rule, presence, self.presence_rule, loan, self.loan_rule)
        return {f.name: dict(zip(REGIMES, part, strict=True)) for f, part in zip(CHOICE_FIELDS, values, strict=True)}

    @classmethod
    def of_columns(cls, row: Mapping[str, Any]) -> Choices:
        """Return the choices that a row with CHOICE_FIELDS states."""
        width, width_rule, presence, presence_rule, loan, loan_rule = (
            tuple(row[f.name][r] for r in REGIMES) for f in CHOICE_FIELDS
        )
        codes_of_presence, codes_of_loan = tuple(map(PRESENCE.index, presence)), tuple(map(LOANS.index, loan))
        return cls(width, width_rule, codes_of_presence, presence_rule, codes_of_loan, loan_rule)

    def lines(self) -> list[str]:
        """Return the sections of PLAYBOOK.md about the choices that a rule makes in some regime."""
        lines: list[str] = []
        for title, values, rules, other in (
            ("rangeHalfWidth", [f"{width} ticks" for width in self.width], self.width_rule, "the trait"),
            ("presence", [_PRESENCE_WORDS[code] for code in self.presence], self.presence_rule, "the trait"),
            ("loan", [_LOAN_WORDS[code] for code in self.loan], self.loan_rule, "as the owner allows"),
        ):
            if any(rules):
                stated = zip(REGIMES, values, rules, strict=True)
                by = [f"- {r}: {f'{value}, by rule {rule[:12]}' if rule else other}" for r, value, rule in stated]
                lines += ["", f"## {title}", "", *by]
        return lines


_PRESENCE_WORDS = ("the trait", "enter", "do not enter", "leave and do not enter")
_LOAN_WORDS = ("as the owner allows", "borrow", "do not borrow", "repay and do not borrow")

CHOICE_FIELDS = (
    required("range_half_width", pa.struct(all_required(pa.int64(), *REGIMES))),
    required("range_rule", pa.struct(all_nullable(pa.string(), *REGIMES))),
    required("presence", pa.struct(all_required(pa.string(), *REGIMES))),
    required("presence_rule", pa.struct(all_nullable(pa.string(), *REGIMES))),
    required("loan", pa.struct(all_required(pa.string(), *REGIMES))),
    required("loan_rule", pa.struct(all_nullable(pa.string(), *REGIMES))),
)
"""Columns of a playbook about choices, by regime: half-width of a new range (0: the trait), a word of PRESENCE, a word
of LOANS, and the ids of the rules that decided."""

_NO_CODES, _NO_RULES = (TRAIT,) * len(REGIMES), (None,) * len(REGIMES)
NO_CHOICES = Choices(_NO_CODES, _NO_RULES, _NO_CODES, _NO_RULES, _NO_CODES, _NO_RULES)


def active_rules(state: GrimoireState, about: BoolArray) -> Int64Array:
    """Return the rows of active rules about these structures. about: by code."""
    rows = np.flatnonzero((state["status"] == ACTIVE) & (state["kind"] != 0))
    return rows[about[state["structure"][rows]]]


@dataclass(frozen=True)
class Verdicts:
    """Verdicts of the rules in force of some golems about acts.

    acts: code of each act. value: of an act in ppm, [acts, golems, regimes], at the end 0 for acts without rules.
    row: row of the rule that decided, the regime's before the general one, -1 for none; same shape.
    """

    acts: dict[str, int]
    value: Float64Array
    row: Int64Array

    def of(self, acts: list[str]) -> tuple[Float64Array, Int64Array]:
        """Return value and row of acts, [acts, golems, regimes]."""
        codes = [self.acts.get(act, -1) for act in acts]
        return self.value[codes], self.row[codes]


def verdicts_of(
    state: GrimoireState, golem: Int64Array, rows: Int64Array, confidence: Int64Array, policy: Policy
) -> Verdicts:
    """Return the value of each act by the rules about choices in these rows.

    Ties are broken by `stable`, not by the order of registration. golem: ascending. confidence: of each row, in ppm.
    """
    order = np.argsort(state.structures.stable()[state["structure"][rows]])
    rows, confidence = rows[order], confidence[order]
    worth = state["effect_mean_ppm"][rows] * (confidence / PPM)
    count = np.maximum(state["own_count"][rows], state["evidence_count"][rows])
    share = count / (count + policy.curator.pool_witnesses)
    codes, acts = state.structures.chosen_acts()
    structure = state["structure"][rows]
    regime, place = state.structures.bands()[0][structure], np.searchsorted(golem, state["golem"][rows])
    value = np.zeros((len(acts) + 1, len(golem), len(REGIMES)))
    row = np.full(value.shape, -1)
    general = np.flatnonzero(regime < 0)[::-1]  # reversed, because the last assignment to a place stays
    about = codes[structure[general]], place[general]
    value[about], row[about] = worth[general, None], rows[general, None]
    own = np.flatnonzero(regime >= 0)
    where = codes[structure[own]], place[own], regime[own]
    value[where], row[where] = share[own] * worth[own] + (1.0 - share[own]) * value[where], rows[own]
    return Verdicts(acts, value, row)


def choices_of(verdicts: Verdicts, state: GrimoireState, policy: Policy) -> list[Choices]:
    """Return the choices of each golem."""
    codes, rows = zip(*(part(verdicts, policy) for part in (_widths, _presence, _loan)), strict=True)
    used, place = np.unique(rows, return_inverse=True)
    ids = np.array([None] * int(used[0] < 0) + entry_ids(state, used[used >= 0]), object)[place]
    parts = [part.tolist() for pair in zip(codes, ids, strict=True) for part in pair]
    return [Choices(*map(tuple, of_golem)) for of_golem in zip(*parts, strict=True)]


def recentring_signs(verdicts: Verdicts, policy: Policy) -> Int64Array:
    """Return whether re-centring pays over hours, [golems, regimes, anomaly bands].

    1 it pays, -1 it loses, 0 no rule decides.
    """
    value, _ = _over_hours(verdicts, [f"recenter_{band}" for band in ANOMALY_BANDS], RECENTRING, policy)
    return np.sign(np.moveaxis(value, 0, -1)).astype(np.int64)


_Decided = tuple[Int64Array, Int64Array]
"""Code and row of the rule that decided, TRAIT and -1 for none, [golems, regimes]."""


def _widths(verdicts: Verdicts, policy: Policy) -> _Decided:
    """Choose the half-width with the best value in each regime; the reference, with value 0, if all are negative."""
    ladder = sorted((stated, code) for act, code in verdicts.acts.items() if (stated := width_of_act(act)) is not None)
    stated, codes = zip(*(ladder or [((0, 0), -1)]), strict=True)
    row = verdicts.row[list(codes)]
    value = np.where(row >= 0, verdicts.value[list(codes)], -np.inf)
    best = value.argmax(axis=0)
    place = best, np.arange(best.shape[0])[:, None], np.arange(best.shape[1])
    value, row, (width, reference) = value[place], row[place], np.array(stated).T[:, best]
    least = policy.curator.effect_min_ppm
    return _decided((value >= least, width, row), ((value <= -least) & (row >= 0), reference, row))


def _presence(verdicts: Verdicts, policy: Policy) -> _Decided:
    """Choose to leave if leaving pays, else to stay out if entering loses, else to enter if entering pays."""
    (enters, leaves), (enter, leave) = verdicts.of([_ENTERING, _LEAVING])
    least = policy.curator.effect_min_ppm
    return _decided(
        (leaves >= least, LEAVE, leave), (enters <= -least, STAY_OUT, enter), (enters >= least, ENTER, enter)
    )


def _loan(verdicts: Verdicts, policy: Policy) -> _Decided:
    """Choose to repay if repaying pays, else to take no loan if borrowing loses, else to borrow if borrowing pays."""
    (borrows, repays), (borrow, repay) = _over_hours(verdicts, ["borrow", "repay"], LOAN, policy)
    return _decided((repays > 0.0, REPAYS, repay), (borrows < 0.0, UNLEVERED, borrow), (borrows > 0.0, BORROWS, borrow))


def _decided(*cases: tuple[BoolArray, int | Int64Array, Int64Array]) -> _Decided:
    """Return code and row of the first condition that holds; TRAIT and -1 without one."""
    code, row = np.full(cases[0][0].shape, TRAIT), np.full(cases[0][0].shape, -1)
    for holds, decided, deciding in reversed(cases):
        np.copyto(code, decided, where=holds)
        np.copyto(row, deciding, where=holds)
    return code, row


def _over_hours(verdicts: Verdicts, acts: list[str], choice: str, policy: Policy) -> tuple[Float64Array, Int64Array]:
    """Return the value of acts and the row of its rule: 0 and -1 where no rule decides, [acts, golems, regimes].

    The longest horizon that decides counts, because its windows contain the shorter ones.
    """
    decided = verdicts.of([""] * len(acts))
    for horizon in EVIDENCE_HORIZONS[choice]:
        value, row = verdicts.of([f"{act}_{horizon}" for act in acts])
        decides = (np.abs(value) >= policy.curator.effect_min_ppm) & (row >= 0)
        decided = np.where(decides, value, decided[0]), np.where(decides, row, decided[1])
    return decided
