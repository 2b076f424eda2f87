"""Archive of a living golem's grimoire: export to a JSON file, import with low confidence.

An archive holds episodes, insights (the golem's own and the curator's entries) and strategies. Imported insights start
at 0.4, times 0.85 for each earlier crossing (canon 2). An imported strategy never replaces an own one.
Source: TOOLS (memory_export_grimoire, memory_import_grimoire), MEM-20.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import FailFast, Field, ValidationError

from bardo_pipeline.derivation.memory.free_texts import HeldText, texts_of_golem
from bardo_pipeline.errors import ToolError
from bardo_pipeline.events.experience.stored_text import StoredText
from bardo_pipeline.events.life.events import LifeEvent
from bardo_pipeline.events.life.tool_events import ArchiveImported, InsightManaged, StrategyStored
from bardo_pipeline.events.record.arrow_schema import MOMENT
from bardo_pipeline.events.record.model import Moment
from bardo_pipeline.grimoire.entries import CATEGORIES
from bardo_pipeline.inheritance.canonical_json import canonical
from bardo_pipeline.retrieval.insight_votes import KnownInsight
from bardo_pipeline.storage.home import make_folder, replace_file, writing_to
from bardo_pipeline.tools.consolidation import IMPORTED, consolidated_ids, decayed_episodes
from bardo_pipeline.tools.definition import Guidance, Tool
from bardo_pipeline.tools.insights import entry_insights, market_name, operation_count
from bardo_pipeline.tools.schemas import Arguments, Json, Label, Result, Statement, Words, WriteCounts
from bardo_pipeline.tools.strategies import newest_versions
from bardo_pipeline.tools.tool_call import ToolCall, json_text, text_fact

FORMAT = "bardo-grimoire/1"
_PARTS_MAX = 250_000  # a parser takes memory in proportion to them; an episode has two
_OF_ARCHIVE = "the archive holds a text that no home takes"


class ExportGrimoireArguments(Arguments):
    """Arguments of memory_export_grimoire."""

    include_decayed: bool = Field(False, description="Include decayed episodes; by default only active entries.")
    min_confidence: float = Field(0.0, ge=0, le=1, description="Minimum insight confidence to include.")


class ExportGrimoireResult(Result):
    """Result of memory_export_grimoire."""

    path: str = Field(description="Path of the archive, a JSON file in the home.")
    episodes_exported: int = Field(ge=0, description="Number of episodes.")
    insights_exported: int = Field(ge=0, description="Number of insights.")
    strategies_exported: int = Field(ge=0, description="Number of strategies, each in its newest version.")
    file_size_bytes: int = Field(ge=0, description="Size of the file.")


class ImportGrimoireArguments(Arguments):
    """Arguments of memory_import_grimoire."""

    path: Statement = Field(description="Path of the archive; a relative path is below the home's folder `archives`.")
    import_confidence: float = Field(
        0.4, ge=0, le=1, description="Override starting confidence for imported insights (default: 0.4)."
    )
    dry_run: bool = Field(False, description="Preview import without recording anything.")


class ImportGrimoireResult(Result):
    """Result of memory_import_grimoire."""

    episodes_imported: int = Field(ge=0, description="Number of episodes.")
    insights_imported: int = Field(ge=0, description="Number of insights; without those that the golem states already.")
    strategies_imported: int = Field(ge=0, description="Number of strategies.")
    confidence_override: float = Field(ge=0, le=1, description="Starting confidence of an insight's first crossing.")
    dry_run: bool = Field(description="Whether nothing was recorded.")
    dream_queued: bool = Field(description="Whether the next consolidation reads the imported episodes first.")
    counts: tuple[WriteCounts, ...] = Field(description="Texts, insights, strategies in the log before and after.")


class ArchivedEpisode(Result):
    """An episode or reflection of an archive."""

    sort: Literal["episode", "reflection"] = Field(description="episode or reflection.")
    at: Moment = Field(description="Moment of the episode.")
    text: Words = Field(description="Text.")
    reflection: Words | None = Field(None, description="Reflection beside the text.")
    tool: Label | None = Field(None, description="Executed tool.")
    outcome: Json = Field(None, description="Outcome.")
    importance: Literal["routine", "notable", "critical", "emergency"] = Field(description="Retention tier.")
    tags: Annotated[tuple[Label, ...], FailFast()] = Field((), description="Tags.")
    chain: Label | None = Field(None, description="Chain.")
    pair: Label | None = Field(None, description="Token pair.")
    session: Label | None = Field(None, description="Session of a conversation.")
    speaker: Label | None = Field(None, description="Speaker.")


class ArchivedInsight(Result):
    """An insight of an archive."""

    content: Statement = Field(description="Content.")
    category: Label = Field(description="Category.")
    confidence: float = Field(ge=0, le=1, description="Confidence at the export.")
    chain: Label | None = Field(None, description="Chain.")
    token_pair: Label | None = Field(None, description="Token pair.")
    crossings: int = Field(ge=0, le=1_000, description="Archives that the insight went through before this one.")
    structure: Words | None = Field(
        None,
        description="Tool, chain, pair and sign of an insight that a consolidation made, which a later one compares.",
    )


class ArchivedStrategy(Result):
    """The newest version of a strategy of an archive."""

    strategy_name: Label = Field(description="Name.")
    version: int = Field(ge=1, description="Version in the exporting home.")
    parameters: Json = Field(description="Parameters.")
    description: Words = Field(description="Description.")
    chains: Annotated[tuple[Label, ...], FailFast()] = Field(description="Chains.")
    token_pairs: Annotated[tuple[Label, ...], FailFast()] = Field(description="Token pairs.")


class GrimoireArchive(Result):
    """Content of an archive."""

    format: Literal["bardo-grimoire/1"] = Field(description="Format and its version.")
    golem_id: Label = Field(description="Golem whose grimoire it is.")
    exported_at: Moment = Field(description="Moment of the export.")
    episodes: Annotated[tuple[ArchivedEpisode, ...], FailFast()] = Field(description="In the order of their moments.")
    insights: Annotated[tuple[ArchivedInsight, ...], FailFast()] = Field(description="The most confident first.")
    strategies: Annotated[tuple[ArchivedStrategy, ...], FailFast()] = Field(description="By name.")


# export


def _export(call: ToolCall, arguments: ExportGrimoireArguments) -> ExportGrimoireResult:
    archive = GrimoireArchive(
        format=FORMAT,
        golem_id=call.golem_id,
        exported_at=call.at,
        episodes=tuple(_episodes(call, arguments.include_decayed)),
        insights=tuple(_insights(call, arguments.min_confidence)),
        strategies=tuple(_strategies(call)),
    )
    content = canonical(archive.model_dump())
    packed = canonical({"content_hash": hashlib.sha256(content).hexdigest(), "grimoire": archive.model_dump()})
    path = call.context.home.archive_folder(call.golem_id) / f"{hashlib.sha256(content).hexdigest()[:16]}.json"
    with writing_to(path):
        make_folder(path.parent)
        replace_file(path, packed)
    return ExportGrimoireResult(
        path=str(path),
        episodes_exported=len(archive.episodes),
        insights_exported=len(archive.insights),
        strategies_exported=len(archive.strategies),
        file_size_bytes=path.stat().st_size,
    )


def _episodes(call: ToolCall, include_decayed: bool) -> list[ArchivedEpisode]:
    """Return the golem's own texts and the episodes of its records."""
    left_out = set() if include_decayed else {*decayed_episodes(call), *consolidated_ids(call, "decayed_ids")}
    texts = texts_of_golem(call.context, call.golem_id, ("episode", "reflection"), now=call.at)
    episodes = [_archived(text) for text in texts if text.text_id not in left_out]
    episodes += _record_episodes(call, include_decayed)
    return sorted(episodes, key=lambda episode: (episode.at, episode.text))


