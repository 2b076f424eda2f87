"""Refusals: typed errors as JSON documents with a status."""

from __future__ import annotations

import re
from typing import Any

from bardo_pipeline.errors import (
    AccessError,
    AuthorityError,
    BackpressureError,
    BardoError,
    DerivationDueError,
    DerivationError,
    DiskFullError,
    InputError,
    LeaseError,
    MemoryGateError,
    NoHomeError,
    ReadOnlyError,
    ServerError,
    SignatureError,
    StreamError,
    TokenError,
    UnknownGolemError,
)

_STATUSES: tuple[tuple[type[BardoError], int], ...] = (
    (TokenError, 401),
    (AccessError, 403),
    (AuthorityError, 403),
    (SignatureError, 403),
    (MemoryGateError, 403),
    (UnknownGolemError, 404),
    (InputError, 400),
    (StreamError, 409),
    (LeaseError, 409),
    (DerivationDueError, 409),
    (BackpressureError, 429),
    (DiskFullError, 507),
    (ReadOnlyError, 503),
    (NoHomeError, 503),
    (DerivationError, 503),
)
"""Kind of error and its status; the first that fits counts, and 500 for any other."""

_LISTED = "GET /v1/golems lists those in view"
_ROUTES = ("GET ", "POST ")
REMEDY_VERBS = (
    "add", "adopt", "ask", "begin", "call", "change", "choose", "cite", "close", "correct", "create", "declare",
    "delete", "derive", "destroy", "embed", "encode", "end", "export", "for example", "give", "increase", "install",
    "leave out", "look", "lower", "make", "name", "omit", "open", "override", "pass", "pin", "read", "record",
    "refresh", "register", "remove", "restore", "retry", "rotate", "run", "save", "say", "see", "send", "set",
    "shorten", "sign", "start", "store", "take", "there are", "try again", "unset", "upgrade", "use", "wait", "write",
)  # fmt: skip
"""Words that begin a remedy in an error's message."""

_COMMAND = re.compile(r"`[^`]*`")
_CLAUSE = re.compile(r"[:;] ")
_REMEDY = re.compile("|".join(("`", "memory_", *_ROUTES, *(rf"{verb}\b(?!:)" for verb in REMEDY_VERBS))))


def status_of(error: BaseException) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, ServerError):
        return error.status
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def document_of(error: BaseException) -> dict[str, Any]:
    """Return an error as {error, message, cure}; cure is None if the message states none.

    An error that is no BardoError is a fault of the server: its text stays in the server's log.
    """
    if isinstance(error, ServerError):
        return {"error": error.error, "message": error.message, "cure": error.cure}
    if not isinstance(error, BardoError):
        return {"error": "InternalError", "message": "the server failed on this request",
                "cure": "look at the output of `bardo serve`"}  # fmt: skip
    message, cure = str(error), _cure(str(error))
    if isinstance(error, UnknownGolemError) and not (cure or "").startswith(_ROUTES):
        # The message names a command, and an HTTP caller has a route.
        problem = message if cure is None else message.removesuffix(cure).rstrip(":; ")
        message, cure = f"{problem}: {_LISTED}", _LISTED
    return {"error": type(error).__name__, "message": message, "cure": cure}


def document_for_agent(error: BaseException) -> dict[str, Any]:
    """Return an error as `document_of` does, with a cure that an agent without a shell can carry out.

    Such a cure is another call of a tool, or a request to the owner of the home.
    """
    document = document_of(error)
    message, cure = document["message"], document["cure"]
    document["cure"] = agent_cure = _agent_cure(error, cure)
    if cure is not None and agent_cure is not None and message.endswith(cure):
        document["message"] = message.removesuffix(cure) + agent_cure
    return document


def _agent_cure(error: BaseException, cure: str | None) -> str | None:
    if isinstance(error, UnknownGolemError):
        return "leave out golem_id, or give the id of a golem of your owner; ask the owner for it"
    if isinstance(error, SignatureError):
        return "leave out experience; ask the owner to report it by a client with a signer or the spool"
    if cure is None or ("`bardo " not in cure and not isinstance(error, MemoryGateError)):
        return cure
    return f"ask the owner of the home to {'run ' if cure.startswith('`') else ''}{cure}"


def _cure(message: str) -> str | None:
    """Return the longest end of a message that begins behind a colon or semicolon and with a remedy, else None.

    A remedy begins with a command in backticks, a route, the name of a tool, or one of REMEDY_VERBS. A verb with a
    colon names a parameter.
    """
    masked = _COMMAND.sub(lambda command: "`" * len(command.group()), message)
    begins = [mark.end() for mark in _CLAUSE.finditer(masked)]
    return next((message[at:] for at in begins if _REMEDY.match(message, at)), None)
