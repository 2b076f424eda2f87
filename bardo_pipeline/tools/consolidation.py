"""Consolidation: clusters of episodes become insights, decayed episodes are named, changes of strategies are staged.

Episodes of one tool, chain and pair form a cluster. The insight of a cluster states how its runs ended and quotes the
reflection that is most like the others. Executions are reflected on if they deviate, so a cluster of reflections on a
strategy states how all its executions ended since the cluster before. A later cluster with the same structure and sign
is an upvote; one with the opposite sign is a downvote and a new insight (canon 17). Imported episodes alone are no
vote on an imported insight, which own experience has to validate (TOOLS, memory_import_grimoire). No language model is
asked: a rebuild gives the same content.
Source: TOOLS (memory_consolidate, "Dream cycle integration"), MEM-24, canon 14.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal

import numpy as np
import orjson
import pyarrow.compute as pc
from pydantic import Field

from bardo_pipeline.derivation.memory.free_texts import HeldText, texts_of_golem
from bardo_pipeline.events.experience.stored_text import stored_text
from bardo_pipeline.events.life.events import life_event
from bardo_pipeline.events.life.tool_events import AdjustmentStaged, EpisodesConsolidated, InsightManaged
from bardo_pipeline.events.record.model import Part
from bardo_pipeline.grimoire.confidence import retention
from bardo_pipeline.retrieval.insight_votes import KnownInsight
from bardo_pipeline.tools.definition import Guidance, Tool
from bardo_pipeline.tools.execution_queries import settled_executions
from bardo_pipeline.tools.failure_patterns import failure_clusters
from bardo_pipeline.tools.insights import operation_count
from bardo_pipeline.tools.prediction_fields import first_number
from bardo_pipeline.tools.schemas import Arguments, Result, WriteCounts
from bardo_pipeline.tools.strategies import newest_versions
from bardo_pipeline.tools.tool_call import ToolCall

PROFIT = ("realized_pnl_usd", "realized_pnl", "pnl_usd", "pnl", "profit_usd", "profit", "net_pnl", "reward", "return")
"""Fields of an outcome that state the result of a run in numbers; the first present one counts."""

IMPORTED = "imported"
"""Tag of an episode that an archive brought."""

SUCCESS = ("success", "succeeded", "ok")
"""Fields of an outcome that state whether a run succeeded; used if none of PROFIT is present."""

CATEGORY_OF_TOOL = (
    ("gas", "gas_timing"), ("route", "route_selection"), ("swap", "slippage"), ("rebalance", "rebalance_timing"),
    ("liquidity", "pool_behavior"), ("fee", "fee_optimization"), ("vault", "vault_strategy"),
    ("deposit", "vault_strategy"), ("withdraw", "vault_strategy"), ("emergency", "emergency"),
)  # fmt: skip
"""Part of a tool's name -> category of the insights about it, the first that fits; else `general`."""

_QUOTE_LENGTH_MAX = 600
_SIGNS = {1: "pays", -1: "harms", 0: "is mixed"}


class ConsolidateArguments(Arguments):
    """Arguments of memory_consolidate."""

    max_episodes: int = Field(100, ge=1, le=10_000, description="Maximum episodes to consolidate in this pass.")
    min_cluster_size: int = Field(3, ge=1, le=10_000, description="Minimum cluster size for insight extraction.")
    run_decay: bool = Field(True, description="Run the Ebbinghaus decay pass on expired episodes.")
    dry_run: bool = Field(False, description="Compute clusters and proposed insights, and record nothing.")


class ProposedInsight(Result):
    """An insight that a cluster gives."""

    content: str = Field(description="Content.")
    operation: str = Field(description="ADD, UPVOTE or DOWNVOTE.")
    episode_count: int = Field(ge=1, description="Number of episodes in the cluster.")


class ConsolidateResult(Result):
    """Result of memory_consolidate."""

    episodes_processed: int = Field(ge=0, description="Number of episodes in the clusters, which no later call reads.")
    clusters_found: int = Field(ge=0, description="Number of clusters of at least the minimum size.")
    insights_created: int = Field(ge=0, description="Number of new insights.")
    insights_reinforced: int = Field(ge=0, description="Number of upvotes of earlier insights.")
    episodes_decayed: int = Field(ge=0, description="Number of episodes whose retention fell below 5 %.")
    duration_ms: int = Field(ge=0, description="Duration in milliseconds.")
    insights: tuple[ProposedInsight, ...] = Field(description="What the clusters gave, in order.")
    adjustments_staged: int = Field(ge=0, description="Number of staged suggestions about strategies.")
    counts: WriteCounts = Field(description="Consolidations in the log before and after.")


