"""The viewer in Chromium: ten thousand episodes in a file, and a run that is watched as it goes on.

    .venv/bin/python benchmarks/view.py [--episodes 10000] [--watched 2000]

The times are those of a reader: from a click to what it shows. Needs Debian's Chromium, and the
package playwright. Docs: docs/how-to/view.md, "How much it can take".
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from intercode import records
from intercode.cli.main import main
from intercode.episode import Episode, Score, Turn

CLI = [sys.executable, "-m", "intercode.cli"]
FIVE = 5000
"""Milliseconds between two looks at the memory."""


def recorded(folder: Path, episodes: int) -> Path:
    """A run of so many episodes with six turns each, about 10 kB of text."""
    folder.mkdir()
    named = {"name": "made", "source": None, "digest": "", "tasks": episodes, "options": {}}
    manifest = {"format": 1, "dataset": named, "env": {"env": "bash"}, "agent": named}
    manifest |= {"needs_gold": False, "seed": 0, "excluded": {}, "sessions": []}
    (folder / records.MANIFEST).write_text(json.dumps(manifest))
    chance = random.Random(0)
    words = [f"w{chance.randrange(10**6)}" for _ in range(5000)]

    def text(count: int) -> str:
        return " ".join(chance.choices(words, k=count))

    with (folder / records.EPISODES).open("w") as file:
        for number in range(episodes):
            turns = [Turn(text(8), text(180), seconds=0.1) for _ in range(6)]
            made = Episode(f"n{number}", f"query {number} {text(30)}", "bash", turns=turns)
            made.status, made.score, made.seconds = "submitted", Score(float(number % 2)), 1.0
            file.write(made.to_json() + "\n")
    return folder


def timed(what: str, act: Callable[[], Any]) -> None:
    began = time.perf_counter()
    act()
    print(f"{what}: {1000 * (time.perf_counter() - began):.0f} ms", flush=True)


def of_a_file(browser: Any, folder: Path, episodes: int) -> None:
    """Open, filter, sort, search; open an episode."""
    run, page = recorded(folder / "many", episodes), folder / "many.html"
    timed("report --html", lambda: main(["report", str(run), "--html", str(page), "--csv"]))
    print(f"page: {page.stat().st_size / 1e6:.0f} MB")
    tab = browser.new_page()
    tab.set_default_timeout(600_000)

    def rows(count: int) -> None:
        tab.wait_for_selector(f'table.grid[aria-rowcount="{count + 1}"]')

    def opened() -> None:
        tab.goto(f"{page.as_uri()}#episodes")
        rows(episodes)

    def filtered() -> None:
        tab.get_by_label("outcome").select_option("solved")
        rows(episodes // 2)

    def ordered() -> None:
        tab.get_by_role("button", name="turns").click()
        tab.wait_for_selector("th[aria-sort]")

    def searched() -> None:
        tab.get_by_label("search all texts").fill(f"query {episodes - 1} ")
        tab.get_by_text(f"1 of {episodes:,} episodes", exact=True).wait_for()

    def shown() -> None:
        tab.locator("td.task a").first.click()
        tab.locator(".turn").first.wait_for()

    for act in (opened, filtered, ordered, searched, shown):
        timed(act.__name__, act)
    tab.close()


def of_a_run(browser: Any, folder: Path, episodes: int) -> None:
    """The throughput of a run alone and watched; the memory of the server and of the page."""
    watched = folder / "watched"
    watched.mkdir()

    def run(out: Path) -> subprocess.Popen[bytes]:
        options = ["--agent", "noop", "--limit", "50", "--epochs", str(episodes // 50)]
        command = [*CLI, "run", "bash", *options, "--workers", "2", "--out", str(out), "--quiet"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def rate(out: Path) -> str:
        session = json.loads((out / records.MANIFEST).read_text())["sessions"][-1]
        return f"{session['episodes'] / session['seconds']:.1f} episodes a second"

    run(folder / "alone").wait()
    print(f"alone: {rate(folder / 'alone')}", flush=True)
    command = [*CLI, "view", str(watched), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as viewer:
        assert viewer.stdout is not None
        tab = browser.new_page()
        tab.goto(json.loads(viewer.stdout.readline())["url"] + "#episodes")
        session = tab.context.new_cdp_session(tab)
        session.send("Performance.enable")
        going = run(watched / "run")
        while going.poll() is None:
            tab.wait_for_timeout(FIVE)
            session.send("HeapProfiler.collectGarbage")
            found = session.send("Performance.getMetrics")["metrics"]
            heap = next(one["value"] for one in found if one["name"] == "JSHeapUsedSize")
            status = Path(f"/proc/{viewer.pid}/status").read_text()
            resident = int(re.findall(r"VmRSS:\s+(\d+)", status)[0])
            known = tab.locator("table.grid").get_attribute("aria-rowcount")
            print(f"{known} rows: page {heap / 1e6:.1f} MB, server {resident / 1e3:.0f} MB")
        print(f"watched: {rate(watched / 'run')}", flush=True)
        viewer.send_signal(signal.SIGINT)


def measure() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--watched", type=int, default=2000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        of_a_file(browser, Path(folder), asked.episodes)
        of_a_run(browser, Path(folder), asked.watched)
        browser.close()


if __name__ == "__main__":
    measure()
