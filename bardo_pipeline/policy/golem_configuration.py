"""A golem's configuration in bardo.toml: sections, keys, documented defaults. Pure.

Most keys set a number of the policy, under the documents' name and unit. Some configure a run. Keys of features that
do not exist yet are validated, recorded and ignored. docs/configuration.md is generated from these models.
Source: HB S17 and adaptive clock, MEM ("Opt-in model"), INH S5 and S13; P-7.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, TypeGuard

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from bardo_pipeline.policy import Policy

NOT_READ = "nothing"
"""Reader of a key whose feature does not exist yet."""

RUN = "run"
"""Reader of a key that configures a run or a succession."""

CLADE = "clade"
"""Reader of a key that configures the exchange with the clade."""

LETHE = "lethe"
"""Reader of a key that configures public posts and the budgets of shared memory."""

VAULT = "vault"
"""Reader of a key that configures the backup of the clade."""

_DEFAULTS = Policy().settings
_SECONDS: dict[str, Any] = {"ge": 1, "le": 86_400}


class Section(BaseModel):
    """A section of bardo.toml: immutable, rejects unknown names and wrong types (an integer is a valid float)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def _sets(setting: str, description: str, *, times: float = 1, whole: bool = False, **bounds: Any) -> Any:
    """Declare a key that sets `setting` of the policy; `times` converts the key's unit to the setting's."""
    value = _DEFAULTS[setting]
    default = value if times == 1 else round(value / times) if whole else _clean(value / times)
    return Field(default, description=description, json_schema_extra={"reads": setting, "times": times}, **bounds)


def _read_by(reader: str, default: Any, description: str, **bounds: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"reads": reader}, **bounds)


def _clean(value: float) -> float:
    return float(f"{value:.12g}")


class Clock(Section):
    """The three clocks (HB, "The Adaptive Clock")."""

    gamma_min_interval_secs: int = _sets("clocks.gamma_seconds_min", "shortest interval of perception (HB)", **_SECONDS)
    gamma_max_interval_secs: int = _sets("clocks.gamma_seconds_max", "longest interval of perception (HB)", **_SECONDS)
    theta_min_interval_secs: int = _sets(
        "regime.interval_seconds_min", "shortest interval between two ticks (HB)", ge=1, le=86_400
    )
    theta_max_interval_secs: int = _sets(
        "regime.interval_seconds_max", "longest interval between two ticks (HB)", ge=1, le=86_400
    )
    delta_theta_ticks: int = _sets(
        "curator.cycle_ticks", "ticks of a curator cycle, a multiple of 50 (HB)", ge=1, le=10_000
    )


class RegimeMultipliers(Section):
    """Multipliers of the tick interval by regime (HB S9, S17)."""

    fast: float = _sets("regime.fast_multiplier", "while volatile or trending down (HB S9)", gt=0)
    slow: float = _sets("regime.slow_multiplier", "while range-bound (HB S9, canon 32)", gt=0)


class ProbeThresholds(Section):
    """Low and high severity thresholds of probes (HB S17)."""

    price_delta_low_bps: float = _sets(
        "probes.price_delta_low", "price move since the last tick, low severity", times=1e-4, gt=0
    )
    price_delta_high_bps: float = _sets("probes.price_delta_high", "the same, high severity", times=1e-4, gt=0)
    health_factor_low: float = _sets("probes.health_low", "health factor below this, low severity", gt=0)
    health_factor_high: float = _sets("probes.health_high", "the same, high severity", gt=0)
    world_model_drift_low: float = _sets("probes.drift_low", "world model error, low severity", gt=0)
    world_model_drift_high: float = _sets("probes.drift_high", "the same, high severity", gt=0)


class Heartbeat(Section):
    """The tick (HB S17)."""

    base_interval_seconds: int = _sets(
        "regime.base_interval_seconds",
        "tick interval before the regime multiplier (HB S17 has 15, for an older clock)",
        ge=1,
        le=86_400,
    )
    base_deliberation_threshold: float = _sets(
        "gate.base_threshold", "prediction error from which a golem deliberates (HB S5, S17)", gt=0, le=1
    )
    max_daily_cost_usd: float = _sets(
        "gateway.daily_budget_micros",
        "budget per golem and UTC day, for inference and gas; 5 % of it may pay for memory (HB S17, MEM)",
        times=1_000_000, ge=0,
    )  # fmt: skip
    cost_warning_threshold: float = _sets(
        "spending.large_model_share",
        "share of the daily budget from which T2 falls to T1 (HB S17, canon 37)",
        ge=0,
        le=1,
    )
    cost_soft_cap_threshold: float = _sets(
        "spending.model_share", "share of the budget from which no model is asked (HB S17, canon 37)", ge=0, le=1
    )
    write_batch_size: int = _sets("writer.batch_records", "records that seal a segment (HB S17)", ge=1)
    write_batch_flush_interval_ms: int = _sets(
        "writer.flush_seconds", "age that seals a segment (HB S17)", times=1e-3, whole=True, ge=1
    )
    regime_multipliers: RegimeMultipliers = RegimeMultipliers()
    probe_thresholds: ProbeThresholds = ProbeThresholds()


class Oracle(Section):
    """The golem's own predictions (canon, "oracle")."""

    enabled: bool = _read_by(RUN, True, "golems predict; if false, surprise uses observations alone (HB S3)")
    fitness_window: int = _sets("prediction.fitness_window", "resolved predictions that count (canon)", ge=1)
    fitness_prior: float = _sets("prediction.fitness_prior", "prior share of correct predictions", ge=0, le=1)
    fitness_prior_weight: float = _sets("prediction.fitness_prior_weight", "weight of the prior, in predictions", gt=0)
    senescence: float = _sets("prediction.senescence", "a golem with a lower fitness dies (MEM)", ge=0, le=1)


