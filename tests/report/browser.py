"""Headless Chromium, controlled through the DevTools protocol over a pair of pipes: no driver, no socket, no port.

The protocol: https://chromedevtools.github.io/devtools-protocol; over pipes, messages end with a zero byte.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import PATIENCE

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
PHONE, DESK = 400, 1400  # widths in CSS pixels


def find() -> str | None:
    """The browser's command, where there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """A running browser; every page of it is a target of its own."""

    def __init__(self, send: int, receive: int) -> None:
        self.send, self.receive = os.fdopen(send, "wb"), os.fdopen(receive, "rb")
        self.last = 0
        self.pages: dict[str, Page] = {}
        self.rest = b""

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer; events that come before it go to their pages."""
        self.last += 1
        message = {"id": self.last, "method": method, "params": params} | ({"sessionId": session} if session else {})
        self.send.write(json.dumps(message).encode() + b"\0")
        self.send.flush()
        while (answer := self.next()).get("id") != self.last:
            pass
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def next(self) -> dict[str, Any]:
        """The next message; an event is kept by its page."""
        while b"\0" not in self.rest:
            got = os.read(self.receive.fileno(), 1 << 20)
            assert got, "the browser has gone"
            self.rest += got
        raw, _, self.rest = self.rest.partition(b"\0")
        message = json.loads(raw)
        if "method" in message and message.get("sessionId") in self.pages:
            self.pages[message["sessionId"]].events.append(message)
        return message

    def open(self, file: Path, *, width: int = DESK, dark: bool = False, scripts: bool = True) -> Page:
        """A file in a page of its own, loaded to its end."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        page.call("Emulation.setEmulatedMedia", features=scheme)
        page.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        page.size(width, 900)
        answer = page.call("Page.navigate", url=file.resolve().as_uri())
        assert "errorText" not in answer, answer
        while not page.seen("Page.loadEventFired"):
            self.next()
        return page


class Page:
    """One page. `events` holds all that the browser told of it."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser, self.session = browser, session
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def seen(self, method: str) -> list[dict[str, Any]]:
        """The parameters of every event of a kind."""
        return [event["params"] for event in self.events if event["method"] == method]

    def __call__(self, expression: str) -> Any:
        """The value of a JavaScript expression, as JSON would hold it."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def size(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def press(self, key: str, code: int) -> None:
        """A key, down and up: ("Tab", 9), ("Enter", 13)."""
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def screenshot(self, height: int | None = None, scale: float = 1) -> bytes:
        """A PNG of the whole page, or of so many pixels from its top."""
        box = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": box["width"], "height": height or box["height"], "scale": scale}
        return base64.b64decode(self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"])

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])


@contextmanager
def running(command: str) -> Iterator[Browser]:
    """A browser with a fresh profile, gone at the end."""
    flags = "--headless=new --remote-debugging-pipe --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run"
    (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        words = [command, *flags.split(), f"--user-data-dir={profile}", "about:blank"]
        shell = ["bash", "-c", f'exec "$@" 3<&{their_in} 4>&{their_out}', "bash", *words]
        process = subprocess.Popen(shell, pass_fds=(their_in, their_out), stderr=subprocess.DEVNULL)
        os.close(their_in)
        os.close(their_out)
        browser = Browser(our_out, our_in)
        try:
            yield browser
            browser.call("Browser.close")
        finally:
            process.terminate()
            process.wait(PATIENCE)
            browser.send.close()
            browser.receive.close()
