"""The SWE reward: do the tests pass that the issue is about, and all others still.

It is decided in a sandbox where the agent has never been, made like the agent's was:

1. The test patch is applied to the repository as the agent got it.
2. The agent's changes in the repository are taken over, save those that do not count: of tests and
   their configuration, of git's own files, of anything that Python would run unasked
   (`swe_plan`). What was changed outside of the repository does not count either.
3. The named tests run, and report (`swe_run`).

**1.0** means that every test of FAIL_TO_PASS and of PASS_TO_PASS has passed. Else the score is
`NOT_SOLVED` times the share of the one times the share of the other.

Code under test shares its process with its tests, as it must. What it can do there to have one test
pass and another fail, whatever is asserted, we cannot see; where it names what it would need for
that, its file is recorded as ``suspect``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from intercode.episode import Episode, Score, decode, encode
from intercode.errors import TaskError
from intercode.rewards.swe_plan import Plan, make_plan
from intercode.rewards.swe_run import check_runner, run
from intercode.rewards.swe_take import take_over
from intercode.sandbox.base import Sandbox
from intercode.task import Task

NOT_SOLVED = 0.99
"""The most that an episode can reach in which a test fails."""
_SHOWN = 20


class SweReward:
    """Runs a task's tests on what the agent has left. See the module's docstring.

    Args:
        start: Starts a sandbox with the task's repository in it.
        plan: Says how a task is graded.
    """

    def __init__(
        self, start: Callable[[Task], Sandbox], plan: Callable[[Task], Plan] = make_plan
    ) -> None:
        self._start = start
        self._plan = plan

    def __call__(self, task: Task, episode: Episode, sandbox: Sandbox) -> Score:
        """The score.

        Raises:
            TaskError: The task is malformed, its test patch does not apply, or its image cannot
                run its tests.
            SandboxError: A sandbox died.
        """
        plan = self._plan(task)
        with closing(self._start(task)) as fresh:
            _apply(fresh, task, plan)
            taken = take_over(sandbox, fresh, plan)
            if taken.too_much:
                why = "more files were changed than are taken over"
                return Score(0.0, {"fail_to_pass": 0.0, "pass_to_pass": 0.0}, {"error": why})
            result = run(fresh, plan)
        if result.why:
            with closing(self._start(task)) as pristine:
                check_runner(pristine, task, plan)
        failing = _share(plan.fail_to_pass, result.passed)
        passing = _share(plan.pass_to_pass, result.passed)
        failed = [name for name in plan.tests if name not in result.passed]
        detail = {
            "failed": failed[:_SHOWN],
            "left_out": taken.left_out,
            "suspect": taken.suspect,
            "error": result.why,
            "output": result.output if failed else "",
        }
        return Score(
            NOT_SOLVED * failing * passing if failed else 1.0,
            {"fail_to_pass": failing, "pass_to_pass": passing},
            {name: value for name, value in detail.items() if value},
        )


def _apply(sandbox: Sandbox, task: Task, plan: Plan) -> None:
    if not plan.test_patch.strip():
        return
    patch = encode(plan.test_patch.rstrip("\n") + "\n")
    argv = ["git", "apply", "--whitespace=nowarn", "-"]
    done = sandbox.exec(argv, stdin=patch, cwd=plan.directory, timeout=60.0)
    if not done.ok:
        said = decode(done.stderr).strip()[-500:] or f"exit code {done.exit_code}"
        raise TaskError(f"task {task.task_id!r}: 'metadata.test_patch' does not apply: {said}")


def _share(names: tuple[str, ...], passed: frozenset[str]) -> float:
    return sum(name in passed for name in names) / len(names) if names else 1.0
