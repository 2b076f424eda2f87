"""Health of a home: lags, backlogs and other measures, and the faults among them.

Source: X-11. Thresholds: HealthPolicy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.checkpoints import read_version
from bardo_pipeline.derivation.incremental.record_queries import closed_through, curated_through, values_by_golem
from bardo_pipeline.derivation.legacy.death_queries import (
    halted_successions,
    succession_steps,
    unfinished_successions,
    waiting_golems,
)
from bardo_pipeline.derivation.legacy.publish_legacies import unjudged_candidates
from bardo_pipeline.derivation.legacy.warning_waivers import bundle_failures
from bardo_pipeline.derivation.reports.marts_lag import built_at, unbuilt_change
from bardo_pipeline.events.record.arrow_schema import MOMENT
from bardo_pipeline.inheritance.succession_state import standings
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.embedder_drift import PPM
from bardo_pipeline.storage.checksums import checked_json
from bardo_pipeline.storage.home import statuses
from bardo_pipeline.storage.log.owner_log import golems_in_view
from bardo_pipeline.storage.operations.health_metrics import (
    Backlog,
    Intake,
    Journal,
    Leases,
    NeverTaken,
    Quarantined,
    committed_at,
    intake,
    journals,
    leases,
    quarantined,
    spool,
    untaken,
)

Done = Callable[[str], int | None]


@dataclass(frozen=True)
class Lag:
    """Lag of a derivation behind the log.

    Parameters
    ----------
    ticks : contiguous ticks that are not derived, over all golems
    golem_max, ticks_max : the golem with the largest lag
    cycles : closed cycles that are not derived
    waiting_seconds : since the first of them closed
    derived_at : time of the last commit
    """

    ticks: int
    golem_max: str | None
    ticks_max: int
    cycles: int
    waiting_seconds: float | None
    derived_at: datetime | None


@dataclass(frozen=True)
class Golems:
    """Numbers of births, deaths, golems without a birth, and missing ticks. waiting: golems born between runs."""

    born: int
    dead: int
    unborn: tuple[str, ...]
    missing_ticks: int
    waiting: int = 0


@dataclass(frozen=True)
class Judgements:
    """Counts of refused bundles (all, last day), candidates without a verdict, warnings and waived warnings."""

    refused: int
    refused_day: int
    unjudged: int
    warnings: int
    waived: int


@dataclass(frozen=True)
class Successions:
    """Counts of successions that are halted, waiting for a retry, or without a registered identity."""

    halted: int
    waiting: int
    unregistered: int


@dataclass(frozen=True)
class Marts:
    """The warehouse: start of its newest build, and age of the newest change that it lacks (None: nothing)."""

    built_at: datetime
    waiting_seconds: float | None


@dataclass(frozen=True)
class Indexed:
    """The index of episodes.

    Parameters
    ----------
    gone_before : time before which expired episodes are dropped
    looked_at : number of lists that a search probes; None for an exact search
    recall : measured share of nearest neighbours that the search finds; None for an exact search
    """

    episodes: int
    texts: int
    gone_before: str | None
    looked_at: int | None
    recall: float | None


@dataclass(frozen=True)
class Embedding:
    """The embedder, its last drift check, and an unfinished migration."""

    name: str
    verdict: str | None
    checked_at: datetime | None
    distance_max: float | None
    says: tuple[str, ...]
    migrating_to: str | None
    index: Indexed | None


@dataclass(frozen=True)
class Health:
    """All measures of a home at one time."""

    at: datetime
    golems: Golems
    intake: Intake
    silent_seconds: float | None
    curation: Lag
    episodes: Lag
    journals: tuple[Journal, ...]
    leases: Leases
    spool: Backlog
    untaken: NeverTaken
    quarantine: Quarantined
    judgements: Judgements
    successions: Successions
    marts: Marts | None
    embedder: Embedding


@dataclass(frozen=True)
class Fault:
    """A measure (part.measure) above its limit, with meaning and cure."""

    measure: str
    value: float
    limit: float
    says: str


def health_of(context: DerivationContext, now: datetime) -> Health:
    """Measure a home at `now` (UTC); an owner's view counts what belongs to its golems."""
    received, in_view = intake(context.log, now), golems_in_view(context.log, None)
    born, dead = context.life("GolemBorn"), context.life("DeathDeclared")
    heads = context.log.heads()
    names = set(born["golem_id"].to_pylist())
    episodes, cycles = (context.projections.growing(name) for name in ("episodes", "cycles"))
    curated_at = committed_at(cycles.table)
    return Health(
        at=now,
        golems=Golems(
            len(names),
            len(set(dead["golem_id"].to_pylist())),
            tuple(sorted(set(heads["golem_id"].to_pylist()) - names)),
            int(pc.sum(heads["missing_count"]).as_py() or 0),
            len(waiting_golems(context)),
        ),
        intake=received,
        silent_seconds=None if received.recorded_at is None else (now - received.recorded_at).total_seconds(),
        curation=_lag(context, "curation", lambda golem_id: curated_through(context, golem_id), curated_at, now),
        episodes=_lag(context, "episodes", episodes.done, committed_at(episodes.table), now),
        journals=() if context.owner else tuple(journals(context.home, now, context.policy.writer)),
        leases=leases(context.home, in_view),
        spool=spool(context.home, now, in_view),
        untaken=untaken(context.home, now, in_view),
        quarantine=quarantined(context.home, received.day, now, in_view),
        judgements=_judgements(context, now),
        successions=_successions(context),
        marts=_marts(context, now),
        embedder=_embedding(context),
    )


