"""Tasks for the Python environment, and how to try one."""

from __future__ import annotations

from typing import Any

from intercode.envs.python import PythonEnv
from intercode.task import Dataset, Task

ADD = "def add(a, b):\n    return a + b"
POINT = """
class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __eq__(self, other):
        return isinstance(other, Point) and (self.x, self.y) == (other.x, other.y)

    def __add__(self, other):
        return Point(self.x + other.x, self.y + other.y)

    def __mul__(self, factor):
        return Point(self.x * factor, self.y * factor)

    def length(self):
        return (self.x ** 2 + self.y ** 2) ** 0.5
"""
TASKS = Dataset(
    [
        Task(
            "add",
            "Write add(a, b).",
            gold=(ADD,),
            tests=(
                "assert add(1, 2) == 3",
                "assert add('a', 'b') == 'ab'",
                "assert add([], []) == []",
            ),
        ),
        Task(
            "point",
            "Write a class Point.",
            gold=(POINT,),
            tests=(
                "p = Point(3, 4)\nassert p.length() == 5\np.x = 0\nassert p.length() == 4",
                "assert Point(1, 2) + Point(3, 4) == Point(4, 6)",
                "assert Point(1, 2) * 3 == Point(3, 6)",
                "assert Point(1, 2) != Point(1, 3) and isinstance(Point(1, 2), Point)",
            ),
        ),
        Task(
            "scale",
            "Fix scale.py.",
            gold=("open('scale.py', 'w').write('def scale(x):\\n    return 2.5 * x\\n')",),
            files={"scale.py": "def scale(x):\n    return 2 * x\n"},
            tests=(
                "import scale\nassert abs(scale.scale(2) - 5) < 1e-9",
                "import math\nfrom scale import scale\nassert math.isclose(scale(4), 10)",
            ),
        ),
    ],
    "small",
)  # fmt: skip


def attempt(env: PythonEnv, task_id: str, *actions: str, submit: str = "submit") -> float:
    """The reward of an episode."""
    env.reset(options={"task_id": task_id})
    for action in actions:
        env.step(action)
    return env.step(submit)[1]


def failures(env: PythonEnv) -> dict[str, Any]:
    """Why tests failed, by their numbers."""
    assert env.episode.score is not None
    return dict(env.episode.score.detail.get("failed", {}))
