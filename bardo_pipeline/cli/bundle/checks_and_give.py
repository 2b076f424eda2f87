"""`bardo bundle checks | waive | rank | give | consent`: expectations and waivers; a bundle for a living golem."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import orjson
from typer import Argument, Exit, Option

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.bundle.bundle_command import Target, files_of
from bardo_pipeline.cli.options import now, open_context
from bardo_pipeline.cli.output.rendering import show_report
from bardo_pipeline.cli.output.tables import print_json, print_rows, print_table, say
from bardo_pipeline.clock import micros_of
from bardo_pipeline.curator.state.received_entries import VERDICTS
from bardo_pipeline.curator.views.surprise_ranking import ranked
from bardo_pipeline.derivation.curation.record_overrides import grimoire_of
from bardo_pipeline.derivation.legacy.bundle_sales import consent
from bardo_pipeline.derivation.legacy.bundle_store import find_bundle
from bardo_pipeline.derivation.legacy.warning_waivers import bundle_failures, record_waiver
from bardo_pipeline.derivation.succession.deliver_bundle import Offer, give_bundle, preview_offer
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA
from bardo_pipeline.inheritance.bundle_inspection import inspected
from bardo_pipeline.quality.bundle_expectations import bundle_expectations


def checks(
    target: Annotated[str | None, Argument(help="Bundle hash (or a unique prefix) or golem.")] = None,
    suite: Annotated[bool, Option("--suite", help="List all expectations with their limits instead.")] = False,
    check: Annotated[bool, Option("--check", help="Exit 1 if a bundle is refused or a warning is open.")] = False,
    home: opt.Home = None,
    format: opt.Format = "table",
) -> None:
    """List failed expectations of bundles, and which warnings a steward waived."""
    stores = open_context(home)
    if suite:
        expectations = [
            (e.name, e.severity, orjson.dumps(e.limits).decode() if e.limits else "", e.description)
            for e in bundle_expectations(stores.policy)
        ]
        print_rows(["expectation", "severity", "limits", "says"], expectations, format)
        return
    failures = bundle_failures(stores, target)
    show_report("bundle checks", [failure._asdict() for failure in failures], as_json=format == "json")
    if check and any(failure.open for failure in failures):
        raise Exit(1)


def waive_warning(
    target: Annotated[str, Argument(help="Bundle hash (or a unique prefix) or dead golem.")],
    expectation: Annotated[str, Argument(help="Name of the warning, from `bardo bundle checks`.")],
    why: Annotated[str, Option(help="Reason; recorded.")],
    home: opt.Home = None,
) -> None:
    """Waive a warning about a bundle; a critical failure cannot be waived."""
    waived = record_waiver(open_context(home), target, expectation, why, now=now())
    bundle = f"bundle {waived.bundle_hash[:16]} of {waived.golem_id}"
    say(f"{bundle}: {expectation} is waived ({waived.observed})")


_RELATIONS = {"opposed": "contradict its knowledge", "unknown": "are new", "same": "are known"}


def rank(
    target: Target,
    to: Annotated[str, Option("--for", help="Golem that would receive it.")],
    limit: Annotated[int | None, Option(min=1, help="Maximum number of entries, most surprising first.")] = None,
    home: opt.Home = None,
    format: opt.Format = "table",
) -> None:
    """Rank a bundle's entries by their surprise for a golem: contradictions, new entries, known entries."""
    stores = open_context(home)
    bundle, grimoire = inspected(files_of(target, home), stores.policy.inheritance), grimoire_of(stores, to)
    at_us = micros_of(grimoire.at)
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
    print_table(title, ["turn", "what", "surprise", "entry", "held", "text"], cells)


def give_(
    target: Annotated[str, Argument(help="Bundle hash of this home (or a unique prefix) or dead golem.")],
    to: Annotated[str, Option("--to", help="Living golem that receives it.")],
    dry_run: Annotated[bool, Option("--dry-run", help="Show the verdict on each entry; record nothing.")] = False,
    home: opt.Home = None,
    format: opt.Format = "table",
) -> None:
    """Give a bundle to a living golem. Its entries stay in quarantine until the golem's own outcomes confirm them."""
    if Path(target).exists():
        raise ConfigError(f"{target} is not in this home: `bardo bundle import` checks and imports it")
    stores = open_context(home)
    bundle_hash = find_bundle(stores, target)
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
    print_table(title, ["turn", "verdict", "surprise", "enters_at", "entry", "why", "text"], cells)
    _print_offer(offer, event_id, cycle, cycle * stores.policy.curator.cycle_ticks)


def consent_to_sale(
    target: Annotated[str, Argument(help="Bundle hash of this home (or a unique prefix) or dead golem.")],
    to: Annotated[str, Option("--to", help="Owner who may receive it.")],
    why: opt.Why,
    price: Annotated[float, Option(min=0.0, help="Price in dollars; recorded.")] = 0.0,
    home: opt.Home = None,
) -> None:
    """Consent to sell a bundle to another owner, whose golems may then receive or inherit it at 30 % confidence."""
    stores = open_context(home)
    sale, is_new = consent(stores, find_bundle(stores, target), to, round(price * 1e6), why, now=now())
    terms = f"to {to} for ${sale.price_micros / 1e6:,.2f}{'' if is_new else '; this was on record'}"
    say(f"owner {sale.owner_id} sells bundle {sale.bundle_hash[:16]} {terms}")


def _print_offer(offer: Offer, event_id: str | None, cycle: int, closes: int) -> None:
    chain = f"{len(offer.claims)} claims about the chain, {len(offer.way.unproven)} entries unverified"
    say(f"chain: {chain if offer.claims else 'no claims'}")
    counts = ", ".join(f"{offer.counts[name]} {name}" for name in VERDICTS if offer.counts.get(name))
    if offer.way.hypothesis:
        say(f"a replicant's report on its hypothesis: {offer.way.hypothesis}")
    if event_id is None:
        say(f"{counts or 'no entries'}; nothing is recorded")
        return
    repeated = ", already waiting" if offer.waits is not None else ""
    say(f"{counts or 'no entries'}; given ({event_id}){repeated}")
    say(
        f"judged again when cycle {cycle} closes, at tick {closes} or at death; "
        "accepted entries are tested in shadow mode"
    )


def _with_texts(rows: list[dict[str, Any]], entries: Any) -> list[dict[str, Any]]:
    texts = dict(zip(entries["entry_id"].to_pylist(), entries["text"].to_pylist(), strict=True))
    return [{**row, "text": texts[row["entry_id"]]} for row in rows]
