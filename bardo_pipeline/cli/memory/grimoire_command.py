"""`bardo grimoire list | show | pin | unpin | retract | correct`, `bardo lineage`: entries, overrides, origins."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from rich.markup import escape
from typer import Argument, Option, Typer

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import format_option, inspected, now, open_context
from bardo_pipeline.cli.output.answers import show_lineage
from bardo_pipeline.cli.output.tables import day, out, percent, print_json, print_nonempty, print_table, say
from bardo_pipeline.curator.views.crossings import PARTS, crossings_of, links_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation import record_overrides
from bardo_pipeline.derivation.curation.grimoire_views import elders
from bardo_pipeline.derivation.reports.lineage import lineage_of
from bardo_pipeline.events.life.override_events import Order
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA, MOMENT
from bardo_pipeline.grimoire.entry_columns import confidence_of
from bardo_pipeline.policy import Policy

app = Typer(
    help="Entries of a golem at its last closed cycle, their evidence, and overrides by the owner.",
    no_args_is_help=True,
)

FADES_DAYS = (1, 7, 30, 90)


@app.command("list")
def list_(
    golem: opt.Golem,
    home: opt.Home = None,
    kind: Annotated[str | None, Option(help="Only: insight, heuristic, warning or causal_link.")] = None,
    status: Annotated[str, Option(help="active, candidate, folded, pruned, retracted, or all.")] = "active",
    text: Annotated[str | None, Option(help="Only entries whose text or category contains this.")] = None,
    confidence_min: Annotated[float, Option(min=0.0, max=1.0, help="Minimum confidence, 0 to 1.")] = 0,
    pinned: Annotated[bool, Option("--pinned", help="Only pinned entries.")] = False,
    limit: Annotated[int | None, Option(min=1, help="Maximum number of entries.")] = None,
    format: opt.Format = "table",
    embedder: opt.Embedder = None,
) -> None:
    """List the entries of a golem by confidence."""
    stores = open_context(home, embedder)
    grimoire = record_overrides.grimoire_of(stores, golem)
    rows = record_overrides.select_entries(
        grimoire, status=status, kind=kind, text=text, confidence_min=confidence_min, pinned=pinned
    )
    rows = rows.slice(0, limit) if limit is not None else rows
    if format == "json":
        print_json({**_head(grimoire), "entries": rows.to_pylist()})
        return
    cells = [
        (r["entry_id"][:12], r["kind"] if r["status"] == "active" else r["status"], percent(r["confidence_now_ppm"]),
         percent(r["pinned_ppm"]) if r["pinned_ppm"] else "-", day(r["fades_at"]), r["text"])
        for r in rows.to_pylist()
    ]  # fmt: skip
    title = f"{golem} at the end of cycle {grimoire.cycle}"
    print_table(title, ["entry", "kind", "trust", "pinned", "fades", "text"], cells)
    for order in record_overrides.pending_orders(stores, grimoire):
        say(_waiting_text(order, stores.policy))


@app.command()
def show(
    golem: opt.Golem,
    entry: opt.Entry,
    home: opt.Home = None,
    format: opt.Format = "table",
    embedder: opt.Embedder = None,
) -> None:
    """Show an entry: evidence, decisions, confidence, decay, links and notes."""
    stores = open_context(home, embedder)
    grimoire = record_overrides.grimoire_of(stores, golem)
    row = record_overrides.find_entry(grimoire, entry)
    decisions = record_overrides.decisions_about(stores, golem, row["entry_id"])
    orders = record_overrides.pending_orders(stores, grimoire, row["entry_id"])
    fading = _fading(row, grimoire, stores.policy)
    if format == "json":
        facts = {"entry": row, "fading": fading, "decisions": decisions, "waiting": [o._asdict() for o in orders]}
        print_json(_head(grimoire) | facts)
        return
    out.print(f"[bold]{row['entry_id']}[/] {escape(row['text'])}", soft_wrap=True)
    about = [row["kind"], row["status"], row["category"], row["provenance"].replace("_", " ")]
    about += [f"generation {row['generation']}", row["decay_class"].replace("_", " ")]
    about += [word for word in ("is_anti_knowledge", "is_bloodstain") if row[word]]
    say(", ".join(about))
    votes = f"{row['validations']} for, {row['contradictions']} against"
    out.print(f"effect {row['effect_low_ppm']:,} to {row['effect_high_ppm']:,}, n={row['evidence_count']}; {votes}")
    if row["status"] == "active":
        _print_fading(row, fading)
    rows = [
        (d["cycle"], d["operation"], f"{percent(d['confidence_before_ppm'])} → {percent(d['confidence_ppm'])}",
         len(d["cause_ticks"]), d["reason"])
        for d in decisions
    ]  # fmt: skip
    print_table("Decisions", ["cycle", "what", "trust", "ticks", "why"], rows)
    _print_links(grimoire, row, stores)
    for override in stores.overrides().of_golem(golem):
        if override.entry_id == row["entry_id"] and override.note:
            say(f"note, {override.at:%Y-%m-%d %H:%M}: {override.note}")
    for order in orders:
        say(_waiting_text(order, stores.policy))
    say(f"trace to its ticks: bardo lineage {row['entry_id'][:12]} --golem {golem}")


def _print_links(grimoire: record_overrides.Grimoire, row: dict[str, Any], stores: DerivationContext) -> None:
    entries, entry_id = grimoire.entries.select(ENTRY_SCHEMA.names), row["entry_id"]
    texts = dict(zip(entries["entry_id"].to_pylist(), entries["text"].to_pylist(), strict=True))
    rows = []
    for link in links_of(entries).to_pylist():
        if entry_id in (link["entry_id"], link["other_id"]):
            other = link["other_id"] if link["entry_id"] == entry_id else link["entry_id"]
            turned = {"leads_to": "led to by", "told_by": "stands for"} if other == link["entry_id"] else {}
            how = turned.get(link["relation"], link["relation"])
            rows.append((how.replace("_", " "), link["across"], other[:12], texts[other]))
    print_nonempty("Linked entries", ["how", "across", "entry", "text"], rows)
    for gate in crossings_of(entries, stores.policy, elders(stores)).to_pylist():
        if gate["entry_id"] == entry_id:
            parts = ", ".join(f"{part} {gate[f'{part}_ppm'] / PPM:.2f}" for part in PARTS)
            verdict = "shared with other golems" if gate["crosses"] else "not shared"
            say(f"{verdict}: {gate['reason']}; admission {gate['admission_ppm'] / PPM:.2f} ({parts})")


@app.command()
def pin(golem: opt.Golem, entry: opt.Entry, why: opt.Why, home: opt.Home = None, embedder: opt.Embedder = None) -> None:
    """Pin an entry: its confidence stops decaying and it is not pruned; evidence still counts."""
    stores = open_context(home, embedder)
    _print_override(stores, record_overrides.pin(stores, golem, entry, why, now=now()), "pinned")


@app.command()
def unpin(
    golem: opt.Golem, entry: opt.Entry, why: opt.Why, home: opt.Home = None, embedder: opt.Embedder = None
) -> None:
    """Unpin an entry: it decays again from its current confidence."""
    stores = open_context(home, embedder)
    _print_override(stores, record_overrides.unpin(stores, golem, entry, why, now=now()), "unpinned")


@app.command()
def retract(
    golem: opt.Golem,
    entry: opt.Entry,
    why: opt.Why,
    heirs: Annotated[
        bool, Option("--heirs", help="Retract it from all living golems of the line; the golem itself may be dead.")
    ] = False,
    home: opt.Home = None,
    embedder: opt.Embedder = None,
) -> None:
    """Retract an entry: it is not inherited, and only later evidence can restore it."""
    stores = open_context(home, embedder)
    if heirs:
        for override in record_overrides.retract_from_line(stores, golem, entry, why, now=now()):
            _print_override(stores, override, "retracted")
        return
    override = record_overrides.retract(stores, golem, entry, why, now=now())
    _print_override(stores, override, "retracted")
    for heir in override.heirs:
        say(f"heir {heir.golem_id} holds it{'' if heir.alive else ' (dead)'}")


@app.command()
def correct(
    golem: opt.Golem,
    entry: opt.Entry,
    why: opt.Why,
    confidence: Annotated[float | None, Option(help="New confidence, 0 to 1.")] = None,
    verdict: Annotated[
        str | None, Option(help="Effect of acting: pays, harms, or anti_knowledge (never try again).")
    ] = None,
    decay_class: Annotated[
        str | None, Option(help="Decay class: structural, regime_conditional, tactical or ephemeral.")
    ] = None,
    note: Annotated[str | None, Option(help="Note to keep with the entry.")] = None,
    home: opt.Home = None,
    embedder: opt.Embedder = None,
) -> None:
    """Correct an entry: confidence, verdict, decay class or note."""
    stores = open_context(home, embedder)
    changes = {"confidence": confidence, "verdict": verdict, "decay_class": decay_class, "note": note}
    _print_override(stores, record_overrides.correct(stores, golem, entry, why, now=now(), **changes), "corrected")


def _print_override(stores: DerivationContext, override: record_overrides.RecordedOverride, verb: str) -> None:
    entry, golem_id = override.entry["entry_id"], override.golem_id
    if override.event_id is None:
        say(f"golem {golem_id}: entry {entry} is already {verb}; nothing is recorded")
        return
    closes = override.cycle * stores.policy.curator.cycle_ticks
    say(f"golem {golem_id}: entry {entry} is {verb} ({override.event_id})")
    effect = f"it takes effect when cycle {override.cycle} closes, at tick {closes} or at death"
    say(f"recorded as of tick {override.tick}; {effect}")


def _waiting_text(order: Order, policy: Policy) -> str:
    cycle = order.cycle(policy.curator.cycle_ticks)
    return f"waits for cycle {cycle}: {order.kind} of {order.entry_id[:12]}, {order.why} ({order.event_id})"


def _head(grimoire: record_overrides.Grimoire) -> dict[str, Any]:
    names = ("golem_id", "cycle", "tick", "at", "died_at_tick")
    return {name: getattr(grimoire, name) for name in names}


def _fading(row: dict[str, Any], grimoire: record_overrides.Grimoire, policy: Policy) -> list[dict[str, Any]]:
    """Return the entry's confidence after 0 and FADES_DAYS days without new evidence."""
    moments = [grimoire.at + timedelta(days=days) for days in (0, *FADES_DAYS)]
    rows = pa.Table.from_pylist([{n: row[n] for n in ENTRY_SCHEMA.names}] * len(moments), schema=ENTRY_SCHEMA)
    at = pa.array(moments, MOMENT).cast(pa.int64()).to_numpy()
    confidence = confidence_of(rows, np.asarray(at), policy.decay).tolist()
    return [{"at": at, "confidence_ppm": c} for at, c in zip(moments, confidence, strict=True)]


