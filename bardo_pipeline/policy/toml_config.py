"""Parsing of bardo.toml, and its application to a policy. Pure: text in, configuration out.

A key that the file omits keeps its active value, or the documented default if no value is active. Source: P-7.
"""

from __future__ import annotations

import difflib
import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import ValidationError

from bardo_pipeline.errors import ConfigError
from bardo_pipeline.policy import OPERATIONAL, Policy
from bardo_pipeline.policy.golem_configuration import (
    Configuration,
    in_key_units,
    in_setting_units,
    keys,
    sections,
    setting_of,
)

ORDERED_KEYS = (
    ("clock.gamma_min_interval_secs", "clock.gamma_max_interval_secs"),
    ("clock.theta_min_interval_secs", "clock.theta_max_interval_secs"),
    ("heartbeat.cost_warning_threshold", "heartbeat.cost_soft_cap_threshold"),
    ("heartbeat.probe_thresholds.price_delta_low_bps", "heartbeat.probe_thresholds.price_delta_high_bps"),
    ("heartbeat.probe_thresholds.health_factor_high", "heartbeat.probe_thresholds.health_factor_low"),
    ("heartbeat.probe_thresholds.world_model_drift_low", "heartbeat.probe_thresholds.world_model_drift_high"),
    ("heartbeat.regime_multipliers.fast", "heartbeat.regime_multipliers.slow"),
)
"""Pairs of keys: the first value must not exceed the second."""


@dataclass(frozen=True)
class ConfigFile:
    """Content of a bardo.toml: values by dotted key, in the order of the sections. source: the path, for messages."""

    source: str
    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Return the file name without its folder."""
        return self.source.replace("\\", "/").rpartition("/")[2]

    def complete(self, policy: Policy) -> Configuration:
        """Return the whole configuration: the file's values, and the policy's for all other keys.

        Raises ConfigError if a pair of ORDERED_KEYS keys contradicts itself.
        """
        settings = policy.settings
        values: dict[str, Any] = {}
        for key, field in keys().items():
            mapped = setting_of(key)
            values[key] = field.default if mapped is None else in_key_units(key, settings[mapped[0]])
        values |= self.values
        for low, high in ORDERED_KEYS:
            if values[low] > values[high]:
                raise ConfigError(
                    f"{self.source}: {low} = {toml(values[low])} is above {high} = {toml(values[high])}: "
                    "lower the first or raise the second"
                )
        return Configuration.model_validate(nested(values))

    def policy(self, policy: Policy) -> Policy:
        """Return the policy with the file's values. Raises ConfigError if they contradict each other or the policy."""
        return with_settings(policy, flat(self.complete(policy)), self.source, only=None)


NO_CONFIG_FILE = ConfigFile("defaults", {})
"""Stands for a missing bardo.toml."""


