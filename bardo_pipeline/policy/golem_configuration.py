"""A golem's configuration, as bardo.toml says it: sections, keys, documented defaults. Pure.

Most keys set numbers of the policy, under the name and in the unit that the documents give them; some say how a run is
made; some are only kept for what is not built yet, and say so. docs/configuration.md is made from these models.
Source: HB S17 and adaptive clock, MEM ("Opt-in model"), INH S5 and S13; P-7.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from bardo_pipeline.policy import Policy

NOT_READ = "nothing"
"""Who reads a key that is validated and recorded for what is not built yet."""

RUN = "run"
"""Who reads a key that says how a run or a succession is made."""

_DEFAULTS = Policy().settings
_SECONDS: dict[str, Any] = {"ge": 1, "le": 86_400}


class Section(BaseModel):
    """A section of bardo.toml: immutable, and strict about names and types (an integer may stand for a number)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def _sets(setting: str, says: str, *, times: float = 1, whole: bool = False, **bounds: Any) -> Any:
    """A key that sets a number of the policy. times: what a unit of the key is in units of that setting."""
    value = _DEFAULTS[setting]
    default = value if times == 1 else round(value / times) if whole else _clean(value / times)
    return Field(default, description=says, json_schema_extra={"reads": setting, "times": times}, **bounds)


def _read_by(reader: str, default: Any, says: str, **bounds: Any) -> Any:
    return Field(default, description=says, json_schema_extra={"reads": reader}, **bounds)


def _clean(value: float) -> float:
    return float(f"{value:.12g}")


class Clock(Section):
    """The three clocks (HB, "The Adaptive Clock")."""

    gamma_min_interval_secs: int = _read_by(NOT_READ, 5, "perception, at its fastest (HB)", **_SECONDS)
    gamma_max_interval_secs: int = _read_by(NOT_READ, 15, "perception, at its slowest (HB)", **_SECONDS)
    theta_min_interval_secs: int = _sets(
        "regime.interval_seconds_min", "between two ticks, at least (HB)", ge=1, le=86_400
    )
    theta_max_interval_secs: int = _sets(
        "regime.interval_seconds_max", "between two ticks, at most (HB)", ge=1, le=86_400
    )
    delta_theta_ticks: int = _sets(
        "curator.cycle_ticks", "ticks of a curator cycle, a multiple of 50 (HB)", ge=1, le=10_000
    )


class RegimeMultipliers(Section):
    """What the regime makes of the interval (HB S9, S17)."""

    fast: float = _sets("regime.fast_multiplier", "volatile, or trending down: twice as fast (HB S9)", gt=0)
    slow: float = _sets("regime.slow_multiplier", "range-bound: half as fast (HB S9, canon 32)", gt=0)


class ProbeThresholds(Section):
    """Two thresholds a probe (HB S17)."""

    price_delta_low_bps: float = _sets("probes.price_delta_low", "price move since the last tick", times=1e-4, gt=0)
    price_delta_high_bps: float = _sets("probes.price_delta_high", "and at high severity", times=1e-4, gt=0)
    health_factor_low: float = _sets("probes.health_low", "health factor below", gt=0)
    health_factor_high: float = _sets("probes.health_high", "and at high severity", gt=0)
    world_model_drift_low: float = _sets("probes.drift_low", "world model error", gt=0)
    world_model_drift_high: float = _sets("probes.drift_high", "and at high severity", gt=0)


class Heartbeat(Section):
    """The tick (HB S17)."""

    base_interval_seconds: int = _sets(
        "regime.base_interval_seconds",
        "between two ticks, before the regime (HB S17: 15, of an older clock)",
        ge=1,
        le=86_400,
    )
    base_deliberation_threshold: float = _sets(
        "gate.base_threshold", "prediction error from which a golem thinks (HB S5, S17)", gt=0, le=1
    )
    max_daily_cost_usd: float = _sets(
        "gateway.daily_budget_micros",
        "that a golem may spend a UTC day, of which 5 % may go to memory: asking a language model (HB S17, MEM)",
        times=1_000_000, ge=0,
    )  # fmt: skip
    cost_warning_threshold: float = _read_by(NOT_READ, 0.7, "share of the daily cap (HB S17, canon 37)", ge=0, le=1)
    cost_soft_cap_threshold: float = _read_by(NOT_READ, 0.9, "share of the daily cap (HB S17, canon 37)", ge=0, le=1)
    write_batch_size: int = _sets("writer.batch_records", "records that seal a segment (HB S17)", ge=1)
    write_batch_flush_interval_ms: int = _sets(
        "writer.flush_seconds", "age that seals a segment (HB S17)", times=1e-3, whole=True, ge=1
    )
    regime_multipliers: RegimeMultipliers = RegimeMultipliers()
    probe_thresholds: ProbeThresholds = ProbeThresholds()


class Oracle(Section):
    """The golem's own predictions (canon, "oracle")."""

    enabled: bool = _read_by(RUN, True, "golems predict; without, surprise is what they see alone (HB S3)")
    fitness_window: int = _sets("prediction.fitness_window", "resolved predictions that count (canon)", ge=1)
    fitness_prior: float = _sets("prediction.fitness_prior", "share that held, before any was resolved", ge=0, le=1)
    fitness_prior_weight: float = _sets("prediction.fitness_prior_weight", "predictions that the prior is worth", gt=0)
    senescence: float = _sets("prediction.senescence", "fitness below kills (MEM)", ge=0, le=1)


