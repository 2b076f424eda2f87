"""The row-at-a-time twin of the curator: one golem and one cycle after another, entries as dictionaries.

It follows MEM, TOOLS, KAT and the canon, in the order of MEM-6: weigh, consolidate, distil, promote, phage,
prune, compress.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

from bardo_pipeline.curator.choice_rules import NO_CHOICES
from bardo_pipeline.curator.state.decision_log import DECISION_SCHEMA, OPERATIONS, REASONS
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.events.life.override_events import Order
from bardo_pipeline.events.life.proposal_events import Proposal
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.entries import DECAY_CLASSES, ENTRY_SCHEMA
from bardo_pipeline.grimoire.entry_text import baseline_text, causal_text, pattern_text, size_word
from bardo_pipeline.policy import Policy
from tests.reference.learning.confidence import confidence_at, fades_at_us, floor_ppm, half_life_us
from tests.reference.learning.evidence import ANOMALY_BANDS, Cited, Group, Pooled, cited_by_row, evidence_by_row

Entry = dict[str, Any]
Row = dict[str, Any]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
OWN = ("own_count", "own_sum", "own_sumsq", "pleasure_sum_milli", "arousal_sum_milli", "dominance_sum_milli")
SENTENCES = dict(zip(OPERATIONS, REASONS, strict=True))
WIDE = {"not_dear": ("cheap", "normal"), "not_cheap": ("normal", "dear"), "any": ("cheap", "normal", "dear")}
FOLDS = (
    ("cheap", "normal", "not_dear"), ("normal", "dear", "not_cheap"), ("not_dear", "dear", "any"),
    ("cheap", "not_cheap", "any"),
)  # fmt: skip
SAME = (
    "origin_golem_id", "kind", "sign", "provenance", "decay_class", "is_anti_knowledge", "is_bloodstain", "generation",
)  # fmt: skip


@dataclass
class Mind:
    """The entries and playbook of one golem, and the decisions about it."""

    golem_id: str
    base: float
    entries: dict[Structure, Entry] = field(default_factory=dict)
    version: int = 0
    thresholds: tuple[float, ...] = ()
    staged: tuple[str, ...] = ()
    decisions: list[Row] = field(default_factory=list)
    cycles: list[Row] = field(default_factory=list)
    playbooks: list[Row] = field(default_factory=list)


@dataclass
class _Cycle:
    """One cycle as it is curated."""

    mind: Mind
    number: int
    at_us: int
    evidence: dict[Structure, Group]
    policy: Policy
    notes: list[tuple[int, str, Row]] = field(default_factory=list)
    orders: list[tuple[Order, Entry]] = field(default_factory=list)
    proposed: list[tuple[Proposal, list[Cited]]] = field(default_factory=list)
    step: int = 0
    doubted: set[Structure] = field(default_factory=set)
    compressed: set[Structure] = field(default_factory=set)
    counted: dict[str, int] = field(default_factory=lambda: {"pruned": 0, "promoted": 0, "proposed": 0})

    def now(self, entry: Entry) -> int:
        """The entry's confidence at the close of the cycle."""
        return _confidence(entry, self.at_us, self.policy)

    def note(
        self,
        operation: str,
        entry: Entry,
        before: int,
        causes: Iterable[int] = (),
        order: Order | Proposal | None = None,
    ) -> None:
        """Append the decision with the entry's present state."""
        row = shown(entry, self.policy) | {
            "revision": 0, "cycle": self.number, "at": EPOCH + timedelta(microseconds=self.at_us),
            "operation": operation, "confidence_before_ppm": before,
            "reason": _reason(operation, entry) if order is None else _override_reason(operation, order),
            "cause_ticks": sorted(causes), "cause_bundle": None, "cause_event": order and order.event_id,
            "policy_hash": self.policy.hash,
        }  # fmt: skip
        self.notes.append((self.step, row["entry_id"], row))


