"""The viewer's server: what it tells of runs that go on, and whom it tells."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from intercode import records
from intercode.episode import Episode, Fork, Score, Turn
from intercode.errors import RecordError
from intercode.evaluate.manifest import session
from intercode.report.live_runs import ViewerRuns
from intercode.report.server import RunViewerServer
from waiting import PATIENCE, eventually

GOLD = "THE-GOLD"


def begun(folder: Path, *, tasks: int = 10, needs_gold: bool = False) -> Path:
    folder.mkdir(parents=True)
    manifest = {
        "format": 1,
        "dataset": {"name": "fake", "source": None, "digest": "d", "tasks": tasks},
        "env": {"env": "bash", "protocol": "default"},
        "agent": {"name": folder.name, "options": {}, "digest": ""},
        "needs_gold": needs_gold,
        "seed": 0,
        "excluded": {},
        "sessions": [session(epochs=1, limit=None, tasks=None)],
    }
    (folder / records.MANIFEST).write_text(json.dumps(manifest))
    (folder / records.EPISODES).touch()
    return folder


def episode(number: int, *, good: bool = True, said: str = "seen") -> Episode:
    detail: dict[str, Any] = {} if good else {"output": "x", "gold_output": GOLD}
    score = Score(float(good), {"output": float(good)}, detail)
    turns = [Turn(f"echo {number}", said, seconds=0.5)]
    made = Episode(f"t{number}", f"task {number}", "bash", turns=turns, score=score)
    made.status, made.seconds = "submitted", 1.0
    return made


def append(folder: Path, *episodes: Episode) -> None:
    with (folder / records.EPISODES).open("a") as file:
        for one in episodes:
            file.write(one.to_json() + "\n")


def all_read(library: ViewerRuns) -> ViewerRuns:
    while library.refresh():
        pass
    return library


def test_what_is_appended_is_read_as_it_comes(tmp_path: Path) -> None:
    one = begun(tmp_path / "one")
    append(one, episode(1))
    library = all_read(ViewerRuns([tmp_path]))
    assert [row.task for row in library.rows] == ["t1"]
    line = episode(2, good=False).to_json()
    with (one / records.EPISODES).open("a") as file:
        file.write(line[:50])
    assert not library.refresh() and len(library.rows) == 1, "a torn line is none yet"
    with (one / records.EPISODES).open("a") as file:
        file.write(line[50:] + "\n")
    append(begun(tmp_path / "two"), episode(1, good=False), episode(1))
    all_read(library)
    assert [(row.run, row.task, row.success) for row in library.rows] == [
        (0, "t1", True),
        (0, "t2", False),
        (1, "t1", False),
        (1, "t1", True),
    ]
    assert [run["name"] for run in library.runs()] == ["one", "two"]
    report = json.loads(library.overview()[1])
    assert [(run["done"], run["errors"]) for run in report["runs"]] == [(2, 0), (1, 0)]
    assert len(report["pairs"]) == 1 and "unfinished" in report["warnings"][0]
    body = library.body(1)
    assert GOLD in json.dumps(body["pairs"]) and body["turns"][0]["action"] == "echo 2"
    assert list(library.search("ECHO 2")) == [(0, False), (1, True), (2, False), (3, False)]
    assert not any(found for _, found in library.search("observation")), "the name of a field"
    assert [at for at, found in library.search("t1", 2) if found] == [2, 3]


def test_a_file_that_was_replaced_is_read_once_more(tmp_path: Path) -> None:
    one = begun(tmp_path / "one")
    append(one, *(episode(n) for n in range(5)))
    library = all_read(ViewerRuns([one]))
    searching = library.search("echo")
    assert next(searching) == (0, True)
    (one / records.EPISODES).write_text(episode(9, said="echo " * 200).to_json() + "\n")
    # Within the new line, or after it.
    assert list(searching) == [(at, False) for at in range(1, 5)]
    all_read(library)
    assert library.generation == 1 and [row.task for row in library.rows] == ["t9"]


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="neither the folder of a run"):
        ViewerRuns([tmp_path / "none"])
    one = begun(tmp_path / "one")
    append(one, episode(1))
    with (one / records.EPISODES).open("a") as file:
        file.write('{"no": "episode"}\n')
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / records.MANIFEST).write_text("{")
    with pytest.raises(RecordError, match="not JSON"):
        ViewerRuns([tmp_path / "two"])
    library = all_read(ViewerRuns([tmp_path]))
    assert len(library.rows) == 1
    *_, line, damaged = json.loads(library.overview()[1])["warnings"]
    assert "episodes.jsonl, byte" in line and "is not JSON" in damaged


def test_gold_that_is_hidden_is_not_found_either(tmp_path: Path) -> None:
    oracle = begun(tmp_path / "oracle", needs_gold=True)
    append(oracle, episode(1, said=GOLD))
    append(begun(tmp_path / "one"), episode(2, good=False))
    library = all_read(ViewerRuns([tmp_path], hide_gold=True))
    assert len(library.rows) == 2
    for at in range(2):
        assert GOLD not in json.dumps(library.body(at)) and library.body(at)["hidden"]
    assert not any(found for _, found in library.search(GOLD))
    shown = all_read(ViewerRuns([tmp_path]))
    assert all(found for _, found in shown.search(GOLD))


def test_a_fork_may_come_before_the_attempt_that_it_is_of(tmp_path: Path) -> None:
    one = begun(tmp_path / "one")
    fork = episode(1)
    fork.fork = Fork("t1#0", 1, (0,))
    append(one, fork, episode(2, good=False))
    library = all_read(ViewerRuns([one]))
    assert json.loads(library.overview()[1])["runs"][0]["rate"] == 0.5


def test_forks_and_troubles_are_in_the_rows(tmp_path: Path) -> None:
    one = begun(tmp_path / "one")
    fork, late, failed = episode(1), episode(2, good=False), episode(3)
    fork.fork = Fork("t1#0", 1, (0,))
    late.turns = [Turn("sleep", "", info={"timed_out": True})]
    late.metadata = {"ended_by": "tokens", "tags": ["hard", "x"]}
    failed.status, failed.score, failed.metadata = "error", None, {"error_type": "SandboxError"}
    append(one, episode(1), fork, late, failed)
    rows = all_read(ViewerRuns([one])).rows
    assert [row.parent for row in rows] == [None, "t1#0", None, None]
    assert rows[1].id == "t1#0.0"
    assert (rows[2].kinds, rows[2].level) == (("timeout", "limit: tokens"), "hard")
    assert rows[3].kinds == ("SandboxError",) and rows[3].reward is None


# The server


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[RunViewerServer, Path]]:
    one = begun(tmp_path / "one")
    append(one, episode(1), episode(2, good=False))
    viewer = RunViewerServer(ViewerRuns([tmp_path]))
    thread = threading.Thread(target=viewer.serve)
    thread.start()
    yield viewer, one
    viewer.close()
    thread.join(PATIENCE)


def connection(viewer: RunViewerServer) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(viewer.url).netloc, timeout=PATIENCE)


def get(
    viewer: RunViewerServer, path: str, headers: dict[str, str] | None = None, method: str = "GET"
) -> tuple[int, str]:
    asked = connection(viewer)
    asked.request(method, path, headers=headers or {})
    answer = asked.getresponse()
    told = answer.status, answer.read().decode()
    asked.close()
    return told


def events(viewer: RunViewerServer, query: str = "") -> Iterator[tuple[str, Any]]:
    asked = connection(viewer)
    asked.request("GET", f"/{viewer.token}/events{query}")
    answer = asked.getresponse()
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    try:
        while line := answer.readline().decode():
            if line.startswith("event: "):
                yield line[7:-1], json.loads(answer.readline().decode()[6:])
    finally:
        answer.close()
        asked.close()


def test_news_are_sent_as_they_come(served: tuple[RunViewerServer, Path]) -> None:
    viewer, one = served
    news = events(viewer)
    name, runs = next(news)
    assert name == "runs" and [run["name"] for run in runs] == ["one"]
    name, rows = next(news)
    assert (name, rows["from"], rows["columns"]["task"]) == ("rows", 0, ["t1", "t2"])
    name, report = next(news)
    assert name == "report" and report["runs"][0]["done"] == 2
    append(one, episode(3))
    name, rows = next(news)
    assert (name, rows["from"], rows["columns"]["task"]) == ("rows", 2, ["t3"])
    name, report = next(news)
    assert name == "report" and report["runs"][0]["done"] == 3
    (one / records.EPISODES).write_text(episode(9).to_json() + "\n")
    assert next(news) == ("reset", 1)
    assert next(news)[0] == "runs" and next(news)[1]["columns"]["task"] == ["t9"]
    news.close()
    # A page that has some is sent the rest; one that has those of another file, all.
    assert [name for name, _ in (next(events(viewer, "?generation=1&from=1")),)] == ["runs"]
    assert next(events(viewer, "?generation=0&from=5"))[0] == "reset"


def test_what_a_browser_asks_for(served: tuple[RunViewerServer, Path]) -> None:
    viewer, _ = served
    while viewer.library.refresh():
        pass
    base = f"/{viewer.token}"
    status, page = get(viewer, f"{base}/")
    assert status == 200 and '<script type="application/json" id="report">null</script>' in page
    assert "connect-src 'self'" in page and "unsafe" not in page
    status, body = get(viewer, f"{base}/episode?at=1")
    assert status == 200 and json.loads(body)["turns"][0]["action"] == "echo 2"
    status, found = get(viewer, f"{base}/search?words={quote('echo 2')}")
    lines = [json.loads(line) for line in found.splitlines()]
    assert [at for at, hit in lines if hit] == [1] and lines[-1] == [1, False]
    for path in ("episode?at=99", "episode?at=x", "episode?at=-1"):
        assert get(viewer, f"{base}/{path}")[0] == 400
    assert get(viewer, f"{base}/other")[0] == get(viewer, f"{base}/a/b")[0] == 404
    assert get(viewer, f"{base}/", method="POST")[0] == 501


def test_nobody_else_is_told(served: tuple[RunViewerServer, Path]) -> None:
    viewer, _ = served
    path = f"/{viewer.token}/episode?at=0"
    while viewer.library.refresh():
        pass
    assert get(viewer, path)[0] == 200
    for wrong in (
        "/",
        "/episode?at=0",
        f"/{viewer.token[:-1]}/",
        f"/{quote('é')}/",
        "/x" * 9,
        "*",
        "//[x",
    ):
        status, told = get(viewer, wrong)
        assert status == 401 and viewer.token not in told
    for headers in (
        {"Host": "evil.example"},
        {"Host": f"evil.example:{urlsplit(viewer.url).port}"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        assert get(viewer, path, headers)[0] == 403, headers
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    page = f"/{viewer.token}/"
    assert get(viewer, page, link | {"Sec-Fetch-Dest": "document"})[0] == 200
    assert get(viewer, page, link | {"Sec-Fetch-Dest": "iframe"})[0] == 403
    assert get(viewer, page, link)[0] == 403
    assert get(viewer, path, link | {"Sec-Fetch-Dest": "document"})[0] == 403
    assert get(viewer, "/wrong/", link | {"Sec-Fetch-Dest": "document"})[0] == 403
    asked = connection(viewer)
    asked.request("GET", path)
    answer = asked.getresponse()
    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert answer.headers["Cache-Control"] == "no-store"
    asked.close()


def test_the_command(tmp_path: Path) -> None:
    append(begun(tmp_path / "runs" / "one"), episode(1))
    command = [sys.executable, "-m", "intercode.cli", "view"]
    with subprocess.Popen([*command, "--json"], cwd=tmp_path, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        url = urlsplit(json.loads(process.stdout.readline())["url"])
        with closing(http.client.HTTPConnection(url.netloc, timeout=PATIENCE)) as asked:
            asked.request("GET", url.path)
            assert asked.getresponse().status == 200
        busy = subprocess.run(
            [*command, "--port", str(url.port)], cwd=tmp_path, capture_output=True
        )
        assert busy.returncode == 2 and b"cannot listen" in busy.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    nothing = subprocess.run(command, cwd=tmp_path / "runs", capture_output=True)
    assert nothing.returncode == 2 and b"runs/: name the folders of runs" in nothing.stderr


@pytest.mark.defends("lateral")
def test_a_browser_is_told_the_address_by_a_file(tmp_path: Path) -> None:
    """`ps` shows its arguments to all users."""
    append(begun(tmp_path / "runs" / "one"), episode(1))
    browser = tmp_path / "browser"
    browser.write_text(f"""#!{sys.executable}
import os, stat, sys, urllib.parse
path = urllib.parse.urlsplit(sys.argv[1]).path
modes = [stat.S_IMODE(os.stat(each).st_mode) for each in (os.path.dirname(path),)]
print(sys.argv[1], modes, open(path).read(), sep="\\n", file=open("{tmp_path}/new", "w"))
os.rename("{tmp_path}/new", "{tmp_path}/told")
""")
    browser.chmod(0o755)
    command = [sys.executable, "-m", "intercode.cli", "view", "--json", "--open"]
    env = {**os.environ, "BROWSER": f"{browser} %s"}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        assert eventually((tmp_path / "told").exists)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    argument, mode, page = (tmp_path / "told").read_text().split("\n", 2)
    assert url not in argument and urlsplit(url).path.strip("/") not in argument
    assert mode == str([0o700]) and url in page
    assert not Path(urlsplit(argument).path).exists()


def test_only_so_many_pages_are_kept_up_to_date(
    served: tuple[RunViewerServer, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    viewer, _ = served
    monkeypatch.setattr(viewer, "pages", threading.BoundedSemaphore(1))
    first = events(viewer)
    next(first)
    assert get(viewer, f"/{viewer.token}/events")[0] == 503
    first.close()
