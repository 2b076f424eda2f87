"""Playbook: what a golem's rules make of its thresholds. Pure.

The threshold of a regime is the anomaly score from which the golem re-centres its position. A warning against acting in
a band lifts it to the band's upper edge, a heuristic for acting lowers it to the lower edge; warnings win. A heuristic
of the golem's own is a staged revision until it has proved itself: it stands in the playbook and moves nothing.
Warnings are heeded at once, and what was inherited has proved itself before. The curator alone makes versions.
Source: MEM-8, MEM (heuristics proposed to PLAYBOOK.md), KAT (rebalanceThreshold: highVol: 0.9).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pyarrow as pa

from bardo_pipeline.curator.state.grimoire_state import ACTIVE, HEURISTIC, WARNING, GrimoireState, entry_id, rule_texts
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.confidence import PPM, ppm
from bardo_pipeline.grimoire.entries import ENTRY_KINDS, MOMENT
from bardo_pipeline.grimoire.gas_bands import GAS_SPANS
from bardo_pipeline.policy import Policy

_REGIME_THRESHOLDS = [pa.field(r, pa.float64(), nullable=False) for r in REGIMES]

PLAYBOOK_SCHEMA = pa.schema(
    [
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("cycle", pa.int64(), nullable=False),
        pa.field("at", MOMENT, nullable=False),
        pa.field("rebalance_threshold", pa.struct(_REGIME_THRESHOLDS), nullable=False),
        pa.field("cause_entries", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
        pa.field("staged_entries", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
        pa.field("markdown", pa.string(), nullable=False),
    ]
)
"""One row per version of a golem's PLAYBOOK.md; version 1 is what it was born with; key (golem_id, version).

cause_entries: the rules in force; staged_entries: those that have still to prove themselves."""


@dataclass
class PlaybookLog:
    """New versions as they are made, turned into a table once."""

    rows: list[dict[str, object]] = field(default_factory=list)

    def table(self) -> pa.Table:
        """PLAYBOOK_SCHEMA, sorted by its key."""
        table = pa.Table.from_pylist(self.rows, schema=PLAYBOOK_SCHEMA)
        return table.sort_by([("golem_id", "ascending"), ("version", "ascending")])


@dataclass
class Playbooks:
    """The playbook in force of each golem: its version, its thresholds by regime and the base they start from, and the
    entries that are staged for it; instincts: why a base is not the golem's own, a line a regime."""

    version: dict[str, int] = field(default_factory=dict)
    threshold: dict[str, tuple[float, ...]] = field(default_factory=dict)
    staged: dict[str, tuple[str, ...]] = field(default_factory=dict)
    base: dict[str, tuple[float, ...]] = field(default_factory=dict)
    instincts: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def of(self, golem_id: str, policy: Policy) -> tuple[int, tuple[float, ...]]:
        """(version, thresholds) in force; version 0 and the base everywhere before the first one is written."""
        return self.version.get(golem_id, 0), self.threshold.get(golem_id, self._base(golem_id, policy))

    def _base(self, golem_id: str, policy: Policy) -> tuple[float, ...]:
        return self.base.get(golem_id, (policy.playbook.rebalance_threshold,) * len(REGIMES))

    def revise(
        self,
        state: GrimoireState,
        golem: np.ndarray,
        cycle: np.ndarray,
        at_us: np.ndarray,
        log: PlaybookLog,
        policy: Policy,
    ) -> None:
        """Write a version for each golem whose thresholds or staged rules changed, and the first for who has none."""
        rows, now = rule_rows(state, golem, at_us, policy)
        proven = is_proven(state, rows, policy)
        base = np.array([self._base(state.golems[g], policy) for g in golem.tolist()]).reshape(-1, len(REGIMES))
        wanted = thresholds(state, golem, rows[proven], base, policy).tolist()
        owner = state["golem"][rows]
        starts, stops = np.searchsorted(owner, np.stack([golem, golem + 1]))
        waiting_ids: dict[int, list[str]] = {}
        for code, entry in zip(owner[~proven].tolist(), entry_ids(state, rows[~proven]), strict=True):
            waiting_ids.setdefault(code, []).append(entry)
        for i, code in enumerate(golem.tolist()):
            golem_id, values = state.golems[code], tuple(wanted[i])
            staged = tuple(sorted(waiting_ids.get(code, ())))
            known = self.version.get(golem_id, 0)
            if known and (self.threshold[golem_id], self.staged.get(golem_id, ())) == (values, staged):
                continue
            self.version[golem_id], self.threshold[golem_id], self.staged[golem_id] = known + 1, values, staged
            mine = np.arange(starts[i], stops[i])
            held, waits = mine[proven[mine]], mine[~proven[mine]]
            rules, waiting = (_rules(state, rows[some], now[some]) for some in (held, waits))
            log.rows.append(
                {
                    "golem_id": golem_id, "version": known + 1, "cycle": int(cycle[i]), "at": int(at_us[i]),
                    "rebalance_threshold": dict(zip(REGIMES, values, strict=True)),
                    "cause_entries": sorted(entry_ids(state, rows[held])), "staged_entries": list(staged),
                    "markdown": playbook_markdown(
                        golem_id, known + 1, values, rules, waiting, self.instincts.get(golem_id, ())
                    ),
                }
            )  # fmt: skip


