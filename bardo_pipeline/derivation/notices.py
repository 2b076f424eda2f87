"""Notices: what owners are told of deaths, posted to the webhook that the environment names, each at least once.

A notice is part of the last phase of dying (LegacyLeft), so it is on record whether anybody hears of it or not. What
was posted is kept beside the indexes; where that is lost, notices are posted again, under the same event id.
Source: MEM ("a notification webhook", "No golem dies silent"); INH-4.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.births import owners_of
from bardo_pipeline.derivation.stores import Stores
from bardo_pipeline.errors import ConfigError, NoticeError

WEBHOOK = "BARDO_WEBHOOK"

Post = Callable[[str, bytes, float], None]
"""Sends JSON to an address within so many seconds; raises OSError where it was not taken."""


@dataclass(frozen=True)
class Notice:
    """What an owner is told of a death. event_id: of the LegacyLeft that it is part of."""

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


def notices_of(stores: Stores) -> list[Notice]:
    """Every notice on record, by moment of the death and golem."""
    return _told(stores, stores.life("LegacyLeft"))


def waiting(stores: Stores) -> list[Notice]:
    """The notices that were not posted yet."""
    left, posted = stores.life("LegacyLeft"), pa.array(_posted(_file(stores)), pa.string())
    return _told(stores, left.filter(pc.invert(pc.is_in(left["event_id"], value_set=posted))))


def _told(stores: Stores, left: pa.Table) -> list[Notice]:
    """What these legacies (life events) tell of golems whose owner is known, by moment of the death and golem."""
    owner = owners_of(stores)
    found = [
        Notice(r["event_id"], r["golem_id"], owner[r["golem_id"]], r["observed_at"], r["bequeathed"]["notice"])
        for r in left.select(["event_id", "golem_id", "observed_at", "bequeathed"]).to_pylist()
        if r["golem_id"] in owner
    ]
    return sorted(found, key=lambda notice: (notice.at, notice.golem_id))


def deliver(stores: Stores, url: str, *, post: Post | None = None) -> list[Notice]:
    """Post what waits, oldest first, and keep that it was posted. Returns what was posted.

    Raises NoticeError at the first that is not taken: it and what comes after it wait.
    """
    sent: list[Notice] = []
    with stores.home.lock("notices"):
        for notice in waiting(stores):
            try:
                (post or _post)(url, orjson.dumps(asdict(notice)), stores.policy.dying.notice_seconds_max)
            except OSError as error:
                raise NoticeError(
                    f"{len(sent)} notices were posted, that of golem {notice.golem_id} was not ({error}): it is kept, "
                    f"and `bardo golem notices --post` sends it once {WEBHOOK} answers"
                ) from error
            sent.append(notice)
            _keep(_file(stores), notice.event_id)
    return sent


def _post(url: str, body: bytes, seconds: float) -> None:
    """url: as `webhook_of` let it pass, so that it names no file."""
    told = {"content-type": "application/json"}
    request = urllib.request.Request(url, data=body, headers=told, method="POST")  # noqa: S310
    with urllib.request.urlopen(request, timeout=seconds):  # noqa: S310
        pass


def _file(stores: Stores) -> Path:
    return stores.home.index / "notices.txt"


def _posted(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


def _keep(file: Path, event_id: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as said:
        said.write(f"{event_id}\n")
