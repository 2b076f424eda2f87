"""Side derivations: derivations that are not in force, built for comparison, and adopted by one recorded event.

Each has a folder named by its id, so an update derives only new rows. If the policies agree in the settings of
episodes, episodes, vectors and index are shared with the derivation in force by hard links. Bundles are events and
independent of the derivation.

An adoption updates the derivation to the log and then records the event, so an interrupted adoption has no effect
before the event and is complete after it. A running fleet keeps the derivation that it began with. Source: X-3, X-10.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa

from bardo_pipeline.curator.curate import PASSES_EDITION
from bardo_pipeline.derivation.active_derivation import derivation_id, in_force, understood
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.curation.grimoire_views import GRIMOIRE_VIEWS, derive_grimoire_views
from bardo_pipeline.derivation.dreams.derive_dreams import DREAM_TABLES, derive_dreams
from bardo_pipeline.derivation.incremental.record_queries import log_moment
from bardo_pipeline.derivation.memory.derive_episodes import refresh_index
from bardo_pipeline.derivation.versions.policy_diff import Setting, differences
from bardo_pipeline.derivation.versions.rebuild import derive_everything
from bardo_pipeline.errors import ConfigError, DerivationError
from bardo_pipeline.events.life.events import EVERY_GOLEM, Adopted, LifeEvent, life_event
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.embedding.embedders import embedder_version
from bardo_pipeline.storage.home import files_below, statuses
from bardo_pipeline.storage.log.snapshot import LogOfGolems
from bardo_pipeline.storage.projections.derivation_folders import derivation_folders, description, link_tree, take_out
from bardo_pipeline.storage.projections.projections import Projections
from bardo_pipeline.storage.warehouse.build import build_warehouse

EPISODE_SETTINGS = (
    "curator.cycle_ticks", "decay.critical_days", "decay.emergency_days", "decay.episode_retention_min",
    "decay.notable_days", "decay.routine_days", "episode.critical", "episode.emergency",
    "episode.importance_balance_share", "episode.notable",
)  # fmt: skip
"""The settings that determine episodes."""

SOME = ("curation", "cycles", "playbooks", "grimoire", *DREAM_TABLES, "lessons", *GRIMOIRE_VIEWS)
"""Tables that can be derived for some golems only; all others depend on all golems."""


@dataclass(frozen=True)
class StoredDerivation:
    """A derivation on disk.

    Parameters
    ----------
    changed : settings that differ from the policy in force; None without a description
    fit : reason for which it cannot be adopted; None if it can
    """

    name: str
    in_force: bool
    policy_hash: str | None
    passes_edition: str | None
    embedder: str | None
    golems: tuple[str, ...] | None
    changed: tuple[Setting, ...] | None
    written_at: datetime
    own_bytes: int
    fit: str | None


def open_beside(
    context: DerivationContext, policy: Policy, *, embedder: str | None = None, golems: Sequence[str] | None = None
) -> DerivationContext:
    """Open the derivation of the same log under another policy, or of some golems in a separate folder.

    Raises QueryError for an unknown golem.
    """
    name = embedder or context.embedder_name
    identity = folder = derivation_id(policy, embedder_version(name))
    source = None
    if golems is not None:
        source = LogOfGolems(context.log, golems)
        folder += ".some-" + hashlib.sha256("\x1f".join(source.golems).encode()).hexdigest()[:8]
    return DerivationContext(
        context.home,
        context.log,
        Projections(context.home.derivation(folder), context.home.bucket_count, policy),
        policy,
        name,
        identity,
        as_of=source,
        beside=True,
    )


def build(
    context: DerivationContext,
    beside: DerivationContext,
    *,
    now: datetime,
    on_step: Callable[[str], None] = lambda _: None,
) -> tuple[str, ...]:
    """Update a side derivation to the log; return the tables that are shared with the derivation in force.

    Raises ConfigError if the number of side derivations exceeds care.derivations_beside_max.

    Parameters
    ----------
    now : recording time of new vectors
    """
    _check_room(context, beside.projections.root.name)
    if isinstance(beside.as_of, LogOfGolems):
        on_step("curation")
        derive_curation(beside)
        on_step("dreams")
        derive_dreams(beside)
        for name in GRIMOIRE_VIEWS:
            on_step(name)
            derive_grimoire_views(beside, name)
        return ()
    shared = _share_episodes(context, beside)
    derive_everything(beside, now=now, on_step=on_step)
    return shared


def _check_room(context: DerivationContext, name: str) -> None:
    limit = context.policy.care.derivations_beside_max
    others = [d.name for d in stored_derivations(context) if not d.in_force and d.name != name]
    if len(others) >= limit:
        raise ConfigError(
            f"there are {len(others)} side derivations already, the limit is {limit}: `bardo whatif --list` shows "
            f"them, `bardo whatif --drop {others[0]}` deletes one"
        )


def _share_episodes(context: DerivationContext, beside: DerivationContext) -> tuple[str, ...]:
    """Link episodes, their cursor and their index if both policies have the same episode settings."""
    own, other = context.policy.settings, beside.policy.settings
    is_same = all(own[name] == other[name] for name in EPISODE_SETTINGS)
    source, target = context.projections.root, beside.projections.root
    if context.frozen or not is_same or context.embedder_name != beside.embedder_name or source == target:
        return ()
    if not (source / "episodes").exists():
        return ()
    first, second = sorted((context, beside), key=lambda s: s.projections.root.name)
    with first.deriving(), second.deriving():
        current = context.projections.digest("episodes")
        exists = (target / "episodes").exists()
        if not exists or Projections(target, context.home.bucket_count, beside.policy).digest("episodes") != current:
            beside.projections = Projections(target, context.home.bucket_count, beside.policy)
            (target / "readers").mkdir(exist_ok=True)
            link_tree(source / "episodes", target / "episodes")
            link_tree(source / "readers" / "episodes", target / "readers" / "episodes")
    _share_index(context, beside)
    return ("episodes",)


def _share_index(context: DerivationContext, beside: DerivationContext) -> None:
    index = context.home.index / "episodes"
    source, target = index / context.projections.root.name, index / beside.projections.root.name
    if not source.exists():
        return
    with context.home.lock(f"index-{source.name}"), context.home.lock(f"index-{target.name}"):
        link_tree(source, target)


def stored_derivations(context: DerivationContext) -> list[StoredDerivation]:
    """Return the derivations on disk, the one in force first, then by name."""
    current = in_force(context.log.life("DerivationAdopted"))
    stored = []
    for folder in derivation_folders(context.home):
        content = description(folder)
        policy = None if content is None else understood(content.policy, folder.name)
        newest = max((s.st_mtime for _, s in statuses([folder, *folder.glob("*/_delta_log")])), default=0.0)
        stored.append(
            StoredDerivation(
                name=folder.name,
                in_force=folder.name == current.derivation_id,
                **{name: getattr(content, name, None) for name in _DESCRIBED},
                changed=None if policy is None else differences(current.policy, policy),
                written_at=datetime.fromtimestamp(newest, UTC),
                own_bytes=sum(s.st_size for _, s in files_below(folder) if s.st_nlink == 1),  # no hard link
                fit=unfit(context, folder.name),
            )
        )
    return sorted(stored, key=lambda d: (not d.in_force, d.name))


_DESCRIBED = ("policy_hash", "passes_edition", "embedder", "golems")


def unfit(context: DerivationContext, name: str) -> str | None:
    """Return the reason for which a derivation cannot be adopted; None if it can. Raises DerivationError if unknown."""
    folders = {path.name: path for path in derivation_folders(context.home)}
    if name not in folders:
        listed = ", ".join(folders) or "none"
        raise DerivationError(f"no derivation {name} was built: `bardo whatif` builds one; there are: {listed}")
    content = description(folders[name])
    if content is None:
        return "its description is missing: build it again with `bardo whatif`"
    if content.golems is not None:
        return f"it was built of {len(content.golems)} golems alone: build it without --golem"
    if content.passes_edition != PASSES_EDITION:
        return (
            f"edition {content.passes_edition} of the passes made it, this version has edition {PASSES_EDITION}: "
            "build it again with `bardo whatif`"
        )
    policy = understood(content.policy, name)
    if derivation_id(policy, embedder_version(content.embedder)) != name:
        return "another version's policy or embedder made it: build it again with `bardo whatif`"
    return None


def drop(context: DerivationContext, name: str) -> None:
    """Delete a side derivation and its index. Raises DerivationError for the one in force or an unknown one."""
    unfit(context, name)
    if name in {d.name for d in stored_derivations(context) if d.in_force}:
        raise DerivationError(f"derivation {name} is in force: adopt another one first")
    with context.home.lock(f"derive-{name}"):
        take_out(context.home.derivation(name))
    with context.home.lock(f"index-{name}"):
        shutil.rmtree(context.home.index / "episodes" / name, ignore_errors=True)


def open_read_only(context: DerivationContext, name: str) -> DerivationContext:
    """Open a derivation on disk for reading only. Raises DerivationError for an unknown one."""
    why = unfit(context, name)
    content = description(context.home.derivation(name))
    if content is None:
        raise DerivationError(f"derivation {name} cannot be compared: {why}")
    opened = open_beside(context, understood(content.policy, name), embedder=content.embedder, golems=content.golems)
    folder = context.home.derivation(name)
    projections = Projections(folder, context.home.bucket_count, opened.policy)
    return replace(opened, projections=projections, frozen=f"derivation {name} is only looked at: {why}")


def open_adoptable(context: DerivationContext, name: str) -> DerivationContext:
    """Open a side derivation for adoption. Raises DerivationError for one that cannot be adopted."""
    why = unfit(context, name)
    if why is not None:
        raise DerivationError(f"derivation {name} cannot be adopted: {why}")
    content = description(context.home.derivation(name))
    assert content is not None, "an adoptable derivation has a description"
    return open_beside(context, understood(content.policy, name), embedder=content.embedder)


def adopt(
    context: DerivationContext, name: str, why: str, *, now: datetime, on_step: Callable[[str], None] = lambda _: None
) -> LifeEvent:
    """Update a side derivation to the log and adopt it.

    Raises DerivationError without a reason, and for a derivation that is in force, was not built, has only some golems,
    or was made by another edition of the passes.
    """
    if not why.strip():
        raise DerivationError("an adoption is recorded with its reason: say why")
    with context.home.lock("adoption"):
        current = in_force(context.log.life("DerivationAdopted"))
        if name == current.derivation_id:
            raise DerivationError(f"derivation {name} is in force already: `bardo whatif --list` shows the others")
        chosen = open_adoptable(context, name)
        build(context, chosen, now=now, on_step=on_step)
        return switch_to(context, chosen, why.strip(), now=now)


def switch_to(
    context: DerivationContext, chosen: DerivationContext, why: str, *, now: datetime, at: datetime | None = None
) -> LifeEvent:
    """Record the adoption of an updated derivation. The caller holds the lock `adoption`.

    at: event time in an empty log; default: creation time of the home.
    """
    current = in_force(context.log.life("DerivationAdopted"))
    payload = Adopted(
        derivation_id=chosen.derivation_id,
        previous_derivation_id=current.derivation_id,
        policy_hash=chosen.policy.hash,
        passes_edition=PASSES_EDITION,
        embedder=chosen.embedder_name,
        policy=chosen.policy.content,
        why=why,
    )
    event = life_event(EVERY_GOLEM, log_moment(context, "DerivationAdopted", at), payload)
    context.log.record([event], now)
    return event


def adoptions(context: DerivationContext) -> pa.Table:
    """Return the recorded adoptions, oldest first: event_id, observed_at, recorded_at, adopted."""
    rows = context.log.life("DerivationAdopted")
    ordered = rows.sort_by([("observed_at", "ascending"), ("event_id", "ascending")])
    return ordered.select(["event_id", "observed_at", "recorded_at", "adopted"])


def settle(context: DerivationContext, *, now: datetime) -> None:
    """Update playbook files, index and existing marts after an adoption."""
    derive_everything(context, now=now)
    refresh_index(context)
    if context.home.warehouse.exists():
        build_warehouse(context.home, context.derivation_id, context.policy)
