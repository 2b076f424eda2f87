"""The succession job: performs due succession steps."""

import dagster as dg

from assets.metadata import markdown_table
from assets.resources import LazyStores
from assets.thanatopsis import posted
from bardo_pipeline.derivation.succession.succeed import run_due_successions


@dg.op(out=dg.Out(dg.Nothing))
def perform_due_steps(context: dg.OpExecutionContext, home: dg.ResourceParam[LazyStores]) -> None:
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


@dg.job(
    executor_def=dg.in_process_executor,
    description="Continue every succession with a due step: a death whose configuration has succession.auto, a place "
    "whose provisioning failed (retried after 30, 120 and 480 seconds, then hourly), a refused identity (retried at "
    "the heir's next heartbeat). `bardo golem due` does the same. A newborn heir starts with the next run of its "
    "market.",
)
def succession_job() -> None:
    """Perform due steps, in one step."""
    perform_due_steps()
