"""Reading of the configuration file bardo.toml."""

from __future__ import annotations

from pathlib import Path

from bardo_pipeline.errors import ConfigError
from bardo_pipeline.policy.toml_config import NO_CONFIG_FILE, ConfigFile, parse

FILE = "bardo.toml"
"""In the home's own folder, unless --config names another."""

BYTES_MAX = 1_000_000


def stated_in(root: Path, named: Path | None = None) -> ConfigFile:
    """Parse the named file, or the home's own; without either, return SILENT.

    Raises ConfigError if the named file is missing, is not UTF-8, or is rejected by `parse`.
    """
    path = named or root / FILE
    try:
        with path.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
    except FileNotFoundError:
        if named is None:
            return NO_CONFIG_FILE
        raise ConfigError(f"--config {path}: there is no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}: a configuration is a TOML file") from error
    if len(content) > BYTES_MAX:
        raise ConfigError(f"{path} is longer than {BYTES_MAX:,} bytes: a configuration has a few dozen keys")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 (byte {error.start}): save it as UTF-8") from None
    return parse(text, str(path))
