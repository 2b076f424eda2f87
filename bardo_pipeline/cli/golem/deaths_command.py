"""`bardo golem observe | notices | death`: silent golems, owner notices, phases of a death."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Annotated, Literal, cast

import typer

from bardo_pipeline.cli.options import EmbedderOption, HomeOption, moment_of, now, open_context
from bardo_pipeline.cli.output.tables import out, print_table, say
from bardo_pipeline.derivation.death.complete_deaths import curate_and_complete_deaths
from bardo_pipeline.derivation.death.derive_thanatopsis import PHASE_WORDS, Phase, phases_of
from bardo_pipeline.derivation.death.owner_notices import WEBHOOK, notices_of, post_notices, waiting_notices, webhook_of
from bardo_pipeline.derivation.death.silence import declare_silent_golems
from bardo_pipeline.errors import ConfigError, QueryError

app = typer.Typer(help="State, silence, death and succession of golems.", no_args_is_help=True)

_OUTCOMES = {
    "silent": "would be declared dead",
    "declared": "declared dead",
    "held": "not declared: its writer is running",
    "lives": "not declared: new records arrived",
}


@app.command("observe")
def observe_golems(
    home: HomeOption = None,
    silence: Annotated[
        float | None, typer.Option(min=0.0, help="Hours without a tick (default: the policy's 24).")
    ] = None,
    clock: Annotated[
        str | None,
        typer.Option(
            help="market: event time of the other golems in its market; wall: time since its last record arrived."
        ),
    ] = None,
    at: Annotated[str | None, typer.Option(help="With --clock wall: judge as of this moment (default: now).")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show silent golems; record nothing.")] = False,
    embedder: EmbedderOption = None,
) -> None:
    """Declare silent golems dead at their last record, then derive and publish their bundles."""
    if clock not in (None, "market", "wall"):
        raise ConfigError(f"--clock {clock} is unknown: use market or wall")
    if at is not None and clock != "wall":
        raise ConfigError("--at needs --clock wall")
    stores = open_context(home, embedder)
    moment = now() if at is None else moment_of(at, "--at")
    silence_min = None if silence is None else timedelta(hours=silence)
    which = cast("Literal['market', 'wall'] | None", clock)
    silences = declare_silent_golems(stores, now=moment, silence=silence_min, clock=which, dry_run=dry_run)
    if not silences:
        out.print("No golem fell silent.")
        return
    rows = [(s.golem_id, s.tick, f"{s.at:%Y-%m-%d %H:%M}", f"{s.hours:,.1f}", _OUTCOMES[s.outcome]) for s in silences]
    print_table("Silent golems", ["golem", "last tick", "heard", "hours", "what came of it"], rows)
    declared = {silence.golem_id for silence in silences if silence.outcome == "declared"}
    if not declared:
        return
    with out.status("deriving legacies"):
        curate_and_complete_deaths(stores, now=moment)
    for phases in phases_of(stores, declared).values():
        if phases[-1].kind == "LegacyLeft":
            say(phases[-1].said["notice"])


@app.command("notices")
def notices(
    home: HomeOption = None,
    post: Annotated[bool, typer.Option("--post", help="Post unsent notices to BARDO_WEBHOOK.")] = False,
    embedder: EmbedderOption = None,
) -> None:
    """List notices to owners about deaths and failed successions, oldest first; --post sends them."""
    stores = open_context(home, embedder)
    if not post:
        waiting_ids = {notice.event_id for notice in waiting_notices(stores)}
        for notice in notices_of(stores):
            mark = "" if notice.event_id in waiting_ids else " (posted)"
            say(f"{notice.at:%Y-%m-%d %H:%M} {notice.owner_id}: {notice.text}{mark}")
        return
    url = webhook_of(os.environ)
    if url is None:
        raise ConfigError(f"notices need a webhook: set {WEBHOOK} to a URL that accepts JSON by POST")
    say(f"{len(post_notices(stores, url)):,} notices posted to {url}")


@app.command("death")
def death(
    golem: Annotated[str, typer.Argument(help="Dead golem.")],
    home: HomeOption = None,
    embedder: EmbedderOption = None,
) -> None:
    """Show the four phases of a death: their results and their cost from the death reserve."""
    stores = open_context(home, embedder)
    phases = phases_of(stores, [golem]).get(golem)
    if phases is None:
        dead = golem in stores.life("DeathDeclared")["golem_id"].to_pylist()
        fact = "is dead, but the death job has not processed it yet" if dead else "has no death on record"
        raise QueryError(f"golem {golem} {fact}: `bardo graveyard` lists dead golems")
    rows = [
        (PHASE_WORDS[p.kind], _result(p), f"${p.said['cost_micros'] / 1e6:.4f}",
         f"${(p.said['reserve_micros'] - p.said['spent_micros']) / 1e6:.4f}")
        for p in phases
    ]  # fmt: skip
    print_table(f"How {golem} died", ["phase", "what it did", "cost", "left of the reserve"], rows)


def _result(phase: Phase) -> str:
    payload = phase.said
    match phase.kind:
        case "DeathAccepted":
            return f"dies at tick {payload['tick']:,} ({payload['cause']}); means for the {payload['means']} death"
        case "AffairsSettled":
            count = payload["position_count"]
            positions = "sealed positions" if count is None else f"{count} open position{'s' * (count != 1)}"
            return f"{positions} valued as last seen, ${payload['capital_micros'] / 1e6:,.2f} in all"
        case "LifeReflected":
            extent = f"{payload['statement_count']} statements over {payload['entry_count']} entries"
            return f"testament {payload['testament_hash'][:12]}, {extent}"
        case _:
            bundle = f"bundle {payload['bundle_hash'][:12]}" + ("" if payload["published"] else " (refused)")
            content = f"{payload['entry_count']} entries, {payload['episode_count']} episodes"
            pushed = len(payload["pushed_entry_ids"])
            return f"{bundle}: {content}; {payload['vote_count']} last votes; {pushed} insights pushed"