@dataclass(frozen=True)
class EpisodeCluster:
    """Episodes of one tool, chain and pair, in the order of their moments.

    runs: if episodes reflect on executions, the result of each settled execution of the strategy by id, US dollars;
    None for one that settled before an earlier cluster.
    """

    key: tuple[str, str, str]
    episodes: Sequence[HeldText]
    runs: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def results(self) -> list[float]:
        """Result of each run that states one: its profit, else 1 for a success and -1 for a failure."""
        stated = [_result(e.stored["outcome"]) for e in self.episodes if _execution_of(e) not in self.runs]
        return [value for value in (*self.runs.values(), *stated) if value is not None]

    @property
    def sign(self) -> int:
        """1 if more runs gained than lost and the mean is above 0, -1 for the opposite, else 0."""
        results = self.results
        gained, lost = sum(value > 0 for value in results), sum(value < 0 for value in results)
        mean = sum(results)
        return 1 if gained > lost and mean > 0 else -1 if lost > gained and mean < 0 else 0

    @property
    def structure(self) -> str:
        """Tool, chain and pair as a text."""
        return "|".join(self.key)


def _result(outcome: str | None) -> float | None:
    """Return the result that an outcome (JSON) states."""
    value = None if outcome is None else orjson.loads(outcome)
    number = first_number(value, PROFIT)
    if number is None and isinstance(value, dict):
        stated = next((value[name] for name in SUCCESS if isinstance(value.get(name), bool)), None)
        number = None if stated is None else 1.0 if stated else -1.0
    return number


def _execution_of(episode: HeldText) -> str | None:
    """Return the id of the execution that a reflection is about."""
    outcome = episode.stored["outcome"]
    value = orjson.loads(outcome) if episode.stored["sort"] == "reflection" and outcome is not None else None
    return value.get("execution_id") if isinstance(value, dict) else None


def consolidated_ids(call: ToolCall, name: Literal["episode_ids", "decayed_ids"]) -> set[str]:
    """Return the ids of the texts that the golem's consolidations name as read or as decayed."""
    if not call.context.life("EpisodesConsolidated").num_rows:
        return set()
    lists = pc.struct_field(call.facts("EpisodesConsolidated")["consolidated"], name)
    return set(pc.list_flatten(lists).to_pylist())


def unconsolidated_episodes(call: ToolCall) -> list[HeldText]:
    """Return the golem's episodes and reflections that no consolidation clustered, tagged and imported ones first.

    Inherited ones are left out, because the insights that they gave are inherited too.
    """
    done = consolidated_ids(call, "episode_ids")
    texts = texts_of_golem(call.context, call.golem_id, ("episode", "reflection"), now=call.at)
    waiting = [t for t in texts if t.text_id not in done and t.origin_golem_id == call.golem_id]
    return sorted(waiting, key=lambda t: (t.stored["dream_tag"] is None and IMPORTED not in t.stored["tags"], t.at))


def clusters_of(episodes: Iterable[HeldText], size_min: int, episodes_max: int) -> list[EpisodeCluster]:
    """Return clusters of at least size_min episodes, with at most episodes_max episodes in all."""
    groups: dict[tuple[str, str, str], list[HeldText]] = {}
    for episode in episodes:
        stored = episode.stored
        groups.setdefault((stored["tool"] or "-", stored["chain"] or "-", stored["pair"] or "-"), []).append(episode)
    clusters, room = [], episodes_max
    for key, group in groups.items():
        taken = group[:room]
        if len(taken) >= size_min:
            clusters.append(EpisodeCluster(key, sorted(taken, key=lambda episode: episode.at)))
            room -= len(taken)
    return clusters


def _with_runs(call: ToolCall, clusters: Sequence[EpisodeCluster]) -> list[EpisodeCluster]:
    """Return the clusters; those with reflections on executions have the settled executions of their strategy."""
    reflected = [{_execution_of(e) for e in cluster.episodes} - {None} for cluster in clusters]
    if not any(reflected):
        return list(clusters)
    settled = settled_executions(call)
    runs = settled.filter(pc.is_valid(settled["realized_micros"])).to_pylist()
    read_at = {text_id: row["at"] for row in call.contents("EpisodesConsolidated") for text_id in row["episode_ids"]}
    earlier = texts_of_golem(call.context, call.golem_id, ("reflection",), now=call.at, ids=read_at)
    counted_until = dict[str, datetime]()
    for text in (t for t in earlier if _execution_of(t) is not None):
        name, at = text.stored["tool"], read_at[text.text_id]
        counted_until[name] = max(at, counted_until.get(name, at))
    result = []
    for cluster, ids in zip(clusters, reflected, strict=True):
        of_strategy = [run for run in runs if run["strategy_name"] == cluster.key[0]]
        until = counted_until.get(cluster.key[0])
        values = {
            run["execution_id"]: run["realized_micros"] / 1e6 if until is None or run["settled_at"] > until else None
            for run in of_strategy
        }
        result.append(replace(cluster, runs=values) if ids & values.keys() else cluster)
    return result


