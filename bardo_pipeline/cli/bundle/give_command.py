"""`bardo bundle rank | give`: compare a bundle with a golem's knowledge; give it to a living golem."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from bardo_pipeline.cli.bundle.bundle_command import Target, files_of, hash_of, out
from bardo_pipeline.cli.options import FormatOption, HomeOption, check_format, now, root_of
from bardo_pipeline.cli.output.tables import print_json, print_table
from bardo_pipeline.curator.state.received_entries import VERDICTS
from bardo_pipeline.curator.views.surprise_ranking import ranked
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.record_overrides import grimoire_of
from bardo_pipeline.derivation.succession.deliver_bundle import Offer, give_bundle, preview_offer
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA
from bardo_pipeline.inheritance.bundle_inspection import inspected

_RELATIONS = {"opposed": "contradict its knowledge", "unknown": "are new", "same": "are known"}


def rank(
    target: Target,
    to: Annotated[str, typer.Option("--for", help="Golem that would receive it.")],
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum number of entries, most surprising first.")] = None,
    home: HomeOption = None,
    format: FormatOption = "table",
) -> None:
    """Rank a bundle's entries by their surprise for a golem: contradictions, new entries, known entries."""
    check_format(format)
    stores = DerivationContext.open(root_of(home))
    bundle, grimoire = inspected(files_of(target, home), stores.policy.inheritance), grimoire_of(stores, to)
    at_us = round(grimoire.at.timestamp() * 1_000_000)
    entries = bundle.entries()
    ranking = ranked(entries, grimoire.entries.select(ENTRY_SCHEMA.names), at_us, stores.policy)
    rows = _with_texts(ranking.slice(0, limit).to_pylist(), entries)
    if format == "json":
        print_json(rows)
        return
    cells = [
        (row["priority"], row["relation"], row["surprise_ppm"] / PPM, row["entry_id"][:10],
         row["held_id"][:10] if row["held_id"] else "-", row["text"])
        for row in rows
    ]  # fmt: skip
    counted = Counter(ranking["relation"].to_pylist())
    summary = ", ".join(f"{counted[name]} {words}" for name, words in _RELATIONS.items() if counted[name])
    title = f"To {to} as of tick {grimoire.tick}: {summary or 'nothing'}"
    print_table(out, title, ["turn", "what", "surprise", "entry", "held", "text"], cells)


def give_(
    target: Annotated[str, typer.Argument(help="Bundle hash of this home (or a unique prefix) or dead golem.")],
    to: Annotated[str, typer.Option("--to", help="Living golem that receives it.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the verdict on each entry; record nothing.")] = False,
    home: HomeOption = None,
    format: FormatOption = "table",
) -> None:
    """Give a bundle to a living golem: its entries stay in quarantine until the golem's own outcomes confirm them."""
    check_format(format)
    if Path(target).exists():
        raise ConfigError(f"{target} is not in this home: `bardo bundle import` checks and imports it")
    stores = DerivationContext.open(root_of(home))
    bundle_hash = hash_of(stores, target)
    if dry_run:
        offer, event_id = preview_offer(stores, to, bundle_hash), None
    else:
        offer, event_id = give_bundle(stores, to, bundle_hash, now=now())
    rows = _with_texts(offer.verdicts.to_pylist(), offer.entries)
    cycle = offer.way.tick_seen // stores.policy.curator.cycle_ticks + 1
    if format == "json":
        print_json({"event_id": event_id, "source": offer.received.source, "cycle": cycle, "counts": offer.counts,
                 "claims": len(offer.claims), "entries": rows})  # fmt: skip
        return
    cells = [
        (row["priority"], row["verdict"], row["surprise_ppm"] / PPM, row["confidence_ppm"] / PPM, row["entry_id"][:10],
         row["reason"], row["text"])
        for row in rows
    ]  # fmt: skip
    title = f"{offer.received.from_golem_id} to {to} as of tick {offer.way.tick_seen}"
    print_table(out, title, ["turn", "verdict", "surprise", "enters_at", "entry", "why", "text"], cells)
    _print_offer(offer, event_id, cycle, cycle * stores.policy.curator.cycle_ticks)


def _print_offer(offer: Offer, event_id: str | None, cycle: int, closes: int) -> None:
    chain = f"{len(offer.claims)} claims about the chain, {len(offer.way.unproven)} entries unverified"
    out.print(f"chain: {chain if offer.claims else 'no claims'}", soft_wrap=True)
    counts = ", ".join(f"{offer.counts[name]} {name}" for name in VERDICTS if offer.counts.get(name))
    if offer.way.hypothesis:
        out.print(escape(f"a replicant's report on its hypothesis: {offer.way.hypothesis}"), soft_wrap=True)
    if event_id is None:
        out.print(f"{counts or 'no entries'}; nothing is recorded", soft_wrap=True)
        return
    repeated = ", already waiting" if offer.waits is not None else ""
    out.print(f"{counts or 'no entries'}; given ({event_id}){repeated}", soft_wrap=True)
    out.print(
        f"judged again when cycle {cycle} closes, at tick {closes} or at death; "
        "accepted entries are tested in shadow mode",
        soft_wrap=True,
    )


def _with_texts(rows: list[dict[str, Any]], entries: Any) -> list[dict[str, Any]]:
    texts = dict(zip(entries["entry_id"].to_pylist(), entries["text"].to_pylist(), strict=True))
    return [{**row, "text": texts[row["entry_id"]]} for row in rows]
