"""A crash of InterCode's own Python is an error of an episode; one by an action is its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from envs.python_tasks import TASKS
from intercode.envs.python import PythonEnv
from intercode.errors import SandboxError
from intercode.evaluate import evaluate
from intercode.interpreters.python import PythonInterpreter
from intercode.interpreters.python_start import PRELOAD, provider
from intercode_sandbox import Provider
from intercode_sandbox.native.provider import NativeProvider
from sources import path_of

FOLDER = str(path_of("faulty"))
ADD = TASKS["add"]
FAULTS = ["aborts_at_start", "aborts_at_actions"]
Broken = Callable[[str], Provider]


@pytest.fixture
def broken() -> Iterator[Broken]:
    """Makes a provider whose Python has the fault of a module in the folder ``faulty``."""
    providers = []

    def make(module: str) -> Provider:
        providers.append(NativeProvider(preload=(*PRELOAD, module), path=[FOLDER]))
        return providers[-1]

    yield make
    for each in providers:
        each.close()


@pytest.mark.parametrize("fault", FAULTS)
def test_every_action_crashes(broken: Broken, fault: str) -> None:
    with closing(broken(fault).start("scratch")) as sandbox:
        interpreter = PythonInterpreter(sandbox)
        with pytest.raises(
            SandboxError, match=r"cannot run a worker: it crashed .Aborted."
        ) as failed:
            interpreter.execute("1 + 1")
        at_start = fault == "aborts_at_start"
        assert str(failed.value).endswith("Fatal Python error: broken") == at_start
        interpreter.close()


def test_the_setup_code_of_a_task_crashes(broken: Broken) -> None:
    sandbox = broken("aborts_at_start").start("scratch")
    with closing(sandbox), pytest.raises(SandboxError, match="cannot run a worker"):
        PythonInterpreter(sandbox, prelude="x = 1")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_has_errors_and_no_zeros(broken: Broken, fault: str) -> None:
    """Each episode is tried again, ends as an error, and counts in no rate."""
    faulty = broken(fault)
    attempts = 0

    class Counted(PythonEnv):
        def reset(self, **options: Any) -> Any:
            nonlocal attempts
            attempts += 1
            return super().reset(**options)

    result = evaluate(
        TASKS, "oracle", lambda: Counted(TASKS, sandbox=faulty), limit=2, max_retries=1
    )
    assert (result.statistics.episodes, result.statistics.errors) == (0, 2)
    assert attempts == 4
    for episode in result.episodes():
        assert episode.status == "error" and episode.score is None
        assert "cannot run a worker" in str(episode.error)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_crash_while_grading(broken: Broken, fault: str) -> None:
    """The sandbox of the submission is new, and its worker the first: no evidence against it."""
    env = PythonEnv(TASKS, sandbox=broken(fault))
    failure = pytest.raises(SandboxError, match="cannot run a worker")
    with closing(env), closing(env.stage.open(ADD)) as place, failure:
        env.score(ADD, place, output=ADD.gold[0])


CRASHES = {
    "a signal": ("import os; os.abort()", "crashed (Aborted)"),
    "an exit code like a signal's": ("import os; os._exit(139)", "crashed (Segmentation fault)"),
    "an exit code": ("import os; os._exit(1)", "ended with exit code 1"),
    "a kill": ("import os; os.kill(os.getpid(), 9)", "was killed (out of memory?)"),
}


@pytest.mark.parametrize("name", CRASHES)
def test_an_action_that_crashes_its_worker(name: str) -> None:
    action, end = CRASHES[name]
    with closing(provider().start("scratch")) as sandbox:
        interpreter = PythonInterpreter(sandbox)
        done = interpreter.execute(action)
        assert f"the interpreter {end}" in done.observation and done.info["restarted"]
        assert interpreter.execute("1 + 1").observation == "2\n"
        interpreter.close()


def test_a_submission_that_crashes_its_worker() -> None:
    with closing(PythonEnv(TASKS)) as env, closing(env.stage.open(ADD)) as place:
        assert env.score(ADD, place, output="import os\nos.abort()").value == 0
