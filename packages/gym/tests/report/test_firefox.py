"""The viewer in Debian's Firefox, by WebDriver BiDi: its main features, once."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from intercode.report.live_runs import ViewerRuns
from intercode.report.server import RunViewerServer
from report.test_browser import episode, hostile
from report.test_view import append, begun
from waiting import PATIENCE

FIREFOX = shutil.which("firefox-esr")
ENTER = "\ue007"


class Tab:
    """A tab of Firefox, which playwright can only drive in a build of its own."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self.asked("session.new", capabilities={})
        self._context = self.asked("browsingContext.getTree")["contexts"][0]["context"]

    def asked(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            told = json.loads(self._socket.recv(PATIENCE))
            if told.get("id") == number:
                assert told["type"] == "success", told
                return told["result"]

    def go(self, url: str) -> None:
        self.asked("browsingContext.navigate", context=self._context, url=url, wait="complete")

    def value(self, expression: str) -> Any:
        """The value of an expression, when it has one."""
        wait = f"""(async () => {{
            for (;;) {{
                const value = {expression};
                if (value) return value;
                await new Promise((after) => setTimeout(after, 20));
            }}
        }})()"""
        target = {"context": self._context}
        told = self.asked("script.evaluate", expression=wait, target=target, awaitPromise=True)
        assert told["type"] == "success", told
        return told["result"]["value"]

    def text(self, selector: str, has: str = "") -> str:
        of = f"document.querySelectorAll({json.dumps(selector)})"
        inner = "(one) => one.innerText"
        return str(self.value(f"[...{of}].map({inner}).find((t) => t.includes({json.dumps(has)}))"))

    def press(self, key: str) -> None:
        actions = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        source = {"type": "key", "id": "keys", "actions": actions}
        self.asked("input.performActions", context=self._context, actions=[source])


@contextmanager
def firefox(profile: Path) -> Iterator[Tab]:
    from websockets.sync.client import connect

    command = [str(FIREFOX), "--headless", "--no-remote", "--profile", str(profile)]
    environment = {"HOME": str(profile), "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(
        [*command, "--remote-debugging-port", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            assert process.stderr is not None
            found = (re.search("BiDi listening on (ws://.*)", line) for line in process.stderr)
            url = next(match[1] for match in found if match)
            # Nobody else reads what it says from here on.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            with connect(f"{url}/session", max_size=None) as socket:
                yield Tab(socket)
        finally:
            process.kill()


@pytest.mark.skipif(FIREFOX is None, reason="firefox-esr is not installed")
def test_in_firefox(tmp_path: Path) -> None:
    run = begun(tmp_path / "runs" / "A", tasks=20)
    append(run, *(episode(number, good=number % 2 == 0) for number in range(10)), hostile())
    append(begun(tmp_path / "runs" / "B", tasks=20), *(episode(n, good=n < 9) for n in range(10)))
    (tmp_path / "profile").mkdir()
    viewer = RunViewerServer(ViewerRuns([tmp_path / "runs"]))
    serving = threading.Thread(target=viewer.serve)
    serving.start()
    try:
        with firefox(tmp_path / "profile") as tab:
            tab.go(viewer.url)
            assert "B and A" in tab.text(".results tr.open", "no difference is shown")
            tab.press("4")
            assert tab.text("[role=status].note", "21 of 21 episodes")
            append(run, episode(10, good=False))
            assert tab.text("[role=status].note", "22 of 22 episodes"), "it is live"
            tab.go(f"{viewer.url}#episodes?state=failed&run=A&q=task-01")
            assert tab.text("[role=status].note", "1 of 22 episodes")
            tab.press("j")
            tab.press(ENTER)
            assert tab.text("h1", "task-01").endswith("not-solved")
            assert tab.text(".why .pair td.added") == "+\n2"
            assert tab.text("pre.action .code-keyword") == "for"
            tab.go(f"{viewer.url}#compare")
            assert tab.text("[aria-label='tasks that flipped'] th", "task-01")
            tab.go(f"{viewer.url}#episodes?q=window.evil")
            assert tab.text("[role=status].note", "1 of 22 episodes")
            tab.press("j")
            tab.press(ENTER)
            assert tab.text(".turn pre", "window.evil=1")
            assert tab.value("window.evil === undefined")
            assert tab.value("!document.querySelector('main img, main script, main iframe')")
    finally:
        viewer.close()
        serving.join(PATIENCE)