def _print_fading(row: dict[str, Any], fading: list[dict[str, Any]]) -> None:
    days = "does not fade" if row["half_life_days"] is None else f"half-life {row['half_life_days']:.1f} days"
    later = ", ".join(f"{percent(f['confidence_ppm'])} in {d} d" for d, f in zip(FADES_DAYS, fading[1:], strict=True))
    say(f"trusted {percent(row['confidence_now_ppm'])}; {days}: {later} without new evidence")
    if row["pinned_ppm"]:
        say(f"pinned at {percent(row['pinned_ppm'])} by its owner")
    elif row["fades_at"] is not None:
        say(f"pruned after {row['fades_at']:%Y-%m-%d %H:%M} without new evidence")


def lineage(
    entry: Annotated[str, Argument(help="Entry id, or a unique prefix.")],
    home: opt.Home = None,
    golem: Annotated[str | None, Option(help="Only this golem and its ancestors.")] = None,
    format: Annotated[str, format_option("tree", "json", help="tree or json.")] = "tree",
    embedder: opt.Embedder = None,
) -> None:
    """Trace an entry through generations to the ticks that it was derived from."""
    holdings = [asdict(held) for held in lineage_of(inspected(home, embedder), entry, golem)]
    if format == "json":
        print_json(holdings)
    else:
        show_lineage(holdings)
