"""Common behaviour of all commands for any user input and record."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from rich.console import Console

from bardo_pipeline.cli.app import _check_utf8, app_of
from bardo_pipeline.cli.fleet.run_command import RunSettings, loan_of, open_market, run_name
from bardo_pipeline.cli.options import moment_of
from bardo_pipeline.cli.output import answers, tables
from bardo_pipeline.cli.output.eval_report import make_output_folder
from bardo_pipeline.derivation.curation.record_overrides import Grimoire, select_entries
from bardo_pipeline.derivation.memory.ask import GolemMoment, answer_facts
from bardo_pipeline.errors import ConfigError, QueryError
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA
from bardo_pipeline.market.synthetic import flat_market
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.embedder_interface import check_question
from bardo_pipeline.retrieval.retrieve import HIT_SCHEMA, Answer, AsOf
from bardo_pipeline.retrieval.situation import Decision, Situation


def commands(group: Any, name: str = "bardo") -> Iterator[tuple[str, Any]]:
    """Every command, with the words that call it."""
    inside = getattr(group, "commands", {})
    for word, first in inside.items():
        yield from commands(first, f"{name} {word}")
    if not inside:
        yield name, group


def test_every_embedder_option_defaults_to_the_embedder_in_force() -> None:
    asked = [
        (name, option.default)
        for name, first in commands(typer.main.get_command(app_of()))
        for option in first.params
        if option.name == "embedder"
    ]
    assert {"bardo ask", "bardo dreams", "bardo propose", "bardo search"} <= {name for name, _ in asked}
    assert [name for name, default in asked if default is not None] == []


@pytest.mark.parametrize("text", ["yesterday", "", "0001-01-01T00:00:00+23:00", "2026-13-01"])
def test_an_invalid_moment_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--at .* is not an ISO 8601 moment"):
        moment_of(text, "--at")
    assert moment_of("2026-01-02T12:00", "--at").isoformat() == "2026-01-02T12:00:00+00:00"
    assert moment_of("2026-01-02T12:00+02:00", "--at").isoformat() == "2026-01-02T10:00:00+00:00"


def test_a_loan_needs_a_recorded_market_and_is_part_of_the_run_name() -> None:
    loan = loan_of(0.5, "usdc")
    assert loan is not None
    assert (loan.protocol, loan.collateral, loan.loan_to_value) == ("aave_v3", "USDC", 0.5)
    assert loan_of(0.0, "WETH") is None
    with pytest.raises(ConfigError, match="is not supported: use USDC or WETH"):
        loan_of(0.5, "WBTC")
    with pytest.raises(ConfigError, match="needs a recorded market"):
        open_market(RunSettings(loan=loan), Console(quiet=True))
    stores: Any = SimpleNamespace(derivation_id="d", policy=Policy())
    market = flat_market(bars=60, start=datetime(2026, 1, 1, tzinfo=UTC))
    plain, *others = (
        run_name(RunSettings(loan=item), market, stores)
        for item in (None, loan, loan_of(0.6, "USDC"), loan_of(0.5, "WETH"))
    )
    assert len({plain, *others}) == 4


def test_an_argument_that_is_not_utf8_is_refused() -> None:
    _check_utf8(["ask", "g-1", "Größe → 3?"])
    with pytest.raises(ConfigError, match=r"ga\\xffs is not UTF-8"):
        _check_utf8(["ask", "g-1", b"ga\xffs".decode(errors="surrogateescape")])


@pytest.mark.row("MEM-9", "MEM-10")
@pytest.mark.parametrize(
    ("question", "text"),
    [("", "name a subject"), (" \n\t", "name a subject"), ("x" * 101, "at most 100 are read"),
     ("é" * 51, "102 bytes"), ("\ud800", "no Unicode")],
)  # fmt: skip
def test_an_empty_too_long_or_invalid_question_is_refused(question: str, text: str) -> None:
    with pytest.raises(QueryError, match=text):
        check_question(question, 100)
    assert check_question("  e\u0301 ", 100) == "é", "normalised as for the embedder"


@pytest.mark.row("X-8")
def test_an_invalid_filter_of_grimoire_entries_is_refused() -> None:
    nothing = Grimoire("g", 0, 0, datetime(2026, 1, 1, tzinfo=UTC), None, ENTRY_SCHEMA.empty_table())
    plain: dict[str, Any] = {"status": "active", "kind": None, "text": None, "confidence_min": 0.0, "pinned": False}
    for wrong, message in (
        ({"status": "gone"}, "--status 'gone' is not one of"),
        ({"kind": "rule"}, "--kind 'rule' is not one of insight"),
        ({"confidence_min": float("nan")}, "a confidence is between 0 and 1, not nan"),
    ):
        with pytest.raises(QueryError, match=message):
            select_entries(nothing, **(plain | wrong))


@pytest.mark.row("X-5")
def test_an_output_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="name a writable folder"):
        make_output_folder(tmp_path / "file")
    assert make_output_folder(tmp_path / "a" / "b").is_dir()


def test_names_with_markup_are_shown_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    paper = io.StringIO()
    console = Console(file=paper, width=200)
    monkeypatch.setattr(tables, "out", console)
    tables.print_table("golem [/b]", ["[red]", "b"], [("[/c]", 1)])
    decision = Decision(False, "of [/protocol] only 3 % of the levels are known")
    where = GolemMoment("g[/]", Situation(0, tick=7), AsOf(0, 0, None, 7, 3), earlier=False, died_at_tick=7)
    monkeypatch.setattr(answers, "out", console)
    answer = Answer(decision, False, HIT_SCHEMA.empty_table(), 0, 0)
    answers.show_answer({**answer_facts(where, answer, Policy()), "hits": answer.hits.to_pylist()})
    printed = paper.getvalue()
    for name in (
        "golem [/b]",
        "[red]",
        "[/c]",
        "g[/] at tick 7, its last",
        "[/protocol]",
        "no cycle is derived:",
    ):
        assert name in printed
