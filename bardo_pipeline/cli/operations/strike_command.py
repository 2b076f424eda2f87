"""Repair at the door: `bardo strike`, `bardo reorg`, and `bardo struck`, which proves that nothing is left."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from bardo_pipeline.cli.options import EmbedderOption, FormatOption, HomeOption, check_format, now, root_of
from bardo_pipeline.cli.output.tables import print_json, print_table
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.complete_deaths import complete_deaths
from bardo_pipeline.derivation.legacy.published_bundles import stale_bundles
from bardo_pipeline.derivation.memory.derive_episodes import refresh_index
from bardo_pipeline.derivation.repair.removal_proof import Remains, remains
from bardo_pipeline.derivation.repair.strikes_and_reorgs import Recorded, depth_after, reorg, strike, withdraw
from bardo_pipeline.derivation.versions.rebuild import derive_everything
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.events.life.retractions import Cause
from bardo_pipeline.storage.projections.retracted_rows import withdrawals
from bardo_pipeline.storage.warehouse.build import build_warehouse

out = Console(soft_wrap=False, highlight=False)

Derive = Annotated[
    bool, typer.Option(help="Derive again at once, marts included; without, the curator's job does it when it runs.")
]


def add_to(app: typer.Typer) -> None:
    """Put these commands into `bardo`."""
    app.command("strike")(strike_record)
    app.command("reorg")(reorg_blocks)
    app.command("struck")(prove)


def strike_record(
    golem: Annotated[str, typer.Argument(help="The golem whose record it is.")],
    tick: Annotated[int, typer.Argument(min=1, help="The tick of the record.")],
    why: Annotated[str, typer.Option(help="What is wrong with it; it is recorded.")],
    home: HomeOption = None,
    derive: Derive = True,
    embedder: EmbedderOption = None,
) -> None:
    """Strike a poisoned record: from now on it counts as never having been, in heirs too. The log keeps it.

    A golem that is alive in a running fleet heeds it from the next cycle on.
    """
    stores = DerivationContext.open(root_of(home), embedder=embedder)
    _tell(strike(stores, golem, tick, why, now=now()))
    _derive(stores, derive)


def reorg_blocks(
    golem: Annotated[str, typer.Argument(help="The golem that saw the blocks.")],
    chain: Annotated[str, typer.Option(help="The chain that took them back, as the records name it.")],
    block_from: Annotated[int | None, typer.Option(min=0, help="The first block that was taken back.")] = None,
    block_to: Annotated[int | None, typer.Option(min=0, help="The last one.")] = None,
    tick_from: Annotated[int | None, typer.Option(min=1, help="Instead of blocks: the first tick.")] = None,
    tick_to: Annotated[int | None, typer.Option(min=1, help="Instead of blocks: the last tick.")] = None,
    home: HomeOption = None,
    derive: Derive = True,
    embedder: EmbedderOption = None,
) -> None:
    """Record that a chain took back blocks: the golem's records of them count as never having been.

    Says how deep a block must lie from now on: frequent reorgs raise it. The golem's next tick is deliberated in full.
    """
    stores = DerivationContext.open(root_of(home), embedder=embedder)
    blocks = _bounds("--block-from", block_from, "--block-to", block_to)
    ticks = _bounds("--tick-from", tick_from, "--tick-to", tick_to)
    _tell(reorg(stores, golem, chain, blocks=blocks, ticks=ticks, now=now()))
    depth, count = depth_after(stores, chain, golem)
    window = stores.policy.reorg.window_blocks
    out.print(f"{chain}: reorgs in the last {window:,} blocks: {count}; an action counts from {depth} confirmations on")
    _derive(stores, derive)


def _bounds(first_name: str, first: int | None, last_name: str, last: int | None) -> tuple[int, int] | None:
    if first is None and last is None:
        return None
    if first is None or last is None or last < first:
        raise ConfigError(f"{first_name} and {last_name} go together, the first not above the last")
    return first, last


def _tell(done: Recorded) -> None:
    ticks = ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in done.ticks)
    if not done.event_ids:
        out.print(f"golem {done.golem_id}: tick {ticks} counts as never having been already; nothing is recorded")
    else:
        out.print(f"golem {done.golem_id}: tick {ticks} counts as never having been ({', '.join(done.event_ids)})")
    for event in done.heirs:
        assert event.withdrawn is not None, "an heir loses knowledge"
        entries = event.withdrawn.entry_ids
        out.print(f"heir {event.golem_id} loses {len(entries)} entries: {', '.join(entries)}")


def _derive(stores: DerivationContext, wanted: bool) -> None:
    """Bring everything that stands up to what is left out now."""
    if not wanted:
        return
    with out.status("deriving again without it"):
        withdraw(stores, now=now())
        derive_everything(stores, now=now())
        complete_deaths(stores, now=now())
        refresh_index(stores)
        if stores.home.warehouse.exists():
            build_warehouse(stores.home, stores.derivation_id, stores.policy)


def prove(
    home: HomeOption = None,
    withdrawn: Annotated[bool, typer.Option(help="List what was taken back, row by row, and why.")] = False,
    format: FormatOption = "table",
    embedder: EmbedderOption = None,
) -> None:
    """Prove that nothing which stands names a struck record or rests on one; exit 1 and name what does.

    Looks into every projection, the index of episodes, playbooks and marts, of the golem and of its heirs. Published
    bundles keep their bytes: those that were made before are listed.
    """
    check_format(format)
    stores = DerivationContext.open(root_of(home), embedder=embedder)
    with out.status("looking for what is left"):
        found = remains(stores)
    causes, bundles = stores.left_out().causes, stale_bundles(stores)
    gone = withdrawals(stores.projections).to_pylist()
    if format == "json":
        told = {
            "proven": not found,
            "struck": [{**c._asdict(), "why": _whys(stores).get(c.event_id)} for c in causes],
            "bundles": [dict(zip(("golem_id", "bundle_hash"), one, strict=True)) for one in bundles],
            "withdrawn": gone,
            "remains": [one._asdict() for one in found],
        }
        print_json(told)
    else:
        _show(stores, causes, bundles, gone if withdrawn else [], found)
    if found:
        raise typer.Exit(1)


def _show(
    stores: DerivationContext,
    causes: tuple[Cause, ...],
    bundles: list[tuple[str, str]],
    gone: list[dict[str, object]],
    found: list[Remains],
) -> None:
    whys = _whys(stores)
    rows = [(c.golem_id, c.said, whys.get(c.event_id, ""), c.event_id) for c in causes]
    if rows:
        print_table(out, "Counts as never having been", ["golem", "what", "why", "id"], rows)
    if bundles:
        print_table(out, "Published before; they keep their bytes", ["golem", "bundle"], list(bundles))
    if gone:
        names = ["table_name", "golem_id", "row_name", "row_count", "made_again", "because"]
        print_table(out, "Taken back", names, [tuple(row[n] for n in names) for row in gone])
    if found:
        names = ["where", "golem", "row", "what is wrong"]
        print_table(out, "Still stands, and should not", names, [tuple(one) for one in found])
    else:
        said = f"nothing that stands rests on what these {len(causes)} leave out" if causes else "nothing is struck"
        out.print(said)


def _whys(stores: DerivationContext) -> dict[str, str]:
    """Event to its reason, as the operator gave it or as the chain did."""
    out = {}
    for kind in ("RecordStruck", "ReorgObserved", "KnowledgeWithdrawn"):
        for row in stores.life(kind).select(["event_id", "struck", "reorg", "withdrawn"]).to_pylist():
            if row["struck"]:
                out[row["event_id"]] = row["struck"]["why"]
            elif row["reorg"]:
                out[row["event_id"]] = "blocks {block_from} to {block_to} of {chain}".format(**row["reorg"])
            else:
                out[row["event_id"]] = "tick {tick} of {from_golem_id} ({because})".format(**row["withdrawn"])
    return out
