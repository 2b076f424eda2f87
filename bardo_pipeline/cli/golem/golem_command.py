"""`bardo golem observe | notices | death | show`, `bardo graveyard`: golems, deaths and testaments."""

from __future__ import annotations

import os
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Literal, cast

from typer import Argument, Option, Typer

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import moment_of, now, open_context, open_whole
from bardo_pipeline.cli.output.golem_state import show_golem_report
from bardo_pipeline.cli.output.tables import out, print_json, print_table, say
from bardo_pipeline.derivation.death.derive_thanatopsis import PHASE_WORDS, Phase, phases_of
from bardo_pipeline.derivation.death.graveyard import golem_document, graves
from bardo_pipeline.derivation.death.owner_notices import WEBHOOK, notices_of, post_notices, waiting_notices, webhook_of
from bardo_pipeline.derivation.death.silence import declare_silent_golems
from bardo_pipeline.derivation.death.unfinished_deaths import unfinished_deaths
from bardo_pipeline.derivation.derive_home import curate_and_complete_deaths
from bardo_pipeline.derivation.legacy.death_queries import SHOW_THE_DEAD
from bardo_pipeline.errors import ConfigError, QueryError

app = Typer(help="State, silence, death and succession of golems.", no_args_is_help=True)

_OUTCOMES = {
    "silent": "would be declared dead",
    "declared": "declared dead",
    "held": "not declared: its writer is running",
    "lives": "not declared: new records arrived",
}


@app.command("observe")
def observe_golems(
    home: opt.Home = None,
    silence: Annotated[float | None, Option(min=0.0, help="Hours without a tick (default: the policy's 24).")] = None,
    clock: Annotated[
        str | None,
        Option(help="market: event time of the other golems in its market; wall: time since its last record arrived."),
    ] = None,
    at: Annotated[str | None, Option(help="With --clock wall: judge as of this moment (default: now).")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Show silent golems; record nothing.")] = False,
    embedder: opt.Embedder = None,
) -> None:
    """Declare silent golems dead at their last record, then derive and publish their bundles."""
    if clock not in (None, "market", "wall"):
        raise ConfigError(f"--clock {clock} is unknown: use market or wall")
    if at is not None and clock != "wall":
        raise ConfigError("--at needs --clock wall")
    stores = open_whole(home, embedder)
    moment = now() if at is None else moment_of(at, "--at")
    silence_min = None if silence is None else timedelta(hours=silence)
    which = cast("Literal['market', 'wall'] | None", clock)
    silences = declare_silent_golems(stores, now=moment, silence=silence_min, clock=which, dry_run=dry_run)
    if not silences:
        out.print("No golem fell silent.")
        return
    rows = [(s.golem_id, s.tick, f"{s.at:%Y-%m-%d %H:%M}", f"{s.hours:,.1f}", _OUTCOMES[s.outcome]) for s in silences]
    print_table("Silent golems", ["golem", "last tick", "last record", "silent hours", "outcome"], rows)
    declared = {silence.golem_id for silence in silences if silence.outcome == "declared"}
    if not declared:
        return
    with out.status("deriving legacies"):
        curate_and_complete_deaths(stores, now=moment)
    for phases in phases_of(stores, declared).values():
        if phases[-1].kind == "LegacyLeft":
            say(phases[-1].payload["notice"])


@app.command("notices")
def notices(
    home: opt.Home = None,
    post: Annotated[bool, Option("--post", help="Post unsent notices to BARDO_WEBHOOK.")] = False,
    embedder: opt.Embedder = None,
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
    golem: Annotated[str, Argument(help="Dead golem.")], home: opt.Home = None, embedder: opt.Embedder = None
) -> None:
    """Show the four phases of a death: their results and their cost from the death reserve."""
    stores = open_context(home, embedder)
    phases, waiting = phases_of(stores, [golem]).get(golem), unfinished_deaths(stores, [golem])
    if phases is None and waiting:
        raise QueryError(f"golem {golem} is dead, and its death is not completed: {waiting[0].why}")
    if phases is None:
        raise QueryError(f"golem {golem} has no death on record: {SHOW_THE_DEAD}")
    rows = [
        (PHASE_WORDS[p.kind], _result(p), f"${p.payload['cost_micros'] / 1e6:.4f}",
         f"${(p.payload['reserve_micros'] - p.payload['spent_micros']) / 1e6:.4f}")
        for p in phases
    ]  # fmt: skip
    print_table(f"How {golem} died", ["phase", "what it did", "cost", "left of the reserve"], rows)
    for death in waiting:
        say(f"the death is not completed: {death.why}")


def _result(phase: Phase) -> str:
    payload = phase.payload
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


def graveyard(
    home: opt.Home = None,
    lineage: Annotated[str | None, Option(help="Only golems in this golem's line of descent.")] = None,
    limit: Annotated[int, Option(min=1, help="Maximum number of deaths, latest first.")] = 20,
    json: opt.Json = False,
    embedder: opt.Embedder = None,
) -> None:
    """List dead golems: cause of death, earnings, entries left, bundle, heir, last words."""
    dead_golems = graves(open_context(home, embedder), lineage=lineage)
    if json:
        print_json([asdict(grave) for grave in dead_golems])
        return
    if not dead_golems:
        out.print("no golem has died yet")
        return
    rows = [
        (g.golem_id, g.generation, g.owner_id, f"{g.died_at:%m-%d %H:%M}", g.cause, g.ticks,
         f"{g.earned_micros / 1e6:+,.2f}", g.entry_count, (g.bundle_hash or "none")[:12],
         g.heir_id or g.succession or "-")
        for g in dead_golems[:limit]
    ]  # fmt: skip
    names = ["golem", "gen", "owner", "died", "cause", "ticks", "earned $", "left", "bundle", "heir"]
    print_table(None, names, rows)
    for grave in dead_golems[:limit]:
        if grave.last_words:
            say(f"{grave.golem_id}: “{grave.last_words}”")
    say(
        f"{len(dead_golems)} dead; `bardo golem show GOLEM` opens a testament, `bardo golem successor GOLEM` summons "
        "an heir, `bardo golem found --like GOLEM` starts fresh"
    )


def show_golem(
    golem: Annotated[str, Argument(help="Living or dead golem.")],
    home: opt.Home = None,
    testament: Annotated[bool, Option("--testament", help="Show the whole testament.")] = False,
    json: opt.Json = False,
    embedder: opt.Embedder = None,
) -> None:
    """Show one golem: vitality, phase, knowledge, line of descent, and its testament if it is dead."""
    document = golem_document(open_context(home, embedder), golem)
    if json:
        print_json(document)
    else:
        show_golem_report(document, whole=testament)
