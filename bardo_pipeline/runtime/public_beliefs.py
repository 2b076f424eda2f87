"""PublicBeliefs: what the golems of a run hold of Lethe, between chunks: collective beliefs and pheromones.

The consensus of the votes that a golem has received by now gives priors: the surest propositions about its market in
the regime of now, within its budget of tokens. Pheromones of its market are threats. A golem receives posts in the
first chunk that begins after their receipt, so a repeated run gives the same records.
Source: KAT (Retrieval in Heartbeat); KAT-7, KAT-11; MEM ("Opt-in model"); canon 4, 22, 23, 49.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.configuration import in_force_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.received_posts import HeardPosts, posts_received
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.heartbeat.threats import hear_threat
from bardo_pipeline.katabasis.priors import PRIOR_SCHEMA
from bardo_pipeline.katabasis.public_consensus import beliefs_as_priors, public_consensus
from bardo_pipeline.katabasis.public_posts import Pheromone, Post
from bardo_pipeline.market.market import Market
from bardo_pipeline.policy.golem_configuration import Injection
from bardo_pipeline.runtime.in_memory_fleet import Cohort

_COUNTS_MAX = 64
"""Counted sets of posts that are kept; golems that received the same events share one."""


class PublicBeliefs:
    """The public posts of a home, for the golems of one run.

    Parameters
    ----------
    market : of the run; beliefs and pheromones about other markets do not reach its golems
    """

    def __init__(self, context: DerivationContext, market: Market) -> None:
        self._context, self._market = context, (market.chain, market.protocol, market.pair)
        self._version = -1
        self._heard: dict[str, HeardPosts] = {}
        self._smelled: set[tuple[str, str]] = set()
        self._counted: dict[frozenset[str], tuple[tuple[Post, ...], pa.Table]] = {}

    def forget(self, golem_ids: set[str]) -> None:
        """Let golems smell all pheromones again, for example after a retraction."""
        self._smelled = {pair for pair in self._smelled if pair[0] not in golem_ids}

    def tell(self, cohort: Cohort, now: datetime, regime: int) -> None:
        """Give each golem of a fleet the priors and threats of the posts that it received before a moment.

        regime: position in REGIMES of the market at that moment
        """
        self._read()
        if not self._heard:
            return
        rules = in_force_of(self._context, cohort.fleet.golem_ids)
        priors = [PRIOR_SCHEMA.empty_table()]
        for i, golem_id in enumerate(cohort.fleet.golem_ids):
            posts, counted = self._known_by(golem_id, now)
            self._smell(cohort, i, golem_id, posts)
            injection = rules[golem_id].configuration.styx.injection
            held = set(cohort.propositions_of(golem_id))
            priors.append(self._priors(golem_id, posts, counted, regime, now, injection, held))
        cohort.believe(pa.concat_tables(priors).combine_chunks())

    def _read(self) -> None:
        """Read new posts if there are new life events."""
        if self._context.log.life_version != self._version:
            self._version = self._context.log.life_version
            new = posts_received(self._context, known=self._heard)
            self._heard |= {heard.content_hash + heard.owner_id: heard for heard in new}

    def _known_by(self, golem_id: str, now: datetime) -> tuple[tuple[Post, ...], pa.Table]:
        """Return the posts that a golem received before a moment, and their consensus, which is counted once."""
        names = frozenset(k for k, heard in self._heard.items() if golem_id in heard.golem_ids and heard.at < now)
        if names not in self._counted:
            if len(self._counted) >= _COUNTS_MAX:
                self._counted.clear()
            posts = tuple(post for name in sorted(names) for post in self._heard[name].posts)
            self._counted[names] = posts, public_consensus(posts, self._context.policy)
        return self._counted[names]

    def _smell(self, cohort: Cohort, i: int, golem_id: str, posts: tuple[Post, ...]) -> None:
        for post in posts:
            facts, pair = post.facts, (golem_id, post.post_id)
            if isinstance(facts, Pheromone) and facts.sort == "threat" and pair not in self._smelled:
                self._smelled.add(pair)
                if (facts.chain, facts.protocol, facts.pair) == self._market:
                    hear_threat(cohort.fleet, i, facts.intensity_ppm / PPM, _micros(facts.hour), self._context.policy)

    def _priors(
        self,
        golem_id: str,
        posts: tuple[Post, ...],
        counted: pa.Table,
        regime: int,
        now: datetime,
        injection: Injection,
        held: set[str],
    ) -> pa.Table:
        """Return the surest propositions for the regime that a golem does not hold already, within its token budget."""
        if not counted.num_rows:
            return PRIOR_SCHEMA.empty_table()
        scenes = beliefs_as_priors(posts, counted, golem_id, self._market, REGIMES[regime], now, self._context.policy)
        scenes = scenes.filter(pc.greater_equal(scenes["confidence_ppm"], round(injection.min_confidence * PPM)))
        claims = dict(zip(counted["proposition_id"].to_pylist(), counted["claim"].to_pylist(), strict=True))
        top = self._context.policy.clade.lethe_top
        return scenes.take(list(_within(scenes, claims, held, injection.max_tokens, top)))


def _within(scenes: pa.Table, claims: dict[str, str], held: set[str], tokens: int, top: int) -> Iterator[int]:
    """Yield the first rows whose claims fit a budget of tokens (4 characters each)."""
    taken = 0
    for row, proposition_id in enumerate(scenes["prior_id"].to_pylist()):
        need = -(-len(claims[proposition_id]) // 4)
        if taken < top and proposition_id not in held and need <= tokens:
            taken, tokens = taken + 1, tokens - need
            yield row


def _micros(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
