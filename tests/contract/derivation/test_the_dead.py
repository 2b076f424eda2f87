"""Queries about dead golems read only the rows of these golems, for any number of earlier deaths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.bundle_store import published_bundles
from bardo_pipeline.derivation.legacy.death_queries import (
    credit_micros,
    dead_golem,
    dead_golems,
    succeeded_golems,
    succession_steps,
    unfinished_successions,
)
from bardo_pipeline.derivation.legacy.publish_legacies import publish_candidates, unjudged_candidates
from bardo_pipeline.derivation.succession.succeed import due_successions
from bardo_pipeline.events.life.events import Born, Died, Judged, LifeEvent, Published, life_event
from bardo_pipeline.events.life.succession_events import STEPS, Advanced, Step
from bardo_pipeline.events.record.model import Part, Vitality
from bardo_pipeline.heartbeat.fleet import Founding, born
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta.table_specs import CANDIDATE_SCHEMA
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.projections.projections import GrowingTable
from tests.conftest import NOW

pytestmark = pytest.mark.row("INH-21")

COUNT = 6
STARVED = Vitality(economic=0.0, epistemic=0.7, stochastic=0.5, composite=0.0)


def life_of(i: int) -> list[LifeEvent]:
    """Birth, death, verdict and publication of one golem."""
    golem, birth = born(
        lineage_id=f"line/{i}", generation=0, owner_id="ann", founding=Founding(), market="m", market_hash="x",
        derivation_id="d", policy=Policy(),
    )  # fmt: skip
    died = Died(
        cause="economic", tick=50, phase="terminal", vitality=STARVED, credits_micros=0, capital_micros=0,
        earned_micros=0,
    )  # fmt: skip
    parts: list[Part] = [
        birth, died, Judged(bundle_hash=f"bundle-{golem}", passed=True, expectations=1, failed=()),
        Published(bundle_hash=f"bundle-{golem}", entry_count=1, derivation_id="d"),
    ]  # fmt: skip
    return [life_event(golem, NOW, part) for part in parts]


def step(golem: str, name: Step, outcome: str = "done", mode: str = "automatic") -> LifeEvent:
    answer: dict[str, Any] = dict.fromkeys(Advanced.model_fields)
    answer |= {"heir_id": f"{golem}-heir", "mode": mode, "step": name, "outcome": outcome, "attempt": 1, "why": "so"}
    answer |= {"budget_micros": 7_000_000} if name == "funded" else {}
    return life_event(golem, NOW, Advanced.model_validate(answer))


def candidate(golem: str) -> dict[str, Any]:
    counts = dict.fromkeys(("entry_count", "episode_count", "anti_knowledge_count", "anti_knowledge_at_death"), 1)
    named = {"golem_id": golem, "owner_id": "ann", "lineage_id": golem, "generation": 0, "died_at": NOW}
    return {**named, **counts, "bundle_hash": f"bundle-{golem}", "cause_entries": ["e-1"]}


@pytest.fixture
def stores(tmp_path: Path) -> DerivationContext:
    """Return a home of dead golems: the first has an heir, the second's succession waits, the third's halted."""
    stores = DerivationContext.open(Home.create(tmp_path / "home", Policy(), NOW).root)
    lives = [life_of(i) for i in range(COUNT)]
    golems = [life[0].golem_id for life in lives]
    events = [event for life in lives for event in life]
    events += [step(golems[0], name) for name in STEPS]
    events += [step(golems[1], "exported"), step(golems[2], "exported"), step(golems[2], "compiled", "halted")]
    stores.log.record(events, NOW)
    rows = pa.Table.from_pylist([candidate(golem) for golem in golems], schema=CANDIDATE_SCHEMA)
    stores.projections.growing("candidates").put(rows, dict.fromkeys(golems, 1))
    return stores


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count the life events that are parsed, by kind, and the full reads of each table."""
    counts: Counter[str] = Counter()
    read = GrowingTable.read

    def watched(self: GrowingTable, columns: list[str] | None = None, *args: Any, **more: Any) -> pa.Table:
        counts["whole tables"] += columns is None and "only" not in more
        return read(self, columns, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(GrowingTable, "read", watched)
        for kind in (Born, Died, Advanced):

            def made(cls: type[Part], row: Any, validate: Any = kind.model_validate) -> Part:
                counts[cls.__name__] += 1
                return validate(row)

            patch.setattr(kind, "model_validate", classmethod(made))
        yield counts


def test_a_query_for_a_dead_golem_parses_only_its_birth_and_death(
    stores: DerivationContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    golem = stores.life("GolemBorn")["golem_id"][3].as_py()
    with counted(monkeypatch) as made:
        golem_row = dead_golem(stores, golem)
    assert (golem_row.golem_id, golem_row.bundle_hash) == (golem, f"bundle-{golem}")
    assert made == {"Born": 1, "Died": 1}
    with counted(monkeypatch) as made:
        assert dead_golems(stores, [golem, "nobody"]) == [golem_row]
    assert made == {"Born": 1, "Died": 1}
    assert published_bundles(stores, [golem]) == {golem: published_bundles(stores)[golem]}


def test_due_successions_parse_only_events_of_unfinished_successions(
    stores: DerivationContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third, *_ = stores.life("GolemBorn")["golem_id"].to_pylist()
    with counted(monkeypatch) as made:
        assert [succession.golem_id for succession in due_successions(stores, NOW)] == [second]
    assert made == {"Advanced": 1}, "one step of the waiting succession"
    with counted(monkeypatch) as made:
        assert succeeded_golems(stores) == {first}
        assert credit_micros(stores, "ann") == -7_000_000, "funded once without a commitment"
    assert not made
    stores.log.record([step(third, "exported", mode="manual")], NOW)
    assert unfinished_successions(stores) == sorted((second, third)), "an owner continues it manually"
    assert {golem for golem, _ in succession_steps(stores)} == {first, second, third}


def test_candidate_queries_read_no_whole_table_of_published_candidates(
    stores: DerivationContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    with counted(monkeypatch) as made:
        assert unjudged_candidates(stores) == []
        assert publish_candidates(stores, now=NOW) == []
    assert not made["whole tables"]
    late = candidate("late")
    stores.projections.growing("candidates").put(pa.Table.from_pylist([late], schema=CANDIDATE_SCHEMA), {"late": 1})
    with counted(monkeypatch) as made:
        assert [row["cause_entries"] for row in unjudged_candidates(stores)] == [["e-1"]]
    assert not made["whole tables"]
