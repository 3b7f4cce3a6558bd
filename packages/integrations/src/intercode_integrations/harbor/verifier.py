"""The reward of a task folder: its tests, run in the place that the agent has left.

The agent has never seen them, and none of its processes lives any more. What is found of earlier
tests and rewards is removed, and files that decide how any program runs are as in the image (see
`system_files`). Then the tests are written to ``/tests``, run as the verifier's user with its
network and its time limit, and leave the reward in ``/logs/verifier``.

Tests that leave none are an error, as in Harbor, unless it is the agent's work that has kept them
from it: in a place where no agent has been, they leave one. Then the reward is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from intercode.episode import Episode, Score, decode
from intercode.errors import CausedInsideError, InterCodeError, RewardError
from intercode.json_limits import load_record
from intercode.rewards.base import quiesce_sandbox, start_copy
from intercode.rewards.leftovers import variables
from intercode.task import Task
from intercode_integrations.harbor.folders import TESTS, files
from intercode_integrations.harbor.stage import HarborStage, home_variables, run_as_root
from intercode_integrations.harbor.system_files import TamperedError, restore_system_files
from intercode_sandbox.base import Change, SandboxBackend
from intercode_sandbox.scripts import SHELL, script
from intercode_sandbox.units import MIB

VERIFIER_SECONDS = 600.0
_CLEAN = """
[ -d /logs ] && [ ! -L /logs ] || rm -rf /logs
rm -rf /tests /logs/verifier && mkdir -p /logs && mkdir -m 777 /tests /logs/verifier
"""
_MAX_OUTPUT_CHARACTERS = 2000


class NoRewardError(Exception):
    """The tests have left no reward. The text says why."""


class HarborReward:
    """Runs a task's tests, and returns the reward that they leave.

    Args:
        stage: Makes the places, and knows the folders.
    """

    VERSION = 1
    """Raise it when any score can differ."""

    def __init__(self, stage: HarborStage) -> None:
        self._stage = stage
        self._gold_paths: dict[str, frozenset[str]] = {}

    def __call__(self, task: Task, episode: Episode, sandbox: SandboxBackend) -> Score:
        """Return the score: ``reward`` of the rewards, the only one, or their mean.

        Raises:
            RewardError: The tests leave no reward, also where no agent has been.
            SandboxError: The sandbox died.
        """
        changes: list[Change] = []
        network = self._stage.reach(task, self._stage.config(task).verifier)
        provider = self._stage.provider

        def read_changes() -> None:
            changes[:] = sandbox.changes()

        with (
            quiesce_sandbox(provider, network, episode, sandbox, read_changes) as quiesced_sandbox,
            self._verifier_workspace(
                task, quiesced_sandbox, episode.status != "running"
            ) as workspace,
        ):
            try:
                restore_system_files(
                    workspace, changes, lambda: self._stage.open(task), self._gold_path_finder(task)
                )
                return self._test(task, workspace)
            except TamperedError as error:
                detail: dict[str, Any] = {"reason": str(error), "tampered": error.paths}
            except NoRewardError as error:
                self._refuse_broken(task, error)
                detail = {"reason": f"its tests left no reward: {error}"}
        return Score(0.0, {}, detail)

    @contextmanager
    def _verifier_workspace(
        self, task: Task, workspace: SandboxBackend, agents: bool = True
    ) -> Iterator[SandboxBackend]:
        """Yield a place with the verifier's network: a copy, where it has another agent's."""
        stage = self._stage
        network = stage.reach(task, stage.config(task).verifier)
        if not agents or network == stage.reach(task):
            yield workspace
            return
        with start_copy(stage.provider, network, workspace.limits, workspace.snapshot()) as copy:
            yield copy

    def _gold_path_finder(self, task: Task) -> Callable[[], frozenset[str]]:
        """Return a function that tells which paths the task's own solution changes, if any."""

        def paths() -> frozenset[str]:
            if task.task_id not in self._gold_paths:
                with closing(self._stage.open(task)) as workspace:
                    for command in task.gold[:1]:
                        user = self._stage.config(task).agent.account
                        env = {**home_variables(workspace, user), **self._stage.variables(task)}
                        argv, stdin = script(command)
                        seconds = task.timeout
                        workspace.exec(argv, stdin=stdin, env=env, user=user, timeout=seconds)
                    self._gold_paths[task.task_id] = frozenset(c.path for c in workspace.changes())
            return self._gold_paths[task.task_id]

        return paths

    def _test(self, task: Task, workspace: SandboxBackend) -> Score:
        """Run the tests.

        Raises:
            NoRewardError: They leave no reward.
        """
        stage, verifier = self._stage, self._stage.config(task).verifier
        seconds = verifier.timeout_sec or VERIFIER_SECONDS
        try:
            env = {
                **home_variables(workspace, verifier.account),
                **stage.variables(task, verifier.env),
            }
            cleanup = run_as_root(workspace, [*SHELL, _CLEAN], env=variables(workspace))
            if not cleanup.ok:
                raise NoRewardError(
                    f"/tests cannot be made: {decode(cleanup.stderr)[-_MAX_OUTPUT_CHARACTERS:]}"
                )
            for name, path in files(stage.folder(task) / TESTS):
                workspace.write_file(f"/{TESTS}/{name}", path.read_bytes(), 0o755)
            result = workspace.exec(
                [*SHELL, "/tests/test.sh"],
                cwd=stage.directory(task),
                env=env,
                user=verifier.account,
                timeout=seconds,
                merge_stderr=True,
            )
            if result.timed_out:
                raise NoRewardError(f"the tests exceeded their time limit of {seconds:g} s")
            parts = _rewards(workspace)
        except CausedInsideError as error:  # no agent's program runs here: the tests did it
            raise NoRewardError(str(error)) from error
        except (OSError, LookupError, ValueError) as error:  # also: no such user any more
            if isinstance(error, InterCodeError):
                raise
            raise NoRewardError(str(error)) from error
        value = parts["reward"] if "reward" in parts else sum(parts.values()) / len(parts)
        return Score(value, parts, {"output": decode(result.stdout[-_MAX_OUTPUT_CHARACTERS:])})

    def _refuse_broken(self, task: Task, error: NoRewardError) -> None:
        """Refuse tests that leave no reward where no agent has been, either.

        They run again each time: a server that they need may have gone since.

        Raises:
            RewardError: So it is.
        """
        try:
            with (
                closing(self._stage.open(task)) as fresh_place,
                self._verifier_workspace(task, fresh_place) as workspace,
            ):
                self._test(task, workspace)
        except NoRewardError:
            raise RewardError(
                f"task {task.task_id!r}: its tests left no reward: {error}"
            ) from error


def _rewards(workspace: SandboxBackend) -> dict[str, float]:
    """Read the rewards that tests have left.

    Raises:
        NoRewardError: There are none, or not only finite numbers.
    """
    for name in ("reward.json", "reward.txt"):
        path = f"/logs/verifier/{name}"
        try:
            text = workspace.read_file(path, MIB).decode()
            reward_value: Any = load_record(text) if name.endswith("json") else float(text)
        except FileNotFoundError:
            continue
        except ValueError as error:
            raise NoRewardError(f"{path}: {error}") from error
        parts = reward_value if isinstance(reward_value, dict) else {"reward": reward_value}
        try:
            numbers = {
                key: float(value) for key, value in parts.items() if isinstance(value, int | float)
            }
        except OverflowError:
            numbers = {}
        if (
            not numbers
            or len(numbers) < len(parts)
            or not all(map(math.isfinite, numbers.values()))
        ):
            raise NoRewardError(f"{path} must have finite numbers, not {text[:100]!r}")
        return numbers
    raise NoRewardError("there is no /logs/verifier/reward.json or reward.txt")