def _lag(context: DerivationContext, reader: str, done: Done, derived_at: datetime | None, now: datetime) -> Lag:
    closed, heads = closed_through(context), context.log.heads()
    reached = {golem_id: done(golem_id) or 0 for golem_id in closed}
    span = context.policy.curator.cycle_ticks
    contiguous = values_by_golem(heads, "contiguous")
    ticks = {g: max(0, contiguous.get(g, 0) - cycle * span) for g, cycle in reached.items()}
    first_open = {g: cycle + 1 for g, cycle in reached.items() if closed[g] > cycle}
    since = _closed_since(context, reader, first_open) if first_open else None
    furthest = max(ticks, key=lambda g: (ticks[g], g), default=None)
    return Lag(
        ticks=sum(ticks.values()),
        golem_max=furthest if furthest is not None and ticks[furthest] else None,
        ticks_max=ticks[furthest] if furthest is not None else 0,
        cycles=sum(closed[g] - reached[g] for g in first_open),
        waiting_seconds=None if since is None else max(0.0, (now - since).total_seconds()),
        derived_at=derived_at,
    )


def _closed_since(context: DerivationContext, reader: str, cycles: dict[str, int]) -> datetime | None:
    """Return when the first of these cycles (golem -> cycle) closed: when its last record was written."""
    place = read_version(context, reader)
    rows = context.log.read_cycles(["golem_id", "tick", "recorded_at"], place, golems=sorted(cycles))
    wanted = pa.table({"golem_id": pa.array(cycles, pa.string()), "cycle": pa.array(cycles.values(), pa.int64())})
    number = pc.add(pc.divide(pc.subtract(rows["tick"], 1), context.policy.curator.cycle_ticks), 1)
    records = rows.append_column("cycle", number).join(wanted, ["golem_id", "cycle"], join_type="inner")
    ends = records.group_by("golem_id").aggregate([("recorded_at", "max")])["recorded_at_max"]
    first = pc.min(ends).as_py()
    return None if first is None else first.astimezone(UTC)


def _judgements(context: DerivationContext, now: datetime) -> Judgements:
    verdicts = context.life("BundleJudged")
    refused = verdicts.filter(pc.invert(context.life_fields("BundleJudged", "passed")["passed"]))
    lately = pc.greater(refused["recorded_at"], pa.scalar(now - timedelta(days=1), MOMENT))
    warnings = [failure for failure in bundle_failures(context) if failure.severity == "warning"]
    waived = sum(not warning.open for warning in warnings)
    return Judgements(
        refused.num_rows, int(pc.sum(lately).as_py() or 0), len(unjudged_candidates(context)), len(warnings), waived
    )


def _successions(context: DerivationContext) -> Successions:
    states = standings(succession_steps(context, unfinished_successions(context))).values()
    halted = len(halted_successions(context)) + sum(state.halted is not None for state in states)
    waiting = sum(state.due_at is not None and not state.booted for state in states)
    return Successions(halted, waiting, sum(state.booted and state.unregistered for state in states))


def _marts(context: DerivationContext, now: datetime) -> Marts | None:
    started, change = built_at(context), unbuilt_change(context)
    if started is None:
        return None
    return Marts(started, None if change is None else (now - change).total_seconds())


def _embedding(context: DerivationContext) -> Embedding:
    checks = context.embedding_log.checks(name=context.embedder_name)
    waiting = context.embedding_log.unfinished(context.life("DerivationAdopted"))
    target = None if waiting is None else waiting.name
    index = None if context.owner else _indexed(context)  # one index for all golems
    if not checks:
        return Embedding(context.embedder_name, None, None, None, (), target, index)
    drift = checks[-1].drift
    distance = drift.distance_max_ppm / PPM
    return Embedding(context.embedder_name, drift.verdict, checks[-1].at, distance, drift.says, target, index)


def _indexed(context: DerivationContext) -> Indexed | None:
    """Read the newest watermark of the index, without opening a model."""
    folder = context.home.index / "episodes" / context.projections.root.name
    marks = sorted(statuses(folder.glob("*/watermark.json")), key=lambda mark: mark[1].st_mtime)
    if not marks:
        return None
    watermark = checked_json(marks[-1][0])
    search = watermark.get("approximate")
    looked_at = None if search is None or not search["looked_at"] else search["looked_at"]
    recall = None if looked_at is None else search["recall_ppm"] / PPM
    return Indexed(watermark["rows"], watermark["texts"], watermark.get("gone_before"), looked_at, recall)


