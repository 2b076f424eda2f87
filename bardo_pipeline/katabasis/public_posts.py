"""Packs and reads public posts: votes and pheromones as strangers see them. Pure.

A post names public facts alone: a market, a situation, a side. Its claim is composed by each reader from these parts,
so that no free text travels. Confidence is rounded to twentieths and time to the day (a pheromone: to the hour),
because exact values would name their author. Source: KAT (Lethe, What Does Not Flow); KAT-6, KAT-11; canon 44, 49.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, time
from typing import Annotated, Literal, NamedTuple

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bardo_pipeline.errors import BundleError
from bardo_pipeline.events.custody.blind_signature import Purpose
from bardo_pipeline.events.record.model import Moment, Name
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.grimoire.entries import DOMAINS
from bardo_pipeline.grimoire.entry_text import GAS_WORDS, REGIME_WORDS
from bardo_pipeline.katabasis.anonymous_votes import LIVING_WEIGHT_TENTHS, VOTE_SCHEMA
from bardo_pipeline.katabasis.propositions import (
    LEVEL_STEPS,
    PUBLIC_CHOICES,
    PUBLIC_METRICS,
    RANGE_WORDS,
    claim_of,
    proposition_id,
    question_of,
)  # fmt: skip
from bardo_pipeline.policy import Policy

POST_BYTES_MAX = 960
CONFIDENCE_STEP_PPM = 50_000
"""Confidences of votes are multiples of this."""

INTENSITY_STEP_PPM = 100_000
"""Intensities of pheromones are multiples of this."""

_PATTERN_ACTS = ("rebalance", "borrow", "repay", "liquidated", *PUBLIC_CHOICES)


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Belief(_Fields):
    """An anonymous vote: how sure a golem is of a proposition.

    Parameters
    ----------
    sign : 1 the act pays, -1 it harms, 0 for a level
    step : the 1-2-5 band of a level, 0 otherwise
    voter_id : identity of the golem for this one question (`voter_id`)
    confidence_ppm : in the claim, rounded to twentieths
    day : of the vote, in the golem's time
    """

    source: Literal["pattern", "choice", "baseline"]
    domain: Literal[DOMAINS]  # type: ignore[valid-type]
    chain: Name
    protocol: Name
    pair: Name
    action_type: Literal[(*_PATTERN_ACTS, None)]  # type: ignore[valid-type]
    regime: Literal[(*REGIME_WORDS, None)]  # type: ignore[valid-type]
    anomaly_band: Literal[(*RANGE_WORDS, None)]  # type: ignore[valid-type]
    gas_band: Literal[(*GAS_WORDS, None)]  # type: ignore[valid-type]
    metric: Literal[(*PUBLIC_METRICS, None)]  # type: ignore[valid-type]
    sign: Annotated[int, Field(ge=-1, le=1)]
    step: Annotated[int, Field(ge=0, lt=LEVEL_STEPS)]
    voter_id: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    confidence_ppm: Annotated[int, Field(ge=0, le=PPM, multiple_of=CONFIDENCE_STEP_PPM)]
    is_death_vote: bool
    day: date

    @property
    def claim(self) -> str:
        """Return the claim, composed from the parts."""
        return claim_of(self.model_dump(), self.sign, self.step)

    @property
    def proposition_id(self) -> str:
        """Return the id of the claim."""
        return proposition_id(self.domain, self.claim)

    @property
    def question_id(self) -> str:
        """Return the id that the bands of one level share; of another claim its own id."""
        if self.source == "baseline":
            return proposition_id(self.domain, question_of(self.model_dump()))
        return self.proposition_id


class Pheromone(_Fields):
    """An anonymous deposit: a threat or an opportunity at a market, which fades.

    Parameters
    ----------
    intensity_ppm : at `hour`, rounded to tenths
    hour : of the deposit, in the golem's time
    """

    sort: Literal["threat", "opportunity"]
    chain: Name
    protocol: Name
    pair: Name
    intensity_ppm: Annotated[int, Field(gt=0, le=PPM, multiple_of=INTENSITY_STEP_PPM)]
    hour: Moment


class Post(NamedTuple):
    """A post and what its signature attests. content: canonical JSON."""

    purpose: Purpose
    content: bytes
    facts: Belief | Pheromone

    @property
    def post_id(self) -> str:
        """Return the name of the post at a relay: a hash of its public content."""
        return post_id(self.purpose, self.content)


def post_id(purpose: Purpose, content: bytes) -> str:
    """Return the SHA-256 of a post's purpose and content."""
    return hashlib.sha256(purpose.encode() + b"\0" + content).hexdigest()


