"""Tables of golems that are derived bucket by bucket equal those of one derivation, for any number of buckets.

A bucket's derivation is interleaved with those of the others, with whole derivations and with other numbers of buckets.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.checkpoints import checkpoint_of
from bardo_pipeline.derivation.strikes_and_reorgs import strike
from bardo_pipeline.storage.locks import held_if_free
from bardo_pipeline.storage.projections.derivation_folders import HashBucket
from tests.conftest import NOW
from tests.property.derivation.test_laws import (
    DERIVATIONS,
    Parcel,
    deliver,
    derive_all,
    derived_at_once,
    fingerprints,
    stores_at,
)
from tests.property.derivation.test_repair_laws import LATE, learner, repaired_parcels, stores  # noqa: F401
from tests.support.example_count import some
from tests.support.homes.homes_to_repair import derive_all_again, inherited_evidence, line, rebuilt_fingerprints

BY_GOLEM = DERIVATIONS[:8]
"""The derivations of tables whose rows depend on one golem."""


def derive_bucket(context: DerivationContext, number: int, count: int) -> None:
    bucket = context.in_bucket(HashBucket(number, count))
    for derive in BY_GOLEM:
        derive(bucket)


@pytest.mark.row("P-2", "X-4")
@some(4)
@given(repaired_parcels(), st.data())
def test_tables_are_independent_of_the_buckets_that_derived_them(arriving: list[Parcel], data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        home = stores_at(Path(folder) / "by bucket")
        count = data.draw(st.sampled_from((2, 5)))
        for number, parcel in enumerate(arriving):
            deliver(home, parcel, number)
            for derive in BY_GOLEM:
                for bucket in data.draw(st.lists(st.integers(0, count - 1), max_size=2)):
                    derive(home.in_bucket(HashBucket(bucket, count)))
            if data.draw(st.integers(0, 5)) == 0:
                derive_all(home)
                count = data.draw(st.sampled_from((1, 2, 5)))
        derive_all(home)
        wanted = derived_at_once(arriving, Path(folder) / "at once")
        event(f"{count} buckets at the end")
        assert fingerprints(home) == wanted


@pytest.mark.full
@pytest.mark.row("P-2")
def test_a_bucket_derives_its_golems_alone_and_another_division_drops_the_checkpoints(tmp_path: Path) -> None:
    home = stores_at(tmp_path / "home")
    arriving = list(chain(*(arrives(learner(f"g-{k}"), f"g-{k}") for k, arrives in enumerate(LATE.values()))))
    for number, parcel in enumerate(arriving):
        deliver(home, parcel, number)
    bucket = home.in_bucket(HashBucket(1, 2))
    derive_bucket(home, 1, 2)
    for name in ("curation", "cycles", "playbooks", "grimoire", "episodes", "crossings"):
        golems = set(home.projections.read(name)["golem_id"].to_pylist())
        assert golems, f"{name} is empty"
        assert all(map(bucket.holds, golems)), f"{name} has rows of {golems}"
    assert checkpoint_of(bucket, "curation").version == home.log.version
    derive_bucket(home, 0, 5)
    assert checkpoint_of(bucket, "curation").version is None
    derive_all(home)
    assert fingerprints(home) == derived_at_once(arriving, tmp_path / "at once")


@pytest.mark.row("P-2")
def test_a_derivation_of_all_golems_waits_for_buckets_and_a_bucket_for_itself(tmp_path: Path) -> None:
    home = stores_at(tmp_path / "home")
    lock = home.home.locks / f"derive-{home.projections.root.name}.lock"

    def is_free(name: str = "") -> bool:
        with held_if_free(lock.with_stem(lock.stem + name)) as is_free:
            return is_free

    with home.in_bucket(HashBucket(0, 2)).deriving():
        assert (is_free(), is_free("-0"), is_free("-1")) == (False, False, True)
        with home.in_bucket(HashBucket(1, 2)).deriving():
            assert not is_free("-1")
    with home.deriving():
        assert (is_free(), is_free("-0")) == (False, True)


@pytest.mark.full
@pytest.mark.row("X-4", "X-1")
@pytest.mark.parametrize("count", [2, 5])
def test_a_strike_reaches_an_heir_in_another_bucket(count: int, stores: DerivationContext, tmp_path: Path) -> None:  # noqa: F811
    golem, heir = line(stores)
    tick, _ = inherited_evidence(stores, golem, heir)
    strike(stores, golem, tick, "its sensor lied", now=NOW)
    derived, curation = set[str](), stores.projections.growing("curation")
    for number in range(count):
        derive_bucket(stores, number, count)
        derived |= set(filter(stores.in_bucket(HashBucket(number, count)).holds, stores.golem_ids()))
        assert set(curation.taken_back(["golem_id"])["golem_id"].to_pylist()) == derived & {golem, heir}
    derive_all_again(stores)
    assert fingerprints(stores) == rebuilt_fingerprints(stores, tmp_path / "beside")
