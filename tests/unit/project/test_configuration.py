"""bardo.toml: accepted keys, refusals and their messages, and agreement with its page and the policy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bardo_pipeline.errors import ConfigError
from bardo_pipeline.policy import OPERATIONAL, Policy
from bardo_pipeline.policy.golem_configuration import (
    CLADE,
    LETHE,
    NOT_READ,
    RUN,
    VAULT,
    Configuration,
    in_setting_units,
    keys,
    reader_of,
    setting_of,
)
from bardo_pipeline.policy.toml_config import (
    NO_CONFIG_FILE,
    canonical,
    configuration_hash,
    flat,
    parse,
    read_recorded,
    to_toml,
    with_operations,
)
from bardo_pipeline.storage.home import CONFIGURATION, stated_in
from tests.support.configuration_page import configuration_page
from tests.support.example_count import some

pytestmark = pytest.mark.row("P-7")

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"
MAPPED = [key for key in keys() if setting_of(key)]


def test_the_configuration_page_equals_the_models() -> None:
    if os.environ.get("BARDO_GOLDEN") == "write":
        PAGE.write_text(configuration_page())
    assert PAGE.read_text() == configuration_page(), "BARDO_GOLDEN=write writes the page again"


def test_sections_and_defaults_match_the_documents() -> None:
    assert list(Configuration.model_fields) == ["clock", "heartbeat", "oracle", "styx", "succession", "death"]
    result = flat(Configuration())
    wanted = {
        "clock.gamma_min_interval_secs": 5, "clock.gamma_max_interval_secs": 15, "clock.theta_min_interval_secs": 30,
        "clock.theta_max_interval_secs": 120, "clock.delta_theta_ticks": 50,
        "heartbeat.base_deliberation_threshold": 0.3, "heartbeat.cost_warning_threshold": 0.7,
        "heartbeat.cost_soft_cap_threshold": 0.9, "heartbeat.write_batch_size": 25,
        "heartbeat.write_batch_flush_interval_ms": 30_000, "heartbeat.probe_thresholds.price_delta_low_bps": 50,
        "heartbeat.probe_thresholds.price_delta_high_bps": 200, "heartbeat.probe_thresholds.health_factor_low": 1.5,
        "styx.lethe_enabled": False, "styx.budget.max_per_tick_usd": 0.01, "styx.injection.min_confidence": 0.5,
        "succession.budget_usdc": 50.0, "succession.strategy_drift_allowed": 0.15, "succession.inherit_grimoire": True,
        "death.reserve_min_usd": 0.3, "death.reserve_share": 0.02,
    }  # fmt: skip
    assert {key: result[key] for key in wanted} == wanted


def test_defaults_equal_the_policy_and_an_empty_file_changes_nothing() -> None:
    assert NO_CONFIG_FILE.complete(Policy()) == parse("", "x").complete(Policy()) == Configuration()
    assert NO_CONFIG_FILE.policy(Policy()) == Policy()
    assert parse(to_toml(Configuration()), "x").complete(Policy()) == Configuration()


@pytest.mark.parametrize("key", MAPPED)
def test_each_key_changes_exactly_the_setting_that_its_page_names(key: str) -> None:
    setting, times = setting_of(key) or ("", 1)
    field = keys()[key]
    value: Any = field.default * 1.01 if field.annotation is float else field.default + 1
    value = 100 if key == "clock.delta_theta_ticks" else not field.default if field.annotation is bool else value
    policy = parse(f"{key} = {orjson.dumps(value).decode()}\n", "x").policy(Policy())
    changed = {n for n, v in policy.settings.items() if v != Policy().settings[n]}
    assert changed == {setting}
    assert policy.settings[setting] == pytest.approx(value * times, rel=1e-9)
    assert (policy.hash == Policy().hash) == (setting.partition(".")[0] in OPERATIONAL)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("[clock]\ntheta_min = 3", ["clock.theta_min = 3", "nearest", "clock.theta_min_interval_secs"]),
        ("[clok]\nx = 1", ["clok", "nearest are clock"]),
        ("clock = 3", ["clock = 3", "write [clock]"]),
        ("[clock]\ndelta_theta_ticks = '50'", ["clock.delta_theta_ticks = '50'", "a whole number at least 1"]),
        ("[clock]\ndelta_theta_ticks = 2.5", ["clock.delta_theta_ticks = 2.5", "for example 50"]),
        ("[succession]\nauto = 1", ["succession.auto = 1", "true or false"]),
        ("[succession]\nbudget_usdc = nan", ["succession.budget_usdc = nan", "above 0"]),
        ("[succession]\nbudget_usdc = -1", ["succession.budget_usdc = -1", "above 0"]),
        ("[death]\nreserve_share = 1.0", ["death.reserve_share = 1.0", "below 1"]),
        ("[clock]\ntheta_min_interval_secs = 500", ["500 is above clock.theta_max_interval_secs = 120"]),
        ("[heartbeat.probe_thresholds]\nhealth_factor_high = 2.0", ["above heartbeat.probe_thresholds.health_factor"]),
        ("[clock]\ndelta_theta_ticks = 20", ["clock.delta_theta_ticks = 20", "witness_ticks 50 does not divide"]),
        ("[clock\n", ["not TOML", "line 1"]),
        ("[styx]\nbudget = [1]", ["styx.budget", "is a section"]),
    ],
)
def test_an_error_names_file_key_value_and_cure(text: str, rows: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text, "/some/bardo.toml").policy(Policy())
    assert all(word in str(error.value) for word in ["/some/bardo.toml", *rows]), error.value


def test_an_omitted_key_keeps_its_value_in_force() -> None:
    standing = parse("[clock]\ntheta_max_interval_secs = 300", "x").policy(Policy())
    parsed = parse("[clock]\ntheta_min_interval_secs = 200", "x")
    assert parsed.complete(standing).clock.theta_max_interval_secs == 300
    with pytest.raises(ConfigError, match="is above"):
        parsed.complete(Policy())


def test_only_operational_keys_apply_without_an_adoption() -> None:
    parsed = parse("[heartbeat]\nwrite_batch_size = 7\nbase_deliberation_threshold = 0.5", "x").complete(Policy())
    policy = with_operations(Policy(), canonical(parsed))
    assert policy.writer.batch_records == 7
    assert policy.hash == Policy().hash
    assert policy.gate == Policy().gate


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "clock.delta_theta_ticks": st.integers(1, 200).map(lambda n: 50 * n),
            "heartbeat.probe_thresholds.price_delta_low_bps": st.floats(0.01, 200).map(lambda bps: round(bps, 4)),
            "heartbeat.write_batch_flush_interval_ms": st.integers(1, 10**7),
            "succession.budget_usdc": st.floats(0.01, 1e9),
            "succession.auto": st.booleans(),
            "death.reserve_min_usd": st.floats(0, 1e6).map(lambda usd: round(usd, 6)),
        },
    )
)
@some(60)
def test_a_recorded_configuration_reads_back_as_stated(values: dict[str, Any]) -> None:
    text = "\n".join(f"{key} = {str(v).lower() if isinstance(v, bool) else repr(v)}" for key, v in values.items())
    stated = parse(text, "x")
    configuration = stated.complete(Policy())
    content = canonical(configuration)
    assert read_recorded(content) == configuration == parse(to_toml(configuration), "x").complete(Policy())
    assert {key: flat(configuration)[key] for key in values} == values
    policy = stated.policy(Policy())
    assert configuration_hash(canonical(NO_CONFIG_FILE.complete(policy))) == configuration_hash(
        canonical(parse("\n".join(t for t in text.splitlines() if setting_of(t.split(" ")[0])), "x").complete(Policy()))
    ), "the settings in force equal those of the file"


def test_unknown_keys_of_another_version_are_ignored() -> None:
    content = '{"clock":{"delta_theta_ticks":100,"warp":9},"future":{"x":1}}'
    assert read_recorded(content).clock.delta_theta_ticks == 100
    assert with_operations(Policy(), content) == Policy()


MISSING = {"styx.marketplace_enabled"}
"""Keys of the layers that do not exist."""


def test_every_key_has_a_reader() -> None:
    assert all(reader_of(key) in (RUN, CLADE, VAULT, LETHE, NOT_READ) or setting_of(key) for key in keys())
    assert {key for key in keys() if reader_of(key) == NOT_READ and key.startswith("styx.")} == MISSING


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    assert stated_in(tmp_path) is NO_CONFIG_FILE
    with pytest.raises(ConfigError, match="no such file"):
        stated_in(tmp_path, tmp_path / "none.toml")
    (tmp_path / CONFIGURATION).write_bytes(b"[clock]\nx = '\xff'")
    with pytest.raises(ConfigError, match="not UTF-8"):
        stated_in(tmp_path)
    (tmp_path / CONFIGURATION).write_bytes(b"#" * 1_000_001)
    with pytest.raises(ConfigError, match="longer than"):
        stated_in(tmp_path)
    with pytest.raises(ConfigError, match="TOML file"):
        stated_in(tmp_path, tmp_path)


@pytest.mark.row("P-7")
def test_a_conversion_of_units_adds_no_float_digits() -> None:
    key = "heartbeat.probe_thresholds.price_delta_low_bps"
    assert in_setting_units(key, 3.0) == 0.0003 != 3.0 * 1e-4
