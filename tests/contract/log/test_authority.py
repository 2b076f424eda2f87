"""Life events by the spool: only a signature by the golem or its owner proves who may record them."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import get_args

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bardo_pipeline.errors import AuthorityError, ClockError, IdentityError
from bardo_pipeline.events.custody.authority import AUTHORITY, DOORS
from bardo_pipeline.events.custody.hash_chain import content_of, rotation_message
from bardo_pipeline.events.life.bundle_events import (
    BundleImported,
    BundlePurchased,
    OwnerKeyRegistered,
    OwnerKeyRevoked,
)
from bardo_pipeline.events.life.events import (
    EVERY_GOLEM,
    Adopted,
    Gap,
    KeyRegistered,
    KeyRevoked,
    KeyRotated,
    Kind,
    LifeEvent,
    Published,
    Reorg,
    Struck,
    golem_name,
    life_event,
)
from bardo_pipeline.events.life.succession_events import Credited
from bardo_pipeline.events.record.model import Part
from bardo_pipeline.heartbeat.fleet import Founding, born
from bardo_pipeline.inheritance.bundle_signature import key_id_of
from bardo_pipeline.storage.intake.quarantine_retry import retry
from bardo_pipeline.storage.journal.event_writer import EventWriter
from bardo_pipeline.storage.keys.owner_signing_keys import OwnerKeys
from bardo_pipeline.storage.log import event_log
from bardo_pipeline.storage.verification.verify import verify
from tests.conftest import NOW
from tests.support.homes.spool_homes import (
    KEY,
    OWNER_KEY,
    PUBLIC,
    SMALL,
    Place,
    line_of,
    lines,
    opened,
    record_owned_birth,
    signed,
)
from tests.support.processes.bardo_command import bardo
from tests.support.records.log_queries import died

ROOT = Path(__file__).resolve().parents[3]
STRANGER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
STRANGERS = STRANGER.public_key().public_bytes_raw().hex()
GOLEM_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(2, 34)))
GOLEMS = GOLEM_KEY.public_key().public_bytes_raw().hex()


@pytest.fixture
def owned(place: Place) -> Place:
    """A home with golem g-1 of owner-1, each with a key; KEY is the owner's."""
    record_owned_birth(place, "g-1")
    payload = KeyRegistered(key_id="key-1", public_key=GOLEMS, tick_from=1)
    place.log.record([life_event("g-1", NOW, payload)], NOW)
    return place


def send(place: Place, *events: LifeEvent, key: Ed25519PrivateKey | None = None, key_id: str = OWNER_KEY) -> list[str]:
    """Put events into the spool, signed with this key; return the reasons of the refused."""
    sent = [line_of(event) for event in events]
    signatures = [signed(e.golem_id, content_of(s), key_id, key) for e, s in zip(events, sent, strict=True) if key]
    place.drop("a.life.jsonl", sent, signatures if key else None)
    (taken,) = place.take()
    assert taken.written + taken.quarantined == len(events)
    assert set(taken.errors) <= {"AuthorityError"}
    return [item.reason for item in place.refused()]


def of_home(payload: Part) -> LifeEvent:
    return life_event(EVERY_GOLEM, NOW, payload)


def birth(golem_id: str, owner: str, bundle_hash: str | None = None) -> LifeEvent:
    payload = born(
        lineage_id=golem_id, generation=0, owner_id=owner, founding=Founding(), market="m", market_hash="-",
        derivation_id="d", policy=SMALL, bundle_hash=bundle_hash,
    )[1]  # fmt: skip
    return life_event(golem_id, NOW, payload)


def rotation(by: Ed25519PrivateKey | None, key_id: str = "key-2", public: str = STRANGERS) -> LifeEvent:
    message = rotation_message("g-1", key_id, public, 5)
    signature = None if by is None else by.sign(message).hex()
    payload = KeyRotated(
        key_id=key_id, public_key=public, previous_key_id="key-1", tick_from=5, signature=signature, why="mine now"
    )
    return life_event("g-1", NOW, payload)


def revocation(tick_from: int = 5) -> LifeEvent:
    return life_event("g-1", NOW, KeyRevoked(key_id="key-1", tick_from=tick_from, why="mine now"))


