"""`bardo library`: entries that survived an owner's golems, seed kits, playbooks, orders for the next golem."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option, Typer

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import moment_of, now, open_context
from bardo_pipeline.cli.output.rendering import show_report
from bardo_pipeline.cli.output.tables import say
from bardo_pipeline.derivation.library import acquisitions
from bardo_pipeline.derivation.library.library_queries import library_document, library_item

app = Typer(
    help="Library of an owner: inherited, pulled, exported, shared and bought entries, and seed kits.",
    no_args_is_help=True,
)


@app.command("list")
def list_(
    home: opt.Home = None,
    channel: Annotated[str | None, Option(help="Only entries from: death, pull, export, overflow or purchase.")] = None,
    kind: Annotated[str | None, Option(help="Only: insight, heuristic, warning or causal_link.")] = None,
    text: Annotated[str | None, Option(help="Only entries that contain this text.")] = None,
    limit: Annotated[int | None, Option(min=1, help="Maximum number of entries.")] = None,
    format: opt.Format = "table",
    embedder: opt.Embedder = None,
) -> None:
    """List a library by confidence, with its seed kits and the playbooks of dead golems."""
    stores = open_context(home, embedder)
    facts = library_document(stores, channel=channel, kind=kind, text=text, limit=limit)
    show_report("library list", facts, as_json=format == "json")


@app.command()
def show(entry: opt.Entry, home: opt.Home = None, format: opt.Format = "table", embedder: opt.Embedder = None) -> None:
    """Show an entry, a seed kit or a dead golem's playbook, with its source and confirming golems."""
    show_report("library show", library_item(open_context(home, embedder), entry), as_json=format == "json")


@app.command()
def pull(
    golem: opt.Golem,
    entry: opt.Entry,
    why: opt.Why,
    at: Annotated[str | None, Option(help="Event time of the pull (ISO 8601, UTC; default: now).")] = None,
    home: opt.Home = None,
    embedder: opt.Embedder = None,
) -> None:
    """Pull an entry of any confidence from a golem within 25 seconds of its testament."""
    stores = open_context(home, embedder)
    moment = now() if at is None else moment_of(at, "--at")
    _print_acquired(acquisitions.pull_entry(stores, golem, entry, why, at=moment, now=now()), "entry", "pulled")


@app.command()
def export(
    golem: opt.Golem, entry: opt.Entry, why: opt.Why, home: opt.Home = None, embedder: opt.Embedder = None
) -> None:
    """Export an entry with a confidence of at least 50 % from a living golem."""
    stores = open_context(home, embedder)
    _print_acquired(acquisitions.export_entry(stores, golem, entry, why, now=now()), "entry", "exported")


@app.command()
def buy(
    bundle: Annotated[str, Argument(help="Hash of an imported bundle, or a unique prefix.")],
    why: opt.Why,
    home: opt.Home = None,
    embedder: opt.Embedder = None,
) -> None:
    """Add the entries of an imported bundle at 30 % confidence, until the owner's golems confirm them."""
    stores = open_context(home, embedder)
    _print_acquired(acquisitions.buy_bundle(stores, bundle, why, now=now()), "bundle", "bought")


@app.command()
def equip(
    why: opt.Why,
    entries: Annotated[list[str] | None, Argument(help="Entry ids, or unique prefixes.")] = None,
    kit: Annotated[str | None, Option(help="Published seed kit.")] = None,
    home: opt.Home = None,
    embedder: opt.Embedder = None,
) -> None:
    """Order entries or a seed kit, plus the library's default entries, for the owner's next golem.

    The golem receives them at birth, in quarantine until its own outcomes confirm them.
    """
    stores = open_context(home, embedder)
    order = acquisitions.order_kit(stores, entries or [], kit, why, now=now())
    say(
        f"order {order.number} of {order.owner_id}: {len(order.entries)} entries "
        f"in kit {order.bundle_hash[:16]} wait for the owner's next golem ({order.event_id})"
    )


def _print_acquired(acquired: acquisitions.Acquisition, kind: str, verb: str) -> None:
    if acquired.event_id is None:
        say(f"{kind} {acquired.what} is already {verb}; nothing is recorded")
        return
    say(f"{kind} {acquired.what} is {verb} into the library of {acquired.owner_id} ({acquired.event_id})")
