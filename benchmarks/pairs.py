"""Two source trees in pairs: an episode's reset, step, score, CPU time and memory, as ratios.

``python benchmarks/pairs.py BEFORE AFTER`` has a process of each tree play in turns, the order
reversed each time, so that a busy minute meets both. The interval is the one of the median's that
holds whatever the distribution is. Each tree needs its own static process 1 (``hatch_build.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import ExitStack, suppress
from math import comb
from pathlib import Path
from statistics import median
from typing import Any

from processes import GONE, cpu_seconds, descendants, pss

FIGURES = ("reset", "step", "score", "CPU", "memory")
CONFIDENCE = 0.95
WORSE = 1.05
"""The ratio that the lower end of an interval must not exceed."""


def play(env: Any, episodes: int) -> dict[str, float]:
    """Play episodes of one turn: the medians of their parts, and the means of all."""
    times: dict[str, list[float]] = defaultdict(list)
    cpu = cpu_seconds()
    for _ in range(episodes):
        marks = [time.perf_counter()]
        env.reset()
        marks.append(time.perf_counter())
        env.step("echo hello")
        marks.append(time.perf_counter())
        if env.step("submit")[1] != 1.0:
            raise SystemExit("an echo was not rewarded")
        marks.append(time.perf_counter())
        for name, begin, end in zip(FIGURES, marks, marks[1:], strict=False):
            times[name].append(end - begin)
    figures = {name: median(values) for name, values in times.items()}
    return {**figures, "CPU": (cpu_seconds() - cpu) / episodes, "memory": memory(env)}


def memory(env: Any) -> float:
    """The share of memory of an environment with a shell: of this process and all below it."""
    env.reset()
    env.step("echo hello")
    total = 0
    for pid in [os.getpid(), *descendants(os.getpid())]:
        with suppress(*GONE):  # a last sandbox is on its way out
            total += pss(pid)
    return total


def serve() -> None:
    """Play as many episodes as each line of the input says."""
    import intercode
    from intercode.task import Dataset, Task

    env = intercode.make("bash", data=Dataset([Task("echo", "Print it.", gold=("echo hello",))]))
    for line in sys.stdin:
        print(json.dumps(play(env, int(line))), flush=True)
    env.close()


class Player:
    """A process that plays episodes by the sources of a tree."""

    def __init__(self, tree: Path, stack: ExitStack) -> None:
        programs = [*tree.glob("*/**/native/static/process1")]
        if not programs:
            raise SystemExit(f"{tree} has no static process 1: build it by its hatch_build.py")
        sources = [tree / "src", *tree.glob("packages/*/src")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sources))}
        pipe = subprocess.PIPE
        argv = [sys.executable, __file__, "--serve"]
        self.process = subprocess.Popen(argv, env=environment, stdin=pipe, stdout=pipe, text=True)
        stack.enter_context(self.process)

    def play(self, episodes: int) -> dict[str, float]:
        """Have it play."""
        assert self.process.stdin and self.process.stdout
        print(episodes, file=self.process.stdin, flush=True)
        if not (line := self.process.stdout.readline()):
            raise SystemExit("a player has ended")
        return dict(json.loads(line))


def interval(values: list[float]) -> tuple[float, float]:
    """The interval of the median at `CONFIDENCE`, by order; of fewer than 6 values their range."""
    ordered, count = sorted(values), len(values)
    tail, rank = 0.0, 0
    while (tail := tail + comb(count, rank) / 2**count) <= (1 - CONFIDENCE) / 2:
        rank += 1
    first = max(0, rank - 1)
    return ordered[first], ordered[count - 1 - first]


def main() -> int:
    """Measure pairs, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trees", type=Path, nargs="*", metavar="BEFORE AFTER")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--episodes", type=int, default=100, help="of each half of a pair")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve()
        return 0
    if len(args.trees) != 2:
        parser.error("two source trees are compared: BEFORE AFTER")
    ratios: dict[str, list[float]] = defaultdict(list)
    medians: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        players = [Player(tree.absolute(), stack) for tree in args.trees]
        for player in players:
            player.play(max(1, args.episodes // 5))
        for number in range(args.pairs):
            figures = {}
            for which in (0, 1) if number % 2 == 0 else (1, 0):
                figures[which] = players[which].play(args.episodes)
            for name in FIGURES:
                ratios[name].append(figures[1][name] / figures[0][name])
                medians[name].append(figures[1][name])
    worse = False
    for name in FIGURES:
        low, high = interval(ratios[name])
        worse |= low > WORSE
        scale, unit = (2**-20, "MiB") if name == "memory" else (1e3, "ms")
        print(
            f"{name:8} {median(ratios[name]):6.3f} x  ({low:.3f} to {high:.3f}, {args.pairs} pairs)"
            f"  {scale * median(medians[name]):9.2f} {unit} after"
            + ("  WORSE" if low > WORSE else "")
        )
    return int(worse)


if __name__ == "__main__":
    sys.exit(main())
