"""A real Chromium, driven over the WebDriver protocol by Debian's packages `chromium` and `chromium-driver`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

needs_chromium = pytest.mark.skipif(
    shutil.which("chromium") is None or shutil.which("chromedriver") is None,
    reason="there is no chromium with chromedriver: `apt-get install chromium chromium-driver`",
)

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_OPTIONS = {
    "args": ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--window-size=1200,900"],
}


class Browser:
    """A session of a browser. url: address of the session at its driver."""

    def __init__(self, http: httpx.Client, url: str) -> None:
        self._http, self._url = http, url

    def command(self, method: str, path: str, **arguments: Any) -> Any:
        """Send a command of the protocol and return its value."""
        given = {"json": arguments} if method == "POST" else {}
        answer = self._http.request(method, f"{self._url}{path}", **given)
        assert answer.is_success, answer.text
        return answer.json()["value"]

    def open(self, url: str) -> None:
        """Load a page."""
        self.command("POST", "/url", url=url)

    def run(self, script: str) -> Any:
        """Run a script in the page and return its result."""
        return self.command("POST", "/execute/sync", script=script, args=[])

    def find(self, selector: str) -> str:
        """Return the id of the first element that a CSS selector matches."""
        element: dict[str, str] = self.command("POST", "/element", using="css selector", value=selector)
        return element[_ELEMENT]

    def text(self) -> str:
        """Return the visible text of the page."""
        return str(self.run("return document.body.innerText"))

    def wait_for(self, words: str, seconds: float = 30.0) -> None:
        """Wait until the page shows some words."""
        deadline = time.monotonic() + seconds
        while words not in (shown := self.text()):
            assert time.monotonic() < deadline, f"the page does not show {words!r}, but {shown[:500]!r}"
            time.sleep(0.2)

    def complaints(self) -> list[str]:
        """Return new messages of the console about refused files, failed loads and errors; see _is_fault."""
        entries = self.command("POST", "/se/log", type="browser")
        return [entry["message"] for entry in entries if _is_fault(entry)]

    def loads(self) -> set[str]:
        """Return the hosts that the browser asked for something since the last call."""
        hosts = set()
        for entry in self.command("POST", "/se/log", type="performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = httpx.URL(message["params"]["request"]["url"])
                if url.scheme in ("http", "https"):
                    hosts.add(f"{url.host}:{url.port}")
        return hosts


def _is_fault(entry: dict[str, Any]) -> bool:
    """Whether an entry of the console is a fault of a page; a browser asks for /favicon.ico by itself."""
    return entry["level"] in ("WARNING", "SEVERE") and "/favicon.ico" not in entry["message"]


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Start a driver on a free port, and a browser with its profile in a folder, until the block ends."""
    driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True, cwd=folder)
    try:
        assert driver.stdout is not None
        port = next(
            port_line[1] for line in driver.stdout if (port_line := re.search(r"on port (\d+)\.$", line.strip()))
        )
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=120) as http:
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": {
                    **_OPTIONS,
                    "args": [*_OPTIONS["args"], f"--user-data-dir={folder / 'profile'}"],
                },
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            }
            answer = http.post("/session", json={"capabilities": {"alwaysMatch": wanted}})
            assert answer.is_success, answer.text
            session = Browser(http, f"/session/{answer.json()['value']['sessionId']}")
            yield session
            session.command("DELETE", "")
    finally:
        driver.terminate()
        driver.wait(30)
