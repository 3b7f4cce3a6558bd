"""InterCode against the machine's physical limits, in one run: ``make bench``.

Times differ from machine to machine and from day to day; ratios to what the same machine does in
the same run differ little. Writes ``benchmarks/results/bench.json`` and prints a table. A run of
full size also renews the measurements whose rows it has, and the figures of all pages.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import chart
import cluster
import containers
import episodes
import figures
import forking
import gate
import intercode
import measurements
import outside
import peers
import python
import reach
import runner
import sql
import swe
from floors import median_ms
from intercode.evaluate import evaluate
from intercode.task import Dataset
from intercode_sandbox import get_provider
from intercode_sandbox.native import cgroup
from processes import descendants, pss
from rows import Row, against, below

RETAINED = cgroup._MAX_IDLE_CGROUPS + 2
"""Cgroups of each hierarchy that a resting spawner retains: idle ones, and for what it prepares."""

SIZES = ("rounds", "episodes", "sandboxes", "sessions", "agents", "seconds")
"""Options whose defaults make a run of full size."""


def run_ms(*argv: str, repeats: int = 7) -> float:
    """The median wall time of a whole process."""
    return median_ms(lambda: subprocess.run(argv, check=True, capture_output=True), repeats)


def starting() -> list[Row]:
    """What importing and asking for help cost, as whole processes."""
    alone = run_ms(sys.executable, "-c", "import gymnasium")
    ours = run_ms(sys.executable, "-c", "import intercode")
    command = str(Path(sys.executable).parent / "intercode")
    return [
        below("import intercode, above import gymnasium", ours - alone, 50, "ms",
              f"{alone:.0f} ms alone"),
        below("intercode --help", run_ms(command, "--help"), 350, "ms"),
        against("intercode run --help", [run_ms(command, "run", "--help")],
                "import gymnasium", [alone], 1.25),
    ]  # fmt: skip


def leftovers() -> tuple[int, ...]:
    """Count processes, mounts and cgroups, without those that each resting spawner retains."""
    mounts = len(Path("/proc/self/mountinfo").read_text().splitlines())
    folders = (
        folder
        for parent in cgroup.parents()
        for folder in Path(parent).glob(f"{cgroup.PREFIX}{os.getpid()}-*/")
    )
    surplus = sum(max(0, len(list(folder.glob("*/"))) - RETAINED) for folder in folders)
    return max(0, len(descendants(os.getpid())) - reach.RESTING), mounts, surplus


def many(count: int) -> list[Row]:
    """That many sandboxes with their shells alive at once."""
    from intercode.interpreters.bash import BashInterpreter

    provider = get_provider("native")
    for _ in range(2):  # after which a next one is made ready, as after many
        provider.start("host").close()
    time.sleep(0.5)
    before = leftovers()
    start = time.perf_counter()
    sandboxes = [provider.start("host") for _ in range(count)]
    shells = [BashInterpreter(sandbox) for sandbox in sandboxes]
    opened = time.perf_counter() - start
    spawner = provider._spawner.process.pid  # type: ignore[attr-defined]
    memory = sum(pss(pid) for pid in descendants(spawner)) / count / 2**20
    start = time.perf_counter()
    for shell in shells:
        shell.close()
    for sandbox in sandboxes:
        sandbox.close()
    while leftovers() != before and time.perf_counter() - start < 60:
        time.sleep(0.05)
    closed = time.perf_counter() - start
    left = [now - was for now, was in zip(leftovers(), before, strict=True)]
    return [
        Row(f"{count} sandboxes opened", opened, "s"),
        below(f"memory of each of {count} (proportional set size)", memory, 8, "MiB"),
        below(f"{count} sandboxes closed and gone", closed, 10, "s"),
        below("processes, mounts, cgroups left", sum(map(abs, left)), 1, ""),
    ]


def throughput(seconds: float, workers: int = 8) -> list[Row]:
    """Oracle episodes a second, of the bundled one-liners, all recorded on disk."""
    from intercode import datasets

    bundled = datasets.load("bash")
    easy = [task for task in bundled if "easy" in task.tags and not task.verification]
    dataset = Dataset(easy, name="one-liners")

    def env() -> Any:
        return intercode.make("bash", data=dataset).unwrapped

    with tempfile.TemporaryDirectory() as folder:
        warm = evaluate(dataset, "oracle", env, workers=workers, out=Path(folder) / "warm")
        rate = len(warm.outcomes) / warm.seconds
        epochs = max(1, round(seconds * rate / len(easy)))
        result = evaluate(
            dataset, "oracle", env, workers=workers, out=Path(folder) / "run", epochs=epochs
        )
    if result.statistics.success_rate != 1.0:
        raise SystemExit(f"the oracle failed: {result.statistics}")
    done = result.ran / result.seconds
    note = f"{result.ran} episodes of {len(easy)} tasks; {os.cpu_count()} cores"
    return [Row(f"oracle episodes, {workers} workers", done, "/s", ">= 150 /s", done >= 150, note)]


def commit() -> str:
    """Return the commit of the working copy, with "-dirty" if files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    folder = Path(__file__).parent
    return subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout.strip()


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of stepping; 1 takes 15 seconds")
    parser.add_argument("--episodes", type=int, default=50, help="of each kind in a round")
    parser.add_argument("--sandboxes", type=int, default=500)
    parser.add_argument("--sessions", type=int, default=64, help="of a server, stepped at once")
    parser.add_argument("--agents", type=int, default=32, help="of a gateway, at once")
    parser.add_argument("--seconds", type=float, default=20, help="for the throughput")
    parser.add_argument("--upstream", help="a copy of the 2023 release, for its SQL replays")
    parser.add_argument(
        "--results", type=Path, default=measurements.RESULTS, help="the folder to write to"
    )
    parser.add_argument("--only", help="only this part: stepping, sqlite, …")
    args = parser.parse_args()
    parts: dict[str, Callable[[], list[Row]]] = {
        "stepping": lambda: episodes.stepping(args.rounds, args.episodes),
        "peers": lambda: peers.measure(args.rounds, max(1, args.episodes // 5)),
        "starting": starting,
        "forking": forking.measure,
        "many": lambda: many(args.sandboxes),
        "throughput": lambda: throughput(args.seconds),
        "runner": runner.measure,
        "sqlite": sql.sqlite,
        "mariadb": sql.mariadb,
        "comparing": sql.comparing,
        "python": python.prompt,
        "swe": swe.issues,
        "docker": containers.measure,
        "gateway": lambda: gate.measure(args.rounds, args.episodes, args.agents),
        "agents": lambda: outside.measure(args.agents, max(outside.FEW + 1, args.episodes // 4)),
        "reach": lambda: reach.measure(args.rounds, args.episodes, args.sessions, args.sandboxes),
    }
    if find_spec("ray"):
        parts["cluster"] = lambda: cluster.measure(4 * args.episodes)
    if args.upstream:
        parts["mbpp"] = lambda: python.gold(Path(args.upstream))
        parts["replays"] = lambda: sql.replays(Path(args.upstream))
    if args.only not in (None, *parts):
        parser.error(f"--only: one of {', '.join(parts)}")
    rows: list[Row] = []
    load = os.getloadavg()  # of others: at the end it is this program's own
    for name, part in parts.items():
        if args.only in (None, name):
            rows += part()
    for row in rows:
        print(row)
    args.results.mkdir(exist_ok=True)
    facts = {
        "machine": platform.platform(),
        "cpus": os.cpu_count(),
        "load": load,
        "python": platform.python_version(),
        "commit": commit(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    report = {"facts": facts, "rows": [asdict(row) for row in rows]}
    (args.results / measurements.RUN).write_text(json.dumps(report, indent=2) + "\n")
    if all(getattr(args, size) == parser.get_default(size) for size in SIZES):
        renewals = measurements.renew(report, args.results)
        for name in renewals:
            print(f"renewed: {args.results / name}.json")
        if args.results == measurements.RESULTS:
            for page in figures.rewrite_pages():
                print(f"written: {page}")
            chart.write(measurements.read())
    return int(any(row.ok is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