def content_of(call: ToolCall, cluster: EpisodeCluster) -> str:
    """Return the statement of a cluster with results: how its runs ended, and its most typical reflection."""
    tool, chain, pair = cluster.key
    where = f"{tool}{'' if chain == '-' else f' on {chain}'}{'' if pair == '-' else f' for {pair}'}"
    results = cluster.results
    gained = sum(value > 0 for value in results)
    ended = f"{gained} of {len(results)} runs gained, mean result {sum(results) / len(results):.4g}"
    typical = _typical(call, [episode.stored["text"] for episode in cluster.episodes])
    return f"{where} {_SIGNS[cluster.sign]}: {ended}. Typical reflection: {typical[:_QUOTE_LENGTH_MAX]}"


def _typical(call: ToolCall, texts: Sequence[str]) -> str:
    """Return the text whose vector is most like all others; of equals the first."""
    vectors = call.context.embedder.embed(list(texts)).astype(np.float64)
    likeness = np.round(vectors @ vectors.sum(axis=0), 6)
    return texts[int(np.argmax(likeness))]


def decayed_episodes(call: ToolCall) -> list[str]:
    """Return the ids of episodes whose retention fell below the minimum and that no consolidation named yet.

    Age counts to the golem's newest text or tick, whichever is later, so it does not grow while a golem is off.
    """
    texts, decay = texts_of_golem(call.context, call.golem_id, now=call.at), call.context.policy.decay
    named = consolidated_ids(call, "decayed_ids")
    kept = [text for text in texts if text.stored["sort"] != "insight" and text.text_id not in named]
    if not kept:
        return []
    newest = max(texts[-1].at, _last_tick_at(call) or texts[-1].at)
    age_days = np.array([(newest - text.at) / timedelta(days=1) for text in kept])
    strength = np.array([getattr(decay, f"{text.stored['importance']}_days") for text in kept])
    has_decayed = retention(age_days, strength) < decay.episode_retention_min
    return [kept[row].text_id for row in np.flatnonzero(has_decayed).tolist()]


def _last_tick_at(call: ToolCall) -> datetime | None:
    """Return the time of the golem's newest record."""
    tick = call.context.log.head_of(call.golem_id).contiguous
    rows = call.context.log.read_stretch(["observed_at"], [call.golem_id], tick, tick)["observed_at"].to_pylist()
    return rows[0] if rows else None


# facts


def _cluster_facts(
    call: ToolCall, cluster: EpisodeCluster, known: Iterable[KnownInsight], number: int
) -> tuple[list[Part], list[ProposedInsight]]:
    """Return the facts that a cluster gives, and its proposed insights. number: of the next operation on insights."""
    content, signed = content_of(call, cluster), f"{cluster.structure}|{cluster.sign}"
    evidence = tuple(episode.text_id for episode in cluster.episodes)
    about = [i for i in known if i.structure is not None and i.structure.rpartition("|")[0] == cluster.structure]
    same = next((i for i in about if i.structure == signed), None)
    opposite = next((i for i in about if i.structure == f"{cluster.structure}|{-cluster.sign}" and cluster.sign), None)
    plain = {"chain": _named(cluster.key[1]), "token_pair": _named(cluster.key[2]), "source": "consolidation",
             "structure": signed, "evidence": evidence, "crossings": 0}  # fmt: skip
    silent = {"content": None, "category": None, "confidence": None, "text_id": None}
    facts: list[Part] = []
    proposals = []
    is_foreign = all(IMPORTED in episode.stored["tags"] for episode in cluster.episodes)
    for voted, vote in ((same, "UPVOTE"), (opposite, "DOWNVOTE")):
        if voted is not None and not (is_foreign and voted.source == "import"):  # it was made from such episodes
            fact = {"number": number + len(facts), "insight_id": voted.insight_id, "operation": vote, "reason": content}
            facts.append(InsightManaged.model_validate(fact | plain | silent))
            proposals.append(ProposedInsight(content=content, operation=vote, episode_count=len(evidence)))
    if same is None:
        category = next((c for part, c in CATEGORY_OF_TOOL if part in cluster.key[0].lower()), "general")
        text = stored_text(content, sort="insight", category=category, chain=_named(cluster.key[1]),
                           pair=_named(cluster.key[2]))  # fmt: skip
        text_id = life_event(call.golem_id, call.at, text).event_id
        start = call.context.policy.curator.confidence_insight
        fact = {"number": number + len(facts), "insight_id": text_id, "operation": "ADD", "content": content,
                "category": category, "confidence": start, "text_id": text_id, "reason": None}  # fmt: skip
        facts += [InsightManaged.model_validate(fact | plain), text]
        proposals.append(ProposedInsight(content=content, operation="ADD", episode_count=len(evidence)))
    return facts, proposals


