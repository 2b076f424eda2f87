"""`bardo ask | search | similar`: entries and episodes for a text; `bardo drift | reembed`: the embedding model."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from threading import Thread
from typing import Annotated

from rich.progress import MofNCompleteColumn
from typer import Argument, Exit, Option

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import inspected, moment_of, now, open_context, open_whole
from bardo_pipeline.cli.output.answers import show_hits, show_warning
from bardo_pipeline.cli.output.rendering import show_report
from bardo_pipeline.cli.output.tables import err, out, print_json, print_table, progress_bar, say, spinner
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.ask import answer_facts, ask, golem_moment
from bardo_pipeline.derivation.memory.derive_episodes import similar_with_times
from bardo_pipeline.derivation.memory.embed_texts import check_drift, drift_warning, suspect_count
from bardo_pipeline.derivation.memory.search import newest_event_time_us, search, search_table
from bardo_pipeline.derivation.versions.embedder_migration import reembed
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.retrieval.hybrid_search import Filters
from bardo_pipeline.storage.log.embedding_table import Checked


def ask_golem(
    golem: Annotated[str, Argument(help="Golem id.")],
    question: Annotated[str, Argument(help='Question, for example "should I re-centre in a falling trend?"')],
    home: opt.Home = None,
    k: Annotated[int | None, Option("--k", help="Number of entries (default: the policy's five).")] = None,
    regime: Annotated[str | None, Option(help="Assume this market regime.")] = None,
    at: Annotated[
        str | None, Option("--at", help="Event time of the question (ISO 8601, UTC; default: the newest).")
    ] = None,
    tick: Annotated[int | None, Option(help="Tick of the golem's life instead of a moment.")] = None,
    clade: Annotated[bool, Option(help="Include entries of the owner's other golems at a discounted score.")] = False,
    may_skip: Annotated[bool, Option(help="Let the golem skip retrieval, as in its own ticks.")] = False,
    json: opt.Json = False,
    embedder: opt.Embedder = None,
) -> None:
    """Ask a golem: print its highest-scoring entries for a question, with each factor of the score."""
    if at is not None and tick is not None:
        raise ConfigError("--at and --tick exclude each other: give one of them")
    stores = inspected(home, embedder)
    Thread(target=_load_model, args=(stores,)).start()
    moment = golem_moment(stores, golem, at=None if at is None else moment_of(at, "--at"), tick=tick)
    moment = moment if regime is None else moment.in_regime(regime)
    answer = ask(stores, moment, question, now=now(), k=k, clade=clade, may_skip=may_skip)
    facts = {**answer_facts(moment, answer, stores.policy), "hits": answer.hits.to_pylist()}
    show_report("ask", facts, as_json=json)
    if not json:
        show_warning(drift_warning(stores))


def _load_model(stores: DerivationContext) -> None:
    """Load the embedding model, which takes a fifth of a command, while another thread reads tables.

    The thread that needs the model waits for it, and states the error of one that cannot be loaded.
    """
    with suppress(Exception):
        _ = stores.embedder


def search_all(
    words: Annotated[str, Argument(help='Words to search, for example "gas in a crash".')],
    home: opt.Home = None,
    store: Annotated[str, Option(help="entries, episodes or both.")] = "both",
    golem: Annotated[str | None, Option(help="Only texts of this golem.")] = None,
    kind: Annotated[str | None, Option(help="Only entries of this kind.")] = None,
    category: Annotated[str | None, Option(help="Only entries of this category.")] = None,
    domain: Annotated[str | None, Option(help="Only entries of this domain.")] = None,
    regime: Annotated[str | None, Option(help="Only entries of this regime.")] = None,
    status: Annotated[str, Option(help="Only entries with this status; any for all.")] = "active",
    min_confidence: Annotated[float, Option(help="Only entries of at least this confidence, 0 to 1.")] = 0.0,
    chain: Annotated[str | None, Option(help="Only texts about this chain.")] = None,
    pair: Annotated[str | None, Option(help="Only texts about this pair.")] = None,
    tool: Annotated[str | None, Option(help="Only entries about this tool.")] = None,
    limit: Annotated[int | None, Option(help="Maximum number of texts (default 10, at most 50).")] = None,
    decay: Annotated[bool, Option(help="Rank faded entries lower.")] = True,
    json: opt.Json = False,
    embedder: opt.Embedder = None,
) -> None:
    """Search entries and episodes by words and by meaning."""
    filters = Filters(
        kind=kind, category=category, domain=domain, regime=regime, status=None if status == "any" else status,
        chain=chain, pair=pair, tool=tool, confidence_min=min_confidence,
    )  # fmt: skip
    stores = inspected(home, embedder)
    rows = search(stores, words, now=now(), store=store, golem_id=golem, filters=filters, limit=limit, decay=decay)
    hits = search_table(rows).to_pylist()
    if json:
        print_json(hits)
        return
    show_hits(hits, newest_event_time_us(stores), stores.log.version)
    show_warning(drift_warning(stores))


def similar(
    text: Annotated[str, Argument(help='Text to compare with, for example "gas spiked in a crash".')],
    home: opt.Home = None,
    golem: Annotated[str | None, Option(help="Only episodes of this golem.")] = None,
    limit: Annotated[int, Option(min=1, max=1_000_000, help="Maximum number of episodes with distinct texts.")] = 5,
    format: opt.Format = "table",
    embedder: opt.Embedder = None,
) -> None:
    """Find the episodes most similar to a text, by meaning and by words."""
    stores = open_context(home, embedder)
    with err.status("updating the episode index"):
        episodes = similar_with_times(stores, text, golem, limit)
    show_report("similar", episodes, as_json=format == "json")


def drift(
    home: opt.Home = None,
    check: Annotated[bool, Option("--check", help="Check now and record the result.")] = False,
    last: Annotated[int, Option(min=1, help="Number of newest checks to show.")] = 10,
    format: opt.Format = "table",
    embedder: opt.Embedder = None,
) -> None:
    """Show checks of the embedding model against its recorded vectors; exit 1 if the newest is critical."""
    stores = open_whole(home, embedder)
    if check:
        with spinner("embedding the reference texts", quiet=format == "json"):
            check_drift(stores, now=now())
    checks = stores.embedding_log.checks(name=stores.embedder_name)
    if format == "json":
        print_json([asdict(c) for c in checks[-last:]])
    elif not checks:
        out.print(f"{stores.embedder_name} was never checked: `bardo drift --check` or the next embedding checks it")
    else:
        names = ["when", "verdict", "furthest", "mean", "kept", "lengths", "says"]
        print_table(f"{stores.embedder_name} and its recorded vectors", names, [_checked(c) for c in checks[-last:]])
    if checks and checks[-1].drift.verdict == "critical":
        if format == "table":
            say(
                f"Embedding is paused; {suspect_count(stores):,} vectors were made since the last passed check. "
                "Restore the model and check again, or run `bardo reembed`."
            )
        raise Exit(1)


def _checked(check: Checked) -> tuple[object, ...]:
    result = check.drift
    return (
        f"{check.at:%Y-%m-%d %H:%M}",
        result.verdict,
        f"{result.distance_max_ppm / PPM:.4f}",
        f"{result.distance_mean_ppm / PPM:.4f}",
        f"{result.neighbours_ppm / PPM:.0%}",
        f"{result.norm_variance_ppm / PPM:.4g}",
        "; ".join(result.says),
    )


def reembed_everything(
    model: Annotated[
        str | None, Option(help="minilm, minilm-int8 or nomic (default: continue a migration, else the same model).")
    ] = None,
    again: Annotated[bool, Option("--again", help="Embed again with the same model, even without drift.")] = False,
    home: opt.Home = None,
) -> None:
    """Embed all texts with another model in a separate derivation; switch when it is complete.

    If interrupted, the old model stays active; running the command again continues.
    """
    stores = open_whole(home)
    with progress_bar(out, MofNCompleteColumn()) as progress:
        task = progress.add_task("opening the model", total=None)

        def on_progress(step: str, done: int, count: int) -> None:
            progress.update(task, description=step, completed=done, total=count or None)

        migration = reembed(stores, model, again=again, now=now(), on_progress=on_progress)
    say(
        f"{migration.new} is active instead of {migration.old}: {migration.episodes:,} episodes of {migration.texts:,} "
        f"texts, derivation {migration.derivation_id}{' (resumed)' if migration.resumed else ''}"
    )
