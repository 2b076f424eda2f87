"""Queries on published bundles: the current bundle of a golem, stale bundles, invalid publications."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.bundle_store import read_bundle_folder
from bardo_pipeline.errors import BundleError


def published_bundles(context: DerivationContext, golem_ids: Collection[str] | None = None) -> dict[str, str]:
    """Golem to the hash of the bundle it left, for all golems of which one was published, or those among these.

    Of several it is the one that would be made now: a bundle is published anew where something that it rested on is
    left out since. Where that one waits for its verdict, the last of those that are out.
    """
    published: dict[str, list[str]] = {}
    events = context.life("BundlePublished", golem_ids)
    events = events.select(["golem_id", "observed_at", "event_id", "published"])
    events = events.sort_by([("observed_at", "ascending"), ("event_id", "ascending")])
    left = pc.struct_field(events["published"].combine_chunks(), "bundle_hash").to_pylist()
    for golem_id, bundle_hash in zip(events["golem_id"].to_pylist(), left, strict=True):
        published.setdefault(golem_id, []).append(bundle_hash)
    several = [golem_id for golem_id, hashes in published.items() if len(hashes) > 1]
    now = _candidate_hashes(context, several)
    return {g: now[g] if now.get(g) in hashes else hashes[-1] for g, hashes in published.items()}


def bundles_published_by(context: DerivationContext) -> set[str]:
    """Hashes of the bundles that this derivation published."""
    out, by = (event_field(context, "BundlePublished", "published", name) for name in ("bundle_hash", "derivation_id"))
    return set(out.filter(pc.equal(by, context.derivation_id)).to_pylist())


def stale_bundles(context: DerivationContext) -> list[tuple[str, str]]:
    """Published bundles that were made before something they may rest on was left out: golem and hash, by golem.

    They keep their bytes and their place; whoever inherits now gets the one that was made since.
    """
    events = context.life("BundlePublished", context.left_out().golem_ids).select(["golem_id", "published"]).to_pylist()
    out = [(e["golem_id"], e["published"]["bundle_hash"]) for e in events]
    now = _candidate_hashes(context, sorted({golem_id for golem_id, _ in out}))
    return sorted((golem_id, bundle_hash) for golem_id, bundle_hash in out if now.get(golem_id) != bundle_hash)


def invalid_publications(context: DerivationContext) -> list[str]:
    """Hashes of published bundles without a passing verdict, or whose bytes are not what their hash says."""
    judged, well = (event_field(context, "BundleJudged", "judged", name) for name in ("bundle_hash", "passed"))
    passed, wrong = set(judged.filter(well).to_pylist()), []
    for bundle_hash in sorted(event_field(context, "BundlePublished", "published", "bundle_hash").to_pylist()):
        try:
            whole = read_bundle_folder(context.home.bundles / bundle_hash).bundle_hash == bundle_hash
        except BundleError:
            whole = False
        if bundle_hash not in passed or not whole:
            wrong.append(bundle_hash)
    return wrong


def _candidate_hashes(context: DerivationContext, golem_ids: Sequence[str]) -> dict[str, str]:
    """Golem to the hash of the bundle that it would leave now."""
    if not golem_ids:
        return {}
    rows = context.projections.growing("candidates").read(["golem_id", "bundle_hash"], golems=golem_ids)
    return dict(zip(rows["golem_id"].to_pylist(), rows["bundle_hash"].to_pylist(), strict=True))


def event_field(context: DerivationContext, kind: str, attribute: str, field: str) -> pa.Array:
    """One field of what these events say, an event each."""
    return pc.struct_field(context.life(kind)[attribute].combine_chunks(), field)
