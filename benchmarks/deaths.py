"""Deaths: the bottleneck over 1,000,000 entries, one death with 10,000 entries, 1,000 deaths in one run."""

from __future__ import annotations

import re
from datetime import datetime
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.derive_home import complete_deaths
from bardo_pipeline.derivation.legacy.death_queries import births_of, dead_golem, deaths_of
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
    """Measure the bottleneck and one death; compare the cost of 1,000 deaths in one run with one death alone."""
    rng = np.random.default_rng(40)
    worst = 0.0
    for golems, each in SHAPES:
        grimoire = knowledge([f"g-{i:04d}" for i in range(golems)], each, rng)
        died = deaths(golems)
        bottleneck(grimoire, died, Policy())
        worst = max(worst, min(seconds(lambda k=grimoire, d=died: bottleneck(k, d, Policy())) for _ in range(3)))
        del grimoire
    method = "1,000,000 entries of 1 golem or of 100, the slower; best of 3; peer: the aim"
    figures = [Figure("bottleneck_s", worst, "s", 0.8, worst / 0.8, "value <= 0.8", method)]

    warm = _dead(root / "warm", 1, 100, rng)  # loads Great Expectations and the model, once per process
    single_seconds, _ = _complete_in_process(warm, _dead(root / "one", 1, 10_000, rng))
    method = "1 golem with 10,000 entries: episodes, testament, bottleneck, bundle, verdict, publication; peer: the aim"
    figures.append(Figure("death_to_bundle_s", single_seconds, "s", 3.0, single_seconds / 3.0, "value <= 3", method))
    alone_seconds, _ = _complete_in_process(_dead(root / "warm2", 1, 100, rng), _dead(root / "alone", 1, MANY, rng))
    graves = _dead(root / "many", MANY, MANY, rng)
    many_seconds, peak_gb = _complete_in_process(_dead(root / "warm3", 1, 100, rng), graves)
    many_seconds /= MANY
    method = f"{MANY:,} golems with {MANY:,} entries each; peer: one such golem alone"
    figures.append(
        Figure(
            "deaths_1000_per_golem_ratio",
            many_seconds,
            "s",
            alone_seconds,
            many_seconds / alone_seconds,
            "ratio <= 0.1",
            method,
        )
    )
    method = "peak memory of the process that ran those deaths; peer: the aim"
    figures.append(Figure("deaths_1000_gb", peak_gb, "GB", 4.0, peak_gb / 4.0, "value <= 4", method))
    return [*figures, _query_figure(graves)]


def _query_figure(root: Path) -> Figure:
    """Compare queries for waiting work and one dead golem with reading all dead golems."""
    stores = DerivationContext.open(root)
    golem_id = stores.life("DeathDeclared")["golem_id"][0].as_py()

    def targeted() -> None:
        assert not unjudged_candidates(stores), "all are judged"
        assert not publish_candidates(stores, now=NOW), "all are published"
        assert not due_successions(stores, NOW), "no heir is wanted"
        dead_golem(stores, golem_id)

    def read_all() -> None:
        births_of(stores)
        deaths_of(stores)
        stores.projections.growing("candidates").read().to_pylist()

    targeted()
    value, peer = (min(seconds(work) for _ in range(3)) for work in (targeted, read_all))
    method = (
        f"work waiting for verdict, publication or heir, and one golem, among {MANY:,} dead; peer: reading all of them"
    )
    return Figure("dead_asked_ratio", value, "s", peer, value / peer, "ratio <= 0.5", method)


def knowledge(golem_ids: list[str], each: int, rng: np.random.Generator) -> pa.Table:
    """Make `each` active entries (ENTRY_SCHEMA) per golem, of all categories, generations and signs."""
    count = len(golem_ids) * each
    table = entries(count, rng)
    golem_index = np.repeat(np.arange(len(golem_ids)), each)
    random_columns = {
        "golem_id": pa.array(golem_ids).take(pa.array(golem_index)),
        "category": pa.array(list(CATEGORIES)).take(pa.array(rng.integers(0, len(CATEGORIES), count))),
        "action_type": pa.repeat(pa.scalar("rebalance"), count),
        "gas_band": pa.repeat(pa.scalar("normal"), count),
        "generation": pa.array(rng.integers(0, 5, count)),
        "sign": pa.array(rng.choice([-1, 1], count)),
        "is_anti_knowledge": pa.array(rng.random(count) < 0.002),
    }
    for name, values in random_columns.items():
        column = table.schema.get_field_index(name)
        field = table.schema.field(column)
        table = table.set_column(column, field, values.cast(field.type))
    return table


def deaths(golems: int) -> pa.Table:
    """Return golem_id and time of death of g-0000, g-0001, ..."""
    at = pa.array([START_US + HOUR_US] * golems, pa.int64()).cast(MOMENT)
    return pa.table({"golem_id": [f"g-{i:04d}" for i in range(golems)], "at": at})


def _dead(root: Path, golems: int, each: int, rng: np.random.Generator) -> Path:
    """Make a home of dead golems that lived one cycle and hold `each` entries; no bundle is made yet."""
    world = World(SPAN, golems, curates=False)
    stores = DerivationContext.open(Home.create(root, world.policy, NOW).root)
    stores.log.record([life_event(g, NOW, birth) for g, birth in world.births], NOW)
    stores.log.append(world.cycles[0], writer="bench", segment=1, recorded_at=NOW, simulated=True)
    stores.log.record([_death(g, world.cycles[0]) for g, _ in world.births], NOW)
    derive_curation(stores)
    grimoire = stores.projections.replaceable("grimoire")
    ids = [g for g, _ in world.births]
    grimoire.replace(knowledge(ids, each, rng), grimoire.buckets(ids), upto=dict.fromkeys(ids, 1))
    derive_episodes(stores, now=NOW)
    stores.log.close()
    return root


def _complete_in_process(*homes: Path) -> tuple[float, float]:
    """Return seconds from recorded deaths to published bundles in the last home, and peak GB of memory.

    Runs in a new process, which completes the deaths of the other homes first.
    """
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(_complete, (homes,))


def _complete(homes: tuple[Path, ...]) -> tuple[float, float]:
    took = 0.0
    for root in homes:
        stores = DerivationContext.open(root)
        took = seconds(lambda s=stores: complete_deaths(s, now=NOW))
        born, out = (stores.life(kind).num_rows for kind in ("GolemBorn", "BundlePublished"))
        assert out == born, f"{out} of {born} bundles were published"
        stores.log.close()
    return took, _peak_gb()


def _peak_gb() -> float:
    """Return this process's peak memory in GB; getrusage would include the parent's peak before the fork."""
    peak = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert peak is not None, "Linux reports VmHWM"
    return int(peak[1]) / 1e6


def _death(golem_id: str, records: pa.Table):
    at: datetime = records["observed_at"][records.num_rows - 1].as_py()
    life = Vitality(economic=0.0, epistemic=0.7, stochastic=0.5, composite=0.0)
    death = Died(
        cause="economic", tick=SPAN, phase="terminal", vitality=life, credits_micros=0, capital_micros=0,
        earned_micros=0,
    )  # fmt: skip
    return life_event(golem_id, at, death)
