"""The verification job: walk the whole log as it lies on disk, and fail where it is not what was recorded."""

from typing import Any

import dagster as dg

from assets.metadata import markdown_table
from assets.resources import LazyStores
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.verification.verify import verify


@dg.op(out=dg.Out(dg.Nothing))
def walk_everything(context: dg.OpExecutionContext, home: dg.ResourceParam[LazyStores]) -> None:
    """Verify chains, signatures, tables, journals and bundles. Fails where something is broken, and says what."""
    report = verify(Home.open(home.root))
    breaks = [
        {"kind": broken.kind, "count": report.counts[broken.kind], "first": broken.sentence()}
        for broken in report.breaks
    ]
    said: dict[str, Any] = {
        "digest": report.digest,
        **{name.replace(" ", "_"): value for name, value in report.facts.items()},
        "breaks": markdown_table(breaks),
        "files": list(report.files),
        "gaps": markdown_table([gap._asdict() for gap in report.gaps]),
    }
    if not report.clean:
        cure = "see `bardo verify`, and put back from a backup what was altered"
        raise dg.Failure(f"the log is not what was recorded: {breaks[0]['first']}: {cure}", metadata=said)
    context.add_output_metadata(said)


@dg.job(
    executor_def=dg.in_process_executor,
    description="Walk the whole log as it lies on disk: chains, signatures, commits, files, journals, bundles; fails "
    "and names what is broken. `bardo verify` does the same.",
)
def verification_job() -> None:
    """One step: verify."""
    walk_everything()
