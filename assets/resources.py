"""The stores of one home as a resource: opened on first use, so that definitions load where there is no home yet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import dagster as dg

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.storage.home import home_root


class LazyStores:
    """The stores of the home under a root, for one run or one tick of a sensor."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def stores(self) -> DerivationContext:
        """The stores, opened now if they were not. Raises NoHomeError without a home."""
        return DerivationContext.open(self.root)

    @staticmethod
    def now() -> datetime:
        """The moment of recording, which no content depends on."""
        return datetime.now(UTC)

    def close(self) -> None:
        """Leave what makes the next opening faster."""
        if "stores" in self.__dict__:
            self.stores.log.close()


@dg.resource(description="The home that BARDO_HOME names, or ./.bardo: opened on first use, closed after the run.")
def home(_context: dg.InitResourceContext) -> Iterator[LazyStores]:
    """One home, for the length of a run."""
    lazy = LazyStores(home_root(os.environ))
    try:
        yield lazy
    finally:
        lazy.close()
