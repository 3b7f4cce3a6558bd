"""The SWE reward: do the tests pass that the issue is about, and all others still.

It is decided in a sandbox where the agent has never been, made like the agent's was:

1. The test patch is applied to the repository as the agent got it.
2. The agent's changes in the repository are taken over, save those that do not count: of tests and
   their configuration, of git's own files, of anything that Python would run unasked
   (`swe_plan`). What was changed outside of the repository does not count either.
3. The named tests run, and report (`swe_run`). Where they are commands, each has a sandbox of its
   own: what the first does to the tests is nothing to the second.
4. Tests of FAIL_TO_PASS that have passed run again among twins that must fail (`swe_twins`).

**1.0** means that every test of FAIL_TO_PASS and of PASS_TO_PASS has passed. Else the score is
`NOT_SOLVED` times the share of the one times the share of the other; it is 0 if a twin has passed.

Code under test shares its process with its tests, as it must. Where a test has no twin, what it can
do there we cannot see; where it names what it would need for that, its file is recorded as
``suspect``.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial

from intercode.episode import Episode, Score, decode, encode
from intercode.errors import CausedInsideError, TaskError
from intercode.rewards.gold import GoldCache
from intercode.rewards.swe_plan import Plan, make_plan
from intercode.rewards.swe_run import Run, check_runner, run
from intercode.rewards.swe_take import Taken, take_over
from intercode.rewards.swe_twins import Twins, confront, find
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
        identify: What such a sandbox depends on.
        cache: Where twins are kept; None: nowhere.
    """

    def __init__(
        self,
        start: Callable[[Task], Sandbox],
        plan: Callable[[Task], Plan] = make_plan,
        identify: Callable[[Task], str] = lambda task: task.task_id,
        cache: GoldCache | None = None,
    ) -> None:
        self._start = start
        self._plan = plan
        self._identify = identify
        self._cache = cache or GoldCache(0)
        self._draw = random.SystemRandom()

    def __call__(self, task: Task, episode: Episode, sandbox: Sandbox) -> Score:
        """The score.

        Raises:
            TaskError: The task is malformed, its test patch does not apply, or its image cannot
                run its tests.
            SandboxError: A sandbox died.
        """
        plan = self._plan(task)
        result, taken = self._run(task, plan, sandbox)
        if taken.too_much:
            return _nothing("more files were changed than are taken over")
        if result.why:
            with closing(self._start(task)) as pristine:
                check_runner(pristine, task, plan)
        passed, without = result.passed, frozenset[str]()
        if not passed.isdisjoint(plan.fail_to_pass):
            twins = self._twins(task, plan)
            without = frozenset(plan.fail_to_pass) - twins.tests
            work = partial(self._with_work, task, plan, sandbox)
            verdict = confront(plan, twins, passed, lambda: work()[0], self._draw)
            if verdict.tampered:
                return _nothing("tests that assert something wrong pass", verdict.tampered)
            passed -= verdict.failed
        failing = _share(plan.fail_to_pass, passed)
        passing = _share(plan.pass_to_pass, passed)
        failed = [name for name in plan.tests if name not in passed]
        detail = {
            "failed": failed[:_SHOWN],
            "left_out": taken.left_out,
            "suspect": taken.suspect,
            "without_twin": sorted(without)[:_SHOWN],
            "reason": result.why,
            "output": result.output if failed else "",
        }
        return Score(
            NOT_SOLVED * failing * passing if failed else 1.0,
            {"fail_to_pass": failing, "pass_to_pass": passing},
            {name: value for name, value in detail.items() if value},
        )

    def _run(self, task: Task, plan: Plan, agent: Sandbox) -> tuple[Run, Taken]:
        """Outcomes of the tests, and the changes that were carried over."""
        plans = [plan]
        if plan.runner == "command":
            plans = [replace(plan, fail_to_pass=(one,), pass_to_pass=()) for one in plan.tests]
        runs: list[Run] = []
        for one in plans:
            fresh, taken = self._with_work(task, plan, agent)
            with closing(fresh):
                if taken.too_much:
                    return Run(frozenset()), taken
                runs.append(run(fresh, one))
        if len(runs) == 1:
            return runs[0], taken
        passed = frozenset[str]().union(*(one.passed for one in runs))
        return Run(passed, output="\n".join(one.output for one in runs if one.output)), taken

    def _with_work(self, task: Task, plan: Plan, agent: Sandbox) -> tuple[Sandbox, Taken]:
        """A fresh sandbox with the tests and the agent's work; and what was carried over."""
        fresh = self._with_tests(task, plan)
        try:
            return fresh, take_over(agent, fresh, plan)
        except BaseException:
            fresh.close()
            raise

    def _with_tests(self, task: Task, plan: Plan, *more: str) -> Sandbox:
        """A fresh sandbox with the test patch, and others, applied."""
        fresh = self._start(task)
        try:
            _apply(fresh, task, plan, "metadata.test_patch", plan.test_patch)
            for patch in more:
                _apply(fresh, task, plan, "gold", patch)
        except BaseException:
            fresh.close()
            raise
        return fresh

    def _twins(self, task: Task, plan: Plan) -> Twins:
        """Those of the task; none where gold does not show which there are."""
        if plan.runner == "command" or not task.gold:
            return Twins()

        def made() -> Twins:
            gold = partial(self._with_tests, task, plan, task.gold[0])
            try:
                return find(plan, gold, self._draw)
            except (TaskError, CausedInsideError):  # gold's own trouble, which `validate` reports
                return Twins()

        facts = json.dumps([self._identify(task), task.gold[0], dict(task.metadata)], default=str)
        key = hashlib.blake2b(f"twins {facts}".encode(), digest_size=16).hexdigest()
        return self._cache.get(key, made)


def _nothing(reason: str, tampered: frozenset[str] = frozenset()) -> Score:
    detail: dict[str, object] = {"reason": reason}
    if tampered:
        detail["tampered"] = sorted(tampered)[:_SHOWN]
    return Score(0.0, {"fail_to_pass": 0.0, "pass_to_pass": 0.0}, detail)


def _apply(sandbox: Sandbox, task: Task, plan: Plan, field: str, text: str) -> None:
    if not text.strip():
        return
    patch = encode(text.rstrip("\n") + "\n")
    argv = ["git", "apply", "--whitespace=nowarn", "-"]
    done = sandbox.exec(argv, stdin=patch, cwd=plan.directory, timeout=60.0)
    if not done.ok:
        said = decode(done.stderr).strip()[-500:] or f"exit code {done.exit_code}"
        raise TaskError(f"task {task.task_id!r}: '{field}' does not apply: {said}")


def _share(names: tuple[str, ...], passed: frozenset[str]) -> float:
    return sum(name in passed for name in names) / len(names) if names else 1.0
