"""The verification job: verifies the whole home on disk and fails on the first kind of damage."""

from typing import Any

import dagster as dg

from assets.metadata import markdown_table
from assets.resources import LazyStores
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.verification.verify import verify


@dg.op(out=dg.Out(dg.Nothing))
def verify_home(context: dg.OpExecutionContext, home: dg.ResourceParam[LazyStores]) -> None:
    """Verify chains, signatures, tables, journals and bundles. Raises dg.Failure with the first break."""
    report = verify(Home.open(home.root))
    breaks = [
        {"kind": broken.kind, "count": report.counts[broken.kind], "first": broken.sentence()}
        for broken in report.breaks
    ]
    metadata: dict[str, Any] = {
        "digest": report.digest,
        **{name.replace(" ", "_"): value for name, value in report.facts.items()},
        "breaks": markdown_table(breaks),
        "files": list(report.files),
        "gaps": markdown_table([gap._asdict() for gap in report.gaps]),
    }
    if not report.clean:
        cure = "run `bardo verify`, and restore the altered files from a backup"
        raise dg.Failure(f"the log differs from what was recorded: {breaks[0]['first']}: {cure}", metadata=metadata)
    context.add_output_metadata(metadata)


@dg.job(
    executor_def=dg.in_process_executor,
    description="Verify chains, signatures, commits, files, journals and bundles on disk; fails and names the damage. "
    "`bardo verify` does the same.",
)
def verification_job() -> None:
    """Verify, in one step."""
    verify_home()
