"""The observe job: golems that fell silent are declared dead."""

from dataclasses import asdict

import dagster as dg

from assets.metadata import markdown_table
from assets.resources import LazyStores
from bardo_pipeline.derivation.death.silence import declare_silent_golems


@dg.op(out=dg.Out(dg.Nothing))
def declare_the_silent_dead(context: dg.OpExecutionContext, home: dg.ResourceParam[LazyStores]) -> None:
    """Take what dead writers had acknowledged, look for silent golems, and record their deaths."""
    found = declare_silent_golems(home.stores, now=home.now())
    rows = [{name: str(value) for name, value in asdict(one).items()} for one in found]
    declared = sum(one.outcome == "declared" for one in found)
    context.add_output_metadata({"silent": len(found), "declared": declared, "found": markdown_table(rows)})


@dg.job(
    executor_def=dg.in_process_executor,
    description="Declare dead every golem that left no tick for longer than the policy bears (dying.silence_hours), by "
    "its market's clock or the wall's (dying.silence_clock). Its last record is its end; `deaths_recorded` then asks "
    "for the death job. One whose writer still runs is left to it. `bardo golem observe` does the same.",
)
def observe_job() -> None:
    """One step: look and declare."""
    declare_the_silent_dead()
