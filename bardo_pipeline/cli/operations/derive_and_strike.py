"""`bardo derive | rebuild | accept-gap | sql`: derived tables; `strike | reorg | struck`: retractions."""

from __future__ import annotations

import os
import re
from typing import Annotated
from uuid import uuid4

from typer import Argument, Exit, Option

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import (
    format_option,
    inspected,
    moment_of,
    named_owner,
    now,
    open_context,
    open_whole,
    root_of,
)
from bardo_pipeline.cli.output.tables import out, print_json, print_nonempty, print_rows, print_table, say, spinner
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.owner_notices import post_notices, webhook_of
from bardo_pipeline.derivation.death.unfinished_deaths import missing_ticks
from bardo_pipeline.derivation.derive_home import DerivedHome, derive_home
from bardo_pipeline.derivation.legacy.bundle_store import stale_bundles
from bardo_pipeline.derivation.repair.removal_proof import remains
from bardo_pipeline.derivation.strikes_and_reorgs import Recorded, depth_after, reorg, strike
from bardo_pipeline.derivation.versions import rebuild as versions
from bardo_pipeline.derivation.versions.rebuild import derive_everything
from bardo_pipeline.errors import ConfigError, MemoryGateError, NoticeError, QueryError
from bardo_pipeline.events.life.events import Gap, life_event
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.owner_log import golems_in_view, require_visible
from bardo_pipeline.storage.operations.inspected_home import inspected_home
from bardo_pipeline.storage.projections.derivation_folders import HashBucket
from bardo_pipeline.storage.projections.projections import withdrawals
from bardo_pipeline.storage.warehouse import build
from bardo_pipeline.storage.warehouse.owner_database import query_of_owner
from bardo_pipeline.tools.due_consolidations import consolidate_due, due_consolidations
from bardo_pipeline.tools.memory_gate import MemoryGate


def derive(
    home: opt.Home = None,
    marts: Annotated[bool, Option(help="Build the warehouse (dbt).")] = True,
    embedder: opt.Embedder = None,
    bucket: Annotated[
        str | None,
        Option(help="Derive the tables by golem of one hash bucket alone: NUMBER/COUNT, 0/2 and 1/2 for halves."),
    ] = None,
) -> None:
    """Derive every table from the log, judge and publish bundles, build the warehouse; Dagster is not needed.

    Processes with --bucket run at once, one for each bucket; a run without it afterwards derives all other tables.
    """
    context = open_whole(home, embedder)
    if bucket is not None:
        _derive_bucket(context, bucket)
        return
    _consolidate(context, MemoryGate.of(os.environ))
    with spinner("deriving") as on_step:
        derived = derive_home(context, clock=now, marts=marts, data_docs=f"derive-{uuid4()}", on_step=on_step)
    cycles, version = context.projections.digest("cycles").rows, context.log.version
    say(f"{cycles:,} cycles derived, as of log version {version}")
    _print_derived(derived)
    _post_notices(context)
    context.log.close()


def _derive_bucket(context: DerivationContext, name: str) -> None:
    """Derive the tables by golem of a hash bucket, given as NUMBER/COUNT. Raises ConfigError for another name."""
    count_max = context.home.bucket_count
    match = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", name)
    number, count = map(int, match.groups()) if match else (0, 0)
    if not number < count <= count_max:
        raise ConfigError(
            f"--bucket {name}: write NUMBER/COUNT, as in 0/2, with a number below the count and {count_max} as the "
            "highest count"
        )
    part = context.in_bucket(HashBucket(number, count))
    with spinner("deriving") as on_step:
        derive_everything(part, now=now(), on_step=on_step)
    golems = sum(map(part.holds, context.golem_ids()))
    say(f"bucket {number} of {count} with {golems:,} golems derived, as of log version {context.log.version}")
    context.log.close()


