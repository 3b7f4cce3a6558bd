"""Episode state: the current task, record, clock, submissions and end of an environment.

`EpisodeEnv` is the base of all environments: local ones (`intercode.envs.base`) and remote ones
(`intercode.envs.remote`). An `EpisodeState` holds the current episode's data.
"""

from __future__ import annotations

import itertools
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import gymnasium

from intercode.envs.options import EnvOptions
from intercode.envs.spaces import Unicode
from intercode.envs.tools import list_tools, read_action
from intercode.envs.traits import SHELL, Traits
from intercode.episode import DataT, Episode, Score, Status, Turn
from intercode.errors import (
    ActionError,
    EnvironmentStateError,
    ImageError,
    RewardError,
    SandboxError,
    SandboxUnavailableError,
    TaskError,
    UsageError,
)
from intercode.outcomes import failure_kind
from intercode.registry import MESSAGES, NOTEBOOK
from intercode.task import Dataset, Task
from intercode.tool_calls import Tool, ToolCall
from intercode_sandbox.interruption import is_callers
from intercode_sandbox.ownership import CallGuard

VALUES = (SandboxError, ImageError, OSError, TaskError, RewardError)
"""The errors that `reset` and `step` return in ``info["error"]``, instead of raising them, with the
option ``errors="value"``. Errors of the caller or the agent are not among them. The subclass
`SandboxUnavailableError` is always raised, because every later episode would raise it, too.
"""
SHOWN = ("timed_out", "restarted", "truncated", "gone")
"""The facts of an execution that `info` includes; facts that vary from run to run are excluded."""


