"""Choices of a playbook by regime, from rules about choices: half-width of a new range, presence, loan. Pure.

A rule in force counts by its stated effect, weighted by its confidence. A regime's rule is shrunk towards the rule
over all regimes: it counts as many witnesses as it has, the general one as many as `pool_witnesses`. Without a general
rule it is shrunk towards zero. The half-width with the best value is chosen, and the reference if all are against.
Source: HB-24; docs/adr/0070.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from bardo_pipeline.arrays import Int64Array
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
        return cls(
            width,
            width_rule,
            tuple(map(PRESENCE.index, presence)),
            presence_rule,
            tuple(map(LOANS.index, loan)),
            loan_rule,
        )

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


def choice_rows(state: GrimoireState) -> Int64Array:
    """Return the rows of active rules about choices."""
    rows = np.flatnonzero((state["status"] == ACTIVE) & (state["kind"] != 0))
    return rows[state.structures.choices()[state["structure"][rows]]]


def choices_of(state: GrimoireState, rows: Int64Array, confidence: Int64Array, policy: Policy) -> Choices:
    """Return the choices that one golem's rules in force make. confidence: of each row, in ppm."""
    if not len(rows):
        return NO_CHOICES
    values = _values_by_act(state, rows, confidence, policy)
    width, width_row = _widths(values, policy)
    presence, presence_row = _presence(values, policy)
    loan, loan_row = _loan(values, policy)
    used = sorted({row for row in (*width_row, *presence_row, *loan_row) if row >= 0})
    ids = dict(zip(used, entry_ids(state, np.array(used, np.int64)), strict=True))
    width_rule, presence_rule, loan_rule = (tuple(map(ids.get, rows)) for rows in (width_row, presence_row, loan_row))
    return Choices(width, width_rule, presence, presence_rule, loan, loan_rule)


def recentring_signs(
    state: GrimoireState, rows: Int64Array, confidence: Int64Array, policy: Policy
) -> Int64Array | None:
    """Return whether re-centring pays over hours by one golem's rules in force, [regimes, anomaly bands].

    1 it pays, -1 it loses, 0 no rule decides; None without a rule about it. confidence: of each row, in ppm.
    """
    about = state.structures.recentrings()[state["structure"][rows]]
    if not about.any():
        return None
    values = _values_by_act(state, rows[about], confidence[about], policy)
    of_band = [_over_hours(values, f"recenter_{band}", RECENTRING, policy) for band in ANOMALY_BANDS]
    signs = [[(value > 0) - (value < 0) for value, _ in of_regimes] for of_regimes in zip(*of_band, strict=True)]
    return np.array(signs, np.int64)


_Verdicts = list[tuple[float, int]]
"""By regime: the value of an act in ppm, and the row of the narrowest rule about it, -1 for none.

Plain numbers, because a golem has few rules and a call of numpy costs more than all of their arithmetic.
"""

_UNDECIDED: _Verdicts = [(0.0, -1)] * len(REGIMES)


def _values_by_act(
    state: GrimoireState, rows: Int64Array, confidence: Int64Array, policy: Policy
) -> dict[str, _Verdicts]:
    """Return the values of each act. A rule of one regime is drawn towards the rule of all regimes.

    The order of registration does not decide.
    """
    order = np.argsort(state.structures.stable()[state["structure"][rows]])
    rows, confidence = rows[order], confidence[order]
    value = state["effect_mean_ppm"][rows] * (confidence / PPM)
    count = np.maximum(state["own_count"][rows], state["evidence_count"][rows])
    share = count / (count + policy.curator.pool_witnesses)
    regime = state.structures.bands()[0][state["structure"][rows]]
    names = [state.structures.rows[code].action_type or "" for code in state["structure"][rows].tolist()]
    rules = list(zip(names, regime.tolist(), value.tolist(), share.tolist(), rows.tolist(), strict=True))
    general = {act: (worth, row) for act, where, worth, _, row in reversed(rules) if where < 0}
    values: dict[str, _Verdicts] = {}
    for act, where, worth, weight, row in rules:
        parent = general.get(act, (0.0, -1))
        of_regimes = values.setdefault(act, [parent] * len(REGIMES))
        if where >= 0:
            of_regimes[where] = weight * worth + (1.0 - weight) * parent[0], row
    return values


def _widths(values: dict[str, _Verdicts], policy: Policy) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Choose the half-width with the best value in each regime; the reference, with value 0, if all are negative."""
    least, widths, deciding = policy.curator.effect_min_ppm, [0] * len(REGIMES), [-1] * len(REGIMES)
    ladder = sorted((stated, act) for act in values if (stated := width_of_act(act)) is not None)
    for regime in range(len(REGIMES)):
        judged = [(*values[act][regime], stated) for stated, act in ladder if values[act][regime][1] >= 0]
        if not judged:
            continue
        value, row, (width, reference) = max(judged, key=lambda rule: rule[0])
        if value >= least:
            widths[regime], deciding[regime] = width, row
        elif value <= -least:
            widths[regime], deciding[regime] = reference, row
    return tuple(widths), tuple(deciding)


def _presence(values: dict[str, _Verdicts], policy: Policy) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Choose to leave if leaving pays; else to stay out or to enter as entering loses or pays."""
    entering, leaving = (values.get(act, _UNDECIDED) for act in (_ENTERING, _LEAVING))
    least = policy.curator.effect_min_ppm
    return _decided(
        (LEAVE, row) if worth >= least
        else (STAY_OUT, enter_row) if enters <= -least
        else (ENTER, enter_row) if enters >= least
        else (TRAIT, -1)
        for (worth, row), (enters, enter_row) in zip(leaving, entering, strict=True)
    )  # fmt: skip


def _loan(values: dict[str, _Verdicts], policy: Policy) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Choose to repay if repaying pays; else to take no loan or to borrow as borrowing loses or pays."""
    borrowing, repaying = (_over_hours(values, act, LOAN, policy) for act in ("borrow", "repay"))
    return _decided(
        (REPAYS, row) if worth > 0.0
        else (UNLEVERED, borrow_row) if borrows < 0.0
        else (BORROWS, borrow_row) if borrows > 0.0
        else (TRAIT, -1)
        for (worth, row), (borrows, borrow_row) in zip(repaying, borrowing, strict=True)
    )  # fmt: skip


def _decided(codes_and_rows: Iterable[tuple[int, int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    codes, rows = zip(*codes_and_rows, strict=True)
    return codes, rows


def _over_hours(values: dict[str, _Verdicts], act: str, choice: str, policy: Policy) -> _Verdicts:
    """Return the value of an act and the row of its rule by regime: 0 and -1 where no rule decides.

    The longest horizon that decides counts, because its windows contain the shorter ones.
    """
    decided = _UNDECIDED
    for horizon in EVIDENCE_HORIZONS[choice]:
        if (stated := values.get(f"{act}_{horizon}")) is not None:
            least, pairs = policy.curator.effect_min_ppm, zip(stated, decided, strict=True)
            decided = [new if abs(new[0]) >= least and new[1] >= 0 else old for new, old in pairs]
    return decided