def _archived(text: HeldText) -> ArchivedEpisode:
    stored = dict(text.stored)
    outcome = None if stored["outcome"] is None else orjson.loads(stored["outcome"])
    names = ("sort", "text", "reflection", "tool", "importance", "tags", "chain", "pair", "session", "speaker")
    return ArchivedEpisode(at=text.at, outcome=outcome, **{name: stored[name] for name in names})


def _record_episodes(call: ToolCall, include_decayed: bool) -> Iterator[ArchivedEpisode]:
    """Yield the derived episodes of the golem's records; `may_go_at` is the moment of their decay."""
    columns = ["golem_id", "tick", "at", "text", "importance_tier", "chain", "pair", "may_go_at"]
    rows = call.context.projections.growing("episodes").read(columns, golems=[call.golem_id])
    kept = ~call.context.left_out().records(rows["golem_id"], rows["tick"].to_numpy())
    rows = rows.filter(pa.array(kept))
    if rows.num_rows and not include_decayed:
        rows = rows.filter(pc.greater(rows["may_go_at"], pc.max(rows["at"]).cast(MOMENT)))
    for row in rows.sort_by([("at", "ascending"), ("tick", "ascending")]).to_pylist():
        yield ArchivedEpisode(
            sort="episode", at=row["at"], text=row["text"], importance=row["importance_tier"],
            chain=market_name(row["chain"]), pair=market_name(row["pair"]),
        )  # fmt: skip


