"""`bardo search`: search entries and episodes of all golems."""

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
"""Columns: rank, score, share left after decay, number of holders, id and text of the best holder's row."""


def search_all(
    words: Annotated[str, typer.Argument(help='Words to search, for example "gas in a crash".')],
    home: HomeOption = None,
    store: Annotated[str, typer.Option(help="entries, episodes or both.")] = "both",
    golem: Annotated[str | None, typer.Option(help="Only texts of this golem.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only entries of this kind.")] = None,
    category: Annotated[str | None, typer.Option(help="Only entries of this category.")] = None,
    domain: Annotated[str | None, typer.Option(help="Only entries of this domain.")] = None,
    regime: Annotated[str | None, typer.Option(help="Only entries of this regime.")] = None,
    status: Annotated[str, typer.Option(help="Only entries with this status; any for all.")] = "active",
    min_confidence: Annotated[float, typer.Option(help="Only entries of at least this confidence, 0 to 1.")] = 0.0,
    chain: Annotated[str | None, typer.Option(help="Only texts about this chain.")] = None,
    pair: Annotated[str | None, typer.Option(help="Only texts about this pair.")] = None,
    tool: Annotated[str | None, typer.Option(help="Only entries about this tool.")] = None,
    limit: Annotated[int | None, typer.Option(help="Maximum number of texts (default 10, at most 50).")] = None,
    decay: Annotated[bool, typer.Option(help="Rank faded entries lower.")] = True,
    json: JsonOption = False,
    embedder: EmbedderOption = None,
) -> None:
    """Search entries and episodes by words and by meaning."""
    filters = Filters(
        kind=kind, category=category, domain=domain, regime=regime, status=None if status == "any" else status,
        chain=chain, pair=pair, tool=tool, confidence_min=min_confidence,
    )  # fmt: skip
    stores = DerivationContext.open(root_of(home), embedder=embedder)
    hits = search(
        stores, words, now=now(), store=store, golem_id=golem, filters=filters, limit=limit, decay=decay
    ).to_pylist()
    if json:
        print_json(hits)
        return
    if hits:
        print_table(out, None, NAMES, [_row(hit) for hit in hits])
    else:
        out.print("no text was found", highlight=False)
    if at_us := newest_event_time_us(stores):
        moment = datetime.fromtimestamp(at_us / 1e6, UTC)
        out.print(f"As of {moment:%Y-%m-%d %H:%M}, log version {stores.log.version}.", highlight=False)
    else:
        out.print("No cycle is derived yet: `bardo run` or the curator job derives them.", highlight=False)
    warn_of_drift(out, stores)


def _row(hit: dict[str, Any]) -> tuple[Any, ...]:
    """Return a table row of a hit."""
    score, kept = f"{hit['score']:.4f}", f"{hit['retained']:.0%}"
    return (hit["rank"], score, kept, hit["holders"], hit["id"][:16], f"({hit['kind']}) {hit['text']}")
