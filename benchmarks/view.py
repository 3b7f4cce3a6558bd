"""The viewer in Chromium: ten thousand episodes in a file, and a run that is watched as it goes on.

    .venv/bin/python benchmarks/view.py [--episodes 10000] [--watched 2000]

The times are those of a reader: from a click to what it shows. Needs Debian's Chromium, and the
package playwright. Docs: docs/gym/read-results.md#view-in-a-browser, "How much it can take".
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
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
OFTEN = 15_000
"""Milliseconds between two looks at the memory."""
TICK = os.sysconf("SC_CLK_TCK")


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
    """The throughput of a run alone and watched; the memory of the server and of the page.

    Alone, watched, watched, alone: so that what else the machine does falls on both.
    """
    rates: dict[str, list[float]] = {"alone": [], "watched": []}
    for number, how in enumerate(("alone", "watched", "watched", "alone")):
        place = folder / f"{how}-{number}"
        place.mkdir()
        options = ["--agent", "noop", "--limit", "50", "--epochs", str(episodes // 50)]
        command = [*CLI, "run", "bash", *options, "--workers", "2", "--out", str(place / "run")]

        def run(command: list[str] = command) -> subprocess.Popen[bytes]:
            return subprocess.Popen([*command, "--quiet"], stdout=subprocess.DEVNULL)

        if how == "watched":
            watched(browser, place, run)
        else:
            run().wait()
        session = json.loads((place / "run" / records.MANIFEST).read_text())["sessions"][-1]
        rates[how].append(session["seconds"])
        print(
            f"{how}: {session['episodes'] / session['seconds']:.1f} episodes a second", flush=True
        )
    print(f"watched, of alone: {sum(rates['alone']) / sum(rates['watched']):.1%}")


def watched(browser: Any, place: Path, run: Callable[[], subprocess.Popen[bytes]]) -> None:
    """Watch a run from its first episode to its last."""
    viewer = subprocess.Popen([*CLI, "view", str(place), "--json"], stdout=subprocess.PIPE)
    assert viewer.stdout is not None
    tab = browser.new_page()
    tab.goto(json.loads(viewer.stdout.readline())["url"] + "#episodes")
    session = tab.context.new_cdp_session(tab)
    session.send("Performance.enable")

    def told() -> None:
        session.send("HeapProfiler.collectGarbage")
        metrics = session.send("Performance.getMetrics")["metrics"]
        found = {one["name"]: one["value"] for one in metrics}
        process = Path(f"/proc/{viewer.pid}")
        resident = int(re.findall(r"VmRSS:\s+(\d+)", (process / "status").read_text())[0])
        user, system = (process / "stat").read_text().rpartition(")")[2].split()[11:13]
        rows = int(tab.locator("table.grid").get_attribute("aria-rowcount")) - 1
        page = f"{found['JSHeapUsedSize'] / 1e6:.1f} MB, {found['TaskDuration']:.1f} s of CPU"
        server = f"{resident / 1e3:.0f} MB, {(int(user) + int(system)) / TICK:.1f} s of CPU"
        print(f"{rows} rows: page {page}; server {server}", flush=True)

    going = run()
    while going.poll() is None:
        tab.wait_for_timeout(OFTEN)
        told()
    tab.close()
    viewer.terminate()
    viewer.wait()


def measure() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--watched", type=int, default=2000)
    parser.add_argument("--live", action="store_true", help="only the run that is watched")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        if not asked.live:
            of_a_file(browser, Path(folder), asked.episodes)
        of_a_run(browser, Path(folder), asked.watched)
        browser.close()


if __name__ == "__main__":
    measure()
