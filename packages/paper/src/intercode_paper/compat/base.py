"""The base class `IntercodeEnv` of the 2023 environments, which runs the episodes of a subclass."""

from __future__ import annotations

import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy
from rich.logging import RichHandler

from intercode.errors import CausedInsideError, EnvironmentStateError, UsageError
from intercode.task import Task
from intercode_paper.bash_interpreter import LIMITS, MALFORMED
from intercode_paper.compat.utils import (
    Container,
    DataRow,
    IntercodeDataLoader,
    read_container_settings,
)
from intercode_sandbox import get_provider
from intercode_sandbox.images import hide
from intercode_sandbox.interruption import is_callers

AGENT_OBS = "agent_obs"
EVAL_OBS = "eval_obs"
CORRUPT_GOLD = "corrupt_gold"
ACTION_EXEC = "action_executed"
REWARD = "reward"


class IntercodeEnv(ABC, gymnasium.Env[Any, str]):
    """The base class of the 2023 environments.

    A subclass defines `exec_action` and `get_reward`, and may override `reset_container` and
    `close`. Unlike in current Gymnasium, `step` returns four values.

    Args:
        image_name: The image: a name of 2023 (``intercode-nl2bash``), or a name for
            ``intercode run --image``.
        **kwargs: The keywords of 2023 are ``data_path``, ``verbose``, ``traj_dir`` and
            ``preprocess`` (a function from a row to commands). Without a data file, actions are
            executed, and nothing is scored. The new keywords are ``sandbox`` (``native`` or
            ``docker``), ``network`` and ``environment``. The attribute `kwargs` keeps all keywords,
            even those of a subclass.

    Raises:
        OSError: The data file does not exist.
        UsageError: A keyword is invalid.
        TaskError: The data is malformed, or its file system of NL2Bash does not exist.
        ImageError: The image's name is invalid, or names a missing file.
    """

    name: ClassVar[str] = "intercode"

    def __init__(self, image_name: str, **kwargs: Any) -> None:
        self.kwargs = kwargs
        self.logger = logging.Logger("intercode_paper.compat")
        self.logger.addHandler(RichHandler(show_time=False, show_path=False))
        self.logger.disabled = kwargs.get("verbose") is not True
        self.preprocess: Callable[[DataRow], str | list[str]] | None = kwargs.get("preprocess")
        if self.preprocess is not None and not callable(self.preprocess):
            raise UsageError("preprocess must be a function from a row of the data to its commands")
        self.traj_dir: str | None = kwargs.get("traj_dir") or None
        hide(self.traj_dir)  # trajectories contain golds, so no sandbox may read the folder
        self.data_path: str | None = kwargs.get("data_path")
        self.tool_mode = self.data_path is None
        if self.data_path is None:
            self.logger.info("No data: actions are executed, and nothing is scored")
        else:
            self.data_loader = IntercodeDataLoader(self.data_path)
            hide(self.data_path)
            self.logger.info("%d tasks from %s", len(self.data_loader), self.data_path)
        self.image_name = image_name
        self._container_settings = read_container_settings(image_name, kwargs)
        self.container_name = f"{image_name}_ic_ctr"
        self.container = self._new_container(self.container_name)
        self.logger.info("Ready: call reset() to begin an episode")

    def reset(self, index: int | None = None) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]
        """Start an episode.

        Args:
            index: The row of the data file; None: a random row.

        Returns:
            The query (None without a data file), and `info`, which is empty unless `preprocess` has
            executed commands.

        Raises:
            RuntimeError: A command of `preprocess` failed.
            SandboxError, ImageError: The sandbox cannot be started.
        """
        self._interruption = ""
        self.info: dict[str, Any] = {}
        self.trajectory: list[tuple[str, Any]] = []
        self.observation: Any = None
        if not self.tool_mode:
            row_count = len(self.data_loader)
            self.query_idx = numpy.random.randint(0, row_count) if index is None else index
            self.record = self.data_loader.get(self.query_idx)
            self.query, self.gold = self.record["query"], self.record.get("gold", "N/A")
            self.reward: float | None = None
            self.logger.info("Query: %s\nGold: %s", self.query, self.gold)
        self.reset_container()
        if self.preprocess is not None and not self.tool_mode:
            commands = self.preprocess(self.record)
            for command in [commands] if isinstance(commands, str) else commands:
                self.exec_action(command)
                if not self.info.get(ACTION_EXEC):
                    raise RuntimeError(f"preprocess: {command!r} failed: {self.observation}")
        self.observation = None if self.tool_mode else self.query
        return self.observation, self.info

    def step(self, action: str) -> tuple[Any, float, bool, dict[str, Any]]:  # type: ignore[override]
        """Execute an action. ``submit…`` scores and ends the episode; ``skip`` only ends it.

        Returns:
            Observation, reward, whether the episode has ended, and `info`.

        Raises:
            EnvironmentStateError: `reset` was not called yet, or an exception of the caller
                (Ctrl-C) interrupted an action of the episode.
            SandboxError: The infrastructure, not a process in the sandbox, ended the sandbox.
        """
        if not hasattr(self, "trajectory"):
            raise EnvironmentStateError("there is no episode yet: call reset() first")
        if self._interruption:
            raise EnvironmentStateError(
                f"the episode has ended: {self._interruption} has interrupted an action before its "
                "observation came: call reset() first"
            )
        try:
            return self._step(action)
        except BaseException as error:
            if is_callers(error):
                self._interruption = type(error).__name__
            raise

    def _step(self, action: str) -> tuple[Any, float, bool, dict[str, Any]]:
        if action == "skip":
            return "skipped", 0, True, {}
        if action.startswith("submit"):
            self.trajectory.append((action, None))
            reward, info = (0, {}) if self.tool_mode else self._score_state()
            self.logger.info("Reward: %s\nInfo: %s", reward, info)
            if self.traj_dir is not None:
                self.save_trajectory()
            return self.observation, reward, True, {**info, ACTION_EXEC: True}
        try:
            self.exec_action(action)
        except CausedInsideError:  # the action ended the container, which is a result, not an error
            self.container.reset()
            self.observation, self.info[ACTION_EXEC] = MALFORMED, False
        self.trajectory.append((action, self.observation))
        self.logger.info("Action: %s\nObservation: %s", action, self.observation)
        return self.observation, 0, False, dict(self.info)

    def save_trajectory(self) -> None:
        """Write the episode to ``logs_NAME/log_TIME.json`` in the folder `traj_dir`.

        Without `traj_dir`, the file is in the working directory.
        """
        folder = Path(self.traj_dir or ".", f"logs_{self.name}")
        folder.mkdir(parents=True, exist_ok=True)
        trajectory_record: dict[str, Any] = {"environment": self.name}
        if not self.tool_mode:
            trajectory_record |= {
                name: getattr(self, name) for name in ("query_idx", "query", "gold", "reward")
            }
        trajectory_record["trajectory"] = [
            {
                "action": action,
                "observation": "".join(map(str, observation))
                if isinstance(observation, list)
                else str(observation),
            }
            for action, observation in self.trajectory
        ]
        trajectory_record["info"] = self.info
        stem = time.strftime("log_%Y%m%d%H%M%S")
        candidate_paths = (
            folder / f"{stem}{f'_{number}' if number else ''}.json" for number in count()
        )
        # The stem has only full seconds, and several logs may be written within one second.
        path = next(path for path in candidate_paths if not path.exists())
        path.write_text(json.dumps(trajectory_record, indent=2, default=str), encoding="utf-8")
        self.logger.info("Saved trajectory to %s", path)

    @abstractmethod
    def exec_action(self, action: str) -> None:
        """Execute an action, and set `observation` and ``info["action_executed"]``."""

    @abstractmethod
    def get_reward(self) -> tuple[float, dict[str, Any]]:
        """Score the current state, set `reward` and `info`, and return both."""

    def reset_container(self) -> None:
        """Reset the container to its initial state; the default does nothing."""

    def close(self) -> None:
        """Stop the container, and free its resources. Idempotent."""
        self.container.stop()

    def get_available_actions(self) -> Any:
        """Return the possible actions; None, the default, stands for any text."""
        return None

    def _score_state(self) -> tuple[float, dict[str, Any]]:
        try:
            return self.get_reward()
        except CausedInsideError as error:  # a background process has ended the container
            self.reward = 0.0
            return 0.0, {"ended": str(error)}

    def _new_container(self, name: str) -> Container:
        image, sandbox_name, network, environment = self._container_settings
        provider = get_provider(sandbox_name)
        return Container(name, lambda: provider.start(image, LIMITS, network), environment)

    def _task(self, fields: Mapping[str, Any] | None = None) -> Task:
        """Return a task from the episode's row, or from the given fields in its place."""
        return Task.from_dict(
            dict(self.record.fields) if fields is None else fields, int(self.query_idx)
        )
