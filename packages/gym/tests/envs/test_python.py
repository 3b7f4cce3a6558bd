"""The Python environment: the loop, its options, and that it leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import intercode
from intercode.envs.python import PythonEnv
from intercode.errors import TaskError
from intercode.evaluate import evaluate
from intercode.task import Dataset, Task
from intercode_sandbox.base import Limits

from .python_tasks import ADD, TASKS, attempt, failures

pytestmark = pytest.mark.filterwarnings("error")

MakePython = Callable[..., PythonEnv]


@pytest.fixture
def make_python() -> Iterator[MakePython]:
    """Makes environments that are closed when the test ends."""
    made: list[PythonEnv] = []

    def make(data: Any = TASKS, **options: Any) -> PythonEnv:
        made.append(PythonEnv(data, **options))
        return made[-1]

    yield make
    for env in made:
        env.close()


@pytest.mark.parametrize("task_id", [task.task_id for task in TASKS])
def test_gold_is_right_and_nothing_is_not(make_python: MakePython, task_id: str) -> None:
    env = make_python()
    assert attempt(env, task_id, TASKS[task_id].gold[0]) == 1.0, failures(env)
    assert attempt(env, task_id) == 0.0
    assert attempt(env, task_id, "garbage(") == 0.0


def test_an_episode(make_python: MakePython) -> None:
    env = make_python(render_mode="ansi")
    observation, info = env.reset(options={"task_id": "add"})
    assert (observation, info["task_id"], info["turn"]) == ("Write add(a, b).", "add", 0)
    assert env.step("1 / 0")[0].endswith("ZeroDivisionError: division by zero\n")
    assert env.step(ADD)[::4] == ("", {"task_id": "add", "turn": 2, "turns_left": 8, "ok": True})
    result = env.step("submit add")
    assert result == (
        *("", 1.0, True, False),
        {
            **{"task_id": "add", "turn": 2, "turns_left": 8, "outcome": "solved"},
            **{"success": True, "parts": {"tests": 1.0}},
        },
    )
    assert env.episode.answer == "add"
    assert str(env.render()).startswith("# Write add(a, b).\n>>> 1 / 0\nTraceback")


def test_a_share_of_the_tests(make_python: MakePython) -> None:
    env = make_python()
    assert attempt(env, "add", "def add(a, b):\n    return 3 if a == 1 else a + b") == 1.0
    assert attempt(env, "add", "def add(a, b):\n    return int(a) + int(b)") == 1 / 3
    assert set(failures(env)) == {"1", "2"}


def test_a_reward_in_every_turn(make_python: MakePython) -> None:
    env = make_python(reward_every_turn=True)
    env.reset(options={"task_id": "add"})
    assert env.step("x = 5; log = []")[1] == 0.0
    assert env.step("def add(a, b):\n    log.append(a); return a + b")[1] == 1.0
    # The tests ran elsewhere: what they asked is not to be found here.
    assert env.step("log, x")[0] == "([], 5)\n"
    write = "def add(a, b):\n    open('/tmp/log', 'a').write(str(a)); return a + b"
    assert env.step(write)[1] == 1.0
    assert env.step("import os; os.path.exists('/tmp/log')")[0] == "False\n"


def test_a_task_with_a_verification(make_python: MakePython) -> None:
    task = Task(
        "t", "Write 3 into f.", gold=("open('f', 'w').write('3')",), verification="grep 3 f"
    )
    env = make_python(Dataset([task]))
    assert attempt(env, "t", task.gold[0]) == 1.0
    assert attempt(env, "t") == 0.0


def test_a_task_that_nothing_can_grade() -> None:
    with pytest.raises(TaskError, match="task 'u' has neither 'tests' nor 'verification'"):
        PythonEnv(Dataset([TASKS[0], Task("u", "?", gold=("1",))]))


def test_setup_runs_before_the_agent(make_python: MakePython) -> None:
    task = Task(
        "t", "?", setup="echo 5 > n", files={"tool.py": "def read(): return int(open('n').read())"},
        tests=("assert n == 5",), metadata={"setup_code": "import tool"},
    )  # fmt: skip
    env = make_python(Dataset([task]))
    assert attempt(env, "t", "n = tool.read()") == 1.0
    broken = Task("t", "?", tests=("assert 1",), metadata={"setup_code": "import no_such_tool"})
    env = make_python(Dataset([broken]))
    with pytest.raises(TaskError, match="no_such_tool"):
        env.reset()


def test_nothing_leaks_from_episode_to_episode(make_python: MakePython) -> None:
    env = make_python(limits=Limits(timeout=20.0))
    attempt(
        env, "add", "leak = 1\nimport builtins, os\nbuiltins.leak = 1\nos.environ['LEAK'] = '1'"
    )
    env.reset(options={"task_id": "add"})
    assert "NameError" in env.step("leak")[0]
    assert env.step("import os; os.environ.get('LEAK')")[0] == ""
    assert env.step("import random, uuid; x = random.random(); print(x)")[0] != "0"


def test_episodes_do_not_share_random_numbers(make_python: MakePython) -> None:
    env = make_python()
    seen = set()
    for _ in range(3):
        env.reset()
        seen.add(env.step("import random; random.random()")[0])
    assert len(seen) == 3


MANY_EPISODES = """
import os
from envs.python_tasks import ADD, TASKS, attempt
from intercode.envs.python import PythonEnv
env = PythonEnv(TASKS)
episodes = int(os.environ.get("INTERCODE_SOAK_EPISODES", "10"))
for _ in range(2):
    for _ in range(episodes // 2):
        assert attempt(env, "add", "import os; os._exit(1)", ADD) == 1.0
    print(len(os.listdir("/proc/self/fd")))
env.close()
"""


def test_many_episodes_leave_nothing_open() -> None:
    """In a process of their own: in this one others open and close things in the background."""
    done = subprocess.run(
        [sys.executable, "-c", MANY_EPISODES],
        cwd=Path(__file__).parents[1],
        check=True,
        capture_output=True,
    )
    before, after = map(int, done.stdout.split())
    assert after <= before


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("noop", 0.0)])
def test_runs_of_agents(agent: str, reward: float) -> None:
    def make() -> Any:
        return intercode.make("python", data=TASKS)

    run = evaluate(TASKS, agent, make, workers=2)
    assert [episode.reward for episode in run.episodes()] == [reward] * len(TASKS)
