"""Output of the commands in cli/app.py. Functions only read tables, except `gap_accepted` and `rebuilt`."""

from __future__ import annotations

import csv
import sys
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import pyarrow.compute as pc
from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

from bardo_pipeline.cli.options import check_format, moment_of, require_born
from bardo_pipeline.cli.output.tables import percent, print_json, print_table
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.derive_episodes import refresh_index, similar_episodes
from bardo_pipeline.derivation.reports.lineage import WITHDRAWN, Holding, lineage_of
from bardo_pipeline.derivation.versions.rebuild import rebuild
from bardo_pipeline.errors import ConfigError, QueryError
from bardo_pipeline.events.life.events import Gap, life_event
from bardo_pipeline.runtime.run_settings import Ending
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.warehouse.build import query

SHOWN_DECISIONS = 6
SHOWN_TICKS = 12


def ending(out: Console, end: Ending) -> None:
    """Print the counts of a finished run in one line."""
    refused = f", {end.refused} refused" if end.refused else ""
    out.print(
        f"[bold]{end.records:,}[/] records; {end.births} golems born, {end.deaths} died, "
        f"{end.published} bundles published{refused}",
        highlight=False,
    )


def fleet(out: Console, root: Path) -> None:
    """Print golems by lineage with predecessor, lifetime and cause of death."""
    names, rows = query(Home.open(root), FLEET_SQL)
    print_table(out, "Lineages", names, rows)


FLEET_SQL = """
select golem_id as golem, generation as gen, owner_id as owner, coalesce(predecessor_id, '-') as heir_of,
ticks_lived as ticks,
       coalesce(cause, 'alive') as fate, knowledge_at_birth as knew, knowledge_at_death as left
from dim_golem order by lineage_id, generation
"""

LEARNED_SQL = """
select kind, text, count(*) as golems, round(100 * avg(confidence), 0)::int as confidence, max(generation) as
generations from fct_knowledge where source = 'pattern' group by all order by golems desc, confidence desc, text limit 6
"""


OLDEST_RULE_SQL = """
select entry_id from fct_knowledge where source = 'pattern' order by generation desc, confidence desc, entry_id limit 1
"""


def learned(out: Console, root: Path) -> None:
    """Print the six rules that most golems hold."""
    names, rows = query(Home.open(root), LEARNED_SQL)
    print_table(out, "Learned rules that most golems hold", names, rows)


def next_steps(out: Console, root: Path) -> None:
    """Print commands to try next."""
    _, rows = query(Home.open(root), OLDEST_RULE_SQL)
    entry = rows[0][0][:10] if rows else "ENTRY"
    out.print(
        f'Next: bardo status | bardo sql "from fct_deaths" | bardo lineage {entry} | bardo rebuild | bardo ui',
        highlight=False,
    )


def answer(out: Console, root: Path, sql: str, format: str, limit: int | None) -> None:
    """Print the result of a query as a table, CSV or JSON."""
    names, rows = query(Home.open(root), sql, limit)
    if format == "json":
        print_json([dict(zip(names, r, strict=True)) for r in rows])
    elif format == "csv":
        writer = csv.writer(sys.stdout)
        writer.writerow(names)
        writer.writerows(rows)
    elif format == "table":
        print_table(out, None, names, rows)
    else:
        raise ConfigError(f"--format {format!r}: table, csv or json")


def lineage(out: Console, root: Path, entry: str, golem: str | None, format: str, embedder: str | None) -> None:
    """Print the lineage of an entry, from ticks through generations, as a tree or JSON."""
    check_format(format, text="tree")
    holdings = lineage_of(DerivationContext.open(root, embedder=embedder), entry, golem)
    if format == "json":
        print_json([asdict(h) for h in holdings])
        return
    first = holdings[0]
    tree = Tree(f"[bold]{first.entry_id}[/] {escape(first.text)}")
    for held in holdings:
        _branch(tree, held)
    out.print(tree)


