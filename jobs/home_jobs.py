"""Jobs: one step each that keeps a home, and jobs over assets. A second run of an asset job finds nothing to do."""

import os
from collections.abc import Callable
from dataclasses import asdict
from secrets import token_hex

import dagster as dg

from assets.checks import only_passed_bundles_are_published
from assets.legacy import posted
from assets.log import LOG, QUARANTINE
from assets.metadata import markdown_table
from assets.resources import DERIVE, INTAKE, READ, LazyStores
from assets.retries import retried
from assets.upkeep import drift, maintenance, verification
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.request_proposals import propose_all
from bardo_pipeline.derivation.death.owner_notices import webhook_of
from bardo_pipeline.derivation.death.silence import declare_silent_golems
from bardo_pipeline.derivation.death.testament_phrasing import phrase_all_testaments
from bardo_pipeline.derivation.incremental.checkpoints import checkpoint_of
from bardo_pipeline.derivation.incremental.record_queries import closed_through, curated_through
from bardo_pipeline.derivation.incremental.retraction_tracking import pending_retraction_count
from bardo_pipeline.derivation.succession.succeed import run_due_successions
from bardo_pipeline.derivation.versions.rebuild import rebuild
from bardo_pipeline.errors import FingerprintMismatch
from bardo_pipeline.gateway.model_request import MODEL, ModelSettings
from bardo_pipeline.tools.due_consolidations import consolidate_due
from bardo_pipeline.tools.memory_gate import MemoryGate
from jobs.run_notices import post_run, unposted_runs


def _job(step: str, pool: str, description: str) -> Callable[[Callable[..., None]], dg.JobDefinition]:
    """Decorate the one step of a job; the job takes the function's name, the step its docstring."""

    def decorate(run: Callable[..., None]) -> dg.JobDefinition:
        op = dg.op(name=step, pool=pool, out=dg.Out(dg.Nothing))(retried(run))
        return dg.GraphDefinition(run.__name__, node_defs=[op], description=description).to_job()

    return decorate


@_job(
    "declare_silent_dead",
    INTAKE,
    "Declare dead every golem without a tick for longer than dying.silence_hours, by the clock of its "
    "market or the wall clock (dying.silence_clock). The death is dated to its last record; the sensor "
    "`deaths_recorded` then requests the death job. Golems with a running writer are skipped. `bardo golem observe` "
    "does the same.",
)
def observe_job(context: dg.OpExecutionContext, home: dg.ResourceParam[LazyStores]) -> None:
    """Drain the journals of ended writers, find silent golems, and record their deaths."""
    golems = declare_silent_golems(home.stores, now=home.now())
    rows = [{name: str(value) for name, value in asdict(golem).items()} for golem in golems]
    declared = sum(golem.outcome == "declared" for golem in golems)
    context.add_output_metadata({"silent": len(golems), "declared": declared, "found": markdown_table(rows)})


@_job(
    "rebuild_and_compare",
    DERIVE,
    "Derive every table again from the log and compare fingerprints with the current tables; fails on a "
    "difference. `bardo rebuild` does the same, also as of an earlier version or time.",
)
def rebuild_job(context: dg.OpExecutionContext, home: dg.ResourceParam[LazyStores]) -> None:
    """Derive every table again and compare fingerprints. Raises FingerprintMismatch on a difference."""
    compared = rebuild(home.stores, now=home.now(), on_step=context.log.info)
    context.add_output_metadata({"compared": markdown_table([asdict(c) | {"equal": c.equal} for c in compared])})
    different = [c.table for c in compared if not c.equal]
    if different:
        raise FingerprintMismatch(
            f"rebuilt tables differ from the current ones: {', '.join(different)}. See the run's table"
        )


