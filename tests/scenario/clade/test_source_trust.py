"""Sources whose entries own outcomes refuse are throttled: their parcels wait and their notes are not heard."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from bardo_pipeline.curator.state.decision_log import DECISION_SCHEMA
from bardo_pipeline.derivation.clade import clade_exchange
from bardo_pipeline.derivation.clade.clade_exchange import exchange
from bardo_pipeline.derivation.clade.clade_notes import notes_received
from bardo_pipeline.derivation.clade.source_trust import SourceStanding, standings_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.bundle_archives import pack_archive
from bardo_pipeline.derivation.legacy.death_queries import births_of
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.inheritance.clade_note import Note, Shift
from bardo_pipeline.inheritance.clade_parcel import pack_parcel
from bardo_pipeline.policy.inheritance import CladePolicy
from bardo_pipeline.storage.keys.clade_secrets import read_clade_secret
from tests.conftest import NOW
from tests.support.knowledge.handmade_grimoires import grimoire
from tests.support.knowledge.received_knowledge import BRIEF, Received, claim, delivery
from tests.support.processes.clade_homes import OWNER, HeldRelay
from tests.support.records.handmade_records import FOG, GALE, SPAN, SQUALL, STORM, Chapter, Life, Situation, stream

GOOD, BAD, SILENCE = Chapter(2, 6_000), Chapter(2, -6_000), Chapter(0)
UNSURE = BRIEF.model_copy(update={"curator": BRIEF.curator.model_copy(update={"effect_sigma_prior_ppm": 90_000.0})})
RULES = CladePolicy()
LATELY = datetime(2026, 1, 1, 20, tzinfo=UTC)


def standing(lies: Sequence[Situation], truths: Sequence[Situation], since: datetime) -> SourceStanding:
    """Return the standing of a source that made false and true claims, after cycles that judge all of them."""
    plot = dict.fromkeys(lies, (SILENCE, BAD, BAD, BAD)) | dict.fromkeys(truths, (SILENCE, GOOD, GOOD, GOOD))
    lived = stream([Life("g-1", plot, (0,), timedelta(minutes=1), 5 * SPAN)])
    given = [delivery(claim(when), source="clade", number=n) for n, when in enumerate((*lies, *truths))]
    decisions = pa.Table.from_pylist(Received(lived, *given, policy=UNSURE).decisions, DECISION_SCHEMA)
    parcels = pa.table(
        {"content_hash": [one.arrival.content_hash for one in given], "from_golem_id": ["g-far"] * len(given)}
    )
    return standings_of(decisions, parcels, since).get("g-far", SourceStanding(0, 0))


@pytest.mark.parametrize(
    ("lies", "truths", "is_throttled"),
    [((STORM, SQUALL, GALE), (), True), ((STORM, SQUALL, GALE), (FOG,), True), ((STORM, SQUALL), (), False),
     ((STORM,), (SQUALL, GALE, FOG), False), ((), (STORM, SQUALL), False)],
)  # fmt: skip
def test_a_source_is_throttled_once_own_outcomes_refused_most_of_its_entries(
    lies: tuple[Situation, ...], truths: tuple[Situation, ...], is_throttled: bool
) -> None:
    found = standing(lies, truths, datetime(2000, 1, 1, tzinfo=UTC))
    assert found == SourceStanding(len(lies), len(truths))
    assert found.is_throttled(RULES) is is_throttled
    assert standing(lies, truths, datetime(2100, 1, 1, tzinfo=UTC)) == SourceStanding(0, 0), "verdicts expire"


def test_parcels_of_a_throttled_golem_wait_and_its_notes_are_refused(
    homes: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (DerivationContext.open(root) for root in homes)
    secret, held = read_clade_secret(first.home, OWNER), HeldRelay()
    ((liar, (birth, _)), *_) = sorted(births_of(first).items())
    for sign in (1, -1):
        parcel = pack_parcel(
            grimoire(claim(STORM, sign)), liar, birth, cycle=3, at=LATELY, left_out=LeftOut(),
            derivation_id=first.derivation_id, policy=first.policy,
        )  # fmt: skip
        held.put(secret.message_id(parcel.bundle_hash), secret.encrypt(pack_archive(parcel)))
    place = {"chain": "synthetic", "protocol": "uniswap_v3", "pair": "WETH/USDC"}
    alarm = Note(OWNER, liar, "regime_shift", LATELY, Shift(tick=9, before="unknown", regime="volatile", **place))
    held.put(secret.message_id(alarm.content_hash), secret.encrypt(alarm.content))
    with monkeypatch.context() as patched:
        patched.setattr(clade_exchange, "throttled_sources", lambda *_: {liar: "golem is throttled"})
        done = exchange(second, OWNER, secret, held, now=NOW)
    assert (done.received_parcels - done.sent_parcels, done.waiting_parcels) == (2, 2 * len(done.members))
    assert [reason for _, reason in done.refused] == ["golem is throttled"]
    assert done.throttled == {liar: "golem is throttled"}
    heard = {one.note.from_golem_id for one in notes_received(second, OWNER)}
    assert liar not in heard
    again = exchange(second, OWNER, secret, held, now=NOW)
    assert (again.waiting_parcels, again.throttled) == (0, {}), "the parcels were kept"
    assert set(again.delivered_entries.values()) == {2}
