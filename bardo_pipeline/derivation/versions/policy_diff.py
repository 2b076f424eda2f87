"""Changed policies and their differences, by the dotted names of settings. Pure.

Source: X-3 (`bardo whatif --set decay.tactical_days=14`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import orjson
from pydantic import ValidationError

from bardo_pipeline.errors import ConfigError
from bardo_pipeline.policy import OPERATIONAL, Policy

FIXED = "log"
"""The part of a policy that is fixed when a home is created."""


class Setting(NamedTuple):
    """A setting that differs."""

    name: str
    before: Any
    after: Any


def altered(policy: Policy, texts: Iterable[str], overlay: Mapping[str, Any] | None = None) -> Policy:
    """Return the policy with changed settings.

    Raises ConfigError for an unknown name (with similar ones), an invalid value, or an operational or fixed part.

    Parameters
    ----------
    texts : NAME=VALUE with the value in JSON
    overlay : part -> settings, from a file
    """
    settings = policy.settings
    changes = {name: value for name, value in _flat(overlay or {}) if name not in settings or settings[name] != value}
    changes |= dict(_parsed(text) for text in texts)
    parts = policy.model_dump(mode="json")
    for name, value in changes.items():
        _check_name(name, settings)
        if str(value).strip().lstrip("+-").lower() in ("inf", "infinity", "nan"):
            raise ConfigError(f"{name} = {value}: a setting is finite; use a large number instead")
        part, _, setting = name.partition(".")
        parts[part][setting] = value
    try:
        changed = Policy.model_validate(parts)
        whole = Policy.model_validate_json(changed.model_dump_json())
    except ValidationError as error:
        raise ConfigError(_worded(error)) from error
    assert whole == changed, "a policy equals its JSON"
    return changed


def differences(before: Policy, after: Policy) -> tuple[Setting, ...]:
    """Return the settings in which two policies differ, by name, without operational settings."""
    old, new = before.settings, after.settings
    return tuple(
        Setting(name, old[name], new[name])
        for name in sorted(old)
        if old[name] != new[name] and name.partition(".")[0] not in OPERATIONAL
    )


def _flat(overlay: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for part, settings in overlay.items():
        if not isinstance(settings, Mapping):
            raise ConfigError(f'{part}: a policy has parts with settings, as {{"decay": {{"tactical_days": 14}}}}')
        for name, value in settings.items():
            yield f"{part}.{name}", value


def _parsed(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--set {text!r} is not NAME=VALUE: for example decay.tactical_days=14")
    try:
        return name.strip(), orjson.loads(value)
    except orjson.JSONDecodeError:
        return name.strip(), value.strip()


def _check_name(name: str, settings: Mapping[str, Any]) -> None:
    part = name.partition(".")[0]
    if name not in settings:
        near = difflib.get_close_matches(name, settings, n=4, cutoff=0.5)
        words = name.rsplit(".", maxsplit=1)[-1]
        near += [k for k in settings if k not in near and k.split(".")[-1] == words]
        hint = ", ".join(near or sorted({k.partition(".")[0] for k in settings}))
        intro = "the nearest are" if near else "its parts are"
        raise ConfigError(f"the policy has no setting {name!r}: {intro} {hint}")
    if part in OPERATIONAL:
        raise ConfigError(f"{name}: no projection depends on the part {part!r}, so there is nothing to compare")
    if part == FIXED:
        raise ConfigError(
            f"{name}: the part {part!r} is fixed when a home is created: create another home to change it"
        )


def _worded(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    name = ".".join(str(word) for word in first["loc"])
    return f"{name} = {first['input']!r}: {first['msg']}; `bardo whatif --set {name}=VALUE` takes another value"
