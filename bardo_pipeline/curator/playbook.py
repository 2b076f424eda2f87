"""Playbook: rebalance thresholds and choices of a golem by regime, computed from its rules. Pure.

The threshold of a regime is the anomaly score at which the golem re-centres its position. A warning about an anomaly
band raises it to the band's upper edge; a heuristic lowers it to the lower edge; warnings win. Such a rule states the
effect over 30 ticks; a choice of re-centring over hours replaces it (choice_rules.py). A golem's own heuristic is
staged, without effect on the threshold, until it has enough validations. Warnings and inherited rules take effect at
once. Only the curator writes versions.
Source: MEM-8, MEM (heuristics proposed to PLAYBOOK.md), KAT (rebalanceThreshold: highVol: 0.9).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.curator import choice_rules
from bardo_pipeline.curator.choice_rules import CHOICE_FIELDS, NO_CHOICES, Choices, active_rules
from bardo_pipeline.curator.state.grimoire_state import HEURISTIC, WARNING, GrimoireState, entry_ids, rule_texts
from bardo_pipeline.events.record.arrow_columns import all_required, listed, required
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.confidence import PPM, ppm
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, ENTRY_KINDS, MOMENT
from bardo_pipeline.grimoire.entry_columns import index_of
from bardo_pipeline.grimoire.gas_bands import GAS_SPANS
from bardo_pipeline.policy import Policy

PLAYBOOK_SCHEMA = pa.schema(
    [
        required("golem_id", pa.string()),
        *all_required(pa.int64(), "version", "cycle"),
        required("at", MOMENT),
        required("rebalance_threshold", pa.struct(all_required(pa.float64(), *REGIMES))),
        *CHOICE_FIELDS,
        listed("cause_entries", pa.string()),
        listed("staged_entries", pa.string()),
        required("markdown", pa.string()),
    ]
)
"""One row per version of a golem's PLAYBOOK.md, from version 1 at birth; key (golem_id, version).

