"""The log of one owner, open for long: it reads new events alone, and shows what one that is opened now shows."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from bardo_pipeline import birth
from bardo_pipeline.events.life.events import LifeEvent, life_event
from bardo_pipeline.events.life.tool_events import StrategyStored
from bardo_pipeline.policy import CarePolicy, Policy
from bardo_pipeline.storage.delta.append_only_table import AppendOnlyTable
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.log.owner_log import LogOfOwner
from bardo_pipeline.storage.operations.maintenance import merge_life_files
from tests.conftest import NOW


def strategy(golem_id: str, number: int) -> LifeEvent:
    stored = StrategyStored(
        strategy_name="narrow", version=number + 1, description="", parameters="{}", chains=(), token_pairs=(),
        from_golem_id=None,
    )  # fmt: skip
    return life_event(golem_id, NOW + timedelta(seconds=number), stored)


def shown(log: EventLog) -> list[str]:
    ids: list[str] = log.life()["event_id"].to_pylist()
    assert len(ids) == len(set(ids))
    return sorted(ids)


@pytest.mark.row("X-12")
def test_an_open_view_of_an_owner_equals_a_new_one_and_reads_new_events_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home.create(tmp_path, Policy(), NOW)
    own, other = (birth(home, owner=owner, lineage=f"{owner}/1", at=NOW) for owner in ("coral", "pearl"))
    whole = EventLog(home)
    whole.record([strategy(golem_id, number) for number in range(20) for golem_id in (own, other)], NOW)
    view, rows = LogOfOwner(home, owner="coral"), list[int]()
    assert len(shown(view)) == 21
    load = AppendOnlyTable.load

    def counted(table: AppendOnlyTable, files: object, *args: object, **named: object) -> object:
        found = load(table, files, *args, **named)  # type: ignore[arg-type]
        rows.append(found.num_rows)
        return found

    monkeypatch.setattr(AppendOnlyTable, "load", counted)
    for number in range(20, 24):
        whole.record([strategy(own, number), strategy(other, number)], NOW)
        rows.clear()
        assert len(shown(view)) == number + 2
        assert sum(rows) == 2, "the view reads each new event once, and no old one"
    often = Policy(care=CarePolicy(life_files_max=2))
    assert merge_life_files(home, often, now=NOW + timedelta(days=1)) > 0
    whole.record([strategy(own, 24)], NOW)
    assert shown(view) == shown(LogOfOwner(home, owner="coral")), "merged files bring no event twice"
    heir = birth(home, owner="coral", lineage="coral/2", at=NOW)
    whole.record([strategy(heir, 25)], NOW)
    assert view.golems == {own, heir}
    assert shown(view) == shown(LogOfOwner(home, owner="coral"))
    assert view.life("StrategyStored").num_rows == 26
