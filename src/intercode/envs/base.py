"""The episode loop, once for all environments.

`InterCodeEnv` puts four things behind Gymnasium's `reset` and `step`: tasks, a stage that makes
the places where they are tried (sandboxes, databases), an interpreter that turns an action into
an observation, and a reward. Its class says what the environment is (`intercode.envs.traits`) and
which options it takes (`intercode.envs.options`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self, cast

import gymnasium

from intercode.datasets import load
from intercode.envs.diffs import ShowsFiles, Watch
from intercode.envs.episode_state import VALUES, EpisodeState, choices
from intercode.envs.fork import Forkable, random_of
from intercode.envs.keys import with_keys
from intercode.envs.options import EnvOptions, SandboxOptions
from intercode.envs.outside import Outside
from intercode.envs.spaces import Unicode
from intercode.envs.stage import PlaceT, SandboxStage, Stage
from intercode.envs.traits import SHELL, Traits, of_language
from intercode.envs.turns import act, execute, recorded
from intercode.episode import ENDED, Episode, Status, Turn
from intercode.errors import (
    CausedInsideError,
    ImageError,
    SandboxError,
    TaskError,
    TaskNotFoundError,
    UsageError,
)
from intercode.interpreters.base import Execution, Interpreter
from intercode.names import Registry
from intercode.rewards.base import Reward
from intercode.rewards.own import Function, choose
from intercode.sandbox.images import hide
from intercode.task import LOOKS, Dataset, Task

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


class InterCodeEnv(Forkable[PlaceT], Outside[PlaceT], gymnasium.Env[str, str]):
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
        reward: Scores an episode: a function, or ``reward.py:score`` (see `intercode.rewards.own`).
        options: The options, as one value.
        **changes: Single options by their names, which come before those: of `SandboxOptions`, or
            of the class that the subclass names in `Options`.

    Raises:
        UsageError: There is no such option, or it makes no sense.
        TaskError: There are no tasks.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 1}  # type: ignore[misc]
    name: ClassVar[str] = "intercode"
    """The environment's short name, for the record."""
    prompt: ClassVar[str] = "$ "
    """The text before an action where people read it."""
    takes_answer: ClassVar[bool] = False
    """Whether ``submit ANSWER`` submits; else only ``submit`` itself does."""
    Options: ClassVar[type[EnvOptions]] = SandboxOptions
    """The options that its constructor takes."""
    traits: Traits = SHELL
    """The environment's traits; one composed by hand has those of its language."""

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
        super().__init__()
        kind = self.Options if options is None else type(options)
        self.options = options = kind.of(options, changes)
        opens = _opener(interpreter)
        if (language := getattr(opens, "language", "")) and language != self.traits.language:
            self.traits = of_language(language)
        elif not language and not isinstance(interpreter, str) and self.traits is SHELL:
            self.traits = replace(SHELL, where="", overview="", programs=())  # it may be anything
        if getattr(options, "keys", False):
            opens, self.traits = with_keys(opens, self.traits)
        tasks = load(dataset)
        if (limits := options.limits) is not None and "timeout" in (limits.overrides or ()):
            tasks = tasks.limited(limits.timeout)
        reward = getattr(options, "reward", None) if reward is None else reward
        if stage is None or reward is None or isinstance(reward, str):
            reward = choose(self.name, reward, _no_reward)
        if stage is None:
            stage = cast("Stage[PlaceT]", _sandboxes(options, self.traits))
        self.dataset = tasks
        hide(tasks.source, tasks.databases)
        if not tasks:
            raise TaskError(f"dataset {tasks.name!r} holds no tasks")
        self.max_turns = options.max_turns
        self.render_mode = options.render_mode
        self.reward_every_turn = options.reward_every_turn
        self.observation_space = Unicode()
        self.action_space = Unicode()
        self.stage = stage
        if layers := getattr(options, "layers", ()):
            if not isinstance(stage, SandboxStage):
                raise UsageError(f"nothing can be laid over the places of {self.name!r}: layers")
            stage.layers = tuple(layers)
        if isinstance(stage, SandboxStage):
            stage.programs = stage.programs or self.traits.programs
        self._open = opens
        self._reward = cast("Reward[PlaceT]", reward)
        self.episode_state = EpisodeState(options)
        self._watch: Watch | None = None
        self._is_wire = options.observations == "utf-8"
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

    @property
    def language(self) -> str:
        """The language that actions are written in."""
        return self.traits.language

    def check(self, task: Task) -> None:
        """Refuse a task that cannot be tried here, before any work starts.

        Raises:
            TaskError, ImageError: Its image or database does not exist.
        """
        with self.dataset.naming(task):
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
        with self._calls, self._freed():
            named = self.named(choices(options, task_id=task_id, index=index))
            state = self.episode_state
            try:
                begun = self._begin(seed, named)
            except VALUES as error:
                begun = state.episode.query, state.info_of_failure(error, self.max_turns)
                state.failure = error
            return self._said(begun)

    def _begin(self, seed: int | None, named: Task | None) -> tuple[str, dict[str, Any]]:
        state = self.episode_state
        seed = state.take_seed(seed)
        super().reset(seed=seed)
        task = named or state.next_task(self.dataset, self.np_random, restart=seed is not None)
        state.begin(
            task, Episode(task.task_id, task.query, self.name, seed=seed, started=time.time())
        )
        with state.recording_failures():
            self.episode.metadata["image"] = self.stage.image(task)
            self._place = self.stage.open(task)
            self._refuse_stopped()
            self._interpreter = self._open(self._place)
        return task.query, state.first_info(self.max_turns)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take an action.

        Returns:
            Observation, reward, whether the episode was ended, whether it was truncated, info.

        Raises:
            EnvironmentStateError: There is no episode, or it has ended; or the environment was made
                by another process, or another thread is using it. An exception of the caller
                (Ctrl-C, the handler of an alarm) that comes before the observation ends it.
            ActionError: The action is not a text.
            SandboxError: The sandbox was lost, and not by what ran in it. The episode counts as an
                error, never as a reward.
            RewardError: The episode cannot be scored. With ``errors="value"`` this and the one
                before truncate the episode, with the reward NaN and ``info["error"]``.
        """
        try:
            with self._calls:
                try:
                    self._awake()
                    taken = self._step(self._meant(action))
                except VALUES as error:
                    info = self.episode_state.info_of_failure(error, self.max_turns)
                    taken = "", float("nan"), False, True, info
                return self._said(taken)
        except BaseException as error:  # also on the way out: the observation is lost
            self.interrupt(error)
            raise

    def _step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        state, interpreter = self.episode_state, self._interpreter
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
            watch = self._watching() if reply is None else None
            turn = recorded(action, reply or execute(interpreter, action, state.task.timeout))
            if watch is not None and ENDED not in turn.info:
                with suppress(CausedInsideError):  # its next action is told
                    turn = replace(turn, changes=watch.turn())
            self.episode.turns.append(turn)
            ended = ENDED in turn.info
            truncated = not ended and len(self.episode.turns) >= self.max_turns
            if not ended and not truncated and not self.reward_every_turn:
                return turn.observation, 0.0, False, False, state.info(self.max_turns, turn)
            if ended or truncated:
                score = self._finish("ended" if ended else "truncated")
            else:
                score = self._score()
            value = 0.0 if score is None else score.value
            self.episode.turns[-1] = replace(turn, reward=value)
            return (
                turn.observation,
                value,
                ended,
                truncated,
                state.info(self.max_turns, turn, score),
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
            said = turn.observation.strip()[-500:]
            raise TaskError(f"task {task.task_id!r}: what there is cannot be shown: {said}")
        return turn.observation.rstrip("\n")

    def setting(self) -> str:
        """Name the task's place in a line, for prompts: engine and version, or machine and user.

        Where the place does not say it, this is the name that the traits have.
        """
        known = self.traits.setting or self.traits.language
        if not self.traits.where or not self.episode_state.is_begun:
            return known
        # No setup, which may take long: what it installs is not named.
        task = replace(self.episode_state.task, setup=None, files={})
        folder = getattr(self.stage, "directory", lambda task: ".")(task)
        key = str(self.episode.metadata.get("image")), str(folder)
        with self._calls:
            if key not in self._settings and self.episode.status == "running":
                try:
                    turn = self._look(task, self.traits.where)
                except (TaskError, ImageError, SandboxError):
                    return known  # the name is worth no failed episode
                line = turn.observation.strip()[:SETTING_LENGTH]
                self._settings[key] = line if turn.ok and line.isprintable() and line else known
            return self._settings.get(key, known)

    def _look(self, task: Task, action: str) -> Turn:
        """Return what an action shows in a place of its own: the episode's stays as it is.

        There one more process would change the numbers of all later ones.
        """
        with (
            closing(self.stage.open(task)) as place,
            closing(self._open(place)) as interpreter,
        ):
            return act(interpreter, action, task.timeout)

    def render(self) -> str | None:
        """Return the episode so far, as a terminal would show it."""
        state = self.episode_state
        return None if self.render_mode is None else self._said(state.rendered(self.prompt))

    def named(self, options: Mapping[str, Any]) -> Task | None:
        """Return the task that options of `reset` name; None: they name none.

        Raises:
            TaskNotFoundError: No task has that id or index.
            UsageError: There is another option, or both are given.
        """
        with suppress(TaskNotFoundError):
            return self.dataset.named(**options)
        meant = {name: self._meant(one) for name, one in options.items()}  # as `info` has it
        return self.dataset.named(**meant)

    def _draws_apart_from(self, source: Self) -> None:
        self.episode_state.seed = None
        self._np_random_seed = source.np_random_seed
        self._np_random = random_of(self.episode, source.np_random_seed)

    def _ending(self, action: str) -> Status | None:
        """Tell how the episode ends by this action; None if the action is to be executed."""
        return self.episode_state.ending(action, takes_answer=self.takes_answer)

    def _watching(self) -> Watch | None:
        """Return the watch over the present place; None if no changes are to be kept."""
        place = self._place
        if not getattr(self.options, "keep_diffs", False) or not isinstance(place, ShowsFiles):
            return None
        if self._watch is None or self._watch.place is not place:
            try:
                self._watch = Watch(place)
            except CausedInsideError:  # the action is told
                return None
        return self._watch

    def _reply(self, answer: str | None) -> Execution | None:
        """Reply to an answer after which the episode continues; None: the answer ends it.

        For environments in which an answer may be tried. The reply makes a turn.
        """
        return None


def _opener(interpreter: str | Callable[[Any], Interpreter]) -> Callable[[Any], Interpreter]:
    """Find the function that opens an interpreter in a place.

    Raises:
        UsageError: There is no interpreter of that name.
    """
    if not isinstance(interpreter, str):
        return interpreter
    if interpreter == "sql":
        raise UsageError("SQL needs no image: intercode.make('sql', data=…, databases=…)")
    found: Callable[[Any], Interpreter] = INTERPRETERS.get(interpreter)
    return found


def _sandboxes(options: EnvOptions, traits: Traits) -> SandboxStage:
    """Make the stage of an environment that brings none.

    Raises:
        UsageError: There is no such provider.
    """
    sandbox, image = options.sandbox, getattr(options, "image", None)
    if isinstance(sandbox, str):
        sandbox = traits.provider(sandbox)
    if image and Path(image).exists():  # "./" is not needed
        image = Path(image)
    return SandboxStage(
        sandbox,
        image,
        options.limits,
        getattr(options, "network", False),
        getattr(options, "default_image", None),
    )


def _no_reward() -> NoReturn:
    raise UsageError("say how well an episode went: reward=FUNCTION, or reward='reward.py:score'")
