"""The command `bardo library`: what survived of an owner's golems, and what the owner does with it."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from bardo_pipeline.cli.options import EmbedderOption, FormatOption, HomeOption, check_format, moment_of, now, root_of
from bardo_pipeline.cli.output.tables import print_json, print_table
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.library import acquisitions
from bardo_pipeline.derivation.library.library_queries import (
    filter_library,
    find_library_row,
    kits_of,
    library_of,
    playbooks_of,
    refresh_library,
    resolve_owner,
)
from bardo_pipeline.derivation.succession.birth_events import waiting_orders

app = typer.Typer(
    help="What survived of an owner's golems: entries that they left, pulled, exported, shared or bought, and kits.",
    no_args_is_help=True,
)
out = Console(soft_wrap=False, highlight=False)

Owner = Annotated[str | None, typer.Option(help="Whose library (default: the only owner of this home).")]
Golem = Annotated[str, typer.Argument(help="The golem.")]
Why = Annotated[str, typer.Option(help="The owner's reason; it is recorded.")]
Entry = Annotated[str, typer.Argument(help="An entry's id, or the beginning of it.")]


@app.command("list")
def list_(
    home: HomeOption = None,
    owner: Owner = None,
    channel: Annotated[
        str | None, typer.Option(help="Only what came by death, pull, export, overflow or purchase.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Only insight, heuristic, warning or causal_link.")] = None,
    text: Annotated[str | None, typer.Option(help="Only entries whose text holds this.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many.")] = None,
    format: FormatOption = "table",
    embedder: EmbedderOption = None,
) -> None:
    """List a library, surest first, with its seed kits and the playbooks of the dead."""
    check_format(format)
    stores = DerivationContext.open(root_of(home), embedder=embedder)
    whose = resolve_owner(stores, owner)
    refresh_library(stores)
    rows = filter_library(library_of(stores, whose), channel=channel, kind=kind, text=text)
    told = (rows if limit is None else rows.slice(0, limit)).to_pylist()
    kits, books = kits_of(stores, whose), playbooks_of(stores, whose)
    if format == "json":
        orders = waiting_orders(stores, whose)
        print_json({"owner_id": whose, "entries": told, "kits": kits, "playbooks": books, "waiting": orders})
        return
    table = [
        (_marked(r), r["entry_id"][:12], r["kind"], _percent(r["confidence_now_ppm"]), r["channel"],
         r["validator_count"], _tags(r), r["text"])
        for r in told
    ]  # fmt: skip
    title = f"Library of {whose}: {rows.num_rows} entries, {len(books)} playbooks of the dead"
    print_table(out, title, ["", "entry", "kind", "trust", "by", "borne out", "marks", "text"], table)
    if kits:
        said = [
            (k["kit_id"], k["name"], "published" if k["is_published"] else "proposed", len(k["entry_ids"]),
             len(k["proposed_ids"]), len(k["golem_ids"]))
            for k in kits
        ]  # fmt: skip
        print_table(out, "Seed kits", ["kit", "name", "state", "entries", "waiting", "golems"], said)
    for order in waiting_orders(stores, whose):
        waits = f"order {order['number']}: {order['entry_count']} entries wait for the next golem, {order['why']}"
        out.print(waits, soft_wrap=True, markup=False)


@app.command()
def show(
    entry: Entry,
    home: HomeOption = None,
    owner: Owner = None,
    format: FormatOption = "table",
    embedder: EmbedderOption = None,
) -> None:
    """Show an entry, a seed kit or a dead golem's playbook: what it says, where it came from, who bears it out."""
    check_format(format)
    stores = DerivationContext.open(root_of(home), embedder=embedder)
    whose = resolve_owner(stores, owner)
    refresh_library(stores)
    kit = next((k for k in kits_of(stores, whose) if entry and k["kit_id"].startswith(entry)), None)
    book = next((b for b in playbooks_of(stores, whose) if b["golem_id"] == entry), None)
    row = kit or book or find_library_row(library_of(stores, whose), whose, entry)
    if format == "json":
        print_json(row)
    elif kit:
        _tell_kit(kit)
    elif book:
        out.print(book["markdown"], soft_wrap=True, markup=False)
    else:
        _tell_entry(row)


@app.command()
def pull(
    golem: Golem,
    entry: Entry,
    why: Why,
    at: Annotated[str | None, typer.Option(help="When, event time (ISO 8601, UTC; default: now).")] = None,
    home: HomeOption = None,
    embedder: EmbedderOption = None,
) -> None:
    """Take an entry of a golem that has just died, within 25 seconds of its testament, whatever its confidence."""
    stores = DerivationContext.open(root_of(home), embedder=embedder)
    moment = now() if at is None else moment_of(at, "--at")
    _tell_acquired(acquisitions.pull_entry(stores, golem, entry, why, at=moment, now=now()), "entry", "pulled")


