"""Sessions of browsers: a signed text stands for a token until a moment, or until the token is revoked."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from bardo_pipeline.errors import TokenError
from bardo_pipeline.policy import Policy
from bardo_pipeline.server.callers import Caller, Doorkeeper
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.keys.owner_tokens import OwnerTokens
from tests.conftest import NOW

pytestmark = pytest.mark.row("X-12", "X-13")
UNTIL = NOW + timedelta(hours=1)


@pytest.fixture
def tokens(tmp_path: Path) -> OwnerTokens:
    return OwnerTokens(Home.create(tmp_path / "home", Policy(), NOW))


def test_a_session_names_the_owner_of_its_token_until_it_ends(tokens: OwnerTokens) -> None:
    keeper = Doorkeeper(tokens, "own")
    for owner in ("coral", None):
        token = tokens.issue(owner, f"secret of {owner}", NOW)
        session = keeper.session(token, UNTIL)
        assert token not in session
        assert keeper.caller_of_session(session, NOW) == Caller(owner)
        with pytest.raises(TokenError, match="the session has ended"):
            keeper.caller_of_session(session, UNTIL)
    assert keeper.caller_of_session(keeper.session("own", UNTIL), NOW) == Caller(None)
    with pytest.raises(TokenError, match="unknown or revoked"):
        keeper.session("wrong", UNTIL)


def test_a_session_ends_with_its_token_and_with_its_process(tokens: OwnerTokens) -> None:
    keeper = Doorkeeper(tokens, "own")
    session = keeper.session(tokens.issue("coral", "secret", NOW), UNTIL)
    with pytest.raises(TokenError, match="the session has ended"):
        Doorkeeper(tokens, "another process").caller_of_session(session, NOW)
    tokens.revoke(session.partition(".")[0])
    with pytest.raises(TokenError, match="is revoked"):
        keeper.caller_of_session(session, NOW)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_altered_session_is_refused(tokens: OwnerTokens, place: int) -> None:
    keeper = Doorkeeper(tokens, "own")
    other = tokens.issue("pearl", "of pearl", NOW)
    parts = keeper.session(tokens.issue("coral", "of coral", NOW), UNTIL).split(".")
    parts[place] = keeper.session(other, UNTIL + timedelta(days=9)).split(".")[place]
    for session in (".".join(parts), "", "x", "..", "\u00e9.1.2", other):
        with pytest.raises(TokenError, match="the session has ended"):
            keeper.caller_of_session(session, NOW)