def _insights(call: ToolCall, confidence_min: float) -> list[ArchivedInsight]:
    """Return the golem's insights and its active entries."""
    own = [_archived_insight(insight) for insight in call.insights().values()]
    entries = [
        ArchivedInsight(
            content=entry.content, category=entry.category, confidence=entry.confidence, chain=entry.chain,
            token_pair=entry.token_pair, crossings=0,
        )
        for entry in entry_insights(call)
    ]  # fmt: skip
    kept = [insight for insight in own + entries if insight.confidence >= confidence_min]
    return sorted(kept, key=lambda insight: (-insight.confidence, insight.content))


def _archived_insight(insight: KnownInsight) -> ArchivedInsight:
    return ArchivedInsight(
        content=insight.content, category=insight.category, confidence=insight.confidence, chain=insight.chain,
        token_pair=insight.token_pair, crossings=insight.crossings, structure=insight.structure,
    )  # fmt: skip


def _strategies(call: ToolCall) -> Iterator[ArchivedStrategy]:
    for name, row in sorted(newest_versions(call).items()):
        yield ArchivedStrategy(
            strategy_name=name, version=row["version"], parameters=orjson.loads(row["parameters"]),
            description=row["description"], chains=row["chains"], token_pairs=row["token_pairs"],
        )  # fmt: skip


# import


def _import(call: ToolCall, arguments: ImportGrimoireArguments) -> ImportGrimoireResult:
    content_hash, archive = read_archive(call, arguments.path)
    known = call.contents("ArchiveImported", content_hash=content_hash)
    if known:
        at = known[0]["at"].isoformat()
        raise ToolError(f"golem {call.golem_id} imported this archive at {at} already: name another archive")
    held = {insight.content for insight in call.insights().values()}
    archive = archive.model_copy(update={"insights": tuple(i for i in archive.insights if i.content not in held)})
    events = _imported_events(call, archive, arguments.import_confidence)
    fact = ArchiveImported(
        content_hash=content_hash, from_golem_id=archive.golem_id, episode_count=len(archive.episodes),
        insight_count=len(archive.insights), strategy_count=len(archive.strategies),
        confidence=arguments.import_confidence,
    )  # fmt: skip
    summary = f"Imported {len(archive.episodes)} episodes, {len(archive.insights)} insights, "
    counts = call.record_events(
        [] if arguments.dry_run else [*events, call.event(fact)],
        f"{summary}{len(archive.strategies)} strategies",
        counted=("TextStored", "InsightManaged", "StrategyStored", "ArchiveImported"),
    )
    return ImportGrimoireResult(
        episodes_imported=len(archive.episodes),
        insights_imported=len(archive.insights),
        strategies_imported=len(archive.strategies),
        confidence_override=arguments.import_confidence,
        dry_run=arguments.dry_run,
        dream_queued=not arguments.dry_run,
        counts=counts,
    )


def read_archive(call: ToolCall, path: str) -> tuple[str, GrimoireArchive]:
    """Return hash and content of an archive.

    Raises ToolError for a file that the caller may not read, that is too large, or that is no unaltered archive. The
    message quotes nothing of the file.
    """
    file = _readable(call, path)
    with file.open("rb") as opened:
        raw = opened.read(call.context.policy.tools.archive_bytes_max + 1)
    limit = call.context.policy.tools.archive_bytes_max
    if len(raw) > limit or raw.count(b"[") + raw.count(b"{") > _PARTS_MAX:
        most = f"{limit:,} bytes, or than {_PARTS_MAX:,} lists and objects"
        raise ToolError(f"{path} is larger than {most}: export fewer entries (min_confidence)")
    try:
        packed = orjson.loads(raw)
        archive = GrimoireArchive.model_validate(packed["grimoire"])  # shares its texts; an error from JSON copies all
        stated_hash, content = packed["content_hash"], canonical(packed["grimoire"])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValidationError):
        raise ToolError(f"{path} is no archive of a grimoire: name a file that memory_export_grimoire wrote") from None
    content_hash = hashlib.sha256(content).hexdigest()
    if content_hash != stated_hash:
        raise ToolError(f"{path} was altered after its export: export the grimoire again")
    return content_hash, archive