def parse(text: str, source: str) -> ConfigFile:
    """Parse a bardo.toml. Raises ConfigError that names file, key, value and the correction."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not TOML: {error}; a line is `key = value` under a [section]") from error
    try:
        configuration = Configuration.model_validate(document)
    except ValidationError as error:
        raise ConfigError(f"{source}: {_describe(error)}") from error
    stated = _flatten(document, "")
    return ConfigFile(source, {key: value for key, value in flat(configuration).items() if key in stated})


def with_settings(policy: Policy, values: Mapping[str, Any], source: str, *, only: tuple[str, ...] | None) -> Policy:
    """Return the policy with these keys' settings, limited to the parts in `only` (None: all parts)."""
    parts, settings = policy.model_dump(mode="json"), policy.settings
    changed: dict[str, list[str]] = {}
    for key, value in values.items():
        mapped = setting_of(key)
        if mapped is None or in_key_units(key, settings[mapped[0]]) == value:
            continue
        part, _, setting = mapped[0].partition(".")
        if only is None or part in only:
            parts[part][setting] = in_setting_units(key, value)
            changed.setdefault(part, []).append(f"{key} = {toml(value)}")
    try:
        return Policy.model_validate(parts)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        part = str(first["loc"][0])
        causes = ", ".join(changed.get(part, [])) or "the file"
        reason = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{source}: {causes}: {reason} (the policy's part {part!r}): write another value") from error


def with_operations(policy: Policy, configuration: str) -> Policy:
    """Return the policy with the operational settings of a recorded configuration.

    configuration: canonical JSON, possibly of another version; unknown keys are ignored.
    """
    values = _flatten(orjson.loads(configuration), "", known_only=True)
    return with_settings(policy, values, "the recorded configuration", only=OPERATIONAL)


def canonical(configuration: Configuration) -> str:
    """Return the configuration as JSON with sorted keys."""
    return orjson.dumps(configuration.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS).decode()


def configuration_hash(content: str) -> str:
    """Return the first 16 hex characters of the SHA-256 of the canonical JSON."""
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def read_recorded(content: str) -> Configuration:
    """Read a recorded configuration of any version: ignore unknown keys, use defaults for new ones."""
    return Configuration.model_validate(nested(_flatten(orjson.loads(content), "", known_only=True)))


def flat(configuration: Configuration) -> dict[str, Any]:
    """Return every key with its value, by dotted name."""
    return _flatten(configuration.model_dump(mode="json"), "")


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted names as nested sections."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        *path, name = key.split(".")
        owner = out
        for section in path:
            owner = owner.setdefault(section, {})
        owner[name] = value
    return out


def to_toml(configuration: Configuration) -> str:
    """Return the configuration as the text of a bardo.toml."""
    lines: list[str] = []
    section = ""
    for key, value in flat(configuration).items():
        owner, _, name = key.rpartition(".")
        if owner != section:
            lines += ["", f"[{owner}]"] if lines else [f"[{owner}]"]
            section = owner
        lines.append(f"{name} = {toml(value)}")
    return "\n".join(lines) + "\n"


def commented_toml() -> str:
    """Return a bardo.toml that states nothing: each key is a comment with its default and its meaning."""
    parts = [
        "## Configuration of the golems of this home. A line that begins with one # is a key with its default.\n"
        "## `bardo config check` validates the file; `bardo config adopt --why REASON` puts it in force.\n"
    ]
    for name, model in sections().items():
        own = [key for key in keys() if key.rpartition(".")[0] == name]
        lines = [
            f"# {key.rpartition('.')[2]} = {toml(keys()[key].default)}  # {keys()[key].description}" for key in own
        ]
        parts.append("\n".join(["", f"## {model.__doc__}", f"[{name}]", *lines, ""]))
    return "".join(parts)


def toml(value: Any) -> str:
    """Return a value in TOML syntax."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _flatten(sections: Mapping[str, Any], prefix: str, *, known_only: bool = False) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in sections.items():
        key = prefix + name
        if isinstance(value, Mapping):
            out |= _flatten(value, f"{key}.", known_only=known_only)
        elif not known_only or key in keys():
            out[key] = value
    return out


def _describe(error: ValidationError) -> str:
    """Describe the first fault and its correction."""
    first = error.errors(include_url=False)[0]
    name, value = ".".join(str(word) for word in first["loc"]), first["input"]
    if first["type"] == "extra_forbidden":
        return f"{name} = {_shown(value)}: {_unknown(name)}"
    if name in sections() and not isinstance(value, Mapping):
        return f"{name} = {_shown(value)}: it is a section; write [{name}] and its keys below"
    field = keys()[name]
    kind = {int: "a whole number", float: "a number", bool: "true or false"}[field.annotation]  # type: ignore[index]
    bounds = [
        f"{word} {limit:g}"
        for part in field.metadata
        for attribute, word in (("gt", "above"), ("ge", "at least"), ("lt", "below"), ("le", "at most"))
        if (limit := getattr(part, attribute, None)) is not None
    ]
    wanted = " ".join([kind, " and ".join(bounds)]).strip()
    return f"{name} = {_shown(value)}: write {wanted}, for example {toml(field.default)}"


def _shown(value: Any) -> str:
    return toml(value) if isinstance(value, bool | int | float | str) else str(value)


def _unknown(name: str) -> str:
    known = [*keys(), *sections()]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    last = name.rsplit(".", maxsplit=1)[-1]
    near += [k for k in keys() if k.rsplit(".", maxsplit=1)[-1] == last and k not in near]
    owner = name.rpartition(".")[0]
    siblings = [k for k in keys() if k.rpartition(".")[0] == owner]
    names = ", ".join(near or siblings or list(Configuration.model_fields))
    return f"there is no such key; {'the nearest are' if near else 'there are'} {names}"