@app.command()
def export(golem: Golem, entry: Entry, why: Why, home: HomeOption = None, embedder: EmbedderOption = None) -> None:
    """Take an entry of a golem that lives, if it is trusted 50 % or more."""
    stores = DerivationContext.open(root_of(home), embedder=embedder)
    _tell_acquired(acquisitions.export_entry(stores, golem, entry, why, now=now()), "entry", "exported")


@app.command()
def buy(
    bundle: Annotated[str, typer.Argument(help="An imported bundle's hash, or the beginning of it.")],
    why: Why,
    home: HomeOption = None,
    owner: Owner = None,
    embedder: EmbedderOption = None,
) -> None:
    """Take what is in a bundle that was bought and imported: each entry at 30 %, until own golems bear it out."""
    stores = DerivationContext.open(root_of(home), embedder=embedder)
    _tell_acquired(acquisitions.buy_bundle(stores, bundle, owner, why, now=now()), "bundle", "bought")


@app.command()
def equip(
    why: Why,
    entries: Annotated[list[str] | None, typer.Argument(help="Entries by id, or the beginning of it.")] = None,
    kit: Annotated[str | None, typer.Option(help="A published seed kit.")] = None,
    home: HomeOption = None,
    owner: Owner = None,
    embedder: EmbedderOption = None,
) -> None:
    """Order entries or a seed kit for the owner's next golem, with what is a default there; without any, that alone.

    They come with its birth and wait in quarantine until its own outcomes bear them out.
    """
    stores = DerivationContext.open(root_of(home), embedder=embedder)
    done = acquisitions.order_kit(stores, entries or [], kit, owner, why, now=now())
    out.print(
        f"order {done.number} of {escape(done.owner_id)}: {len(done.entries)} entries in kit {done.bundle_hash[:16]} "
        f"wait for the next golem that is founded or succeeds ({done.event_id})",
        soft_wrap=True,
    )


def _tell_acquired(done: acquisitions.Acquisition, what: str, word: str) -> None:
    if done.event_id is None:
        out.print(f"{what} {done.what} is {word} already; nothing is recorded", soft_wrap=True)
        return
    out.print(
        f"{what} {done.what} is {word} into the library of {escape(done.owner_id)} ({done.event_id})", soft_wrap=True
    )


def _tell_kit(kit: dict[str, Any]) -> None:
    state = "published" if kit["is_published"] else "proposed: it waits for golems that bear it out"
    out.print(f"[bold]{kit['kit_id']}[/] {escape(kit['name'])}, {state}", soft_wrap=True)
    out.print(f"found again and again by {escape(', '.join(kit['golem_ids']))}", soft_wrap=True)
    for word, names in (("entries", "entry_ids"), ("waiting", "proposed_ids")):
        out.print(f"{word}: {', '.join(e[:12] for e in kit[names]) or 'none'}", soft_wrap=True)


def _tell_entry(row: dict[str, Any]) -> None:
    out.print(f"{_marked(row)} [bold]{row['entry_id']}[/] {escape(row['text'])}".strip(), soft_wrap=True)
    about = [row["kind"], row["category"], row["archetype"], f"generation {row['generation']}", _tags(row)]
    out.print(escape(", ".join(word for word in about if word)), soft_wrap=True)
    raised = "" if row["confidence_ppm"] == row["deposited_ppm"] else f", raised from {_percent(row['deposited_ppm'])}"
    since = f"{_percent(row['confidence_ppm'])} as of {row['anchor_at']:%Y-%m-%d %H:%M}{raised}"
    out.print(f"trusted {_percent(row['confidence_now_ppm'])} now ({since})", soft_wrap=True)
    came = f"{row['first_at']:%Y-%m-%d %H:%M} to {row['last_at']:%Y-%m-%d %H:%M}"
    out.print(
        f"came by {', '.join(row['channels'])}, {came}, from {escape(', '.join(row['golem_ids']))}", soft_wrap=True
    )
    out.print(
        f"borne out by {row['validator_count']} golems ({escape(', '.join(row['validator_ids'])) or 'nobody yet'}), "
        f"spoken against by {row['refuter_count']}",
        soft_wrap=True,
    )
    for other in row["entry_ids"]:
        alike = "" if other == row["entry_id"] else " (alike)"
        out.print(f"down to the ticks: bardo lineage {other[:12]}{alike}", soft_wrap=True)


def _marked(row: dict[str, Any]) -> str:
    return "†" if row["is_bloodstain"] else ""


def _tags(row: dict[str, Any]) -> str:
    tags = [word for word in ("battle_tested", "default", "anti_knowledge") if row[f"is_{word}"]]
    return ", ".join(word.replace("_", "-") for word in tags)


def _percent(ppm: int) -> str:
    return f"{ppm / 1e4:.0f} %"