def is_proven(state: GrimoireState, rows: np.ndarray, policy: Policy) -> np.ndarray:
    """Which of these rules are in force: warnings, what was inherited, and heuristics borne out often enough."""
    borne_out = state["validations"][rows] >= policy.playbook.proof_validations
    return (state["kind"][rows] == WARNING) | (state["generation"][rows] > 0) | borne_out


def _rules(state: GrimoireState, rows: np.ndarray, now: np.ndarray) -> list[tuple[str, str, int]]:
    """Kind, text and confidence in ppm of these rules."""
    kinds = [ENTRY_KINDS[k] for k in state["kind"][rows].tolist()]
    return list(zip(kinds, rule_texts(state, rows), now.tolist(), strict=True))


def moving(state: GrimoireState) -> np.ndarray:
    """Rows of living rules about re-centring in a known regime, gas not being dear: what can move a threshold."""
    regime, _, gas, moves = state.structures.bands()
    rows = np.flatnonzero((state["status"] == ACTIVE) & (state["kind"] != 0))
    about = state["structure"][rows]
    return rows[moves[about] & (regime[about] >= 0) & (gas[about] != GAS_SPANS.index("dear"))]


def rule_rows(
    state: GrimoireState, golem: np.ndarray, at_us: np.ndarray, policy: Policy
) -> tuple[np.ndarray, np.ndarray]:
    """(state rows, confidence now) of the living rules of these golems that move a threshold."""
    place = np.full(len(state.golems), -1)
    place[golem] = np.arange(len(golem))
    rows = moving(state)
    rows = rows[place[state["golem"][rows]] >= 0]
    if not len(rows):
        return rows, rows
    now = state.confidence_at(rows, at_us[place[state["golem"][rows]]], policy.decay)
    limit = np.where(
        state["kind"][rows] == WARNING,
        ppm(policy.playbook.block_confidence_min),
        ppm(policy.playbook.heuristic_confidence_min),
    )
    sure = now >= limit
    return rows[sure], now[sure]


def thresholds(
    state: GrimoireState, golem: np.ndarray, rows: np.ndarray, base: np.ndarray, policy: Policy
) -> np.ndarray:
    """Rebalance threshold [golems, regimes] in [0, 1] from the base of each golem (likewise) and its rules."""
    regime, anomaly, _, _ = state.structures.bands()
    edges = np.array(policy.curator.anomaly_edges)
    upper, lower = np.append(edges, 1.0), np.append(edges[0], edges)
    place = np.full(len(state.golems), -1)
    place[golem] = np.arange(len(golem))
    out = base.copy()
    if not len(rows):
        return out
    structure = state["structure"][rows]
    where = (place[state["golem"][rows]], regime[structure])
    good, bad = state["kind"][rows] == HEURISTIC, state["kind"][rows] == WARNING
    np.minimum.at(out, tuple(w[good] for w in where), lower[anomaly[structure[good]]])
    np.maximum.at(out, tuple(w[bad] for w in where), upper[anomaly[structure[bad]]])
    return out


def playbook_markdown(
    golem_id: str,
    version: int,
    values: tuple[float, ...],
    rules: list[tuple[str, str, int]],
    staged: list[tuple[str, str, int]],
    instincts: tuple[str, ...] = (),
) -> str:
    """PLAYBOOK.md: thresholds by regime, the rules behind them and those staged (kind, text, confidence in ppm).

    instincts: the defaults that the golem was born with, one line each.
    """
    lines = [f"# PLAYBOOK of {_line(golem_id)}", "", f"Version {version}.", "", "## rebalanceThreshold", ""]
    lines += [f"- {regime}: {value:.2f}" for regime, value in zip(REGIMES, values, strict=True)]
    if instincts:
        lines += ["", "## Defaults: what its line learned for good", "", *(f"- {line}" for line in instincts)]
    lines += ["", "## Rules", ""]
    lines += _told(rules) or ["None yet."]
    if staged:
        lines += ["", "## Staged: to prove themselves", "", *_told(staged)]
    return "\n".join(lines) + "\n"


def _told(rules: list[tuple[str, str, int]]) -> list[str]:
    return [f"- ({kind}, {100 * confidence / PPM:.0f} %) {_line(text)}" for kind, text, confidence in sorted(rules)]


def _line(text: str) -> str:
    """On one line, whatever the names in it hold: a page says nothing that the curator did not."""
    return " ".join(text.split())


_known_id = lru_cache(maxsize=1 << 16)(entry_id)


def entry_ids(state: GrimoireState, rows: np.ndarray) -> list[str]:
    """Ids of these rows."""
    return [
        _known_id(state.golems[o], state.structures.key(s))
        for o, s in zip(state["origin"][rows].tolist(), state["structure"][rows].tolist(), strict=True)
    ]
