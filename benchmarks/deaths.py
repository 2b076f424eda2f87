"""Deaths: the bottleneck over a million entries, one death of a golem that knew much, a thousand deaths in one run."""

from __future__ import annotations

import re
from datetime import datetime
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.death.complete_deaths import complete_deaths
from bardo_pipeline.derivation.death.death_queries import births_of, dead_golem, deaths_of
from bardo_pipeline.derivation.legacy.publish_legacies import publish_candidates, unjudged_candidates
from bardo_pipeline.derivation.memory.derive_episodes import derive_episodes
from bardo_pipeline.derivation.succession.succeed import due_successions
from bardo_pipeline.events.life.events import Died, life_event
from bardo_pipeline.events.record.model import Vitality
from bardo_pipeline.grimoire.entries import CATEGORIES, MOMENT
from bardo_pipeline.inheritance.bottleneck import bottleneck
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from benchmarks.figures import Figure, seconds
from benchmarks.retrieve import HOUR_US, START_US, entries
from benchmarks.world import NOW, SPAN, World

SHAPES = ((1, 1_000_000), (100, 10_000))
MANY = 1_000


def death_figures(root: Path) -> list[Figure]:
    """Seconds of the bottleneck, of one death, and of one of a thousand deaths beside one alone."""
    rng = np.random.default_rng(40)
    worst = 0.0
    for golems, each in SHAPES:
        known = knowledge([f"g-{i:04d}" for i in range(golems)], each, rng)
        died = deaths(golems)
        bottleneck(known, died, Policy())
        worst = max(worst, min(seconds(lambda k=known, d=died: bottleneck(k, d, Policy())) for _ in range(3)))
        del known
    told = "a million entries of 1 golem, and of 100: the slower; best of 3; peer: the aim"
    figures = [Figure("bottleneck_s", worst, "s", 0.8, worst / 0.8, "value <= 0.8", told)]

    warm = _dead(root / "warm", 1, 100, rng)  # what a process loads once: Great Expectations, the model
    one, _ = _buried(warm, _dead(root / "one", 1, 10_000, rng))
    told = "1 golem with 10,000 entries: episodes, testament, bottleneck, bundle, verdict, publication; peer: the aim"
    figures.append(Figure("death_to_bundle_s", one, "s", 3.0, one / 3.0, "value <= 3", told))
    alone, _ = _buried(_dead(root / "warm2", 1, 100, rng), _dead(root / "alone", 1, MANY, rng))
    graves = _dead(root / "many", MANY, MANY, rng)
    many, used = _buried(_dead(root / "warm3", 1, 100, rng), graves)
    many /= MANY
    told = f"{MANY:,} golems with {MANY:,} entries each; peer: one such golem alone"
    figures.append(Figure("deaths_1000_per_golem_ratio", many, "s", alone, many / alone, "ratio <= 0.1", told))
    told = "the most memory that the process of those deaths had; peer: the aim"
    figures.append(Figure("deaths_1000_gb", used, "GB", 4.0, used / 4.0, "value <= 4", told))
    return [*figures, _asked_of(graves)]


def _asked_of(root: Path) -> Figure:
    """Seconds to ask a home of the dead what is waiting, and of one of them, beside reading of them all."""
    stores = DerivationContext.open(root)
    one = stores.life("DeathDeclared")["golem_id"][0].as_py()

    def asked() -> None:
        assert not unjudged_candidates(stores), "all are judged"
        assert not publish_candidates(stores, now=NOW), "all are published"
        assert not due_successions(stores, NOW), "no heir is wanted"
        dead_golem(stores, one)

    def everybody() -> None:
        births_of(stores)
        deaths_of(stores)
        stores.projections.growing("candidates").read().to_pylist()

    asked()
    value, peer = (min(seconds(work) for _ in range(3)) for work in (asked, everybody))
    told = f"what waits for verdict, publication or heir, and one golem, among {MANY:,} dead; peer: reading of them all"
    return Figure("dead_asked_ratio", value, "s", peer, value / peer, "ratio <= 0.5", told)


def knowledge(golem_ids: list[str], each: int, rng: np.random.Generator) -> pa.Table:
    """Active entries (ENTRY_SCHEMA) of these golems, so many each, of every category, generation and rule."""
    count = len(golem_ids) * each
    table = entries(count, rng)
    of = np.repeat(np.arange(len(golem_ids)), each)
    drawn = {
        "golem_id": pa.array(golem_ids).take(pa.array(of)),
        "category": pa.array(list(CATEGORIES)).take(pa.array(rng.integers(0, len(CATEGORIES), count))),
        "action_type": pa.repeat(pa.scalar("rebalance"), count),
        "gas_band": pa.repeat(pa.scalar("normal"), count),
        "generation": pa.array(rng.integers(0, 5, count)),
        "sign": pa.array(rng.choice([-1, 1], count)),
        "is_anti_knowledge": pa.array(rng.random(count) < 0.002),
    }
    for name, values in drawn.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(place), values.cast(table.schema.field(place).type))
    return table


def deaths(golems: int) -> pa.Table:
    """golem_id and moment of death of g-0000, g-0001, ..."""
    at = pa.array([START_US + HOUR_US] * golems, pa.int64()).cast(MOMENT)
    return pa.table({"golem_id": [f"g-{i:04d}" for i in range(golems)], "at": at})


def _dead(root: Path, golems: int, each: int, rng: np.random.Generator) -> Path:
    """A home whose golems lived a cycle, know so many entries each, and are dead; nothing of theirs is left yet."""
    world = World(SPAN, golems, curates=False)
    stores = DerivationContext.open(Home.create(root, world.policy, NOW).root)
    stores.log.record([life_event(g, NOW, birth) for g, birth in world.births], NOW)
    stores.log.append(world.cycles[0], writer="bench", segment=1, recorded_at=NOW)
    stores.log.record([_death(g, world.cycles[0]) for g, _ in world.births], NOW)
    derive_curation(stores)
    grimoire = stores.projections.replaceable("grimoire")
    ids = [g for g, _ in world.births]
    grimoire.replace(knowledge(ids, each, rng), grimoire.buckets(ids), upto=dict.fromkeys(ids, 1))
    derive_episodes(stores, now=NOW)
    stores.log.close()
    return root


def _buried(*homes: Path) -> tuple[float, float]:
    """Seconds from recorded deaths to published bundles in the last home, and the most gigabytes in use, in a process
    of its own that buries the dead of the other homes before."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(_bury, (homes,))


def _bury(homes: tuple[Path, ...]) -> tuple[float, float]:
    took = 0.0
    for root in homes:
        stores = DerivationContext.open(root)
        took = seconds(lambda s=stores: complete_deaths(s, now=NOW))
        born, out = (stores.life(kind).num_rows for kind in ("GolemBorn", "BundlePublished"))
        assert out == born, f"{out} of {born} bundles were published"
        stores.log.close()
    return took, _most_gb()


def _most_gb() -> float:
    """The most gigabytes that this process had; getrusage tells what whoever began it had, where that is more."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None, "Linux tells it"
    return int(found[1]) / 1e6


def _death(golem_id: str, records: pa.Table):
    at: datetime = records["observed_at"][records.num_rows - 1].as_py()
    life = Vitality(economic=0.0, epistemic=0.7, stochastic=0.5, composite=0.0)
    said = Died(
        cause="economic",
        tick=SPAN,
        phase="terminal",
        vitality=life,
        credits_micros=0,
        capital_micros=0,
        earned_micros=0,
    )
    return life_event(golem_id, at, said)
