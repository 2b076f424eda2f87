"""`bardo grimoire list | show | pin | unpin | retract | correct`, `bardo lineage`: entries, overrides, origins."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from typer import Argument, Option, Typer

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import format_option, inspected, now, open_context
from bardo_pipeline.cli.output.rendering import show_report
from bardo_pipeline.cli.output.tables import say
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation import record_overrides
from bardo_pipeline.derivation.curation.entry_documents import entry_document, grimoire_document
from bardo_pipeline.derivation.reports.lineage import lineage_of

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
    facts = grimoire_document(
        open_context(home, embedder), golem, status=status, kind=kind, text=text, confidence_min=confidence_min,
        pinned=pinned, limit=limit,
    )  # fmt: skip
    show_report("grimoire list", facts, as_json=format == "json")


@app.command()
def show(
    golem: opt.Golem,
    entry: opt.Entry,
    home: opt.Home = None,
    format: opt.Format = "table",
    embedder: opt.Embedder = None,
) -> None:
    """Show an entry: evidence, decisions, confidence, decay, links and notes."""
    facts = entry_document(open_context(home, embedder), golem, entry)
    show_report("grimoire show", facts, as_json=format == "json")


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


def lineage(
    entry: Annotated[str, Argument(help="Id of an entry or a stored text, or a unique prefix.")],
    home: opt.Home = None,
    golem: Annotated[str | None, Option(help="Only this golem and its ancestors.")] = None,
    format: Annotated[str, format_option("tree", "json", help="tree or json.")] = "tree",
    embedder: opt.Embedder = None,
) -> None:
    """Trace an entry through generations to the ticks that it was derived from, or a text to the operations on it."""
    holdings = [asdict(held) for held in lineage_of(inspected(home, embedder), entry, golem, now=now())]
    show_report("lineage", holdings, as_json=format == "json")
