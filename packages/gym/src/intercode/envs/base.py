"""The episode loop, once for all environments.

`InterCodeEnv` puts four things behind Gymnasium's `reset` and `step`: tasks, a stage that makes
the places where they are tried (sandboxes, databases), an interpreter that turns an action into
an observation, and a reward. Its class says what the environment is (`intercode.envs.traits`) and
which options it takes (`intercode.envs.options`).
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
    HOWS,
    EpisodeSnapshot,
    How,
    make_fork_generator,
    repeat,
    take_snapshot,
)
from intercode.envs.stage import PlaceT, SandboxStage, Stage, SupportsTermination
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
from intercode_sandbox.lazy_imports import Registry

SETTING_LENGTH = 200
"""Characters of a setting's name that are kept: an image may say anything of itself."""
INTERPRETERS = Registry(
    "interpreter",
    {
        "bash": "intercode.interpreters.bash:BashInterpreter",
        "python": "intercode.interpreters.python:PythonInterpreter",
    },
)
"""Name → the function or class that opens one in a sandbox."""


class InterCodeEnv(EpisodeEnv, Generic[PlaceT]):
    """An interactive coding environment: observations and actions are texts.

    The action ``submit`` ends the episode with its reward, ``skip`` gives up; any other is
    executed. After `max_turns` executed actions the episode is truncated, and the state at that
    point is scored; an action that ends its own sandbox ends the episode, and so much is scored as
    can still be read. Before its end the reward is 0.0, unless every turn is rewarded.

    `info` holds ``task_id``, ``turn`` (actions executed so far), after an action ``ok`` and, if
    there is one, ``exit_code``, and with a reward ``success`` and ``parts``. Everything else,
    also facts that vary from run to run, is in `episode`.

    An environment of one's own needs no more than this::

        env = InterCodeEnv("tasks.jsonl", image="Dockerfile", interpreter="bash", reward=score)

    Args:
        dataset: The tasks, or the file or the dataset's name that they are in. Without a
            ``task_id`` in its options, `reset` takes the next one of a seeded order, and starts
            another order when all have been taken.
        stage: Makes the places where they are tried; None: sandboxes, as the options say.
        interpreter: Opens an interpreter in such a place; ``"bash"`` or ``"python"``.
        reward: Scores an episode: a function, or ``reward.py:score`` (see
            `intercode.rewards.custom`).
        options: The options, as one value.
        **changes: Single options by their names, which come before those: of `SandboxOptions`, or
            of the class that the subclass names in `Options`.

    Raises:
        UsageError: There is no such option, or it makes no sense.
        TaskError: There are no tasks.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 1}  # type: ignore[misc]
    name: ClassVar[str] = "intercode"
    prompt: ClassVar[str] = "$ "
    """The text before an action where people read it."""
    takes_answer: ClassVar[bool] = False
    """Whether ``submit ANSWER`` submits; else only ``submit`` itself does."""
    Options: ClassVar[type[EnvOptions]] = SandboxOptions
    """The options that its constructor takes."""
    scores_later = False
    """Whether the end of an episode is scored only by `settle`, and so does not tell its score."""
    _constructor_arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Remember the constructor's arguments."""
        self = super().__new__(cls)
        self._constructor_arguments = args, options
        return self

    def __init__(
        self,
        dataset: str | Path | Dataset,
        stage: Stage[PlaceT] | None = None,
        interpreter: str | Callable[[PlaceT], Interpreter] = "bash",
        reward: str | Function | Reward[PlaceT] | None = None,
        *,
        options: EnvOptions | None = None,
        **changes: Any,
    ) -> None:
        kind = self.Options if options is None else type(options)
        self.options = options = kind.of(options, changes)
        opens = _opener(interpreter)
        if (language := getattr(opens, "language", "")) and language != self.traits.language:
            self.traits = language_traits(language)
        elif not language and not isinstance(interpreter, str) and self.traits is SHELL:
            self.traits = replace(SHELL, where="", overview="", programs=())  # it may be anything
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
                options = kind.of(options, {"image": Path(image)})  # "./" is not needed
            stage = cast("Stage[PlaceT]", SandboxStage.of(options, self.traits))
        hide(tasks.source, tasks.databases)
        super().__init__(tasks, self.options)
        self.render_mode = options.render_mode
        self.stage = stage
        """Makes the places in which tasks are tried."""
        if layers := getattr(options, "layers", ()):
            if not isinstance(stage, SandboxStage):
                raise UsageError(
                    f"no layers can be added to the workspaces of {self.name!r}: layers"
                )
            stage.layers = tuple(layers)
        if isinstance(stage, SandboxStage):
            stage.programs = stage.programs or self.traits.programs
        self._open = opens
        self._reward = cast("Reward[PlaceT]", reward)
        self._place: PlaceT | None = None
        self._interpreter: Interpreter | None = None
        self._origin: EpisodeSnapshot | None = None  # what a fork begins from
        self._scored_places: weakref.WeakSet[Any] = weakref.WeakSet()  # the places that were scored
        self._is_stopped = False
        self._change_tracker: FileChangeTracker | None = None
        self._is_wire = options.observations == "utf-8"  # texts leave and enter escaped
        self._settings: dict[tuple[str, str], str] = {}  # by image and folder

    @classmethod
    def narrowed(cls, tasks: Dataset, options: Mapping[str, Any]) -> tuple[Dataset, str]:
        """Leave out the tasks that cannot be tried with some options. Starts nothing.

        Args:
            tasks: All tasks.
            options: Options by name, as far as they are given.

        Returns:
            The tasks that are left, and a sentence on the others; empty if there are none.

        Raises:
            TaskError: No task is left.
        """
        return tasks, ""

    def recreate(self, tasks: Dataset) -> Self:
        """Make one more.

        Args:
            tasks: Its tasks: the constructor's first argument.
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
        """The language that actions are written in."""
        return self.traits.language

    @property
    def submissions(self) -> int:
        """The number of submissions so far, over the episode and all its forks."""
        return self.episode_state.submissions.total

    @property
    def place(self) -> PlaceT:
        """The current episode's sandbox or session, for a look from outside.

        Raises:
            EnvironmentStateError: There is none.
            ForkError, SandboxError: A fork's place is started now, and cannot be.
        """
        if self._is_unstarted_fork:
            with self._calls:
                self._start_fork()
        if self._place is None:
            raise EnvironmentStateError("the environment has no sandbox: call reset() first")
        return self._place

    @property
    def sandbox(self) -> PlaceT:
        """The place, by the name that it has in environments with a sandbox."""
        return self.place

    @property
    def directory(self) -> str:
        """The directory where the episode's actions begin, from the place's own directory.

        Raises:
            EnvironmentStateError: There is no episode yet.
        """
        task = self.episode_state.task
        find = getattr(self.stage, "directory", None)  # of a stage that makes sandboxes
        return "." if find is None else str(find(task))

    def image(self, task: Task) -> str:
        """Name the image, or the database, that a task of this environment is tried in."""
        return self.stage.image(task)

    def check(self, task: Task) -> None:
        """Refuse a task that cannot be tried here, before any work starts.

        Raises:
            TaskError, ImageError: Its image or database does not exist.
        """
        with self.dataset.locate_errors(task):
            self.stage.check(task)

    def digest(self, task: Task) -> str:
        """Identify the content of its image or database; an image is built if need be."""
        return self.stage.digest(task)

    def solution(self, task: Task) -> list[str]:
        """Return actions that solve a task by its first gold, the last of them a submit.

        Before gold are those of ``metadata.looks``, if it has any.
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
        """Begin an episode in a fresh place.

        Args:
            seed: Restarts the order of the tasks.
            options: ``{"task_id": …}`` or ``{"index": …}``, for callers to whom Gymnasium's
                wrappers leave nothing else.
            task_id: Chooses a task, and leaves the order alone.
            index: Chooses the task at this place of `dataset`, counted from 0.

        Raises:
            EnvironmentStateError: It was made by another process, or another thread is using it.
            TaskNotFoundError: No task has that id or index.
            UsageError: There is another option, or a task is chosen twice.
            TaskError: The task's files or setup failed.
            ImageError: The image cannot be found or built.
            SandboxError: The sandbox cannot be started. With ``errors="value"`` this and the two
                before are in ``info["error"]``, and the next step ends the episode.
            SandboxUnavailableError: This machine permits no sandbox; it is never a value.
        """
        with self._calls, self._release_place():
            state = self.episode_state
            selected_task = self.select_task(choices(options, task_id=task_id, index=index))
            task = state.begin(self, selected_task, seed)
            try:
                with state.recording_failures():
                    state.episode.metadata["image"] = self.stage.image(task)
                    self._place = self.stage.open(task)
                    self._refuse_stopped()
                    self._interpreter = self._open(self._place)
                info = state.first_info(self.max_turns)
            except VALUES as error:
                info = state.failure_info(error, self.max_turns)
                state.failure = error
            return self._encode_output((task.query, info))

    def select_task(self, options: Mapping[str, Any]) -> Task | None:
        """Return the task that options of `reset` name; None: they name none.

        Raises:
            TaskNotFoundError: No task has that id or index.
            UsageError: There is another option, or both are given.
        """
        with suppress(TaskNotFoundError):
            return self.dataset.select_task(**options)
        decoded_options = {
            name: self._decode_text(value) for name, value in options.items()
        }  # as `info` has it
        return self.dataset.select_task(**decoded_options)

    def _step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._start_fork()
        action, state, interpreter = (
            self._decode_text(action),
            self.episode_state,
            self._interpreter,
        )
        state.check(action, is_open=interpreter is not None)
        assert interpreter is not None  # it is open
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
                with suppress(CausedInsideError):  # its next action is told
                    turn = replace(turn, changes=tracker.turn())
            self.episode.turns.append(turn)
            ended = ENDED in turn.info
            truncated = not ended and len(self.episode.turns) >= self.max_turns
            if not ended and not truncated and not self.reward_every_turn:
                return turn.observation, 0.0, False, False, state.info(self.max_turns, turn)
            if ended or truncated:
                score = self._finish("ended" if ended else "truncated")
            else:
                score = self._judge(state.task, self.episode, self.place)
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
        """Tell how the episode ends by this action; None if the action is to be executed."""
        return self.episode_state.ending(action, takes_answer=self.takes_answer)

    def _current_tracker(self) -> FileChangeTracker | None:
        """Return the watch over the present place; None if no changes are to be kept."""
        place = self._place
        if not getattr(self.options, "keep_diffs", False) or not isinstance(
            place, SupportsFileChanges
        ):
            return None
        if self._change_tracker is None or self._change_tracker.place is not place:
            try:
                self._change_tracker = FileChangeTracker(place)
            except CausedInsideError:  # the action is told
                return None
        return self._change_tracker

    def _reply(self, answer: str | None) -> Execution | None:
        """Reply to an answer after which the episode continues; None: the answer ends it.

        For environments in which an answer may be tried. The reply makes a turn.
        """
        return None

    def _finish(self, status: Status) -> Score | None:
        """End the episode, with everything that the agent started, and score it if it is time."""
        assert self._interpreter is not None  # the episode is running
        self.episode.status = status
        self._interpreter.close()
        gate = getattr(self._place, "gate", None)  # of a sandbox with a policy for the network
        if gate is not None and (refusals := gate.refusal_counts):
            self.episode.metadata["network_refused"] = dict(refusals)
        if self.scores_later and not self.reward_every_turn:
            with suppress(CausedInsideError):
                self.place.kill()
            self.episode.seconds = self.episode_state.seconds
            return None
        return self._score_end()

    def _score_end(self) -> Score:
        score = (
            Score(0.0)
            if self.episode.status == "skipped"
            else self._judge(self.episode_state.task, self.episode, self.place)
        )
        self.episode.score = score
        self.episode.seconds = self.episode_state.seconds
        return score

    def settle(self) -> None:
        """Score an episode that has ended, where that was left for later. Idempotent.

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

    def _judge(self, task: Task, episode: Episode, place: PlaceT) -> Score:
        """Score an episode by the place that it left, after all that runs there has ended."""
        score, ending_detail = Score(0.0), {}
        try:
            if episode.status != "running":
                place.kill()
        except CausedInsideError as error:  # some scores need no place that still answers
            ending_detail = {ENDED: str(error)}
        try:
            score = self._reward(task, episode, place)
        except CausedInsideError as error:
            ending_detail = {ENDED: str(error)}
        if self.stage.changed(task, place):
            # A package was installed, with the image `host`: gold may have met other programs.
            raise SandboxError(
                f"the content of {self.image(task)!r} changed during the episode: the episode and "
                "gold ran in different images"
            )
        return replace(score, detail={**score.detail, **ending_detail}) if ending_detail else score

    def _decode_text(self, action: str) -> str:
        """Return the action as it is executed."""
        is_escaped = self._is_wire and isinstance(action, str)
        return exact(action) if is_escaped and not isinstance(action, NoAction) else action

    def _encode_output(self, data: DataT) -> DataT:
        """Return what leaves the environment, in the form that `observations` asks for."""
        return plain(data) if self._is_wire else data

    def score(
        self,
        task: Task,
        place: PlaceT,
        *,
        output: str | None = None,
        episode: Episode | None = None,
    ) -> Score:
        """Score a place that an agent has left which worked there by itself, without `step`.

        All that runs in it is ended; then it is judged as at the end of an episode. Judging may
        change it, as verification commands and tests run there: a place is scored once.

        Args:
            task: The task.
            place: The place, opened by ``env.stage.open(task)``. The caller closes it.
            output: The agent's answer, where the reward judges one: the text that a Bash task asks
                to be printed, an SQL query (it is run in the place), a Python program, a flag.
                Without it, what asks for one is not solved.
            episode: The record of the attempt, in place of `output`, where there is one. Its turns
                and its answer count as those of an episode of this environment.

        Raises:
            UsageError: Both an output and an episode are given, or the episode is of another task;
                or the place was made from something else than the task's image.
            EnvironmentStateError: The place belongs to the running episode, or was scored before.
            SandboxError: The place was lost, and not by what ran in it.
            RewardError: It cannot be scored.
        """
        with self._calls:
            self._refuse_to_score(task, place, output, episode)
            if episode is None:
                episode = self._attempt(task, place, output)
            elif episode.status in ("running", "error"):
                episode = replace(episode, status="submitted")
            self._scored_places.add(place)
            return self._judge(task, episode, place)

    def _refuse_to_score(
        self, task: Task, place: PlaceT, output: str | None, episode: Episode | None
    ) -> None:
        if output is not None and episode is not None:
            raise UsageError(
                "score takes an output or an episode, not both: an episode has an output"
            )
        if episode is not None and episode.task_id != task.task_id:
            raise UsageError(f"the episode is of task {episode.task_id!r}, not {task.task_id!r}")
        if place is self._place and self.episode_state.is_running:
            raise EnvironmentStateError(
                "this workspace belongs to the running episode: step('submit') ends and scores it"
            )
        if place in self._scored_places:
            raise EnvironmentStateError(
                "this workspace was scored before, which may have changed it: start another "
                "workspace from a snapshot, and score that"
            )
        if self.stage.changed(task, place):
            raise UsageError(
                f"the workspace was not started from {self.image(task)!r} in its current version: "
                "open it by env.stage.open(task), so that its differences from the image are the "
                "agent's changes"
            )

    def _attempt(self, task: Task, place: PlaceT, output: str | None) -> Episode:
        """Record an attempt that was made without `step`, from its answer (see `score`)."""
        turns = [] if output is None else [Turn("", output)]
        return Episode(task.task_id, task.query, self.name, turns=turns, status="submitted")

    def render(self) -> str | None:
        """Return the episode so far, as a terminal would show it."""
        state = self.episode_state
        return (
            None
            if self.render_mode is None
            else self._encode_output(state.render_text(self.prompt))
        )

    def overview(self) -> str:
        """Show what there is in the task's place: tables, or the files of a folder.

        Raises:
            UsageError: No action of the environment shows it.
            EnvironmentStateError: There is no episode, or it has ended.
            TaskError: The action that shows it failed, or the place cannot be made again.
            ImageError, SandboxError: As `reset`.
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
        """Name the task's place in a line, for prompts: engine and version, or machine and user.

        Where the place does not say it, this is the name that the traits have.
        """
        default_setting = self.traits.setting or self.traits.language
        if not self.traits.where or not self.episode_state.is_begun:
            return default_setting
        # No setup, which may take long: what it installs is not named.
        task = replace(self.episode_state.task, setup=None, files={})
        folder = getattr(self.stage, "directory", lambda task: ".")(task)
        key = str(self.episode.metadata.get("image")), str(folder)
        with self._calls:
            if key not in self._settings and self.episode.status == "running":
                try:
                    turn = self._look(task, self.traits.where)
                except (TaskError, ImageError, SandboxError):
                    return default_setting  # the name is worth no failed episode
                line = turn.observation.strip()[:SETTING_LENGTH]
                self._settings[key] = (
                    line if turn.ok and line.isprintable() and line else default_setting
                )
            return self._settings.get(key, default_setting)

    def _look(self, task: Task, action: str) -> Turn:
        """Return what an action shows in a place of its own: the episode's stays as it is.

        There one more process would change the numbers of all later ones.
        """
        with (
            closing(self.stage.open(task)) as place,
            closing(self._open(place)) as interpreter,
        ):
            return act(interpreter, action, task.timeout)

    def outcome(self, task: Task) -> GoldOutcome:
        """Solve a task by its first gold, in a place of its own, and return what came of it.

        It is for the operator, who exports tasks: it tells the solution. Nothing of it is in any
        observation, info, message or record.

        Raises:
            TaskError: The task has no gold.
            RewardError: Gold ran into a limit, or ended its own place.
            SandboxError: The place failed.
        """
        tasks = self.dataset
        single_task = Dataset([task], tasks.name, source=tasks.source, databases=tasks.databases)
        with closing(self.recreate(single_task)) as env:
            return play_gold(env, task)

    def snapshot(self, how: How = "auto", lossy: bool = False) -> EpisodeSnapshot:
        """Save the running episode, between two actions. It goes on as if nothing had happened.

        Args:
            how: ``"state"`` saves what the actions have made of place and interpreter;
                ``"replay"`` lets each fork repeat the actions and compare what comes of them;
                ``"auto"`` saves the state where that is possible.
            lossy: Leave out the parts of the state that cannot be saved, such as programs that
                run, rather than refuse. They are listed in the snapshot's `lost`, in each fork's
                ``info["lost"]`` and in its episode's ``metadata["lost"]``.

        Raises:
            ForkError: It cannot be saved in this way; or it has ended.
            EnvironmentStateError: There is no episode; or an action is running.
            SandboxError: The sandbox was lost.
        """
        try:
            with self._calls:
                return self._save(how, lossy)
        except BaseException as error:  # the interpreter may not have told all of its state
            self.interrupt(error)
            raise

    def restore(self, snapshot: EpisodeSnapshot) -> tuple[str, dict[str, Any]]:
        """Begin a fork of a snapshot's episode here, in place of the current episode.

        The fork has the snapshot's turns and elapsed time, a place with the same limits, and a
        number of its own. The place is started before its first action. This environment's order
        of tasks is left alone, and so are Gymnasium's wrappers, which count by themselves.

        Returns:
            What `step` has returned last in the snapshot's episode, or `reset`: observation, info.

        Raises:
            ForkError: The snapshot is of another kind of environment or of other tasks, has no
                turns left, or was closed.
            EnvironmentStateError: It was made by another process, or another thread is using it.
        """
        with self._calls:
            task = snapshot.find_task(self.dataset, self.name, self.max_turns)
            with self._release_place():
                episode = snapshot.episode()
                self.episode_state.resume(task, episode, snapshot.submissions)
                self._origin = snapshot.with_episode(episode, self.episode_state.fork_numbers)
            last_turn = episode.turns[-1] if episode.turns else None
            observation = task.query if last_turn is None else last_turn.observation
            return self._encode_output(
                (observation, self.episode_state.first_info(self.max_turns, last_turn))
            )

    def fork(self, n: int = 1, how: How = "auto", lossy: bool = False) -> list[Self]:
        """Fork the running episode into other environments; here it goes on.

        Args:
            n: The number of forks, each in an environment of its own, which the caller closes.
            how: See `snapshot`.
            lossy: See `snapshot`.

        Raises:
            UsageError: `n` is below 1.
            ForkError, EnvironmentStateError, SandboxError: As for `snapshot`.
        """
        if isinstance(n, bool) or not isinstance(n, Integral):
            raise UsageError(f"the number of forks must be a whole number, not {n!r}")
        if n < 1:
            raise UsageError(f"the number of forks must be at least 1, not {n}")
        with ExitStack() as stack, self.snapshot(how, lossy) as snapshot:
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

    def _save(self, fork_mode: How, lossy: bool) -> EpisodeSnapshot:
        state, episode, origin = self.episode_state, self.episode, self._origin
        if fork_mode not in HOWS:
            raise UsageError(f"how must be one of {', '.join(HOWS)}, not {fork_mode!r}")
        is_active = self._is_unstarted_fork or self._interpreter is not None
        if episode.status != "running" or not is_active:
            raise ForkError("the episode has ended: take a snapshot while it is running")
        if self._is_unstarted_fork and origin is not None and fork_mode in ("auto", origin.how):
            return origin.with_episode(episode, state.fork_numbers)
        if not self._is_unstarted_fork:
            episode = replace(episode, seconds=state.seconds)

        def interpreter() -> Interpreter:
            self._start_fork()
            assert self._interpreter is not None  # it is running
            return self._interpreter

        return take_snapshot(state, episode, interpreter, fork_mode, lossy)

    @property
    def _is_unstarted_fork(self) -> bool:
        """Whether this is a fork that has not been used yet."""
        is_fork = self._origin is not None and self._place is None
        return is_fork and self.episode_state.is_running

    def _start_fork(self) -> None:
        """Start place and interpreter of a fork, before they are first used."""
        if not self._is_unstarted_fork:
            return
        assert self._origin is not None  # it is asleep
        self.episode_state.start_clock()
        with self.episode_state.recording_failures():
            self._place, self._interpreter = self._origin.start(self._replay_turns)
            self._refuse_stopped()
        self.episode_state.start_clock()

    def _replay_turns(self) -> tuple[PlaceT, Interpreter]:
        """Start a place, and take the actions of the episode in it."""
        task = self.episode_state.task
        with ExitStack() as stack:
            place = stack.enter_context(closing(self.stage.open(task)))
            interpreter = stack.enter_context(closing(self._open(place)))
            repeat(
                self.episode.turns,
                lambda action: act(interpreter, action, task.timeout),
            )
            stack.pop_all()
        return place, interpreter

    def stop(self) -> None:
        """End the place for good, while another thread's call may run. `close` frees the rest.

        The running call fails, with `SandboxClosedError` or `EnvironmentStateError`. Idempotent.
        """
        self._is_stopped = True
        self.abort()

    def abort(self) -> None:
        """End a call that runs on another thread, as `stop` does, but only that one."""
        if (place := self._place) is not None:
            place.close()

    def _refuse_stopped(self) -> None:
        """Refuse a place that was opened while `stop` was called, which has not seen it."""
        if self._is_stopped and self._place is not None:
            self._place.close()
            raise EnvironmentStateError("this environment was stopped")

    def close(self) -> None:
        """End the episode and free its sandbox. Idempotent, and safe from any thread.

        A call that runs on another thread fails with an `EnvironmentStateError`.

        In a fork of the process that made the environment it does nothing: all is the parent's.
        """
        if self._calls.cut():
            self.abort()  # the call frees the rest: its descriptors are in use until its end
        elif not self._calls.forked:
            self._release()

    def _release(self) -> None:
        with self._release_place():
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
    def _release_place(self) -> Iterator[None]:
        """End the episode's place: begin to at once, and have ended it afterwards."""
        interpreter, self._interpreter = self._interpreter, None
        place, self._place = self._place, None
        origin, self._origin = self._origin, None  # what it holds is freed after the place
        try:
            if interpreter is not None:
                interpreter.close()
            if isinstance(place, SupportsTermination):
                place.kill_all()
            yield
        finally:
            if place is not None:
                place.close()
            del origin


def _opener(interpreter: str | Callable[[Any], Interpreter]) -> Callable[[Any], Interpreter]:
    """Find the function that opens an interpreter in a place.

    Raises:
        UsageError: There is no interpreter of that name.
    """
    if not isinstance(interpreter, str):
        return partial(_open_custom, interpreter)
    if interpreter == "sql":
        raise UsageError("SQL needs no image: intercode.make('sql', data=…, databases=…)")
    opener: Callable[[Any], Interpreter] = INTERPRETERS.get(interpreter)
    return opener


def _open_custom(interpreter: Callable[[Any], Interpreter], place: Any) -> Interpreter:
    """Open an interpreter of a user's.

    Raises:
        UsageError: It has not the methods of one.
    """
    result = interpreter(place)
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
