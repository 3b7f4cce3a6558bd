"""The 2023 Python protocol in a sandbox: its reward, and the ways in which it can be cheated."""

from contextlib import closing

import pytest

import intercode
from intercode.errors import RewardError, SandboxUnavailableError, TaskError, UsageError
from intercode.interpreters.python_start import provider
from intercode.task import Dataset, Task
from intercode_paper.python_env import (
    ENDED,
    LATE,
    LIMITS,
    TIMEOUT,
    PaperPythonWorkspace,
    defined_name,
    gold_name,
    score,
    submitted_name,
)
from intercode_paper.python_server import FAILED
from waiting import PATIENCE

TASK = Task(
    "1",
    "Add two numbers.",
    ("import math\r\ndef add(a, b):\r\n    return a + b + EXTRA",),
    tests=("assert add(1, 2) == 3", "assert add(0, 0) == 0", "assert add('a', 'b') == 'ab'"),
    metadata={"test_setup_code": "EXTRA = 0"},
)
RIGHT = "def plus(a, b):\n    return a + b"


@pytest.fixture(scope="module")
def python_provider():
    found = provider()
    try:
        found.start("host").close()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    return found


@pytest.fixture
def session(python_provider):
    sandbox = python_provider.start("host", LIMITS)
    with closing(PaperPythonWorkspace(sandbox)) as opened:
        yield opened


def test_the_reward_is_the_share_of_tests_that_gold_agrees_with(session):
    session.step(RIGHT)
    trial = session.trial(TASK, "plus")
    # Gold fails the test with texts: `EXTRA` is a number.
    assert [bool(result["error"]) for result in trial.agent.values()] == [False] * 3
    assert [bool(result["error"]) for result in trial.gold.values()] == [False, False, True]
    assert trial.reward == pytest.approx(2 / 3)
    assert score(trial, "plus").detail["submitted_function"] == "plus"


def test_an_undefined_name_gets_everything_at_the_second_time(session):
    assert session.trial(TASK, "nothing").reward < 1
    # Gold's function has stayed under its own name.
    assert session.trial(TASK, "nothing").reward == 1
    assert session.trial(TASK, "").reward == 1


def test_failing_as_gold_does_is_right(session):
    assert session.step("def bad(a, b):\n    return a + b + 0\n") == {"output": "", "error": ""}
    assert session.trial(TASK, "bad").reward == 1


def test_gold_and_its_imports_stay_and_the_agents_names_go(session):
    session.step(RIGHT)
    session.trial(TASK, "plus")
    assert session.step("math.floor(2.5)") == {"output": "2", "error": ""}
    assert session.step("add(2, 3)") == {"output": "5", "error": ""}
    assert session.step("plus(2, 3)") == {"error": "Error: name 'plus' is not defined"}


def test_a_process_that_ends_or_lies_costs_its_names_alone(session):
    session.step("x = 1")
    assert session.step("import os; os._exit(3)") == FAILED + ENDED
    assert session.step("x") == {"error": "Error: name 'x' is not defined"}
    forged = "import os, threading; os.write(1, b'[1]'); os._exit(0)"
    assert session.step(forged) == FAILED + ENDED
    session.step("import os\ndef add2(a, b): os._exit(0)")
    assert session.trial(TASK, "add2").reward == 0


class Impatient(PaperPythonWorkspace):
    """Waits for a second where something loops, and elsewhere for as long as a busy machine takes.

    The agent's `add2` loops in the first test; after the reset gold is tested.
    """

    reset = False

    def _ask(self, request, source):
        self.reset |= request == "reset"
        loops = "while True" in source or (source == TASK.tests[0] and not self.reset)
        self._timeout = 1.0 if loops else TIMEOUT
        return super()._ask(request, source)


def test_a_loop_ends_at_the_time_limit_and_fails_its_test(python_provider, monkeypatch):
    monkeypatch.setattr("intercode.interpreters.python._GRACE_SECONDS", PATIENCE)  # it heeds it
    sandbox = python_provider.start("host", LIMITS)
    with closing(Impatient(sandbox)) as session:
        assert session.step("x = 1\nwhile True: pass") == FAILED + LATE
        session.step("def add2(a, b):\n    while (a, b) == (1, 2): pass\n    return a + b")
        trial = session.trial(TASK, "add2")
    assert trial.agent[TASK.tests[0]] == {"error": f"Error: {FAILED}{LATE}"}
    assert trial.reward == pytest.approx(1 / 3)


def test_what_a_process_beside_it_prints_is_not_the_answer(session):
    assert session.step("import os; os.system('echo loud'); print('here')")["output"] == "here"


def test_names_in_texts():
    assert submitted_name("submit f g") == "f"
    assert submitted_name("submit") == ""
    assert defined_name("def f(x): pass") == "f"
    assert defined_name("def f (x): pass") is None
    assert defined_name("  def f(x): pass") is None
    assert gold_name(TASK) == "add"
    with pytest.raises(RewardError, match="defines no function"):
        gold_name(Task("1", "q", ("x = 1",)))


@pytest.fixture
def env(python_provider):
    data = Dataset([TASK], "one")
    with closing(intercode.make("python", protocol="paper", data=data, max_turns=3)) as made:
        yield made


def test_an_episode(env):
    assert env.reset()[0] == TASK.query
    observation, reward, *_ = env.step(RIGHT)
    assert (observation, reward) == ("{'output': '', 'error': ''}", 0.0)
    assert env.step("plus(1, 2)")[0] == "{'output': '3', 'error': ''}"
    _, reward, terminated, _, _ = env.step("submit plus")
    assert terminated
    assert reward == pytest.approx(2 / 3)
    assert env.episode.answer == "plus"


def test_an_episode_without_a_submit_is_scored_by_its_last_function(env):
    env.reset()
    env.step("1")
    env.step("1")
    assert env.step(RIGHT)[1] == pytest.approx(2 / 3)
    env.reset()
    env.step(RIGHT)
    env.step("plus(1, 2)")
    assert env.step("plus(1, 2)")[1] == 0
    env.reset()
    assert env.step("skip")[1:3] == (0.0, True)


def test_a_new_episode_knows_nothing_of_the_last_one(env):
    env.reset()
    env.step("import sys; sys.path = x = 1")
    env.reset()
    assert "not defined" in env.step("x")[0]


def test_with_a_reward_every_turn_gold_leaks_as_it_did(python_provider):
    data = Dataset([TASK], "one")
    env = intercode.make("python", protocol="paper", data=data, reward_every_turn=True)
    with closing(env):
        env.reset()
        assert env.step("def add2(a, b) return")[1] == 0
        assert env.step("def add2(a, b): return 1")[1] < 1
        # Now gold is there, and a function that cannot be made does not take its place.
        assert env.step("def add2(a, b) return")[1] == 1


@pytest.mark.parametrize(
    "changes",
    [{"tests": ()}, {"gold": ()}, {"gold": ("1 + 1",)}, {"setup": "true"}],
)
def test_tasks_that_2023_could_not_have_are_refused(changes):
    fields = {"gold": TASK.gold, "tests": TASK.tests, **changes}
    data = Dataset([Task("1", "q", **fields)], "one")
    with pytest.raises(TaskError):
        intercode.make("python", protocol="paper", data=data)


def test_limits_are_the_protocols_own():
    data = Dataset([TASK], "one")
    limits = intercode.Limits(timeout=30)
    with pytest.raises(UsageError, match="limits"):
        intercode.make("python", protocol="paper", data=data, limits=limits)
