"""Notices: what owners are told of deaths and of heirs that do not come, posted to the environment's webhook, each at
least once.

Of a death it is part of the last phase of dying (LegacyLeft), of a succession the step that ended it or goes on failing
(SuccessionAdvanced); so it is on record whether anybody hears of it or not. What was posted is kept beside the indexes;
where that is lost, notices are posted again, under the same event id.
Source: MEM ("a notification webhook", "No golem dies silent"), INH S13 ("Owner notified"); INH-4, INH-18.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.death_queries import owners_of
from bardo_pipeline.errors import ConfigError, NoticeError

WEBHOOK = "BARDO_WEBHOOK"

Post = Callable[[str, bytes, float], None]
"""Sends JSON to an address within so many seconds; raises OSError where it was not taken."""


@dataclass(frozen=True)
class Notice:
    """What an owner is told of a golem that died. event_id: of the event that says so."""

    event_id: str
    golem_id: str
    owner_id: str
    at: datetime
    text: str


def webhook_of(environment: Mapping[str, str]) -> str | None:
    """Where notices go, None for nowhere. Raises ConfigError for what is no http or https address."""
    url = environment.get(WEBHOOK, "").strip()
    if not url:
        return None
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise ConfigError(f"{WEBHOOK} {url!r} is no address: give one that begins with http:// or https://")
    return url


def notices_of(context: DerivationContext) -> list[Notice]:
    """Every notice on record, by moment of the death and golem, the death's before those of its succession."""
    return _told(context, context.life("LegacyLeft"), _stuck(context))


def waiting_notices(context: DerivationContext) -> list[Notice]:
    """The notices that were not posted yet."""
    posted = pa.array(_posted(_file(context)), pa.string())
    left, stuck = (
        events.filter(pc.invert(pc.is_in(events["event_id"], value_set=posted)))
        for events in (context.life("LegacyLeft"), _stuck(context))
    )
    return _told(context, left, stuck)


def _stuck(context: DerivationContext) -> pa.Table:
    """The steps that ended a succession or an identity, and the failure of a place behind which it is only tried by the
    hour (life events)."""
    events, last = context.life("SuccessionAdvanced"), len(context.policy.succession.retry_seconds) + 1
    said = events["advanced"].combine_chunks()
    outcome, attempt, due_at = (pc.struct_field(said, name) for name in ("outcome", "attempt", "due_at"))
    given_up = pc.and_(pc.is_valid(due_at), pc.equal(attempt, last))
    return events.filter(pc.or_(pc.equal(outcome, "halted"), given_up))


def _told(context: DerivationContext, left: pa.Table, stuck: pa.Table) -> list[Notice]:
    """What these legacies and steps (life events) tell of golems whose owner is known."""
    owner = owners_of(context)
    deaths = [(row, row["bequeathed"]["notice"]) for row in left.select([*_NAMED, "bequeathed"]).to_pylist()]
    steps = stuck.select([*_NAMED, "advanced"]).to_pylist()
    steps.sort(key=lambda row: (row["advanced"]["mode"], row["advanced"]["attempt"], row["event_id"]))
    told = [*deaths, *((row, _why(row["golem_id"], row["advanced"])) for row in steps)]
    found = [
        Notice(row["event_id"], row["golem_id"], owner[row["golem_id"]], row["observed_at"], text)
        for row, text in told
        if row["golem_id"] in owner
    ]
    return sorted(found, key=lambda notice: (notice.at, notice.golem_id))


_NAMED = ("event_id", "golem_id", "observed_at")


def _why(golem_id: str, step: Mapping[str, Any]) -> str:
    """What a step that came to nothing means for the owner."""
    if step["outcome"] == "failed":
        return f"{golem_id} has no heir yet: {step['why']}; after {step['attempt']} attempts it is tried by the hour"
    if step["step"] == "registered":
        return f"{step['heir_id']}, the heir of {golem_id}, has no identity: {step['why']}"
    return f"{golem_id} has no heir, its succession halted ({step['step']}): {step['why']}"


def post_notices(context: DerivationContext, url: str, *, post: Post | None = None) -> list[Notice]:
    """Post what waits, oldest first, and keep that it was posted. Returns what was posted.

    Raises NoticeError at the first that is not taken: it and what comes after it wait.
    """
    sent: list[Notice] = []
    with context.home.lock("notices"):
        for notice in waiting_notices(context):
            try:
                (post or _post)(url, orjson.dumps(asdict(notice)), context.policy.dying.notice_seconds_max)
            except OSError as error:
                raise NoticeError(
                    f"{len(sent)} notices were posted, that of golem {notice.golem_id} was not ({error}): it is kept, "
                    f"and `bardo golem notices --post` sends it once {WEBHOOK} answers"
                ) from error
            sent.append(notice)
            _keep(_file(context), notice.event_id)
    return sent


def _post(url: str, body: bytes, seconds: float) -> None:
    """url: as `webhook_of` let it pass, so that it names no file."""
    told = {"content-type": "application/json"}
    request = urllib.request.Request(url, data=body, headers=told, method="POST")  # noqa: S310
    with urllib.request.urlopen(request, timeout=seconds):  # noqa: S310
        pass


def _file(context: DerivationContext) -> Path:
    return context.home.index / "notices.txt"


def _posted(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


def _keep(file: Path, event_id: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as said:
        said.write(f"{event_id}\n")
