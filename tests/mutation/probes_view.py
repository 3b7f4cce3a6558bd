"""Probes of the viewer: who is told, and what."""

from __future__ import annotations

import http.client
import json
import socket
import tempfile
import threading
from contextlib import closing
from pathlib import Path
from unittest import mock

from intercode import records
from intercode.cli import view
from intercode.episode import Episode, Score, Turn
from intercode.report.live_runs import ViewerRuns
from intercode.report.server import RunViewerServer
from intercode.report.text import escape_formula
from intercode.report.viewer_episodes import make_body
from intercode.report.viewer_page import page
from waiting import eventually

from .tools import one_of

GOLD = "what-gold-prints"


def _asked(token: str = "", host: str = "") -> int:
    """Ask the server for its page; return the status."""
    with tempfile.TemporaryDirectory() as folder:
        viewer = RunViewerServer(ViewerRuns([Path(folder)]))
        thread = threading.Thread(target=viewer.serve)
        thread.start()
        try:
            port = viewer.url.split(":")[2].split("/")[0]
            with closing(http.client.HTTPConnection("127.0.0.1", int(port))) as asked:
                headers = {"Host": host} if host else {}
                asked.request("GET", f"/{token or viewer.token}/", headers=headers)
                return asked.getresponse().status
        finally:
            viewer.close()
            thread.join()


def view_token() -> bool:
    return one_of(str(_asked(token="wrong")), holds="401", gone="200")


def view_link() -> bool:
    arguments = list[str]()
    with tempfile.TemporaryDirectory() as folder, mock.patch("webbrowser.open", arguments.append):
        view._open("http://127.0.0.1:1/secret/", Path(folder) / "view.html")
        eventually(lambda: bool(arguments))
    return one_of(str("secret" in arguments[0]), holds="False", gone="True")


def tables_without_formulas() -> bool:
    return one_of(escape_formula(" =1+1"), holds="' =1+1", gone=" =1+1")


def view_guard() -> bool:
    return one_of(str(_asked(host="evil.example")), holds="403", gone="200")


def view_head() -> bool:
    viewer = RunViewerServer(ViewerRuns([]))
    thread = threading.Thread(target=viewer.serve)
    thread.start()
    try:
        address = "127.0.0.1", int(viewer.url.split(":")[2].split("/")[0])
        with socket.create_connection(address) as client:
            client.sendall(b"GET / HTTP/1.1\r\n" + (b"X: " + b"y" * 9000 + b"\r\n") * 4 + b"\r\n")
            return client.recv(100).startswith(b"HTTP/1.1 431")
    finally:
        viewer.close()
        thread.join()


def _episode() -> Episode:
    score = Score(0.0, {"output": 0.0}, {"output": "x", "gold_output": GOLD})
    return Episode("t", "q", "bash", turns=[Turn("ls", "")], status="submitted", score=score)


def view_hidden_gold() -> bool:
    return GOLD not in json.dumps(make_body(_episode(), hide_gold=True))


def view_hidden_gold_of_agents() -> bool:
    told = Episode("t", "q", "bash", turns=[Turn(GOLD, "")], status="submitted", score=Score(1.0))
    return GOLD not in json.dumps(make_body(told, hide_gold=True, shown_gold=True))


def view_search_of_hidden_gold() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        named = {"name": "x", "digest": "d", "tasks": 1, "options": {}, "source": None}
        made = {"format": 1, "dataset": named, "env": {"env": "bash"}, "agent": named}
        made |= {"seed": 0, "excluded": {}, "sessions": [], "needs_gold": False}
        (Path(folder) / records.MANIFEST).write_text(json.dumps(made))
        (Path(folder) / records.EPISODES).write_text(_episode().to_json() + "\n")
        library = ViewerRuns([Path(folder)], hide_gold=True)
        library.refresh()
        found = [hit for _, hit in library.search(GOLD)]
    return one_of(str(found), holds="[False]", gone="[True]")


def view_end_of_an_element() -> bool:
    return "</script><b>" not in page("t", {"title": "</script><b>"}, {})
