"""An environment without sandboxes: its places are in memory, and an action may be held back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from intercode.envs.base import InterCodeEnv
from intercode.episode import Score
from intercode.errors import SandboxError
from intercode.interpreters.base import Execution
from intercode.task import Dataset, Task
from waiting import PATIENCE


class Toy:
    """Place, stage and interpreter in one. An action is called, if it is the name of something.

    Args:
        calls: What is called, by the action's text.
    """

    def __init__(self, calls: dict[str, Callable[[], object]] | None = None) -> None:
        self.calls = calls or {}
        self.lost = False
        """Whether no place can be made."""

    def image(self, task: Task) -> str:
        return "none"

    def check(self, task: Task) -> None:
        pass

    def digest(self, task: Task) -> str:
        return ""

    def changed(self, task: Task, place: Toy) -> bool:
        return False

    def open(self, task: Task) -> Toy:
        if self.lost:
            raise SandboxError("there is no place")
        return self

    def execute(self, action: str, timeout: float | None = None) -> Execution:
        self.calls.get(action, lambda: None)()
        return Execution(f"{action}\n".encode(), ok=True)

    def kill(self) -> None:
        pass

    def close(self) -> None:
        pass


def toy(tasks: Dataset, toy: Toy | None = None, **options: Any) -> InterCodeEnv[Toy]:
    """Make an environment in which every episode succeeds."""
    return InterCodeEnv(tasks, toy or Toy(), lambda place: place, lambda *_: Score(1.0), **options)


def many(count: int) -> Dataset:
    """Tasks by their numbers."""
    return Dataset([Task(str(number), f"Do {number}.") for number in range(count)], "many")


class Gate:
    """Holds back who calls it, until it is opened, or its test ends."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.opened.wait(PATIENCE)

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *exception: object) -> None:
        self.opened.set()
