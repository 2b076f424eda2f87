"""Reads the answers of a relay, which is not trusted, and checks its address."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx

from bardo_pipeline.errors import ConfigError, NoServerError, ServerError

SECONDS = 10.0
"""Time in which a relay must answer."""


def relay_address(url: str) -> str:
    """Return the address of a relay without a slash at its end. Raises ConfigError without http:// or https://."""
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise ConfigError(f"relay {url!r} is no address: give one that begins with http:// or https://")
    return url.rstrip("/")


def answered(url: str, request: Callable[[], httpx.Response]) -> dict[str, Any]:
    """Return the JSON object that a relay answers to a request.

    Raises NoServerError if the relay does not answer, ServerError if it refuses or answers no object.

    Parameters
    ----------
    url : address of the relay, for messages
    """
    try:
        answer = request()
    except httpx.HTTPError as error:
        fact = f"relay {url} does not answer ({error or type(error).__name__})"
        raise NoServerError(fact, "bardo relay DATABASE") from error
    try:
        document = json.loads(answer.content)
    except ValueError:
        document = {}
    if not answer.is_success or not isinstance(document, dict):
        facts = document if isinstance(document, dict) else {}
        message = str(facts.get("message", f"the relay answered {answer.status_code}"))
        raise ServerError(answer.status_code, str(facts.get("error", "RelayError")), message, facts.get("cure"))
    return document
