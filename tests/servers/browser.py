"""A page in headless Chromium, driven by its DevTools protocol."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from websockets.sync.client import ClientConnection, connect

__all__ = ["CHROMIUM", "Page", "open_page"]

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
_PATIENCE_S: Final = 600.0


class Page:
    """A tab of the browser."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._number = 0
        self.requested: list[str] = []
        """The addresses that the page asked for."""
        self.errors: list[str] = []
        """The errors and warnings of the page's program."""
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; note events that come meanwhile."""
        self._number += 1
        self._connection.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(timeout=_PATIENCE_S))
            if message.get("id") == self._number:
                assert "error" not in message, message
                return dict(message["result"])
            self._note(message)

    def _note(self, event: dict[str, Any]) -> None:
        if event["method"] == "Network.requestWillBeSent":
            self.requested.append(event["params"]["request"]["url"])
        elif event["method"] == "Runtime.exceptionThrown":
            self.errors.append(str(event["params"]["exceptionDetails"]))
        elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.errors.append(str(event["params"]["entry"]))

    def go(self, url: str) -> None:
        """Open an address, and forget what earlier pages asked for and complained about."""
        self.call("Page.navigate", url="about:blank")
        # A page that is still there goes on with its requests, and their events come late.
        self.wait("location.href === 'about:blank' && document.readyState === 'complete'")
        self.requested.clear()
        self.errors.clear()
        self.call("Page.navigate", url=url)

    def resize(self, width: int, height: int, *, phone: bool = False, dark: bool = False) -> None:
        """Give the page the size of a screen."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def ask(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, expression: str) -> None:
        """Wait until an expression is true; until the page is there, it may fail."""
        deadline = time.monotonic() + _PATIENCE_S
        while not self.ask(
            f"(() => {{ try {{ return Boolean({expression}) }} catch {{ return false }} }})()"
        ):
            assert time.monotonic() < deadline, f"{expression}: {self.ask('document.body.innerText')}"
            time.sleep(0.05)  # the page changes without an event

    def draw(self, file: Path, *, whole: bool = True) -> None:
        """Write a screenshot of the whole page, or of the part that the screen shows, as PNG."""
        made = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(made["data"]))


@contextmanager
def open_page(directory: Path) -> Iterator[Page]:
    """Start Chromium with a profile in `directory`, and give its page."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--hide-scrollbars", "--no-first-run", "--remote-debugging-port=0", f"--user-data-dir={directory}",
        "about:blank",
    ]  # fmt: skip
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        ready = directory / "DevToolsActivePort"
        _wait(lambda: ready.exists() and len(ready.read_text().splitlines()) > 1, process)
        port = ready.read_text().splitlines()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
            (tab,) = [one for one in json.load(answer) if one["type"] == "page"]
        with connect(tab["webSocketDebuggerUrl"], max_size=None, compression=None) as connection:
            yield Page(connection)
    finally:
        process.terminate()
        process.wait(60)


def _wait(is_so: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        assert process.poll() is None, "Chromium has ended"
        assert time.monotonic() < deadline
        time.sleep(0.05)  # a file appears
