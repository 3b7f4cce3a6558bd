"""Forks of a running episode, against fresh episodes on the same machine in the same minute."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from statistics import median
from typing import Any

import floors
import intercode
from floors import median_ms
from intercode.task import Dataset, Task
from rounds import Figures, take_turns
from rows import Row, against, spread

FILES = 2000
MANY = f"mkdir many && cd many && seq {FILES} | split -l 1 -a 4 && cd .."
ECHO = Dataset([Task("echo", "Print hello.", gold=("echo hello",))])
SNAPSHOT = f"snapshot, {FILES:,} changed files"
FORKED, FRESH = "state fork, with its first action", "fresh reset, with its first action"
REPLAYED = {1: "replay of 1 action, with the next", 6: "replay of 6", 30: "replay of 30"}
"""Actions before a replay fork → name of its time."""
WORKERS = 4


def environment() -> Any:
    """A Bash environment, unwrapped."""
    return intercode.make("bash", data=ECHO, max_turns=10**9).unwrapped


def snapshots(env: Any, repeats: int) -> Figures:
    """The median time of a snapshot of an episode that has changed many files."""
    times = []
    for _ in range(repeats):
        env.reset()
        env.step(MANY)
        begin = time.perf_counter()
        snapshot = env.snapshot(mode="state")
        times.append(time.perf_counter() - begin)
        snapshot.close()
    return {SNAPSHOT: 1e3 * median(times)}


def first_actions(env: Any, repeats: int) -> Figures:
    """The time to a first action's observation, in a fork and in a fresh episode, in turns."""
    env.reset()
    env.step("x=1; cd /tmp; echo hello > note")
    with closing(env.snapshot(mode="state")) as snapshot:

        def play(begin: Any) -> float:
            def both() -> None:
                begin()
                env.step("true")

            return median_ms(both, 1)

        times = [(play(partial(env.restore, snapshot)), play(env.reset)) for _ in range(repeats)]
    forked, fresh = zip(*times, strict=True)
    return {FORKED: median(forked), FRESH: median(fresh)}


def replays(env: Any, repeats: int) -> Figures:
    """The time to an action's observation in replay forks, by the number of replayed actions."""
    figures = {}
    for count, name in REPLAYED.items():
        env.reset()
        for number in range(count):
            env.step(f"echo {number}")
        with closing(env.snapshot(mode="replay")) as snapshot:

            def both(snapshot: Any = snapshot) -> None:
                env.restore(snapshot)
                env.step("true")

            figures[name] = median_ms(both, repeats)
    return figures


def rates(envs: list[Any], count: int) -> tuple[float, float]:
    """Forked and fresh episodes a second, each of one action, in all environments at once."""
    envs[0].reset()
    envs[0].step("x=1; cd /tmp; echo hello > note")
    with closing(envs[0].snapshot(mode="state")) as snapshot:
        forked = rate(envs, count, lambda env: env.restore(snapshot))
        return forked, rate(envs, count, lambda env: env.reset())


def rate(envs: list[Any], count: int, begin: Any) -> float:
    """Episodes a second, so many in each environment."""

    def play(env: Any) -> None:
        for _ in range(count):
            begin(env)
            env.step("echo hello")
            env.step("submit")

    began = time.perf_counter()
    with ThreadPoolExecutor(len(envs)) as pool:
        list(pool.map(play, envs))
    return len(envs) * count / (time.perf_counter() - began)


def measure(rounds: int = 3, count: int = 20) -> list[Row]:
    """Forks of Bash episodes whose state is saved."""
    with ExitStack() as stack:
        envs = [stack.enter_context(closing(environment())) for _ in range(WORKERS)]
        measures = [
            partial(snapshots, envs[0], 5),
            partial(first_actions, envs[0], count),
            partial(replays, envs[0], count),
        ]
        found = take_turns(partial(floors.programs, count), measures, rounds)
        pairs = [rates(envs, count) for _ in range(rounds)]
    shares = [forked / fresh for forked, fresh in pairs]
    rate_of_fresh = median(fresh for _, fresh in pairs)
    share = Row(
        "forked episodes a second, of one action",
        [100 * each for each in shares],
        "%",
        ">= 90 % of fresh ones",
        spread(shares)[0] >= 0.9,
        f"fresh: {rate_of_fresh:.0f} /s in {WORKERS} threads",
    )
    return [
        against(SNAPSHOT, found[SNAPSHOT], floors.BASH, found[floors.BASH], 1.5),
        against(FORKED, found[FORKED], FRESH, found[FRESH], 1),
        Row(FRESH, found[FRESH], "ms"),
        *(Row(name, found[name], "ms") for name in REPLAYED.values()),
        share,
    ]
