"""`bardo eval recall`: measure which turns of conversations a search finds. Source: ADR 0095."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from pathlib import Path
from secrets import token_hex
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import orjson
from typer import Argument

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import now
from bardo_pipeline.cli.output.eval_report import report_progress
from bardo_pipeline.cli.output.tables import print_json, print_table
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.succession.birth_events import record_founder
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.tools.call_tool import call_tool
from bardo_pipeline.tools.memory_gate import MemoryGate
from bardo_pipeline.tools.tool_call import Caller

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
NAMES = ("category", "questions", "recall@5", "recall@10")


def recall(
    file: Annotated[Path, Argument(help="Conversations as JSON in LoCoMo's format.")], json: opt.Json = False
) -> None:
    """Store conversations as episodes of golems and print the share of evidence turns among the first results."""
    conversations, shares = conversations_in(file), defaultdict[str, list[list[float]]](list)
    with TemporaryDirectory(prefix="bardo-eval-") as home, report_progress(quiet=json) as on_progress:
        context = DerivationContext.open(Home.create(Path(home), Policy(), now()).root)
        born = partial(record_founder, context, None, owner_id="me", founding=Founding(("me",)), market="none")
        for name, episodes, questions in conversations:
            caller, gate = Caller(born(lineage_id=token_hex(8), at=now(), now=now())[0]), MemoryGate(enabled=True)
            call = partial(call_tool, context, caller, clock=now, ids=partial(token_hex, 8), gate=gate)
            turn_of: dict[str, str] = {}
            for turn, episode in episodes.items():
                turn_of[call("memory_store_episode", episode).document()["episode_id"]] = turn
                on_progress(name, len(turn_of) / len(episodes))
            for category, question, evidence in questions:
                turns = [turn_of[hit["id"]] for hit in call("memory_search", {"query": question}).document()["results"]]
                found = [len(evidence.intersection(turns[:count])) / len(evidence) for count in (5, 10)]
                shares[CATEGORIES.get(category, "other")].append(found)
        context.log.close()
    groups = [*sorted(shares.items()), ("all", [found for group in shares.values() for found in group])]
    rows = [
        (name, len(part), *(round(fmean(column), 3) for column in zip(*part, strict=True))) for name, part in groups
    ]
    if json:
        print_json([dict(zip(NAMES, row, strict=True)) for row in rows], indent=True)
    else:
        print_table(None, NAMES, rows)


def conversations_in(file: Path) -> list[tuple[str, dict[str, Any], list[tuple[int, str, set[str]]]]]:
    """Read names, episodes by turn, and questions with category and evidence; raise ConfigError for another file."""
    try:
        read = orjson.loads(file.read_bytes())
        conversations = [_conversation(sample) for sample in (read if isinstance(read, list) else [read])]
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"{file}: {error!r}: give a file in LoCoMo's format") from error
    if not any(questions for _, _, questions in conversations):
        raise ConfigError(f"{file}: no question names a turn of its conversation as evidence: give one that does")
    return conversations


def _conversation(sample: dict[str, Any]) -> tuple[str, dict[str, Any], list[tuple[int, str, set[str]]]]:
    """Read a conversation. Evidence that is no turn is left out, and so are questions without other evidence."""
    talk, episodes = sample["conversation"], {}
    for session in (f"session_{number}" for number in range(1, len(talk) + 1)):
        for turn in talk.get(session, ()):
            told = {"speaker": turn["speaker"], "session": session, "date": talk[f"{session}_date_time"]}
            told |= {"picture": turn["blip_caption"]} if "blip_caption" in turn else {}
            episodes[turn["dia_id"]] = {"tool": "chat", "outcome": told, "reflection": turn["text"], "chain": ""}
    asked = [(qa["category"], qa["question"], {*qa["evidence"]} & {*episodes}) for qa in sample["qa"]]
    return sample["sample_id"], episodes, [question for question in asked if question[2]]
