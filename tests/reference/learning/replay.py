"""The row-at-a-time twin of replay (curator/model_prompt.py): utility and random draw of each episode, then quotas."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from bardo_pipeline.events.record.row_digest import mix64
from bardo_pipeline.policy import CuratorPolicy

Row = Mapping[str, Any]
MASK = 2**64 - 1


def replayed_by_row(episodes: Iterable[Row], cycle: int, policy: CuratorPolicy) -> list[dict[str, Any]]:
    """The episodes of one golem that are replayed after a closed cycle."""
    held = [e for e in episodes if e["verified"] and e["cycle"] <= cycle]
    if not held:
        return []
    now = max(held, key=lambda e: e["tick"])
    drawn = sorted(held, key=lambda e: (_key(e, now, cycle, policy), e["tick"]))
    new = [e for e in drawn if e["cycle"] == cycle]
    old = [e for e in drawn if e["cycle"] < cycle]
    places = policy.replay_episodes
    for_new = min(len(new), max(round(policy.replay_new_share * places), places - min(len(old), places)))
    chosen = [*new[:for_new], *old[: places - for_new]]
    chosen.sort(key=lambda e: (-gain(e), e["tick"]))
    return [
        {
            "tick": e["tick"], "cycle": e["cycle"], "is_new": e["cycle"] == cycle,
            "gain_ppm": round(gain(e) * 10**6), "need_ppm": round(need(e, now) * 10**6), "text": e["text"],
        }
        for e in chosen
    ]  # fmt: skip


def gain(episode: Row) -> float:
    """Return the distance between importance and curiosity."""
    return abs(episode["importance"] - min(episode["curiosity"], 1.0))


def need(episode: Row, now: Row) -> float:
    """Half the regime, a fifth the market, the rest the mood."""
    moods = ("pleasure", "arousal", "dominance")
    apart = math.sqrt(sum((episode[n] - now[n]) ** 2 for n in moods)) / math.sqrt(12)
    market = episode["protocol"] == now["protocol"] and episode["pair"] == now["pair"]
    return 0.5 * (episode["regime"] == now["regime"]) + 0.2 * market + 0.3 * (1 - apart)


def _key(episode: Row, now: Row, cycle: int, policy: CuratorPolicy) -> float:
    """Return the draw's sort key: a random number scaled by utility; the smallest key is drawn first."""
    weight = max(gain(episode) * need(episode, now), policy.replay_utility_min)
    name = f"{episode['golem_id']}/replay/{cycle}"
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    inner = _mixed(seed ^ (episode["tick"] * 0xD1342543DE82EF95 & MASK))
    return -math.log(1.0 - (_mixed((inner + 17) & MASK) >> 11) * 2.0**-53) / weight


def _mixed(word: int) -> int:
    return int(mix64(np.array([word], np.uint64))[0])
