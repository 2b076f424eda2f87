"""The home as a Dagster resource, opened on first use, so that definitions load before a home exists."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import dagster as dg
from dagster._config.pythonic_config import ConfigurableResourceFactory
from pydantic import Field

from bardo_pipeline.clock import utc_now
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.storage.home import home_root, local_folder, owner_of_environment

DERIVE, INTAKE, READ = "derive", "intake", "read"
"""Pools of runs: runs of one pool follow each other, runs of different pools work at once. derive: writes derived
tables or maintains files; intake: records events; read: only reads the home."""


class LazyStores:
    """Derivation context of the home under `root`, for one run or one sensor tick. owner: limits it to this owner."""

    now = staticmethod(utc_now)

    def __init__(self, root: Path, owner: str | None = None) -> None:
        self.root, self.owner = root, owner

    @cached_property
    def stores(self) -> DerivationContext:
        """Open the derivation context on first access. Raises NoHomeError if there is no home."""
        return DerivationContext.open(self.root, owner=self.owner)

    def close(self) -> None:
        """Close the log, which saves its caches."""
        if "stores" in self.__dict__:
            self.stores.log.close()


class HomeResource(ConfigurableResourceFactory[LazyStores]):
    """The home of a run: opened on first use, closed after the run. Unset fields come from the environment."""

    root: str | None = Field(None, description="Folder of the home. Default: BARDO_HOME, else ./.bardo.")
    owner: str | None = Field(None, description="Owner that limits what the run sees. Default: BARDO_OWNER, else none.")

    def create_resource(self, context: dg.InitResourceContext) -> LazyStores:
        """Return the home of one run. Raises ConfigError for a root with a scheme."""
        root = home_root(os.environ) if self.root is None else local_folder(self.root)
        return LazyStores(root, self.owner or owner_of_environment(os.environ))

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator[LazyStores]:
        """Yield the home of one run, then close it."""
        lazy = self.create_resource(context)
        try:
            yield lazy
        finally:
            lazy.close()
