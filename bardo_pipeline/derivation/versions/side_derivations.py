"""Beside: derivations that are not in force, built to be compared and perhaps adopted.

They lie in folders of their own under their ids, so that building one again costs only what is new. What another policy
leaves as it is, is not derived again: episodes, their vectors and their index are shared with the derivation in force
by linking their files. Bundles are events: they are the same whatever is derived. Source: X-3, X-10.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from bardo_pipeline.curator.curate import PASSES_EDITION
from bardo_pipeline.derivation.active_derivation import in_force, understood
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.curation.grimoire_views import GRIMOIRE_VIEWS, derive_grimoire_views
from bardo_pipeline.derivation.derivation_id import derivation_id
from bardo_pipeline.derivation.dreams.derive_dreams import DREAM_TABLES, derive_dreams
from bardo_pipeline.derivation.versions.policy_diff import Setting, differences, settings_of
from bardo_pipeline.derivation.versions.rebuild import derive_everything
from bardo_pipeline.errors import ConfigError, DerivationError
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.embedding.embedders import embedder_version
from bardo_pipeline.storage.log.snapshot import LogOfGolems
from bardo_pipeline.storage.projections.derivation_folders import derivation_folders, description, link_tree, take_out
from bardo_pipeline.storage.projections.projections import Projections

EPISODE_SETTINGS = (
    "curator.cycle_ticks", "decay.critical_days", "decay.emergency_days", "decay.episode_retention_min",
    "decay.notable_days", "decay.routine_days", "episode.critical", "episode.emergency",
    "episode.importance_balance_share", "episode.notable",
)  # fmt: skip
"""The settings by which episodes are derived: where two policies agree in these, they have the same episodes."""

SOME = ("curation", "cycles", "playbooks", "grimoire", *DREAM_TABLES, "lessons", *GRIMOIRE_VIEWS)
"""What is derived of some golems alone: all else is a function of everyone."""


@dataclass(frozen=True)
class Held:
    """A derivation on disk. changed: its settings beside the policy in force; None where it does not say them.

    fit: why it cannot be adopted, None where it can.
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
    """The stores of the derivation of the same log under another policy; of some golems alone, in a folder of its own.

    Raises QueryError for a golem that the log does not know.
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
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[str, ...]:
    """Bring a derivation beside the one in force up to the log. Returns the tables that are shared, not derived.

    now: when vectors made here are recorded. Raises ConfigError where as many derivations lie beside as the policy
    allows (care.derivations_beside_max).
    """
    _check_room(context, beside.projections.root.name)
    if isinstance(beside.as_of, LogOfGolems):
        tell("curation")
        derive_curation(beside)
        tell("dreams")
        derive_dreams(beside)
        for name in GRIMOIRE_VIEWS:
            tell(name)
            derive_grimoire_views(beside, name)
        return ()
    shared = _share_episodes(context, beside)
    derive_everything(beside, now=now, tell=tell)
    return shared


def _check_room(context: DerivationContext, name: str) -> None:
    most = context.policy.care.derivations_beside_max
    others = [h.name for h in held(context) if not h.in_force and h.name != name]
    if len(others) >= most:
        raise ConfigError(
            f"{len(others)} derivations lie beside the one in force already, at most {most} may: "
            f"`bardo whatif --list` shows them, `bardo whatif --drop {others[0]}` takes one away"
        )


def _share_episodes(context: DerivationContext, beside: DerivationContext) -> tuple[str, ...]:
    """Link the episodes in force, their reader's place and their index, where the other policy makes the same ones."""
    mine, other = settings_of(context.policy), settings_of(beside.policy)
    alike = all(mine[name] == other[name] for name in EPISODE_SETTINGS)
    source, target = context.projections.root, beside.projections.root
    if context.frozen or not alike or context.embedder_name != beside.embedder_name or source == target:
        return ()
    if not (source / "episodes").exists():
        return ()
    first, second = sorted((context, beside), key=lambda s: s.projections.root.name)
    with first.deriving(), second.deriving():
        standing = context.projections.digest("episodes")
        there = (target / "episodes").exists()
        if not there or Projections(target, context.home.bucket_count, beside.policy).digest("episodes") != standing:
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


