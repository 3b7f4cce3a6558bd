"""What is dropped without `close` is freed: its descriptors, processes, threads and files."""

from __future__ import annotations

import gc
import os
import threading
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import intercode
from intercode.interpreters.base import DRAIN
from intercode_sandbox.host_files import cache_root
from waiting import eventually

MANY = 3
"""Objects that a test drops: a leak grows with their number, a cache does not."""
ACTIONS = {"python": "print(1)", "sql": "SELECT 1"}


def begin(name: str, **options: Any) -> Any:
    env = intercode.make(name, **options)
    env.reset(seed=0)
    return env


def _act(name: str, **options: Any) -> None:
    begin(name, **options).step(ACTIONS.get(name, "sleep 1000 & echo 1"))


def _fork(name: str, awake: bool) -> None:
    with closing(begin(name)) as env:
        action = ACTIONS.get(name, "echo 1")
        env.step(action)
        forks = env.unwrapped.fork(2)
        if awake:
            forks[0].step(action)


def _vector() -> None:
    envs = intercode.make_vec("bash", 2)
    envs.reset(seed=0)
    envs.step(("echo 1", "echo 2"))


def _sent() -> None:
    envs = intercode.make_vec("sql", 2)
    envs.reset(seed=0)
    envs.send(("SELECT 1", "SELECT 2"))


def _gymnasium() -> None:
    env = gymnasium.make("intercode-bash-v0")
    env.reset(seed=0)
    env.step("echo 1")


KINDS: dict[str, Callable[[], object]] = {
    **{name: lambda name=name: _act(name) for name in ("bash", "ctf", "swe", "python", "sql")},
    "bash, reset": lambda: begin("bash"),
    "python of an image": lambda: _act("python", python="python3"),
    "bash with keys": lambda: _act("bash", keys=True),
    "bash with a network": lambda: _act("bash", network=["example.org:80"]),
    "snapshot": lambda: begin("bash").unwrapped.snapshot(),
    **{
        f"fork of {name}": lambda name=name: _fork(name, True) for name in ("bash", "python", "sql")
    },
    "fork, asleep": lambda: _fork("bash", False),
    "vector": _vector,
    "vector, not received": _sent,
    "gymnasium.make": _gymnasium,
}


class Held:
    """What this process holds: descriptors, threads, processes below it, and snapshots on disk."""

    def __init__(self) -> None:
        gc.collect()
        self.descriptors = len(os.listdir("/proc/self/fd"))
        self.threads = sum(not one.name.startswith("intercode-c") for one in threading.enumerate())
        self.processes = len(_below(os.getpid()))
        self.files = len([*(cache_root() / "snapshots").glob("*")])
        self.pipes = len(DRAIN._pipes)

    @property
    def numbers(self) -> tuple[int, ...]:
        return self.descriptors, self.threads, self.processes, self.files, self.pipes


def _below(pid: int) -> list[int]:
    """The processes below one, but for those that have ended."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(text) for text in task.read_text().split()]
        except OSError:  # it has just ended
            continue
        found += [
            one for child in children if not _has_ended(child) for one in (child, *_below(child))
        ]
    return found


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_of_it(kind: str) -> None:
    leaves_nothing(KINDS[kind])


def leaves_nothing(use: Callable[[], object]) -> None:
    """Assert that all that a use makes and drops is freed."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):  # what is shared is there, and a worker is idle
            use()
        most = Held().numbers
        for _ in range(MANY):
            use()
            gc.collect()

        def is_freed() -> bool:
            return all(now < limit + MANY for now, limit in zip(Held().numbers, most, strict=True))

        assert eventually(is_freed), (Held().numbers, most)
