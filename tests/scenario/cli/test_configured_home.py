"""bardo.toml of an owner: runs use it, the log records it, and operational settings take effect at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from bardo_pipeline.derivation.configuration import in_force_now
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal.event_writer import EventWriter
from tests.conftest import NOW, copy_home
from tests.support.processes.bardo_command import bardo

pytestmark = pytest.mark.row("P-7")

BRIEF = ("run", "--bars", "130", "--golems", "1", "--generations", "1", "--lifespan", "120-120", "--no-marts")


def json_of(*words: str, home: Path) -> Any:
    return orjson.loads(bardo(*words, "--json", home=home))


@pytest.mark.full
def test_a_run_uses_bardo_toml_and_records_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "bardo.toml").write_text(
        "[clock]\ndelta_theta_ticks = 100\n[oracle]\nenabled = false\n[heartbeat]\nwrite_batch_size = 7\n"
        "[styx]\nclade_enabled = true\nmarketplace_enabled = true\n[death]\nreserve_min_usd = 0.5\n"
    )
    assert json_of("config", "check", home=home)["read_by_nothing"] == ["styx.marketplace_enabled"]
    bardo(*BRIEF, home=home)
    stores = DerivationContext.open(home)
    assert stores.policy.curator.cycle_ticks == 100
    assert stores.policy.writer.batch_records == 7
    (first,) = stores.life("GolemBorn").to_pylist()
    born = first["born"]
    assert (born["reserve_micros"], born["policy_hash"]) == (500_000, stores.policy.hash)
    assert stores.projections.read("cycles")["tick_last"].to_pylist() == [100, 120]
    predicted = stores.log.read_cycles(["predictions"])["predictions"].to_pylist()
    assert not any(predicted), "an oracle that is off predicts nothing"
    (event,) = stores.life("ConfigurationAdopted").to_pylist()
    configured = event["configured"]
    assert (event["golem_id"], configured["source"]) == ("*", "bardo.toml")
    assert (configured["policy_hash"], configured["run"]) == (stores.policy.hash, born["lineage_id"].partition("/")[0])
    assert orjson.loads(configured["configuration"])["styx"]["clade_enabled"] is True

    bardo(*BRIEF, home=home)
    assert DerivationContext.open(home).life("ConfigurationAdopted").num_rows == 1, "a repeated run wrote something"
    assert "DIFFERENT" not in bardo("rebuild", home=home)
    assert json_of("config", "check", home=home)["changes"] == []
    shown = {row["key"]: row for row in json_of("config", "show", home=home)["keys"]}
    assert shown["clock.delta_theta_ticks"] == {
        "key": "clock.delta_theta_ticks", "in_force": 100, "stated": 100, "read_by": "curator.cycle_ticks",
    }  # fmt: skip

    (home / "bardo.toml").unlink()
    bardo(*BRIEF, "--oracle", home=home)
    again = DerivationContext.open(home)
    assert again.policy == stores.policy, "keys missing from the file keep their values"
    assert again.life("GolemBorn").num_rows == 2
    state = in_force_now(again, first["golem_id"])
    assert state.event is not None
    assert state.event.source == "bardo.toml", "a golem's configuration is that of its own run"


def test_an_invalid_bardo_toml_stops_the_run_before_any_write(tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text("[clock]\ndelta_theta_tick = 20\n")
    home = tmp_path / "home"
    for words in (BRIEF, ("config", "check"), ("config", "show")):
        output = bardo(*words, "--config", str(tmp_path / "wrong.toml"), home=home, expect=2)
        assert "wrong.toml: clock.delta_theta_tick = 20" in output
        assert "clock.delta_theta_ticks" in output
    assert not home.exists()
    assert "TOML" not in bardo("config", "check", home=home), "a home without a file is in order"


@pytest.mark.full
def test_an_adopted_configuration_rederives_the_home_and_is_recorded(brief_home: Path, tmp_path: Path) -> None:
    home = copy_home(brief_home, tmp_path / "home")
    before = DerivationContext.open(home)
    config = tmp_path / "other.toml"
    config.write_text("[heartbeat]\nwrite_batch_size = 3\n")
    assert "--why" in bardo("config", "adopt", "--config", str(config), home=home, expect=2)
    assert "write it" in bardo("config", "adopt", "--why", "x", home=home, expect=2)
    bardo("config", "adopt", "--config", str(config), "--why", "small batches", home=home)
    after = DerivationContext.open(home)
    assert (after.derivation_id, after.policy.writer.batch_records) == (before.derivation_id, 3)
    with EventWriter.open(Home.open(home), "g-new", clock=lambda: NOW, drain="none") as writer:
        assert writer._session.journal.policy.batch_records == 3, "a live writer uses the adopted batch size"

    config.write_text("[death]\nentries_max = 2\n")
    bardo("config", "adopt", "--config", str(config), "--why", "a narrow bottleneck", home=home)
    narrow = DerivationContext.open(home)
    assert narrow.derivation_id != before.derivation_id
    assert narrow.policy.inheritance.budget == 2
    assert narrow.policy.writer.batch_records == 3
    assert max(narrow.projections.read("candidates")["entry_count"].to_pylist()) <= 2
    rows = narrow.life("ConfigurationAdopted").sort_by("observed_at")["configured"].to_pylist()
    assert [item["why"] for item in rows] == ["small batches", "a narrow bottleneck"]
    (adopted,) = narrow.life("DerivationAdopted")["adopted"].to_pylist()
    assert adopted["why"] == "other.toml: a narrow bottleneck"
    bardo("config", "adopt", "--config", str(config), "--why", "again", home=home)
    assert DerivationContext.open(home).life("ConfigurationAdopted").num_rows == 2


def test_a_silence_of_more_hours_than_a_clock_has_is_refused(tmp_path: Path) -> None:
    bardo("init", str(tmp_path / "home"), home=tmp_path / "other")
    (tmp_path / "home" / "bardo.toml").write_text("[death]\nsilence_hours = 1e300\n")
    assert "876600" in bardo("config", "check", home=tmp_path / "home", expect=2)
    with pytest.raises(ValueError, match="876600"):
        Policy.model_validate({"dying": {"silence_hours": 1e300}})