def faults(health: Health, policy: Policy) -> list[Fault]:
    """Return the measures above their limits: risks of loss first, then delays."""
    risks = [*_damaged(health.journals), *overrun(health.journals, policy), *_intake_faults(health, policy)]
    return [*risks, *_vector_faults(health, policy), *_lag_faults(health, policy)]


def _damaged(journal_states: Iterable[Journal]) -> Iterator[Fault]:
    for journal in journal_states:
        yield from _above(
            "journal.damaged", journal.damaged, 0,
            f"writer {journal.writer}: {journal.damaged} damaged segments are too short, so records in them may be "
            "lost: `bardo verify` names the first; run `bardo drain`, then ask the sender for missing ticks",
        )  # fmt: skip


def overrun(journal_states: Iterable[Journal], policy: Policy) -> Iterator[Fault]:
    """Yield faults of journals that are drained too slowly or not at all."""
    for journal in journal_states:
        yield from _above(
            "journal.bytes", journal.depth.bytes, policy.health.journal_share_max * journal.bytes_max,
            f"writer {journal.writer}: {journal.depth.bytes:,} acknowledged bytes are not in the log; at "
            f"{journal.bytes_max:,} its appends wait or fail: `bardo drain` names the cause",
        )  # fmt: skip
        age = journal.depth.oldest_seconds or 0
        yield from _above(
            "journal.age", age, policy.health.undrained_flushes_max * journal.flush_seconds,
            f"writer {journal.writer}{'' if journal.alive else ' (dead)'}: records acknowledged {age:,.0f} s ago "
            "are not in the log: `bardo drain` names the cause",
        )  # fmt: skip


def _above(measure: str, value: float, limit: float, text: str) -> Iterator[Fault]:
    if value > limit:
        yield Fault(measure, value, limit, text)


def _intake_faults(health: Health, policy: Policy) -> Iterator[Fault]:
    limits, living = policy.health, health.golems.born - health.golems.dead - health.golems.waiting
    awaited = health.intake.awaited_at if living else None
    silent_seconds = 0.0 if awaited is None else (health.at - awaited).total_seconds()
    yield from _above("leases.stale", health.leases.stale, 0, "their writers died: `bardo drain` commits their records")
    yield from _above(
        "spool.age", health.spool.oldest_seconds or 0, limits.spool_seconds_max,
        f"{health.spool.files} files wait in the spool: switch its sensor on, or run `bardo spool take`",
    )  # fmt: skip
    yield from _above(
        "spool.untaken", health.untaken.oldest_seconds or 0, limits.spool_seconds_max,
        f"{health.untaken.files} files in the spool are never taken, such as {health.untaken.oldest}: only *.jsonl and "
        "*.arrow in spool/ or spool/GOLEM/ are, with plain signatures; name it so, or remove it",
    )  # fmt: skip
    yield from _above(
        "quarantine.share", health.quarantine.day_share, limits.quarantine_share_max,
        f"{health.quarantine.day:,} of a day's records were refused: `bardo quarantine list` says why",
    )  # fmt: skip
    yield from _above(
        "log.silence", silent_seconds, limits.silence_seconds_max,
        f"{living} golems live and none has recorded for {silent_seconds:,.0f} s: see whether they run",
    )  # fmt: skip
    yield from _above(
        "log.missing_ticks", health.golems.missing_ticks, 0,
        "derivation waits at the gaps: send the ticks, or `bardo accept-gap`",
    )  # fmt: skip


def _vector_faults(health: Health, policy: Policy) -> Iterator[Fault]:
    embedder = health.embedder
    if embedder.verdict == "critical":
        assert embedder.distance_max is not None, "a check has its figures"
        yield Fault(
            "vectors.drift", embedder.distance_max, policy.embedding.distance_critical,
            f"{'; '.join(embedder.says)}: no vectors are made; restore the model, then "
            "`bardo drift --check`, or `bardo reembed`",
        )  # fmt: skip


def _lag_faults(health: Health, policy: Policy) -> Iterator[Fault]:
    marts_seconds = None if health.marts is None else health.marts.waiting_seconds
    waiting = {"curation": health.curation.waiting_seconds, "episodes": health.episodes.waiting_seconds}
    for name, seconds in (waiting | {"marts": marts_seconds}).items():
        yield from _above(
            f"{name}.waiting", seconds or 0, policy.health.waiting_seconds_max,
            f"cycles closed {seconds or 0:,.0f} s ago are not in {name}: run `bardo derive` or the curator job",
        )  # fmt: skip
    yield from _above(
        "verdicts.refused", health.judgements.refused_day, policy.health.refused_bundles_max,
        "bundles failed their expectations within a day: their successors stay unborn (see the asset `verdicts`)",
    )  # fmt: skip
