"""Retrieval in a tick: situations from the fleet and its tape, and the record's account of the retrieval."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.situation import CONTRARIAN, ROUTINE
from tests.support.fleets.shared_fleets import crowd, heirs
from tests.unit.heartbeat.test_step_wiring import GOLEMS, T1, T2, TICKS, lived

POLICY = Policy()
NUMBER = r"(\d+(?:\.\d+)?)"


@pytest.mark.row("MEM-9", "INH-9")
def test_a_tick_retrieves_by_the_regimes_and_thoughts_that_the_golem_lived() -> None:
    run = lived()
    regime, thinking = run.tape.regime, np.isin(run["tier"], (T1, T2))
    contrarian = np.zeros(2, int)
    for golem in range(GOLEMS):
        thought = 0
        for t in np.flatnonzero(thinking[golem]).tolist():
            first = t
            while first and regime[first - 1] == regime[t]:
                first -= 1
            before = int(regime[first - 1]) if first else -1
            assert run["memory_regime_before"][golem, t] == before, "golems are born at the first tick of the tape"
            weight = max(0.0, 1.0 - (t - first) / 50) if first else 0.0
            if regime[t] == REGIMES.index("unknown") and before >= 0:
                weight = max(weight, 0.5)
            assert run["memory_before_weight"][golem, t] == pytest.approx(weight)
            turn, held = (t + 1) // 100 > thought // 100, run["memory_awake"][golem, t] > 0
            assert run["memory_contrarian"][golem, t] == (turn and held)
            assert (run["memory_rule"][golem, t] == CONTRARIAN) == (turn and held)
            thought = t + 1
            contrarian += turn, not turn
        assert run.state("thought_tick", after=True)[golem, TICKS - 1] == thought
    assert contrarian.min() > 10


@pytest.mark.row("INH-9")
def test_an_heir_knows_no_regime_before_the_one_that_it_was_born_into() -> None:
    lives: dict[str, list[str]] = {}
    counts: Counter[tuple[bool, bool]] = Counter()
    for row in crowd().records.sort_by([("golem_id", "ascending"), ("tick", "ascending")]).to_pylist():
        regimes = lives.setdefault(row["golem_id"], [])
        if not regimes or regimes[-1] != row["regime"]:
            regimes.append(row["regime"])
        if row["retrieval"]:
            is_heir = crowd().births[row["golem_id"]].generation > 0
            assert row["retrieval"]["regime_before"] == (regimes[-2] if len(regimes) > 1 else None), row["tick"]
            counts[is_heir, len(regimes) > 1] += 1
    assert min(counts[True, True], counts[True, False]) > 3, counts


@pytest.mark.row("INH-9")
def test_no_tick_retrieves_an_entry_of_a_dormant_regime() -> None:
    run = lived()
    regime = run.tape.regime[None, :TICKS, None]
    recalled = np.where(np.isin(run["tier"], (T1, T2))[..., None], run["memory_recalled"], -1)
    before = run["memory_regime_before"][..., None]
    about = np.where(recalled >= 0, run.recall.regime[recalled], -1)
    faded = run["memory_before_weight"][..., None] <= 0.0
    other = (about >= 0) & (about != regime) & (regime != REGIMES.index("unknown"))
    assert not (other & ((about != before) | faded)).any()
    assert (other & (about == before)).any(), "entries of the regime before fade for a while"
    assert (run["memory_asleep"] > 0).sum() > 20


@pytest.mark.row("MEM-9")
def test_a_record_states_the_rule_that_retrieved_or_skipped_with_its_numbers() -> None:
    rules, seen = POLICY.retrieval, Counter[str]()
    for row in heirs().records.to_pylist():
        account = row["retrieval"]
        assert (account is None) == (row["deliberation"] is None)
        if account is None:
            continue
        arousal, surprise, reason = row["pad_before"]["arousal"], row["prediction_error"], account["reason"]
        numbers = [float(n) for n in re.findall(NUMBER, reason)]
        assert account["skipped"] == (not row["retrieved_entries"]), reason
        assert (account["regime_before"] is None) <= (account["regime_before_weight"] == 0.0)
        kind = reason.split()[0]
        seen[kind] += 1
        if kind == "tick":
            assert account["contrarian"]
            assert numbers == [row["tick"]]
        elif kind == "arousal":
            assert arousal >= rules.skip_arousal_max
            assert numbers == [round(arousal, 2), rules.skip_arousal_max]
        elif kind == "surprise":
            assert arousal < rules.skip_arousal_max
            assert surprise >= rules.skip_surprise_max
            assert numbers == pytest.approx([surprise, rules.skip_surprise_max], abs=0.0051)
        elif kind == "of":
            assert max(arousal / rules.skip_arousal_max, surprise / rules.skip_surprise_max) < 1
            assert account["coverage"] < rules.skip_coverage_min
        elif kind == "routine:":
            assert account["skipped"]
            assert numbers[:2] == pytest.approx([abs(arousal), surprise], abs=0.0051)
            assert account["coverage"] >= rules.skip_coverage_min
        else:
            assert (reason, account["awake"]) == ("no entry is active in this regime", 0)
    assert {"tick", "surprise", "of"} <= set(seen), seen


@pytest.mark.row("MEM-9")
def test_a_skipped_retrieval_costs_no_tokens_and_puts_no_entry_on_trial() -> None:
    run = lived()
    thinking, count = np.isin(run["tier"], (T1, T2)), (run["memory_recalled"] >= 0).sum(axis=-1)
    assert not count[thinking & (run["memory_rule"] == ROUTINE)].any()
    cost = POLICY.cost
    base = np.where(run["tier"] == T2, cost.t2_context_tokens, cost.t1_context_tokens)
    np.testing.assert_array_equal((run["choice_input_tokens"] - base)[thinking], cost.entry_tokens * count[thinking])
    np.testing.assert_array_equal(run["choice_recalled"][thinking], run["memory_recalled"][thinking])
