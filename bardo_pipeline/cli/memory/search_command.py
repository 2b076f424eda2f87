"""Searching at the door: the command `bardo search`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console

from bardo_pipeline.cli.memory.embeddings_command import warn_of_drift
from bardo_pipeline.cli.options import EmbedderOption, HomeOption, JsonOption, now, root_of
from bardo_pipeline.cli.output.tables import print_json, print_table
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.search import newest_event_time_us, search
from bardo_pipeline.retrieval.hybrid_search import Filters

out = Console(soft_wrap=False)

NAMES = ["#", "score", "kept", "held by", "id", "text"]
"""Rank, score, what decay has left of it, how many hold the text, whose best is shown."""


def add_to(app: typer.Typer) -> None:
    """Add the command that searches."""
    app.command("search")(search_all)


def search_all(
    words: Annotated[str, typer.Argument(help='What to look for, for example "gas in a crash".')],
    home: HomeOption = None,
    store: Annotated[str, typer.Option(help="entries, episodes or both.")] = "both",
    golem: Annotated[str | None, typer.Option(help="Only what this golem holds.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only entries of this kind.")] = None,
    category: Annotated[str | None, typer.Option(help="Only entries of this category.")] = None,
    domain: Annotated[str | None, typer.Option(help="Only entries of this domain.")] = None,
    regime: Annotated[str | None, typer.Option(help="Only entries of this regime.")] = None,
    status: Annotated[str, typer.Option(help="Only entries that stand so; any for all.")] = "active",
    min_confidence: Annotated[float, typer.Option(help="Only entries published with this confidence, 0 to 1.")] = 0.0,
    chain: Annotated[str | None, typer.Option(help="Only what concerns this chain.")] = None,
    pair: Annotated[str | None, typer.Option(help="Only what concerns this pair.")] = None,
    tool: Annotated[str | None, typer.Option(help="Only entries about this tool.")] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many texts (default 10, at most 50).")] = None,
    decay: Annotated[bool, typer.Option(help="What faded ranks lower.")] = True,
    json: JsonOption = False,
    embedder: EmbedderOption = None,
) -> None:
    """Search entries and episodes by words and by meaning."""
    filters = Filters(
        kind=kind,
        category=category,
        domain=domain,
        regime=regime,
        status=None if status == "any" else status,
        chain=chain,
        pair=pair,
        tool=tool,
        confidence_min=min_confidence,
    )
    stores = DerivationContext.open(root_of(home), embedder=embedder)
    found = search(
        stores, words, now=now(), store=store, golem_id=golem, filters=filters, limit=limit, decay=decay
    ).to_pylist()
    if json:
        print_json(found)
        return
    if found:
        print_table(out, None, NAMES, [_row(hit) for hit in found])
    else:
        out.print("nothing was found", highlight=False)
    if at_us := newest_event_time_us(stores):
        moment = datetime.fromtimestamp(at_us / 1e6, UTC)
        out.print(f"As of {moment:%Y-%m-%d %H:%M}, log version {stores.log.version}.", highlight=False)
    else:
        out.print("No cycle is derived yet: `bardo run` or the curator job does it.", highlight=False)
    warn_of_drift(out, stores)


def _row(hit: dict[str, Any]) -> tuple[Any, ...]:
    """A text found, as a row."""
    score, kept = f"{hit['score']:.4f}", f"{hit['retained']:.0%}"
    return (hit["rank"], score, kept, hit["holders"], hit["id"][:16], f"({hit['kind']}) {hit['text']}")