@pytest.mark.row("X-9", "EV-4")
def test_two_unsigned_lines_take_over_no_golem(owned: Place) -> None:
    reasons = send(owned, revocation(), rotation(None))
    assert all(f"sign its line with key-1 of the golem or {OWNER_KEY} of the owner" in reason for reason in reasons)
    assert [key.key_id for key in owned.log.ring_of("g-1").keys] == ["key-1"]
    owned.drop("b.jsonl", [own := lines(1)[0]], [signed("g-1", content_of(own), "key-1", GOLEM_KEY)])
    assert [taken.written for taken in owned.take()] == [1]


CREDIT = of_home(Credited(owner_id="owner-1", amount_micros=10**9, number=1, why="a gift"))
OWNER_KEY_OF_STRANGER = of_home(
    OwnerKeyRegistered(owner_id="owner-1", key_id=key_id_of(STRANGERS), public_key=STRANGERS)
)
FORBIDDEN = {
    "credit of another owner": CREDIT,
    "key of another owner": OWNER_KEY_OF_STRANGER,
    "revocation of another owner's key": of_home(OwnerKeyRevoked(owner_id="owner-1", key_id=OWNER_KEY, why="x")),
    "struck record": life_event("g-1", NOW, Struck(tick=1, why="x")),
    "death": died(1, "g-1"),
    "gap": life_event("g-1", NOW, Gap(tick_from=1, tick_to=9, why="x")),
    "reorg": life_event("g-1", NOW, Reorg(chain="c", block_from=1, block_to=2, tick_from=1, tick_to=9)),
    "first key of another golem": life_event("g-2", NOW, KeyRegistered(key_id="k", public_key=STRANGERS, tick_from=1)),
    "birth under a known owner": birth("g-9", "owner-1"),
    "birth under an unknown owner": birth("g-9", "stranger"),
    "second birth under another owner": birth("g-1", "stranger"),
    "birth with another owner's bundle": birth("g-9", "stranger", "b" * 64),
    "purchase": of_home(
        BundlePurchased(owner_id="owner-2", bundle_hash="b" * 64, from_golem_id="g-1", entry_count=1, why="x")
    ),
    "published bundle": life_event("g-1", NOW, Published(bundle_hash="c" * 64, entry_count=1, derivation_id="d")),
    "derivation": of_home(
        Adopted(
            derivation_id="d", previous_derivation_id="e", policy_hash="p", passes_edition="1", embedder="m",
            policy="{}", why="x",
        )
    ),
    "golem *": life_event(EVERY_GOLEM, NOW, Struck(tick=1, why="x")),
}  # fmt: skip


@pytest.mark.row("X-9", "EV-4", "X-4", "INH-7")
@pytest.mark.parametrize("what", FORBIDDEN)
def test_the_spool_refuses_an_event_of_a_stranger_with_a_reason(owned: Place, what: str) -> None:
    record_owned_birth(owned, "g-2", "owner-2")
    owned.log.record([life_event("g-1", NOW, Published(bundle_hash="b" * 64, entry_count=1, derivation_id="d"))], NOW)
    before, event = owned.log.life().num_rows, FORBIDDEN[what]
    (reason,) = send(owned, event)
    forged = signed(event.golem_id, content_of(line_of(event)), "key-1", STRANGER)
    owned.drop("b.life.jsonl", [line_of(event)], [forged])
    owned.take()
    assert owned.log.life().num_rows == before
    assert [item.raw for item in owned.refused()] == [line_of(event)] * 2
    cures = ("sign its line", "docs/domain/authority.md", "bardo golem birth", "another id", "name the golem", "buy it")
    assert any(cure in reason for cure in cures)


def test_an_event_that_its_owner_signed_is_taken(owned: Place) -> None:
    next_key = of_home(OwnerKeyRegistered(owner_id="owner-1", key_id=key_id_of(GOLEMS), public_key=GOLEMS))
    events = [
        CREDIT, life_event("g-1", NOW, Struck(tick=1, why="x")), birth("g-9", "owner-1"), revocation(),
        rotation(None), died(1, "g-1"), next_key,
    ]  # fmt: skip
    assert send(owned, *events, key=KEY) == []
    assert [key.key_id for key in owned.log.ring_of("g-1").keys] == ["key-1", "key-2"]
    reasons = send(owned, of_home(CREDIT.payload.model_copy(update={"number": 2})), key=KEY)  # type: ignore[arg-type]
    assert f"but not by {key_id_of(GOLEMS)} of the owner" in reasons[0], "the next key is in force"