def _named(part: str) -> str | None:
    return None if part == "-" else part


def staged_adjustments(call: ToolCall) -> list[AdjustmentStaged]:
    """Return suggestions from the failures of each strategy that are not staged for its newest version yet."""
    known = {
        (row["strategy_name"], row["strategy_version"], row["features"], row["failure_count"])
        for row in call.contents("AdjustmentStaged")
    }
    settled, versions = settled_executions(call), newest_versions(call)
    staged = []
    for name in sorted(settled["strategy_name"].unique().to_pylist()):
        patterns = failure_clusters(settled, strategy_name=name, failures_min=_FAILURES_MIN, threshold_usd=0.0)
        for cluster in patterns.clusters:
            features = orjson.dumps(cluster.features, option=orjson.OPT_SORT_KEYS).decode()
            fact = AdjustmentStaged(
                strategy_name=name,
                strategy_version=versions[name]["version"] if name in versions else None,
                features=features,
                failure_count=cluster.execution_count,
                average_micros=round(cluster.avg_pnl * 1e6),
                hypothesis=cluster.hypothesis,
                adjustments=cluster.suggested_adjustments,
            )
            if (name, fact.strategy_version, features, fact.failure_count) not in known:
                staged.append(fact)
    return staged


_FAILURES_MIN = 5
"""TOOLS (memory_get_failure_patterns: default of min_executions)."""


def _consolidate(call: ToolCall, arguments: ConsolidateArguments) -> ConsolidateResult:
    found = clusters_of(unconsolidated_episodes(call), arguments.min_cluster_size, arguments.max_episodes)
    clusters = _with_runs(call, found)
    known = list(call.insights().values())
    facts: list[Part] = []
    proposals: list[ProposedInsight] = []
    first = operation_count(call) + 1
    for cluster in (c for c in clusters if c.results):  # without a stated result, a cluster gives no insight
        number = first + sum(isinstance(fact, InsightManaged) for fact in facts)
        of_cluster, proposed = _cluster_facts(call, cluster, known, number)
        facts += of_cluster
        proposals += proposed
    decayed = decayed_episodes(call) if arguments.run_decay else []
    staged = staged_adjustments(call)
    created, reinforced = (sum(p.operation == operation for p in proposals) for operation in ("ADD", "UPVOTE"))
    episode_ids = tuple(episode.text_id for cluster in clusters for episode in cluster.episodes)
    if episode_ids or decayed or staged:
        done = EpisodesConsolidated(
            episode_ids=episode_ids,
            cluster_count=len(clusters),
            insights_created=created,
            insights_reinforced=reinforced,
            decayed_ids=tuple(decayed),
        )
        facts += [*staged, done]
    summary = f"{created} insights created, {len(decayed)} episodes decayed"
    counts = call.record([] if arguments.dry_run else facts, summary, counted="EpisodesConsolidated")
    return ConsolidateResult(
        episodes_processed=len(episode_ids),
        clusters_found=len(clusters),
        insights_created=created,
        insights_reinforced=reinforced,
        episodes_decayed=len(decayed),
        duration_ms=call.lasted_ms(call.clock()) if call.duration_ms is None else call.duration_ms,
        insights=tuple(proposals),
        adjustments_staged=len(staged),
        counts=counts,
    )


CONSOLIDATE = Tool(
    name="memory_consolidate",
    summary="ExpeL distillation: cluster episodes, extract insights, run Ebbinghaus decay, stage changes of failing "
    "strategies. Automatic every 4h during Dream cycle. Manual trigger after activity bursts.",
    capability="write",
    tick_budget="slow",
    steps=("Loading unconsolidated episodes", "Clustering", "Extracting insights", "Running decay pass"),
    guidance=Guidance(
        thriving="Let automatic schedule run. Trigger manually after bursts.",
        cautious="Let automatic schedule run. Trigger manually after bursts.",
        declining="Run once to capture remaining learnings.",
        terminal="Final consolidation before exporting Grimoire for successor.",
    ),
    arguments=ConsolidateArguments,
    result=ConsolidateResult,
    run=_consolidate,
)