cause_entries: ids of the rules in force. staged_entries: ids of heuristics without enough validations yet."""


@dataclass
class Playbooks:
    """The playbook in force by golem: version, thresholds by regime, ids of staged entries, choices by regime.

    base: thresholds without rules, if they differ from the policy's. instincts: one line per regime that explains an
    inherited base.
    """

    version: dict[str, int] = field(default_factory=dict)
    threshold: dict[str, tuple[float, ...]] = field(default_factory=dict)
    staged: dict[str, tuple[str, ...]] = field(default_factory=dict)
    choices: dict[str, Choices] = field(default_factory=dict)
    base: dict[str, tuple[float, ...]] = field(default_factory=dict)
    instincts: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def of(self, golem_id: str, policy: Policy) -> tuple[int, tuple[float, ...]]:
        """Return (version, thresholds by regime) in force; version 0 and the base before the first version."""
        return self.version.get(golem_id, 0), self.threshold.get(golem_id, self._base(golem_id, policy))

    def choices_of(self, golem_id: str) -> Choices:
        """Return the choices in force; none before the first version."""
        return self.choices.get(golem_id, NO_CHOICES)

    def _base(self, golem_id: str, policy: Policy) -> tuple[float, ...]:
        return self.base.get(golem_id, (policy.playbook.rebalance_threshold,) * len(REGIMES))

    def revise(
        self, state: GrimoireState, golem: Int64Array, cycle: Int64Array, at_us: Int64Array, policy: Policy
    ) -> list[dict[str, Any]]:
        """Return a new version, as a row, for golems without one or with changed thresholds, choices, staged rules."""
        rows, now = rule_rows(state, golem, at_us, policy)
        proven = is_proven(state, rows, policy)
        base = np.array([self._base(state.golems[g], policy) for g in golem.tolist()]).reshape(-1, len(REGIMES))
        is_choice = state.structures.choices()[state["structure"][rows]]
        is_about = proven & is_choice
        verdicts = choice_rules.verdicts_of(state, golem, rows[is_about], now[is_about], policy)
        signs = choice_rules.recentring_signs(verdicts, policy)
        chosen = choice_rules.choices_of(verdicts, state, policy)
        wanted = thresholds(state, golem, rows[proven & ~is_choice], base, policy, signs).tolist()
        owner = state["golem"][rows]
        staged_ids: dict[int, list[str]] = {}
        for code, entry in zip(owner[~proven].tolist(), entry_ids(state, rows[~proven]), strict=True):
            staged_ids.setdefault(code, []).append(entry)
        versions = []
        for i, code in enumerate(golem.tolist()):
            golem_id, values = state.golems[code], tuple(wanted[i])
            staged = tuple(sorted(staged_ids.get(code, ())))
            version = self.version.get(golem_id, 0) + 1
            before = (self.threshold.get(golem_id), self.staged.get(golem_id, ()), self.choices_of(golem_id))
            if version > 1 and before == (values, staged, chosen[i]):
                continue
            self.version[golem_id], self.threshold[golem_id], self.staged[golem_id] = version, values, staged
            self.choices[golem_id] = chosen[i]
            own = np.flatnonzero(owner == code)
            stated = list(zip(_rules(state, rows[own], now[own]), proven[own].tolist(), strict=True))
            rules, staged_rules = ([rule for rule, is_in in stated if is_in is force] for force in (True, False))
            instincts = self.instincts.get(golem_id, ())
            versions.append(
                {
                    "golem_id": golem_id, "version": version, "cycle": int(cycle[i]), "at": int(at_us[i]),
                    "rebalance_threshold": dict(zip(REGIMES, values, strict=True)), **chosen[i].columns,
                    "cause_entries": sorted(entry_ids(state, rows[own[proven[own]]])), "staged_entries": list(staged),
                    "markdown": playbook_markdown(golem_id, version, values, chosen[i], rules, staged_rules, instincts),
                }
            )  # fmt: skip
        return versions


def playbook_table(versions: list[dict[str, Any]]) -> pa.Table:
    """Return versions as PLAYBOOK_SCHEMA, sorted by key."""
    table = pa.Table.from_pylist(versions, schema=PLAYBOOK_SCHEMA)
    return table.sort_by([("golem_id", "ascending"), ("version", "ascending")])


def is_proven(state: GrimoireState, rows: Int64Array, policy: Policy) -> BoolArray:
    """Return which rules are in force: warnings, inherited rules, heuristics with enough validations."""
    validated = state["validations"][rows] >= policy.playbook.proof_validations
    return (state["kind"][rows] == WARNING) | (state["generation"][rows] > 0) | validated


def _rules(state: GrimoireState, rows: Int64Array, now: Int64Array) -> list[tuple[str, str, int]]:
    """Return kind, text and confidence in ppm of each rule."""
    kinds = [ENTRY_KINDS[k] for k in state["kind"][rows].tolist()]
    return list(zip(kinds, rule_texts(state, rows), now.tolist(), strict=True))


def threshold_rules(state: GrimoireState) -> Int64Array:
    """Return the rows of active rules about re-centring in a known regime with gas that is not dear."""
    return active_rules(state, _sets_threshold(state))


def _sets_threshold(state: GrimoireState) -> BoolArray:
    regime, _, gas, is_rebalance = state.structures.bands()
    return np.asarray(is_rebalance & (regime >= 0) & (gas != GAS_SPANS.index("dear")))


def rule_rows(
    state: GrimoireState, golem: Int64Array, at_us: Int64Array, policy: Policy
) -> tuple[Int64Array, Int64Array]:
    """Return (rows, confidence in ppm at `at_us`) of the confident rules of golems (ascending)."""
    rows = active_rules(state, _sets_threshold(state) | state.structures.choices())
    place = index_of(golem, state["golem"][rows])
    rows, place = rows[place >= 0], place[place >= 0]
    now = state.confidence_at(rows, at_us[place], policy.decay)
    limits = ppm(policy.playbook.block_confidence_min), ppm(policy.playbook.heuristic_confidence_min)
    sure = now >= np.where(state["kind"][rows] == WARNING, *limits)
    return rows[sure], now[sure]


def thresholds(
    state: GrimoireState, golem: Int64Array, rows: Int64Array, base: Float64Array, policy: Policy,
    signs: Int64Array | None = None,
) -> Float64Array:  # fmt: skip
    """Apply rules to the base thresholds. base and result: [golems, regimes], in [0, 1].

    signs: 1 re-centring pays over hours, -1 it loses, [golems, regimes, anomaly bands]. It replaces the rules of its
    regime and band, because its windows contain those of 30 ticks. 0: the rules decide; None: everywhere.
    """
    regime, anomaly, _, _ = state.structures.bands()
    edges = np.array(policy.curator.anomaly_edges)
    upper, lower = np.append(edges, 1.0), np.append(edges[0], edges)
    values, structure = base.copy(), state["structure"][rows]
    where = (np.searchsorted(golem, state["golem"][rows]), regime[structure])
    signs = np.zeros((*base.shape, len(ANOMALY_BANDS)), np.int64) if signs is None else signs
    short = signs[(*where, anomaly[structure])] == 0
    good, bad = (short & (state["kind"][rows] == kind) for kind in (HEURISTIC, WARNING))
    pays, loses = (np.nonzero(signs == sign) for sign in (1, -1))
    np.minimum.at(values, tuple(w[good] for w in where), lower[anomaly[structure[good]]])
    np.minimum.at(values, pays[:2], lower[pays[2]])
    np.maximum.at(values, loses[:2], upper[loses[2]])
    np.maximum.at(values, tuple(w[bad] for w in where), upper[anomaly[structure[bad]]])
    return values


def playbook_markdown(
    golem_id: str,
    version: int,
    values: tuple[float, ...],
    choices: Choices,
    rules: list[tuple[str, str, int]],
    staged: list[tuple[str, str, int]],
    instincts: tuple[str, ...] = (),
) -> str:
    """Write PLAYBOOK.md. rules, staged: (kind, text, confidence in ppm); instincts: a line per inherited default."""
    lines = [f"# PLAYBOOK of {_line(golem_id)}", "", f"Version {version}.", "", "## rebalanceThreshold", ""]
    lines += [f"- {regime}: {value:.2f}" for regime, value in zip(REGIMES, values, strict=True)]
    lines += choices.lines()
    if instincts:
        lines += ["", "## Defaults: what its line learned for good", "", *(f"- {line}" for line in instincts)]
    lines += ["", "## Rules", ""]
    lines += _rule_lines(rules) or ["None yet."]
    if staged:
        lines += ["", "## Staged: to prove themselves", "", *_rule_lines(staged)]
    return "\n".join(lines) + "\n"


def _rule_lines(rules: list[tuple[str, str, int]]) -> list[str]:
    return [f"- ({kind}, {100 * confidence / PPM:.0f} %) {_line(text)}" for kind, text, confidence in sorted(rules)]


def _line(text: str) -> str:
    """Collapse white space, so that names in a text cannot add lines to the page."""
    return " ".join(text.split())