def _branch(tree: Tree, held: Holding) -> None:
    origin = (
        f", received from {held.from_golem_id} in bundle {held.bundle_hash[:12]}"
        if held.bundle_hash
        else ", its own experience"
    )
    trust = percent(held.confidence_ppm)
    label = f"(generation {held.generation}): {held.kind}, {held.status}, {trust}{origin}"
    branch = tree.add(f"[bold]{escape(held.golem_id)}[/] {escape(label)}")
    for reason in held.because:
        branch.add(escape(f"withdrawn: {reason}" if held.status == WITHDRAWN else f"derived again: {reason}"))
    decisions = branch.add(f"{len(held.decisions)} decisions")
    for d in held.decisions[-SHOWN_DECISIONS:]:
        ticks = ", ".join(str(tick) for tick in d["cause_ticks"][:8]) + (", …" if len(d["cause_ticks"]) > 8 else "")
        moved = f"{d['confidence_before_ppm'] / 1e4:.0f} → {d['confidence_ppm'] / 1e4:.0f} %"
        decisions.add(
            escape(
                f"cycle {d['cycle']}: {d['operation']} ({moved}); {d['reason']}" + (f"; ticks {ticks}" if ticks else "")
            )
        )
    if held.ticks:
        ticks_branch = branch.add(f"{len(held.ticks)} ticks")
        for tick in held.ticks[:SHOWN_TICKS]:
            events = "; ".join(
                [*tick.actions, *(f"acting vs holding: {e:+,} ppm" for e in tick.effects_ppm), *tick.transactions]
            )
            ticks_branch.add(
                escape(
                    f"tick {tick.tick}, {tick.observed_at:%Y-%m-%d %H:%M}, {tick.regime}, {tick.tier}"
                    + (f": {events}" if events else "")
                )
            )
        if len(held.ticks) > SHOWN_TICKS:
            ticks_branch.add(f"… {len(held.ticks) - SHOWN_TICKS} more (--format json has all)")


def similar(
    out: Console, root: Path, text: str, golem: str | None, limit: int, format: str, embedder: str | None
) -> None:
    """Update the episode index and print the episodes most similar to a text, best first.

    Raises QueryError for an unknown golem, or if there are no episodes yet.
    """
    check_format(format)
    stores = DerivationContext.open(root, embedder=embedder)
    require_born(stores, golem)
    episodes = stores.projections.growing("episodes")
    if not episodes.digest().rows:
        raise QueryError(
            f"there are no episodes of {stores.embedder_name} yet: `bardo run` or the curator job derives them"
        )
    with out.status("updating the episode index"):
        refresh_index(stores)
    matches = similar_episodes(stores, text, None if golem is None else [golem], limit)
    moments = episodes.read(["episode_id", "at"], golems=matches["golem_id"].unique().to_pylist())
    index = pc.index_in(matches["episode_id"], value_set=moments["episode_id"].combine_chunks())
    rows = matches.select(["episode_id", "text", "score"]).add_column(1, "at", moments["at"].take(index)).to_pylist()
    if format == "json":
        print_json(rows)
    else:
        cells = [(r["episode_id"], f"{r['at']:%Y-%m-%d %H:%M}", r["text"], r["score"]) for r in rows]
        print_table(out, None, ["episode", "when", "text", "score"], cells)


def gap_accepted(out: Console, root: Path, golem: str, ticks: tuple[int, int], why: str, now: datetime) -> None:
    """Record that missing ticks are lost. Raises QueryError unless all these ticks are missing."""
    stores = DerivationContext.open(root)
    missing = [
        g for g in stores.log.gaps() if g.golem_id == golem and g.tick_from <= ticks[0] and ticks[1] <= g.tick_to
    ]
    if not missing or ticks[0] > ticks[1]:
        raise QueryError(
            f"golem {golem}: ticks {ticks[0]} to {ticks[1]} are not all missing: `bardo status` lists the gaps"
        )
    stores.log.record([life_event(golem, now, Gap(tick_from=ticks[0], tick_to=ticks[1], why=why))], now)
    out.print(f"golem {golem}: ticks {ticks[0]} to {ticks[1]} are accepted as lost")


def rebuilt(
    out: Console, root: Path, as_of: str | None, version: int | None, now: datetime, embedder: str | None
) -> bool:
    """Rebuild in a separate folder, print each table's two fingerprints; return whether all are equal."""
    stores = DerivationContext.open(root, embedder=embedder)
    with out.status("deriving every table again") as spinner:
        comparisons = rebuild(
            stores,
            now=now,
            moment=None if as_of is None else moment_of(as_of, "--as-of"),
            version=version,
            tell=lambda n: spinner.update(f"deriving again: {n}"),
        )
    rows = [
        (c.table, c.row_count, c.fingerprint[:16], c.rebuilt_fingerprint[:16], "equal" if c.equal else "DIFFERENT")
        for c in comparisons
    ]
    print_table(out, "Rebuilt and active tables", ["table", "rows", "in force", "rebuilt", ""], rows)
    return all(c.equal for c in comparisons)
