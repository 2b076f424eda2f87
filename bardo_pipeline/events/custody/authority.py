"""Authority: the party that may record each kind of life event, its door and its proof. Pure.

Four doors lead to the log. `spool`: a file from outside, which proves its origin by signatures alone. `writer`: the
EventWriter of a golem, which holds the golem's lease. `token`: a request to the server with the token of one owner.
`home`: a process of the home's operator, that is a command, the runtime, a derivation, or a request with the token of
the whole home. It may write the home's files, so it needs no further proof.
docs/domain/authority.md shows AUTHORITY. Source: X-9, EV-4, INH-7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, get_args

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.errors import AuthorityError, ClockError
from bardo_pipeline.events.custody.hash_chain import KeyRing, Signature, verified
from bardo_pipeline.events.life.events import EVERY_GOLEM, Kind, LifeEvent, golem_name
from bardo_pipeline.events.life.life_schema import LIFE_SCHEMA
from bardo_pipeline.events.record.arrow_schema import to_table
from bardo_pipeline.signing import signed_message

Door = Literal["spool", "writer", "token", "home"]
DOORS: tuple[Door, ...] = get_args(Door)
Recorder = Literal["golem", "owner", "home", "pipeline"]


class Authority(NamedTuple):
    """Rule of a kind of event: its recorder, its doors, and the parties whose key may sign it in the spool."""

    recorder: Recorder
    doors: tuple[Door, ...]
    signers: tuple[Recorder, ...] = ()


_GOLEM = Authority("golem", ("spool", "writer", "home"), ("golem", "owner"))
_FIRST_KEY = Authority("owner", ("spool", "writer", "home"), ("owner",))
_OWNER = Authority("owner", ("spool", "home"), ("owner",))
_BIRTH = Authority("owner", ("spool", "token", "home"), ("owner",))
_OWNER_BY_COMMAND = Authority("owner", ("home",))
_HOME = Authority("home", ("home",))
_PIPELINE = Authority("pipeline", ("home",))
_WITH_BIRTH = Authority("pipeline", ("token", "home"))
_GOLEM_BY_TOOL = Authority("golem", ("home",))

AUTHORITY: Mapping[Kind, Authority] = {
    "DeathDeclared": _GOLEM,
    "GapAccepted": _GOLEM,
    "ReorgObserved": _GOLEM,
    "ModelAsked": _GOLEM,
    "TextStored": _GOLEM,
    "KeyRotated": _GOLEM,
    "KeyRevoked": _GOLEM,
    "KeyRegistered": _FIRST_KEY,
    "GolemBorn": _BIRTH,
    "OwnerSteered": _OWNER,
    "RecordStruck": _OWNER,
    "EntryPinned": _OWNER,
    "EntryUnpinned": _OWNER,
    "EntryRetracted": _OWNER,
    "EntryCorrected": _OWNER,
    "CreditCommitted": _OWNER,
    "OwnerKeyRegistered": _OWNER,
    "OwnerKeyRevoked": _OWNER,
    "LoanGranted": _OWNER_BY_COMMAND,
    "BundleSigned": _OWNER_BY_COMMAND,
    "BundleWaived": _OWNER_BY_COMMAND,
    "BundlePurchased": _OWNER_BY_COMMAND,
    "BundleConsented": _OWNER_BY_COMMAND,
    "EntryPulled": _OWNER_BY_COMMAND,
    "EntryExported": _OWNER_BY_COMMAND,
    "KitOrdered": _OWNER_BY_COMMAND,
    "BundleImported": _HOME,
    "SealKeyMade": _HOME,
    "SealKeyDestroyed": _HOME,
    "DerivationAdopted": _HOME,
    "ConfigurationAdopted": _HOME,
    "BundleJudged": _PIPELINE,
    "BundlePublished": _PIPELINE,
    "KnowledgeReceived": _WITH_BIRTH,
    "KnowledgeWithdrawn": _PIPELINE,
    "SuccessionAdvanced": _PIPELINE,
    "GolemTakenUp": _PIPELINE,
    "DeathAccepted": _PIPELINE,
    "AffairsSettled": _PIPELINE,
    "LifeReflected": _PIPELINE,
    "LegacyLeft": _PIPELINE,
    "ReplicantSent": _PIPELINE,
    "DefaultsInherited": _PIPELINE,
    "TestamentPhrased": _PIPELINE,
    "EntriesShared": _PIPELINE,
    "NoteReceived": _PIPELINE,
    "PostsReceived": _PIPELINE,
    "StrategyStored": _GOLEM_BY_TOOL,
    "ExecutionRecorded": _GOLEM_BY_TOOL,
    "OutcomeRecorded": _GOLEM_BY_TOOL,
    "InsightManaged": _GOLEM_BY_TOOL,
    "EpisodesConsolidated": _GOLEM_BY_TOOL,
    "AdjustmentStaged": _GOLEM_BY_TOOL,
    "ArchiveImported": _GOLEM_BY_TOOL,
    "ToolCalled": _GOLEM_BY_TOOL,
    "StyxCalled": _GOLEM_BY_TOOL,
}

INDEPENDENT = frozenset({"TextStored", *(kind for kind, rule in AUTHORITY.items() if rule is _GOLEM_BY_TOOL)})
"""Kinds whose events are checked one by one: the check neither depends on other events of a commit nor affects them."""

OF_THE_HOME = frozenset(
    {
        "DerivationAdopted", "ConfigurationAdopted", "OwnerKeyRegistered", "OwnerKeyRevoked", "CreditCommitted",
        "BundlePurchased", "BundleConsented", "KitOrdered", "NoteReceived",
        "PostsReceived",
    }
)  # fmt: skip
"""Kinds of events that may concern the whole home (golem `*`)."""

OWNER_KINDS = (
    "GolemBorn", "BundlePublished", "BundleImported", "BundlePurchased", "BundleConsented", "OwnerKeyRegistered",
    "OwnerKeyRevoked", "CreditCommitted",
)  # fmt: skip
"""Kinds of events that `Owners` learns from."""

OWNER_COLUMNS = (
    "kind", "golem_id", "observed_at", "born", "published", "imported", "purchased", "consented",
    "owner_key_registered", "owner_key_revoked", "credited",
)  # fmt: skip
"""Columns of LIFE_SCHEMA that `Owners` reads."""

NO_GOLEM = f"`{EVERY_GOLEM}` is no golem's id, but means the whole home: name the golem"
"""Reason for which a record, an event or a writer of golem `*` is refused."""

_CURE = "docs/domain/authority.md shows who may record it"


class Proof(NamedTuple):
    """A detached signature of an event's line, and the SHA-256 of that line."""

    signature: Signature
    content: bytes


