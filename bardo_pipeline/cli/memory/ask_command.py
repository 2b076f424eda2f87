"""`bardo ask`: retrieve the entries of a golem that matter for a question."""

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


def ask_golem(
    golem: Annotated[str, typer.Argument(help="Golem id.")],
    question: Annotated[str, typer.Argument(help='Question, for example "should I re-centre in a falling trend?"')],
    home: HomeOption = None,
    k: Annotated[int | None, typer.Option("--k", help="Number of entries (default: the policy's five).")] = None,
    regime: Annotated[str | None, typer.Option(help="Assume this market regime.")] = None,
    at: Annotated[
        str | None, typer.Option("--at", help="Event time of the question (ISO 8601, UTC; default: the newest).")
    ] = None,
    tick: Annotated[int | None, typer.Option(help="Tick of the golem's life instead of a moment.")] = None,
    clade: Annotated[
        bool, typer.Option(help="Include entries of the owner's other golems at a discounted score.")
    ] = False,
    may_skip: Annotated[bool, typer.Option(help="Let the golem skip retrieval, as in its own ticks.")] = False,
    json: JsonOption = False,
    embedder: EmbedderOption = None,
) -> None:
    """Ask a golem: print its highest-scoring entries for a question, with each factor of the score."""
    if at is not None and tick is not None:
        raise ConfigError("--at and --tick exclude each other: give one of them")
    stores = DerivationContext.open(root_of(home), embedder=embedder)
    moment = golem_moment(stores, golem, at=None if at is None else moment_of(at, "--at"), tick=tick)
    moment = moment if regime is None else moment.in_regime(regime)
    answer = ask(stores, moment, question, now=now(), k=k, clade=clade, may_skip=may_skip)
    if json:
        weights = dict(zip(FACTORS, weights_of(stores.policy.retrieval), strict=True))
        print_json(_answer_facts(moment, answer) | {"weights": weights})
    else:
        _show(moment, answer)
        warn_of_drift(out, stores)


def _answer_facts(moment: GolemMoment, answer: Answer) -> dict[str, Any]:
    return {
        "golem_id": moment.golem_id,
        "died_at_tick": moment.died_at_tick,
        "situation": asdict(moment.situation),
        "decision": asdict(answer.decision),
        "contrarian": answer.contrarian,
        "awake": answer.awake,
        "asleep": answer.asleep,
        "as_of": asdict(moment.as_of),
        "hits": answer.hits.to_pylist(),
    }


def _show(moment: GolemMoment, answer: Answer) -> None:
    """Print the golem's situation, the hits by factor, its own retrieval decision, and the cycle they are from."""
    situation, as_of = moment.situation, moment.as_of
    mood = ", ".join(f"{part:+.2f}" for part in situation.mood)
    turn = "; contrarian: entries of the opposite mood score higher" if answer.contrarian else ""
    dead = "" if moment.died_at_tick is None else ", its last"
    _say(f"{moment.golem_id} at tick {situation.tick}{dead}, regime {situation.regime or 'none'}, mood ({mood}){turn}")
    if answer.hits.num_rows:
        hits = answer.hits.to_pylist()
        print_table(out, None, ["#", "score", *FACTORS, "awake", "trust"], [_row(hit) for hit in hits])
        for hit in hits:
            out.print(f"{hit['rank']}. [bold]{hit['entry_id'][:10]}[/] {_hit_text(hit)}", highlight=False)
        out.print()
    else:
        _say("no entry was retrieved")
    would = "skipped retrieval" if answer.decision.skipped else "retrieved"
    _say(f"The golem itself would have {would}: {answer.decision.reason}.")
    _say(f"{answer.awake} entries were awake; {answer.asleep} of other regimes were asleep.")
    closed = (
        f"closed at {as_of.at:%Y-%m-%d %H:%M} with tick {as_of.tick}"
        if as_of.at
        else "no cycle is derived yet: `bardo run` or the curator job derives them"
    )
    _say(f"As of cycle {as_of.cycle} ({closed}; newest tick {as_of.head_tick}), log version {as_of.log_version}.")


def _say(text: str) -> None:
    """Print a line without markup, because names from records may contain brackets."""
    out.print(text, highlight=False, markup=False, soft_wrap=True)


def _row(hit: dict[str, Any]) -> tuple[Any, ...]:
    """Return a table row of a hit: each factor's raw value and its part of the score."""
    parts = [f"{hit[n]:.2f}→{hit[f'{n}_ppm'] / PPM:.3f}" for n in FACTORS]
    score, awake, trust = hit["score_ppm"] / PPM, hit["wakefulness"], hit["confidence_ppm"] / PPM
    return (hit["rank"], f"{score:.3f}", *parts, f"{awake:.0%}", f"{trust:.0%}")


def _hit_text(hit: dict[str, Any]) -> str:
    """Return kind, marks and text of a hit."""
    marks = [hit["kind"], *(["bloodstain"] if hit["is_bloodstain"] else [])]
    if hit["layer"] != LAYERS[VAULT]:
        marks.append(f"{hit['layer']} x {hit['discount']:g}, of {hit['golem_id']}")
    return escape(f"({', '.join(marks)}) {hit['text']}")
