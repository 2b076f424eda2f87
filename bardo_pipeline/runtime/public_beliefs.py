"""PublicBeliefs: what the golems of a run hold of Lethe, between chunks: collective beliefs and pheromones.

The consensus of the votes that a golem has received by now gives priors: the surest propositions about its market in
the regime of now, within its budget of tokens. Pheromones of its market are threats. A golem receives posts in the
first chunk that begins after their receipt, so a repeated run gives the same records.
Source: KAT (Retrieval in Heartbeat); KAT-7, KAT-11; MEM ("Opt-in model"); canon 4, 22, 23, 49.
"""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa

from bardo_pipeline.clock import micros_of
from bardo_pipeline.derivation.configuration import in_force_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.received_posts import HeardPosts, posts_received
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.heartbeat.threats import hear_threat
from bardo_pipeline.katabasis.priors import PRIOR_SCHEMA
from bardo_pipeline.katabasis.public_consensus import beliefs_as_priors, held_beliefs, public_consensus
from bardo_pipeline.katabasis.public_posts import Pheromone, Post
from bardo_pipeline.market.market import Market
from bardo_pipeline.runtime.in_memory_fleet import Cohort

_COUNTS_MAX = 8
"""Earlier counts that are kept; golems that received the same events share one."""

_Event = tuple[str, str]
"""Owner and content hash of received posts."""


class PublicBeliefs:
    """The public posts of a home, for the golems of one run.

    Parameters
    ----------
    market : of the run; beliefs and pheromones about other markets do not reach its golems
    """

    def __init__(self, context: DerivationContext, market: Market) -> None:
        self._context, self._market = context, (market.chain, market.protocol, market.pair)
        self._version = -1
        self._heard: dict[_Event, HeardPosts] = {}
        self._smelled: dict[str, frozenset[_Event]] = {}
        self._counted: dict[frozenset[_Event], tuple[list[Post], pa.Table]] = {}

    def forget(self, golem_ids: set[str]) -> None:
        """Let golems smell all pheromones again, for example after a retraction."""
        self._smelled = {golem_id: names for golem_id, names in self._smelled.items() if golem_id not in golem_ids}

    def tell(self, cohort: Cohort, now: datetime, regime: int) -> None:
        """Give each golem of a fleet the priors and threats of the posts that it received before a moment.

        regime: position in REGIMES of the market at that moment
        """
        self._read()
        if not self._heard:
            return
        policy, golem_ids = self._context.policy, cohort.fleet.golem_ids
        rules, priors = in_force_of(self._context, golem_ids), [PRIOR_SCHEMA.empty_table()]
        ranked: dict[frozenset[_Event], pa.Table] = {}
        for i, golem_id in enumerate(golem_ids):
            names = frozenset(
                name for name, heard in self._heard.items() if golem_id in heard.golem_ids and heard.at < now
            )
            self._smell(cohort, i, golem_id, names)
            if names not in ranked:
                ranked[names] = beliefs_as_priors(*self._known(names), self._market, REGIMES[regime], now, policy)
            injection = rules[golem_id].configuration.styx.injection
            priors.append(
                held_beliefs(
                    ranked[names],
                    golem_id,
                    cohort.propositions_of(golem_id),
                    confidence_min=injection.min_confidence,
                    tokens_max=injection.max_tokens,
                    top=policy.clade.lethe_top,
                )
            )
        cohort.believe(pa.concat_tables(priors).combine_chunks())

    def _read(self) -> None:
        """Read new posts if there are new life events."""
        if self._context.log.life_version != self._version:
            self._version = self._context.log.life_version
            for heard in posts_received(self._context, known=self._heard):
                self._heard[heard.owner_id, heard.content_hash] = heard

    def _known(self, names: frozenset[_Event]) -> tuple[list[Post], pa.Table]:
        """Return the posts of events and their consensus; those of the last calls are kept."""
        if names not in self._counted:
            posts = [post for name in sorted(names) for post in self._heard[name].posts]
            self._counted = {
                **dict(list(self._counted.items())[-_COUNTS_MAX:]),
                names: (posts, public_consensus(posts, self._context.policy)),
            }
        return self._counted[names]

    def _smell(self, cohort: Cohort, i: int, golem_id: str, names: frozenset[_Event]) -> None:
        """Let golem i sense the threats at its market in new events; none counts more than a sibling's warning."""
        before, self._smelled[golem_id] = self._smelled.get(golem_id, frozenset()), names
        for facts in (post.facts for name in sorted(names - before) for post in self._heard[name].posts):
            if not isinstance(facts, Pheromone) or facts.sort != "threat":
                continue
            if (facts.chain, facts.protocol, facts.pair) == self._market:
                intensity = min(facts.intensity_ppm / PPM, self._context.policy.reception.import_confidence)
                hear_threat(cohort.fleet, i, intensity, micros_of(facts.hour), self._context.policy)
