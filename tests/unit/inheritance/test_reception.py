"""The fate of knowledge that a golem receives during its life."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from bardo_pipeline.curator.state.received_entries import verdicts
from bardo_pipeline.errors import RegressionError
from bardo_pipeline.events.life.events import LifeEvent, life_event
from bardo_pipeline.events.life.events import Received as Came
from bardo_pipeline.events.life.received_knowledge import Quarantined, check_arrivals
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA
from bardo_pipeline.inheritance.bundle_inspection import Claim, claims_of, unproven
from bardo_pipeline.retrieval.scoring import LAYER_OF_PROVENANCE, LAYERS
from tests.support.homes.owner_events import order
from tests.support.knowledge.handmade_grimoires import DIED, entry, grimoire
from tests.support.knowledge.received_knowledge import BRIEF, Received, claim, crossing, delivery
from tests.support.records.handmade_records import (
    FOG,
    GALE,
    LULL,
    RALLY,
    SPAN,
    SQUALL,
    START,
    STORM,
    Chapter,
    Life,
    Situation,
    stream,
)

pytestmark = pytest.mark.row("INH-11")

AT_US = int(DIED.timestamp() * 1_000_000)
GOOD, BAD, SILENCE = Chapter(2, 6_000), Chapter(2, -6_000), Chapter(0)
STRONG = Chapter(14, 6_000)
UNSURE = BRIEF.model_copy(update={"curator": BRIEF.curator.model_copy(update={"effect_sigma_prior_ppm": 90_000.0})})
"""Under this policy a few windows are never decisive."""
ELSEWHERE = STORM.structure._replace(chain="base")
TRANSACTION = "0x" + "Ab" * 32


def lived(plot: dict[Situation, Any], cycles: int = 8) -> pa.Table:
    by_key = {when: tuple(story) for when, story in plot.items()}
    return stream([Life("g-1", by_key, (0,), timedelta(minutes=1), cycles * SPAN)])


def judged(*rows: dict[str, Any], held: list[dict[str, Any]] | None = None, **fields: Any) -> dict[str, dict[str, Any]]:
    """Verdicts by structure."""
    arriving = crossing(*rows)
    known = grimoire(*(held or [])) if held else ENTRY_SCHEMA.empty_table()
    verdict = verdicts(arriving, known, AT_US, fields.pop("source", "import"), fields.pop("policy", BRIEF), **fields)
    about = dict(zip(arriving["entry_id"].to_pylist(), arriving["structure"].to_pylist(), strict=True))
    return {about[row["entry_id"]]: row for row in verdict.to_pylist()}


def test_a_received_entry_stays_a_candidate_until_own_outcomes_admit_it() -> None:
    reception = Received(lived({STORM: (SILENCE, GOOD, SILENCE, GOOD, GOOD)}), delivery(claim(STORM)), policy=UNSURE)
    assert reception.decided(STORM) == [
        (1, "quarantined"), (2, "borne_out"), (4, "borne_out"), (5, "borne_out"), (5, "admitted"),
    ]  # fmt: skip
    held = reception.entry(STORM)
    assert (held["status"], held["provenance"], held["origin_golem_id"]) == ("active", "import", "g-far")
    assert held["validations"] == BRIEF.reception.shadow_validations
    first, second, *_, last = (row for row in reception.decisions if row["structure"] == STORM.structure.key)
    assert (first["status"], first["confidence_ppm"], first["generation"]) == ("candidate", 400_000, 1)
    assert (first["cause_event"], first["cause_bundle"]) == ("event-0", f"{0:064x}")
    assert "import from g-far" in first["reason"]
    assert second["cause_ticks"], "the ticks of the outcomes are named"
    assert last["reason"].startswith("own outcomes bore out what came from elsewhere")


def test_a_contradicted_received_entry_is_refused_and_its_opposite_learned() -> None:
    reception = Received(lived({STORM: (SILENCE, BAD, BAD, BAD, BAD, BAD)}), delivery(claim(STORM)))
    operations = [statement for _, statement in reception.decided(STORM)]
    assert operations[:2] == ["quarantined", "spoken_against"]
    assert "refused" in operations
    assert "admitted" not in operations
    held = reception.entry(STORM)
    assert (held["status"], held["sign"], held["provenance"], held["origin_golem_id"]) == ("active", -1, "self", "g-1")


def test_repeated_contrary_outcomes_refuse_a_received_entry() -> None:
    reception = Received(lived({STORM: (SILENCE, BAD, BAD, BAD)}), delivery(claim(STORM)), policy=UNSURE)
    assert reception.decided(STORM) == [
        (1, "quarantined"), *((cycle, "spoken_against") for cycle in (2, 3, 4)), (4, "refused"),
    ]  # fmt: skip
    assert reception.entry(STORM)["status"] == "pruned"


def test_outcomes_of_the_arrival_cycle_do_not_count_for_a_received_entry() -> None:
    reception = Received(lived({STORM: (GOOD, GOOD)}), delivery(claim(STORM), seen=2))
    assert reception.decided(STORM)[:3] == [(1, "staged"), (1, "quarantined"), (2, "borne_out")]


def test_a_quarantined_entry_affects_no_playbook_and_decays() -> None:
    slow = stream([Life("g-1", {RALLY: (SILENCE,)}, (0,), timedelta(days=5), 8 * SPAN)])
    reception = Received(slow, delivery(claim(STORM, decay_class="tactical")))
    assert [statement for _, statement in reception.decided(STORM)] == ["quarantined", "pruned"]
    assert all(not row["cause_entries"] and not row["staged_entries"] for row in reception.playbooks)
    paid = delivery(claim(STORM, -1, decay_class="tactical"))
    assert Received(slow, paid).decided(STORM) == [(1, "quarantined")], "a bloodstain is never pruned (canon 7)"


def test_a_received_entry_about_a_known_rule_is_only_noted() -> None:
    reception = Received(lived({STORM: (STRONG, STRONG), RALLY: (STRONG, STRONG)}),
                    delivery(claim(STORM, -1), claim(RALLY), claim(LULL), seen=8))  # fmt: skip
    plain = Received(lived({STORM: (STRONG, STRONG), RALLY: (STRONG, STRONG)}))
    for when, words in ((STORM, "contradicted"), (RALLY, "redundant")):
        assert reception.entry(when) == plain.entry(when)
        (noted,) = [
            r for r in reception.decisions if r["operation"] == "noted" and r["structure"] == when.structure.key
        ]
        assert noted["reason"].startswith(words)
        assert (noted["cycle"], noted["cause_event"]) == (3, "event-0")
    assert reception.decided(LULL) == [(3, "quarantined")]


def test_an_entry_of_an_unknown_chain_is_anomalous_except_from_a_replicant() -> None:
    held = [entry("g-1", when.structure) for when in (STORM, RALLY, FOG)]
    verdict = judged(claim(ELSEWHERE), claim(LULL), held=held)
    assert (verdict[ELSEWHERE.key]["verdict"], verdict[ELSEWHERE.key]["confidence_ppm"]) == ("anomalous", 0)
    assert verdict[LULL.structure.key]["verdict"] == "accepted"
    assert judged(claim(ELSEWHERE))[ELSEWHERE.key]["verdict"] == "accepted", "a golem without entries accepts any chain"
    report = judged(claim(ELSEWHERE), held=held, source="replicant")[ELSEWHERE.key]
    assert (report["verdict"], report["confidence_ppm"]) == ("accepted", 300_000)


def test_an_effect_far_above_the_known_effects_is_anomalous() -> None:
    held = [entry("g-1", STORM.structure._replace(tool=f"t{i}"), effect_mean_ppm=500) for i in range(5)]
    verdict = judged(claim(LULL, effect_mean_ppm=5_001), claim(FOG, effect_mean_ppm=5_000), held=held)
    assert verdict[LULL.structure.key]["verdict"] == "anomalous"
    assert verdict[FOG.structure.key]["verdict"] == "accepted"
    assert judged(claim(LULL, effect_mean_ppm=5_001), held=held[:4])[LULL.structure.key]["verdict"] == "accepted"


@pytest.mark.row("INH-10")
def test_the_most_surprising_entry_is_accepted_first_above_the_limit() -> None:
    item = BRIEF.model_copy(update={"reception": BRIEF.reception.model_copy(update={"entries_max": 1})})
    held = [entry("g-1", STORM.structure)]
    near, far = STORM.structure._replace(gas_band="dear"), LULL.structure
    verdict = judged(claim(near), claim(far), held=held, policy=item)
    assert {about: row["verdict"] for about, row in verdict.items()} == {near.key: "deferred", far.key: "accepted"}
    assert verdict[far.key]["priority"] < verdict[near.key]["priority"]


def test_an_entry_that_its_owner_retracted_is_not_admitted_again() -> None:
    gone = entry("g-1", STORM.structure, status="retracted")
    assert judged(claim(STORM), held=[gone])[STORM.structure.key]["reason"] == "its owner took that out"
    ends = entry("g-1", STORM.structure)["entry_id"]
    word = order("g-1", 1, "EntryRetracted", ends, 2 * SPAN)
    reception = Received(lived({STORM: (STRONG, STRONG)}), delivery(claim(STORM), seen=3 * SPAN), orders=[word])
    assert reception.entry(STORM)["status"] == "retracted"


def test_decisive_own_outcomes_admit_a_received_entry_at_once() -> None:
    reception = Received(lived({STORM: (SILENCE, STRONG)}), delivery(claim(STORM)))
    assert reception.decided(STORM) == [(1, "quarantined"), (2, "borne_out"), (2, "admitted")]
    assert reception.entry(STORM)["confidence_ppm"] == 500_000


@pytest.mark.parametrize(("crossings", "import_ppm", "report_ppm"), [(1, 400_000, 300_000), (3, 289_000, 216_750)])
@pytest.mark.row("INH-13")
def test_a_received_entry_starts_at_the_base_of_its_source_less_its_crossings(
    crossings: int, import_ppm: int, report_ppm: int
) -> None:
    for source, wanted in (("import", import_ppm), ("clade", import_ppm), ("replicant", report_ppm)):
        (row,) = judged(claim(STORM, generation=crossings), source=source).values()
        assert row["confidence_ppm"] == wanted, "canon 2: a great-grandchild's 0.3 base is 0.217"
    (row,) = judged(claim(STORM, confidence_ppm=200_000)).values()
    assert row["confidence_ppm"] == 170_000, "crossing never raises confidence"


def test_a_received_rule_over_gas_bands_is_quarantined_as_a_rule_for_each_band() -> None:
    reception = Received(lived({RALLY: (SILENCE,)}), delivery(claim(STORM.structure._replace(gas_band="any"))))
    waiting = {e["gas_band"] for e in reception.entries.values() if e["status"] == "candidate"}
    assert waiting == {"cheap", "normal", "dear"}


def test_only_unknown_bands_of_a_received_rule_are_quarantined() -> None:
    plot, wide = {SQUALL: (STRONG, STRONG)}, claim(STORM.structure._replace(gas_band="any"))
    result, plain = Received(lived(plot), delivery(wide, seen=8)), Received(lived(plot))
    assert result.entry(SQUALL) == plain.entry(SQUALL), "the known band keeps its own entry"
    assert [result.decided(when) for when in (STORM, GALE)] == [[(3, "quarantined")]] * 2


def test_an_entry_of_the_clade_is_a_siblings_and_retrieval_discounts_its_layer() -> None:
    reception = Received(lived({STORM: (SILENCE, STRONG)}), delivery(claim(STORM), source="clade"))
    (first,) = [row for row in reception.decisions if row["operation"] == "quarantined"]
    assert (first["provenance"], first["confidence_ppm"]) == ("clade_sibling", 400_000)
    assert first["reason"].endswith("clade from g-far")
    assert reception.entry(STORM)["provenance"] == "clade_sibling"
    assert LAYERS[LAYER_OF_PROVENANCE["clade_sibling"]] == "clade"


@pytest.mark.row("INH-13")
def test_a_replicant_report_keeps_its_hypothesis() -> None:
    sent = delivery(claim(STORM), source="replicant", hypothesis="re-centring pays in storms")
    reception = Received(lived({STORM: (SILENCE, GOOD, GOOD, GOOD)}), sent)
    (first,) = [row for row in reception.decisions if row["operation"] == "quarantined"]
    assert (first["provenance"], first["confidence_ppm"]) == ("replicant", 300_000)
    assert "sent to find out: re-centring pays in storms" in first["reason"]
    assert (reception.entry(STORM)["status"], reception.entry(STORM)["provenance"]) == ("active", "replicant")


def test_transactions_in_claims_are_looked_up_on_the_chain() -> None:
    class Chain:
        def __init__(self, *known: str) -> None:
            self.there = set(known)

        def known(self, tx_hashes: Any) -> set[str]:
            return self.there & set(tx_hashes)

    class UnusedChain:
        def known(self, tx_hashes: Any) -> set[str]:
            raise AssertionError("nothing is claimed")

    plain, bold = claim(STORM), claim(LULL, text=f"as {TRANSACTION} shows")
    entries = crossing(plain, bold)
    claims = claims_of(entries)
    assert claims == (Claim(bold["entry_id"], TRANSACTION.lower()),)
    assert unproven(claims, Chain()) == (bold["entry_id"],)
    assert unproven(claims, Chain(TRANSACTION.lower())) == ()
    assert unproven(claims_of(crossing(plain)), UnusedChain()) == ()
    verdict = judged(plain, bold, unproven=(bold["entry_id"],))
    assert verdict[LULL.structure.key]["verdict"] == "unproven"
    assert verdict[STORM.structure.key]["verdict"] == "accepted"


def test_a_reception_event_contains_its_arrival_tick_and_is_checked_against_it() -> None:
    what = {"from_golem_id": "g-far", "content_hash": "c" * 64, "entry_count": 1}
    way = Quarantined(tick_seen=7)
    came = life_event("g-1", START, Came(source="import", **what), way)
    assert came.event_id == came.content_id()
    assert came.event_id != life_event("g-1", START, Came(source="import", **what), Quarantined(tick_seen=8)).event_id
    for source, statement in (("succession", way), ("import", None)):
        with pytest.raises(ValidationError, match="is quarantined, and no other knowledge is"):
            life_event("g-1", START, Came(source=source, **what), statement)  # type: ignore[arg-type]
    assert LifeEvent.model_validate_json(came.model_dump_json()) == came
    check_arrivals([("g-1", way)], contiguous=lambda _: 7, death=lambda _: None)
    with pytest.raises(RegressionError, match="give it again"):
        check_arrivals([("g-1", way)], contiguous=lambda _: 8, death=lambda _: None)
    with pytest.raises(RegressionError, match="give it to its living heirs"):
        check_arrivals([("g-1", way)], contiguous=lambda _: 7, death=lambda _: 7)
