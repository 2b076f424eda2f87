"""Queries on published bundles: the current bundle of a golem, stale bundles, invalid publications."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.bundle_store import read_bundle_folder
from bardo_pipeline.errors import BundleError


def published_bundles(context: DerivationContext, golem_ids: Collection[str] | None = None) -> dict[str, str]:
    """Return golem -> hash of its current published bundle, for all or the given golems.

    A retraction may lead to several bundles of one golem. The current one equals the golem's candidate, or is the last
    published one while the candidate waits for its verdict.
    """
    published: dict[str, list[str]] = {}
    events = context.life("BundlePublished", golem_ids)
    events = events.select(["golem_id", "observed_at", "event_id", "published"])
    events = events.sort_by([("observed_at", "ascending"), ("event_id", "ascending")])
    hashes_in_order = pc.struct_field(events["published"].combine_chunks(), "bundle_hash").to_pylist()
    for golem_id, bundle_hash in zip(events["golem_id"].to_pylist(), hashes_in_order, strict=True):
        published.setdefault(golem_id, []).append(bundle_hash)
    republished = [golem_id for golem_id, hashes in published.items() if len(hashes) > 1]
    candidates = _candidate_hashes(context, republished)
    return {g: candidates[g] if candidates.get(g) in hashes else hashes[-1] for g, hashes in published.items()}


def bundles_published_by(context: DerivationContext) -> set[str]:
    """Return the hashes of the bundles that this derivation published."""
    hashes, derivation_ids = (
        event_field(context, "BundlePublished", "published", name) for name in ("bundle_hash", "derivation_id")
    )
    return set(hashes.filter(pc.equal(derivation_ids, context.derivation_id)).to_pylist())


def stale_bundles(context: DerivationContext) -> list[tuple[str, str]]:
    """Return (golem, hash) of published bundles made before a retraction of their sources, by golem.

    They keep their folders; heirs inherit the newer bundle.
    """
    events = context.life("BundlePublished", context.left_out().golem_ids).select(["golem_id", "published"]).to_pylist()
    published = [(e["golem_id"], e["published"]["bundle_hash"]) for e in events]
    candidates = _candidate_hashes(context, sorted({golem_id for golem_id, _ in published}))
    return sorted(
        (golem_id, bundle_hash) for golem_id, bundle_hash in published if candidates.get(golem_id) != bundle_hash
    )


def invalid_publications(context: DerivationContext) -> list[str]:
    """Return the hashes of published bundles that lack a passing verdict or do not match their hash."""
    judged, is_passed = (event_field(context, "BundleJudged", "judged", name) for name in ("bundle_hash", "passed"))
    passed, invalid = set(judged.filter(is_passed).to_pylist()), []
    for bundle_hash in sorted(event_field(context, "BundlePublished", "published", "bundle_hash").to_pylist()):
        try:
            is_intact = read_bundle_folder(context.home.bundles / bundle_hash).bundle_hash == bundle_hash
        except BundleError:
            is_intact = False
        if bundle_hash not in passed or not is_intact:
            invalid.append(bundle_hash)
    return invalid


def _candidate_hashes(context: DerivationContext, golem_ids: Sequence[str]) -> dict[str, str]:
    """Golem -> hash of its candidate bundle."""
    if not golem_ids:
        return {}
    rows = context.projections.growing("candidates").read(["golem_id", "bundle_hash"], golems=golem_ids)
    return dict(zip(rows["golem_id"].to_pylist(), rows["bundle_hash"].to_pylist(), strict=True))


def event_field(context: DerivationContext, kind: str, attribute: str, field: str) -> pa.Array:
    """Return one field of the content of all life events of a kind."""
    return pc.struct_field(context.life(kind)[attribute].combine_chunks(), field)
