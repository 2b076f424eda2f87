"""Replay: which of a golem's episodes are looked at again when a cycle has closed, new and old interleaved. Pure.

After Mattar and Daw (2018) an episode's utility is gain x need: how much it surprised, and how like it is to what the
golem now meets. Seven places in ten are for the closing cycle, three for all that came before, drawn by utility, and
nothing has no chance at all. Evidence is not drawn: each verified decision counts once, in exact sums; what is replayed
is what somebody reads who cannot read everything. Source: MEM (ConsolidationEngine, phase 1), canon 19.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.grimoire.entry_columns import bool_column, contiguous
from bardo_pipeline.mortality.random_streams import drawn, seed_of
from bardo_pipeline.policy import CuratorPolicy

REPLAY_COLUMNS = (
    "golem_id", "tick", "cycle", "regime", "protocol", "pair", "curiosity", "importance", "pleasure", "arousal",
    "dominance", "verified", "text",
)  # fmt: skip
"""Columns of an episode that its replay depends on, and shows."""

REPLAY_SCHEMA = pa.schema(
    [
        pa.field("tick", pa.int64(), nullable=False),
        pa.field("cycle", pa.int64(), nullable=False),
        pa.field("is_new", pa.bool_(), nullable=False),
        pa.field("gain_ppm", pa.int64(), nullable=False),
        pa.field("need_ppm", pa.int64(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
    ]
)
"""One row per episode that is replayed, the one that surprised most first. gain, need: in parts per million."""

STREAM_CURATION = 17
_WIDEST = 12.0**0.5  # between two moods, each of pleasure, arousal and dominance in [-1, 1]


def replayed(episodes: pa.Table, cycle: int, policy: CuratorPolicy) -> pa.Table:
    """The episodes of one golem that are replayed after a closed cycle: REPLAY_SCHEMA.

    episodes: REPLAY_COLUMNS, of one golem, in any order; later cycles, and what is not verified, take no part. What the
    golem now meets is its newest episode.
    """
    episodes = episodes.filter(pc.and_(episodes["verified"], pc.less_equal(episodes["cycle"], cycle)))
    if not episodes.num_rows:
        return REPLAY_SCHEMA.empty_table()
    tick, its_cycle = (episodes[n].to_numpy() for n in ("tick", "cycle"))
    gain, need = gain_of(episodes), need_of(episodes, int(np.argmax(tick)), policy)
    utility = np.maximum(gain * need, policy.replay_utility_min)
    is_new = its_cycle == cycle
    golem_id = episodes["golem_id"][0].as_py()
    seed = np.full(len(tick), seed_of(f"{golem_id}/replay/{cycle}"), np.uint64)
    order = drawn(np.where(is_new, 0, 1), seed, tick, utility, policy.replay_episodes, STREAM_CURATION)
    chosen = shared_out(is_new[order], policy)
    at = order[chosen]
    at = at[np.lexsort((tick[at], -gain[at]))]
    return pa.table(
        {
            "tick": tick[at], "cycle": its_cycle[at], "is_new": is_new[at],
            "gain_ppm": np.rint(gain[at] * PPM).astype(np.int64), "need_ppm": np.rint(need[at] * PPM).astype(np.int64),
            "text": episodes["text"].take(pa.array(at)),
        }
    ).cast(REPLAY_SCHEMA)  # fmt: skip


def gain_of(episodes: pa.Table) -> np.ndarray:
    """What each episode would teach, in [0, 1]: how far its importance was from what its surprise made one expect."""
    return np.abs(episodes["importance"].to_numpy() - np.minimum(episodes["curiosity"].to_numpy(), 1.0))


def need_of(episodes: pa.Table, now: int, policy: CuratorPolicy) -> np.ndarray:
    """How like each episode is to the one at position `now`, in [0, 1]: regime, market and mood."""
    same = [_equals(episodes[n], now) for n in ("regime", "protocol", "pair")]
    mood = np.stack([episodes[n].to_numpy() for n in ("pleasure", "arousal", "dominance")])
    near = 1.0 - np.sqrt(((mood - mood[:, now : now + 1]) ** 2).sum(axis=0)) / _WIDEST
    return policy.need_regime * same[0] + policy.need_market * (same[1] & same[2]) + policy.need_mood * near


def _equals(column: pa.ChunkedArray, now: int) -> np.ndarray:
    return bool_column(pa.table({"same": pc.equal(contiguous(column), column[now])}), "same")


def shared_out(is_new: np.ndarray, policy: CuratorPolicy) -> np.ndarray:
    """Which of those drawn (new ones first, each kind in its order) get a place: the quotas, then what is left."""
    places, new = policy.replay_episodes, int(is_new.sum())
    old = len(is_new) - new
    for_new = min(new, max(round(policy.replay_new_share * places), places - old))
    for_old = min(old, places - for_new)
    rank = np.where(is_new, np.cumsum(is_new), np.cumsum(~is_new))
    return rank <= np.where(is_new, for_new, for_old)
