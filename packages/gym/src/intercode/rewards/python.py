"""The default Python reward: the share of a task's tests that pass.

The submission is the session (`session_source`). It is run again in a fresh process, in the file
system that the agent has left, and the tests run in another sandbox, in which nothing of the
agent's has ever run: neither gold nor a test nor what it expects is within the submission's reach.
A test passes if it runs without an exception; gold is not run, so that no test passes because gold
fails in the same way.

``submit NAME`` says which function is the answer to a task whose tests all call one function. A
NAME that is not defined fails every test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import lru_cache

from intercode.episode import Episode, Score
from intercode.rewards.base import quiesce_sandbox
from intercode.rewards.gold import blame_task
from intercode.rewards.python_plan import (
    PythonPlan,
    make_plan,
    session_source,
    stdio_cases,
    submission,
)
from intercode.rewards.python_run import Bench, Result, Trial, run_cases
from intercode.task import Task
from intercode_sandbox.base import Provider, SandboxBackend
from intercode_sandbox.network import Network


class PythonReward:
    """Runs a task's tests against the submission of an episode.

    Args:
        provider: Starts the sandbox for an episode that still goes on.
        start: Starts a sandbox in which the task's files and setup are done.
        image: Names the image of a task's sandboxes.
        network: Whether the submission may use the network.
        python: A program of the image's to run it; None: the Python of InterCode itself.
    """

    VERSION = 1
    """Raise it when any score can differ."""

    def __init__(
        self,
        provider: Provider,
        start: Callable[[Task], SandboxBackend],
        image: Callable[[Task], str],
        network: Network = False,
        python: str | None = None,
    ) -> None:
        self._provider = provider
        self._start = start
        self._image = image
        self._network = network
        self._python = python
        self._plan: Callable[[Task], PythonPlan] = lru_cache(maxsize=1)(make_plan)
        self._idle_bench: tuple[str, Bench] | None = None

    def __call__(self, task: Task, episode: Episode, sandbox: SandboxBackend) -> Score:
        """Return the score of an episode.

        Raises:
            TaskError: The task has no tests, or they are not Python.
            SandboxError: A sandbox died.
        """
        return _make_score(self._results(task, episode, sandbox))

    def _results(self, task: Task, episode: Episode, sandbox: SandboxBackend) -> list[Result]:
        setup = task.metadata.get("setup_code")
        timeout = sandbox.limits.seconds(task.timeout)
        if cases := stdio_cases(task):
            program = submission(episode, setup)
            with quiesce_sandbox(self._provider, self._network, episode, sandbox) as subject:
                return run_cases(subject, self._python, program, cases, timeout)
        plan = self._plan(task)
        sources = [*([setup] if setup else []), *session_source(episode)]
        with (
            quiesce_sandbox(self._provider, self._network, episode, sandbox) as subject,
            closing(
                Trial(subject, self._python, sources, plan.message(episode.answer), timeout)
            ) as trial,
            self._bench(task) as bench,
        ):
            return trial.run(bench, plan.tests, plan.harmless)

    def close(self) -> None:
        """Close the sandbox that is kept for the next grading. Idempotent."""
        idle_bench, self._idle_bench = self._idle_bench, None
        if idle_bench is not None:
            idle_bench[1].close()

    @contextmanager
    def _bench(self, task: Task) -> Iterator[Bench]:
        """Yield a place for the tests: as new, though it may have been used before."""
        image = "" if task.files or task.setup else self._image(task)
        with blame_task(task, "its tests"):
            bench = self._take(image) or Bench(self._start(task))
        try:
            yield bench
            if image:
                self._idle_bench = image, bench
        finally:
            if self._idle_bench is None:
                bench.close()

    def _take(self, image: str) -> Bench | None:
        """Return the place that is kept, if it has the image and is as new."""
        idle_bench, self._idle_bench = self._idle_bench, None
        if idle_bench is None:
            return None
        if idle_bench[0] == image and idle_bench[1].is_new():
            return idle_bench[1]
        idle_bench[1].close()
        return None


def _make_score(results: list[Result]) -> Score:
    share = sum(result.passed for result in results) / len(results)
    failures = {str(n): result.reason for n, result in enumerate(results) if not result.passed}
    return Score(share, {"tests": share}, {"failed": failures} if failures else {})