class OwnerKey(NamedTuple):
    """A registered key of an owner; the newest is in force, unless it was revoked."""

    since: datetime
    key_id: str
    public_key: str


@dataclass
class Owners:
    """Owners, births and bundles that the log knows.

    Parameters
    ----------
    births : golem -> moment and owner of its earliest birth
    lineages : line of descent -> owner of its first recorded golem
    heirs : id of the heir that a golem has or would have -> owner of the golem's line
    keys, revoked : registered keys by owner, and the revoked ones as (owner, key id)
    funded : owners with committed credit
    left : bundle published here -> golem that left it
    imported : bundle of another home -> golem that left it there
    given : (owner, bundle) for each bundle that an owner may inherit though no golem of its own left it
    """

    births: dict[str, tuple[datetime, str]] = field(default_factory=dict)
    keys: dict[str, set[OwnerKey]] = field(default_factory=dict)
    revoked: set[tuple[str, str]] = field(default_factory=set)
    funded: set[str] = field(default_factory=set)
    left: dict[str, str] = field(default_factory=dict)
    imported: dict[str, str] = field(default_factory=dict)
    lineages: dict[str, str] = field(default_factory=dict)
    heirs: dict[str, str] = field(default_factory=dict)
    given: set[tuple[str, str]] = field(default_factory=set)

    def learn(self, events: pa.Table) -> None:
        """Update from life events (OWNER_COLUMNS); kinds beyond OWNER_KINDS are ignored."""
        known = events.filter(pc.is_in(events["kind"], value_set=pa.array(OWNER_KINDS)))
        for row in known.select(OWNER_COLUMNS).to_pylist():
            match row["kind"]:
                case "GolemBorn":
                    birth = (row["observed_at"], row["born"]["owner_id"])
                    self.births[row["golem_id"]] = min(birth, self.births.get(row["golem_id"], birth))
                    lineage_id, owner_id = row["born"]["lineage_id"], row["born"]["owner_id"]
                    owner_id = self.lineages.setdefault(lineage_id, owner_id)
                    self.heirs.setdefault(golem_name(lineage_id, row["born"]["generation"] + 1), owner_id)
                case "OwnerKeyRegistered":
                    key = row["owner_key_registered"]
                    own = self.keys.setdefault(key["owner_id"], set())
                    own.add(OwnerKey(row["observed_at"], key["key_id"], key["public_key"]))
                case "OwnerKeyRevoked":
                    self.revoked.add((row["owner_key_revoked"]["owner_id"], row["owner_key_revoked"]["key_id"]))
                case "CreditCommitted":
                    self.funded.add(row["credited"]["owner_id"])
                case "BundlePublished":
                    self.left[row["published"]["bundle_hash"]] = row["golem_id"]
                case "BundleImported":
                    self.imported[row["imported"]["bundle_hash"]] = row["golem_id"]
            self.given.update(given_bundles(row))

    def owner_of(self, golem_id: str) -> str | None:
        """Return the owner of a born golem."""
        birth = self.births.get(golem_id)
        return None if birth is None else birth[1]

    def is_known(self, owner_id: str) -> bool:
        """Whether an owner has a golem, a key or credit on record."""
        return owner_id in self.keys or owner_id in self.funded or owner_id in {o for _, o in self.births.values()}

    def key_in_force(self, owner_id: str | None) -> OwnerKey | None:
        """Return the newest key of an owner; None if it was revoked, because an older key never returns."""
        newest = max(self.keys.get(owner_id, set()), default=None) if owner_id is not None else None
        return None if newest is None or (owner_id, newest.key_id) in self.revoked else newest

    def may_inherit(self, owner_id: str, bundle_hash: str) -> bool:
        """Whether a golem of this owner left the bundle, or the bundle was given to the owner."""
        return (owner_id, bundle_hash) in self.given or self.owner_of(self.left.get(bundle_hash, "")) == owner_id