def held(context: DerivationContext) -> list[Held]:
    """The derivations on disk, the one in force first, then by name."""
    now = in_force(context.log.life("DerivationAdopted"))
    found = []
    for folder in derivation_folders(context.home):
        said = description(folder)
        policy = None if said is None else understood(said.policy, folder.name)
        found.append(
            Held(
                name=folder.name,
                in_force=folder.name == now.derivation_id,
                policy_hash=None if said is None else said.policy_hash,
                passes_edition=None if said is None else said.passes_edition,
                embedder=None if said is None else said.embedder,
                golems=None if said is None else said.golems,
                changed=None if policy is None else differences(now.policy, policy),
                written_at=datetime.fromtimestamp(max(p.stat().st_mtime for p in _with_tables(folder)), UTC),
                own_bytes=_own_bytes(folder),
                fit=unfit(context, folder.name),
            )
        )
    return sorted(found, key=lambda h: (not h.in_force, h.name))


def _with_tables(folder: Any) -> list[Any]:
    return [folder, *folder.glob("*/_delta_log")]


def _own_bytes(folder: Any) -> int:
    """Bytes of files that no other folder shares."""
    files = (path.stat() for path in folder.rglob("*") if path.is_file())
    return sum(s.st_size for s in files if s.st_nlink == 1)


def unfit(context: DerivationContext, name: str) -> str | None:
    """Why a derivation cannot be adopted; None for one that can. Raises DerivationError where none is called so."""
    folders = {path.name: path for path in derivation_folders(context.home)}
    if name not in folders:
        listed = ", ".join(folders) or "none"
        raise DerivationError(f"no derivation {name} was built: `bardo whatif` builds one; there are: {listed}")
    said = description(folders[name])
    if said is None:
        return "it does not say by which policy it was made: build it again with `bardo whatif`"
    if said.golems is not None:
        return f"it was built of {len(said.golems)} golems alone: build it without --golem"
    if said.passes_edition != PASSES_EDITION:
        return (
            f"edition {said.passes_edition} of the passes made it, this version has edition {PASSES_EDITION}: "
            "build it again with `bardo whatif`"
        )
    policy = understood(said.policy, name)
    if derivation_id(policy, embedder_version(said.embedder)) != name:
        return "another version's policy or embedder made it: build it again with `bardo whatif`"
    return None


def drop(context: DerivationContext, name: str) -> None:
    """Take a derivation away that is not in force, with its index. Raises DerivationError for another."""
    unfit(context, name)
    if name in {h.name for h in held(context) if h.in_force}:
        raise DerivationError(f"derivation {name} is in force: adopt another one first")
    with context.home.lock(f"derive-{name}"):
        take_out(context.home.derivation(name))
    with context.home.lock(f"index-{name}"):
        shutil.rmtree(context.home.index / "episodes" / name, ignore_errors=True)


def as_it_stands(context: DerivationContext, name: str) -> DerivationContext:
    """The stores of a derivation on disk, to be read, whoever made it. Raises DerivationError for an unknown one."""
    why = unfit(context, name)
    said = description(context.home.derivation(name))
    if said is None:
        raise DerivationError(f"derivation {name} cannot be compared: {why}")
    found = open_beside(context, understood(said.policy, name), embedder=said.embedder, golems=said.golems)
    folder = context.home.derivation(name)
    projections = Projections(folder, context.home.bucket_count, found.policy)
    return replace(found, projections=projections, frozen=f"derivation {name} is only looked at: {why}")


def recorded(context: DerivationContext, name: str) -> DerivationContext:
    """The stores of a derivation that was built beside. Raises DerivationError for one that cannot be adopted."""
    why = unfit(context, name)
    if why is not None:
        raise DerivationError(f"derivation {name} cannot be adopted: {why}")
    said = description(context.home.derivation(name))
    assert said is not None, "what is fit says what it is"
    return replace(open_beside(context, understood(said.policy, name), embedder=said.embedder), beside=True)
