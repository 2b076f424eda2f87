"""In force: which derivation every command, job and fleet of a home goes by. Reads the log alone.

It is what the last `DerivationAdopted` names; a home that never adopted any follows the program: the specification's
policy and this version's passes. What another edition of the passes made cannot be continued by this one: it is frozen,
to be read until another is adopted. Source: architecture ("Projections"), X-10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
from pydantic import ValidationError

from bardo_pipeline.curator.curate import PASSES_EDITION
from bardo_pipeline.derivation.derivation_id import derivation_id, identity_of
from bardo_pipeline.errors import DerivationError
from bardo_pipeline.events.life.events import Adopted
from bardo_pipeline.policy import OPERATIONAL, Policy
from bardo_pipeline.storage.embedding.embedders import embedder_version, split_turn

FIRST_EMBEDDER = "minilm"
"""The embedder of a home that adopted none."""


@dataclass(frozen=True)
class InForce:
    """The derivation in force. frozen: why this program cannot continue it, None where it can.

    adopted: the event that put it in force, None for a home that follows the program.
    """

    derivation_id: str
    policy: Policy
    embedder: str
    frozen: str | None = None
    adopted: Adopted | None = None


def in_force(adoptions: pa.Table, embedder: str | None = None) -> InForce:
    """What is in force by these life events (kind DerivationAdopted).

    embedder: the name of another one, whose derivation under the same policy and passes is wanted.
    Raises DerivationError where the adopted policy holds a value that this version does not allow.
    """
    told = adoptions_of(adoptions)
    if not told:
        policy, name = Policy(), embedder or FIRST_EMBEDDER
        return InForce(derivation_id(policy, embedder_version(name)), policy, name)
    adopted = told[-1]
    policy, name = understood(adopted.policy, adopted.derivation_id), embedder or adopted.embedder
    if name == split_turn(adopted.embedder)[0]:
        name = adopted.embedder  # a plain name means the turn that is in force
    mine = derivation_id(policy, embedder_version(name))
    theirs = adopted.derivation_id
    if name != adopted.embedder:
        theirs = identity_of(adopted.policy_hash, adopted.passes_edition, embedder_version(name))
    return InForce(theirs, policy, name, _frozen(adopted, theirs, mine), adopted)


def adoptions_of(events: pa.Table) -> list[Adopted]:
    """The adoptions among life events, oldest first."""
    ordered = events.sort_by([("observed_at", "ascending"), ("event_id", "ascending")])
    return [Adopted.model_validate(row) for row in ordered["adopted"].to_pylist() if row is not None]


def understood(content: str, name: str) -> Policy:
    """A recorded policy as this version has it: fields that it does not know are left out, new ones as specified.

    name: of its derivation, for the error. Raises DerivationError for a value that is not allowed any more.
    """
    try:
        return Policy.model_validate(_known(orjson.loads(content), Policy))
    except (ValidationError, orjson.JSONDecodeError) as error:
        raise DerivationError(
            f"the policy of derivation {name} is not one of this version's ({error}): "
            "read it with the version that adopted it"
        ) from error


def _known(told: dict[str, Any], model: type[Any]) -> dict[str, Any]:
    parts = {n: f.annotation for n, f in model.model_fields.items() if model is not Policy or n not in OPERATIONAL}
    out: dict[str, Any] = {}
    for name, value in told.items():
        if name in parts:
            out[name] = _known(value, parts[name]) if isinstance(value, dict) else value
    return out


def _frozen(adopted: Adopted, theirs: str, mine: str) -> str | None:
    if theirs == mine:
        return None
    why = "by another version's policy or embedder"
    if adopted.passes_edition != PASSES_EDITION:
        why = f"by edition {adopted.passes_edition} of the passes, and this version has edition {PASSES_EDITION}"
    return (
        f"derivation {theirs} is in force and was made {why}: it can be read, not continued. "
        f"`bardo whatif` builds {mine} beside it and compares; `bardo adopt {mine}` switches to it"
    )
