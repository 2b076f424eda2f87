"""The drift job: does the model still give the vectors that it gave? Vectors wait while it does not."""

from dataclasses import asdict
from typing import Any

import dagster as dg

from assets.resources import LazyStores
from bardo_pipeline.derivation.memory.embed_texts import check_drift, suspects


@dg.op(out=dg.Out(dg.Nothing))
def embed_the_references(context: dg.OpExecutionContext, home: dg.ResourceParam[LazyStores]) -> None:
    """Embed the reference texts again, compare, record the verdict. Fails where it is critical, and says why."""
    stores = home.stores
    found = check_drift(stores, now=home.now()).found
    said: dict[str, Any] = asdict(found) | {
        "says": "; ".join(found.says) or "as on record",
        "embedder": str(stores.embedder.identity),
    }
    if found.verdict == "critical":
        cure = "put the model back as it was and run this again, or run `bardo reembed`"
        why = f"{said['says']}; {suspects(stores):,} vectors were made since the last sound check: {cure}"
        raise dg.Failure(f"the model has drifted: {why}", metadata=said)
    context.add_output_metadata(said)


@dg.job(
    executor_def=dg.in_process_executor,
    description="Embed the twenty reference texts again and compare them with their vectors on record: distance, "
    "neighbours, variance of lengths. Records the verdict; fails where it is critical, and no vectors are made until "
    "that is mended. `bardo drift --check` does the same.",
)
def drift_job() -> None:
    """One step: check."""
    embed_the_references()
