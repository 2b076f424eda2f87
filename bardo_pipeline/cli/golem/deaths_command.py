"""The command `bardo golem`: what becomes of golems: who fell silent, and how one died."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Annotated, Literal, cast

import typer
from rich.console import Console

from bardo_pipeline.cli.options import EmbedderOption, HomeOption, moment_of, now, root_of
from bardo_pipeline.cli.output.tables import print_table
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.complete_deaths import curate_and_complete_deaths
from bardo_pipeline.derivation.death.derive_thanatopsis import PHASE_WORDS, Phase, phases_of
from bardo_pipeline.derivation.death.owner_notices import WEBHOOK, notices_of, post_notices, waiting_notices, webhook_of
from bardo_pipeline.derivation.death.silence import Silence, declare_silent_golems
from bardo_pipeline.errors import ConfigError, QueryError

app = typer.Typer(
    help="What becomes of golems: how one is, who fell silent, how one died, and who follows.", no_args_is_help=True
)
out = Console(soft_wrap=False)

_OUTCOMES = {
    "silent": "would be declared dead",
    "declared": "declared dead",
    "held": "not declared: its writer still runs",
    "lives": "not declared: it lived on meanwhile",
}


@app.command("observe")
def observe_golems(
    home: HomeOption = None,
    silence: Annotated[
        float | None, typer.Option(min=0.0, help="Hours without a tick (default: the policy's 24).")
    ] = None,
    clock: Annotated[
        str | None,
        typer.Option(help="market: others of its market went on (event time). wall: since its last record came."),
    ] = None,
    at: Annotated[str | None, typer.Option(help="With --clock wall: the moment to judge by (default: now).")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only look.")] = False,
    embedder: EmbedderOption = None,
) -> None:
    """Declare dead whoever fell silent, with the last record as the end, and let them leave their legacy."""
    if clock not in (None, "market", "wall"):
        raise ConfigError(f"--clock {clock}: there is market and wall")
    if at is not None and clock != "wall":
        raise ConfigError("--at is a moment of the wall clock: give --clock wall with it")
    stores = DerivationContext.open(root_of(home), embedder=embedder)
    moment = now() if at is None else moment_of(at, "--at")
    borne = None if silence is None else timedelta(hours=silence)
    which = cast("Literal['market', 'wall'] | None", clock)
    found = declare_silent_golems(stores, now=moment, silence=borne, clock=which, dry_run=dry_run)
    if not found:
        out.print("Nobody fell silent.")
        return
    rows = [(one.golem_id, one.tick, f"{one.at:%Y-%m-%d %H:%M}", f"{one.hours:,.1f}", _said(one)) for one in found]
    print_table(out, "Silent golems", ["golem", "last tick", "heard", "hours", "what came of it"], rows)
    declared = {one.golem_id for one in found if one.outcome == "declared"}
    if not declared:
        return
    with out.status("their legacies"):
        curate_and_complete_deaths(stores, now=moment)
    for phases in phases_of(stores, declared).values():
        if phases[-1].kind == "LegacyLeft":
            out.print(phases[-1].said["notice"], highlight=False, soft_wrap=True)


def _said(one: Silence) -> str:
    return _OUTCOMES[one.outcome]


@app.command("notices")
def notices(
    home: HomeOption = None,
    post: Annotated[bool, typer.Option("--post", help="Post what BARDO_WEBHOOK was not sent yet.")] = False,
    embedder: EmbedderOption = None,
) -> None:
    """What owners are told of deaths and of heirs that do not come, oldest first; with --post to the webhook."""
    stores = DerivationContext.open(root_of(home), embedder=embedder)
    if not post:
        kept = {notice.event_id for notice in waiting_notices(stores)}
        for one in notices_of(stores):
            mark = "" if one.event_id in kept else " (posted)"
            out.print(f"{one.at:%Y-%m-%d %H:%M} {one.owner_id}: {one.text}{mark}", highlight=False, soft_wrap=True)
        return
    url = webhook_of(os.environ)
    if url is None:
        raise ConfigError(f"notices go nowhere: set {WEBHOOK} to an address that takes JSON by POST")
    out.print(f"{len(post_notices(stores, url)):,} notices posted to {url}", soft_wrap=True)


@app.command("death")
def death(
    golem: Annotated[str, typer.Argument(help="A golem that died.")],
    home: HomeOption = None,
    embedder: EmbedderOption = None,
) -> None:
    """How a golem died: the four phases of its dying, what each did, and what it cost of the reserve."""
    stores = DerivationContext.open(root_of(home), embedder=embedder)
    phases = phases_of(stores, [golem]).get(golem)
    if phases is None:
        dead = golem in stores.life("DeathDeclared")["golem_id"].to_pylist()
        said = "is dead, and the death job has not come to it yet" if dead else "is not on record as dead"
        raise QueryError(f"golem {golem} {said}: `bardo status` shows who lives")
    rows = [
        (PHASE_WORDS[p.kind], _did(p), f"${p.said['cost_micros'] / 1e6:.4f}", f"${_left(p) / 1e6:.4f}") for p in phases
    ]
    print_table(out, f"How {golem} died", ["phase", "what it did", "cost", "left of the reserve"], rows)


def _left(phase: Phase) -> int:
    return int(phase.said["reserve_micros"]) - int(phase.said["spent_micros"])


def _did(phase: Phase) -> str:
    said = phase.said
    match phase.kind:
        case "DeathAccepted":
            return f"dies at tick {said['tick']:,} ({said['cause']}); means for the {said['means']} death"
        case "AffairsSettled":
            count = said["position_count"]
            held = "sealed positions" if count is None else f"{count} open position{'s' * (count != 1)}"
            return f"{held} valued as last seen, ${said['capital_micros'] / 1e6:,.2f} in all"
        case "LifeReflected":
            said_of = f"{said['statement_count']} statements over {said['entry_count']} entries"
            return f"testament {said['testament_hash'][:12]}, {said_of}"
        case _:
            bundle = f"bundle {said['bundle_hash'][:12]}" + ("" if said["published"] else " (refused)")
            left = f"{said['entry_count']} entries, {said['episode_count']} episodes"
            return f"{bundle}: {left}; {said['vote_count']} last votes; {len(said['pushed_entry_ids'])} insights pushed"
