"""Fixtures that all tests share: small homes, each built once a session; a test works on its own copy."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.versions.policy_diff import altered
from bardo_pipeline.derivation.versions.rebuild import derive_everything
from bardo_pipeline.events.life.events import LifeEvent
from bardo_pipeline.events.life.thanatopsis_events import PHASES_OF_DYING
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.market.synthetic import synthetic_market
from bardo_pipeline.policy import Policy
from bardo_pipeline.runtime.fleet_run import FleetRun, Run
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.warehouse.build import build_warehouse
from tests.support.example_count import use_repeated_examples

use_repeated_examples()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A background job of a shell ignores SIGINT. Dagster gives SIGTERM the handler of SIGINT, and a child process would
    # inherit that SIGTERM is ignored: a server that is told to stop before it sets its own handler would go on.
    signal.signal(signal.SIGINT, signal.default_int_handler)

NOW = datetime(2026, 11, 1, tzinfo=UTC)
"""Recording time of test records; no record content depends on it."""

DERIVED = ("BundleJudged", "BundlePublished", *PHASES_OF_DYING)
"""Event kinds that follow a death."""


LIVELY = altered(
    Policy(),
    [
        "curator.cluster_min=2", "curator.false_alarm=0.99", "curator.witness_ticks=1", "curator.effect_min_ppm=1",
        "curator.effect_sigma_prior_ppm=100", "playbook.trial_score_min=0", "gate.base_threshold=0.05",
        "gate.threshold_max=0.05", "gate.attention_prior_weight=1000000000",
    ],
)  # fmt: skip
"""Policy under which golems deliberate at every tick, judge every decision and form beliefs at once.

Short lives then yield enough entries to compare.
"""


@pytest.fixture(scope="session")
def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder shared by all processes of a session (pytest-xdist gives each worker a folder inside it)."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base


@contextmanager
def one_at_a_time(lock: Path) -> Iterator[None]:
    """Hold a lock file, so that only one process of the session builds a fixture at a time."""
    with lock.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session", autouse=True)
def embedders(session_folder: Path) -> Path:
    """Folder of the embedder models that all homes of a session share: 87 MB, built once on first use."""
    folder = session_folder / "embedders"
    os.environ["BARDO_EMBEDDERS"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def small_home(session_folder: Path) -> Path:
    """A home with 3 golems and their heirs over 700 minutes of a synthetic market. Copy it before writing.

    It holds about 6 births and deaths with a published bundle each, 1,400 records, all of curation and the episodes of
    dead golems; no votes, facts or marts.
    """
    root = session_folder / "small_home"
    with one_at_a_time(session_folder / "small_home.lock"):
        if not (root / "done").exists():
            shutil.rmtree(root, ignore_errors=True)
            Home.create(root, Policy(), NOW)
            stores = DerivationContext.open(root)
            market = synthetic_market(seed=7, bars=700, start=datetime(2026, 1, 1, tzinfo=UTC))
            run = Run(
                name="small", market=market, golems=3, generations=2, founding=Founding(lifespan_ticks=(150, 300))
            )
            ending = FleetRun(stores, run, lambda: NOW).live()
            stores.log.close()
            assert ending.births > 3, f"a golem must have an heir: {ending}"
            assert ending.deaths == ending.published > 3, f"every death must have left a bundle: {ending}"
            (root / "done").touch()
    return root


@pytest.fixture(scope="session")
def half_lived(session_folder: Path) -> Path:
    """A home whose golems have lived six cycles and are still alive (tests/support/homes/owner_events.py).

    Copy before writing.
    """
    from tests.support.homes.owner_events import live_until

    root = session_folder / "half_lived"
    with one_at_a_time(session_folder / "half_lived.lock"):
        if not (root / "done").exists():
            shutil.rmtree(root, ignore_errors=True)
            Home.create(root, Policy(), NOW)
            live_until(DerivationContext.open(root), 300, NOW)
            (root / "done").touch()
    return root


@pytest.fixture
def copied_home(small_home: Path, tmp_path: Path) -> Path:
    """A copy of the small home that the test may change."""
    return copy_home(small_home, tmp_path / "home")


def copy_home(source: Path, target: Path) -> Path:
    """Copy a home."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("done"))
    return target


