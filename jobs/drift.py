"""The drift job: compares the embedding model with its recorded reference vectors. Critical drift stops embedding."""

from dataclasses import asdict
from typing import Any

import dagster as dg

from assets.resources import LazyStores
from bardo_pipeline.derivation.memory.embed_texts import check_drift, suspect_count


@dg.op(out=dg.Out(dg.Nothing))
def embed_the_references(context: dg.OpExecutionContext, home: dg.ResourceParam[LazyStores]) -> None:
    """Embed the reference texts, compare, and record the verdict. Raises dg.Failure if it is critical."""
    stores = home.stores
    drift = check_drift(stores, now=home.now()).drift
    metadata: dict[str, Any] = asdict(drift) | {
        "says": "; ".join(drift.says) or "as on record",
        "embedder": str(stores.embedder.identity),
    }
    if drift.verdict == "critical":
        cure = "restore the model and run this job again, or run `bardo reembed`"
        why = f"{metadata['says']}; {suspect_count(stores):,} vectors were made since the last passed check: {cure}"
        raise dg.Failure(f"the model has drifted: {why}", metadata=metadata)
    context.add_output_metadata(metadata)


@dg.job(
    executor_def=dg.in_process_executor,
    description="Embed the twenty reference texts and compare the vectors with the recorded ones: distance, "
    "neighbours, variance of lengths. Records the verdict and fails if it is critical; no vectors are made until the "
    "model is restored. `bardo drift --check` does the same.",
)
def drift_job() -> None:
    """One step: check."""
    embed_the_references()
