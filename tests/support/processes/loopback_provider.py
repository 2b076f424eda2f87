"""A local model provider: an HTTP server that speaks a provider's protocol and returns prepared answers.

Two protocols: chat completions (OpenAI and all that speak like it), messages (Anthropic). It counts requests.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from bardo_pipeline.gateway.model_request import ModelSettings

INPUT_TOKENS, OUTPUT_TOKENS = 1_000, 100
OUTPUT_TOOL = "final_result"


@dataclass(frozen=True)
class Reply:
    """One response. arguments: of the call that carries the answer, as text; None for no call.

    text: beside the call or instead of it; refusal: reason of a refused answer; status: of HTTP; held: no answer until
    the server stops; body: in place of everything else; cut: the connection breaks half-way; usage: whether tokens are
    counted.
    """

    arguments: str | None = None
    text: str | None = None
    refusal: str | None = None
    finish: str | None = None
    status: int = 200
    held: bool = False
    body: bytes | None = None
    cut: bool = False
    usage: bool = True


def operations(*given: Mapping[str, Any]) -> Reply:
    """An answer with these operations."""
    return Reply(arguments=json.dumps({"operations": list(given)}))


@dataclass
class Loopback:
    """The provider: its prepared answers, the last repeated, and the received requests."""

    url: str
    script: list[Reply] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def settings(self) -> ModelSettings:
        """Settings for chat completions."""
        return ModelSettings("openai-chat", "loopback-1", f"{self.url}/v1")

    @property
    def messages(self) -> ModelSettings:
        """Settings for messages."""
        return ModelSettings("anthropic", "loopback-1", self.url)

    def answering(self, *script: Reply) -> Loopback:
        """Set the prepared answers, and clear the received requests."""
        self.script, self.requests = list(script), []
        return self

    def next(self, request: dict[str, Any]) -> Reply:
        """Return the answer to this request."""
        self.requests.append(request)
        return self.script[min(len(self.requests), len(self.script)) - 1]


@contextmanager
def loopback() -> Iterator[Loopback]:
    """A provider for the time of a test."""
    holder: list[Loopback] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Suppress output on the terminal."""

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            provider = holder[0]
            statement = provider.next({"path": self.path, **body})
            if statement.held:
                provider.stopped.wait(30)
                return
            answer = _completion if self.path.endswith("/chat/completions") else _message
            body = statement.body if statement.body is not None else json.dumps(answer(statement)).encode()
            self._send(statement.status, body, len(body) // 2 if statement.cut else len(body))

        def _send(self, status: int, body: bytes, sent: int) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:sent])

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider = Loopback(f"http://127.0.0.1:{server.server_port}")
    holder.append(provider)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        provider.stopped.set()
        server.shutdown()
        server.server_close()
        thread.join()


Answer = Callable[[Reply], dict[str, Any]]


def _completion(answer: Reply) -> dict[str, Any]:
    if answer.status != 200:
        return {"error": {"message": "the server is having a bad day", "type": "server_error"}}
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": answer.refusal}
    if answer.arguments is not None:
        function = {"name": OUTPUT_TOOL, "arguments": answer.arguments}
        message["tool_calls"] = [{"id": "call-1", "type": "function", "function": function}]
    finish = answer.finish or ("tool_calls" if answer.arguments is not None else "stop")
    out: dict[str, Any] = {
        "id": "completion-1", "object": "chat.completion", "created": 1_700_000_000, "model": "loopback-1",
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
    }  # fmt: skip
    if answer.usage:
        total = INPUT_TOKENS + OUTPUT_TOKENS
        out["usage"] = {"prompt_tokens": INPUT_TOKENS, "completion_tokens": OUTPUT_TOKENS, "total_tokens": total}
    return out


def _message(answer: Reply) -> dict[str, Any]:
    if answer.status != 200:
        return {"type": "error", "error": {"type": "api_error", "message": "the server is having a bad day"}}
    content: list[dict[str, Any]] = [] if answer.text is None else [{"type": "text", "text": answer.text}]
    if answer.arguments is not None:
        use = {"type": "tool_use", "id": "use-1", "name": OUTPUT_TOOL, "input": json.loads(answer.arguments)}
        content.append(use)
    return {
        "id": "message-1", "type": "message", "role": "assistant", "model": "loopback-1", "content": content,
        "stop_reason": answer.finish or ("tool_use" if answer.arguments is not None else "end_turn"),
        "stop_sequence": None,
        "usage": {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS},
    }  # fmt: skip
