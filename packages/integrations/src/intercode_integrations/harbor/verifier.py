"""The reward of a Harbor task: its tests, run in the workspace that the agent has left.

The agent has never seen the tests, and none of its processes is still running. Earlier tests and
rewards are removed, and files that decide how any program runs are restored from the image (see
`system_files`). Then the tests are copied to ``/tests``. They run with the verifier's user, network
and time limit, and write the reward to ``/logs/verifier``.

As in Harbor, tests that write no reward are an error, unless the agent's work prevented the reward.
To decide this, the tests run again in a workspace that no agent has used. If they write a reward
there, the agent's reward is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from intercode.episode import Episode, Score, decode
from intercode.errors import CausedInsideError, InterCodeError, RewardError
from intercode.json_limits import load_record
from intercode.rewards.agent_leftovers import variables
from intercode.rewards.base import quiesce_sandbox, start_copy
from intercode.task import Task
from intercode_integrations.harbor.stage import HarborStage, home_variables, run_as_root
from intercode_integrations.harbor.system_files import TamperedSystemError, restore_system_files
from intercode_integrations.harbor.task_folders import TESTS, files
from intercode_sandbox.base import Change, SandboxBackend
from intercode_sandbox.script_arguments import SHELL, script
from intercode_sandbox.units import MIB

VERIFIER_SECONDS = 600.0
_CLEAN = """
[ -d /logs ] && [ ! -L /logs ] || rm -rf /logs
rm -rf /tests /logs/verifier && mkdir -p /logs && mkdir -m 777 /tests /logs/verifier
"""
_MAX_OUTPUT_CHARACTERS = 2000


class NoRewardError(Exception):
    """The tests have written no reward; the text gives the reason."""


class HarborReward:
    """A reward function that runs a task's tests and returns the reward that they write.

    Args:
        stage: The stage that opens the workspaces and knows the task folders.
    """

    VERSION = 1
    """Number to increase at any change that can alter a score."""

    def __init__(self, stage: HarborStage) -> None:
        self._stage = stage
        self._gold_paths: dict[str, frozenset[str]] = {}

    def __call__(self, task: Task, episode: Episode, sandbox: SandboxBackend) -> Score:
        """Return the score: the reward named ``reward``, or without that name the mean of all.

        Raises:
            RewardError: The tests write no reward, even in a workspace that no agent has used.
            SandboxError: The infrastructure, not the agent's work, ended the sandbox.
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
            except TamperedSystemError as error:
                detail: dict[str, Any] = {"reason": str(error), "tampered": error.paths}
            except NoRewardError as error:
                self._refuse_broken(task, error)
                detail = {"reason": f"its tests left no reward: {error}"}
        return Score(0.0, {}, detail)

    @contextmanager
    def _verifier_workspace(
        self, task: Task, workspace: SandboxBackend, has_agent_network: bool = True
    ) -> Iterator[SandboxBackend]:
        """Yield a workspace with the verifier's network.

        The result is a copy if `workspace` has the agent's network, and the verifier's differs.

        Args:
            task: The task.
            workspace: The workspace.
            has_agent_network: Whether `workspace` has the agent's network; False: the verifier's.
        """
        stage = self._stage
        network = stage.reach(task, stage.config(task).verifier)
        if not has_agent_network or network == stage.reach(task):
            yield workspace
            return
        with start_copy(stage.provider, network, workspace.limits, workspace.snapshot()) as copy:
            yield copy

    def _gold_path_finder(self, task: Task) -> Callable[[], frozenset[str]]:
        """Return a function that runs the task's solution and returns the paths that it changes."""

        def paths() -> frozenset[str]:
            if task.task_id not in self._gold_paths:
                with closing(self._stage.open(task)) as workspace:
                    for gold_command in task.gold[:1]:
                        user = self._stage.config(task).agent.account
                        env = {**home_variables(workspace, user), **self._stage.variables(task)}
                        gold_argv, stdin = script(gold_command)
                        seconds = task.timeout
                        workspace.exec(gold_argv, stdin=stdin, env=env, user=user, timeout=seconds)
                    self._gold_paths[task.task_id] = frozenset(
                        change.path for change in workspace.changes()
                    )
            return self._gold_paths[task.task_id]

        return paths

    def _test(self, task: Task, workspace: SandboxBackend) -> Score:
        """Run the tests in a workspace, and return the score that they write.

        Raises:
            NoRewardError: The tests write no valid reward.
        """
        stage, verifier_config = self._stage, self._stage.config(task).verifier
        seconds = verifier_config.timeout_sec or VERIFIER_SECONDS
        try:
            env = {
                **home_variables(workspace, verifier_config.account),
                **stage.variables(task, verifier_config.env),
            }
            cleanup_result = run_as_root(workspace, [*SHELL, _CLEAN], env=variables(workspace))
            if not cleanup_result.ok:
                raise NoRewardError(
                    "/tests cannot be made: "
                    f"{decode(cleanup_result.stderr)[-_MAX_OUTPUT_CHARACTERS:]}"
                )
            for name, path in files(stage.folder(task) / TESTS):
                workspace.write_file(f"/{TESTS}/{name}", path.read_bytes(), 0o755)
            result = workspace.exec(
                [*SHELL, "/tests/test.sh"],
                cwd=stage.directory(task),
                env=env,
                user=verifier_config.account,
                timeout=seconds,
                merge_stderr=True,
            )
            if result.timed_out:
                raise NoRewardError(f"the tests exceeded their time limit of {seconds:g} s")
            rewards = _read_rewards(workspace)
        except CausedInsideError as error:  # no process of the agent runs now: the tests caused it
            raise NoRewardError(str(error)) from error
        except (OSError, LookupError, ValueError) as error:  # such as a user that no longer exists
            if isinstance(error, InterCodeError):
                raise
            raise NoRewardError(str(error)) from error
        reward = rewards["reward"] if "reward" in rewards else sum(rewards.values()) / len(rewards)
        return Score(reward, rewards, {"output": decode(result.stdout[-_MAX_OUTPUT_CHARACTERS:])})

    def _refuse_broken(self, task: Task, error: NoRewardError) -> None:
        """Raise an error if the tests write no reward even in a workspace that no agent has used.

        The result is not cached, because a server that the tests need may have stopped since.

        Raises:
            RewardError: The tests write no reward in a fresh workspace.
        """
        try:
            with (
                closing(self._stage.open(task)) as fresh_workspace,
                self._verifier_workspace(task, fresh_workspace) as workspace,
            ):
                self._test(task, workspace)
        except NoRewardError:
            raise RewardError(
                f"task {task.task_id!r}: its tests left no reward: {error}"
            ) from error


def _read_rewards(workspace: SandboxBackend) -> dict[str, float]:
    """Read the rewards that the tests have written to ``/logs/verifier``.

    Raises:
        NoRewardError: The files are missing, or contain other values than finite numbers.
    """
    for file_name in ("reward.json", "reward.txt"):
        path = f"/logs/verifier/{file_name}"
        try:
            content = workspace.read_file(path, MIB).decode()
            reward_value: Any = (
                load_record(content) if file_name.endswith("json") else float(content)
            )
        except FileNotFoundError:
            continue
        except ValueError as error:
            raise NoRewardError(f"{path}: {error}") from error
        raw_rewards = reward_value if isinstance(reward_value, dict) else {"reward": reward_value}
        try:
            rewards = {
                key: float(value)
                for key, value in raw_rewards.items()
                if isinstance(value, int | float)
            }
        except OverflowError:
            rewards = {}
        if (
            not rewards
            or len(rewards) < len(raw_rewards)
            or not all(map(math.isfinite, rewards.values()))
        ):
            raise NoRewardError(f"{path} must have finite numbers, not {content[:100]!r}")
        return rewards
    raise NoRewardError("there is no /logs/verifier/reward.json or reward.txt")
