"""Chromium for tests, driven over its debugging pipe: no package is needed, only the browser."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

BINARY = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"),
)
# the browser reads commands from descriptor 3 and answers on 4
LAUNCH = """
import fcntl, os, sys
apart = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for place, number in zip((3, 4), apart):
    os.dup2(number, place)
os.execv(sys.argv[3], sys.argv[3:])
"""
PATIENCE = 30.0  # seconds


class Browser:
    """One page. Whatever it complains of is in `complaints`."""

    def __init__(self) -> None:
        assert BINARY
        self.home = tempfile.mkdtemp()
        (reads, self.to), (self.answers, writes) = os.pipe(), os.pipe()
        words = [sys.executable, "-c", LAUNCH, str(reads), str(writes), BINARY, *FLAGS, f"--user-data-dir={self.home}"]
        nowhere = subprocess.DEVNULL
        self.process = subprocess.Popen(words, pass_fds=(reads, writes), stdout=nowhere, stderr=nowhere)
        os.close(reads)
        os.close(writes)
        self.numbers, self.kept, self.events = itertools.count(1), b"", list[dict[str, Any]]()
        self.complaints: list[str] = []
        self.session = None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params} | ({"sessionId": self.session} if self.session else {})
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def open(self, page: Path, width: int, scheme: str, height: int = 900) -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.ask("Page.navigate", url=page.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._note(self._read())

    def run(self, script: str) -> Any:
        """The value of an expression on the page."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self, path: Path) -> None:
        """The whole page."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = self.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        os.close(self.to)
        os.close(self.answers)
        self.process.terminate()
        self.process.wait(20)
        shutil.rmtree(self.home, ignore_errors=True)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self.kept:
            ready, _, _ = select.select([self.answers], [], [], PATIENCE)
            more = os.read(self.answers, 1 << 20) if ready else b""
            if not more:
                raise RuntimeError("the browser does not answer")
            self.kept += more
        message, _, self.kept = self.kept.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"):
            self.complaints.append(json.dumps(event["params"]))
