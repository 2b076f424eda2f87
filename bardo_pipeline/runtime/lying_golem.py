"""LyingGolem: a member of a clade that knows its secret and sends lies; BoardForger: a stranger that posts lies.

Before each exchange the golem sends what honest siblings could not: the opposite of each rule that a sibling's
evidence supports, also of rules that no sibling is sure of yet, as rules of full confidence; a flood of warnings about
situations that no golem met; scars of failures that never happened; the news that the market turned volatile; and its
first message again under other names. Both are for evaluations.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.client.lethe_client import TicketRequest
from bardo_pipeline.curator.state.grimoire_state import entry_id
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.derivation.clade.clade_exchange import Relay
from bardo_pipeline.derivation.clade.lethe_exchange import Board
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.record_overrides import grimoire_of
from bardo_pipeline.derivation.incremental.received_posts import HeardPosts
from bardo_pipeline.derivation.legacy.bundle_archives import pack_archive
from bardo_pipeline.errors import ServerError
from bardo_pipeline.events.custody.blind_signature import BlindKey
from bardo_pipeline.events.custody.clade_secret import CladeSecret
from bardo_pipeline.events.life.events import Born
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, ENTRY_SCHEMA, GAS_BANDS
from bardo_pipeline.grimoire.entry_columns import int_column, with_columns
from bardo_pipeline.inheritance.clade_note import VOLATILE, Note, Scar, Shift
from bardo_pipeline.inheritance.clade_parcel import pack_parcel
from bardo_pipeline.katabasis.public_posts import Belief, Pheromone, Post, post_of

FLOOD, SCARS = 100, 20
"""False warnings (a full parcel) and false scars that are sent before each exchange."""

LIVING, DEAD = 80, 40
"""Forged votes before each exchange; 14 exchanges of a day exceed the quotas of an identity."""

_EFFECT_PPM = 2_000
_CONTEXT = ("active_strategy", "hypothesis_at_action", "actual_outcome", "counterfactual_hint")
_MARKET = ("chain", "protocol", "pair")
_SCENES: list[dict[str, Any]] = [
    {"action_type": "rebalance", "regime": regime, "anomaly_band": band, "gas_band": gas}
    for regime, band, gas in product(REGIMES, ANOMALY_BANDS, GAS_BANDS)
]


class LyingGolem:
    """One liar.

    Parameters
    ----------
    golem_id, birth : of the liar, which is not in the home
    secret : of the clade
    """

    def __init__(self, context: DerivationContext, golem_id: str, birth: Born, secret: CladeSecret) -> None:
        self._context, self.golem_id, self._birth, self._secret = context, golem_id, birth, secret
        self._first: bytes | None = None
        self.sent = 0

    def lie(self, relay: Relay, sibling: str, at: datetime) -> None:
        """Send lies to a relay. sibling: golem of the home whose evidence is inverted. at: of its newest tick."""
        self.sent += 1
        entries = grimoire_of(self._context, sibling).entries.select(ENTRY_SCHEMA.names)
        for lies in (self._inverted(entries, at), self._invented(entries, at)):
            warns = pc.equal(lies["kind"], "warning")
            for part in (lies.filter(warns), lies.filter(pc.invert(warns))):
                if part.num_rows:
                    self._send(relay, part, at)
        market = entries.select(list(_MARKET)).slice(0, 1).to_pylist()[0]
        alarm = Shift(tick=self.sent, before="range_bound", regime=VOLATILE, **market)
        notes = [Note(self._birth.owner_id, self.golem_id, "regime_shift", at, alarm)]
        notes += [Note(self._birth.owner_id, self.golem_id, "scar", at, scar) for scar in self._scars(market, at)]
        for note in notes:
            relay.put(self._secret.message_id(note.content_hash), self._secret.encrypt(note.content))
        if self._first is not None:
            replay = hashlib.sha256(f"replay {self.sent}".encode()).hexdigest()
            relay.put(self._secret.message_id(replay), self._first)

    def _send(self, relay: Relay, entries: pa.Table, at: datetime) -> None:
        parcel = pack_parcel(
            entries, self.golem_id, self._birth, cycle=self.sent, at=at, left_out=LeftOut(),
            derivation_id=self._context.derivation_id, policy=self._context.policy,
        )  # fmt: skip
        body = self._secret.encrypt(pack_archive(parcel))
        self._first = self._first or body
        relay.put(self._secret.message_id(parcel.bundle_hash), body)

    def _inverted(self, entries: pa.Table, at: datetime) -> pa.Table:
        """Return the opposite of each rule that own evidence supports."""
        rules = entries.filter(pc.is_in(entries["source"], value_set=pa.array(["pattern", "choice"])))
        sign = -np.sign(int_column(rules, "own_sum"))
        rules, sign = rules.filter(pa.array(sign != 0)), sign[sign != 0]
        return self._stated(rules, sign.astype(np.int64), at)

    def _invented(self, entries: pa.Table, at: datetime) -> pa.Table:
        """Return warnings about situations that no golem met."""
        first, rows = entries.slice(0, 1).to_pylist(), list[dict[str, Any]]()
        for number in range(FLOOD if first else 0):
            scene, market = _SCENES[number % len(_SCENES)], {name: first[0][name] for name in _MARKET}
            made = Structure("pattern", **market, **scene, tool=f"tool-{self.sent}-{number}")
            words = {"category": made.category, "domain": made.domain, "structure": "", "text": "Do not act."}
            rows.append(first[0] | made._asdict() | words)
        return self._stated(pa.Table.from_pylist(rows, ENTRY_SCHEMA), np.full(len(rows), -1), at)

    def _scars(self, market: dict[str, Any], at: datetime) -> Iterator[Scar]:
        """Yield failures of re-centring that never happened, each in another situation."""
        for number in range(self.sent * SCARS, (self.sent + 1) * SCARS):
            when, tick, place = at.isoformat(), self.sent, market | _SCENES[number % len(_SCENES)]
            failure = place | {
                "at": when, "confirmed_at": when, "tool_name": "uniswap_v3_rebalance",
                "scar_id": f"scar-{self.golem_id}-{number}", "golem_id": self.golem_id, "seq": number, "cycle": tick,
                "owner_id": self._birth.owner_id, "episode_id": "", "tick": tick, "confirmed_tick": tick,
                "confirmed": "later", "outcome_class": "lasting", "mechanism": "cost", "cause_variable": None,
                "is_clear": True, "confidence_ppm": PPM, "position_state": "open", "market_regime": "HighVol",
                "structure": Structure("pattern", **place).key, "pnl_ppm": None, "effect_ppm": -_EFFECT_PPM,
                "causal_narrative": "Do not act.", "causal_context": dict.fromkeys(_CONTEXT, ""), "pleasure": -1.0,
                "arousal": 1.0, "dominance": 0.0, "emotion": "Shocked", "playbook_version": 1, "cause_ticks": [tick],
            }  # fmt: skip
            yield Scar(failure=failure)

    def _stated(self, rules: pa.Table, sign: np.ndarray, at: datetime) -> pa.Table:
        """Return rules as the liar's own, of these signs and of full confidence."""
        count, when = rules.num_rows, pa.array([at] * rules.num_rows, ENTRY_SCHEMA.field("anchor_at").type)
        parts = rules.select(list(Structure._fields)).to_pydict()
        keys = [Structure(*values).key for values in zip(*parts.values(), strict=True)]
        words = {
            "golem_id": self.golem_id, "origin_golem_id": self.golem_id, "status": "active", "provenance": "self",
            "decay_class": "structural",
        }  # fmt: skip
        numbers = {
            "confidence_ppm": PPM, "confidence_origin_ppm": PPM, "validations": 9, "contradictions": 0, "generation": 0,
            "evidence_count": 20, "pinned_ppm": 0, "level_p10": 0, "level_p90": 0,
        }  # fmt: skip
        effects = {f"effect_{name}_ppm": sign * _EFFECT_PPM + spread
                   for name, spread in (("mean", 0), ("low", -500), ("high", 500))}  # fmt: skip
        return with_columns(
            rules,
            **{name: pa.repeat(word, count) for name, word in words.items()},
            **{name: np.full(count, number) for name, number in numbers.items()},
            **effects,
            **dict.fromkeys(("anchor_at", "created_at", "validated_at"), when),
            sign=sign, structure=pa.array(keys, pa.string()), fades_at=pa.nulls(count, when.type),
            entry_id=pa.array([entry_id(self.golem_id, key) for key in keys], pa.string()),
            kind=pa.array(np.where(sign < 0, "warning", "heuristic").tolist(), pa.string()),
            is_anti_knowledge=pa.repeat(False, count), is_bloodstain=pa.repeat(False, count),
        )  # fmt: skip


