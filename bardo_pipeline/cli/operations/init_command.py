"""`bardo init`: an empty home with a commented bardo.toml."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument

from bardo_pipeline.cli.options import now, root_of
from bardo_pipeline.cli.output.tables import say
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.policy import Policy
from bardo_pipeline.policy.toml_config import commented_toml
from bardo_pipeline.storage.home import CONFIGURATION, DESCRIPTION, MANIFEST, Home, replace_file
from bardo_pipeline.storage.operations.dagster_settings import prepare_dagster_home


def init(
    home: Annotated[Path | None, Argument(help="Folder of the new home (default: BARDO_HOME, else ./.bardo).")] = None,
) -> None:
    """Make a home without golems, with a bardo.toml that explains every key, and Dagster's settings."""
    root = root_of(home)
    for name, kind in ((DESCRIPTION, "home"), (MANIFEST, "backup")):
        if (root / name).exists():
            shown = f"`bardo status --home {root}` shows it"
            raise ConfigError(f"{root} is a {kind} already: {shown}; name another folder for a new home")
    prepare_dagster_home(Home.create(root, Policy(), now()))
    file = root / CONFIGURATION
    if not file.exists():
        replace_file(file, commented_toml().encode())
    say(f"{root} is a home: {file} explains its configuration, and `bardo config check` validates it")
    say("`bardo run` lets a fleet live in it, `bardo golem birth` founds a runtime's golem, `bardo serve` serves it")