@_job(
    "perform_due_steps",
    INTAKE,
    "Continue every succession with a due step: a death whose configuration has succession.auto, a place "
    "whose provisioning failed (retried after 30, 120 and 480 seconds, then hourly), a refused identity (retried at "
    "the heir's next heartbeat). `bardo golem due` does the same. A newborn heir starts with the next run of its "
    "market.",
)
def succession_job(context: dg.OpExecutionContext, home: dg.ResourceParam[LazyStores]) -> None:
    """Try every due step and record its outcome. Notices of halted successions go to BARDO_WEBHOOK."""
    successions = run_due_successions(home.stores, now=home.now())
    rows = [
        {"dead": golem, "step": step.step, "outcome": step.outcome, "attempt": step.attempt, "why": step.why}
        for golem, state in successions.items()
        for step in state.last.values()
    ]
    halted = sum(state.halted is not None for state in successions.values())
    born = sum(state.booted for state in successions.values())
    metadata = {"successions": len(successions), "born": born, "halted": halted, "steps": markdown_table(rows)}
    context.add_output_metadata(metadata | posted(home.stores, context.log.warning))


@_job(
    "post_waiting_notices",
    READ,
    "Post the notices of deaths, successions and failed runs that the webhook did not take. Succeeds also if the "
    "webhook fails again: its own failed run would be one more notice. `bardo golem notices --post` posts those of "
    "deaths and successions.",
)
def notices_job(context: dg.OpExecutionContext, home: dg.ResourceParam[LazyStores]) -> None:
    """Post waiting notices, oldest first, until one is not taken."""
    metadata = posted(home.stores, context.log.warning)
    url = webhook_of(os.environ)
    try:
        if url is not None and not metadata["waiting"]:
            for run in unposted_runs(context.instance):
                post_run(context.instance, run, url)
    except OSError as error:
        context.log.warning(f"the webhook did not take the notice of a failed run: {error}")
    context.add_output_metadata(metadata | {"runs_waiting": len(unposted_runs(context.instance))})


@dg.op(pool=INTAKE, out=dg.Out(dg.Nothing))
@retried
def request_model_proposals(context: dg.OpExecutionContext, home: dg.ResourceParam[LazyStores]) -> None:
    """Request proposals for every living golem up to the daily cap and record the answers. No-op without a model."""
    settings = ModelSettings.of(os.environ)
    if settings is None:
        context.add_output_metadata({"asked": 0, "why": f"{MODEL} is not set"})
        return
    requests = propose_all(home.stores, settings, clock=home.now)
    fresh = [request.event.asked for request in requests if request.event is not None and not request.known]
    answers = [answer for answer in fresh if answer is not None]
    context.add_output_metadata(
        {
            "asked": len(answers),
            "operations": sum(len(answer.operations) for answer in answers),
            "cost_micros": sum(answer.cost_micros for answer in answers),
            "what_came": markdown_table([{"outcome": answer.outcome, "detail": answer.detail} for answer in answers]),
        }
    )


@dg.op(pool=INTAKE, ins={"proposed": dg.In(dg.Nothing)}, out=dg.Out(dg.Nothing))
@retried
def phrase_testaments(context: dg.OpExecutionContext, home: dg.ResourceParam[LazyStores]) -> None:
    """Phrase every unphrased testament if gateway.phrases_testaments is on, and record the answers."""
    settings, stores = ModelSettings.of(os.environ), home.stores
    if settings is None or not stores.policy.gateway.phrases_testaments:
        why = f"{MODEL} is not set" if settings is None else "gateway.phrases_testaments is off"
        context.add_output_metadata({"asked": 0, "why": why})
        return
    requests = phrase_all_testaments(stores, settings, clock=home.now)
    answers = [request.phrased for request in requests if not request.known]
    wordings = [wording for answer in answers for wording in answer.wordings]
    refused = [wording for wording in wordings if wording.fault is not None]
    context.add_output_metadata(
        {
            "asked": len(answers),
            "phrased": len(wordings) - len(refused),
            "refused": markdown_table([{"wording": wording.wording, "because": wording.fault} for wording in refused]),
            "cost_micros": sum(answer.cost_micros for answer in answers),
            "what_came": markdown_table([{"outcome": answer.outcome, "detail": answer.detail} for answer in answers]),
        }
    )


@dg.job(
    description="Request operations on the grimoire of every living golem from the language model in BARDO_MODEL, "
    "within the policy's caps, and record every answer, failures included. The curator judges the proposals when the "
    "golem's next cycle closes. `bardo propose --all` does the same. With gateway.phrases_testaments the job also "
    "phrases testaments, as `bardo golem phrase --all` does.",
)
def proposal_job() -> None:
    """Request proposals, then phrase testaments."""
    phrase_testaments(request_model_proposals())


