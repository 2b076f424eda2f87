"""Posts owner notices on deaths and stuck successions to the webhook, each at least once.

A death notice is part of LegacyLeft, a succession notice follows from SuccessionAdvanced, so every notice is in the
log. Ids of posted notices are kept in index/notices.txt; without that file all notices are posted again, with equal
event ids.
Source: MEM ("a notification webhook", "No golem dies silent"), INH S13 ("Owner notified"); INH-4, INH-18.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.death_queries import owners_of
from bardo_pipeline.errors import NoticeError
from bardo_pipeline.process_settings import NoticeSettings
from bardo_pipeline.storage.home import Home

WEBHOOK = "BARDO_WEBHOOK"


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
    return NoticeSettings.of(environment).webhook


def notices_of(context: DerivationContext) -> list[Notice]:
    """Return all notices by moment of the death and golem; a death's notice precedes those of its succession."""
    owner, steps = owners_of(context), _stuck_steps(context)
    steps.sort(key=lambda row: (row["mode"], row["attempt"], row["event_id"]))
    deaths = context.life_fields("LegacyLeft", "notice").to_pylist()
    texts = [*((row, row["notice"]) for row in deaths), *((row, _step_text(row["golem_id"], row)) for row in steps)]
    notices = [
        Notice(row["event_id"], row["golem_id"], owner[row["golem_id"]], row["observed_at"], text)
        for row, text in texts
        if row["golem_id"] in owner
    ]
    return sorted(notices, key=lambda notice: (notice.at, notice.golem_id))


def waiting_notices(context: DerivationContext) -> list[Notice]:
    """Return the notices that were not posted yet."""
    file = _posted_file(context.home)
    posted = set(file.read_text().split()) if file.exists() else set()
    return [notice for notice in notices_of(context) if notice.event_id not in posted]


def notice_rows(context: DerivationContext) -> list[dict[str, Any]]:
    """Return the fields of all notices, each with whether it was `posted`, in the order of `notices_of`."""
    waiting = {notice.event_id for notice in waiting_notices(context)}
    return [{**asdict(notice), "posted": notice.event_id not in waiting} for notice in notices_of(context)]


def _stuck_steps(context: DerivationContext) -> list[dict[str, Any]]:
    """Succession steps that halted, and the failed attempt that exhausts the quick retries (then retried hourly)."""
    names = ("mode", "step", "outcome", "attempt", "heir_id", "why", "due_at")
    last_attempt = len(context.policy.succession.retry_seconds) + 1
    return [
        step
        for step in context.life_fields("SuccessionAdvanced", *names).to_pylist()
        if step["outcome"] == "halted" or (step["due_at"] is not None and step["attempt"] == last_attempt)
    ]


def _step_text(golem_id: str, step: Mapping[str, Any]) -> str:
    if step["outcome"] == "failed":
        return f"{golem_id} has no heir yet: {step['why']}; after {step['attempt']} attempts it is tried by the hour"
    if step["step"] == "registered":
        return f"{step['heir_id']}, the heir of {golem_id}, has no identity: {step['why']}"
    return f"{golem_id} has no heir, its succession halted ({step['step']}): {step['why']}"


def post_notices(context: DerivationContext, url: str) -> list[Notice]:
    """Post the waiting notices, oldest first. Return the posted ones.

    Raises NoticeError at the first failed post; that notice and the later ones keep waiting.
    """
    sent: list[Notice] = []
    with context.home.lock("notices"):
        for notice in waiting_notices(context):
            try:
                post_json(url, asdict(notice), context.policy.dying.notice_seconds_max)
            except OSError as error:
                raise NoticeError(
                    f"{len(sent)} notices were posted, that of golem {notice.golem_id} was not ({error}): it keeps "
                    f"waiting, and `bardo golem notices --post` retries once {WEBHOOK} answers"
                ) from error
            sent.append(notice)
            _mark_posted(_posted_file(context.home), notice.event_id)
    return sent


def post_json(url: str, content: Mapping[str, Any], seconds: float) -> None:
    """Post to a URL that `webhook_of` has checked to be http or https. Raises OSError unless it is taken in time."""
    body = orjson.dumps(content)
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")  # noqa: S310
    with urllib.request.urlopen(request, timeout=seconds):  # noqa: S310
        pass


def _posted_file(home: Home) -> Path:
    return home.index / "notices.txt"


def _mark_posted(file: Path, event_id: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as ids:
        ids.write(f"{event_id}\n")