def test_an_event_that_its_golem_signed_is_taken(owned: Place) -> None:
    reorg = life_event("g-1", NOW, Reorg(chain="c", block_from=1, block_to=2, tick_from=1, tick_to=9))
    assert send(owned, reorg, died(1, "g-1"), key=GOLEM_KEY, key_id="key-1") == []
    (reason,) = send(owned, life_event("g-1", NOW, Struck(tick=1, why="x")), key=GOLEM_KEY, key_id="key-1")
    assert f"signed with key-1, but not by {OWNER_KEY} of the owner" in reason


@pytest.mark.row("X-9")
def test_a_rotation_needs_the_signature_of_the_key_before_alone(owned: Place) -> None:
    assert send(owned, rotation(GOLEM_KEY)) == []
    assert owned.log.ring_of("g-1").keys[-1].public_key == STRANGERS


def test_a_signature_for_another_golem_or_line_proves_nothing(owned: Place) -> None:
    record_owned_birth(owned, "g-2")
    event, other = died(1, "g-1"), died(1, "g-2")
    sent, otherwise = content_of(line_of(event)), content_of(line_of(other))
    signatures = [signed("g-2", sent, OWNER_KEY), signed("g-1", otherwise, OWNER_KEY), b"?"]
    owned.drop("a.life.jsonl", [line_of(event)] * 3, signatures)
    owned.take()
    assert [item.error for item in owned.refused()] == ["AuthorityError", "AuthorityError", "SignatureError"]
    assert owned.log.death_of("g-1") is None


def test_a_quarantined_event_is_taken_by_a_retry_once_its_owner_has_a_key(place: Place) -> None:
    payload = birth("g-1", "owner-1")
    place.log.record([payload], NOW)
    event = life_event("g-1", NOW, Struck(tick=1, why="x"))
    (reason,) = send(place, event, key=KEY)
    assert "no such key is in force: register it" in reason
    items, quarantine = [item.item_id for item in place.refused()], place.spool.quarantine
    assert len(retry(place.log, quarantine, items, at=NOW, policy=SMALL).stayed) == 1
    place.log.record([OWNER_KEY_OF_KEY], NOW)
    assert retry(place.log, quarantine, items, at=NOW, policy=SMALL).stayed == []
    assert place.log.life("RecordStruck").num_rows == 1


OWNER_KEY_OF_KEY = of_home(OwnerKeyRegistered(owner_id="owner-1", key_id=OWNER_KEY, public_key=PUBLIC))


@pytest.mark.row("INH-7")
def test_a_birth_cites_a_bundle_of_its_owner_or_one_that_was_bought(owned: Place) -> None:
    record_owned_birth(owned, "g-2", "owner-2")
    left = life_event("g-1", NOW, Published(bundle_hash="b" * 64, entry_count=1, derivation_id="d"))
    owned.log.record([left], NOW)
    heir, founder = birth("g-9", "owner-2", "b" * 64), birth("g-9", "owner-2")
    with pytest.raises(AuthorityError, match="no golem of owner-2 left bundle bbbbbbbbbbbb"):
        owned.log.record([heir], NOW)
    assert "no golem of owner-2 left bundle" in send(owned, heir, key=KEY)[0]
    reasons = " ".join(send(owned, birth("g-1", "owner-2"), key=KEY))
    assert "g-1 was born before" in reasons, "KEY is also the key of owner-2"
    with pytest.raises(AuthorityError, match="predecessor g-1 is another owner's"):
        owned.log.record([life_event("g-9", NOW, founder.payload.model_copy(update={"predecessor_id": "g-1"}))], NOW)
    assert owned.log.record([FORBIDDEN["purchase"]], NOW) == 1
    assert owned.log.record([heir], NOW) == 1
    assert owned.log.record([birth("g-8", "owner-1", "b" * 64)], NOW) == 1


