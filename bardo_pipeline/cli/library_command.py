"""`bardo library`: entries that survived an owner's golems, seed kits, playbooks, orders for the next golem."""

from __future__ import annotations

from typing import Annotated, Any

from rich.markup import escape
from typer import Argument, Option, Typer

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import moment_of, now, open_context
from bardo_pipeline.cli.output.tables import out, percent, print_json, print_nonempty, print_table, say
from bardo_pipeline.derivation.library import acquisitions
from bardo_pipeline.derivation.library import library_queries as queries
from bardo_pipeline.derivation.succession.birth_events import waiting_orders

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
    owner_id = queries.resolve_owner(stores)
    queries.refresh_library(stores)
    rows = queries.filter_library(queries.library_of(stores, owner_id), channel=channel, kind=kind, text=text)
    entries = (rows if limit is None else rows.slice(0, limit)).to_pylist()
    kits, playbooks = queries.kits_of(stores, owner_id), queries.playbooks_of(stores, owner_id)
    if format == "json":
        orders = waiting_orders(stores, owner_id)
        print_json({"owner_id": owner_id, "entries": entries, "kits": kits, "playbooks": playbooks, "waiting": orders})
        return
    cells = [
        (_marked(r), r["entry_id"][:12], r["kind"].removeprefix("strategy_"), percent(r["confidence_now_ppm"]),
         r["channel"], r["validator_count"], f"{r['text']} ({tags})" if (tags := _tags(r)) else r["text"])
        for r in entries
    ]  # fmt: skip
    title = f"Library of {owner_id}: {rows.num_rows} entries, {len(playbooks)} playbooks of dead golems"
    print_table(title, ["", "entry", "kind", "trust", "by", "borne out", "text"], cells)
    kit_rows = [
        (k["kit_id"], k["name"], "published" if k["is_published"] else "proposed", len(k["entry_ids"]),
         len(k["proposed_ids"]), len(k["golem_ids"]))
        for k in kits
    ]  # fmt: skip
    print_nonempty("Seed kits", ["kit", "name", "state", "entries", "waiting", "golems"], kit_rows)
    for order in waiting_orders(stores, owner_id):
        say(f"order {order['number']}: {order['entry_count']} entries wait for the next golem, {order['why']}")


@app.command()
def show(entry: opt.Entry, home: opt.Home = None, format: opt.Format = "table", embedder: opt.Embedder = None) -> None:
    """Show an entry, a seed kit or a dead golem's playbook, with its source and confirming golems."""
    stores = open_context(home, embedder)
    owner_id = queries.resolve_owner(stores)
    queries.refresh_library(stores)
    kit = next((k for k in queries.kits_of(stores, owner_id) if entry and k["kit_id"].startswith(entry)), None)
    playbook = next((b for b in queries.playbooks_of(stores, owner_id) if b["golem_id"] == entry), None)
    row = kit or playbook or queries.find_library_row(queries.library_of(stores, owner_id), owner_id, entry)
    if format == "json":
        print_json(row)
    elif kit:
        _print_kit(kit)
    elif playbook:
        say(playbook["markdown"])
    else:
        _print_entry(row)


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


def _print_kit(kit: dict[str, Any]) -> None:
    state = "published" if kit["is_published"] else "proposed: waiting for golems to confirm it"
    out.print(f"[bold]{escape(kit['kit_id'])}[/] {escape(kit['name'])}, {state}", soft_wrap=True)
    say(f"learned independently by {', '.join(kit['golem_ids'])}")
    for word, names in (("entries", "entry_ids"), ("waiting", "proposed_ids")):
        say(f"{word}: {', '.join(e[:12] for e in kit[names]) or 'none'}")


def _print_entry(row: dict[str, Any]) -> None:
    out.print(f"{_marked(row)} [bold]{row['entry_id']}[/] {escape(row['text'])}".strip(), soft_wrap=True)
    about = [row["kind"], row["category"], row["archetype"], f"generation {row['generation']}", _tags(row)]
    say(", ".join(word for word in about if word))
    raised = "" if row["confidence_ppm"] == row["deposited_ppm"] else f", raised from {percent(row['deposited_ppm'])}"
    since = f"{percent(row['confidence_ppm'])} as of {row['anchor_at']:%Y-%m-%d %H:%M}{raised}"
    say(f"trusted {percent(row['confidence_now_ppm'])} now ({since})")
    period = f"{row['first_at']:%Y-%m-%d %H:%M} to {row['last_at']:%Y-%m-%d %H:%M}"
    say(f"acquired by {', '.join(row['channels'])}, {period}, from {', '.join(row['golem_ids'])}")
    say(
        f"confirmed by {row['validator_count']} golems ({', '.join(row['validator_ids']) or 'none yet'}), "
        f"refuted by {row['refuter_count']}"
    )
    for entry_id in row["entry_ids"]:
        similar = "" if entry_id == row["entry_id"] else " (similar)"
        say(f"trace to its ticks: bardo lineage {entry_id[:12]}{similar}")


def _marked(row: dict[str, Any]) -> str:
    return "†" if row["is_bloodstain"] else ""


def _tags(row: dict[str, Any]) -> str:
    tags = [word for word in ("battle_tested", "default", "anti_knowledge") if row[f"is_{word}"]]
    return ", ".join(word.replace("_", "-") for word in tags)