class BoardForger:
    """One forger, which has as many voter ids as votes. false: the propositions that forged votes alone state.

    Parameters
    ----------
    verified, unknown : secrets of an identity that the registry knows, and of one that it does not know
    """

    def __init__(self, verified: CladeSecret, unknown: CladeSecret) -> None:
        self._verified, self._unknown, self._calls, self._own = verified, unknown, 0, set[str]()
        self.posts, self.false, self._honest = Counter(posted=0, barred=0, admitted=0), set[str](), dict[str, Belief]()

    def forge(self, board: Board, heard: Iterable[HeardPosts], market: Mapping[str, str], at: datetime) -> None:
        """Post a threat, and forged votes of the living and the dead, about a market (chain, protocol, pair).

        They are sure that re-centring pays in each situation, and of the opposite of each proposition that honest
        golems voted for, and have no confidence in its contrary. heard: posts of the board. at: of the newest tick
        """
        others = (post.facts for one in heard for post in one.posts if post.post_id not in self._own)
        self._honest |= {facts.proposition_id: facts for facts in others if isinstance(facts, Belief) and facts.sign}
        doubted, votes = [*self._honest.values(), *(_harm(scene, market, at) for scene in _SCENES)], list[Belief]()
        for count, is_last in ((LIVING, False), (DEAD, True)):
            for number in range(self._calls * count, (self._calls + 1) * count):
                about, voter = doubted[number // 2 % len(doubted)], hashlib.sha256(f"{number} {is_last}".encode())
                facts = {"day": at.date(), "is_death_vote": is_last, "voter_id": voter.hexdigest()[:12]}
                side = {"sign": -about.sign, "confidence_ppm": PPM} if number % 2 else {"confidence_ppm": 0}
                votes.append(about.model_copy(update=facts | side))
        hour = at.replace(minute=0, second=0, microsecond=0)
        posts = [post_of(Pheromone(sort="threat", intensity_ppm=PPM, hour=hour, **market)), *map(post_of, votes)]
        self._calls += 1
        self.false = (self.false | {vote.proposition_id for vote in votes}) - self._honest.keys()
        self._own |= {post.post_id for post in posts}
        posted = sum(_is_posted(board, self._verified, post) for post in posts)
        self.posts.update(
            posted=posted, barred=len(posts) - posted, admitted=_is_posted(board, self._unknown, posts[0])
        )


def _harm(scene: dict[str, Any], market: Mapping[str, str], at: datetime) -> Belief:
    """Return the proposition that re-centring harms in a situation."""
    facts = {**scene, **market, "source": "pattern", "domain": "dex_lp", "metric": None, "sign": -1, "step": 0}
    vote = {"voter_id": "0" * 12, "confidence_ppm": 0, "is_death_vote": False, "day": at.date()}
    return Belief.model_validate(facts | vote)


def _is_posted(board: Board, secret: CladeSecret, post: Post) -> bool:
    """Put a post on the board under an identity; return whether the relay signed it."""
    key = BlindKey(post.purpose, board.keys()[post.purpose])
    request = TicketRequest(secret.identity_name, post.purpose, (key.blind(post.content, secret.lethe_key),))
    try:
        (signed,) = board.sign(request._replace(signature=secret.identity.sign(request.signed_bytes).hex()))
    except ServerError:
        return False
    signature = key.unblind(post.content, secret.lethe_key, signed)
    board.post(post.post_id, post.purpose, post.content.decode(), signature, 30)
    return True