def given_bundles(event: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each (owner, bundle hash) that a life event (row of OWNER_COLUMNS) gives.

    An owner gets a bundle by a purchase, an import of a bundle that the owner signed, or the consent of its owner.
    """
    for name, field_name in (("purchased", "owner_id"), ("imported", "owner_id"), ("consented", "to_owner_id")):
        part = event[name]
        if part is not None and part[field_name] is not None:
            yield part[field_name], part["bundle_hash"]


def check_authority(
    events: Sequence[LifeEvent],
    *,
    door: Door,
    proofs: Mapping[str, Proof],
    owners: Owners,
    ring: Callable[[str], KeyRing],
    has_records: Callable[[str], bool],
) -> None:
    """Raise AuthorityError for an event that may not come by this door, or without the proof that it needs.

    Parameters
    ----------
    proofs : event id -> its detached signature
    ring : golem -> its signing keys
    has_records : golem -> whether a record of it is on record
    """
    beside: dict[str, str] = {}
    for event in events:
        _check_golem(event)
        rule, subject = AUTHORITY[event.kind], f"golem {event.golem_id}: {event.kind}"
        if door not in rule.doors:
            raise AuthorityError(f"{subject} is recorded by the {rule.recorder}, not by the {door}: {_CURE}")
        if event.born is not None:
            _check_birth(event, door, owners)
            if beside.setdefault(event.golem_id, event.born.owner_id) != event.born.owner_id:
                raise AuthorityError(_taken(event))
            if door != "home" and (ring(event.golem_id).keys or has_records(event.golem_id)):
                raise AuthorityError(
                    f"golem {event.golem_id} has a key or records, and the {door} does not prove whose: "
                    "record its birth by `bardo golem birth`"
                )
        if door == "spool" and not _is_self_signed(event):
            _check_signature(event, rule, proofs.get(event.event_id), owners, ring(event.golem_id))


def check_clock(events: Sequence[LifeEvent], recorded_at: datetime, ahead: timedelta) -> None:
    """Raise ClockError for an event that was observed more than `ahead` after the time of recording."""
    for event in events:
        if event.observed_at > recorded_at + ahead:
            raise ahead_of_clock(f"golem {event.golem_id}: {event.kind}", event.observed_at, ahead)


def ahead_of_clock(subject: str, observed_at: datetime | str, ahead: timedelta) -> ClockError:
    """Return the error for a time of observation beyond the recording clock."""
    return ClockError(
        f"{subject} was observed at {observed_at}, more than {ahead.total_seconds():.0f} s ahead of the clock of this "
        "home: set the runtime's clock, then retry"
    )


def unaccepted(events: Sequence[LifeEvent]) -> Iterator[tuple[LifeEvent, str]]:
    """Yield each recorded event that would be refused today, with the reason.

    Door and proof of an event are not on record, so only its content decides.
    """
    owners = Owners()
    owners.learn(to_table((event for event in events if event.kind in OWNER_KINDS), LIFE_SCHEMA))
    for event in events:
        try:
            _check_golem(event)
            if event.born is not None:
                _check_citation(event, "home", owners)
        except AuthorityError as error:
            yield event, str(error)
            continue
        if event.born is not None and (first := owners.births[event.golem_id]) != (
            event.observed_at,
            event.born.owner_id,
        ):
            fact = f"it was also born at {first[0]} to owner {first[1]}; of two births the earlier counts"
            yield event, f"golem {event.golem_id}: {fact}"
        elif event.key_rotated is not None and event.key_rotated.signature is None:
            fact = f"the rotation to key {event.key_rotated.key_id} is not signed by the key before"
            yield event, f"golem {event.golem_id}: {fact}; only its owner or the command of the operator may record it"


def _check_golem(event: LifeEvent) -> None:
    if event.golem_id == EVERY_GOLEM and event.kind not in OF_THE_HOME:
        raise AuthorityError(f"{event.kind}: {NO_GOLEM}")


def _check_birth(event: LifeEvent, door: Door, owners: Owners) -> None:
    birth, golem_id = event.born, event.golem_id
    assert birth is not None, "the caller passes births"
    if owners.owner_of(golem_id) not in (None, birth.owner_id):
        raise AuthorityError(_taken(event))
    _check_citation(event, door, owners)
    if door == "home":
        return
    subject = f"golem {golem_id}"
    if door == "spool" and not owners.is_known(birth.owner_id):  # the operator issued the token, which founds its owner
        raise AuthorityError(f"{subject}: owner {birth.owner_id} is unknown: `bardo golem birth` founds an owner")
    if golem_id in owners.births:
        raise AuthorityError(f"{subject} was born before: choose another id")
    if owners.heirs.get(golem_id, birth.owner_id) != birth.owner_id or golem_id in owners.imported.values():
        raise AuthorityError(f"{subject}: the id belongs to an heir or to a golem of another owner: choose another id")
    if owners.lineages.get(birth.lineage_id, birth.owner_id) != birth.owner_id:
        raise AuthorityError(f"{subject}: line of descent {birth.lineage_id} is another owner's: name another one")


def _taken(event: LifeEvent) -> str:
    return f"golem {event.golem_id} was born before to another owner: choose another id"


def _check_citation(event: LifeEvent, door: Door, owners: Owners) -> None:
    """Check the bundle and the predecessor that a birth cites."""
    birth, subject = event.born, f"golem {event.golem_id}"
    assert birth is not None, "the caller passes births"
    cited = birth.bundle_hash
    # A process of the home writes bundles itself, so it may cite one before the log knows it.
    is_known = cited in owners.left or cited in owners.imported
    if cited is not None and (door != "home" or is_known) and not owners.may_inherit(birth.owner_id, cited):
        raise AuthorityError(
            f"{subject}: no golem of {birth.owner_id} left bundle {cited[:12]}, and it was not given to "
            f"{birth.owner_id}: cite a bundle of the own owner, or buy it (`bardo library buy`)"
        )
    if owners.owner_of(birth.predecessor_id or "") not in (None, birth.owner_id):
        raise AuthorityError(f"{subject}: its predecessor {birth.predecessor_id} is another owner's: name that owner")


def _is_self_signed(event: LifeEvent) -> bool:
    """Whether the event holds the signature by the key before, which the key ring verifies."""
    return event.key_rotated is not None and event.key_rotated.signature is not None


def _check_signature(event: LifeEvent, rule: Authority, proof: Proof | None, owners: Owners, ring: KeyRing) -> None:
    subject = f"golem {event.golem_id}: {event.kind}"
    keys = {who: key for who in rule.signers if (key := _key(who, event, owners, ring)) is not None}
    if not keys:
        raise AuthorityError(
            f"{subject} needs a signature by its {' or its '.join(rule.signers)}, and no such key is in force: "
            "register it (`bardo keys register`, `bardo keys owner`), or record the event by the command"
        )
    needed = " or ".join(f"{key_id} of the {who}" for who, (key_id, _) in keys.items())
    if proof is None:
        raise AuthorityError(f"{subject} is not signed: sign its line with {needed}")
    message = signed_message(event.golem_id, proof.content)
    for key_id, public_key in keys.values():
        if key_id == proof.signature.key_id and verified(public_key, proof.signature.value, message):
            return
    raise AuthorityError(f"{subject} is signed with {proof.signature.key_id}, but not by {needed}")


def _key(who: Recorder, event: LifeEvent, owners: Owners, ring: KeyRing) -> tuple[str, str] | None:
    """Return id and public key in force of the golem or of the owner of an event."""
    if who == "golem":
        newest = ring.keys[-1] if ring.keys else None
        return None if newest is None or newest.revoked_from is not None else (newest.key_id, newest.public_key)
    owner_id = getattr(event.payload, "owner_id", None) or owners.owner_of(event.golem_id)
    key = owners.key_in_force(owner_id)
    return None if key is None else (key.key_id, key.public_key)
