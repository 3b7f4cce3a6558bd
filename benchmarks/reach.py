"""Environments over a wire, against the same in this process, in one run.

A road leads to an environment: `ROADS` names those that are measured, and takes more.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from statistics import median, quantiles
from typing import Any

import floors
import intercode
from floors import median_ms
from processes import descendants, pss
from rounds import Figures, take_turns
from rows import Row, below, spread

BUILTIN = ":"
"""An action that costs the shell nothing."""
RESTING = 5
"""Processes below a server without sessions: spawner, zygote, and a prepared sandbox's three."""
SERVE = (sys.executable, "-m", "intercode.cli.main", "serve", "bash", "--port", "0")
Opens = Callable[[], Any]
"""Opens an environment."""


def here() -> Any:
    """A Bash environment in this process."""
    return intercode.make("bash").unwrapped


@contextmanager
def serving(sessions: int) -> Iterator[tuple[str, int]]:
    """A server's address and process."""
    command = [*SERVE, "--max-sessions", str(sessions)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=quiet, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().split(" at ")[1].strip(), server.pid
        finally:
            server.terminate()


ROADS: dict[str, Callable[[str], Any]] = {
    "WebSocket": intercode.connect,
    "WebSocket, as any OpenEnv server's": lambda url: intercode.make(f"openenv:{url}").unwrapped,
}
"""Name of a road → opens an environment by it, from a server's address."""


def stepped(env: Any, repeats: int) -> float:
    """The median time of a builtin."""
    env.reset(index=0)
    times = []
    for number in range(repeats):
        if number % 9 == 8:  # before the episode is cut off
            env.reset(index=0)
        times.append(median_ms(partial(env.step, BUILTIN), 1))
    return median(times)


def played(env: Any, repeats: int) -> float:
    """The median time of an episode: a reset, an action, the submission."""

    def play() -> None:
        env.reset(index=0)
        env.step(BUILTIN)
        env.step("submit")

    return median_ms(play, repeats)


def overheads(rounds: int, repeats: int) -> list[Row]:
    """A step and an episode of each road, as multiples of those in process."""
    with ExitStack() as stack:
        url, _ = stack.enter_context(serving(len(ROADS)))
        opens = {"in process": here, **{name: partial(road, url) for name, road in ROADS.items()}}
        envs = {name: stack.enter_context(closing(one())) for name, one in opens.items()}

        def measure(name: str, env: Any) -> Figures:
            return {
                f"step, {name}": stepped(env, repeats),
                f"episode, {name}": played(env, repeats),
            }

        measures = [partial(measure, *one) for one in envs.items()]
        found = take_turns(partial(floors.programs, 3), measures, rounds)
    rows = []
    for what in ("step", "episode"):
        base = found[f"{what}, in process"]
        for name in opens:
            figure = found[f"{what}, {name}"]
            times = [one / other for one, other in zip(figure, base, strict=True)]
            rows.append(Row(f"{what}, {name}", figure, "ms", note=f"{median(times):.2f} x"))
    return rows


def rate(envs: list[Any], steps: int) -> tuple[float, list[float]]:
    """Steps a second of all environments at once, and the milliseconds of each step."""

    def play(env: Any) -> list[float]:
        return [median_ms(partial(env.step, BUILTIN), 1) for _ in range(steps)]

    with ThreadPoolExecutor(len(envs)) as pool:
        list(pool.map(lambda env: env.reset(index=0), envs))
        began = time.perf_counter()
        times = list(pool.map(play, envs))
        took = time.perf_counter() - began
    return len(envs) * steps / took, [one for each in times for one in each]


def together(rounds: int, sessions: int, steps: int = 9) -> list[Row]:
    """Steps of many sessions at once, over the WebSocket and in process, in turns."""
    figures: dict[str, list[tuple[float, list[float]]]] = {"in process": [], "WebSocket": []}
    with ExitStack() as stack:
        url, _ = stack.enter_context(serving(sessions))
        places = {
            "in process": [stack.enter_context(closing(here())) for _ in range(sessions)],
            "WebSocket": [stack.enter_context(closing(intercode.connect(url)))]
            + [stack.enter_context(closing(env)) for env in connected(url, sessions - 1)],
        }
        for _ in range(rounds + 1):
            for name, envs in places.items():
                figures[name].append(rate(envs, steps))
    rows = []
    for name, found in figures.items():
        rates, times = zip(*found[1:], strict=True)  # the first of each starts what all share
        cuts = quantiles([one for each in times for one in each], n=100)
        note = f"p50 {cuts[49]:.2f} ms, p99 {cuts[98]:.2f} ms"
        rows.append(Row(f"steps of a builtin, {sessions} sessions, {name}", rates, "/s", note=note))
    ours, theirs = rows[1].figure, rows[0].figure
    shares = [one / other for one, other in zip(ours, theirs, strict=True)]  # type: ignore[arg-type]
    target = ">= 40 % of those in process"
    share = [100 * one for one in shares]
    rows.append(Row("the same, as a share", share, "%", target, spread(shares)[0] >= 0.4))
    return rows


def connected(url: str, count: int) -> list[Any]:
    """Environments of a server, which share their tasks."""
    return list(intercode.connect_vec(url, count).envs)


def many(sessions: int) -> list[Row]:
    """That many sessions alive at once, of one server."""
    with serving(sessions) as (url, pid), ThreadPoolExecutor(32) as pool:
        before = memory(pid)
        envs = connected(url, sessions)
        began = time.perf_counter()
        list(pool.map(lambda env: env.reset(index=0), envs))
        opened = time.perf_counter() - began
        each = (memory(pid) - before) / sessions / 2**20
        times = list(pool.map(lambda env: median_ms(partial(env.step, BUILTIN), 1), envs))
        cuts = quantiles(times, n=100)
        began = time.perf_counter()
        list(pool.map(lambda env: env.close(), envs))
        while len(descendants(pid)) > RESTING and time.perf_counter() - began < 60:
            time.sleep(0.05)
        closed = time.perf_counter() - began
        left = max(0, len(descendants(pid)) - RESTING)
    step = f"a step of each of {sessions} sessions, 32 at a time"
    return [
        Row(f"{sessions} sessions connected and reset", opened, "s"),
        Row(step, cuts[49], "ms", note=f"p99 {cuts[98]:.2f} ms"),
        below(f"memory of each of {sessions} at the server", each, 12, "MiB"),
        Row(f"{sessions} sessions closed and gone", closed, "s"),
        below("processes left", left, 1, ""),
    ]


def memory(pid: int) -> float:
    """The share of memory of a process and all below it."""
    found = 0.0
    for one in (pid, *descendants(pid)):
        with suppress(OSError, ValueError):  # it has just ended
            found += pss(one)
    return found


def measure(rounds: int = 3, repeats: int = 30, sessions: int = 64, most: int = 1000) -> list[Row]:
    """All of it."""
    return [*overheads(rounds, repeats), *together(rounds, sessions), *many(most)]


if __name__ == "__main__":
    for row in measure():
        print(row)