@pytest.mark.row("X-9", "EV-4")
def test_no_stranger_births_a_golem_that_has_a_key_or_records(owned: Place) -> None:
    record_owned_birth(owned, "g-2", "owner-2")
    payload = KeyRegistered(key_id="key-1", public_key=GOLEMS, tick_from=1)
    owned.log.record([life_event("g-keyed", NOW, payload)], NOW)
    owned.drop("a.jsonl", lines(2, golem_id="g-running"))
    owned.take()
    for golem_id in ("g-keyed", "g-running"):
        reasons = send(owned, birth(golem_id, "owner-2"), key=KEY)
        assert any(reason.startswith(f"golem {golem_id} has a key or records") for reason in reasons)
        bardo("golem", "birth", golem_id, "--owner", "owner-2", home=owned.home.root)
    owned.log.close()


@pytest.mark.row("INH-7", "X-12")
def test_no_stranger_births_an_heir_or_a_golem_of_another_line_or_home(owned: Place) -> None:
    record_owned_birth(owned, "g-2", "owner-2")
    imported = BundleImported(
        bundle_hash="e" * 64, from_golem_id="g-foreign", owner_id="owner-1", key_id=None, entry_count=1
    )
    owned.log.record([life_event("g-foreign", NOW, imported)], NOW)
    heir = golem_name("g-1", 1)
    for golem_id in (heir, "g-foreign"):
        reasons = send(owned, birth(golem_id, "owner-2"), key=KEY)
        assert any(reason.startswith(f"golem {golem_id}: the id belongs to an heir") for reason in reasons)
    own_line = birth("g-9", "owner-2")
    assert own_line.born is not None
    of_line = life_event("g-9", NOW, own_line.born.model_copy(update={"lineage_id": "g-1"}))
    assert any("line of descent g-1 is another owner's" in reason for reason in send(owned, of_line, key=KEY))
    own = line_of(birth(heir, "owner-1"))
    owned.drop("b.life.jsonl", [own], [signed(heir, content_of(own), OWNER_KEY)])
    assert [taken.written for taken in owned.take()] == [1], "its own owner may"


@pytest.mark.row("X-9", "INH-7", "X-12")
def test_a_token_of_an_owner_proves_less_than_the_command_of_the_operator(owned: Place) -> None:
    record_owned_birth(owned, "g-2", "owner-2")
    payload = KeyRegistered(key_id="key-1", public_key=GOLEMS, tick_from=1)
    owned.log.record([life_event("g-keyed", NOW, payload)], NOW)
    owned.drop("a.jsonl", lines(2, golem_id="g-running"))
    owned.take()
    born = birth("g-9", "owner-2").born
    assert born is not None
    of_line = life_event("g-9", NOW, born.model_copy(update={"lineage_id": "g-1"}))
    later = life_event("g-9", NOW + timedelta(minutes=6), born)
    refused = {
        "the id belongs to an heir": birth(golem_name("g-1", 1), "owner-2"),
        "line of descent g-1 is another owner's": of_line,
        "golem g-keyed has a key or records, and the token does not prove whose": birth("g-keyed", "owner-2"),
        "golem g-running has a key or records": birth("g-running", "owner-2"),
        "golem g-1 was born before to another owner": birth("g-1", "owner-2"),
        "RecordStruck is recorded by the owner, not by the token": life_event("g-2", NOW, Struck(tick=1, why="x")),
    }
    for reason, event in refused.items():
        with pytest.raises(AuthorityError, match=reason):
            owned.log.record([event], NOW, door="token")
    with pytest.raises(ClockError, match="ahead of the clock"):
        owned.log.record([later], NOW, door="token")
    assert owned.log.record([birth("g-9", "owner-2"), birth("g-8", "owner-3")], NOW, door="token") == 2


@pytest.mark.row("X-9", "X-12")
def test_a_second_birth_under_another_owner_is_refused_at_every_door(owned: Place) -> None:
    record_owned_birth(owned, "g-2", "owner-2")
    with pytest.raises(AuthorityError, match="golem g-1 was born before to another owner: choose another id"):
        owned.log.record([birth("g-1", "owner-2")], NOW)
    with pytest.raises(AuthorityError, match="golem g-7 was born before to another owner"):
        owned.log.record([birth("g-7", "owner-1"), birth("g-7", "owner-2")], NOW)
    assert owned.log.record([birth("g-7", "owner-1")], NOW) == 1


