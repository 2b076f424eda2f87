"""The rebuild job: prove that every projection follows from the log alone, to the last row."""

from dataclasses import asdict

import dagster as dg

from assets.metadata import markdown_table
from assets.resources import LazyStores
from bardo_pipeline.derivation.versions.rebuild import rebuild
from bardo_pipeline.errors import FingerprintMismatch


@dg.op(out=dg.Out(dg.Nothing))
def derive_again_and_compare(context: dg.OpExecutionContext, home: dg.ResourceParam[LazyStores]) -> None:
    """Derive every table beside the one in force and compare. Raises FingerprintMismatch on a difference."""
    compared = rebuild(home.stores, now=home.now(), tell=context.log.info)
    context.add_output_metadata({"compared": markdown_table([asdict(c) | {"equal": c.equal} for c in compared])})
    different = [c.table for c in compared if not c.equal]
    if different:
        raise FingerprintMismatch(
            f"derived again from the log, {', '.join(different)} came out different: see the run's table"
        )


@dg.job(
    executor_def=dg.in_process_executor,
    description="Derive everything again beside what is in force and compare fingerprints; fails on a difference. "
    "`bardo rebuild` does the same, also as of an earlier version or moment.",
)
def rebuild_job() -> None:
    """One step: rebuild and compare."""
    derive_again_and_compare()
