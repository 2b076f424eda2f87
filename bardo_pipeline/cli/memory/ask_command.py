"""Asking at the door: the command `bardo ask`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from bardo_pipeline.cli.memory.embeddings_command import warn_of_drift
from bardo_pipeline.cli.options import EmbedderOption, HomeOption, JsonOption, moment_of, now, root_of
from bardo_pipeline.cli.output.tables import print_json, print_table
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.ask import GolemMoment, ask, golem_moment
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.retrieval.retrieve import Answer
from bardo_pipeline.retrieval.scoring import FACTORS, LAYERS, VAULT, weights_of

out = Console(soft_wrap=False)


def add_to(app: typer.Typer) -> None:
    """Add the commands that ask."""
    app.command("ask")(ask_golem)


def ask_golem(
    golem: Annotated[str, typer.Argument(help="Whose knowledge is asked.")],
    question: Annotated[
        str, typer.Argument(help='What it is asked, for example "should I re-centre in a falling trend?"')
    ],
    home: HomeOption = None,
    k: Annotated[int | None, typer.Option("--k", help="How many entries (default: the policy's five).")] = None,
    regime: Annotated[str | None, typer.Option(help="As if the market were in this regime.")] = None,
    at: Annotated[str | None, typer.Option("--at", help="As of a moment of event time (ISO 8601, UTC).")] = None,
    tick: Annotated[int | None, typer.Option(help="As of this tick of its life.")] = None,
    clade: Annotated[bool, typer.Option(help="With what its owner's other golems know, at its discount.")] = False,
    may_skip: Annotated[bool, typer.Option(help="Let the golem decide to do without, as in its own ticks.")] = False,
    json: JsonOption = False,
    embedder: EmbedderOption = None,
) -> None:
    """Ask a golem what it knows: the entries that matter most, each with its score factor by factor."""
    if at is not None and tick is not None:
        raise ConfigError("--at and --tick both say when: give one of them")
    stores = DerivationContext.open(root_of(home), embedder=embedder)
    where = golem_moment(stores, golem, at=None if at is None else moment_of(at, "--at"), tick=tick)
    where = where if regime is None else where.in_regime(regime)
    answer = ask(stores, where, question, now=now(), k=k, clade=clade, may_skip=may_skip)
    if json:
        told = _told(where, answer) | {"weights": dict(zip(FACTORS, weights_of(stores.policy.retrieval), strict=True))}
        print_json(told)
    else:
        _show(where, answer)
        warn_of_drift(out, stores)


def _told(where: GolemMoment, answer: Answer) -> dict[str, Any]:
    return {
        "golem_id": where.golem_id,
        "died_at_tick": where.died_at_tick,
        "situation": asdict(where.situation),
        "decision": asdict(answer.decision),
        "contrarian": answer.contrarian,
        "awake": answer.awake,
        "asleep": answer.asleep,
        "as_of": asdict(where.as_of),
        "hits": answer.hits.to_pylist(),
    }


def _show(where: GolemMoment, answer: Answer) -> None:
    """Where the golem stands, what it found, factor by factor, what it would have decided, how fresh that is."""
    situation, as_of = where.situation, where.as_of
    mood = ", ".join(f"{part:+.2f}" for part in situation.mood)
    turn = "; contrarian: it seeks what was felt the other way" if answer.contrarian else ""
    dead = "" if where.died_at_tick is None else ", with which it died"
    _say(f"{where.golem_id} at tick {situation.tick}{dead}, regime {situation.regime or 'none'}, mood ({mood}){turn}")
    if answer.hits.num_rows:
        hits = answer.hits.to_pylist()
        print_table(out, None, ["#", "score", *FACTORS, "awake", "trust"], [_row(hit) for hit in hits])
        for hit in hits:
            out.print(f"{hit['rank']}. [bold]{hit['entry_id'][:10]}[/] {_said(hit)}", highlight=False)
        out.print()
    else:
        _say("nothing was retrieved")
    would = "skipped" if answer.decision.skipped else "looked"
    _say(f"By itself it would have {would}: {answer.decision.reason}.")
    _say(f"{answer.awake} entries were awake, {answer.asleep} of other regimes slept.")
    closed = (
        f"closed at {as_of.at:%Y-%m-%d %H:%M} with tick {as_of.tick}"
        if as_of.at
        else "none is derived yet: `bardo run` or the curator job does it"
    )
    _say(f"As of cycle {as_of.cycle} ({closed}; newest tick {as_of.head_tick}), log version {as_of.log_version}.")


def _say(text: str) -> None:
    """A line as it is: names and protocols are others' words, and may look like markup."""
    out.print(text, highlight=False, markup=False, soft_wrap=True)


def _row(hit: dict[str, Any]) -> tuple[Any, ...]:
    """A hit as a row: each factor as it is, and what it adds to the score."""
    parts = [f"{hit[n]:.2f}→{hit[f'{n}_ppm'] / PPM:.3f}" for n in FACTORS]
    score, awake, trust = hit["score_ppm"] / PPM, hit["wakefulness"], hit["confidence_ppm"] / PPM
    return (hit["rank"], f"{score:.3f}", *parts, f"{awake:.0%}", f"{trust:.0%}")


def _said(hit: dict[str, Any]) -> str:
    """What an entry is and says."""
    marks = [hit["kind"], *(["bloodstain"] if hit["is_bloodstain"] else [])]
    if hit["layer"] != LAYERS[VAULT]:
        marks.append(f"{hit['layer']} x {hit['discount']:g}, of {hit['golem_id']}")
    return escape(f"({', '.join(marks)}) {hit['text']}")