def post_of(facts: Belief | Pheromone) -> Post:
    """Pack facts into a post."""
    is_last = isinstance(facts, Belief) and facts.is_death_vote
    about = "belief" if isinstance(facts, Belief) else "pheromone"
    content = f'{{"{about}":{facts.model_dump_json()}}}'.encode()
    return Post("death" if is_last else "living", content, facts)


class _Content(_Fields):
    belief: Belief | None = None
    pheromone: Pheromone | None = None


def read_post(purpose: Purpose, content: bytes) -> Post:
    """Read and check a post. Raises BundleError for one that is malformed, or whose parts make no public claim."""
    if len(content) > POST_BYTES_MAX:
        raise BundleError(f"a post has {len(content):,} bytes, and {POST_BYTES_MAX:,} at most")
    try:
        read = _Content.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise BundleError(f"a post is malformed: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    stated = [facts for facts in (read.belief, read.pheromone) if facts is not None]
    if len(stated) != 1:
        raise BundleError(f"a post states one fact, not {len(stated)}")
    facts = stated[0]
    if isinstance(facts, Belief) and (reason := _no_claim(facts)):
        raise BundleError(f"a post makes no public claim: {reason}")
    post = post_of(facts)
    if post.content != content or post.purpose != purpose:
        raise BundleError("a post is not in its canonical form, or signed for another purpose")
    return post


def _no_claim(belief: Belief) -> str | None:
    """Return why the parts of a belief make no claim, None if they make one."""
    if belief.source == "baseline":
        return None if belief.metric and not belief.sign else "a level has a metric and no side"
    if belief.sign == 0 or belief.step or belief.metric:
        return "an act has a side, and neither a metric nor a level"
    if belief.source == "choice":
        return None if belief.action_type in PUBLIC_CHOICES else "only entering and leaving are public choices"
    whole = belief.action_type and belief.regime and belief.anomaly_band and belief.gas_band
    return None if whole else "an act has a regime, an anomaly band and a gas band"


def voter_id(secret: bytes, golem_id: str, question_id: str) -> str:
    """Return the identity of a golem for one question, 12 hex digits.

    It is salted with the secret of the owner's clade, so a list of known names does not reveal it.
    """
    return hmac.digest(secret, f"voter\0{golem_id}\0{question_id}".encode(), "sha256").hex()[:12]


def rounded(value_ppm: int, step_ppm: int) -> int:
    """Return a value in ppm, rounded to the nearest step."""
    return (value_ppm + step_ppm // 2) // step_ppm * step_ppm


def release_moment(secret: bytes, name: str, window: int, share: float) -> float | None:
    """Return when in this window of time a waiting post leaves its home, in [0, 1) of the window; None for not in it.

    Both follow from the secret, by chance to all others: each window releases a waiting post with the probability
    `share`. So the time of a post says little about the time of the cycle that made it, and nothing is stored for it.
    name: id of the post
    """
    draw = hmac.digest(secret, f"release\0{window}\0{name}".encode(), "sha256")
    is_released = int.from_bytes(draw[:8], "big") < share * 2**64
    return int.from_bytes(draw[8:16], "big") / 2**64 if is_released else None


def votes_of(posts: Iterable[Post], policy: Policy) -> pa.Table:
    """Return the beliefs among posts as votes: VOTE_SCHEMA, one row for each distinct post."""
    death_weight = round(policy.katabasis.death_vote_weight * LIVING_WEIGHT_TENTHS)
    rows = [
        {
            "vote_id": post.post_id[:24], "proposition_id": facts.proposition_id, "question_id": facts.question_id,
            "domain": facts.domain, "claim": facts.claim, "voter_id": facts.voter_id,
            "confidence_ppm": facts.confidence_ppm, "is_death_vote": facts.is_death_vote,
            "weight_tenths": death_weight if facts.is_death_vote else LIVING_WEIGHT_TENTHS,
            "at": datetime.combine(facts.day, time(), UTC),
        }
        for post in {post.post_id: post for post in posts}.values()
        if isinstance(facts := post.facts, Belief)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, VOTE_SCHEMA).sort_by("vote_id")


def strongest(
    posts: Iterable[Post], sort: Literal["threat", "opportunity"], market: Sequence[str], now: datetime, policy: Policy
) -> float:
    """Return the intensity of a market's pheromones at a moment, in [0, 1]: that of the strongest deposit by then.

    market: chain, protocol and pair. A deposit halves within `threat_half_life_hours`.
    """
    half_life = policy.clade.threat_half_life_hours * 3_600.0
    found = [
        facts.intensity_ppm / PPM * 2.0 ** (-(now - facts.hour).total_seconds() / half_life)
        for facts in (post.facts for post in posts)
        if isinstance(facts, Pheromone)
        and facts.sort == sort
        and (facts.chain, facts.protocol, facts.pair) == tuple(market)
        and facts.hour <= now
    ]
    return max(found, default=0.0)
