"""Replay: draw the episodes of a golem that a model prompt shows after a closed cycle. Pure.

The utility of an episode is gain x need (Mattar and Daw, 2018): the distance between its importance and its prediction
error, times its similarity to the newest episode. 70 % of the places go to the closing cycle and 30 % to earlier ones,
drawn by utility, which is never zero. Replay does not affect evidence, which counts every verified decision once.
Source: MEM (ConsolidationEngine, phase 1), canon 19.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Float64Array
from bardo_pipeline.events.record.arrow_columns import all_required, contiguous, required
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.grimoire.entry_columns import to_bools
from bardo_pipeline.mortality.random_streams import seed_of, weighted_sample
from bardo_pipeline.policy import CuratorPolicy

REPLAY_COLUMNS = (
    "golem_id", "tick", "cycle", "regime", "protocol", "pair", "curiosity", "importance", "pleasure", "arousal",
    "dominance", "verified", "text",
)  # fmt: skip
"""Columns of an episode that replay reads."""

REPLAY_SCHEMA = pa.schema(
    [
        *all_required(pa.int64(), "tick", "cycle"),
        required("is_new", pa.bool_()),
        *all_required(pa.int64(), "gain_ppm", "need_ppm"),
        required("text", pa.string()),
    ]
)
"""One row per replayed episode, highest gain first. gain_ppm, need_ppm: parts per million."""

STREAM_CURATION = 17
_DISTANCE_MAX = 12.0**0.5  # between two moods (pleasure, arousal, dominance), each in [-1, 1]


def replayed(episodes: pa.Table, cycle: int, policy: CuratorPolicy) -> pa.Table:
    """Draw the replayed episodes of one golem after a closed cycle, as REPLAY_SCHEMA.

    episodes: REPLAY_COLUMNS of one golem, in any order; later cycles and unverified episodes are ignored.
    """
    episodes = episodes.filter(pc.and_(episodes["verified"], pc.less_equal(episodes["cycle"], cycle)))
    if not episodes.num_rows:
        return REPLAY_SCHEMA.empty_table()
    tick, episode_cycle = (episodes[n].to_numpy() for n in ("tick", "cycle"))
    gain, need = gain_of(episodes), need_of(episodes, int(np.argmax(tick)), policy)
    utility = np.maximum(gain * need, policy.replay_utility_min)
    is_new = episode_cycle == cycle
    golem_id = episodes["golem_id"][0].as_py()
    seed = np.full(len(tick), seed_of(f"{golem_id}/replay/{cycle}"), np.uint64)
    order = weighted_sample(np.where(is_new, 0, 1), seed, tick, utility, policy.replay_episodes, STREAM_CURATION)
    at = order[within_quotas(is_new[order], policy)]
    at = at[np.lexsort((tick[at], -gain[at]))]
    return pa.table(
        {
            "tick": tick[at], "cycle": episode_cycle[at], "is_new": is_new[at],
            "gain_ppm": np.rint(gain[at] * PPM).astype(np.int64), "need_ppm": np.rint(need[at] * PPM).astype(np.int64),
            "text": episodes["text"].take(pa.array(at)),
        }
    ).cast(REPLAY_SCHEMA)  # fmt: skip


def gain_of(episodes: pa.Table) -> Float64Array:
    """Return each episode's gain in [0, 1]: the distance between its importance and its prediction error."""
    return np.abs(episodes["importance"].to_numpy() - np.minimum(episodes["curiosity"].to_numpy(), 1.0))


def need_of(episodes: pa.Table, now: int, policy: CuratorPolicy) -> Float64Array:
    """Return each episode's similarity to the one at row `now`, in [0, 1], by regime, market and mood."""
    columns = {n: contiguous(pc.equal(episodes[n], episodes[n][now])) for n in ("regime", "protocol", "pair")}
    same = [to_bools(column) for column in columns.values()]
    mood = np.stack([episodes[n].to_numpy() for n in ("pleasure", "arousal", "dominance")])
    near = 1.0 - np.sqrt(((mood - mood[:, now : now + 1]) ** 2).sum(axis=0)) / _DISTANCE_MAX
    return policy.need_regime * same[0] + policy.need_market * (same[1] & same[2]) + policy.need_mood * near


def within_quotas(is_new: BoolArray, policy: CuratorPolicy) -> BoolArray:
    """Return which drawn episodes get a place. New and old have quotas; unused places go to the other kind."""
    places, new = policy.replay_episodes, int(is_new.sum())
    old = len(is_new) - new
    for_new = min(new, max(round(policy.replay_new_share * places), places - old))
    for_old = min(old, places - for_new)
    rank = np.where(is_new, np.cumsum(is_new), np.cumsum(~is_new))
    return np.asarray(rank <= np.where(is_new, for_new, for_old))