def _consolidate(context: DerivationContext, gate: MemoryGate) -> None:
    """Consolidate stored episodes of golems for which it is due; if the tools are closed, print how to open them."""
    try:
        for golem_id, done in consolidate_due(context, clock=now, ids=lambda: uuid4().hex, gate=gate).items():
            say(f"golem {golem_id}: {done.insights_created} insights from {done.episodes_processed} stored episodes")
    except MemoryGateError as error:
        if waiting := due_consolidations(context, now()):
            say(f"stored episodes wait for consolidation (golems: {len(waiting):,}): {error}")


_SHOWN = 10
"""Number of completed deaths, and of living golems that wait, that `bardo derive` prints."""


def _print_derived(derived: DerivedHome) -> None:
    for notice in derived.notices[:_SHOWN]:
        say(notice)
    if len(derived.notices) > _SHOWN:
        say(f"{len(derived.notices) - _SHOWN:,} more deaths are completed: `bardo graveyard` lists them")
    for golem_id, bundle_hash in derived.refused:
        say(f"golem {golem_id}: bundle {bundle_hash[:12]} is refused: `bardo bundle checks` lists what failed")
    for death in derived.unfinished:
        say(f"golem {death.golem_id} died at tick {death.tick:,}, and its death is not completed: {death.why}")
    for golem_id, why in derived.waiting[:_SHOWN]:
        say(f"golem {golem_id} waits: {why}")
    if len(derived.waiting) > _SHOWN:
        say(f"{len(derived.waiting) - _SHOWN:,} more golems wait: `bardo status` lists them")
    for bundle_hash in derived.changed_verdicts:
        say(f"bundle {bundle_hash[:12]} has another verdict than the recorded one: its candidate was altered")
    if derived.data_docs is not None:
        say(f"the verdicts are explained in {derived.data_docs}")
    if derived.warehouse is not None:
        rows = derived.warehouse.rows
        say(f"{len(rows)} marts with {sum(rows.values()):,} rows; {derived.warehouse.tests_passed} dbt tests passed")


def _post_notices(context: DerivationContext) -> None:
    """Post the waiting notices if BARDO_WEBHOOK is set. After a failure they wait for the next attempt."""
    url = webhook_of(os.environ)
    if url is None:
        return
    try:
        say(f"{len(post_notices(context, url)):,} notices posted to {url}")
    except NoticeError as error:
        say(str(error))


def rebuild(
    home: opt.Home = None,
    as_of: Annotated[str | None, Option(help="Compare as of a moment of event time (ISO 8601, UTC).")] = None,
    as_of_version: Annotated[int | None, Option(min=0, help="Compare as of a version of the log.")] = None,
    embedder: opt.Embedder = None,
) -> None:
    """Derive every table again from the log, in a separate folder, and compare fingerprints; exit 1 on a difference."""
    stores, moment = open_whole(home, embedder), None if as_of is None else moment_of(as_of, "--as-of")
    with spinner("deriving again") as on_step:
        comparisons = versions.rebuild(stores, now=now(), moment=moment, version=as_of_version, on_step=on_step)
    rows = [
        (c.table, c.row_count, c.fingerprint[:16], c.rebuilt_fingerprint[:16], "equal" if c.equal else "DIFFERENT")
        for c in comparisons
    ]
    print_table("Rebuilt and active tables", ["table", "rows", "in force", "rebuilt", ""], rows)
    if not all(c.equal for c in comparisons):
        raise Exit(1)