@_job(
    "consolidate_episodes",
    INTAKE,
    "Consolidate the episodes that wait, of every living golem for which it is due: every four hours, and at once for "
    "imported and tagged episodes. Records nothing while BARDO_MEMORY_ENABLED is not true.",
)
def consolidation_job(context: dg.OpExecutionContext, home: dg.ResourceParam[LazyStores]) -> None:
    """Call memory_consolidate for each golem whose consolidation is due."""
    gate = MemoryGate.of(os.environ)
    if not gate.is_open:
        context.add_output_metadata({"golems": 0, "why": "the memory tools are closed"})
        return
    results = consolidate_due(home.stores, clock=home.now, ids=lambda: token_hex(16), gate=gate)
    context.add_output_metadata(
        {
            "golems": len(results),
            "insights_created": sum(result.insights_created for result in results.values()),
            "insights_reinforced": sum(result.insights_reinforced for result in results.values()),
            "episodes_decayed": sum(result.episodes_decayed for result in results.values()),
        }
    )


_LOG = dg.AssetSelection.assets(*LOG)

curator_job = dg.define_asset_job(
    "curator_job",
    selection=_LOG
    | dg.AssetSelection.groups("memory", "curation", "katabasis", "library", "marts")
    | dg.AssetSelection.checks(only_passed_bundles_are_published),
    description="Derive what newly closed cycles add: episodes, decisions, grimoires, playbooks, facts, votes, "
    "consensus; then build the marts, unless a published bundle fails its check. A second run finds nothing to do.",
)

death_job = dg.define_asset_job(
    "death_job",
    selection=_LOG | dg.AssetSelection.groups("memory", "curation", "katabasis", "legacy", "library", "marts"),
    description="Derive everything that follows a death: curate the last cycle, derive the death votes, the testament "
    "and the candidate bundle, judge every candidate in one Great Expectations run, publish those that passed, and "
    "build the marts if every published bundle passed. A second run finds nothing to do.",
)

dream_job = dg.define_asset_job(
    "dream_job",
    selection=_LOG | dg.AssetSelection.groups("memory", "curation", "dreams"),
    description="Derive episodes and decisions of closed cycles, then every dream that is due at the close of an idle "
    "cycle: replay, REM, counterfactuals, and hypotheses that are staged, confirmed or expired. A second run finds "
    "nothing to do.",
)

marts_job = dg.define_asset_job(
    "marts_job",
    selection=_LOG | dg.AssetSelection.groups("marts") | dg.AssetSelection.checks(only_passed_bundles_are_published),
    description="Build the marts, unless a published bundle fails its check. The curator and death jobs end with the "
    "same; the sensor `marts_behind` requests this job for what they did not build.",
)

maintenance_job, verification_job, drift_job = (
    dg.define_asset_job(f"{asset.key.path[-1]}_job", [asset], description=asset.descriptions_by_key[asset.key])
    for asset in (maintenance, verification, drift)
)

spool_job = dg.define_asset_job(
    "spool_job",
    selection=dg.AssetSelection.assets(QUARANTINE),
    description="Ingest every waiting file of the spool exactly once and count its new, repeated and refused records. "
    "A second run finds nothing to do. `bardo spool take` does the same.",
)


def pending_work(stores: DerivationContext) -> str | None:
    """Describe the work that a run of the curator would find; None without pending work."""
    curation, episodes = stores.projections.growing("curation"), stores.projections.growing("episodes")
    cycles = golems = 0
    for golem_id, closed in closed_through(stores).items():
        pending = closed - min(curated_through(stores, golem_id) or 0, episodes.done(golem_id) or 0)
        cycles, golems = cycles + max(pending, 0), golems + (pending > 0)
    if cycles:
        return f"{cycles} closed cycles of {golems} golems"
    if retractions := pending_retraction_count(stores):
        return f"{retractions} strikes, reorgs or withdrawals to apply"
    if curation.table.version > (checkpoint_of(stores, "votes").version or 0):
        return "decisions without their votes"
    return None
