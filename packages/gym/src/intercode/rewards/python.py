"""The default Python reward: the share of a task's tests that pass.

The submission is the source code that the agent executed in its session (`session_source`). The
reward runs the submission again in a fresh process, in the file system that the agent left. The
tests run in another sandbox, in which no code of the agent has ever run. The submission therefore
cannot read gold, tests or expected values.

A test passes if it raises no exception. Gold is not run, so no test passes because gold fails in
the same way.

If all tests of a task call one function, the agent may submit another function by ``submit NAME``.
The tests then call that function. An undefined NAME fails every test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import lru_cache

from intercode.episode import Episode, Score
from intercode.rewards.base import quiesce_sandbox
from intercode.rewards.gold import blame_task
from intercode.rewards.python_plan import (
    PythonGradingPlan,
    make_plan,
    session_source,
    stdio_cases,
    submission,
)
from intercode.rewards.python_run import GradingSandbox, SubmissionTestRun, TestResult, run_cases
from intercode.task import Task
from intercode_sandbox.base import Provider, SandboxBackend
from intercode_sandbox.network import Network


class PythonReward:
    """The reward that runs a task's tests against the submission of an episode.

    Args:
        provider: The provider that starts a copy of the sandbox of a running episode.
        start: Starts a sandbox with the task's files and setup applied.
        image: Returns the image of a task's sandboxes.
        network: The submission's network access.
        python: The image's Python that runs submission and tests; None: the Python of InterCode.
    """

    VERSION = 1
    """The version of the scores: raise the number when any score can differ."""

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
        self._plan: Callable[[Task], PythonGradingPlan] = lru_cache(maxsize=1)(make_plan)
        self._idle_bench: tuple[str, GradingSandbox] | None = None

    def __call__(self, task: Task, episode: Episode, sandbox: SandboxBackend) -> Score:
        """Return the score of an episode.

        Raises:
            TaskError: The task has no tests, its code is not Python, or its cases are malformed.
            RewardError: The tests have ended their own sandbox.
            SandboxError: A sandbox died.
        """
        return _make_score(self._results(task, episode, sandbox))

    def _results(self, task: Task, episode: Episode, sandbox: SandboxBackend) -> list[TestResult]:
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
                SubmissionTestRun(
                    subject, self._python, sources, plan.message(episode.answer), timeout
                )
            ) as trial,
            self._bench(task) as bench,
        ):
            return trial.run(bench, plan.tests, plan.harmless)

    def close(self) -> None:
        """Close the sandbox that is retained for the next grading. Idempotent."""
        idle_bench, self._idle_bench = self._idle_bench, None
        if idle_bench is not None:
            idle_bench[1].close()

    @contextmanager
    def _bench(self, task: Task) -> Iterator[GradingSandbox]:
        """Yield a sandbox for the tests, retained or new, in which no submission has run.

        A sandbox is retained for the next grading if it depends on the image alone.
        """
        image = "" if task.files or task.setup else self._image(task)
        with blame_task(task, "its tests"):
            bench = self._take(image) or GradingSandbox(self._start(task))
        try:
            yield bench
            if image:
                self._idle_bench = image, bench
        finally:
            if self._idle_bench is None:
                bench.close()

    def _take(self, image: str) -> GradingSandbox | None:
        """Return the retained sandbox if it has this image and is unchanged; close any other."""
        idle_bench, self._idle_bench = self._idle_bench, None
        if idle_bench is None:
            return None
        if idle_bench[0] == image and idle_bench[1].is_new():
            return idle_bench[1]
        idle_bench[1].close()
        return None


def _make_score(results: list[TestResult]) -> Score:
    passed_share = sum(result.passed for result in results) / len(results)
    failures = {str(n): result.reason for n, result in enumerate(results) if not result.passed}
    return Score(passed_share, {"tests": passed_share}, {"failed": failures} if failures else {})
