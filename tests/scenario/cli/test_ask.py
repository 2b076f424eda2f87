"""The command `bardo ask`: its output, the time it refers to, and its refusals."""

from __future__ import annotations

import json
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.retrieval.scoring import FACTORS
from tests.conftest import copy_home
from tests.support.processes.bardo_command import bardo, run

QUESTION = "what does gas usually cost?"


@pytest.fixture(scope="module")
def home(asked_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small home with everything derived."""
    return copy_home(asked_home, tmp_path_factory.mktemp("ask") / "home")


@pytest.fixture(scope="module")
def golem(home: Path) -> str:
    """The golem that knows most."""
    known = DerivationContext.open(home).projections.read("grimoire")
    counts = known.filter(pc.equal(known["status"], "active")).group_by("golem_id").aggregate([("entry_id", "count")])
    ordered = counts.sort_by([("entry_id_count", "descending"), ("golem_id", "ascending")])
    return str(ordered["golem_id"][0].as_py())


def ask_json(home: Path, *words: str) -> dict[str, Any]:
    return json.loads(bardo("ask", *words, "--json", home=home))


@pytest.mark.row("MEM-9")
def test_ask_returns_entries_of_the_golem_with_scores_as_sums_of_parts(home: Path, golem: str) -> None:
    answer = ask_json(home, golem, QUESTION)
    grimoire = DerivationContext.open(home).projections.read("grimoire")
    rows = grimoire.filter(pc.and_(pc.equal(grimoire["golem_id"], golem), pc.equal(grimoire["status"], "active")))
    known = {row["entry_id"]: row["text"] for row in rows.to_pylist()}
    assert answer["hits"]
    for hit in answer["hits"]:
        assert known[hit["entry_id"]] == hit["text"]
        assert hit["score_ppm"] == sum(hit[f"{name}_ppm"] for name in FACTORS)
    assert [hit["score_ppm"] for hit in answer["hits"]] == sorted(
        (hit["score_ppm"] for hit in answer["hits"]), reverse=True
    )
    assert "gas" in answer["hits"][0]["text"], "the first hit must be about gas"
    assert answer["awake"] + answer["asleep"] == rows.num_rows
    assert len(ask_json(home, golem, QUESTION, "--k", "1")["hits"]) == 1


@pytest.mark.full
@pytest.mark.row("MEM-9")
def test_ask_shows_its_time_and_answers_as_of_an_earlier_tick(home: Path, golem: str) -> None:
    stores = DerivationContext.open(home)
    cycles = stores.projections.growing("cycles").read(golems=[golem]).sort_by("cycle").to_pylist()
    now = ask_json(home, golem, QUESTION)["as_of"]
    last = cycles[-1]
    assert (now["cycle"], now["tick"], now["at"]) == (last["cycle"], last["tick_last"], last["closed_at"].isoformat())
    assert now["log_version"] == stores.log.version
    then = ask_json(home, golem, QUESTION, "--tick", "110")
    assert (then["as_of"]["cycle"], then["as_of"]["tick"], then["as_of"]["head_tick"]) == (2, 100, 110)
    assert then["situation"]["tick"] == 110
    decisions = stores.projections.growing("curation").read(golems=[golem]).to_pylist()
    for hit in then["hits"]:
        seen = [d for d in decisions if d["entry_id"] == hit["entry_id"] and d["cycle"] <= 2]
        assert hit["text"] in {d["text"] for d in seen}
    moment = cycles[1]["closed_at"].isoformat()
    assert ask_json(home, golem, QUESTION, "--at", moment)["as_of"]["cycle"] == 2


@pytest.mark.full
@pytest.mark.row("MEM-9")
def test_ask_with_may_skip_returns_the_reason_of_a_skip(home: Path, golem: str) -> None:
    rows = DerivationContext.open(home).log.read_cycles(["golem_id", "tick", "tier"])
    table = rows.filter(pc.equal(rows["golem_id"], golem)).sort_by("tick")
    quiet = table.filter(pc.and_(pc.equal(table["tier"], "T0"), pc.greater(table["tick"], 60)))["tick"][0].as_py()
    loud = table.filter(pc.and_(pc.equal(table["tier"], "T1"), pc.greater(table["tick"], 50)))["tick"][0].as_py()
    skipped = ask_json(home, golem, QUESTION, "--tick", str(quiet), "--may-skip")
    assert (skipped["decision"]["skipped"], skipped["hits"]) == (True, [])
    assert "the gate chose" in skipped["decision"]["reason"]
    answered = ask_json(home, golem, QUESTION, "--tick", str(quiet))
    assert answered["decision"] == skipped["decision"], (
        "an ask without --may-skip returns hits and the decision of the golem"
    )
    assert answered["hits"]
    thought = ask_json(home, golem, QUESTION, "--tick", str(loud), "--may-skip")
    assert not thought["decision"]["skipped"]
    assert thought["hits"]


@pytest.mark.full
@pytest.mark.row("MEM-9")
def test_ask_discounts_entries_of_the_clade(home: Path, golem: str) -> None:
    alone = {hit["entry_id"] for hit in ask_json(home, golem, QUESTION, "--k", "1000")["hits"]}
    both = ask_json(home, golem, QUESTION, "--k", "1000", "--clade")["hits"]
    others = [hit for hit in both if hit["entry_id"] not in alone]
    assert others
    assert {(hit["layer"], hit["discount"], hit["golem_id"] == golem) for hit in others} == {("clade", 0.8, False)}
    assert {hit["layer"] for hit in both if hit["entry_id"] in alone} == {"vault"}
    assert len({hit["entry_id"] for hit in both}) == len(both), "an entry is listed twice"


@pytest.mark.row("X-5")
def test_each_hit_says_what_its_confidence_foretells(home: Path, golem: str) -> None:
    hits = ask_json(home, golem, QUESTION, "--k", "1000")["hits"]
    measured = [hit for hit in hits if hit["witnesses"]]
    assert measured
    assert all(hit["foretold_ppm"] == hit["confidence_ppm"] for hit in hits if not hit["witnesses"])
    assert all(50_000 <= hit["foretold_ppm"] <= 980_000 for hit in measured)
    grimoire = DerivationContext.open(home).projections.read("grimoire")
    levels = set(grimoire.filter(pc.equal(grimoire["source"], "baseline"))["entry_id"].to_pylist())
    same = sorted((h["confidence_ppm"], h["foretold_ppm"]) for h in measured if h["entry_id"] in levels)
    assert len(same) > 1
    assert all(low[1] <= high[1] for low, high in pairwise(same)), "levels start at one chance"


def test_the_table_shows_factors_decision_and_time(home: Path, golem: str) -> None:
    output = bardo("ask", golem, QUESTION, home=home)
    for word in (
        *FACTORS,
        "score",
        "awake",
        "trust",
        "foretells",
        "The golem itself would have",
        "As of cycle",
        "log version",
        golem,
    ):
        assert word in output


def test_a_second_ask_writes_no_new_vectors(home: Path, golem: str) -> None:
    def files() -> int:
        return len(list((home / "log" / "vectors").rglob("*.parquet")))

    ask_json(home, golem, QUESTION, "--clade")
    before = files()
    assert before, "texts of entries must have recorded vectors"
    ask_json(home, golem, "something else", "--clade")
    assert files() == before


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("ask GOLEM ' '", "name a subject"),
        ("ask nobody gas", "golem nobody: no golem of this name was born"),
        ("ask GOLEM gas --k 0", "at least one entry must be wanted, not 0"),
        ("ask GOLEM gas --k -3", "at least one entry must be wanted, not -3"),
        ("ask GOLEM gas --regime bull", "no regime is called 'bull': there are trending_up"),
        ("ask GOLEM gas --tick 9999", "tick 9999 is not on record; its newest is"),
        ("ask GOLEM gas --at yesterday", "--at 'yesterday' is not an ISO 8601 moment"),
        ("ask GOLEM gas --at 2020-01-01", "it was born at"),
        ("ask GOLEM gas --at 2026-01-02 --tick 3", "give one of them"),
        ("ask GOLEM gas --tick 99999999999999999999", "Input should be less than or equal to 9007199254740992"),
        ("ask GOLEM gas --embedder minilm-int8", "nothing is derived by minilm-int8 here: minilm is in force"),
    ],
)
def test_an_invalid_ask_is_refused_with_a_hint(home: Path, golem: str, words: str, hint: str) -> None:
    output = bardo(*shlex.split(words.replace("GOLEM", golem)), home=home, expect=2)
    assert hint in " ".join(output.split())


def test_a_question_of_a_megabyte_is_refused(home: Path, golem: str) -> None:
    done = run(["ask", golem, "x" * 2**20], {"BARDO_HOME": str(home), "COLUMNS": "160"})
    assert done.returncode == 2
    assert "1,048,576 bytes, and at most 16,384 are read" in done.stderr