def curate_by_row(
    minds: dict[str, Mind], records: Iterable[tuple[Mapping[str, Any], int]], policy: Policy,
    orders: Iterable[Order] = (), proposals: Iterable[Proposal] = (), cited: Iterable[Mapping[str, Any]] = (),
) -> None:  # fmt: skip
    """Curate each golem's cycles in order; its Mind collects the decisions."""
    items = list(records)
    evidence = evidence_by_row(items, policy.curator)
    span, ordered = policy.curator.cycle_ticks, sorted(orders, key=lambda order: (order.number, order.event_id))
    for golem_id in sorted({*(row["golem_id"] for row, _ in items), *(order.golem_id for order in ordered)}):
        own_orders = [order for order in ordered if order.golem_id == golem_id]
        pairs = [(row, cycle) for row, cycle in items if row["golem_id"] == golem_id]
        for cycle in sorted({*(c for _, c in pairs), *(order.tick_seen // span + 1 for order in own_orders)}):
            rows = [row for row, c in pairs if c == cycle]
            due_orders = [order for order in own_orders if order.tick_seen // span + 1 == cycle]
            last = max(rows, key=lambda row: row["tick"]) if rows else {"observed_at": due_orders[-1].at}
            by_key = {s: group for (g, c, s), group in evidence.items() if (g, c) == (golem_id, cycle)}
            mind = minds.setdefault(golem_id, Mind(golem_id, policy.playbook.rebalance_threshold))
            item = _Cycle(mind, cycle, _micros(last["observed_at"]), by_key, policy)
            held = {_entry_id(e): e for e in mind.entries.values() if e["status"] == "active"}
            item.proposed = [
                (p, cited_by_row(cited, p, policy.curator))
                for p in sorted(proposals)
                if p.golem_id == golem_id and p.tick_seen // span + 1 == cycle
            ]
            item.orders = [(order, held[order.entry_id]) for order in due_orders if order.entry_id in held]
            _curate_one(item, last, len(rows))


PASSES: tuple[Callable[[_Cycle], None], ...] = ()


def _curate_one(cycle: _Cycle, last: Mapping[str, Any], count: int) -> None:
    for step, item in enumerate(PASSES):
        cycle.step = 1000 * step
        item(cycle)
    for seq, (_, _, row) in enumerate(sorted(cycle.notes, key=lambda note: note[:2])):
        cycle.mind.decisions.append({name: (row | {"seq": seq})[name] for name in DECISION_SCHEMA.names})
    if count:
        cycle.mind.cycles.append(_closed(cycle, last, count))
    revise(cycle.mind, cycle.number, cycle.at_us, cycle.policy)


def _closed(cycle: _Cycle, last: Mapping[str, Any], count: int) -> Row:
    return {
        "golem_id": cycle.mind.golem_id, "cycle": cycle.number, "tick_last": last["tick"],
        "closed_at": last["observed_at"], "record_count": count, "entries_pruned": cycle.counted["pruned"],
        "entries_promoted": cycle.counted["promoted"], "heuristics_proposed": cycle.counted["proposed"],
    }  # fmt: skip


def blank(golem_id: str, structure: Structure) -> Entry:
    """Return a candidate without evidence."""
    entry: Entry = dict.fromkeys((f.name for f in ENTRY_SCHEMA if str(f.type) == "int64"), 0)
    return entry | {
        "golem_id": golem_id, "structure": structure, "origin_golem_id": golem_id, "kind": "insight",
        "status": "candidate", "provenance": "self", "decay_class": DECAY_CLASSES[structure.decay_class],
        "is_anti_knowledge": False, "is_bloodstain": False, "anchor_us": 0, "created_us": 0, "validated_us": 0,
    }  # fmt: skip


# the passes


def _apply_overrides(cycle: _Cycle) -> None:
    """Apply the owners' pins, unpins and corrections, in order."""
    turns: dict[str, int] = {}
    for order, entry in cycle.orders:
        if order.kind == "EntryRetracted":
            continue
        turn = turns[order.entry_id] = turns.get(order.entry_id, -1) + 1
        now = cycle.now(entry)
        if order.kind == "EntryPinned":
            entry["pinned_ppm"] = max(_confidence(entry, _micros(order.at), cycle.policy), 1)
            _note_override(cycle, 3 * turn, "pinned", entry, now, order)
            continue
        entry["confidence_ppm"], entry["anchor_us"] = now, cycle.at_us
        if order.kind == "EntryUnpinned":
            entry["pinned_ppm"] = 0
            _note_override(cycle, 3 * turn + 1, "unpinned", entry, now, order)
        else:
            _correct(entry, order)
            _note_override(cycle, 3 * turn + 2, "corrected", entry, now, order)


def _correct(entry: Entry, order: Order) -> None:
    if order.confidence is not None:
        entry["confidence_ppm"] = _ppm(order.confidence)
        if entry["pinned_ppm"]:
            entry["pinned_ppm"] = max(_ppm(order.confidence), 1)
    if entry["decay_class"] == "fact":
        return
    entry["decay_class"] = order.decay_class or entry["decay_class"]
    if order.verdict is None or not entry["sign"] or entry["kind"] not in ("insight", "heuristic", "warning"):
        return
    sign = 1 if order.verdict == "pays" else -1
    if sign != entry["sign"]:
        figures = ("effect_mean_ppm", "effect_low_ppm", "effect_high_ppm", "evidence_count")
        entry.update(dict.fromkeys((*OWN, *figures, "validations", "contradictions"), 0))
    entry["sign"] = sign
    if order.verdict == "anti_knowledge":
        entry["kind"] = "warning"
    elif entry["kind"] != "insight":
        entry["kind"] = "heuristic" if sign > 0 else "warning"
    entry["is_anti_knowledge"] = order.verdict == "anti_knowledge"


def _retract(cycle: _Cycle) -> None:
    """A retracted entry is removed at the close, after any other override."""
    for turn, (order, entry) in enumerate(cycle.orders):
        if order.kind == "EntryRetracted":
            before = cycle.now(entry) if entry["status"] == "active" else 0
            about: Structure = entry["structure"]
            entry.update(dict.fromkeys((*OWN, "pinned_ppm"), 0))
            entry |= {"status": "retracted", "decay_class": DECAY_CLASSES[about.decay_class]}
            earlier = sum(o.kind == "EntryRetracted" and e is entry for o, e in cycle.orders[:turn])
            _note_override(cycle, earlier, "retracted", entry, before, order)


def _note_override(cycle: _Cycle, rank: int, operation: str, entry: Entry, before: int, order: Order) -> None:
    """Overrides of one round are ordered by kind and entry; the next round follows."""
    step, cycle.step = cycle.step, cycle.step + rank
    cycle.note(operation, entry, before, order=order)
    cycle.step = step


def _weigh(cycle: _Cycle) -> None:
    """A forgotten entry that is learned again is the golem's own."""
    for structure, group in cycle.evidence.items():
        entry = cycle.mind.entries.setdefault(structure, blank(cycle.mind.golem_id, structure))
        if entry["status"] in ("pruned", "retracted") and entry["own_count"] == 0:
            entry["origin_golem_id"] = cycle.mind.golem_id
        if structure.source == "baseline":
            _read(cycle, entry, group)
            continue
        for name, value in zip(OWN, (group.count, group.total, group.squares, *group.mood), strict=True):
            entry[name] += value


def _read(cycle: _Cycle, entry: Entry, group: Group) -> None:
    """Add the readings of a level. A day that was counted before is no new witness."""
    if not entry["own_sumsq"]:
        entry |= {"own_sum": cycle.number, "readings": [], "days": set()}
    fresh = len(set(group.windows) - entry["days"])
    entry["readings"] += map(middle, group.readings)
    entry["days"] |= set(group.windows)
    entry["own_count"], entry["own_sumsq"] = len(entry["days"]), len(entry["readings"])
    for name, value in zip(OWN[3:], group.mood, strict=True):
        entry[name] += math.floor(Fraction(value * fresh, group.count) + Fraction(1, 2))


def middle(value: int) -> int:
    """The middle of a value's bin: 32 bins an octave from 64 on."""
    width = max(2 ** (value.bit_length() - 6), 1) if value >= 64 else 1
    return value - value % width + (width - 1) // 2


def quantile(values: list[int], percent: int) -> int:
    """The quantile with linear interpolation, rounded half up."""
    ordered, place = sorted(values), Fraction((len(values) - 1) * percent, 100)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return math.floor(ordered[low] + (ordered[high] - ordered[low]) * (place - low) + Fraction(1, 2))


def _consolidate(cycle: _Cycle) -> None:
    rules = cycle.policy.curator
    for structure, group in cycle.evidence.items():
        if structure.source != "baseline":
            continue
        entry = cycle.mind.entries[structure]
        active = entry["status"] == "active"
        before = cycle.now(entry) if active else 0
        count, stated = len(group.readings), dict(entry)
        if active or entry["own_sumsq"] >= rules.baseline_min:
            _state(entry, tuple(quantile(entry["readings"], percent) for percent in (50, 25, 75)))
            entry["level_p10"], entry["level_p90"] = (quantile(entry["readings"], percent) for percent in (10, 90))
        if (not active and entry["own_sumsq"] < rules.baseline_min) or (active and count < rules.baseline_min):
            _note(cycle, 0, "staged", entry, before, group)
            continue
        seen = list(map(middle, group.readings))
        median = (seen[(count - 1) // 2] + seen[count // 2]) // 2
        outer = ("level_p10", "level_p90") if stated["level_p90"] else ("effect_low_ppm", "effect_high_ppm")
        low, high = (stated[name] for name in outer)
        usual = low <= median * rules.level_tolerance and median <= high * rules.level_tolerance
        if active and not usual:
            _vote(entry, before - _ppm(rules.downvote), cycle.at_us, "contradictions")
            _note(cycle, 3, "contradicted", entry, before, group)
        elif active:
            _vote(entry, before + _ppm(rules.upvote), cycle.at_us, "validations")
            _note(cycle, 2, "reinforced", entry, before, group)
        else:
            _create(cycle, entry, 0, _ppm(rules.confidence_fact))
            _note(cycle, 1, "created", entry, before, group)


def _distil(cycle: _Cycle) -> None:
    rules = cycle.policy.curator
    for structure, group in cycle.evidence.items():
        if structure.source != "pattern":
            continue
        entry = cycle.mind.entries[structure]
        mean, low, high = _interval(entry, cycle.policy)
        sign = _sure(entry, cycle.policy)
        sure = sign != 0
        active = entry["status"] == "active"
        before = cycle.now(entry) if active else 0
        answer = size_word(entry["effect_mean_ppm"])
        folded = entry["status"] == "folded"
        if sure and not folded and (not active or sign == entry["sign"]):
            _state(entry, (mean, low, high))
        news = group.total * entry["sign"] if abs(group.total) >= rules.effect_min_ppm * group.count else 0
        if sure and not active and not folded:
            _create(cycle, entry, sign, _ppm(rules.confidence_insight))
            _note(cycle, 1, "created", entry, before, group)
        elif active and news > 0:
            _vote(entry, before + _ppm(rules.upvote), cycle.at_us, "validations")
            _note(cycle, 2, "reinforced", entry, before, group)
        elif active and news < 0:
            _vote(entry, before - _ppm(rules.downvote), cycle.at_us, "contradictions")
            _note(cycle, 3, "contradicted", entry, before, group)
            cycle.doubted.add(structure)
        elif not active or size_word(entry["effect_mean_ppm"]) == answer:
            _note(cycle, 0, "staged", entry, before, group)
        if active and size_word(entry["effect_mean_ppm"]) != answer:
            _note(cycle, 4, "edited", entry, before, group)


def _stage(cycle: _Cycle) -> None:
    """A proposed addition is judged by its evidence, with or without new outcomes."""
    turns: Counter[Structure] = Counter()
    for statement, cited in cycle.proposed:
        if statement.operation == "ADD":
            assert statement.situation is not None
            structure = Structure("pattern", *statement.situation[:3], *statement.situation[3:])  # type: ignore[arg-type]
            entry = cycle.mind.entries.setdefault(structure, blank(cycle.mind.golem_id, structure))
            if entry["own_count"]:
                cycle.evidence.setdefault(structure, Group())
            before = cycle.now(entry) if entry["status"] == "active" else 0
            _note_proposal(cycle, turns[structure], "staged", entry, before, statement, cited)
            turns[structure] += 1


def _apply_votes(cycle: _Cycle) -> None:
    """A vote counts if fresh citations and all own evidence agree."""
    rules, turns = cycle.policy.curator, Counter[str]()
    held = {_entry_id(e): e for e in cycle.mind.entries.values() if e["status"] == "active"}
    for statement, cited in cycle.proposed:
        entry = held.get(statement.entry_id or "")
        if entry is None:
            continue
        before, turn = cycle.now(entry), 4 * turns[_entry_id(entry)]
        turns[_entry_id(entry)] += 1
        if statement.operation == "EDIT":
            _note_proposal(cycle, turn + 3, "noted", entry, before, statement, cited)
            continue
        wanted = entry["sign"] * (1 if statement.operation == "UPVOTE" else -1)
        news = [e for about, at, e, _ in cited if about == entry["structure"] and _micros(at) > entry["anchor_us"]]
        total = sum(news)
        whole = _sure(entry, cycle.policy) if statement.operation == "UPVOTE" else entry["own_sum"]
        result = bool(news) and total * wanted > 0 and abs(total) >= rules.effect_min_ppm * len(news)
        if not result or whole * wanted <= 0:
            _note_proposal(cycle, turn + 2, "staged", entry, before, statement, cited)
        elif statement.operation == "UPVOTE":
            _vote(entry, before + _ppm(rules.upvote), cycle.at_us, "validations")
            _note_proposal(cycle, turn, "reinforced", entry, before, statement, cited)
        else:
            _vote(entry, before - _ppm(rules.downvote), cycle.at_us, "contradictions")
            _note_proposal(cycle, turn + 1, "contradicted", entry, before, statement, cited)
            cycle.doubted.add(entry["structure"])


def _note_proposal(
    cycle: _Cycle, rank: int, operation: str, entry: Entry, before: int, proposal: Proposal, cited: list[Cited]
) -> None:  # fmt: skip
    causes = {tick for about, _, _, ticks in cited if about == entry["structure"] for tick in ticks}
    step, cycle.step = cycle.step, cycle.step + rank
    cycle.note(operation, entry, before, causes, proposal)
    cycle.step = step


def _override_reason(operation: str, order: Order | Proposal) -> str:
    """An owner's override of an entry, or the decision on a model's proposal."""
    if isinstance(order, Order):
        return f"{SENTENCES[operation]}: {order.why}"
    if order.operation == "ADD":
        return f"own evidence decides; {order.source} proposed it: {order.reason}"
    return {
        "noted": f"{order.source} notes: {order.note}",
        "staged": f"own evidence does not bear out the vote; {order.source} proposed it: {order.reason}",
        "reinforced": f"own evidence agrees; {order.source} proposed the upvote: {order.reason}",
        "contradicted": f"own evidence disagrees; {order.source} proposed the downvote: {order.reason}",
    }[operation]


def _promote(cycle: _Cycle) -> None:
    rules = cycle.policy.curator
    for structure in cycle.doubted:
        entry = cycle.mind.entries[structure]
        limit = rules.prune_confidence if entry["is_anti_knowledge"] else rules.demote_confidence
        if entry["kind"] in ("heuristic", "warning") and cycle.now(entry) < _ppm(limit):
            entry |= {"kind": "insight", "validations": 0, "is_anti_knowledge": False}
            _note(cycle, 0, "demoted", entry, cycle.now(entry))
    for entry in cycle.mind.entries.values():
        if entry["status"] != "active" or entry["kind"] != "insight" or entry["decay_class"] == "fact":
            continue
        now = cycle.now(entry)
        ripe = entry["validations"] >= rules.promote_validations and entry["sign"] != 0
        if ripe and now >= _ppm(rules.promote_confidence):
            harms = entry["sign"] < 0
            entry["kind"] = "warning" if harms else "heuristic"
            cycle.counted["proposed"] += not harms
            entry["is_anti_knowledge"] = harms and entry["effect_high_ppm"] <= -rules.anti_effect_ppm
            cycle.counted["promoted"] += 1
            _note(cycle, 1, "promoted", entry, now)


def _phage(cycle: _Cycle) -> None:
    """Test the weakest rules with new evidence in this cycle against all own evidence."""
    rules = cycle.policy.curator
    if cycle.number % rules.phage_cycles:
        return
    held = [
        e for e in cycle.mind.entries.values() if e["status"] == "active" and e["decay_class"] != "fact" and e["sign"]
    ]
    held.sort(key=lambda e: (cycle.now(e), _tie(e["structure"])))
    for entry in held[: rules.phage_count]:
        group = cycle.evidence.get(entry["structure"])
        if group is None or not group.count or entry["own_count"] < rules.cluster_min:
            continue
        mean = entry["own_sum"] / entry["own_count"]
        if mean * entry["sign"] < 0 and abs(mean) >= rules.effect_min_ppm:
            before = cycle.now(entry)
            _vote(entry, before - _ppm(rules.downvote), cycle.at_us, "contradictions")
            _note(cycle, 0, "contradicted", entry, before, group)


def _prune(cycle: _Cycle) -> None:
    for entry in cycle.mind.entries.values():
        if entry["status"] != "active" or _floor(entry, cycle.policy.decay):
            continue
        now = cycle.now(entry)
        if now < _ppm(cycle.policy.curator.prune_confidence):
            entry["status"] = "pruned"
            entry.update(dict.fromkeys(OWN, 0))
            cycle.counted["pruned"] += 1
            _note(cycle, 0, "pruned", entry, now)


def _lead_folded(cycle: _Cycle) -> None:
    """This cycle's evidence for folded rules counts for the rules that replace them, each window once."""
    entries = cycle.mind.entries
    for turn, (order, entry) in enumerate(cycle.orders):
        if order.kind == "EntryCorrected" and entry["structure"].gas_band in WIDE and not entry["own_count"]:
            for part in _folded_under(cycle, entry):
                if part["own_count"]:
                    part.update(dict.fromkeys(OWN, 0))
                    _note_override(cycle, turn, "corrected", part, 0, order)
    met: dict[Structure, list[Group]] = {}
    for structure, group in cycle.evidence.items():
        if structure.gas_band not in WIDE["any"]:
            continue
        entry = entries.setdefault(structure, blank(cycle.mind.golem_id, structure))
        above = [
            w for w in (structure._replace(gas_band=span) for span in WIDE) if _replaces(entries.get(w), structure)
        ]
        if entry["status"] != "active" and above:
            entry["status"] = "folded"
            met.setdefault(above[0], []).append(group)
    for structure, groups in met.items():
        cycle.evidence[structure] = _merged(groups)


def _replaces(wide: Entry | None, structure: Structure) -> bool:
    return wide is not None and wide["status"] == "active" and structure.gas_band in WIDE[wide["structure"].gas_band]


def _merged(groups: list[Group]) -> Group:
    """Return the certain number of witnesses, with the mean of all."""
    most, count = max(g.count for g in groups), sum(g.count for g in groups)

    def share(total: int) -> int:
        return math.floor(Fraction(most * total, count) + Fraction(1, 2))

    mood = [share(sum(g.mood[i] for g in groups)) for i in range(3)]
    total, squares = share(sum(g.total for g in groups)), share(sum(g.squares for g in groups))
    return Pooled({}, {tick for g in groups for tick in g.causes}, (most, total, squares, *mood))


def _folded_under(cycle: _Cycle, wide: Entry) -> list[Entry]:
    about: Structure = wide["structure"]
    parts = [cycle.mind.entries.get(about._replace(gas_band=band)) for band in WIDE[about.gas_band]]
    return [part for part in parts if part is not None and part["status"] == "folded"]


def _compress(cycle: _Cycle) -> None:
    entries = cycle.mind.entries
    for turn, (order, entry) in enumerate(cycle.orders):
        if order.kind == "EntryRetracted" and entry["structure"].gas_band in WIDE and entry["status"] == "retracted":
            for part in _folded_under(cycle, entry):
                part.update(dict.fromkeys(OWN, 0))
                part["status"] = "retracted"
                _note_override(cycle, turn, "retracted", part, 0, order)
    cycle.step += 100
    for structure, entry in entries.items():
        if entry["status"] == "folded" and not any(
            _replaces(entries.get(structure._replace(gas_band=span)), structure) for span in WIDE
        ):
            entry.update(dict.fromkeys(OWN, 0))
            entry["status"] = "pruned"
            _note(cycle, 0, "pruned", entry, 0)
    for entry in list(entries.values()):
        if entry["status"] == "active" and entry["structure"].gas_band in WIDE and _differs(cycle, entry):
            _part(cycle, entry)
    for structure in list(entries):
        if structure.gas_band == "normal" or (structure.gas_band in WIDE):
            _fold_scene(cycle, structure)


def _differs(cycle: _Cycle, wide: Entry) -> bool:
    """Return whether the intervals of two parts are disjoint, or a part has the opposite sign."""
    rules = cycle.policy.curator
    rows = []
    for part in _folded_under(cycle, wide):
        if part["own_count"] >= rules.cluster_min:
            mean = part["own_sum"] / part["own_count"]
            if mean * wide["sign"] < 0 and abs(mean) >= rules.effect_min_ppm:
                return True
            rows.append(_interval(part, cycle.policy))
    return any(item[1] > other[2] for item in rows for other in rows)


def _part(cycle: _Cycle, wide: Entry) -> None:
    about: Structure = wide["structure"]
    before, group = cycle.now(wide), cycle.evidence.get(about)
    for band in WIDE[about.gas_band]:
        structure = about._replace(gas_band=band)
        part = cycle.mind.entries.setdefault(structure, blank(cycle.mind.golem_id, structure))
        if part["status"] == "active":
            continue
        sign = _sure(part, cycle.policy)
        part |= {name: wide[name] for name in wide if name not in ("golem_id", "structure", "status", *OWN)}
        if sign:
            _state(part, _interval(part, cycle.policy))
        part["status"] = "active"
        if sign == -wide["sign"]:
            part |= {"origin_golem_id": cycle.mind.golem_id, "pinned_ppm": 0}
            _create(cycle, part, sign, _ppm(cycle.policy.curator.confidence_insight))
            _note(cycle, 3, "created", part, 0, group)
        else:
            _note(cycle, 2, "parted", part, 0, group)
    wide.update(dict.fromkeys((*OWN, "pinned_ppm"), 0))
    wide["status"] = "pruned"
    _note(cycle, 1, "parted", wide, before, group)


def _fold_scene(cycle: _Cycle, about: Structure) -> None:
    """Fold at most one pair of neighbouring bands, narrow ones first."""
    if about in cycle.compressed:
        return
    entries = cycle.mind.entries
    held = {
        span: entry for span in ("cheap", "normal", "dear", *WIDE)
        if (entry := entries.get(about._replace(gas_band=span))) and entry["status"] == "active"
        and not entry["pinned_ppm"]
    }  # fmt: skip
    for first, other, both in FOLDS:
        if first in held and other in held and both not in held and _alike(cycle, held[first], held[other]):
            cycle.compressed |= {about._replace(gas_band=span) for span in ("cheap", "normal", "dear", *WIDE)}
            _generalize(cycle, held[first], held[other], about._replace(gas_band=both))
            return


def _alike(cycle: _Cycle, entry: Entry, other: Entry) -> bool:
    news = [group for e in (entry, other) if (group := cycle.evidence.get(e["structure"])) and group.count]
    if not news or any(entry[name] != other[name] for name in SAME):
        return False
    least = cycle.policy.curator.fold_witnesses
    if any(e["own_count"] < least or not e["sign"] or _sure(e, cycle.policy) != e["sign"] for e in (entry, other)):
        return False
    (mean, low, high), (mean_, low_, high_) = (_interval(e, cycle.policy) for e in (entry, other))
    return low <= mean_ <= high and low_ <= mean <= high_


def _generalize(cycle: _Cycle, entry: Entry, other: Entry, about: Structure) -> None:
    best = other if other["own_count"] > entry["own_count"] else entry
    golem_id = cycle.mind.golem_id
    wide = cycle.mind.entries.setdefault(about, blank(golem_id, about))
    wide |= best | {"structure": about}
    groups = [cycle.evidence.get(e["structure"]) for e in (entry, other)]
    causes = {tick for g in groups if g is not None for tick in g.causes}
    cycle.step += 4
    cycle.note("generalized", wide, 0, causes)
    cycle.step += 1
    for part in (entry, other):
        before = cycle.now(part)
        part["status"] = "folded"
        if part["structure"].gas_band in WIDE:
            part.update(dict.fromkeys(OWN, 0))
            part["status"] = "pruned"
        cycle.note("folded", part, before, causes)
    cycle.step -= 5


PASSES = (
    _apply_overrides, _lead_folded, _weigh, _consolidate, _stage, _distil, _apply_votes, _promote, _phage, _prune,
    _retract, _compress,
)  # fmt: skip


# changes of an entry by the passes


def _note(cycle: _Cycle, rank: int, operation: str, entry: Entry, before: int, group: Group | None = None) -> None:
    """Order the notes of a pass: staged, then created, then votes."""
    step, cycle.step = cycle.step, cycle.step + rank
    cycle.note(operation, entry, before, group.causes if group else ())
    cycle.step = step


def _sure(entry: Entry, policy: Policy) -> int:
    """Return the sign that all own evidence supports, 0 for neither."""
    if entry["own_count"] < policy.curator.cluster_min:
        return 0
    mean, low, high = _interval(entry, policy)
    if abs(mean) < policy.curator.effect_min_ppm or low <= 0 <= high:
        return 0
    return 1 if mean > 0 else -1


def _interval(entry: Entry, policy: Policy) -> tuple[int, int, int]:
    rules = policy.curator
    count, total = entry["own_count"], entry["own_sum"]
    mean = total / count
    spread = max(entry["own_sumsq"] - total * mean, 0.0)
    prior = rules.variance_prior * rules.effect_sigma_prior_ppm**2
    variance = (prior + spread) / (rules.variance_prior + count - 1)
    surprise = -2 * math.log(rules.false_alarm)
    mixture = count * (surprise + math.log(surprise + 1)) / rules.sharpest_witnesses
    doubt = math.log(math.sqrt(mixture + 1) / rules.false_alarm)
    half = math.sqrt(variance * 2 * (mixture + 1) / (count * mixture) * doubt)
    return round(mean), round(mean - half), round(mean + half)


def _state(entry: Entry, interval: tuple[float, float, float]) -> None:
    for name, value in zip(("effect_mean_ppm", "effect_low_ppm", "effect_high_ppm"), interval, strict=True):
        entry[name] = round(value)
    entry["evidence_count"] = entry["own_count"]


def _create(cycle: _Cycle, entry: Entry, sign: int, confidence: int) -> None:
    at = cycle.at_us
    entry |= {
        "status": "active", "kind": "insight", "sign": sign, "confidence_ppm": confidence, "validations": 0,
        "confidence_origin_ppm": confidence, "contradictions": 0, "generation": 0, "provenance": "self",
        "is_anti_knowledge": False, "is_bloodstain": False, "created_cycle": cycle.number, "anchor_us": at,
        "created_us": at, "validated_us": at,
    }  # fmt: skip


def _vote(entry: Entry, confidence: int, at_us: int, counter: str) -> None:
    entry["confidence_ppm"], entry["anchor_us"] = max(0, min(10**6, confidence)), at_us
    entry[counter] += 1
    if counter == "validations":
        entry["validated_us"] = at_us


# the playbook


def revise(mind: Mind, cycle: int, at_us: int, policy: Policy) -> None:
    """Append a playbook version if the thresholds changed; always append the first."""
    rules = policy.playbook
    wanted = dict.fromkeys(REGIMES, mind.base)
    moving: list[tuple[Entry, int]] = []
    waiting: list[tuple[Entry, int]] = []
    for entry in mind.entries.values():
        about: Structure = entry["structure"]
        if entry["status"] != "active" or entry["kind"] == "insight" or about.action_type != "rebalance":
            continue
        now = _confidence(entry, at_us, policy)
        limit = rules.block_confidence_min if entry["kind"] == "warning" else rules.heuristic_confidence_min
        if about.regime is not None and about.gas_band != "dear" and now >= _ppm(limit):
            known = entry["kind"] == "warning" or entry["generation"] or entry["validations"] >= rules.proof_validations
            (moving if known else waiting).append((entry, now))
    edges = policy.curator.anomaly_edges
    for kind in ("heuristic", "warning"):
        for entry, _ in moving:
            if entry["kind"] == kind:
                regime, band = entry["structure"].regime, ANOMALY_BANDS.index(entry["structure"].anomaly_band)
                lower, upper = (edges[0], *edges)[band], (*edges, 1.0)[band]
                wanted[regime] = max(wanted[regime], upper) if kind == "warning" else min(wanted[regime], lower)
    values = tuple(wanted[regime] for regime in REGIMES)
    staged = tuple(sorted(_entry_id(entry) for entry, _ in waiting))
    if mind.version and (values, staged) == (mind.thresholds, mind.staged):
        return
    mind.version, mind.thresholds, mind.staged = mind.version + 1, values, staged
    mind.playbooks.append(
        {
            "golem_id": mind.golem_id, "version": mind.version, "cycle": cycle,
            "at": EPOCH + timedelta(microseconds=at_us), "rebalance_threshold": wanted, **NO_CHOICES.columns,
            "cause_entries": sorted(_entry_id(entry) for entry, _ in moving), "staged_entries": list(staged),
            "markdown": _page(mind, values, moving, waiting),
        }
    )  # fmt: skip


def _page(
    mind: Mind, values: tuple[float, ...], moving: list[tuple[Entry, int]], waiting: list[tuple[Entry, int]]
) -> str:
    lines = [f"# PLAYBOOK of {mind.golem_id}", "", f"Version {mind.version}.", "", "## rebalanceThreshold", ""]
    lines += [f"- {regime}: {value:.2f}" for regime, value in zip(REGIMES, values, strict=True)]
    lines += ["", "## Rules", ""]
    rules, staged = (sorted((e["kind"], _text(e), now) for e, now in result) for result in (moving, waiting))
    lines += [f"- ({kind}, {now / 10**4:.0f} %) {text}" for kind, text, now in rules] or ["None yet."]
    if staged:
        lines += ["", "## Staged: to prove themselves", ""]
        lines += [f"- ({kind}, {now / 10**4:.0f} %) {text}" for kind, text, now in staged]
    return "\n".join(lines) + "\n"


# the result as rows


def shown(entry: Entry, policy: Policy) -> Row:
    """The entry as a row of ENTRY_SCHEMA."""
    about: Structure = entry["structure"]
    fades = None
    if entry["status"] == "active":
        limit = _ppm(policy.curator.prune_confidence)
        fades = fades_at_us(
            entry["confidence_ppm"], entry["anchor_us"], _half_life(entry, policy), _floor(entry, policy.decay), limit
        )
    moments = {f"{n}_at": EPOCH + timedelta(microseconds=entry[f"{n}_us"]) for n in ("anchor", "created", "validated")}
    full = entry | about._asdict() | moments
    full |= {
        "entry_id": _entry_id(entry), "structure": about.key, "category": about.category, "domain": about.domain,
        "text": _text(entry), "fades_at": None if fades is None else EPOCH + timedelta(microseconds=fades),
    }  # fmt: skip
    return {name: full[name] for name in ENTRY_SCHEMA.names}


def grimoire_by_row(minds: Mapping[str, Mind], policy: Policy) -> list[Row]:
    """All entries as rows of ENTRY_SCHEMA, by golem and entry."""
    rows = [shown(entry, policy) for mind in minds.values() for entry in mind.entries.values()]
    return sorted(rows, key=lambda row: (row["golem_id"], row["entry_id"]))


def _entry_id(entry: Entry) -> str:
    return hashlib.sha256(f"{entry['origin_golem_id']}|{entry['structure'].key}".encode()).hexdigest()[:24]


def _text(entry: Entry) -> str:
    about: Structure = entry["structure"]
    named = {n: getattr(about, n) or "" for n in ("protocol", "pair")}
    figures = {n: entry[f"effect_{n}_ppm"] for n in ("mean", "low", "high")}
    if about.source == "baseline":
        return baseline_text(**named, metric=about.metric or "", **figures, known=entry["evidence_count"] > 0)
    if about.source == "causal":
        place = f"{about.pair} on {about.protocol}"
        by_key = {n: getattr(about, n) for n in ("cause", "effect", "lag_ticks", "regime")}
        return causal_text(**by_key, place=place, sign=entry["sign"])
    when = {n: getattr(about, n) or "" for n in ("action_type", "regime", "anomaly_band", "gas_band")}
    return pattern_text(kind=entry["kind"], **named, **when, sign=entry["sign"], mean_ppm=figures["mean"])


def _reason(operation: str, entry: Entry) -> str:
    if not entry["evidence_count"]:
        return SENTENCES[operation]
    interval = f"interval {entry['effect_low_ppm']} to {entry['effect_high_ppm']}"
    return f"{SENTENCES[operation]}; n={entry['evidence_count']}; {interval}"


def _confidence(entry: Entry, at_us: int, policy: Policy) -> int:
    held, since = entry["confidence_ppm"], entry["anchor_us"]
    return confidence_at(held, since, at_us, _half_life(entry, policy), _floor(entry, policy.decay))


def _half_life(entry: Entry, policy: Policy) -> int | None:
    evidence = max(entry["own_count"], entry["evidence_count"])
    return half_life_us(entry["decay_class"], evidence, entry["is_bloodstain"], policy.decay)


def _floor(entry: Entry, policy: Any) -> int:
    return floor_ppm(entry["is_anti_knowledge"], entry["is_bloodstain"], policy, entry["pinned_ppm"])


def _tie(structure: Structure) -> int:
    return int.from_bytes(hashlib.sha256(structure.key.encode()).digest()[:8], "big") >> 1


def _ppm(value: float) -> int:
    return round(value * 10**6)


def _micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)
