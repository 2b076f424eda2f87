"""Assets of katabasis: anonymous votes, their private causes, and the consensus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import dagster as dg

from assets.log import LIFE_EVENTS
from assets.metadata import Seen, of_table, projected, projection
from assets.resources import LazyStores
from bardo_pipeline.derivation.katabasis.derive_consensus import derive_consensus
from bardo_pipeline.derivation.katabasis.derive_votes import derive_votes
from bardo_pipeline.storage.delta.table_digest import Written

_SPECS = [
    dg.AssetSpec(
        "votes",
        deps=["curation", "grimoire", LIFE_EVENTS],
        description="One row per anonymous vote on a proposition. Key vote_id. Confidence in parts per million, weight "
        "in tenths: the vote of a living golem weighs 1.0, of a dying one 2.5. Appends the votes of newly curated "
        "cycles.",
        **of_table("votes", "katabasis"),
    ),
    dg.AssetSpec(
        "vote_causes",
        deps=["curation", "grimoire", LIFE_EVENTS],
        description="One row per vote: the golem and owner that cast it, the cycle and the entry. Key vote_id. Private "
        "to the owner: the table never leaves this home, because it would identify the voters. Appends.",
        **of_table("vote_causes", "katabasis"),
    ),
]


@dg.multi_asset(specs=_SPECS, name="vote")
def vote(home: dg.ResourceParam[LazyStores]) -> Iterator[dg.MaterializeResult]:
    """Derive the votes of newly curated cycles and the death votes of newly dead golems."""
    stores = home.stores
    seen = Seen.before(stores, ["curation", "grimoire"])
    written = derive_votes(stores)
    for spec in _SPECS:
        yield projected(stores, spec.key.to_user_string(), seen, written)


@projection("consensus", "katabasis", deps=["votes", "vote_causes", LIFE_EVENTS])
def consensus(home: LazyStores) -> Iterable[Written]:
    """One row per proposition with a valid vote: the weighted belief of its voters.

    Key proposition_id. Means in parts per million, variance in (1e-6)^2, weights in tenths; votes_hash identifies the
    counted votes. Recounts the propositions with new votes; the result depends on the set of votes, not on their order.
    """
    return derive_consensus(home.stores)
