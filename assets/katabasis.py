"""Katabasis: what golems believe together: anonymous votes, the owner's private causes of them, and the consensus."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from assets.log import LIFE_EVENTS
from assets.metadata import Seen, of_table, projected
from assets.resources import LazyStores
from bardo_pipeline.derivation.katabasis.vote_and_consensus import derive_consensus, derive_votes

_SPECS = [
    dg.AssetSpec(
        "votes",
        deps=["curation", "grimoire", LIFE_EVENTS],
        description="One row per vote on a proposition, without the voter's name. Key vote_id. Confidence in parts per "
        "million, weight in tenths: a living golem's vote weighs 1.0, a dying one's 2.5. Appends the votes of cycles "
        "that were curated since.",
        **of_table("votes", "katabasis"),
    ),
    dg.AssetSpec(
        "vote_causes",
        deps=["curation", "grimoire", LIFE_EVENTS],
        description="One row per vote: which golem of which owner cast it, in which cycle, because of which entry. Key "
        "vote_id. Private to the owner: it stays in this home, or the votes would not be anonymous. Appends.",
        **of_table("vote_causes", "katabasis"),
    ),
]


@dg.multi_asset(specs=_SPECS, name="vote")
def vote(home: dg.ResourceParam[LazyStores]) -> Iterator[dg.MaterializeResult]:
    """Cast the votes of newly curated cycles and the last votes of the newly dead."""
    stores = home.stores
    seen = Seen.before(stores, ["curation", "grimoire"])
    written = derive_votes(stores)
    for spec in _SPECS:
        yield projected(stores, spec.key.to_user_string(), seen, written)


@dg.asset(deps=["votes", "vote_causes", LIFE_EVENTS], **of_table("consensus", "katabasis"))
def consensus(home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """One row per proposition with a valid vote: what the voters together believe of it.

    Key proposition_id. Means in parts per million, variance in (1e-6)^2, weights in tenths; votes_hash says which votes
    were counted. Counts again the propositions that got votes since: a function of the set of votes, in any order.
    """
    stores = home.stores
    seen = Seen.before(stores, ["votes", "vote_causes"])
    written = derive_consensus(stores)
    return projected(stores, "consensus", seen, written)