class Vault(Section):
    """L0: encrypted backups (MEM; INH S6.5)."""

    ttl_days: int = _read_by(VAULT, 90, "days that a backup is kept (INH S6.5, styx.vault.ttl)", ge=1, le=366)


class StyxBudget(Section):
    """Budgets of memory services (MEM)."""

    max_per_tick_usd: float = _read_by(LETHE, 0.01, "budget per tick (MEM)", ge=0)
    monthly_usd: float = _read_by(LETHE, 5.0, "budget per month, a hard cap (MEM)", ge=0)


class Injection(Section):
    """Entries of the layers that enter the context (MEM)."""

    max_tokens: int = _read_by(LETHE, 500, "tokens of retrieved entries (MEM)", ge=0)
    min_confidence: float = _read_by(LETHE, 0.5, "lowest confidence of the publisher (MEM, canon 23)", ge=0, le=1)


class Styx(Section):
    """Shared memory services (MEM, "Opt-in model"). The marketplace does not exist yet."""

    vault_enabled: bool = _read_by(VAULT, False, "L0: encrypted backup (MEM)")
    clade_enabled: bool = _read_by(CLADE, False, "L1: memory shared by one owner's golems (MEM)")
    lethe_enabled: bool = _read_by(LETHE, False, "L2: public, anonymous (MEM)")
    marketplace_enabled: bool = _read_by(NOT_READ, False, "L3: commerce (MEM)")
    vault: Vault = Vault()
    budget: StyxBudget = StyxBudget()
    injection: Injection = Injection()


class Succession(Section):
    """Automatic succession after a death (INH S13)."""

    auto: bool = _read_by(RUN, False, "provision an heir automatically (INH S13 shows true)")
    budget_usdc: float = _read_by(RUN, 50.0, "founding balance of the heir, from the owner's credit (INH S13)", gt=0)
    strategy_drift_allowed: float = _read_by(
        RUN, 0.15, "divergence below which succession halts: a minimum (INH S13, canon 43)", ge=0, le=1
    )
    inherit_grimoire: bool = _read_by(RUN, True, "the heir inherits entries (INH S13)")


class Death(Section):
    """The death reserve, declaration of deaths, and the bundle (MEM, INH S7)."""

    reserve_min_usd: float = _sets("mortality.reserve_min_micros", "smallest death reserve (MEM)", times=1e6, ge=0)
    reserve_share: float = _sets(
        "mortality.reserve_share", "death reserve as a share of the first balance (MEM)", ge=0, lt=1
    )
    silence_hours: float = _sets(
        "dying.silence_hours", "hours without a tick until a golem is declared dead", gt=0, le=876_600
    )
    entries_max: int = _sets("inheritance.budget", "entries inherited at a death (INH S7.1)", ge=1)
    episodes: int = _sets("inheritance.episode_count", "episodes in a bundle (canon 41)", ge=0)
    testament_bytes_max: int = _sets("inheritance.testament_bytes_max", "size of the testament's page (MEM)", ge=2048)
    phrased_testaments: bool = _sets(
        "gateway.phrases_testaments", "a language model phrases testaments; the derived text is kept too (INH-3)"
    )


class Configuration(Section):
    """All of bardo.toml. `Configuration()` holds the documented defaults."""

    clock: Clock = Clock()
    heartbeat: Heartbeat = Heartbeat()
    oracle: Oracle = Oracle()
    styx: Styx = Styx()
    succession: Succession = Succession()
    death: Death = Death()


@cache
def keys() -> dict[str, FieldInfo]:
    """Return every key by dotted name, in the order of the sections."""
    return {name: field for name, field in _walk(Configuration, "") if not _is_section(field.annotation)}


def sections() -> dict[str, type[Section]]:
    """Return every section by dotted name; nested ones follow their owner."""
    return {name: field.annotation for name, field in _walk(Configuration, "") if _is_section(field.annotation)}


def _is_section(annotation: Any) -> TypeGuard[type[Section]]:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def _walk(model: type[Section], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        yield prefix + name, field
        if _is_section(field.annotation):
            yield from _walk(field.annotation, f"{prefix}{name}.")


def reader_of(key: str) -> str:
    """Return the reader of a key: a setting of the policy, RUN, CLADE, VAULT or NOT_READ."""
    return str(_extra(key)["reads"])


def _extra(key: str) -> dict[str, Any]:
    extra = keys()[key].json_schema_extra
    assert isinstance(extra, dict), f"{key} declares its reader"
    return extra


def setting_of(key: str) -> tuple[str, float] | None:
    """Return the policy setting of a key and the factor from key unit to setting unit, or None."""
    extra = _extra(key)
    return (extra["reads"], extra["times"]) if "times" in extra else None


def in_setting_units(key: str, value: Any) -> Any:
    """Convert a key's value to the unit of its setting; round it if the setting is an integer."""
    mapped = setting_of(key)
    assert mapped is not None, f"{key} sets no setting of the policy"
    setting, times = mapped
    if times == 1:
        return value
    scaled = _clean(value * times)
    return round(scaled) if isinstance(_DEFAULTS[setting], int) else scaled


def in_key_units(key: str, value: Any) -> Any:
    """Convert a setting's value to the unit of its key in bardo.toml."""
    mapped = setting_of(key)
    assert mapped is not None, f"{key} sets no setting of the policy"
    if mapped[1] == 1:
        return value
    scaled = _clean(value / mapped[1])
    return round(scaled) if keys()[key].annotation is int else scaled
