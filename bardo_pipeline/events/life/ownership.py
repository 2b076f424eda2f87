"""Owners of golems and bundles, and what each owner may see of the log. Pure.

A golem belongs to the owner that its birth names. A bundle belongs to the owner of the golem that left it, a kit to the
owner who ordered it. A bundle of another home belongs to the owner who signed it, if that owner is known here; else it
belongs to no owner, and every owner may see it. Consent (`BundleConsented`) gives a bundle to another owner.
Source: X-12; canon 3; ADR 0065.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.life.events import ATTRIBUTE_OF, EVERY_GOLEM, LifeEvent

DECIDING_OWNERS = (
    "GolemBorn", "OwnerKeyRegistered", "CreditCommitted", "BundleJudged", "BundlePublished", "BundleImported",
    "KitOrdered", "BundleConsented",
)  # fmt: skip
"""Kinds of life events that `Ownership.of` reads."""

OF_OWNERS = {
    "OwnerKeyRegistered": ("owner_id",),
    "OwnerKeyRevoked": ("owner_id",),
    "CreditCommitted": ("owner_id",),
    "BundlePurchased": ("owner_id",),
    "KitOrdered": ("owner_id",),
    "BundleConsented": ("owner_id", "to_owner_id"),
    "NoteReceived": ("owner_id",),
    "PostsReceived": ("owner_id",),
}
"""Kinds of events of the whole home (golem `*`) that concern an owner -> the fields that name the owner."""


@dataclass(frozen=True)
class Ownership:
    """The owners of a home at one version of its life events.

    Parameters
    ----------
    golems : golem -> owner
    bundles : bundle hash -> owner, None for a bundle that belongs to no owner of this home
    given : (owner, bundle hash) of each consent of an owner to give a bundle to another owner
    owners : all owners: of golems, and those with a key or credit
    """

    golems: Mapping[str, str]
    bundles: Mapping[str, str | None]
    given: frozenset[tuple[str, str]]
    owners: frozenset[str]

    @classmethod
    def of(cls, events: pa.Table) -> Self:
        """Read life events (LIFE_SCHEMA); events of other kinds than DECIDING_OWNERS are ignored."""
        golems: dict[str, str] = {}
        for golem_id, born in _payloads(events, "GolemBorn"):  # of two births the earlier counts
            golems.setdefault(golem_id, born["owner_id"])
        founders = {row["owner_id"] for kind in ("OwnerKeyRegistered", "CreditCommitted")
                    for _, row in _payloads(events, kind)}  # fmt: skip
        owners = frozenset({*golems.values(), *founders})
        bundles: dict[str, str | None] = {}
        for golem_id, row in _payloads(events, "BundleImported"):
            signer = row["owner_id"] if row["owner_id"] in owners else None
            bundles[row["bundle_hash"]] = signer or golems.get(golem_id)
        for kind in ("BundleJudged", "BundlePublished"):
            left = ((golem_id, row["bundle_hash"]) for golem_id, row in _payloads(events, kind) if golem_id in golems)
            bundles |= {bundle_hash: golems[golem_id] for golem_id, bundle_hash in left}
        bundles |= {row["bundle_hash"]: row["owner_id"] for _, row in _payloads(events, "KitOrdered")}
        return cls(golems, bundles, given_bundles(events), owners)

    def golems_of(self, owner_id: str) -> frozenset[str]:
        """Return the golems of an owner."""
        return frozenset(golem_id for golem_id, owner in self.golems.items() if owner == owner_id)

    def sees_bundle(self, owner_id: str, bundle_hash: str) -> bool:
        """Whether an owner may see a bundle: its own, one of no owner, or one given to it."""
        is_own = bundle_hash in self.bundles and self.bundles[bundle_hash] in (owner_id, None)
        return is_own or (owner_id, bundle_hash) in self.given


def given_bundles(events: pa.Table) -> frozenset[tuple[str, str]]:
    """Return (receiving owner, bundle hash) of each consent among these life events (LIFE_SCHEMA)."""
    return frozenset((row["to_owner_id"], row["bundle_hash"]) for _, row in _payloads(events, "BundleConsented"))


def visible_events(events: pa.Table, owner_id: str, golem_ids: pa.Array) -> pa.Table:
    """Return the life events that an owner may see: of its golems, of itself, and those of the home itself."""
    visible = pc.equal(events["golem_id"], EVERY_GOLEM)
    for kind, fields in OF_OWNERS.items():
        payload = events[ATTRIBUTE_OF[kind]]
        names = [pc.fill_null(pc.equal(pc.struct_field(payload, name), owner_id), False) for name in fields]
        is_named = names[0] if len(names) == 1 else pc.or_(*names)
        visible = pc.and_(visible, pc.or_(payload.is_null(), is_named))
    return events.filter(pc.or_(visible, pc.is_in(events["golem_id"], value_set=golem_ids)))


def is_of_owner(event: LifeEvent, owner_id: str, golem_ids: frozenset[str]) -> bool:
    """Whether an owner may record an event: about itself, or about one of these golems, its own."""
    if event.golem_id == EVERY_GOLEM:
        return getattr(event.payload, "owner_id", None) == owner_id
    return event.golem_id in golem_ids and (event.born is None or event.born.owner_id == owner_id)


def _payloads(events: pa.Table, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield golem and payload of each event of a kind, by event time."""
    is_kind = pc.equal(events["kind"], kind)
    if not pc.any(is_kind, min_count=0).as_py():
        return
    rows = events.select(["golem_id", "observed_at", ATTRIBUTE_OF[kind]]).filter(is_kind).sort_by("observed_at")
    yield from zip(rows["golem_id"].to_pylist(), rows[ATTRIBUTE_OF[kind]].to_pylist(), strict=True)
