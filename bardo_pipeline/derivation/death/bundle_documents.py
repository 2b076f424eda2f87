"""Documents of bundles: the bundles of a home, and the content of one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import orjson

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.testament_phrasing import phrased_testament
from bardo_pipeline.derivation.legacy.bundle_store import bundle_files, bundle_folders, find_bundle, published_bundles
from bardo_pipeline.errors import BundleError
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.inheritance import bundle_files as parts
from bardo_pipeline.inheritance.bundle_inspection import inspected
from bardo_pipeline.inheritance.bundle_signature import signature_fault, signature_of
from bardo_pipeline.inheritance.testament import CATEGORIES

_BARS = 10


def bundle_rows(context: DerivationContext) -> list[dict[str, Any]]:
    """Return a row for each bundle of the view, by hash; `remark` states what is wrong with it or why it is here."""
    rows, published = [], published_bundles(context)
    for path in bundle_folders(context):
        row: dict[str, Any] = {"bundle": path.name[:16], "golem": "?", "generation": None, "entries": None}
        row |= {"signed_by": None, "remark": ""}
        try:
            bundle = inspected(bundle_files(path), context.policy.inheritance)
        except BundleError as error:
            rows.append(row | {"remark": f"unreadable: {error}"})
            continue
        row |= {"golem": bundle.golem_id, "generation": bundle.manifest["generation"]}
        row |= {"entries": bundle.entries().num_rows, "signed_by": _signer(bundle, "{owner_id}")}
        is_current = published.get(bundle.golem_id) == bundle.bundle_hash
        rows.append(row | {"remark": "" if is_current else "superseded or imported"})
    return rows


def bundle_document(context: DerivationContext, target: str) -> dict[str, Any]:
    """Return the content of a bundle of this home. Raises as `find_bundle`, and BundleError for a damaged one."""
    files = bundle_files(context.home.bundles / find_bundle(context, target))
    return content_of(inspected(files, context.policy.inheritance), context)


def content_of(bundle: parts.Bundle, context: DerivationContext | None) -> dict[str, Any]:
    """Return the content of a bundle: counts, the page of its testament, and its testament `in_words` of a model.

    Parameters
    ----------
    context : home in which a model's words are recorded; None without one
    """
    manifest, entries, testament = bundle.manifest, bundle.entries(), orjson.loads(bundle.files[parts.TESTAMENT])
    bands = (min(int(ppm / PPM * _BARS), _BARS - 1) for ppm in entries["confidence_ppm"].to_pylist())
    statements = {name: [item["statement"] for item in testament[name]] for name in CATEGORIES}
    words = None if context is None else phrased_testament(context, bundle.golem_id, statements)
    return {
        "bundle": bundle.bundle_hash,
        "golem": bundle.golem_id,
        "generation": manifest["generation"],
        "lineage": manifest["lineage_id"],
        "died_at": manifest["died_at"],
        "made_by": f"derivation {manifest['derivation_id']}, policy {manifest['policy_hash']}, "
        f"records up to tick {manifest['source_watermark']}",
        "signed_by": _signer(bundle, "{owner_id} with key {key_id}"),
        "entries": entries.num_rows,
        "anti_knowledge": sum(entries["is_anti_knowledge"].to_pylist()),
        "bloodstains": sum(entries["is_bloodstain"].to_pylist()),
        "episodes": len(bundle.rows(parts.EPISODES)),
        "links": len(bundle.rows(parts.LINKS)) if parts.LINKS in bundle.files else 0,
        "procedures": len(bundle.rows(parts.PROCEDURES)) if parts.PROCEDURES in bundle.files else 0,
        "domains": dict(Counter(entries["domain"].to_pylist())),
        "confidence": dict(sorted(Counter(bands).items())),
        "testament": bundle.files[parts.TESTAMENT_PAGE].decode(),
        "in_words": None if words is None else words.facts,
    }


def _signer(bundle: parts.Bundle, form: str) -> str | None:
    """Return a valid signature in this form, the fault of an invalid one, None without a signature."""
    if parts.SIGNATURE not in bundle.files:
        return None
    signature, fault = signature_of(bundle), signature_fault(bundle)
    if signature is None or fault is not None:
        return f"damaged: {fault}"
    return form.format_map(signature)