class Vault(Section):
    """L0: encrypted backups (MEM; INH S5)."""

    ttl_days: int = _read_by(NOT_READ, 90, "that a backup is kept (INH S5, styx.vault.ttl)", ge=1)


class StyxBudget(Section):
    """What memory services may cost (MEM)."""

    max_per_tick_usd: float = _read_by(NOT_READ, 0.01, "a heartbeat tick (MEM)", ge=0)
    monthly_usd: float = _read_by(NOT_READ, 5.0, "a month, a hard cap (MEM)", ge=0)


class Injection(Section):
    """What of the layers comes into the context (MEM)."""

    max_tokens: int = _read_by(NOT_READ, 500, "for retrieved entries (MEM)", ge=0)
    min_confidence: float = _read_by(NOT_READ, 0.5, "of their publisher (MEM, canon 23)", ge=0, le=1)


class Styx(Section):
    """Shared memory services (MEM, "Opt-in model"). No layer is built: the keys are validated and recorded."""

    vault_enabled: bool = _read_by(NOT_READ, False, "L0: encrypted backup (MEM)")
    clade_enabled: bool = _read_by(NOT_READ, False, "L1: what one owner's golems share (MEM)")
    lethe_enabled: bool = _read_by(NOT_READ, False, "L2: public, anonymous (MEM)")
    marketplace_enabled: bool = _read_by(NOT_READ, False, "L3: commerce (MEM)")
    vault: Vault = Vault()
    budget: StyxBudget = StyxBudget()
    injection: Injection = Injection()


class Succession(Section):
    """What happens by itself when a golem has died (INH S13)."""

    auto: bool = _read_by(RUN, False, "an heir is provisioned by itself (INH S13 shows true)")
    budget_usdc: float = _read_by(RUN, 50.0, "that it is founded with, from the owner's credit (INH S13)", gt=0)
    strategy_drift_allowed: float = _read_by(
        RUN, 0.15, "divergence below which succession halts: a minimum (INH S13, canon 43)", ge=0, le=1
    )
    inherit_grimoire: bool = _read_by(RUN, True, "the heir gets what crossed (INH S13)")


class Death(Section):
    """What is kept for dying, and what is left (MEM, INH S7)."""

    reserve_min_usd: float = _sets("mortality.reserve_min_micros", "death reserve, at least (MEM)", times=1e6, ge=0)
    reserve_share: float = _sets("mortality.reserve_share", "or this share of the first balance (MEM)", ge=0, lt=1)
    silence_hours: float = _sets("dying.silence_hours", "without a tick, after which a golem is declared dead", gt=0)
    entries_max: int = _sets("inheritance.budget", "entries that cross a death (INH S7.1)", ge=1)
    episodes: int = _sets("inheritance.episode_count", "episodes in a bundle (canon 41)", ge=0)
    testament_bytes_max: int = _sets("inheritance.testament_bytes_max", "of the testament's page (MEM)", ge=2048)
    phrased_testaments: bool = _sets(
        "gateway.phrases_testaments", "a language model phrases testaments; what was derived stands beside (INH-3)"
    )


class Configuration(Section):
    """All of bardo.toml. `Configuration()` is what the documents say."""

    clock: Clock = Clock()
    heartbeat: Heartbeat = Heartbeat()
    oracle: Oracle = Oracle()
    styx: Styx = Styx()
    succession: Succession = Succession()
    death: Death = Death()


@cache
def keys() -> dict[str, FieldInfo]:
    """Every key by its dotted name, in the order of the sections."""
    return dict(_walk(Configuration, ""))


def sections() -> dict[str, type[Section]]:
    """Every section by its dotted name, those inside of others too."""
    found: dict[str, type[Section]] = {}
    waiting: list[tuple[str, type[BaseModel]]] = [("", Configuration)]
    while waiting:
        prefix, model = waiting.pop(0)
        for name, field in model.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
                found[prefix + name] = field.annotation
                waiting.append((f"{prefix}{name}.", field.annotation))
    return found


def _walk(model: type[BaseModel], prefix: str) -> list[tuple[str, FieldInfo]]:
    found: list[tuple[str, FieldInfo]] = []
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            found += _walk(inner, f"{prefix}{name}.")
        else:
            found.append((prefix + name, field))
    return found


def reader_of(key: str) -> str:
    """Who reads a key: the policy's setting, RUN or NOT_READ."""
    return str(_more(key)["reads"])


def _more(key: str) -> dict[str, Any]:
    more = keys()[key].json_schema_extra
    assert isinstance(more, dict), f"{key} says who reads it"
    return more


def setting_of(key: str) -> tuple[str, float] | None:
    """The policy's setting that a key sets, and the factor from its unit to the setting's; None for other keys."""
    more = _more(key)
    return (more["reads"], more["times"]) if "times" in more else None


def in_setting_units(key: str, value: Any) -> Any:
    """A key's value as the policy has it: whole where the setting is whole."""
    found = setting_of(key)
    assert found is not None, f"{key} sets nothing of the policy"
    setting, times = found
    if times == 1:
        return value
    scaled = _clean(value * times)
    return round(scaled) if isinstance(_DEFAULTS[setting], int) else scaled


def in_key_units(key: str, value: Any) -> Any:
    """A setting's value as bardo.toml has it."""
    found = setting_of(key)
    assert found is not None, f"{key} sets nothing of the policy"
    if found[1] == 1:
        return value
    scaled = _clean(value / found[1])
    return round(scaled) if keys()[key].annotation is int else scaled