def home_without_verdicts(source: Path, target: Path) -> Path:
    """Copy a home's log without verdicts and publications into a new home; nothing is derived from it yet.

    The bundles that heirs were born with are copied too, because heirs cannot start without them.
    """
    home, source_tables = Home.create(target, Policy(), NOW), DerivationContext.open(source)
    shutil.copytree(source_tables.home.vectors, home.vectors)
    rows = source_tables.log.life().drop_columns("recorded_at").to_pylist()
    for row in rows:
        if row["born"] and (bundle_hash := row["born"]["bundle_hash"]):
            shutil.copytree(source_tables.home.bundles / bundle_hash, home.bundles / bundle_hash)
    events = [LifeEvent.model_validate(r) for r in rows if r["kind"] not in DERIVED]
    with EventLog(home) as log:
        log.record(events, NOW)
        log.append(
            source_tables.log.read_cycles(RECORD_SCHEMA.names).cast(RECORD_SCHEMA),
            writer="copy",
            segment=1,
            recorded_at=NOW,
        )
    return target


@pytest.fixture
def at_home(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Path]:
    """Return a function that sets BARDO_HOME to a folder and returns that folder."""

    def settle(root: Path) -> Path:
        monkeypatch.setenv("BARDO_HOME", str(root))
        return root

    return settle


@pytest.fixture(scope="session")
def asked_home(small_home: Path, session_folder: Path) -> Path:
    """The small home with every table derived, but no marts. Read-only."""
    root = session_folder / "asked_home"
    with one_at_a_time(session_folder / "asked_home.lock"):
        if not (root / "done").exists():
            shutil.rmtree(root, ignore_errors=True)
            copy_home(small_home, root)
            derive_everything(DerivationContext.open(root), now=NOW)
            (root / "done").touch()
    return root


@pytest.fixture(scope="session")
def marts_home(asked_home: Path, session_folder: Path) -> Path:
    """The small home with every table and mart. Read-only. dbt takes most of its time, so only full tests use it."""
    root = session_folder / "marts_home"
    with one_at_a_time(session_folder / "marts_home.lock"):
        if not (root / "done").exists():
            shutil.rmtree(root, ignore_errors=True)
            stores = DerivationContext.open(copy_home(asked_home, root))
            build_warehouse(stores.home, stores.derivation_id, stores.policy)
            (root / "done").touch()
    return root


@pytest.fixture(scope="session")
def brief_home(session_folder: Path) -> Path:
    """A home of two golems and their heirs of about two hours each, with every table derived. Copy before writing."""
    root = session_folder / "brief_home"
    with one_at_a_time(session_folder / "brief_home.lock"):
        if not (root / "done").exists():
            shutil.rmtree(root, ignore_errors=True)
            Home.create(root, Policy(), NOW)
            stores = DerivationContext.open(root)
            market = synthetic_market(seed=7, bars=300, start=datetime(2026, 1, 1, tzinfo=UTC))
            founding = Founding(lifespan_ticks=(100, 140))
            FleetRun(stores, Run("brief", market, golems=2, generations=2, founding=founding), lambda: NOW).live()
            derive_everything(stores, now=NOW)
            (root / "done").touch()
    return root


@pytest.fixture(scope="session")
def lively_home(session_folder: Path) -> Path:
    """A home of 3 golems under LIVELY and their heirs, with every projection up to date. Copy before writing."""
    root = session_folder / "lively_home"
    with one_at_a_time(session_folder / "lively_home.lock"):
        if not (root / "done").exists():
            shutil.rmtree(root, ignore_errors=True)
            Home.create(root, LIVELY, NOW)
            stores = DerivationContext.open(root, policy=LIVELY)
            # Windows of 4 hours begin at 04:00, so each founder lives through one: ticks 6 to 246.
            market = synthetic_market(seed=7, bars=600, start=datetime(2026, 1, 1, 3, 55, tzinfo=UTC))
            founding = Founding(lifespan_ticks=(250, 300), credit_share=0.08)
            FleetRun(stores, Run("lively", market, golems=3, generations=2, founding=founding), lambda: NOW).live()
            derive_everything(stores, now=NOW)
            (root / "done").touch()
    return root


@pytest.fixture(scope="session")
def two_owners_home(session_folder: Path) -> Path:
    """A home of two owners whose texts carry canaries (tests/support/homes/two_owners.py), with a small warehouse.

    Copy before writing.
    """
    from tests.support.homes.two_owners import two_owners, write_small_warehouse

    root = session_folder / "two_owners"
    with one_at_a_time(session_folder / "two_owners.lock"):
        if not (root / "done").exists():
            write_small_warehouse(two_owners(root))
            (root / "done").touch()
    return root