def _readable(call: ToolCall, path: str) -> Path:
    """Return the file of a path. An owner reads only archives of its own golems in the home."""
    home, owner = call.context.home, call.caller.owner
    missing = ToolError(
        f"{path}: there is no archive at this path that the caller may read: export one, and name its path"
    )
    try:
        file = (home.archives / path).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):
        raise missing from None
    golems = call.context.ownership().golems
    own_folders = [home.archive_folder(golem).resolve() for golem, of in golems.items() if of == owner]
    if not file.is_file() or (owner is not None and file.parent not in own_folders):
        raise missing
    return file


def _imported_events(call: ToolCall, archive: GrimoireArchive, confidence: float) -> list[LifeEvent]:
    """Return the events of an import, a microsecond apart, so that equal texts stay apart."""
    events: list[LifeEvent] = []
    attenuation = call.context.policy.inheritance.attenuation
    for episode in archive.episodes:
        events.append(call.event(_imported_text(episode), len(events)))
    number = operation_count(call)
    for insight in archive.insights:
        number += 1
        category = insight.category if insight.category in CATEGORIES else "general"
        text = text_fact(
            _OF_ARCHIVE, insight.content, sort="insight", category=category, chain=insight.chain,
            pair=insight.token_pair,
        )  # fmt: skip
        event = call.event(text, len(events))
        added = InsightManaged(
            number=number, insight_id=event.event_id, operation="ADD", content=insight.content, category=category,
            chain=insight.chain, token_pair=insight.token_pair, source="import", text_id=event.event_id,
            confidence=confidence * attenuation**insight.crossings, structure=insight.structure, evidence=(),
            crossings=insight.crossings + 1, reason=f"imported from golem {archive.golem_id}",
        )  # fmt: skip
        events += [event, call.event(added, len(events))]
    events += [call.event(fact, len(events)) for fact in _imported_strategies(call, archive)]
    return events


def _imported_text(episode: ArchivedEpisode) -> StoredText:
    names = ("sort", "reflection", "tool", "outcome", "importance", "chain", "pair", "session", "speaker")
    fields = {name: getattr(episode, name) for name in names}
    tags = (*(t for t in episode.tags if t != IMPORTED), IMPORTED)
    return text_fact(_OF_ARCHIVE, episode.text, **fields, tags=tags, told_at=episode.at)


def _imported_strategies(call: ToolCall, archive: GrimoireArchive) -> Iterator[StrategyStored]:
    """Yield the strategies of an archive. The name of an own strategy gets the exporting golem's id appended."""
    own = newest_versions(call)
    for strategy in archive.strategies:
        name, newest = strategy.strategy_name, own.get(strategy.strategy_name)
        if newest is not None and newest["from_golem_id"] is None:
            name = f"{name[:200]} ({archive.golem_id[:50]})"
            newest = own.get(name)
        yield StrategyStored(
            strategy_name=name,
            version=1 if newest is None else newest["version"] + 1,
            description=strategy.description,
            parameters=json_text(strategy.parameters, "parameters"),
            chains=strategy.chains,
            token_pairs=strategy.token_pairs,
            from_golem_id=archive.golem_id,
        )


EXPORT_GRIMOIRE = Tool(
    name="memory_export_grimoire",
    summary="Export complete Grimoire (episodes + insights + strategies) as JSON. Backup and successor inheritance.",
    capability="read",
    tick_budget="medium",
    steps=("Exporting episodes", "Exporting insights", "Exporting strategies", "Writing archive"),
    guidance=Guidance(
        thriving="Export periodically as backup.",
        cautious="Export more frequently. Prepare for potential succession.",
        declining="Export as preparation for death testament.",
        terminal="Final export. This becomes the predecessor Grimoire for the successor Golem.",
    ),
    arguments=ExportGrimoireArguments,
    result=ExportGrimoireResult,
    run=_export,
)

IMPORT_GRIMOIRE = Tool(
    name="memory_import_grimoire",
    summary="Import Grimoire from predecessor (Becoming Bardo). Imported entries start at 0.4 confidence (Whitehead's "
    "negative prehension). They need active validation before being trusted.",
    capability="write",
    tick_budget="slow",
    steps=("Reading archive", "Importing episodes", "Importing insights", "Importing strategies"),
    guidance=Guidance(
        thriving="Import only during initialization (Becoming Bardo).",
        cautious="Import only during initialization (Becoming Bardo).",
        declining="Not applicable.",
        terminal="Not applicable.",
    ),
    arguments=ImportGrimoireArguments,
    result=ImportGrimoireResult,
    run=_import,
)