@pytest.mark.row("X-9")
def test_a_replaced_key_of_an_owner_never_returns(owned: Place) -> None:
    key = OwnerKeyRegistered(owner_id="owner-1", key_id=key_id_of(GOLEMS), public_key=GOLEMS)
    revoked = OwnerKeyRevoked(owner_id="owner-1", key_id=key_id_of(GOLEMS), why="lost")
    later = life_event(EVERY_GOLEM, NOW + timedelta(seconds=1), key)
    owned.log.record([later, life_event(EVERY_GOLEM, NOW + timedelta(seconds=2), revoked)], NOW + timedelta(seconds=2))
    assert any("no such key is in force" in reason for reason in send(owned, CREDIT, key=KEY))
    assert OwnerKeys(owned.home, owned.log).in_force() == {}


@pytest.mark.row("EV-4")
def test_no_record_and_no_writer_has_the_golem_id_of_the_home(place: Place) -> None:
    place.drop("a.jsonl", [*lines(1, golem_id=EVERY_GOLEM), *lines(1)])
    (taken,) = place.take()
    assert (taken.written, taken.quarantined, place.reasons()) == (1, 1, [("a.jsonl", 1, "IdentityError")])
    with pytest.raises(IdentityError, match="no golem's id"):
        EventWriter.open(place.home, EVERY_GOLEM)


def test_a_writer_records_events_of_its_golem_but_not_of_its_owner(owned: Place) -> None:
    with EventWriter.open(owned.home, "g-1", clock=lambda: NOW) as writer:
        with pytest.raises(AuthorityError, match="RecordStruck is recorded by the owner, not by the writer"):
            writer.record(life_event("g-1", NOW, Struck(tick=1, why="x")))
        assert writer.record(died(1, "g-1")) == 1


@pytest.mark.row("X-9")
def test_verify_lists_the_events_of_an_older_home_that_would_be_refused_today(
    owned: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_owned_birth(owned, "g-2", "owner-2")
    left = life_event("g-1", NOW, Published(bundle_hash="b" * 64, entry_count=1, derivation_id="d"))
    second, heir = birth("g-1", "owner-2"), birth("g-9", "owner-2", "b" * 64)
    events = [left, revocation(), rotation(None), FORBIDDEN["golem *"], second, heir]
    with monkeypatch.context() as older:
        older.setattr(event_log, "check_authority", lambda *_, **__: None)
        owned.log.record(events, NOW)
    report = verify(owned.home)
    assert set(report.counts) == {"bundle"}, "only the files of the bundle are missing"
    refused = sorted(f"{event.kind} {event.event_id}" for event in events[2:])
    assert sorted(listed.partition(":")[0] for listed in report.unaccepted) == refused
    printed = bardo("verify", home=owned.home.root, expect=1)
    assert printed.count("not accepted today") == len(refused)
    assert "the rotation to key key-2 is not signed by the key before" in printed
    owned.log.close()
    assert send(opened(owned.home.root), CREDIT, key=KEY) == [], "the home stays in use"


def test_every_kind_of_life_event_has_a_row_that_the_page_shows() -> None:
    assert set(AUTHORITY) == set(get_args(Kind))
    page = (ROOT / "docs" / "domain" / "authority.md").read_text()
    rows = [
        f"| `{kind}` | {rule.recorder} | {', '.join(door for door in DOORS if door in rule.doors)} | "
        f"{' or '.join(rule.signers) or '-'} |"
        for kind, rule in AUTHORITY.items()
    ]
    assert re.findall(r"^\| `.*$", page, re.MULTILINE) == rows


def test_events_that_come_from_outside_state_their_door() -> None:
    for folder in ("intake", "journal"):
        for path in (ROOT / "bardo_pipeline" / "storage" / folder).glob("*.py"):
            for call in re.findall(r"\blog\.record\((.*)\)", path.read_text()):
                assert "door=" in call, path
    server = "".join(path.read_text() for path in (ROOT / "bardo_pipeline" / "server").glob("*.py"))
    births = re.findall(r"\brecord_founder\(\n?(.*?)\n? *\)  # fmt", server, re.DOTALL)
    assert births
    assert all('door="home" if caller.owner is None else "token"' in call for call in births)
    assert ".record(" not in server.replace("\n", "")
