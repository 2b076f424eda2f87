"""The home as a Dagster resource, opened on first use, so that definitions load before a home exists."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import dagster as dg
from dagster._config.pythonic_config import ConfigurableResourceFactory
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG
from pydantic import Field

from bardo_pipeline.clock import utc_now
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.process_settings import DerivationSettings
from bardo_pipeline.storage.home import home_root, local_folder, owner_of_environment
from bardo_pipeline.storage.projections.derivation_folders import HashBucket

DERIVE, INTAKE, READ = "derive", "intake", "read"
"""Pools of runs: runs of one pool follow each other, runs of different pools work at once. derive: writes derived
tables or maintains files; intake: records events; read: only reads the home."""


BUCKET_COUNT = DerivationSettings.of(os.environ).buckets
BY_GOLEM: dict[str, Any] = {"pool": DERIVE}
"""Arguments of an asset whose rows depend on one golem each. With several hash buckets it has a partition for each:
runs of two partitions work at once, because the buckets' locks exclude no other bucket, and one run can take all."""

ALL_BUCKETS: dict[str, str] = {}
"""Tags of a run that takes all partitions."""

if BUCKET_COUNT > 1:
    _NAMES = [str(number) for number in range(BUCKET_COUNT)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)  # the version of Dagster is locked
        BY_GOLEM = {
            "partitions_def": dg.StaticPartitionsDefinition(_NAMES),
            "backfill_policy": dg.BackfillPolicy.single_run(),
        }
    ALL_BUCKETS = {ASSET_PARTITION_RANGE_START_TAG: _NAMES[0], ASSET_PARTITION_RANGE_END_TAG: _NAMES[-1]}


class LazyStores:
    """Derivation context of the home under `root`, for one run or one sensor tick. owner: limits it to this owner."""

    now = staticmethod(utc_now)

    def __init__(self, root: Path, owner: str | None = None) -> None:
        self.root, self.owner = root, owner

    @cached_property
    def stores(self) -> DerivationContext:
        """Open the derivation context on first access. Raises NoHomeError if there is no home."""
        return DerivationContext.open(self.root, owner=self.owner)

    def parts(self, context: dg.AssetExecutionContext) -> list[Self]:
        """Return the home limited to each hash bucket of the run's partitions; the whole home if these are all.

        Raises ConfigError if the assets have partitions and the run names none: Dagster fails at such a run later.
        """
        is_divided = context.has_partition_key or context.has_partition_key_range
        if BUCKET_COUNT > 1 and not is_divided:
            raise ConfigError(
                f"the run names none of the {BUCKET_COUNT} partitions (BARDO_BUCKETS): launch it from the UI with all "
                f"partitions, or by Dagster's command with --tags '{json.dumps(ALL_BUCKETS)}'"
            )
        if not is_divided or len(context.partition_keys) == BUCKET_COUNT:
            return [self]
        return [self._in_bucket(HashBucket(int(key), BUCKET_COUNT)) for key in context.partition_keys]

    def _in_bucket(self, bucket: HashBucket) -> Self:
        part = copy(self)
        part.stores = self.stores.in_bucket(bucket)
        return part

    def forget(self) -> None:
        """Open the derivation context anew on the next access."""
        self.__dict__.pop("stores", None)

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