def accept_gap(
    golem: Annotated[str, Argument(help="Golem with missing ticks.")],
    tick_from: Annotated[int, Argument(min=1, help="First missing tick.")],
    tick_to: Annotated[int, Argument(min=1, help="Last missing tick.")],
    why: Annotated[str, Option(help="Reason why they are lost; recorded.")],
    home: opt.Home = None,
) -> None:
    """Record that missing ticks are lost, so that derivation continues after them."""
    context, moment = open_context(home), now()
    missing = [(first, last) for _, first, last in missing_ticks(context, [golem])[golem]]
    if tick_from > tick_to or not any(first <= tick_from and tick_to <= last for first, last in missing):
        known = ", ".join(f"{first} to {last}" for first, last in missing) or "none"
        raise QueryError(
            f"golem {golem}: ticks {tick_from} to {tick_to} are not all missing; its missing ticks: {known}"
        )
    context.log.record([life_event(golem, moment, Gap(tick_from=tick_from, tick_to=tick_to, why=why))], moment)
    say(f"golem {golem}: ticks {tick_from} to {tick_to} are accepted as lost")


def sql(
    query: Annotated[str, Argument(help='SQL over the marts, for example "from dim_golem".')],
    home: opt.Home = None,
    format: Annotated[str, format_option("table", "csv", "json", help="table, csv or json.")] = "table",
    limit: Annotated[int | None, Option(min=1, help="Maximum number of rows.")] = None,
) -> None:
    """Query the DuckDB warehouse; for a named owner, a database of that owner's rows."""
    owner = named_owner()
    if owner is None:
        names, rows = build.query(Home.open(inspected_home(root_of(home))), query, limit)
    else:
        stores = inspected(home)
        propositions = stores.projections.read("consensus")["proposition_id"].to_pylist()
        names, rows = query_of_owner(stores.home, owner, propositions, query, limit)
    print_rows(names, rows, format)


Derive = Annotated[
    bool, Option(help="Derive again now, with the warehouse; otherwise `bardo derive` or the curator job does it.")
]


def strike_record(
    golem: Annotated[str, Argument(help="Golem of the record.")],
    tick: Annotated[int, Argument(min=1, help="Tick of the record.")],
    why: Annotated[str, Option(help="Reason; recorded.")],
    home: opt.Home = None,
    derive: Derive = True,
    embedder: opt.Embedder = None,
) -> None:
    """Strike a poisoned record: derived tables of the golem and its heirs leave it out. The log keeps it.

    A running fleet applies it from the golem's next cycle on.
    """
    stores = open_context(home, embedder)
    require_visible(stores.log, golem)
    _print_recorded(strike(stores.whole, golem, tick, why, now=now()), stores)
    _derive_if(derive, stores.whole)


def reorg_blocks(
    golem: Annotated[str, Argument(help="Golem with records of the blocks.")],
    chain: Annotated[str, Option(help="Chain of the reorg, as named in the records.")],
    block_from: Annotated[int | None, Option(min=0, help="First removed block.")] = None,
    block_to: Annotated[int | None, Option(min=0, help="Last removed block.")] = None,
    tick_from: Annotated[int | None, Option(min=1, help="First tick, instead of blocks.")] = None,
    tick_to: Annotated[int | None, Option(min=1, help="Last tick, instead of blocks.")] = None,
    home: opt.Home = None,
    derive: Derive = True,
    embedder: opt.Embedder = None,
) -> None:
    """Record a chain reorg: derived tables leave out the golem's records of the removed blocks.

    Prints the confirmations that an action needs from now on; frequent reorgs raise them. The golem deliberates fully
    at its next tick.
    """
    stores = open_context(home, embedder)
    require_visible(stores.log, golem)
    blocks = _bounds("--block-from", block_from, "--block-to", block_to)
    ticks = _bounds("--tick-from", tick_from, "--tick-to", tick_to)
    _print_recorded(reorg(stores.whole, golem, chain, blocks=blocks, ticks=ticks, now=now()), stores)
    depth, count = depth_after(stores.whole, chain, golem)
    window = stores.policy.reorg.window_blocks
    say(f"{chain}: reorgs in the last {window:,} blocks: {count}; an action counts from {depth} confirmations on")
    _derive_if(derive, stores.whole)


