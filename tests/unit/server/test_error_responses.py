"""The cure of a refusal: the remedy that its message ends with, never another part of the message."""

import pytest

from bardo_pipeline.errors import BardoError, InputError, QueryError, RegressionError, ToolError, UnknownGolemError
from bardo_pipeline.server.error_responses import document_of
from bardo_pipeline.storage.log.stream_heads import past_death


@pytest.mark.parametrize(
    ("error", "cure"),
    [
        (past_death("g-1", 12, 9, None), None),
        (RegressionError("g-1", 3, "is already on record"), None),
        (QueryError('golem g-1: it lives; `bardo sql "from fct_deaths"` lists the dead'),
         '`bardo sql "from fct_deaths"` lists the dead'),
        (InputError("entry e: no owner on record, so its votes cannot be recorded"), None),
        (InputError("golem g-1: name its owner: --owner NAME"), "name its owner: --owner NAME"),
        (InputError("a key: `bardo keys list: all` shows it; or give another"),
         "`bardo keys list: all` shows it; or give another"),
        (ToolError("tool memory_search: store: Input should be 'both', not 'all': give a valid store"),
         "give a valid store"),
        (UnknownGolemError("golem g-1: no golem of this name was born: POST /v1/golems"), "POST /v1/golems"),
    ],
)  # fmt: skip
def test_the_cure_is_the_remedy_at_the_end_of_a_message(error: BardoError, cure: str | None) -> None:
    document = document_of(error)
    assert document == {"error": type(error).__name__, "message": str(error), "cure": cure}


@pytest.mark.parametrize(
    "message",
    ["golem g-1: no golem of this name was born: `bardo golem list` lists all", "strategy s: golem g-1 is unknown"],
)
def test_an_unknown_golem_is_cured_by_a_route(message: str) -> None:
    document = document_of(UnknownGolemError(message))
    assert document["cure"] == "GET /v1/golems lists those in view"
    assert document["message"].endswith(f": {document['cure']}")
    assert "`bardo" not in document["message"]