class SubmissionCounts:
    """The submission counts that an episode shares with all its forks.

    The shared count prevents an agent from gaining attempts by forking.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.total = 0
        self.wrong = 0
        """The number of wrong answers; the last permitted one ended its episode."""

    def add(self, *, wrong: bool = False) -> None:
        """Count a submission; with `wrong`, mark an already counted submission as wrong."""
        with self._lock:
            self.total += not wrong
            self.wrong += wrong

    def __deepcopy__(self, memo: object) -> SubmissionCounts:
        """Return the same object, because forks share the counts."""
        return self


class EpisodeState:
    """The state of an environment's episode: task, record, clock and end.

    An `InterCodeEnv` holds an episode state, and so does a remote environment
    (`intercode.envs.remote`). Sandboxes and interpreters are not part of the state.

    Args:
        options: The environment's options.
    """

    def __init__(self, options: EnvOptions) -> None:
        self._errors = options.errors
        self.seed = options.seed
        """The seed of the next reset without a seed."""
        self._order: Iterator[Task] | None = None
        """The remaining tasks of the current order."""
        self._task: Task | None = None
        self._episode: Episode | None = None
        self._start_time = 0.0
        """The monotonic time of the episode's start. For a fork: the time of the fork's start,
        minus the seconds that had elapsed in its source episode."""
        self.failure: Exception | None = None
        """The failure of the last reset, which the next step raises."""
        self.submissions = SubmissionCounts()
        self.fork_numbers: Iterator[int] = itertools.count()

    @property
    def episode(self) -> Episode:
        """The record of the episode since the last `reset`, finished or running.

        Raises:
            EnvironmentStateError: No episode has started yet.
        """
        if self._episode is None:
            raise EnvironmentStateError("there is no episode yet: call reset() first")
        return self._episode

    @property
    def task(self) -> Task:
        """The task of the episode.

        Raises:
            EnvironmentStateError: No episode has started yet.
        """
        assert self.episode is not None and self._task is not None
        return self._task

    @property
    def is_begun(self) -> bool:
        """Whether any episode has started."""
        return self._episode is not None

    @property
    def is_running(self) -> bool:
        """Whether an episode has started and not ended."""
        return self._episode is not None and self._episode.status == "running"

    def begin(self, env: Any, task: Task | None, seed: int | None) -> Task:
        """Begin an episode, and return its task.

        Args:
            env: The environment, with its name, tasks and random generator.
            task: The task; None: the next task of a seeded order. When all tasks of the order have
                been taken, a new order begins.
            seed: The seed of the episode and of a new order; None: the attribute `seed`, which
                is used once.
        """
        seed, self.seed = (self.seed if seed is None else seed), None
        gymnasium.Env.reset(env, seed=seed)
        if seed is not None or self._order is None:
            self._order = env.dataset.iterate_shuffled(env.np_random)
        task = task or next(self._order)
        episode = Episode(task.task_id, task.query, env.name, seed=seed, started=time.time())
        self.resume(task, episode, SubmissionCounts())
        return task

    def resume(self, task: Task, episode: Episode, submissions: SubmissionCounts) -> None:
        """Begin a new episode, or a fork that continues a recorded episode.

        Args:
            task: The task.
            episode: The record, with its elapsed seconds.
            submissions: The counts: new ones, or for a fork those that it shares with its siblings.
        """
        self._task, self._episode, self.submissions = task, episode, submissions
        self.failure = None
        self.fork_numbers = itertools.count()
        self.start_clock()

    def start_clock(self) -> None:
        """Start the clock at the record's elapsed seconds."""
        self._start_time = time.monotonic() - self.episode.seconds

    @property
    def seconds(self) -> float:
        """The elapsed seconds of the episode."""
        return time.monotonic() - self._start_time

    def check(self, action: object, *, is_open: bool) -> None:
        """Refuse an action that cannot be executed.

        Args:
            action: The action.
            is_open: Whether an interpreter or a remote episode accepts actions.

        Raises:
            EnvironmentStateError: No episode has started, or it has ended.
            ActionError: The action is not a text.
            Exception: The error in `failure`, raised once.
        """
        # A failed `reset` stores its error, because only a step can truncate an episode.
        if (error := self.failure) is not None:
            self.failure = None
            raise error
        if self.episode.status != "running" or not is_open:
            raise self.ended_error()
        if not isinstance(action, str):
            raise ActionError(f"an action must be a text, not {type(action).__name__}")

    def ended_error(self) -> EnvironmentStateError:
        """Return the error for an action after the end of the episode."""
        reason = ""
        if name := self.episode.metadata.get("interrupted"):
            reason = f": {name} has interrupted an action before its observation came"
        return EnvironmentStateError(f"the episode has ended{reason}: call reset() first")

    def ending(self, action: str, *, takes_answer: bool) -> Status | None:
        """Return the status with which an action ends the episode; None: the action is code.

        A submission's answer is stored in the episode's record.

        Args:
            action: The action.
            takes_answer: Whether ``submit ANSWER`` submits.
        """
        word, _, answer = action.strip().partition(" ")
        if word == "submit" and (not answer or takes_answer):
            self.episode.answer = answer.strip() or None
            return "submitted"
        return "skipped" if word == "skip" and not answer else None

    def interrupt(self, error: BaseException) -> None:
        """End the running episode as an error if the exception is the caller's (Ctrl-C, alarm)."""
        if self.is_running and is_callers(error):
            self._fail(error)

    @contextmanager
    def recording_failures(self) -> Iterator[None]:
        """End the episode as an error if the ``with`` block raises an exception.

        The exception propagates to the caller.
        """
        try:
            yield
        except BaseException as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        """End the episode as an error.

        After an exception of the caller, the episode cannot continue, because the action's effects
        are unknown. The action's late observation could also be mistaken for a later one.
        """
        name = type(error).__name__
        self.episode.status = "error"
        self.episode.error = f"{name}: {error}"
        self.episode.seconds = self.seconds
        if is_callers(error):
            self.episode.error = f"interrupted by {name}: {error}".removesuffix(": ")
            self.episode.score = None
            self.episode.metadata["interrupted"] = name

    def failure_info(self, error: Exception, max_turns: int) -> dict[str, Any]:
        """Return the `info` of a failed episode, or raise the error if it must not be a value.

        Args:
            error: The failure, an instance of `VALUES`.
            max_turns: As for `info`.

        Raises:
            Exception: `error` itself, unless ``errors="value"`` applies to it.
        """
        is_permanent = isinstance(error, SandboxUnavailableError)
        is_ours = self.episode.status == "error" and "interrupted" not in self.episode.metadata
        if self._errors != "value" or is_permanent or not is_ours:
            raise error
        name, message = type(error).__name__, str(error)
        kind = "task" if failure_kind(name) == "refused" else "infrastructure"
        if isinstance(error, (TaskError, RewardError)):  # the message may quote gold
            message = "the task's own part failed: env.episode.error says why"
        facts = {"kind": kind, "type": name, "message": message}
        return {**self.info(max_turns), "error": facts}

    def first_info(self, max_turns: int, turn: Turn | None = None) -> dict[str, Any]:
        """Return the `info` at the start of an episode or a fork."""
        return {**self.info(max_turns, turn), "query": self.episode.query, "tags": self.task.tags}

    def info(
        self, max_turns: int, turn: Turn | None = None, score: Score | None = None
    ) -> dict[str, Any]:
        """Return the `info` of `reset` and `step`.

        Args:
            max_turns: The environment's turn limit.
            turn: The turn of the last action.
            score: The score, if the turn was scored.
        """
        turn_count = len(self.episode.turns)
        info: dict[str, Any] = {
            "task_id": self.episode.task_id,
            "turn": turn_count,
            "turns_left": max_turns - turn_count,
        }
        if (outcome := self.episode.outcome) is not None:
            info["outcome"] = outcome
        if "lost" in self.episode.metadata:
            info["lost"] = self.episode.metadata["lost"]
        if turn is not None:
            info["ok"] = turn.ok
            if turn.exit_code is not None:
                info["exit_code"] = turn.exit_code
            info.update({key: turn.info[key] for key in SHOWN if key in turn.info})
        if score is not None:
            info["success"] = score.value == 1.0
            info["parts"] = dict(score.parts)
        return info

    def render_text(self, prompt: str) -> str:
        """Return the episode so far as terminal text."""
        episode = self.episode
        lines = [f"# {episode.query}"]
        for turn in episode.turns:
            lines += [f"{prompt}{turn.action}", turn.observation.rstrip("\n")]
        if episode.status != "running":
            lines.append(f"# {episode.status}, reward {episode.reward}")
        return "\n".join(line for line in lines if line) + "\n"


