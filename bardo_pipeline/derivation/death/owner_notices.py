"""Posts owner notices on deaths and stuck successions to the webhook, each at least once.

A death notice is part of LegacyLeft, a succession notice follows from SuccessionAdvanced, so every notice is in the
log. Ids of posted notices are kept in index/notices.txt; without that file all notices are posted again, with equal
event ids.
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
"""(url, JSON body, timeout in seconds): posts the body; raises OSError on failure."""


@dataclass(frozen=True)
class Notice:
    """A notice to an owner; event_id is the id of the event that it reports."""

    event_id: str
    golem_id: str
    owner_id: str
    at: datetime
    text: str


def webhook_of(environment: Mapping[str, str]) -> str | None:
    """Return the webhook URL, None if unset. Raises ConfigError unless it is an http or https URL."""
    url = environment.get(WEBHOOK, "").strip()
    if not url:
        return None
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise ConfigError(f"{WEBHOOK} {url!r} is not a URL that begins with http:// or https://")
    return url


def notices_of(context: DerivationContext) -> list[Notice]:
    """Return all notices by moment of the death and golem; a death's notice precedes those of its succession."""
    return _to_notices(context, context.life("LegacyLeft"), _stuck_steps(context))


def waiting_notices(context: DerivationContext) -> list[Notice]:
    """Return the notices that were not posted yet."""
    posted = pa.array(_posted_ids(_posted_file(context)), pa.string())
    legacies, steps = (
        events.filter(pc.invert(pc.is_in(events["event_id"], value_set=posted)))
        for events in (context.life("LegacyLeft"), _stuck_steps(context))
    )
    return _to_notices(context, legacies, steps)


def _stuck_steps(context: DerivationContext) -> pa.Table:
    """Succession events that halted, and the failed attempt that exhausts the quick retries (then retried hourly)."""
    events, last_attempt = context.life("SuccessionAdvanced"), len(context.policy.succession.retry_seconds) + 1
    steps = events["advanced"].combine_chunks()
    outcome, attempt, due_at = (pc.struct_field(steps, name) for name in ("outcome", "attempt", "due_at"))
    exhausted = pc.and_(pc.is_valid(due_at), pc.equal(attempt, last_attempt))
    return events.filter(pc.or_(pc.equal(outcome, "halted"), exhausted))


def _to_notices(context: DerivationContext, legacies: pa.Table, steps: pa.Table) -> list[Notice]:
    """Notices for these LegacyLeft and SuccessionAdvanced events, of golems with a known owner."""
    owner = owners_of(context)
    deaths = [(row, row["bequeathed"]["notice"]) for row in legacies.select([*_NAMED, "bequeathed"]).to_pylist()]
    step_rows = steps.select([*_NAMED, "advanced"]).to_pylist()
    step_rows.sort(key=lambda row: (row["advanced"]["mode"], row["advanced"]["attempt"], row["event_id"]))
    texts = [*deaths, *((row, _step_text(row["golem_id"], row["advanced"])) for row in step_rows)]
    notices = [
        Notice(row["event_id"], row["golem_id"], owner[row["golem_id"]], row["observed_at"], text)
        for row, text in texts
        if row["golem_id"] in owner
    ]
    return sorted(notices, key=lambda notice: (notice.at, notice.golem_id))


_NAMED = ("event_id", "golem_id", "observed_at")


def _step_text(golem_id: str, step: Mapping[str, Any]) -> str:
    """The notice on a halted or repeatedly failed step."""
    if step["outcome"] == "failed":
        return f"{golem_id} has no heir yet: {step['why']}; after {step['attempt']} attempts it is tried by the hour"
    if step["step"] == "registered":
        return f"{step['heir_id']}, the heir of {golem_id}, has no identity: {step['why']}"
    return f"{golem_id} has no heir, its succession halted ({step['step']}): {step['why']}"


def post_notices(context: DerivationContext, url: str, *, post: Post | None = None) -> list[Notice]:
    """Post the waiting notices, oldest first. Return the posted ones.

    Raises NoticeError at the first failed post; that notice and the later ones keep waiting.
    """
    sent: list[Notice] = []
    with context.home.lock("notices"):
        for notice in waiting_notices(context):
            try:
                (post or _post)(url, orjson.dumps(asdict(notice)), context.policy.dying.notice_seconds_max)
            except OSError as error:
                raise NoticeError(
                    f"{len(sent)} notices were posted, that of golem {notice.golem_id} was not ({error}): it keeps "
                    f"waiting, and `bardo golem notices --post` retries once {WEBHOOK} answers"
                ) from error
            sent.append(notice)
            _mark_posted(_posted_file(context), notice.event_id)
    return sent


def _post(url: str, body: bytes, seconds: float) -> None:
    """Post to a URL that `webhook_of` has checked to be http or https."""
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")  # noqa: S310
    with urllib.request.urlopen(request, timeout=seconds):  # noqa: S310
        pass


def _posted_file(context: DerivationContext) -> Path:
    return context.home.index / "notices.txt"


def _posted_ids(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


def _mark_posted(file: Path, event_id: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as ids:
        ids.write(f"{event_id}\n")