def _bounds(first_name: str, first: int | None, last_name: str, last: int | None) -> tuple[int, int] | None:
    if first is None and last is None:
        return None
    if first is None or last is None or last < first:
        raise ConfigError(f"{first_name} and {last_name} must be given together, in ascending order")
    return first, last


def _print_recorded(recorded: Recorded, stores: DerivationContext) -> None:
    ticks = ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in recorded.ticks)
    if not recorded.event_ids:
        say(f"golem {recorded.golem_id}: tick {ticks} is already left out; nothing is recorded")
    else:
        say(f"golem {recorded.golem_id}: tick {ticks} is left out ({', '.join(recorded.event_ids)})")
    visible = golems_in_view(stores.log, None)
    for event in (event for event in recorded.heirs if visible is None or event.golem_id in visible):
        assert event.withdrawn is not None, "a withdrawal event has its payload"
        entries = event.withdrawn.entry_ids
        say(f"heir {event.golem_id} loses {len(entries)} entries: {', '.join(entries)}")


def _derive_if(derive: bool, stores: DerivationContext) -> None:
    if derive:
        with out.status("deriving again"):
            derive_home(stores, clock=now, marts=stores.home.warehouse.exists())


def prove(
    home: opt.Home = None,
    withdrawn: Annotated[bool, Option(help="List withdrawn rows with their reasons.")] = False,
    format: opt.Format = "table",
    embedder: opt.Embedder = None,
) -> None:
    """Prove that no derived row references or depends on a struck record; list such rows and exit 1.

    Checks every derived table, the episode index, playbooks and marts, of the golem and its heirs. Published bundles
    keep their bytes; the command lists those made before the strike.
    """
    stores = open_context(home, embedder)
    with out.status("checking derived rows"):
        remaining_rows = remains(stores)
    causes, bundles, whys = stores.left_out().causes, stale_bundles(stores), _whys(stores)
    withdrawn_rows = withdrawals(stores.projections).to_pylist()
    if format == "json":
        facts = {
            "proven": not remaining_rows,
            "struck": [{**c._asdict(), "why": whys.get(c.event_id)} for c in causes],
            "bundles": [dict(zip(("golem_id", "bundle_hash"), bundle, strict=True)) for bundle in bundles],
            "withdrawn": withdrawn_rows,
            "remains": [row._asdict() for row in remaining_rows],
        }
        print_json(facts)
    else:
        struck = [(c.golem_id, c.summary, whys.get(c.event_id, ""), c.event_id) for c in causes]
        names = ["table_name", "golem_id", "row_name", "row_count", "made_again", "because"]
        shown = [tuple(row[name] for name in names) for row in withdrawn_rows] if withdrawn else []
        print_nonempty("Struck records", ["golem", "what", "why", "id"], struck)
        print_nonempty("Bundles published before the strike", ["golem", "bundle"], bundles)
        print_nonempty("Withdrawn rows", names, shown)
        print_nonempty("Rows that should have been removed", ["where", "golem", "row", "what is wrong"], remaining_rows)
        if not remaining_rows:
            out.print(f"no derived row depends on these {len(causes)} retractions" if causes else "no record is struck")
    if remaining_rows:
        raise Exit(1)


def _whys(stores: DerivationContext) -> dict[str, str]:
    """Map each event id to its reason: the operator's, the reorg, or the withdrawal."""
    reasons = {}
    for kind in ("RecordStruck", "ReorgObserved", "KnowledgeWithdrawn"):
        for row in stores.life(kind).select(["event_id", "struck", "reorg", "withdrawn"]).to_pylist():
            if row["struck"]:
                reasons[row["event_id"]] = row["struck"]["why"]
            elif row["reorg"]:
                reasons[row["event_id"]] = "blocks {block_from} to {block_to} of {chain}".format(**row["reorg"])
            else:
                reasons[row["event_id"]] = "tick {tick} of {from_golem_id} ({because})".format(**row["withdrawn"])
    return reasons