class EpisodeEnv(gymnasium.Env[str, str]):
    """The base class of local and remote environments, with the current episode's record.

    Args:
        dataset: The tasks.
        options: The options.

    Raises:
        TaskError: The dataset holds no tasks.
    """

    name: ClassVar[str]
    """The environment's short name, for the record."""
    traits: Traits = SHELL
    """The environment's traits. For an environment without a separate class, the traits follow from
    the language of the actions."""

    def __init__(self, dataset: Dataset, options: EnvOptions) -> None:
        if not dataset:
            raise TaskError(f"dataset {dataset.name!r} holds no tasks")
        self.dataset = dataset
        self.options = options
        self.max_turns = options.max_turns
        self.reward_every_turn = options.reward_every_turn
        self.observation_space = Unicode()
        self.action_space = Unicode()
        self.episode_state = EpisodeState(options)
        self._calls = CallGuard("this environment", self._release)

    @property
    def episode(self) -> Episode:
        """The episode since the last `reset`, finished or running.

        Raises:
            EnvironmentStateError: No episode has started yet.
        """
        return self.episode_state.episode

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Execute an action, and score the episode if the action ends it.

        An exception of the caller (Ctrl-C, the handler of an alarm) that arrives before the
        observation also ends the episode.

        With ``errors="value"``, a failure of the sandbox or the reward, and an error that `reset`
        has returned, is not raised. The step then truncates the episode, with the reward NaN and
        the error in ``info["error"]``.

        Returns:
            Observation, reward in [0, 1], whether the episode terminated, whether it was
            truncated, and `info`.

        Raises:
            EnvironmentStateError: No episode has started, or it has ended; or another process made
                the environment, or another thread is using it.
            ActionError: The action is not a text.
            SandboxError: The infrastructure, not the agent's processes, lost the sandbox. The
                episode counts as an error, never as a reward.
            RewardError: The episode cannot be scored.
            ForkError: The episode is a fork, and its state cannot be restored.
        """
        try:
            with self._calls:
                try:
                    step_result = self._step(action)
                except VALUES as error:
                    info = self.episode_state.failure_info(error, self.max_turns)
                    step_result = "", float("nan"), False, True, info
                return self._encode_output(step_result)
        except BaseException as error:  # an exception during the return loses the observation, too
            self.interrupt(error)
            raise

    @abstractmethod
    def _step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Execute an action of the running episode; `step` calls this method."""

    def interrupt(self, error: BaseException) -> None:
        """End the running episode as an error if the exception is the caller's (Ctrl-C, alarm).

        Call this method between two other calls, or after one of them raised the exception.
        """
        self.episode_state.interrupt(error)

    def _encode_output(self, data: DataT) -> DataT:
        """Return an output of the environment in the form that callers receive.

        By default the output is returned unchanged.
        """
        return data

    def _release(self) -> None:
        """Free the resources of the episode."""

    def _repr_html_(self) -> str:
        """Return the view of the environment and its episode in a notebook."""
        html: str = NOTEBOOK.get("env")(self)
        return html

    @property
    def tools(self) -> list[Tool]:
        """The tools of the environment, each with name, description and JSON schema.

        `call` calls a tool; `intercode.tools` converts the tools to functions.
        """
        return list_tools(self.traits)

    def call(
        self, name: str, arguments: Mapping[str, Any]
    ) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Execute an action by calling one of the `tools`.

        An invalid call (an unknown tool, a missing argument) is the model's mistake. The call
        counts as a turn marked ``invalid``, whose observation describes the mistake.

        Args:
            name: The tool's name.
            arguments: The tool's arguments by name.

        Returns:
            Observation, reward, whether the episode terminated, whether it was truncated, and
            `info`, as from `step`.

        Raises:
            EnvironmentStateError, SandboxError, RewardError: As for `step`.
        """
        return self.step(read_action(ToolCall("", name, arguments), self.traits))

    def messages(self, style: str = "chat") -> list[dict[str, Any]]:
        """Return the episode so far as chat messages, for a model, for training, or for a log.

        A model can continue the messages of a running episode. Bytes that are not UTF-8 are
        replaced. Long observations are shortened, except in ``plain``.

        Args:
            style: ``"chat"``: a system prompt, the task, actions as blocks of code; ``"tools"``:
                actions as calls of `tools`; ``"plain"``: only query, actions and observations.

        Returns:
            Messages in the format of OpenAI's chat completions.

        Raises:
            UsageError: The style is unknown.
            EnvironmentStateError: No episode has started yet.
        """
        chat_messages: list[dict[str, Any]] = MESSAGES.get(style)(self, self.episode_state.task)
        return self._encode_output(chat_messages) if style == "plain" else chat_messages


def choices(options: Mapping[str, Any] | None, **arguments: Any) -> dict[str, Any]:
    """Merge the arguments and options of `reset` that select a task.

    Raises:
        UsageError: The options are not a mapping of names, or a selection is given twice.
    """
    if options is not None and not isinstance(options, Mapping):
        raise UsageError(f"the options of reset are a dict, not {type(options).__name__}")
    if invalid_names := [name for name in options or () if not isinstance(name, str)]:
        raise UsageError(f"reset has no option {invalid_names[0]!r}, only 'task_id' and 'index'")
    arguments = {name: value for name, value in arguments.items() if value is not None}
    if duplicates := sorted(arguments.keys() & (options or {}).keys()):
        raise UsageError(f"give {duplicates[0]!r} to reset once, not in its options as well")
    return {**(options or {}), **arguments}
