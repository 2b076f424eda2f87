"""Migrates a home to another embedder: builds a second derivation, then switches to it with one event.

The new derivation has its own id, folder and index and is built from the log. The recorded `DerivationAdopted` switches
atomically. An interrupted migration resumes with the recorded vectors and projections.
Source: MEM ("Never partially re-embed"); canon 56; MEM-12.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.episodes import TEXT_FIELDS
from bardo_pipeline.derivation.active_derivation import derivation_id
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.dreams.derive_lessons import known_entries
from bardo_pipeline.derivation.memory.derive_episodes import episode_index, refresh_index
from bardo_pipeline.derivation.memory.embed_texts import check_drift, last_check, pausing_check, recorded_vectors
from bardo_pipeline.derivation.versions.rebuild import derive_everything
from bardo_pipeline.derivation.versions.side_derivations import open_beside, switch_to
from bardo_pipeline.errors import ConfigError, DerivationError, StoreError
from bardo_pipeline.storage.delta.table_digest import Digest
from bardo_pipeline.storage.embedding.embedders import embedder_version, split_turn, with_turn
from bardo_pipeline.storage.log.embedding_table import Migration

_ROUNDS_MAX = 8  # the log may grow during a round; each round is shorter than the previous one

OnProgress = Callable[[str, int, int], None]
"""Progress callback: (step, done, total); 0 of 0 if the total is unknown."""


@dataclass(frozen=True)
class Reembedded:
    """The result of a migration; resumed is True if it continued an interrupted one."""

    old: str
    new: str
    derivation_id: str
    episodes: int
    texts: int
    resumed: bool


def reembed(
    context: DerivationContext,
    model: str | None = None,
    *,
    again: bool = False,
    now: datetime,
    on_progress: OnProgress = lambda *_: None,
) -> Reembedded:
    """Embed everything with a model and switch to it once the new derivation is complete.

    After any error the old embedder stays in force.

    Parameters
    ----------
    context : DerivationContext, the derivation in force
    model : name; None resumes an interrupted migration or embeds again with the current model
    again : allow the current model although it has not drifted

    Raises
    ------
    ConfigError : the model cannot be opened or needs no migration
    DerivationError : the new episodes differ from the old ones in more than vectors
    """
    with context.home.lock("adoption"):
        new, resumed = target_embedder(context, model, again=again)
        target = open_beside(context, context.policy, embedder=new)
        identity = target.embedder.identity  # raises if the model cannot be opened, before anything is recorded
        if not resumed:
            adoptions = context.log.life("DerivationAdopted")
            context.embedding_log.begin(now, new, identity, target.derivation_id, adoptions)
        if last_check(target) is None or pausing_check(target) is not None:
            check_drift(target, now=now)
        texts = _embed(context, target, now, on_progress)
        episodes = _catch_up(context, target, now, on_progress)
        _compare(context, target)
        switch_to(context, target, f"embedded anew by {new}", now=now)
        return Reembedded(context.embedder_name, new, target.derivation_id, episodes, texts, resumed)


def unfinished_migration(context: DerivationContext) -> Migration | None:
    """Return the interrupted migration if its target derivation is unchanged, else None."""
    waiting = context.embedding_log.unfinished(context.log.life("DerivationAdopted"))
    if waiting is None or derivation_id(context.policy, embedder_version(waiting.name)) != waiting.derivation_id:
        return None  # another policy was adopted since
    return waiting


def target_embedder(context: DerivationContext, model: str | None, *, again: bool) -> tuple[str, bool]:
    """Return the name (with its turn) of the target embedder, and True if a migration to it was interrupted."""
    current, waiting = context.embedder_name, unfinished_migration(context)
    if waiting is not None and model in (None, waiting.name, split_turn(waiting.name)[0]):
        return waiting.name, True
    if model is not None and "@" in model:
        raise ConfigError(f"--model {model!r}: give the plain name of a model; turns are counted automatically")
    current_name, current_turn = split_turn(current)
    name, _ = split_turn(model or current_name)
    if name != current_name:
        return with_turn(name, _free_turn(context, name)), False
    last = last_check(context)
    if not again and (last is None or last.drift.verdict != "critical"):
        state = "was never checked" if last is None else f"was {last.drift.verdict} when it was checked last"
        raise ConfigError(
            f"{current} is in force already and {state}: give another --model, or --again to embed anew by it"
        )
    return with_turn(name, current_turn + 1), False


def _free_turn(context: DerivationContext, name: str) -> int:
    """The newest turn of a model in this home, or the next turn if the model had drifted in it."""
    checks = [check for check in context.embedding_log.checks() if split_turn(check.name)[0] == name]
    if not checks:
        return 0
    turn = max(split_turn(check.name)[1] for check in checks)
    last = [check for check in checks if check.name == with_turn(name, turn)][-1]
    return turn + 1 if last.drift.verdict == "critical" else turn


def _embed(context: DerivationContext, target: DerivationContext, now: datetime, on_progress: OnProgress) -> int:
    """Embed every text of episodes and entries. Return their number."""
    episodes = context.projections.growing("episodes").read(["text"])["text"].unique().to_pylist()
    entries = known_entries(context)["text"].unique().to_pylist()
    texts = sorted({*episodes, *entries})
    on_progress("vectors", 0, len(texts))
    step = context.policy.embedding.batch_texts
    for at in range(0, len(texts), step):
        recorded_vectors(target, texts[at : at + step], now)
        on_progress("vectors", min(at + step, len(texts)), len(texts))
    return len(texts)


def _catch_up(context: DerivationContext, target: DerivationContext, now: datetime, on_progress: OnProgress) -> int:
    """Derive the target until it has reached the derivation in force. Return its number of episodes."""
    for _ in range(_ROUNDS_MAX):
        derive_everything(target, now=now, on_step=lambda name: on_progress(name, 0, 0))
        on_progress("index", 0, 0)
        refresh_index(target)
        if not _behind(context, target):
            return target.projections.digest("episodes").rows
    raise DerivationError("the log grows faster than it is embedded: run `bardo reembed` again to continue")


def _behind(context: DerivationContext, target: DerivationContext) -> list[str]:
    """Golems with more derived cycles in the old derivation than in the new one."""
    old, new = (c.projections.growing("episodes") for c in (context, target))
    golems = context.life("GolemBorn")["golem_id"].to_pylist()
    return [g for g in golems if (old.done(g) or 0) > (new.done(g) or 0)]


def _compare(context: DerivationContext, target: DerivationContext) -> None:
    """Raise DerivationError unless the old episodes equal the new ones except for vectors, and all are indexed.

    The new derivation may have more episodes, because the log may have grown.
    """
    old, new = (c.projections.growing("episodes") for c in (context, target))
    names = [n for n in old.spec.schema.names if n not in TEXT_FIELDS]
    old_rows, new_rows = old.read([*names, "text_hash"]), new.read([*names, "text_hash", "embedder"])
    common = new_rows.filter(pc.is_in(new_rows["episode_id"], value_set=old_rows["episode_id"].combine_chunks()))
    if Digest.of(old_rows) != Digest.of(common.select(old_rows.column_names)):
        raise DerivationError(
            f"the episodes under {target.embedder_name} differ from {context.embedder_name} in more than vectors: "
            f"{context.embedder_name} stays in force; `bardo rebuild` reports which of the two differs from the log"
        )
    key = pa.scalar(target.embedder.identity.key, pa.string())
    if not pc.all(pc.equal(new_rows["embedder"], key), min_count=0).as_py():
        raise DerivationError(f"some episodes under {target.embedder_name} have vectors of another model")
    watermark = None
    with suppress(StoreError):
        watermark = episode_index(target).watermark()
    if (watermark.rows if watermark is not None else 0) != new_rows.num_rows:
        raise DerivationError(f"the index of {target.embedder_name} does not hold all {new_rows.num_rows:,} episodes")
