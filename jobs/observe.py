"""The observe job: declares silent golems dead."""

from dataclasses import asdict

import dagster as dg

from assets.metadata import markdown_table
from assets.resources import LazyStores
from bardo_pipeline.derivation.death.silence import declare_silent_golems


@dg.op(out=dg.Out(dg.Nothing))
def declare_silent_dead(context: dg.OpExecutionContext, home: dg.ResourceParam[LazyStores]) -> None:
    """Drain the journals of ended writers, find silent golems, and record their deaths."""
    golems = declare_silent_golems(home.stores, now=home.now())
    rows = [{name: str(value) for name, value in asdict(golem).items()} for golem in golems]
    declared = sum(golem.outcome == "declared" for golem in golems)
    context.add_output_metadata({"silent": len(golems), "declared": declared, "found": markdown_table(rows)})


@dg.job(
    executor_def=dg.in_process_executor,
    description="Declare dead every golem without a tick for longer than dying.silence_hours, by the clock of its "
    "market or the wall clock (dying.silence_clock). The death is dated to its last record; the sensor "
    "`deaths_recorded` then requests the death job. Golems with a running writer are skipped. `bardo golem observe` "
    "does the same.",
)
def observe_job() -> None:
    """Declare silent golems dead, in one step."""
    declare_silent_dead()
