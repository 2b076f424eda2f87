"""Changes of a policy by setting name: accepted and refused changes, and their effects."""

from __future__ import annotations

from typing import Any

import pytest

from bardo_pipeline.curator.episodes import EPISODE_COLUMNS, episodes_of
from bardo_pipeline.derivation.versions.policy_diff import Setting, altered, differences
from bardo_pipeline.derivation.versions.side_derivations import EPISODE_SETTINGS
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.policy import Policy
from tests.support.records.drawn_records import records

pytestmark = pytest.mark.row("X-3")


def test_altered_changes_the_named_settings_and_keeps_the_others() -> None:
    policy = altered(Policy(), ["decay.tactical_days=14", "inheritance.weismann=reset", "curator.gas_edges=[0.5, 3]"])
    assert (policy.decay.tactical_days, policy.inheritance.weismann) == (14.0, "reset")
    assert differences(Policy(), policy) == (
        Setting("curator.gas_edges", [0.75, 2.0], [0.5, 3.0]),
        Setting("decay.tactical_days", 7.0, 14.0),
        Setting("inheritance.weismann", "attenuate", "reset"),
    )
    assert policy.hash != Policy().hash
    assert altered(policy, ["decay.tactical_days=7"], {"curator": {"gas_edges": [0.75, 2.0]}}).decay == Policy().decay


def test_setting_the_current_value_keeps_the_policy() -> None:
    assert altered(Policy(), ["decay.tactical_days=7"], Policy().model_dump(mode="json")) == Policy()


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("decay.tactical.half_life_days=14", "nearest are decay.tactical_days"),
        ("tactical_days=14", "nearest are decay.tactical_days"),
        ("nonsense=1", "its parts are affect"),
        ("decay.tactical_days", "not NAME=VALUE"),
        ("decay.tactical_days=-1", "greater than 0"),
        ("decay.tactical_days=soon", "valid number"),
        ("decay.tactical_days=inf", "finite"),
        ("curator.upvote=1.5", "less than or equal to 1"),
        ("inheritance.weismann=double", "'attenuate' or 'reset'"),
        ("care.grace_seconds=1", "no projection depends on the part 'care'"),
        ("log.bucket_count=4", "fixed when a home is created"),
    ],
)
def test_an_unknown_setting_or_an_invalid_value_is_refused_with_a_hint(text: str, content: str) -> None:
    with pytest.raises(ConfigError) as refused:
        altered(Policy(), [text])
    assert content in str(refused.value)


def test_a_file_without_parts_or_with_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match="parts with settings"):
        altered(Policy(), [], {"decay": 14})
    with pytest.raises(ConfigError, match=r"nearest are decay\.tactical_days"):
        altered(Policy(), [], {"decay": {"tactical_day": 14}})


class Watched:
    """A policy that notes which of its settings are read."""

    def __init__(self, part: Any, name: str, seen: set[str]) -> None:
        self._part, self._name, self._seen = part, name, seen

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._part, name)
        if self._name:
            self._seen.add(f"{self._name}.{name}")
            return value
        return Watched(value, name, self._seen)


def test_episodes_depend_only_on_the_episode_settings() -> None:
    seen: set[str] = set()
    rows = records(50, golems=2).select(list(EPISODE_COLUMNS))
    made = episodes_of(rows, (rows["tick"].to_numpy() - 1) // 50 + 1, Watched(Policy(), "", seen))  # type: ignore[arg-type]
    assert made.num_rows
    assert seen | {"curator.cycle_ticks"} == set(EPISODE_SETTINGS)
