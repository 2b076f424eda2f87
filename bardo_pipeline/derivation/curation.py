"""Curation: closed cycles to decisions, grimoire, playbooks. The runtime and Dagster's job call the same code.

Whoever comes second finds the cycle on record under (golem, cycle) and leaves it. Source: architecture ("Time and
order").
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.decisions import DECISION_SCHEMA
from bardo_pipeline.curator.evidence import EVIDENCE_COLUMNS
from bardo_pipeline.curator.passes import CYCLE_SCHEMA, Curation, curate
from bardo_pipeline.curator.playbook import PLAYBOOK_SCHEMA, PlaybookLog, Playbooks
from bardo_pipeline.curator.state import GrimoireState, from_table, to_table
from bardo_pipeline.derivation.bundles import load_bundle
from bardo_pipeline.derivation.reading import CycleReader
from bardo_pipeline.derivation.stores import Stores
from bardo_pipeline.events.record import REGIMES
from bardo_pipeline.inheritance.succession import inherited_entries, received_decisions
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.projections import RenewedTable, Written


@dataclass
class Mind:
    """What some golems know and go by, in working form, and what was decided since the last commit."""

    policy: Policy
    state: GrimoireState = field(default_factory=GrimoireState)
    playbooks: Playbooks = field(default_factory=Playbooks)
    done: dict[str, int] = field(default_factory=dict)
    pending: list[Curation] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)

    def begin(
        self, golem_id: str, *, at: datetime, base_threshold: float, inherited: pa.Table | None, bundle_hash: str | None
    ) -> None:
        """A golem starts its life: with nothing, or with what its bundle holds (cycle 0)."""
        code = self.state.golem_code(golem_id)
        self.playbooks.base[golem_id] = base_threshold
        decisions = DECISION_SCHEMA.empty_table()
        if inherited is not None and inherited.num_rows:
            assert bundle_hash is not None, "what is inherited comes in a bundle"
            self.state.absorb(inherited)
            decisions = received_decisions(inherited, bundle_hash, at, self.policy.hash)
        log = PlaybookLog()
        at_us = np.array([pa.scalar(at, pa.timestamp("us", tz="UTC")).cast(pa.int64()).as_py()])
        self.playbooks.revise(self.state, np.array([code]), np.zeros(1, np.int64), at_us, log, self.policy)
        self._take(Curation(decisions, CYCLE_SCHEMA.empty_table(), log.table()), {golem_id: 0})

    def advance(self, records: pa.Table, cycle: np.ndarray, upto: dict[str, int]) -> Curation:
        """Curate closed cycles of these golems."""
        made = curate(self.state, self.playbooks, records, cycle, policy=self.policy, policy_hash=self.policy.hash)
        self._take(made, upto)
        return made

    def _take(self, made: Curation, upto: dict[str, int]) -> None:
        self.pending.append(made)
        self.done |= upto
        self.touched |= set(upto)

    def forget(self, golem_ids: set[str]) -> None:
        """Let go of golems that are dead and committed."""
        self.state = self.state.without_golems(golem_ids)


def commit(stores: Stores, mind: Mind) -> list[Written]:
    """Write what was decided since the last commit: decisions, cycles and playbooks grow, the grimoire is renewed.

    The caller holds `stores.deriving()`. The grimoire comes last and carries how far each golem has come: until it is
    there, the cycle counts as open, and whoever derives it again finds the rows that are on record and leaves them.
    """
    grimoire = stores.projections.renewed("grimoire")
    upto = {g: mind.done[g] for g in sorted(mind.touched)}
    upto = {g: cycle for g, cycle in upto.items() if (known := grimoire.done(g)) is None or known < cycle}
    written = []
    if upto:
        for name, attribute, schema in (
            ("curation", "decisions", DECISION_SCHEMA),
            ("cycles", "cycles", CYCLE_SCHEMA),
            ("playbooks", "playbooks", PLAYBOOK_SCHEMA),
        ):
            rows = pa.concat_tables([schema.empty_table(), *(getattr(c, attribute) for c in mind.pending)])
            written.append(stores.projections.growing(name).append(rows.combine_chunks(), upto))
        written.append(_renew_grimoire(stores, mind, grimoire, upto))
        _write_playbooks(stores, mind)
    mind.pending.clear()
    mind.touched.clear()
    return written


def _renew_grimoire(stores: Stores, mind: Mind, grimoire: RenewedTable, upto: dict[str, int]) -> Written:
    buckets, held = grimoire.buckets(upto), pa.array(sorted(upto), pa.string())
    mine = to_table(mind.state, stores.policy.curator, stores.policy.decay)
    mine = mine.filter(pc.is_in(mine["golem_id"], value_set=held))
    others = grimoire.read(buckets)
    others = others.filter(pc.invert(pc.is_in(others["golem_id"], value_set=held)))
    rows = pa.concat_tables([others, mine]).sort_by([("golem_id", "ascending"), ("entry_id", "ascending")])
    return grimoire.renew(rows, buckets, upto=upto)


def _write_playbooks(stores: Stores, mind: Mind) -> None:
    """The newest PLAYBOOK.md of each golem as a file, for whoever reads files; a rebuild beside leaves it alone."""
    if stores.projections.root != stores.home.derivation(stores.derivation_id):
        return
    newest = {r["golem_id"]: r["markdown"] for c in mind.pending for r in c.playbooks.to_pylist()}
    for golem_id, markdown in newest.items():
        folder = stores.home.playbooks / golem_id
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".PLAYBOOK.md").write_text(markdown)
        (folder / ".PLAYBOOK.md").replace(folder / "PLAYBOOK.md")


def load_mind(stores: Stores, golem_ids: list[str]) -> Mind:
    """These golems as they stood at their last committed cycle; golems without one are begun from their birth."""
    mind = Mind(stores.policy)
    grimoire = stores.projections.renewed("grimoire")
    mind.done = {g: done for g in golem_ids if (done := grimoire.done(g)) is not None}
    table = grimoire.read(grimoire.buckets(golem_ids)) if golem_ids else grimoire.read([])
    mind.state = from_table(table.filter(pc.is_in(table["golem_id"], value_set=pa.array(golem_ids, pa.string()))))
    births = {
        e["golem_id"]: e for e in stores.life("GolemBorn").select(["golem_id", "observed_at", "born"]).to_pylist()
    }
    _load_playbooks(stores, mind, golem_ids)
    for golem_id in sorted(golem_ids):
        birth = births.get(golem_id)
        base = birth["born"]["traits"]["rebalance_threshold"] if birth else stores.policy.playbook.rebalance_threshold
        mind.playbooks.base[golem_id] = base
        if golem_id not in mind.done and birth is not None:
            _begin(stores, mind, golem_id, birth["observed_at"], base, birth["born"]["bundle_hash"])
    return mind


def _begin(stores: Stores, mind: Mind, golem_id: str, at: datetime, base: float, bundle_hash: str | None) -> None:
    inherited = None
    if bundle_hash is not None:
        inherited = inherited_entries(load_bundle(stores.home, bundle_hash), golem_id, stores.policy)
    mind.begin(golem_id, at=at, base_threshold=base, inherited=inherited, bundle_hash=bundle_hash)


def _load_playbooks(stores: Stores, mind: Mind, golem_ids: list[str]) -> None:
    rows = stores.projections.growing("playbooks").read(
        ["golem_id", "version", "cycle", "rebalance_threshold"], golems=golem_ids
    )
    for row in sorted(rows.to_pylist(), key=lambda r: (r["golem_id"], r["version"])):
        if row["cycle"] > mind.done.get(row["golem_id"], -1):
            continue  # of a cycle that was not finished: it will be written again, the same
        mind.playbooks.version[row["golem_id"]] = row["version"]
        mind.playbooks.threshold[row["golem_id"]] = tuple(row["rebalance_threshold"][r] for r in REGIMES)


def derive_curation(stores: Stores) -> list[Written]:
    """Curate every closed cycle that is not on record. Returns what was written, nothing if nothing was new."""
    with stores.deriving():
        grimoire = stores.projections.renewed("grimoire")
        reader = CycleReader(stores, "curation", EVIDENCE_COLUMNS)
        fresh = reader.fresh(grimoire.done)
        unborn = [g for g in stores.life("GolemBorn")["golem_id"].to_pylist() if grimoire.done(g) is None]
        golems = sorted(set(fresh.upto) | set(unborn))
        written: list[Written] = []
        if golems:
            mind = load_mind(stores, golems)
            mind.advance(fresh.records, fresh.cycle, fresh.upto)
            written = commit(stores, mind)
        reader.advance(fresh)
        return written
