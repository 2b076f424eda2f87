"""The marts of decisions, choices, retrievals, votes, scars, dreams and episodes agree with the log and the library."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml
from nbclient.exceptions import CellExecutionError

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.grimoire.entry_columns import micros
from bardo_pipeline.katabasis.scar_rules import scar_confidence
from bardo_pipeline.project_files import DBT_PROJECT
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.warehouse.build import build_warehouse, dbt_environment
from bardo_pipeline.storage.warehouse.owner_database import SHARED
from tests.conftest import LIVELY, NOW, copy_home
from tests.contract.warehouse.test_dbt_project import described
from tests.support.homes.story_of_g9b2d import SECOND, story_home
from tests.support.processes.notebook import NOTEBOOK, answers

UNIT_TESTED = (
    "fct_choices", "fct_decisions", "fct_dreams", "fct_episodes", "fct_executions", "fct_experiences",
    "fct_retrievals", "fct_scars", "fct_strategies", "fct_votes",
)  # fmt: skip
"""Marts with rules of their own: each has a dbt unit test, and dollars beside its amounts in micro-dollars."""


class Built:
    """A home with its warehouse."""

    def __init__(self, stores: DerivationContext) -> None:
        build_warehouse(stores.home, stores.derivation_id, stores.policy)
        self.stores = stores

    def table(self, sql: str, **tables: pa.Table) -> pa.Table:
        """Query the warehouse beside other tables."""
        with duckdb.connect(self.stores.home.warehouse, read_only=True) as connection:
            for name, table in tables.items():
                connection.register(name, table)
            return connection.sql(sql).to_arrow_table()

    def count(self, sql: str, **tables: pa.Table) -> int:
        return self.table(f"select count(*) as n from ({sql})", **tables)["n"][0].as_py()


@pytest.fixture(scope="module")
def lively(lively_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    """A home whose golems deliberate at every tick and were judged often."""
    root = copy_home(lively_home, tmp_path_factory.mktemp("marts") / "lively")
    built = Built(DerivationContext.open(root, policy=LIVELY))
    yield built
    built.stores.log.close()


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    """The story of g-9b2d: scars, death votes, two deaths."""
    built = Built(story_home(tmp_path_factory.mktemp("marts") / "story"))
    yield built
    built.stores.log.close()


@pytest.mark.row("X-12", "P-4")
def test_every_mart_but_the_anonymous_one_has_an_owner_and_dollars_beside_micros() -> None:
    for model in described():
        names = [column["name"] for column in model["columns"]]
        assert ("owner_id" in names) == (model["name"] != SHARED), model["name"]
        in_micros = {name for name in names if name.endswith("_micros")}
        assert {name.replace("_micros", "_usd") for name in in_micros} <= {*names}, model["name"]
        assert ("dollars" in model["data_tests"]) == bool(in_micros), model["name"]
    assert {*UNIT_TESTED} <= {model["name"] for model in described()}


def test_every_mart_of_decisions_has_a_unit_test_and_every_exposure_names_its_marts() -> None:
    tested = yaml.safe_load((DBT_PROJECT / "models/marts/unit_tests.yml").read_text())["unit_tests"]
    assert {test["model"] for test in tested} == {*UNIT_TESTED}
    exposures = yaml.safe_load((DBT_PROJECT / "models/exposures.yml").read_text())["exposures"]
    named = {exposure["name"]: {ref[5:-2] for ref in exposure["depends_on"]} for exposure in exposures}
    assert named["database_of_an_owner"] == {model["name"] for model in described()}
    page = NOTEBOOK.read_text()
    assert named["five_questions"] == {m["name"] for m in described() if f"from {m['name']}" in page or
                                       f"join {m['name']}" in page}  # fmt: skip
    ticked = {m["name"] for m in described() if {"golem_id", "tick"} <= {c["name"] for c in m["columns"]}}
    assert ticked - {"fct_deaths"} <= named["proof_of_removal"]


@pytest.mark.full
@pytest.mark.row("P-4")
def test_the_unit_tests_of_the_marts_pass(tmp_path: Path) -> None:
    home = Home.create(tmp_path / "home", LIVELY, NOW)
    (home.derivations / "none").mkdir()
    environment = dbt_environment(home, "none", LIVELY, "units.duckdb")
    places = ["--project-dir", DBT_PROJECT, "--profiles-dir", DBT_PROJECT, "--target-path", tmp_path / "target",
              "--log-path", tmp_path]  # fmt: skip
    command = [Path(sys.executable).with_name("dbt"), "--no-use-colors", "test", "--select", "test_type:unit", *places]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "PASS=11 WARN=0 ERROR=0 SKIP=0" in done.stdout


@pytest.mark.full
@pytest.mark.row("P-4", "MEM-11")
def test_retrievals_are_useful_or_misleading_as_the_credits_count_them(lively: Built) -> None:
    counted = """
        with marts as (
            select golem_id, entry_id, count(*) as retrieved, count(*) filter (is_useful) as useful,
                count(*) filter (is_misleading) as misled from fct_retrievals group by all
        ),
        library as (
            select golem_id, entry_id, sum(retrieved) as retrieved, sum(useful) as useful, sum(misled) as misled
            from credits group by all
        )
    """
    credits = lively.stores.projections.read("credits")
    assert lively.count(f"{counted} from marts", credits=credits) > 3
    wrong = f"""{counted} select * from marts full join library using (golem_id, entry_id)
        where (marts.retrieved, marts.useful, marts.misled)
            is distinct from (library.retrieved, library.useful, library.misled)"""
    assert lively.table(wrong, credits=credits).to_pylist() == []
    assert pc.sum(credits["useful"]).as_py() + pc.sum(credits["misled"]).as_py() > 0


@pytest.mark.full
@pytest.mark.row("P-4")
def test_decisions_are_those_of_the_records_and_their_verdicts(lively: Built) -> None:
    names = ["golem_id", "tick", "observed_at", "deliberation", "actions", "retrieved_entries", "resolutions", "trials"]
    records = lively.stores.log.read_cycles(names).to_pylist()
    tried: dict[tuple[str, int], set[str]] = {}
    for record, trial in ((r, t) for r in records for t in r["trials"] or ()):
        states = {trial["alternative"], trial["beside"]} - {trial["taken"], "hold", "stay", "keep"}
        tried.setdefault((record["golem_id"], trial["decision_tick"]), set()).update(states)
    decided = {(r["golem_id"], r["tick"]): r for r in records if r["deliberation"] or r["actions"]}
    rows = {(r["golem_id"], r["tick"]): r for r in lively.table("from fct_decisions").to_pylist()}
    assert rows.keys() == decided.keys()
    verdicts = {(r["golem_id"], v["decision_tick"]): v for r in records for v in r["resolutions"]}
    assert len(verdicts) > 10
    for key, record in decided.items():
        row = rows[key]
        assert row["decision"] == record["deliberation"]["decision"]
        assert row["entries_shown"] == [entry["entry_id"] for entry in record["retrieved_entries"]]
        verdict = verdicts.get(key)
        assert (row["verdict_count"] == 1) == (verdict is not None)
        if verdict is not None:
            effect = round(verdict["effect_ppm"] * verdict["value_micros"] / 1e6)
            assert row["effect_micros"] == effect
            assert row["effect_usd"] == effect / 1e6
            assert row["is_acted"] == (verdict["chosen"] == "act")
            assert row["gain_micros"] == (effect if row["is_acted"] else -effect)
        judged = set() if verdict is None else {"hold"} if row["is_acted"] else {verdict["action_type"]}
        assert row["alternatives"] == sorted(judged | tried.get(key, set()))
    assert any(tried.get(key) for key in decided), "a decision at which windows of trials begin"
    heeded = [row for row in rows.values() if row["warning_effect"] == "heeded" and row["effect_micros"]]
    assert heeded, "some warnings were heeded and judged"
    for row in heeded:
        assert row["prevented_loss_micros"] - row["missed_gain_micros"] == -row["effect_micros"]


@pytest.mark.full
@pytest.mark.row("P-4", "HB-24")
def test_choices_are_the_trials_of_the_records(lively: Built) -> None:
    records = lively.stores.log.read_cycles(["golem_id", "tick", "observed_at", "trials"]).to_pylist()
    key = ("tick", "choice", "alternative", "beside", "horizon")
    trials = {}
    for record in records:
        for trial in record["trials"] or ():
            stated = trial | {"tick": trial["decision_tick"], "is_verified": trial["verified"]}
            stated |= {"judged_tick": record["tick"], "judged_at": record["observed_at"].replace(tzinfo=None)}
            stated["effect_micros"] = round(trial["effect_ppm"] * trial["value_micros"] / 1e6)
            trials[record["golem_id"], *(stated[name] for name in key)] = stated
    rows = {(r["golem_id"], *(r[name] for name in key)): r for r in lively.table("from fct_choices").to_pylist()}
    assert rows.keys() == trials.keys() != set()
    same = ("taken", "regime", "anomaly_score", "gas_ratio", "value_micros", "effect_ppm", "ground_truth_source",
            "is_verified", "judged_tick", "judged_at", "effect_micros")  # fmt: skip
    assert all(row[name] == trials[of][name] for of, row in rows.items() for name in same)
    assert {row["horizon"] for row in rows.values()} >= {"30_ticks", "4_hours"}
    assert {row["choice"] for row in rows.values()} == {"width", "presence", "recentring"}


@pytest.mark.full
@pytest.mark.row("P-4", "KAT-5")
def test_counted_votes_make_the_consensus(lively: Built, story: Built) -> None:
    for built in (lively, story):
        votes, causes = (built.stores.projections.read(name) for name in ("votes", "vote_causes"))
        rows = built.table("from fct_votes")
        assert sorted(rows["vote_id"].to_pylist()) == sorted(votes["vote_id"].to_pylist())
        golems = dict(zip(causes["vote_id"].to_pylist(), causes["golem_id"].to_pylist(), strict=True))
        assert all(golems[row["vote_id"]] == row["golem_id"] for row in rows.to_pylist())
        questions = votes.select(["proposition_id", "question_id", "vote_id"])
        wrong = """
            with counted as (select *, epoch_us(voted_at) // 86_400_000_000 as day from fct_votes where is_counted),
            heard as (
                select p.proposition_id, c.proposition_id = p.proposition_id as is_own, c.weight,
                    if(is_own, c.confidence_ppm, 1_000_000 - c.confidence_ppm) as confidence_ppm,
                    if(p.question_id = p.proposition_id, c.vote_id, c.day::text) as witness
                from (select distinct proposition_id, question_id from questions) as p
                join questions as q using (question_id) join counted as c on c.vote_id = q.vote_id
            ),
            witnesses as (
                select proposition_id, count(*) filter (is_own) as n, max(weight) as w,
                    sum(weight * confidence_ppm) / sum(weight) as mean
                from heard group by proposition_id, witness
            )
            select * from fct_consensus as c left join (
                select proposition_id, sum(n) as n, sum(w) as w, sum(w * mean) / sum(w) as mean
                from witnesses group by all
            ) using (proposition_id)
            where n is distinct from vote_count or abs(w - total_weight) > 1e-9 or abs(mean - weighted_mean_ppm) > 1
        """
        assert built.table(wrong, questions=questions).to_pylist() == []
    assert story.count("from fct_votes where is_death_vote and is_counted") > 0


@pytest.mark.full
@pytest.mark.row("P-4", "KAT-2")
def test_scars_fade_as_in_the_library_and_count_their_repetitions(story: Built) -> None:
    scars = story.stores.projections.read("scars")
    rows = story.table("from fct_scars order by owner_id, scar_id")
    assert rows["golem_id"].to_pylist() == scars["golem_id"].to_pylist()
    assert rows.num_rows > 2
    assert set(rows["golem_id"].to_pylist()) == {SECOND}
    as_of = int(rows["as_of"].cast(pa.int64())[0].as_py())
    assert rows["confidence_ppm"].to_pylist() == scar_confidence(scars, as_of, story.stores.policy).tolist()
    assert micros(rows, "confirmed_at").tolist() == micros(scars, "confirmed_at").tolist()
    seen = zip(rows["repeat_count"].to_pylist(), scars["seen_count"].to_pylist(), strict=True)
    assert all(repeats + 1 >= count for repeats, count in seen)
    assert all(row["value_usd"] == row["value_micros"] / 1e6 > 0 for row in rows.to_pylist())


@pytest.mark.full
@pytest.mark.row("P-4")
def test_episodes_and_dreams_equal_their_tables(lively: Built, story: Built) -> None:
    for built in (lively, story):
        held: dict[str, Any] = {r["episode_id"]: r for r in built.stores.projections.read("episodes").to_pylist()}
        rows = built.table("from fct_episodes where sort = 'record'").to_pylist()
        assert {row["episode_id"] for row in rows} == held.keys() != set()
        same = ("golem_id", "tick", "text", "importance", "importance_tier", "pnl_impact_micros", "text_hash")
        assert all(row[name] == held[row["episode_id"]][name] for row in rows for name in same)
        dreams = built.stores.projections.read("dreams").to_pylist()
        told = {(row["golem_id"], row["cycle"]): row for row in built.table("from fct_dreams").to_pylist()}
        assert told.keys() == {(dream["golem_id"], dream["cycle"]) for dream in dreams}
        for dream in dreams:
            ticks = [item["tick"] for item in dream["replayed"]]
            assert told[dream["golem_id"], dream["cycle"]]["replayed_ticks"] == ticks
    replayed = sum(row["replay_count"] for row in lively.table("from fct_episodes").to_pylist())
    assert replayed == sum(row["replayed_count"] for row in lively.table("from fct_dreams").to_pylist())


# the notebook


@pytest.mark.full
def test_the_notebook_names_the_command_that_builds_the_warehouse(tmp_path: Path) -> None:
    with pytest.raises(CellExecutionError, match=f"`bardo derive --home {tmp_path}` builds it"):
        answers(tmp_path, tmp_path)


@pytest.mark.full
@pytest.mark.row("P-4")
def test_the_notebook_answers_five_questions_with_plots(lively: Built, story: Built, tmp_path: Path) -> None:
    warnings, deaths, _, consensus, retrieval = answers(lively.stores.home.root, tmp_path).values()
    totals = lively.table("""
        select sum(prevented_loss_usd) as prevented, sum(missed_gain_usd) as missed,
            (select count(*) from fct_retrievals) as retrieved,
            (select count(*) from fct_retrievals where worth_micros is not null) as judged,
            (select sum(worth_usd) from fct_retrievals) as worth,
            (select sum(cost_micros) / 1e6 from fct_dying) as dying, (select count(*) from fct_deaths) as deaths
        from fct_decisions
    """).to_pylist()[0]
    assert totals["prevented"] > 0
    assert totals["judged"] > 0
    assert f"prevented ${totals['prevented']:,.2f} and missed ${totals['missed']:,.2f}" in warnings.sentence
    assert f"{totals['judged']:,} of {totals['retrieved']:,} retrieved entries have a verdict" in retrieval.sentence
    assert f"was worth {'-' if totals['worth'] < 0 else ''}${abs(totals['worth']):,.2f}" in retrieval.sentence
    assert f"{totals['deaths']} deaths cost ${totals['dying']:,.2f} of their reserves" in deaths.sentence
    assert all(answer.has_colour for answer in (warnings, deaths, consensus, retrieval))
    told = answers(story.stores.home.root, tmp_path)
    scars = list(told.values())[2]
    spread, count = story.count("from fct_scars where holder_count > 0"), story.count("from fct_scars")
    assert f"{spread} of {count} scars reached another golem of the owner" in scars.sentence
    assert scars.has_colour
    assert told == answers(story.stores.home.root, tmp_path), "equal marts give equal answers and plots"


@pytest.mark.full
@pytest.mark.row("X-4", "P-4")
def test_a_struck_record_leaves_the_marts_of_decisions(lively: Built, tmp_path: Path) -> None:
    from bardo_pipeline.derivation.derive_home import derive_home
    from bardo_pipeline.derivation.repair.removal_proof import remains
    from bardo_pipeline.derivation.strikes_and_reorgs import strike

    root = copy_home(lively.stores.home.root, tmp_path / "home")
    stores = DerivationContext.open(root, policy=LIVELY)
    judged = "select golem_id, tick from fct_decisions where verdict_count > 0 and len(entries_shown) > 0"
    row = lively.table(f"{judged} order by golem_id, tick").to_pylist()[0]
    strike(stores, row["golem_id"], row["tick"], "its sensor lied", now=NOW)
    places = {fault.place for fault in remains(stores)}
    assert {"fct_decisions", "fct_retrievals", "fct_episodes"} <= places, "the proof reads these marts"
    derive_home(stores, clock=lambda: NOW, marts=True)
    assert remains(stores) == []
    with duckdb.connect(stores.home.warehouse, read_only=True) as connection:
        for mart in ("fct_decisions", "fct_retrievals", "fct_episodes"):
            told = f"select count(*) from {mart} where golem_id = ? and tick = ?"
            assert connection.execute(told, [row["golem_id"], row["tick"]]).fetchall() == [(0,)]
    stores.log.close()
