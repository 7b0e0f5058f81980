"""A browser without a window, in which a test does what a person would."""

import json
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import connect
from websockets.sync.connection import Connection

from ..conftest import PATIENCE

ROW = """
    const label = [...document.querySelectorAll("*")].find(
        element => !element.children.length && element.textContent.trim() === {label});
    let row = label;
    while (!row.querySelector({control})) row = row.parentElement;
    const control = row.querySelector({control});
"""
"""Finds what belongs to a label."""
CAPTIONS = '[...document.querySelectorAll("figcaption")].map(caption => caption.textContent)'
CURVE = """
    (box => [box.left + box.width / 2, box.top + 9])
    (document.querySelector(".u-over").getBoundingClientRect())
"""
"""A place above the middle of a page's first curves."""
NARROW = 'document.body.style.maxWidth = "20rem"'
PLACES = """
    [...document.querySelectorAll(".chart")].map(one => one.getBoundingClientRect().top + scrollY)
"""


def captions_after_pointing(page: Path, folder: Path, curves: int) -> list[str]:
    """Choose minutes for the x-axis of a report and point at a curve. Return the captions then.

    The page draws so many `curves`, without an error and without a request that it forbids. No
    curve moves from under the pointer, however narrow they are.
    """
    with browse(page.absolute().as_uri(), folder, "--host-resolver-rules=MAP * ~NOTFOUND") as shown:
        until(lambda: shown.value('document.querySelectorAll("canvas").length') == curves)
        shown.value('along.value = "minutes"; along.onchange();')
        shown.value(NARROW)
        places = shown.value(PLACES)
        shown.value('document.querySelector(".u-over").scrollIntoView({block: "center"})')

        def captions() -> list[str]:
            x, y = shown.value(CURVE)
            for step in (1, 0):  # The page hears of a pointer that moves.
                shown.call("Input.dispatchMouseEvent", type="mouseMoved", x=x - step, y=y)
            return shown.value(CAPTIONS)

        until(lambda: any(" at " in caption for caption in captions()))
        # Such events come again, of all that has happened, once somebody asks for them.
        for domain in ("Runtime", "Log"):
            shown.call(f"{domain}.enable")
        shown.value("0")
        assert not shown.complaints, shown.complaints
        found = captions()
        assert shown.value(PLACES) == places
        return found


def until(holds: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait for something."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never held"
        time.sleep(0.1)


class Page:
    """A page in a browser, by the protocol of its developer tools."""

    def __init__(self, connection: Connection) -> None:
        self.complaints: list[Any] = []
        """Exceptions and what stands in the console, once `Runtime` and `Log` are enabled."""
        self._connection, self._calls = connection, 0

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._calls += 1
        call = {"id": self._calls, "method": method, "params": parameters}
        self._connection.send(json.dumps(call))
        while (answer := json.loads(self._connection.recv(PATIENCE))).get("id") != self._calls:
            if answer["method"] in (
                "Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown",
            ):  # fmt: skip
                self.complaints.append(answer["params"])
        return answer["result"]

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def of(self, label: str, control: str, expression: str) -> Any:
        """The value of an expression of the `control`, a selector, beside a label."""
        row = ROW.format(label=json.dumps(label), control=json.dumps(control))
        return self.value(f"(() => {{ {row} return {expression}; }})()")

    def text(self) -> str:
        return self.value("document.body.innerText")

    def click(self, x: float, y: float) -> None:
        for what in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=what, x=x, y=y, button="left", clickCount=1)


@contextmanager
def browse(address: str, folder: Path, *flags: str) -> Iterator[Page]:
    """A browser without a window, which shows an address."""
    command = ["chromium", "--headless=new", "--no-sandbox", "--disable-dev-shm-usage",
               "--disable-background-networking", "--enable-unsafe-swiftshader",
               "--window-size=1280,1000", f"--user-data-dir={folder / 'browser'}",
               "--remote-debugging-port=0", *flags, address]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as browser:
        try:
            port = folder / "browser" / "DevToolsActivePort"
            until(lambda: port.exists() and bool(port.read_text()))
            tools = f"http://localhost:{port.read_text().splitlines()[0]}/json/list"
            pages: list[Any] = []

            def is_open() -> bool:
                with urllib.request.urlopen(tools, timeout=PATIENCE) as answer:
                    pages[:] = [page for page in json.load(answer) if page["type"] == "page"]
                return bool(pages)

            until(is_open)
            with connect(pages[0]["webSocketDebuggerUrl"], max_size=None) as connection:
                yield Page(connection)
        finally:
            browser.terminate()
