"""`bardo golem observe | notices | death | show`, `bardo graveyard`: golems, deaths and testaments."""

from __future__ import annotations

import os
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Literal, cast

from typer import Argument, Option, Typer

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import moment_of, now, open_context, open_whole
from bardo_pipeline.cli.output.rendering import show_report
from bardo_pipeline.cli.output.tables import ROWS_SHOWN, out, print_table, say
from bardo_pipeline.derivation.death.derive_thanatopsis import phases_of
from bardo_pipeline.derivation.death.graveyard import death_document, golem_document, graves
from bardo_pipeline.derivation.death.owner_notices import WEBHOOK, notice_rows, post_notices, webhook_of
from bardo_pipeline.derivation.death.silence import declare_silent_golems
from bardo_pipeline.derivation.derive_home import curate_and_complete_deaths
from bardo_pipeline.errors import ConfigError

app = Typer(help="State, silence, death and succession of golems.", no_args_is_help=True)

_OUTCOMES = {
    "silent": "would be declared dead",
    "declared": "declared dead",
    "held": "not declared: its writer is running, or its records wait in the spool",
    "lives": "not declared: new records arrived",
}


@app.command("observe")
def observe_golems(
    home: opt.Home = None,
    silence: Annotated[
        float | None, Option(min=0.0, max=opt.HOURS_MAX, help="Hours without a tick (default: the policy's 24).")
    ] = None,
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
        show_report("golem notices", notice_rows(stores), as_json=False)
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
    show_report("golem death", death_document(open_context(home, embedder), golem), as_json=False)


def graveyard(
    home: opt.Home = None,
    lineage: Annotated[str | None, Option(help="Only golems in this golem's line of descent.")] = None,
    limit: Annotated[int, Option(min=1, help="Maximum number of deaths, latest first.")] = ROWS_SHOWN,
    json: opt.Json = False,
    embedder: opt.Embedder = None,
) -> None:
    """List dead golems: cause of death, earnings, entries left, bundle, heir, last words."""
    rows = [asdict(grave) for grave in graves(open_context(home, embedder), lineage=lineage)]
    show_report("graveyard", rows, as_json=json, limit=limit)


def show_golem(
    golem: Annotated[str, Argument(help="Living or dead golem.")],
    home: opt.Home = None,
    testament: Annotated[bool, Option("--testament", help="Show the whole testament.")] = False,
    json: opt.Json = False,
    embedder: opt.Embedder = None,
) -> None:
    """Show one golem: vitality, phase, knowledge, line of descent, and its testament if it is dead."""
    show_report("golem show", golem_document(open_context(home, embedder), golem), as_json=json, testament=testament)
