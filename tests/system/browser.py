"""Debian's chromium, driven through its own pipe: JSON messages that end in NUL, on descriptors 3 and 4."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe")


class Page:
    """One page; everything it said and asked for is kept."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from, self._left = to_browser, from_browser, b""
        self._session: str | None = None
        self._number = 0
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, file: Path, width: int = 1280, *, dark: bool = False) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        loads = self._loads()
        self.call("Page.navigate", url=file.absolute().as_uri())
        while self._loads() == loads:
            self.events.append(self._receive())

    def _loads(self) -> int:
        return sum(event["method"] == "Page.loadEventFired" for event in self.events)

    def ask(self, expression: str) -> Any:
        """The value of some JavaScript."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def complaints(self) -> list[Any]:
        """Errors and warnings of the console."""
        loud = {"Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"}
        return [event["params"] for event in self.events if event["method"] in loud]

    def requests(self) -> list[str]:
        sent = [event["params"] for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [request["request"]["url"] for request in sent]

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer["error"]
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            more = os.read(self._from, 1 << 16)
            assert more, "chromium has gone"
            self._left += more
        line, _, self._left = self._left.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


@contextmanager
def chromium(profile: Path) -> Iterator[Page]:
    program = shutil.which("chromium")
    assert program, "chromium is not installed; make test-system installs it"
    (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
    command = ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", program, *OPTIONS]
    process = subprocess.Popen(
        [*command, f"--user-data-dir={profile}"], pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Page(ours_out, ours_in)
    finally:
        process.terminate()
        process.wait(timeout=30)
        os.close(ours_out)
        os.close(ours_in)
