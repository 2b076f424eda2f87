"""Re-embedding: another embedder for everything, beside the one in force, which is switched at once or not at all.

A migration is a derivation under another embedder (so another derivation id, another folder, another index), built from
the log like any other, and then one recorded `DerivationAdopted`. Before that event nothing of it is in force; after it
nothing of the old one is. Interrupted, it goes on where it was: vectors and projections that are on record stay.
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
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.derivation_id import derivation_id
from bardo_pipeline.derivation.dreams.derive_lessons import known_entries
from bardo_pipeline.derivation.memory.derive_episodes import episode_index, refresh_index
from bardo_pipeline.derivation.memory.embed_texts import check_drift, last_check, paused, recorded_vectors
from bardo_pipeline.derivation.versions.adoption import switch_to
from bardo_pipeline.derivation.versions.rebuild import derive_everything
from bardo_pipeline.derivation.versions.side_derivations import open_beside
from bardo_pipeline.errors import ConfigError, DerivationError, StoreError
from bardo_pipeline.storage.delta.table_digest import Digest
from bardo_pipeline.storage.embedding.embedders import embedder_version, split_turn, with_turn
from bardo_pipeline.storage.log.embedding_table import Migration

_ROUNDS_MAX = 8  # the log may grow while it is embedded; each round takes less than the one before

Tell = Callable[[str, int, int], None]
"""Told which step it is, and how much of how much of it is done (0 of 0 where that is not known)."""


@dataclass(frozen=True)
class Reembedded:
    """What a migration did. resumed: whether it went on with one that had been interrupted."""

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
    tell: Tell = lambda *_: None,
) -> Reembedded:
    """Embed everything by another model, or anew by the same one, and switch to it when all of it is there.

    context: what is in force. model: its name; None goes on with a migration that is half done, or else embeds anew by
    the model in force. again: even though that one has not drifted.
    Raises ConfigError for a model that cannot be opened or needs no migration, DerivationError where what was made is
    not what was there; whatever it raises, the old one stays in force.
    """
    with context.home.lock("adoption"):
        new, resumed = target_of(context, model, again=again)
        target = open_beside(context, context.policy, embedder=new)
        identity = target.embedder.identity  # raises here where it cannot be opened, before anything is recorded
        if not resumed:
            adoptions = context.log.life("DerivationAdopted")
            context.embedding_log.begin(now, new, identity, target.derivation_id, adoptions)
        if last_check(target) is None or paused(target) is not None:
            check_drift(target, now=now)
        texts = _embed(context, target, now, tell)
        episodes = _catch_up(context, target, now, tell)
        _compare(context, target)
        switch_to(context, target, f"embedded anew by {new}", now=now)
        return Reembedded(context.embedder_name, new, target.derivation_id, episodes, texts, resumed)


def half_done(context: DerivationContext) -> Migration | None:
    """The migration that began last and did not end, if what it makes is still what it would make."""
    waiting = context.embedding_log.half_done(context.log.life("DerivationAdopted"))
    if waiting is None or derivation_id(context.policy, embedder_version(waiting.name)) != waiting.derivation_id:
        return None  # another policy was adopted since
    return waiting


def target_of(context: DerivationContext, model: str | None, *, again: bool) -> tuple[str, bool]:
    """The embedder to go to with its turn, and whether a migration to it is half done already."""
    current, waiting = context.embedder_name, half_done(context)
    if waiting is not None and model in (None, waiting.name, split_turn(waiting.name)[0]):
        return waiting.name, True
    if model is not None and "@" in model:
        raise ConfigError(f"--model {model!r}: give the plain name of a model; its turns are counted here")
    known, now_at = split_turn(current)
    name, _ = split_turn(model or known)
    if name != known:
        return with_turn(name, _free_turn(context, name)), False
    last = last_check(context)
    if not again and (last is None or last.found.verdict != "critical"):
        found = "was never checked" if last is None else f"was {last.found.verdict} when it was checked last"
        raise ConfigError(
            f"{current} is in force already and {found}: give another --model, or --again to embed anew by it"
        )
    return with_turn(name, now_at + 1), False


def _free_turn(context: DerivationContext, name: str) -> int:
    """The newest turn at which a model was in use here, or the next one if it had drifted by then."""
    checks = [check for check in context.embedding_log.checks() if split_turn(check.name)[0] == name]
    if not checks:
        return 0
    turn = max(split_turn(check.name)[1] for check in checks)
    last = [check for check in checks if check.name == with_turn(name, turn)][-1]
    return turn + 1 if last.found.verdict == "critical" else turn


def _embed(context: DerivationContext, target: DerivationContext, now: datetime, tell: Tell) -> int:
    """Give every text of episodes and entries its new vector. Returns how many texts that are."""
    episodes = context.projections.growing("episodes").read(["text"])["text"].unique().to_pylist()
    entries = known_entries(context)["text"].unique().to_pylist()
    texts = sorted({*episodes, *entries})
    tell("vectors", 0, len(texts))
    step = context.policy.embedding.batch_texts
    for at in range(0, len(texts), step):
        recorded_vectors(target, texts[at : at + step], now)
        tell("vectors", min(at + step, len(texts)), len(texts))
    return len(texts)


def _catch_up(context: DerivationContext, target: DerivationContext, now: datetime, tell: Tell) -> int:
    """Derive everything beside until it has come as far as what is in force. Returns how many episodes there are."""
    for _ in range(_ROUNDS_MAX):
        derive_everything(target, now=now, tell=lambda name: tell(name, 0, 0))
        tell("index", 0, 0)
        refresh_index(target)
        if not _behind(context, target):
            return target.projections.digest("episodes").rows
    raise DerivationError("the log grows faster than it is embedded: run `bardo reembed` again, it goes on from here")


def _behind(context: DerivationContext, target: DerivationContext) -> list[str]:
    """Golems that the old derivation has taken further than the new one."""
    ours, theirs = (s.projections.growing("episodes") for s in (context, target))
    golems = context.life("GolemBorn")["golem_id"].to_pylist()
    return [g for g in golems if (ours.done(g) or 0) > (theirs.done(g) or 0)]


def _compare(context: DerivationContext, target: DerivationContext) -> None:
    """Raise DerivationError unless the new episodes are the old ones with other vectors, all of them in the new index.

    What the new derivation has beyond the old one, because the log grew meanwhile, is no difference.
    """
    old, new = (s.projections.growing("episodes") for s in (context, target))
    plain = [n for n in old.spec.schema.names if n not in TEXT_FIELDS]
    ours, theirs = old.read([*plain, "text_hash"]), new.read([*plain, "text_hash", "embedder"])
    common = theirs.filter(pc.is_in(theirs["episode_id"], value_set=ours["episode_id"].combine_chunks()))
    if Digest.of(ours) != Digest.of(common.select(ours.column_names)):
        raise DerivationError(
            f"the episodes under {target.embedder_name} differ from {context.embedder_name} in more than vectors: "
            f"{context.embedder_name} stays in force; `bardo rebuild` reports which of the two differs from the log"
        )
    mine = pa.scalar(target.embedder.identity.key, pa.string())
    if not pc.all(pc.equal(theirs["embedder"], mine), min_count=0).as_py():
        raise DerivationError(f"some episodes under {target.embedder_name} have vectors of another model")
    mark = None
    with suppress(StoreError):
        mark = episode_index(target).watermark()
    if (mark.rows if mark is not None else 0) != theirs.num_rows:
        raise DerivationError(f"the index of {target.embedder_name} does not hold all {theirs.num_rows:,} episodes")
