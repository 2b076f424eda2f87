"""The cached votes decide as all votes do, at any time of counting and after any retraction."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bardo_pipeline.derivation.incremental.checkpoints import Checkpoint
from bardo_pipeline.derivation.katabasis.derive_consensus import DecisiveVotesCache, derive_consensus
from bardo_pipeline.katabasis.weighted_consensus import decisive
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.projections.projections import GrowingTable
from tests.property.derivation.test_laws import stores_at
from tests.property.katabasis.test_consensus_laws import ballots, counted
from tests.support.example_count import times
from tests.support.knowledge.handmade_grimoires import DAY, DIED, shuffled

pytestmark = pytest.mark.row("KAT-5")


@settings(max_examples=times(40), deadline=None)
@given(ballots(), st.integers(0, 2**32), st.integers(0, 24))
def test_consensus_over_decisive_votes_equals_consensus_over_all_votes(
    cast: tuple[pa.Table, set[str]], seed: int, cut: int
) -> None:
    votes, backed = cast
    again = pa.concat_tables([shuffled(votes, seed).slice(cut), shuffled(votes, seed)])
    kept = decisive(again)
    assert counted(kept, backed).equals(counted(votes, backed))
    is_plain = pc.equal(kept["question_id"], kept["proposition_id"])
    routine = kept.filter(pc.and_(pc.invert(kept["is_death_vote"]), is_plain))
    per_voter = routine.group_by(["proposition_id", "voter_id"]).aggregate([("vote_id", "count")])
    assert max(per_voter["vote_id_count"].to_pylist(), default=0) <= 2
    step = decisive(pa.concat_tables([decisive(votes.slice(0, cut)), votes.slice(cut)]))
    assert counted(step, backed).equals(counted(votes, backed))


@settings(max_examples=times(20), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(ballots(), st.lists(st.integers(0, 24), max_size=3), st.data())
def test_the_votes_cache_equals_a_full_read_after_saves_repairs_and_torn_files(
    cast: tuple[pa.Table, set[str]], cuts: list[int], data: st.DataObject
) -> None:
    votes, backed = cast
    with TemporaryDirectory() as folder:
        table = GrowingTable("votes", Path(folder) / "votes", TABLES["votes"], Policy())
        box = DecisiveVotesCache(table, Checkpoint(Path(folder) / "reader"))
        bounds = [0, *sorted(min(c, votes.num_rows) for c in cuts), votes.num_rows]
        for number, (start, stop) in enumerate(pairwise(bounds), 1):
            if start < stop:
                table.put(votes.slice(start, stop - start).take(pa.array(range(stop - start))), {"w": number})
            if table.read().num_rows and data.draw(st.booleans()):
                standing = table.read(hidden=True)
                gone = standing.take(pa.array([data.draw(st.integers(0, standing.num_rows - 1))]))
                table.repair(gone, gone.select(TABLES["votes"].schema.names).slice(0, 0), pa.array(["a strike"]))
            fresh = box.changes()
            if fresh is None:
                continue
            for torn in Path(folder).glob("reader/*.arrow"):
                held = torn.read_bytes()
                torn.write_bytes(held[:9])
                without = box.changes()
                torn.write_bytes(held)
                assert without is not None
                assert without.propositions.equals(fresh.propositions)
                assert set(without.other_votes["question_id"].to_pylist()).isdisjoint(fresh.questions.to_pylist())
                both = pa.concat_tables([without.votes, without.other_votes])
                assert counted(both, backed).equals(counted(table.read(), backed))
            if data.draw(st.booleans()):
                box.save(fresh)
            every = pa.concat_tables([fresh.votes, fresh.other_votes])
            assert counted(every, backed).equals(counted(table.read(), backed))
            assert set(fresh.votes["question_id"].to_pylist()) <= set(fresh.questions.to_pylist())
            assert set(fresh.other_votes["question_id"].to_pylist()).isdisjoint(fresh.questions.to_pylist())
            full = DecisiveVotesCache(table, Checkpoint(Path(folder) / "new reader")).changes()
            assert full is not None
            assert counted(full.votes, backed).equals(counted(every, backed))


def test_the_votes_cache_keeps_propositions_without_new_votes(tmp_path: Path) -> None:
    table = GrowingTable("votes", tmp_path / "votes", TABLES["votes"], Policy())
    box = DecisiveVotesCache(table, Checkpoint(tmp_path / "reader"))
    for number, proposition in enumerate("pqqp", 1):
        row = {
            "vote_id": f"v-{number}", "proposition_id": proposition, "question_id": proposition, "domain": "gas",
            "claim": "dear",
            "voter_id": f"voter-{number}", "confidence_ppm": 700_000, "is_death_vote": False, "weight_tenths": 10,
            "at": DIED,
        }  # fmt: skip
        table.put(pa.Table.from_pylist([row], schema=TABLES["votes"].schema), {"w": number})
        fresh = box.changes()
        assert fresh is not None
        box.save(fresh)
        assert counted(pa.concat_tables([fresh.votes, fresh.other_votes]), set()).equals(counted(table.read(), set()))


def test_a_band_whose_only_voter_moved_to_another_band_leaves_the_table(tmp_path: Path) -> None:
    stores = stores_at(tmp_path / "home", Policy())
    table = stores.projections.growing("votes")
    for day, band in enumerate(("20 to 50 gwei", "50 to 100 gwei")):
        row = {
            "vote_id": f"v-{day}", "proposition_id": band, "question_id": "the gas price", "domain": "gas",
            "claim": band, "voter_id": "voter", "confidence_ppm": 700_000, "is_death_vote": False, "weight_tenths": 10,
            "at": DIED + day * DAY,
        }  # fmt: skip
        table.put(pa.Table.from_pylist([row], schema=TABLES["votes"].schema), {"w": day})
        derive_consensus(stores)
        assert stores.projections.read("consensus")["proposition_id"].to_pylist() == [band]
