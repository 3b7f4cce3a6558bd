"""The Python environment: its prompt, and MBPP's gold with two workers."""

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
TASKS = Dataset([Task("add", "?", gold=(GOLD,), tests=TESTS)])


def prompt() -> list[Row]:
    """A step of a prompt that runs, and a reset after an episode that was given up."""
    env: Any = intercode.make("python", data=TASKS, max_turns=10**9)
    with closing(env):
        env.reset()
        step = median_ms(lambda: env.step("1+1"), 3000)
        given_up = []
        for _ in range(60):
            given_up.append(median_ms(env.reset, 1))
            env.step(GOLD)
    return [
        below("Python: reset after an episode that was given up", median(given_up), 5, "ms"),
        below("hot loop: Python, step of 1+1", step, 0.3, "ms"),
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
