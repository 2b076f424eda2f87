"""The succession job: what is due of successions is done."""

import dagster as dg

from assets.metadata import markdown_table
from assets.resources import LazyStores
from assets.thanatopsis import posted
from bardo_pipeline.derivation.succession.succeed import work_off


@dg.op(out=dg.Out(dg.Nothing))
def do_what_is_due(context: dg.OpExecutionContext, home: dg.ResourceParam[LazyStores]) -> None:
    """Try every step that is due, and record what came of it; owners are told of what halted (BARDO_WEBHOOK)."""
    done = work_off(home.stores, now=home.now())
    rows = [
        {"dead": golem, "step": one.step, "outcome": one.outcome, "attempt": one.attempt, "why": one.why}
        for golem, standing in done.items()
        for one in standing.last.values()
    ]
    halted = sum(standing.halted is not None for standing in done.values())
    born = sum(standing.booted for standing in done.values())
    metadata = {"successions": len(done), "born": born, "halted": halted, "steps": markdown_table(rows)}
    context.add_output_metadata(metadata | posted(home.stores, context.log.warning))


@dg.job(
    executor_def=dg.in_process_executor,
    description="Go on with every succession of which something is due: a death whose golem's configuration wants an "
    "heir (succession.auto), a place that could not be made before (after 30, 120 and 480 seconds, then hourly), an "
    "identity that was refused (at the heir's next heartbeat). `bardo golem due` does the same. Who is born waits for "
    "the next run of its market.",
)
def succession_job() -> None:
    """One step: do what is due."""
    do_what_is_due()
