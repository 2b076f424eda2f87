"""The rebuild job: proves that every projection can be derived from the log alone."""

from dataclasses import asdict

import dagster as dg

from assets.metadata import markdown_table
from assets.resources import LazyStores
from bardo_pipeline.derivation.versions.rebuild import rebuild
from bardo_pipeline.errors import FingerprintMismatch


@dg.op(out=dg.Out(dg.Nothing))
def rebuild_and_compare(context: dg.OpExecutionContext, home: dg.ResourceParam[LazyStores]) -> None:
    """Derive every table again and compare fingerprints. Raises FingerprintMismatch on a difference."""
    compared = rebuild(home.stores, now=home.now(), tell=context.log.info)
    context.add_output_metadata({"compared": markdown_table([asdict(c) | {"equal": c.equal} for c in compared])})
    different = [c.table for c in compared if not c.equal]
    if different:
        raise FingerprintMismatch(
            f"rebuilt tables differ from the current ones: {', '.join(different)}. See the run's table"
        )


@dg.job(
    executor_def=dg.in_process_executor,
    description="Derive every table again from the log and compare fingerprints with the current tables; fails on a "
    "difference. `bardo rebuild` does the same, also as of an earlier version or time.",
)
def rebuild_job() -> None:
    """Rebuild and compare, in one step."""
    rebuild_and_compare()
