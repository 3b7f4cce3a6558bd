"""The Python environment: reset, step, scoring, and MBPP's gold with two workers."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import intercode
from floors import median_ms
from intercode.datasets import mbpp
from intercode.evaluate import evaluate
from intercode.task import Dataset, Task
from rows import Row, below

GOLD = "def add(a, b):\n    return a + b"
TESTS = ("assert add(1, 2) == 3", "assert add('a', 'b') == 'ab'", "assert add([1], []) == [1]")


def prompt() -> list[Row]:
    """An episode of one action and three asserts, in its parts."""
    tasks = Dataset([Task("add", "?", gold=(GOLD,), tests=TESTS)])
    env: Any = intercode.make("python", data=tasks, max_turns=10**9)
    with closing(env):
        env.reset()
        step = median_ms(lambda: env.step("1+1"), 3000)
        given_up, resets, firsts, scores = [], [], [], []
        for _ in range(60):
            given_up.append(median_ms(env.reset, 1))
            firsts.append(median_ms(lambda: env.step(GOLD), 1))
        for _ in range(60):
            resets.append(median_ms(env.reset, 1))
            env.step(GOLD)
            scores.append(median_ms(lambda: env.step("submit"), 1))
    return [
        below("Python: reset after a scored episode", median(resets), 5, "ms"),
        below("Python: reset after one that was given up", median(given_up), 5, "ms"),
        below("Python: step of 1+1", step, 0.3, "ms"),
        Row("Python: first step after a reset", median(firsts), "ms"),
        below("Python: scoring three asserts", median(scores), 10, "ms"),
    ]


def gold(upstream: Path) -> list[Row]:
    """The oracle over all of MBPP, from a copy of the 2023 release's data."""
    tasks = mbpp.load(upstream / "data" / "python")
    began = time.perf_counter()
    run = evaluate(tasks, "oracle", lambda: intercode.make("python", data=tasks), workers=2)
    seconds = time.perf_counter() - began
    solved = sum(episode.reward == 1.0 for episode in run.episodes())
    note = f"{solved} of {len(tasks)} at 1.0"
    return [below(f"MBPP: gold of {len(tasks)} tasks, 2 workers", seconds, 60, "s", note)]
