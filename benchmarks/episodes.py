"""Episodes as they are played: the time of each part, and the CPU time of the whole by role.

And, apart, the parts by themselves, each over and over: what no user sees, but what tells where a
part's time goes.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

import floors
import intercode
import python
import sql
from floors import median_ms
from intercode.task import Dataset, Task
from processes import Roles
from rounds import Figures, Rounds, take_turns
from rows import Row, against, below

HUNDRED = "for i in $(seq 100); do echo $i > /root/f$i; done"
ECHO = Task("echo", "Print hello.", gold=("echo hello",))
FILES = Task("files", "Write a hundred files.", gold=(HUNDRED,))
FLAG = Task("flag", "Find it.", gold=("flag{1}",), files={"note.txt": "flag{1}\n"})
VERIFIED = Task("verified", "Do nothing.", verification="true")
KINDS: dict[str, tuple[Callable[[Path], Dataset], str, str]] = {
    "bash": (lambda folder: Dataset([ECHO]), "echo hello", "submit"),
    "bash with a verification": (lambda folder: Dataset([VERIFIED]), "echo hello", "submit"),
    "sql": (sql.reading, sql.COUNT, "submit"),
    "python": (lambda folder: python.TASKS, python.GOLD, "submit"),
    "ctf": (lambda folder: Dataset([FLAG]), "cat note.txt", "submit flag{1}"),
}
"""Of each environment (the first word) the tasks, the action and the submission. SQL is SQLite, and
only reads."""
MODELS = {"back to back": (0.0, 1.0), "20 ms of thought": (0.02, 0.4)}
"""How long a model thinks before it acts, in seconds, and its share of a round's episodes."""
RATE = "episodes a second"
"""Name of the figure without the model's thought."""
LIMITS: dict[tuple[str, str], float] = {
    ("sql", "reset"): 5,
    ("python", "reset"): 5,
    ("python", "submit"): 10,
    ("hot", "builtin"): 0.5,
    ("hot", "no file changes, gold cached"): 1,
    ("hot", "100 changed files, gold cached"): 10,
}
RATIOS: dict[tuple[str, str], tuple[str, float, float | None]] = {
    ("bash, 20 ms of thought", "reset"): (floors.BASH, 3, 2),
    ("bash", "reset"): (floors.BASH, 3, 2),
    ("bash with a verification", "submit"): (floors.BASH, 3.4, None),
    ("ctf", "reset"): (floors.BASH, 6, 3),
    ("python, 20 ms of thought", "submit"): (floors.BASH, 0.7 * 11.6, None),
    ("hot", "nothing happened"): (floors.BASH, 6, 3),
    ("hot", "/bin/true"): (floors.TRUE, 2, None),
}
"""Targets of figures, by how their names begin and end: milliseconds; what floor, how many times
it, and as a goal. The first that fits counts. Scoring three asserts took 11.6 times `bash -c true`
on 24 Nov 2026, at 0ef00a0, before tests shared a process."""


def play(name: str, env: Any, action: str, submission: str, think: float, count: int) -> Figures:
    """Complete episodes of one turn: the median times of their parts, and the mean CPU time.

    The model thinks, or sleeps, for so many seconds before the action and before the submission.
    """
    times: dict[str, list[float]] = defaultdict(list)

    def timed(part: str, call: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = call()
        times[part].append(1e3 * (time.perf_counter() - start))
        return result

    for number in range(-ceil(count / 10), count):
        if number == 0:
            times.clear()
            roles = Roles()
        timed("reset", env.reset)
        time.sleep(think)
        timed("first action", lambda: env.step(action))
        if number >= 0:
            roles.look()
        time.sleep(think)
        reward = timed("submit", lambda: env.step(submission))[1]
        if reward != 1.0:
            raise SystemExit(f"{name}: {action!r} and {submission!r} had a reward of {reward}")
    taken = roles.taken()
    cpu = {"all": sum(taken.values()), **taken}
    medians = {part: median(part_times) for part, part_times in times.items()}
    return {
        **{f"{name}: {part}": ms for part, ms in medians.items()},
        f"{name}: {RATE}": 1e3 / sum(medians.values()),
        **{f"{name}: CPU, {role}": 1e3 * seconds / count for role, seconds in cpu.items()},
    }


def hot_loops(env: Any, repeats: int) -> Figures:
    """The parts of a Bash environment by themselves."""

    def reset(task: Task = ECHO) -> None:
        env.reset(options={"task_id": task.task_id})

    reset()
    found = {
        "reset after nothing happened": median_ms(reset, repeats),
        "step of a shell builtin": median_ms(lambda: env.step("true"), 4 * repeats),
        "step of /bin/true": median_ms(lambda: env.step("/bin/true"), 4 * repeats),
    }
    for task, state in (ECHO, "no file changes"), (FILES, "100 changed files"):
        reset(task)
        env.step(task.gold[0])
        env._score_end()
        found[f"score, {state}, gold cached"] = median_ms(env._score_end, repeats)
    return {f"hot loop: {name}": ms for name, ms in found.items()}


def stepping(rounds: int, count: int) -> list[Row]:
    """Episodes and hot loops, in turns with the floor."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        envs = {
            kind: intercode.make(kind.split()[0], data=data(folder))
            for kind, (data, *_) in KINDS.items()
        }
        loops = intercode.make("bash", data=Dataset([ECHO, FILES]), max_turns=10**9)
        for env in (*envs.values(), loops):
            stack.enter_context(closing(env))
        played = [
            partial(play, f"{kind}, {model}", env, *KINDS[kind][1:], think, ceil(share * count))
            for kind, env in envs.items()
            for model, (think, share) in MODELS.items()
        ]
        measures = [*played, partial(hot_loops, loops, count)]
        found = take_turns(partial(floors.programs, count), measures, rounds)
    return [row(name, values, found) for name, values in found.items()]


def row(name: str, values: list[float], found: Rounds) -> Row:
    """A figure's line, with its target if it has one."""

    def named(ends: tuple[str, str]) -> bool:
        return name.startswith(ends[0]) and name.endswith(ends[1])

    for ends, limit in LIMITS.items():
        if named(ends):
            return below(name, values, limit, "ms")
    for ends, (floor, times, goal) in RATIOS.items():
        if named(ends):
            return against(name, values, floor, found[floor], times, goal)
    unit = "/s" if name.endswith(RATE) else "ms"
    return Row(name, values, unit, "the machine" if name in floors.PROGRAMS else "")
