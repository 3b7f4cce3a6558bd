"""The episode loop that all environments share.

`InterCodeEnv` combines four parts behind Gymnasium's `reset` and `step`: tasks, a stage, an
interpreter and a reward. The stage opens workspaces for the tasks: sandboxes or database sessions.
The interpreter turns an action into an observation. The environment's class defines its traits
(`intercode.envs.traits`) and its options (`intercode.envs.options`).
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, Generic, NoReturn, Self, cast

from intercode.datasets import load
from intercode.envs.episode_state import VALUES, EpisodeEnv, choices
from intercode.envs.file_changes import FileChangeTracker, SupportsFileChanges
from intercode.envs.gold_outcome import GoldOutcome, play_gold
from intercode.envs.options import EnvOptions, SandboxOptions
from intercode.envs.snapshots import (
    FORK_MODES,
    EpisodeSnapshot,
    ForkMode,
    make_fork_generator,
    repeat,
    take_snapshot,
)
from intercode.envs.stage import SandboxStage, Stage, SupportsAsyncTermination, WorkspaceT
from intercode.envs.terminal_keys import add_keys_tool
from intercode.envs.traits import SHELL, language_traits
from intercode.episode import (
    ENDED,
    DataT,
    Episode,
    NoAction,
    Score,
    Status,
    Turn,
    exact,
    plain,
)
from intercode.errors import (
    CausedInsideError,
    EnvironmentStateError,
    ForkError,
    ImageError,
    SandboxError,
    TaskError,
    TaskNotFoundError,
    UsageError,
)
from intercode.interpreters.base import (
    Execution,
    Interpreter,
    act,
    allow_cancellation,
    execute,
    record_turn,
)
from intercode.rewards.base import Reward
from intercode.rewards.custom import Function, choose_reward
from intercode.task import LOOKS, Dataset, Task
from intercode_sandbox.images import hide
from intercode_sandbox.lazy_imports import LazyRegistry

SETTING_LENGTH = 200
"""Maximum characters of the line that `InterCodeEnv.setting` reads from the untrusted image."""
INTERPRETERS = LazyRegistry(
    "interpreter",
    {
        "bash": "intercode.interpreters.bash:BashInterpreter",
        "python": "intercode.interpreters.python:PythonInterpreter",
    },
)
"""Name → the function or class that opens the interpreter in a sandbox."""


class InterCodeEnv(EpisodeEnv, Generic[WorkspaceT]):
    """An interactive coding environment: observations and actions are texts.

    The action ``submit`` ends the episode with its reward, ``skip`` gives up. Any other action is
    executed. After `max_turns` turns the episode is truncated, and the state at that point is
    scored. An action that ends the sandbox, for example by killing all processes, ends the episode,
    too. The reward then scores the state that is still readable. Before the end the reward is 0.0,
    unless `reward_every_turn` is set.

    `info` always holds ``task_id``, ``turn`` (the number of turns so far) and ``turns_left``. From
    `reset`, `info` also holds ``query`` and ``tags``. After a turn, `info` holds ``ok`` and, if
    they apply, ``exit_code``, ``timed_out``, ``restarted``, ``truncated`` and ``gone``. With a
    score, `info` holds ``success`` and ``parts``. After the end, `info` holds ``outcome``. The full
    record, with facts that vary from run to run, is in `episode`.

    A custom environment needs only this::

        env = InterCodeEnv("tasks.jsonl", image="Dockerfile", interpreter="bash", reward=score)

    Args:
        dataset: The tasks: a dataset, its name, or a file. Without a ``task_id`` in its options,
            `reset` takes the next task of a seeded order. A new order starts when all tasks have
            been taken.
        stage: Opens the workspaces; None: sandboxes that follow the options.
        interpreter: A function that opens an interpreter in a workspace, or ``"bash"`` or
            ``"python"``.
        reward: Scores an episode: a function, or ``reward.py:score`` (see
            `intercode.rewards.custom`).
        options: All options in one object.
        **changes: Single options by name, which override `options`: those of `SandboxOptions`, or
            of the class in the subclass's `Options`.

    Raises:
        UsageError: An option is unknown or invalid.
        TaskError: The data is malformed, or holds no tasks.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 1}  # type: ignore[misc]
    name: ClassVar[str] = "intercode"
    prompt: ClassVar[str] = "$ "
    """The prompt before an action in output for people."""
    takes_answer: ClassVar[bool] = False
    """Whether ``submit ANSWER`` submits an answer. If False, only the bare ``submit`` ends the
    episode, and ``submit ANSWER`` is executed as code."""
    Options: ClassVar[type[EnvOptions]] = SandboxOptions
    """The class of the constructor's argument `options`."""
    scores_later = False
    """Whether the last step of an episode returns no score, and leaves the scoring to `settle`.
    With `reward_every_turn`, the attribute is ignored."""
    _constructor_arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Record the constructor's arguments for `recreate`."""
        self = super().__new__(cls)
        self._constructor_arguments = args, options
        return self

    def __init__(
        self,
        dataset: str | Path | Dataset,
        stage: Stage[WorkspaceT] | None = None,
        interpreter: str | Callable[[WorkspaceT], Interpreter] = "bash",
        reward: str | Function | Reward[WorkspaceT] | None = None,
        *,
        options: EnvOptions | None = None,
        **changes: Any,
    ) -> None:
        kind = self.Options if options is None else type(options)
        self.options = options = kind.merge(options, changes)
        opens = _opener(interpreter)
        if (language := getattr(opens, "language", "")) and language != self.traits.language:
            self.traits = language_traits(language)
        elif not language and not isinstance(interpreter, str) and self.traits is SHELL:
            # A custom interpreter that names no language may accept other actions than shell
            # commands. InterCode therefore must not send the shell's queries by itself, nor require
            # the shell's programs in the image.
            self.traits = replace(SHELL, where="", overview="", programs=())
        if getattr(options, "keys", False):
            opens, self.traits = add_keys_tool(opens, self.traits)
        tasks = load(dataset)
        if (limits := options.limits) is not None and "timeout" in (limits.overrides or ()):
            tasks = tasks.limit_timeouts(limits.timeout)
        reward = getattr(options, "reward", None) if reward is None else reward
        if stage is None or reward is None or isinstance(reward, str):
            reward = choose_reward(self.name, reward, _no_reward)
        if stage is None:
            if (image := getattr(options, "image", None)) and Path(image).exists():
                # An existing path needs no leading "./" to be recognised as a path.
                options = kind.merge(options, {"image": Path(image)})
            stage = cast("Stage[WorkspaceT]", SandboxStage.from_options(options, self.traits))
        hide(tasks.source, tasks.databases)
        super().__init__(tasks, self.options)
        self.render_mode = options.render_mode
        self.stage = stage
        """The stage, which opens the tasks' workspaces."""
        if layers := getattr(options, "layers", ()):
            if not isinstance(stage, SandboxStage):
                raise UsageError(
                    f"no layers can be added to the workspaces of {self.name!r}: layers"
                )
            stage.layers = tuple(layers)
        if isinstance(stage, SandboxStage):
            stage.programs = stage.programs or self.traits.programs
        self._open = opens
        self._reward = cast("Reward[WorkspaceT]", reward)
        self._workspace: WorkspaceT | None = None
        self._interpreter: Interpreter | None = None
        self._origin: EpisodeSnapshot | None = None  # the snapshot that a fork begins from
        # The workspaces that `score` has scored, each of which it accepts only once.
        self._scored_workspaces: weakref.WeakSet[Any] = weakref.WeakSet()
        self._is_stopped = False
        self._change_tracker: FileChangeTracker | None = None
        # With "utf-8", actions arrive, and observations leave, in the escaped form of `plain`.
        self._is_wire = options.observations == "utf-8"
        self._settings: dict[tuple[str, str], str] = {}  # (image, directory) → line of `setting`

    @classmethod
    def filter_tasks(cls, tasks: Dataset, options: Mapping[str, Any]) -> tuple[Dataset, str]:
        """Exclude the tasks that cannot run with the given options, without starting anything.

        By default no task is excluded; subclasses override the method.

        Args:
            tasks: All tasks.
            options: Options by name; missing options have their defaults.

        Returns:
            The remaining tasks, and a text on the excluded ones; empty if none is excluded.

        Raises:
            TaskError: No task remains. An override may instead return an empty dataset.
        """
        return tasks, ""

    def recreate(self, tasks: Dataset) -> Self:
        """Construct an environment with the same constructor arguments, but other tasks.

        If the constructor has no positional parameter for tasks, the tasks stay the same.

        Args:
            tasks: The new environment's tasks: the constructor's first argument.
        """
        args, options = self._constructor_arguments
        first_parameter = next(iter(inspect.signature(type(self)).parameters.values()), None)
        if first_parameter is not None and first_parameter.kind not in (
            first_parameter.KEYWORD_ONLY,
            first_parameter.VAR_KEYWORD,
        ):
            args = (tasks, *args[1:])
            options = {
                name: value for name, value in options.items() if name != first_parameter.name
            }
        return type(self)(*args, **options)

    @property
    def language(self) -> str:
        """The language of the actions."""
        return self.traits.language

    @property
    def submissions(self) -> int:
        """The number of submissions so far, in the episode and all its forks."""
        return self.episode_state.submissions.total

    @property
    def workspace(self) -> WorkspaceT:
        """The workspace of the current episode: its sandbox or session, for inspection.

        In a fork that has not started yet, access starts the workspace.

        Raises:
            EnvironmentStateError: No episode holds a workspace.
            ForkError, SandboxError: The fork's workspace cannot be started.
        """
        if self._is_unstarted_fork:
            with self._calls:
                self._start_fork()
        if self._workspace is None:
            raise EnvironmentStateError("the environment has no sandbox: call reset() first")
        return self._workspace

    @property
    def sandbox(self) -> WorkspaceT:
        """The workspace: the same as `workspace`, named for environments with a sandbox."""
        return self.workspace

    @property
    def directory(self) -> str:
        """The initial working directory of the actions.

        The path is absolute, or relative to the image's working directory.

        Raises:
            EnvironmentStateError: No episode has started yet.
        """
        task = self.episode_state.task
        find = getattr(self.stage, "directory", None)  # only a stage of sandboxes has directories
        return "." if find is None else str(find(task))

    def image(self, task: Task) -> str:
        """Return the name of a task's image or database."""
        return self.stage.image(task)

    def check(self, task: Task) -> None:
        """Refuse a task that cannot run in this environment, before any work starts.

        Raises:
            TaskError, ImageError: The task, its image or its database is invalid or missing.
        """
        with self.dataset.locate_errors(task):
            self.stage.check(task)

    def digest(self, task: Task) -> str:
        """Return the digest of the image's or database's content; build a missing image.

        Raises:
            TaskError, ImageError: The image or database cannot be found, built or read.
            SandboxError: The image or database cannot be tested, because the infrastructure failed.
        """
        return self.stage.digest(task)

    def solution(self, task: Task) -> list[str]:
        """Return actions that solve a task by its first reference solution (gold).

        The last action is a submit. If the task's ``metadata.looks`` lists exploratory actions,
        these actions precede gold.
        """
        looks = task.metadata.get(LOOKS, ())
        return [*(looks if isinstance(looks, list | tuple) else ()), *task.gold[:1], "submit"]

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        task_id: str | int | None = None,
        index: int | None = None,
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode in a fresh workspace.

        Args:
            seed: The seed of a new order of the tasks; None: the current order continues.
            options: ``{"task_id": …}`` or ``{"index": …}``, for callers behind Gymnasium's
                wrappers, which pass no other arguments.
            task_id: Selects a task, without advancing the order.
            index: Selects the task at this index of `dataset`, counted from 0.

        Returns:
            The task's query as the first observation, and `info`.

        Raises:
            EnvironmentStateError: Another process made the environment, another thread is using
                it, or `stop` was called.
            TaskNotFoundError: No task has that id or index.
            UsageError: An option is unknown, or a task is selected twice.
            TaskError: The task's files or setup failed.
            ImageError: The image cannot be found or built.
            SandboxError: The sandbox cannot be started. With ``errors="value"``, `reset` returns
                a `TaskError`, `ImageError` or `SandboxError` in ``info["error"]`` instead of
                raising it, and the next step ends the episode.
            SandboxUnavailableError: This machine permits no sandbox. The error is raised even
                with ``errors="value"``.
        """
        with self._calls, self._release_workspace():
            state = self.episode_state
            selected_task = self.select_task(choices(options, task_id=task_id, index=index))
            task = state.begin(self, selected_task, seed)
            try:
                with state.recording_failures():
                    state.episode.metadata["image"] = self.stage.image(task)
                    self._workspace = self.stage.open(task)
                    self._refuse_stopped()
                    self._interpreter = self._open(self._workspace)
                info = state.first_info(self.max_turns)
            except VALUES as error:
                info = state.failure_info(error, self.max_turns)
                state.failure = error
            return self._encode_output((task.query, info))

    def select_task(self, options: Mapping[str, Any]) -> Task | None:
        """Return the task that options of `reset` select; None if no option selects a task.

        Raises:
            TaskNotFoundError: No task has that id or index.
            UsageError: An option is unknown, or both id and index are given.
        """
        with suppress(TaskNotFoundError):
            return self.dataset.select_task(**options)
        decoded_options = {
            name: self._decode_text(value) for name, value in options.items()
        }  # ids in `info` are encoded when `observations` is "utf-8"
        return self.dataset.select_task(**decoded_options)

    def _step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._start_fork()
        action, state, interpreter = (
            self._decode_text(action),
            self.episode_state,
            self._interpreter,
        )
        state.check(action, is_open=interpreter is not None)
        assert interpreter is not None  # `check` refuses an action without an open interpreter
        with state.recording_failures():
            status = self._ending(action)
            if status == "submitted":
                state.submissions.add()
            reply = self._reply(self.episode.answer) if status == "submitted" else None
            if status is not None and reply is None:
                score = self._finish(status)
                value = 0.0 if score is None else score.value
                return "", value, True, False, state.info(self.max_turns, score=score)
            tracker = self._current_tracker() if reply is None else None
            if reply is None:
                with allow_cancellation():
                    reply = execute(interpreter, action, state.task.timeout)
            turn = record_turn(action, reply)
            if tracker is not None and ENDED not in turn.info:
                with suppress(CausedInsideError):  # the next action will report the error
                    turn = replace(turn, changes=tracker.turn())
            self.episode.turns.append(turn)
            ended = ENDED in turn.info
            truncated = not ended and len(self.episode.turns) >= self.max_turns
            if not ended and not truncated and not self.reward_every_turn:
                return turn.observation, 0.0, False, False, state.info(self.max_turns, turn)
            if ended or truncated:
                score = self._finish("ended" if ended else "truncated")
            else:
                score = self._judge(state.task, self.episode, self.workspace)
            value = 0.0 if score is None else score.value
            self.episode.turns[-1] = replace(turn, reward=value)
            return (
                turn.observation,
                value,
                ended,
                truncated,
                state.info(self.max_turns, turn, score),
            )

    def _ending(self, action: str) -> Status | None:
        """Return the status with which the action ends the episode; None: the action is code."""
        return self.episode_state.ending(action, takes_answer=self.takes_answer)

    def _current_tracker(self) -> FileChangeTracker | None:
        """Return the change tracker of the current workspace; None if no changes are recorded."""
        workspace = self._workspace
        if not getattr(self.options, "keep_diffs", False) or not isinstance(
            workspace, SupportsFileChanges
        ):
            return None
        if self._change_tracker is None or self._change_tracker.workspace is not workspace:
            try:
                self._change_tracker = FileChangeTracker(workspace)
            except CausedInsideError:  # the following action will report the error
                return None
        return self._change_tracker

    def _reply(self, answer: str | None) -> Execution | None:
        """Return the reply to a submitted answer; None: the answer ends the episode.

        Environments that permit several answers override this method. A reply counts as a turn,
        after which the episode continues.
        """
        return None

    def _finish(self, status: Status) -> Score | None:
        """End the running episode, and return its score.

        If `scores_later` is set without `reward_every_turn`, the result is None, and `settle`
        scores the episode later.
        """
        assert self._interpreter is not None  # the episode is running
        self.episode.status = status
        self._interpreter.close()
        # Only a sandbox with a network policy has a gate.
        gate = getattr(self._workspace, "gate", None)
        if gate is not None and (refusals := gate.refusal_counts):
            self.episode.metadata["network_refused"] = dict(refusals)
        if self.scores_later and not self.reward_every_turn:
            with suppress(CausedInsideError):
                self.workspace.kill()
            self.episode.seconds = self.episode_state.seconds
            return None
        return self._score_end()

    def _score_end(self) -> Score:
        if self.episode.status == "skipped":
            with suppress(SandboxError):  # a lost workspace runs nothing
                self.workspace.kill()
            score = Score(0.0)
        else:
            score = self._judge(self.episode_state.task, self.episode, self.workspace)
        self.episode.score = score
        self.episode.seconds = self.episode_state.seconds
        return score

    def settle(self) -> None:
        """Score an ended episode that `scores_later` left without a score. Idempotent.

        Raises:
            RewardError, SandboxError: As for `step`.
        """
        episode = self.episode
        if episode.status in ("running", "error") or episode.score is not None:
            return
        seconds = episode.seconds
        with self._calls, self.episode_state.recording_failures():
            score = self._score_end()
        episode.seconds = seconds
        if episode.turns and episode.status in ("ended", "truncated"):
            episode.turns[-1] = replace(episode.turns[-1], reward=score.value)

    def _judge(self, task: Task, episode: Episode, workspace: WorkspaceT) -> Score:
        """End all processes of an ended episode's workspace, then score the workspace."""
        score, ending_detail = Score(0.0), {}
        try:
            if episode.status != "running":
                workspace.kill()
        except CausedInsideError as error:  # some rewards need no responsive workspace
            ending_detail = {ENDED: str(error)}
        try:
            score = self._reward(task, episode, workspace)
        except CausedInsideError as error:
            ending_detail = {ENDED: str(error)}
        if self.stage.changed(task, workspace):
            # The image ``host`` is this machine's file system. After the installation of a package
            # there, gold may have run other programs than the agent.
            raise SandboxError(
                f"the content of {self.image(task)!r} changed during the episode: the episode and "
                "gold ran in different images"
            )
        return replace(score, detail={**score.detail, **ending_detail}) if ending_detail else score

    def _decode_text(self, action: str) -> str:
        """Return the action in the form that the interpreter executes."""
        is_escaped = self._is_wire and isinstance(action, str)
        return exact(action) if is_escaped and not isinstance(action, NoAction) else action

    def _encode_output(self, data: DataT) -> DataT:
        """Return an output of the environment in the form that `observations` defines."""
        return plain(data) if self._is_wire else data

    def score(
        self,
        task: Task,
        workspace: WorkspaceT,
        *,
        output: str | None = None,
        episode: Episode | None = None,
    ) -> Score:
        """Score a workspace in which an external agent has worked without `step`.

        All processes of the workspace are ended first, as at the end of an episode. Scoring may
        change the workspace, because verification commands and tests run there. A workspace is
        therefore scored only once.

        Args:
            task: The task.
            workspace: The workspace, opened by ``env.stage.open(task)``. The caller closes it.
            output: The agent's answer, if the reward judges an answer. Bash: the text that
                the task asks for. SQL: a query, which is executed in the workspace. Python: a
                program. CTF: a flag. Without an output, a task that asks for an answer is not
                solved.
            episode: The record of the attempt, which replaces `output`. The turns and the answer in
                the record count like those of an episode of this environment.

        Returns:
            The score, with a value in [0, 1].

        Raises:
            UsageError: Both an output and an episode are given, the episode belongs to another
                task, or the workspace does not come from the task's image.
            EnvironmentStateError: The workspace belongs to the running episode, or was scored
                before.
            SandboxError: The infrastructure, not the agent's processes, lost the workspace.
            RewardError: The workspace cannot be scored.
        """
        with self._calls:
            self._refuse_to_score(task, workspace, output, episode)
            if episode is None:
                episode = self._attempt(task, workspace, output)
            elif episode.status in ("running", "error"):
                episode = replace(episode, status="submitted")
            self._scored_workspaces.add(workspace)
            return self._judge(task, episode, workspace)

    def _refuse_to_score(
        self, task: Task, workspace: WorkspaceT, output: str | None, episode: Episode | None
    ) -> None:
        if output is not None and episode is not None:
            raise UsageError(
                "score takes an output or an episode, not both: an episode has an output"
            )
        if episode is not None and episode.task_id != task.task_id:
            raise UsageError(f"the episode is of task {episode.task_id!r}, not {task.task_id!r}")
        if workspace is self._workspace and self.episode_state.is_running:
            raise EnvironmentStateError(
                "this workspace belongs to the running episode: step('submit') ends and scores it"
            )
        if workspace in self._scored_workspaces:
            raise EnvironmentStateError(
                "this workspace was scored before, which may have changed it: start another "
                "workspace from a snapshot, and score that"
            )
        if self.stage.changed(task, workspace):
            raise UsageError(
                f"the workspace was not started from {self.image(task)!r} in its current version: "
                "open it by env.stage.open(task), so that its differences from the image are the "
                "agent's changes"
            )

    def _attempt(self, task: Task, workspace: WorkspaceT, output: str | None) -> Episode:
        """Return an episode for an attempt without `step`, from its answer (see `score`)."""
        turns = [] if output is None else [Turn("", output)]
        return Episode(task.task_id, task.query, self.name, turns=turns, status="submitted")

    def render(self) -> str | None:
        """Return the episode so far as terminal text; None without a `render_mode`."""
        episode_state = self.episode_state
        return (
            None
            if self.render_mode is None
            else self._encode_output(episode_state.render_text(self.prompt))
        )

    def overview(self) -> str:
        """Return a listing of the workspace's content: database tables, or files of a directory.

        The listing runs in a second workspace for the same task.

        Raises:
            UsageError: The environment's traits define no action for an overview.
            EnvironmentStateError: No episode has started, or it has ended.
            TaskError: The overview's action failed, or the second workspace cannot be opened.
            ImageError, SandboxError: As for `reset`.
        """
        if not self.traits.overview:
            raise UsageError(f"nothing shows what there is in {self.name!r}")
        with self._calls:
            if self.episode.status != "running":
                raise self.episode_state.ended_error()
            task = self.episode_state.task
            turn = self._look(task, self.traits.overview)
        if not turn.ok:
            message = turn.observation.strip()[-500:]
            raise TaskError(f"task {task.task_id!r}: its contents cannot be listed: {message}")
        return turn.observation.rstrip("\n")

    def setting(self) -> str:
        """Return one line that describes the workspace in prompts, such as "SQLite 3.45.1".

        For a shell, the line lists version, system, user, directory and programs. If the workspace
        cannot be queried, the line is `Traits.setting`, or the language if that is empty.
        """
        default_setting = self.traits.setting or self.traits.language
        if not self.traits.where or not self.episode_state.is_begun:
            return default_setting
        # The setup is skipped because it may be slow; programs it installs are not listed.
        task = replace(self.episode_state.task, setup=None, files={})
        folder = getattr(self.stage, "directory", lambda task: ".")(task)
        key = str(self.episode.metadata.get("image")), str(folder)
        with self._calls:
            if key not in self._settings and self.episode.status == "running":
                try:
                    turn = self._look(task, self.traits.where)
                except (TaskError, ImageError, SandboxError):
                    # A missing line in the prompt does not justify a failure of the episode.
                    return default_setting
                line = turn.observation.strip()[:SETTING_LENGTH]
                self._settings[key] = (
                    line if turn.ok and line.isprintable() and line else default_setting
                )
            return self._settings.get(key, default_setting)

    def _look(self, task: Task, action: str) -> Turn:
        """Execute an action in a second workspace of a task, not in the episode's workspace.

        In the episode's workspace, an extra process would shift the ids of all later processes.
        """
        with (
            closing(self.stage.open(task)) as workspace,
            closing(self._open(workspace)) as interpreter,
        ):
            return act(interpreter, action, task.timeout)

    def outcome(self, task: Task) -> GoldOutcome:
        """Run a task's first gold in a separate workspace, and return its outcome.

        The outcome contains the solution. Only the operator, who exports tasks, should see it: no
        observation, info, message or record contains any part of it.

        Raises:
            TaskError: The task has no gold.
            RewardError: Gold exceeded a limit, or ended its own workspace.
            SandboxError: The workspace failed.
        """
        tasks = self.dataset
        single_task = Dataset([task], tasks.name, source=tasks.source, databases=tasks.databases)
        with closing(self.recreate(single_task)) as env:
            return play_gold(env, task)

    def snapshot(self, mode: ForkMode = "auto", lossy: bool = False) -> EpisodeSnapshot:
        """Save the running episode between two actions; the episode continues unchanged.

        Args:
            mode: ``"state"`` saves the state of workspace and interpreter. With ``"replay"`` each
                fork repeats the actions and compares their results. ``"auto"`` saves the state
                if possible, and replays otherwise.
            lossy: Omit the parts of the state that cannot be saved, such as running programs,
                instead of raising an error. Three places list the omitted parts: the snapshot's
                `lost`, each fork's ``info["lost"]``, and the ``metadata["lost"]`` of the fork's
                episode.

        Raises:
            UsageError: The mode is unknown.
            ForkError: The episode cannot be saved in this way, or has ended.
            EnvironmentStateError: No episode has started, or an action is running.
            SandboxError: The sandbox was lost.
        """
        try:
            with self._calls:
                return self._save(mode, lossy)
        except BaseException as error:
            # Ctrl-C may have interrupted the interpreter while it sent its state. The rest of the
            # state would be mistaken for a later reply, so the episode ends.
            self.interrupt(error)
            raise

    def restore(self, snapshot: EpisodeSnapshot) -> tuple[str, dict[str, Any]]:
        """Begin a fork of a snapshot's episode, which replaces the current episode.

        The fork has the snapshot's turns and elapsed time, a workspace with the same limits, and
        its own fork number. The workspace starts before the fork's first action. The order of tasks
        does not advance, and Gymnasium's wrappers keep their own step counts.

        Returns:
            The last observation and info of the snapshot's episode, as from `step` or `reset`.

        Raises:
            ForkError: The snapshot is of another kind of environment or of other tasks, has no
                remaining turns, or was closed.
            EnvironmentStateError: Another process made the environment, or another thread is
                using it.
        """
        with self._calls:
            task = snapshot.find_task(self.dataset, self.name, self.max_turns)
            with self._release_workspace():
                episode = snapshot.episode()
                self.episode_state.resume(task, episode, snapshot.submissions)
                self._origin = snapshot.with_episode(episode, self.episode_state.fork_numbers)
            last_turn = episode.turns[-1] if episode.turns else None
            observation = task.query if last_turn is None else last_turn.observation
            return self._encode_output(
                (observation, self.episode_state.first_info(self.max_turns, last_turn))
            )

    def fork(self, n: int = 1, mode: ForkMode = "auto", lossy: bool = False) -> list[Self]:
        """Fork the running episode into new environments; the episode itself continues.

        Args:
            n: The number of forks, at least 1, each in a new environment. The caller closes them.
            mode: See `snapshot`.
            lossy: See `snapshot`.

        Returns:
            The `n` environments, each with a running fork.

        Raises:
            UsageError: `n` is not a whole number or is below 1, or the mode is unknown.
            ForkError, EnvironmentStateError, SandboxError: As for `snapshot`.
        """
        if isinstance(n, bool) or not isinstance(n, Integral):
            raise UsageError(f"the number of forks must be a whole number, not {n!r}")
        if n < 1:
            raise UsageError(f"the number of forks must be at least 1, not {n}")
        with ExitStack() as stack, self.snapshot(mode, lossy) as snapshot:
            forks = []
            for _ in range(n):
                fork = stack.enter_context(closing(self.recreate(self.dataset)))
                fork.max_turns, fork.reward_every_turn = self.max_turns, self.reward_every_turn
                fork.scores_later = self.scores_later
                fork.restore(snapshot)
                fork.episode_state.seed = None
                fork._np_random_seed = self.np_random_seed
                fork._np_random = make_fork_generator(fork.episode, self.np_random_seed)
                forks.append(fork)
            stack.pop_all()
            return forks

    def _save(self, fork_mode: ForkMode, lossy: bool) -> EpisodeSnapshot:
        state, episode, origin = self.episode_state, self.episode, self._origin
        if fork_mode not in FORK_MODES:
            raise UsageError(f"mode must be one of {', '.join(FORK_MODES)}, not {fork_mode!r}")
        is_active = self._is_unstarted_fork or self._interpreter is not None
        if episode.status != "running" or not is_active:
            raise ForkError("the episode has ended: take a snapshot while it is running")
        if self._is_unstarted_fork and origin is not None and fork_mode in ("auto", origin.mode):
            return origin.with_episode(episode, state.fork_numbers)
        if not self._is_unstarted_fork:
            episode = replace(episode, seconds=state.seconds)

        def interpreter() -> Interpreter:
            self._start_fork()
            assert self._interpreter is not None  # the episode is running
            return self._interpreter

        return take_snapshot(state, episode, interpreter, fork_mode, lossy)

    @property
    def _is_unstarted_fork(self) -> bool:
        """Whether the episode is a fork whose workspace has not started yet."""
        is_fork = self._origin is not None and self._workspace is None
        return is_fork and self.episode_state.is_running

    def _start_fork(self) -> None:
        """Start the workspace and the interpreter of a fork, unless both already run."""
        if not self._is_unstarted_fork:
            return
        assert self._origin is not None  # an unstarted fork has its snapshot
        self.episode_state.start_clock()
        with self.episode_state.recording_failures():
            self._workspace, self._interpreter = self._origin.start(self._replay_turns)
            self._refuse_stopped()
        self.episode_state.start_clock()

    def _replay_turns(self) -> tuple[WorkspaceT, Interpreter]:
        """Open a workspace, and repeat the actions of the episode in it."""
        task = self.episode_state.task
        with ExitStack() as stack:
            workspace = stack.enter_context(closing(self.stage.open(task)))
            interpreter = stack.enter_context(closing(self._open(workspace)))
            repeat(
                self.episode.turns,
                lambda action: act(interpreter, action, task.timeout),
            )
            stack.pop_all()
        return workspace, interpreter

    def stop(self) -> None:
        """Close the workspace, even while another thread's call runs, and refuse further episodes.

        The method is idempotent. The running call fails with `SandboxClosedError` or
        `EnvironmentStateError`. `close` frees the remaining resources.
        """
        self._is_stopped = True
        self.abort()

    def abort(self) -> None:
        """Interrupt the running call of another thread by closing the workspace.

        Unlike `stop`, the method leaves the environment usable for further episodes.
        """
        if (workspace := self._workspace) is not None:
            workspace.close()

    def _refuse_stopped(self) -> None:
        """Close a new workspace if `stop` was called, before or while it was being opened.

        Raises:
            EnvironmentStateError: `stop` was called.
        """
        if self._is_stopped and self._workspace is not None:
            self._workspace.close()
            raise EnvironmentStateError("this environment was stopped")

    def close(self) -> None:
        """End the episode and free its sandbox. Idempotent, and safe from any thread.

        A call that runs on another thread fails with an `EnvironmentStateError`.

        In a forked child of the process that made the environment, the method does nothing: the
        parent process owns the resources.
        """
        if self._calls.cut():
            # The interrupted call uses its descriptors until its end, and frees them itself.
            self.abort()
        elif not self._calls.forked:
            self._release()

    def _release(self) -> None:
        with self._release_workspace():
            pass

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse to be copied or pickled.

        Raises:
            EnvironmentStateError: Always.
        """
        raise EnvironmentStateError(
            "an environment cannot be copied or pickled, because its sandbox cannot: use fork() "
            "to branch an episode, and make a new environment in another process"
        )

    @contextmanager
    def _release_workspace(self) -> Iterator[None]:
        """End the workspace's processes on entry, and close the workspace on exit.

        The kernel ends the processes while the caller's block runs.
        """
        interpreter, self._interpreter = self._interpreter, None
        workspace, self._workspace = self._workspace, None
        # The local variable keeps the snapshot's saved state until the workspace is closed.
        origin, self._origin = self._origin, None
        try:
            if interpreter is not None:
                interpreter.close()
            if isinstance(workspace, SupportsAsyncTermination):
                workspace.kill_all()
            yield
        finally:
            if workspace is not None:
                workspace.close()
            del origin


def _opener(interpreter: str | Callable[[Any], Interpreter]) -> Callable[[Any], Interpreter]:
    """Return the function that opens an interpreter in a workspace.

    Raises:
        UsageError: No interpreter has that name.
    """
    if not isinstance(interpreter, str):
        return partial(_open_custom, interpreter)
    if interpreter == "sql":
        raise UsageError("SQL needs no image: intercode.make('sql', data=…, databases=…)")
    opener: Callable[[Any], Interpreter] = INTERPRETERS.get(interpreter)
    return opener


def _open_custom(interpreter: Callable[[Any], Interpreter], workspace: Any) -> Interpreter:
    """Open a user-defined interpreter.

    Raises:
        UsageError: The object lacks a method of `Interpreter`.
    """
    result = interpreter(workspace)
    for name in ("execute", "close"):
        if not callable(getattr(result, name, None)):
            raise UsageError(
                f"interpreter {type(result).__qualname__} has no method {name!r}: it needs "
                "execute(action, timeout=None), which returns an Execution, and close()"
            )
    return result


def _no_reward() -> NoReturn:
    raise UsageError(
        "this environment needs a reward: reward=FUNCTION, or reward='reward.py:score'"
    )
