"""What the machine itself can do: the floor that times are held against."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from statistics import median

TRUE, BASH = "/bin/true", "bash -c true"
PROGRAMS = {TRUE: ("/bin/true",), BASH: ("/bin/bash", "-c", "true")}


def median_ms(action: Callable[[], object], repeats: int) -> float:
    """The median time of a call, in milliseconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return median(times) * 1e3


def run(*argv: str) -> None:
    """Start a program and wait for it.

    By `posix_spawn`, which copies nothing of this process: a fork would cost what its memory map
    costs, and a floor should be as low as it can be.
    """
    os.waitpid(os.posix_spawn(argv[0], argv, os.environ), 0)


def programs(repeats: int) -> dict[str, float]:
    """Whole programs that do nothing, in milliseconds."""
    return {name: median_ms(partial(run, *argv), repeats) for name, argv in PROGRAMS.items()}
