"""The calls of a client, independent of how they are sent."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from bardo_pipeline.errors import ConfigError, SignatureError
from bardo_pipeline.signing import Signer

Document = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """One HTTP request. content: body; parameters: query without the absent ones."""

    method: str
    path: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    content: bytes | None = None
    content_type: str = "application/json"
    golem: str | None = None


class Calls(ABC, Generic[T]):
    """Calls to a server. Each returns the JSON answer as a dictionary, with `freshness`.

    Every call raises ServerError if the server refuses it, and NoServerError if no server answers.

    Parameters
    ----------
    golem : golem whose memory is used, unless a call names another
    signer : signs the lines of records and life events; needed for a golem with a registered key
    """

    def __init__(self, golem: str | None = None, signer: Signer | None = None) -> None:
        self.golem, self.signer = golem, signer

    @abstractmethod
    def _send(self, call: Call) -> T:
        """Send a request and return its answer."""

    @abstractmethod
    def _send_both(self, call: Call, following: Callable[[Document], Call]) -> T:
        """Send a request, and one that is made from its answer; return the answer to the second."""

    def _golem(self, golem: str | None) -> str:
        chosen = self.golem if golem is None else golem
        if chosen is None:
            raise ConfigError("the call names no golem: give `golem`, here or to the client")
        return chosen

    def ask(
        self,
        question: str,
        *,
        golem: str | None = None,
        k: int | None = None,
        regime: str | None = None,
        at: datetime | None = None,
        tick: int | None = None,
        clade: bool = False,
        may_skip: bool = False,
    ) -> T:
        """Ask the golem; `hits` are its highest-scoring entries with each factor of the score."""
        chosen = {"golem": self._golem(golem), "question": question, "k": k, "regime": regime, "tick": tick}
        wanted = {**chosen, "at": None if at is None else at.isoformat(), "clade": clade, "may_skip": may_skip}
        return self._send(_posted("/v1/ask", _present(wanted)))

    def search(self, query: str, *, golem: str | None = None, **filters: Any) -> T:
        """Search the golem's episodes and insights, its own words included (memory_search); see `results`.

        Parameters
        ----------
        filters : store, chain, token_pair, tool, min_confidence, limit, apply_decay
        """
        return self.tool("memory_search", golem=golem, **_present({"query": query, **filters}))

    def insights(self, *, golem: str | None = None, **filters: Any) -> T:
        """List the golem's `insights` by confidence or date (memory_get_insights).

        Parameters
        ----------
        filters : category, min_confidence, chain, token_pair, sort_by, limit
        """
        return self.tool("memory_get_insights", golem=golem, **_present(filters))

    def search_derived(self, words: str, *, golem: str | None = None, **filters: Any) -> T:
        """Search derived entries and episodes of all golems in view, as `bardo search` does; `hits` are the best texts.

        Parameters
        ----------
        golem : only texts of this golem
        filters : store, kind, category, domain, regime, status, min_confidence, chain, pair, tool, limit, decay
        """
        return self._send(_posted("/v1/search", _present({"words": words, "golem": golem, **filters})))

    def warnings_for(
        self,
        action: str,
        situation: str | Mapping[str, Any] = "",
        *,
        golem: str | None = None,
        limit: int = 5,
        clade: bool = False,
    ) -> T:
        """List the golem's `warnings` about an action, the most fitting to the situation first.

        Parameters
        ----------
        situation : plain words; or conditions, of which a warning leaves none unfulfilled
        clade : include warnings of siblings, by a paid query; `siblings_left_out` states the reason if they are missing
        """
        words, conditions = (situation, None) if isinstance(situation, str) else ("", json.dumps(dict(situation)))
        wanted = _present({"action": action, "situation": words, "conditions": conditions, "limit": limit})
        wanted |= {"clade": True} if clade else {}
        return self._send(Call("GET", f"/v1/golems/{_escaped(self._golem(golem))}/warnings", wanted))

    def query_styx(
        self,
        question: str,
        *,
        golem: str | None = None,
        k: int = 5,
        layer: str | None = None,
        min_confidence: float = 0.0,
    ) -> T:
        """Ask the layers of shared memory together; `results` are the best of all, `layers` states which were asked.

        A question that asks siblings or the public has a price, within the golem's budgets.

        Parameters
        ----------
        layer : vault, clade or lethe, to ask one alone
        min_confidence : lowest confidence of the golem that states a result
        """
        wanted = {"golem": self._golem(golem), "question": question, "k": k, "layer": layer}
        return self._send(Call("GET", "/v1/styx/query", _present(wanted | {"min_confidence": min_confidence})))

    def write_styx(
        self,
        entry: str | None = None,
        *,
        kind: str | None = None,
        text: str | None = None,
        confidence: float | None = None,
        kept_days: int = 7,
        golem: str | None = None,
    ) -> T:
        """Write an entry to the golem's layers of shared memory; `layers` states which took it, or why not.

        Parameters
        ----------
        entry : id of an active entry of the golem's grimoire; or kind, text and confidence of one in its own words
        kept_days : days for which the golem pays
        """
        wanted = {"golem": self._golem(golem), "entry": entry, "kind": kind, "text": text, "confidence": confidence,
                  "kept_days": kept_days}  # fmt: skip
        return self._send(_posted("/v1/styx/entries", _present(wanted)))

    def remember(
        self,
        reflection: str,
        *,
        tool: str = "note",
        outcome: Any = None,
        chain: str = "",
        token_pair: str | None = None,
        importance: str = "routine",
        dream_tag: str | None = None,
        sort: str | None = None,
        tags: Sequence[str] = (),
        golem: str | None = None,
    ) -> T:
        """Store an episode in the agent's own words (memory_store_episode).

        Parameters
        ----------
        tool : tool that was executed
        chain : chain of the execution, empty for none
        outcome : JSON value of the execution
        importance : routine, notable, critical or emergency; it sets how long the episode is retained
        sort : episode, insight or reflection; None for an episode
        tags : words that a search finds beside those of the text, at most 64
        """
        wanted = {"tool": tool, "outcome": {} if outcome is None else outcome, "reflection": reflection, "chain": chain,
                  "token_pair": token_pair, "importance": importance, "dream_tag": dream_tag, "sort": sort,
                  "tags": list(tags) or None}  # fmt: skip
        return self.tool("memory_store_episode", golem=golem, **_present(wanted))

    def remember_all(self, episodes: Sequence[str | Mapping[str, Any]], *, golem: str | None = None) -> T:
        """Store many episodes in one commit; `stored` and `refused` list each by its index in the call.

        The call raises ServerError if it stores none.

        Parameters
        ----------
        episodes : 1 to 1,000 texts, each by its words alone or with the arguments of `remember` by name
        """
        given = [_episode(episode) for episode in episodes]
        return self._send(_posted("/v1/texts", given, self.golem if golem is None else golem))

    def record_execution(self, *, golem: str | None = None, **arguments: Any) -> T:
        """Record an execution of a strategy before it settles (memory_record_execution)."""
        return self.tool("memory_record_execution", golem=golem, **arguments)

    def record_outcome(self, *, golem: str | None = None, **arguments: Any) -> T:
        """Record the realized outcome of an execution (memory_record_outcome)."""
        return self.tool("memory_record_outcome", golem=golem, **arguments)

    def tool(self, name: str, *, golem: str | None = None, **arguments: Any) -> T:
        """Call a memory tool by name."""
        return self._send(_posted(f"/v1/tools/{_escaped(name)}", arguments, self.golem if golem is None else golem))

    def record(self, *records: Mapping[str, Any] | bytes | str | Any) -> T:
        """Append decision records; `acknowledged` lists those that are durable.

        Parameters
        ----------
        records : dictionaries, JSON texts or pydantic models, in the order of their ticks
        """
        return self._send(self._signed("/v1/records", records))

    def record_events(self, *events: Mapping[str, Any] | bytes | str | Any) -> T:
        """Append life events of golems in view, signed as in the spool; `refused` lists each refused one by its index.

        The call raises ServerError if it records none.

        Parameters
        ----------
        events : dictionaries, JSON texts or pydantic models
        """
        return self._send(self._signed("/v1/events", events))

    def _signed(self, path: str, documents: Iterable[Any]) -> Call:
        """Return the request that sends these documents, one a line, each signed if there is a signer."""
        lines = [_line(document).strip() for document in documents]
        if self.signer is not None:
            lines = [_envelope(line, self.signer) for line in lines]
        return Call("POST", path, content=b"\n".join(lines), content_type="application/x-ndjson")

    def experience(
        self,
        situation: Mapping[str, Any],
        action: str,
        reward: float,
        *,
        alternatives: Mapping[str, float | None] | Sequence[str] = (),
        domain: str | None = None,
        tick: int | None = None,
        observed_at: datetime | None = None,
        golem: str | None = None,
        **parts: Any,
    ) -> T:
        """Report a situation, the action taken in it and its reward; the record is durable when the call returns.

        With a signer, the server drafts the record, and the client signs it if it states this report.

        Parameters
        ----------
        situation : conditions at the decision, as words or whole numbers
        reward : from -1 for the worst result to 1 for the best one
        alternatives : names of actions that were considered, or each with the reward that it would have earned
        domain : domain of the actions; rules of different domains are apart
        tick : tick of the record, so that a repeated call records it once; the next one by default
        observed_at : time of the action; now by default
        parts : decision_tick, verified, ground_truth_source, entries_read (ids of entries read before the decision)
        """
        others = dict(alternatives) if isinstance(alternatives, Mapping) else dict.fromkeys(alternatives)
        report = {"situation": dict(situation), "action": action, "reward": reward, "alternatives": others, **parts,
                  "domain": domain, "tick": tick, "observed_at": observed_at}  # fmt: skip
        chosen, given = self._golem(golem), _present(report)
        path = f"/v1/golems/{_escaped(chosen)}"
        if self.signer is None:
            return self._send(_posted(f"{path}/experiences", given))

        def signed(drafted: Document) -> Call:
            return self._signed("/v1/records", [_checked_draft(line, chosen, given) for line in drafted["records"]])

        return self._send_both(_posted(f"{path}/drafts", given), signed)

    def advice(self, situation: Mapping[str, Any], action: str | None = None, *, golem: str | None = None) -> T:
        """List the golem's `rules` that hold in a situation, and the `worth` of each action by its most special rule.

        Parameters
        ----------
        situation : conditions, as words or whole numbers
        action : only rules about this action
        """
        wanted = _present({"conditions": json.dumps(dict(situation)), "action": action})
        return self._send(Call("GET", f"/v1/golems/{_escaped(self._golem(golem))}/advice", wanted))

    def birth(self, golem: str | None = None, **terms: Any) -> T:
        """Record the birth of a golem, and so found its owner; a repeated call changes nothing.

        Parameters
        ----------
        terms : owner, lineage, market, budget_dollars, lifespan_ticks, at
        """
        return self._send(_posted("/v1/golems", _present({"golem": self._golem(golem), **terms})))

    def golems(self) -> T:
        """List the golems in view."""
        return self._send(Call("GET", "/v1/golems"))

    def report(self, name: str, **parameters: Any) -> T:
        """Read a report, the facts that the command of its name prints; a list is in `rows`.

        Parameters
        ----------
        name : for example dreams, scars or golem-death; `GET /openapi.json` describes all, with their parameters
        """
        return self._send(Call("GET", f"/v1/reports/{_escaped(name)}", _present(parameters)))

    def golem_state(self, golem: str | None = None) -> T:
        """Return the state of a golem, now or at its death, as `bardo golem show` prints it."""
        return self._send(Call("GET", f"/v1/golems/{_escaped(self._golem(golem))}"))

    def lineage(self, entry: str, *, golem: str | None = None) -> T:
        """Trace an entry to the ticks that it was derived from; `holdings` are those of all golems in view.

        Parameters
        ----------
        entry : id, or a unique prefix
        golem : only this golem and its ancestors
        """
        return self._send(Call("GET", "/v1/lineage", _present({"entry": entry, "golem": golem})))

    def status(self) -> T:
        """Return the status of the home: log, health, faults, tables."""
        return self._send(Call("GET", "/v1/status"))


def _episode(given: str | Mapping[str, Any]) -> dict[str, Any]:
    fields = {"reflection": given} if isinstance(given, str) else _present(given)
    return {"tool": "note", "outcome": {}, "chain": "", **fields}


def _posted(path: str, document: Mapping[str, Any] | Sequence[Any], golem: str | None = None) -> Call:
    return Call("POST", path, content=json.dumps(document, default=str).encode(), golem=golem)


def _envelope(line: bytes, signer: Signer) -> bytes:
    """Return a signed line. Raises SignatureError for a line that names no golem."""
    try:
        golem_id = json.loads(line)["golem_id"]
    except (ValueError, TypeError, KeyError):
        golem_id = None
    if not isinstance(golem_id, str):
        raise SignatureError("the line is no JSON object with a golem_id: name the golem whose key signs it")
    return json.dumps({"line": line.decode(), "signature": signer.signature_line(golem_id, line)}).encode()


def _checked_draft(line: str, golem_id: str, report: Mapping[str, Any]) -> str:
    """Return a drafted record.

    Raises SignatureError if golem, tick, domain, experience or read entries differ from the report, or a part in
    _UNREPORTED is not empty.
    """
    record = json.loads(line)
    tick, domain = report.get("tick", record["tick"]), record["observation"]["protocol"]
    expected = {"golem_id": golem_id, "tick": tick, "experiences": [_experience(report, tick)], **_UNREPORTED}
    is_same = {name: record.get(name) for name in expected} == expected and domain == report.get("domain", domain)
    read = [entry["entry_id"] for entry in record["retrieved_entries"]]
    if not is_same or read != [*dict.fromkeys(report.get("entries_read", ()))]:
        raise SignatureError(f"golem {golem_id}: the server drafted another record than the report: nothing was signed")
    return line


_UNREPORTED: dict[str, Any] = {"actions": [], "outcome": None, "resolutions": [], "trials": None}
"""Parts of a record that teach rules and that a report never fills, each with its empty value."""


def _experience(report: Mapping[str, Any], tick: int) -> Document:
    """Return the experience that the record of a report states."""
    words = {name: str(value).lower() if value is True or value is False else str(value)
             for name, value in report["situation"].items()}  # fmt: skip
    return {
        "decision_tick": report.get("decision_tick", tick),
        "action": report["action"],
        "conditions": [{"name": name, "value": words[name]} for name in sorted(words)],
        "reward_ppm": _ppm(report["reward"]),
        "alternatives": [{"action": name, "reward_ppm": _ppm(reward)}
                         for name, reward in sorted(report["alternatives"].items())],
        "verified": report.get("verified", True),
        "ground_truth_source": report.get("ground_truth_source", "runtime"),
    }  # fmt: skip


def _ppm(reward: float | None) -> int | None:
    return None if reward is None else round(reward * 1e6)


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _escaped(part: str) -> str:
    return quote(part, safe="")


def _line(record: Any) -> bytes:
    if isinstance(record, bytes):
        return record
    if isinstance(record, str):
        return record.encode()
    if hasattr(record, "model_dump_json"):
        return str(record.model_dump_json()).encode()
    return json.dumps(record, default=str).encode()
