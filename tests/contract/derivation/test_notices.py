"""Death notices posted to a webhook: each is posted once, and none is lost while the webhook fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.owner_notices import (
    notices_of,
    post_notices,
    waiting_notices,
    webhook_of,
)
from bardo_pipeline.errors import ConfigError, NoticeError
from tests.conftest import copy_home
from tests.support.processes.bardo_command import bardo
from tests.support.processes.webhook import Hook, webhook

pytestmark = pytest.mark.row("INH-4")


@pytest.fixture
def hook() -> Iterator[Hook]:
    with webhook() as server:
        yield server


@pytest.fixture
def stores(brief_home: Path, tmp_path: Path) -> DerivationContext:
    return DerivationContext.open(copy_home(brief_home, tmp_path / "home"))


@pytest.mark.full
def test_every_death_is_posted_once_and_refused_notices_are_retried(stores: DerivationContext, hook: Hook) -> None:
    notices = notices_of(stores)
    assert len(notices) == len(waiting_notices(stores)) == 4
    hook.accepted_max = 2
    with pytest.raises(NoticeError, match=rf"2 notices were posted, that of golem {notices[2].golem_id} was not .*503"):
        post_notices(stores, hook.url)
    assert waiting_notices(stores) == notices[2:]
    hook.accepted_max = 9
    assert post_notices(stores, hook.url) == notices[2:]
    assert post_notices(stores, hook.url) == []
    assert [(n["event_id"], n["golem_id"], n["text"]) for n in hook.taken] == [
        (n.event_id, n.golem_id, n.text) for n in notices
    ]


@pytest.mark.full
def test_an_unreachable_webhook_loses_no_notice(stores: DerivationContext, hook: Hook) -> None:
    hook.server_close()
    with pytest.raises(NoticeError, match="0 notices were posted"):
        post_notices(stores, hook.url)
    assert len(waiting_notices(stores)) == 4


@pytest.mark.full
def test_the_notices_command_shows_and_posts_notices(
    stores: DerivationContext, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = bardo("golem", "notices", home=stores.home.root)
    assert output.count("its time was up") == 4
    assert "(posted)" not in output
    assert "set BARDO_WEBHOOK" in bardo("golem", "notices", "--post", home=stores.home.root, expect=2)
    monkeypatch.setenv("BARDO_WEBHOOK", hook.url)
    assert "4 notices posted" in bardo("golem", "notices", "--post", home=stores.home.root)
    assert len(hook.taken) == 4
    assert bardo("golem", "notices", home=stores.home.root).count("(posted)") == 4


def test_an_invalid_address_is_refused() -> None:
    assert webhook_of({}) is None
    with pytest.raises(ConfigError, match="begins with http"):
        webhook_of({"BARDO_WEBHOOK": "file:///etc/passwd"})
