"""The episode loop, once for all environments.

`InterCodeEnv` puts four things behind Gymnasium's `reset` and `step`: tasks, a stage that makes
the places where they are tried (sandboxes, databases), an interpreter that turns an action into
an observation, and a reward. Its class says what the environment is (`intercode.envs.traits`) and
which options it takes (`intercode.envs.options`).
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, cast

import gymnasium

from intercode.datasets import load
from intercode.envs.diffs import ShowsFiles, Watch
from intercode.envs.fork import HOWS, EpisodeSnapshot, How, Remade, random_of, repeat, take
from intercode.envs.keys import with_keys
from intercode.envs.options import EnvOptions, SandboxOptions
from intercode.envs.outside import Outside
from intercode.envs.spaces import Unicode
from intercode.envs.stage import EndsSlowly, PlaceT, SandboxStage, Stage
from intercode.envs.traits import SHELL, Traits, of_language
from intercode.episode import (
    ENDED,
    DataT,
    Episode,
    NoAction,
    Score,
    Status,
    Turn,
    decode,
    encode,
    exact,
    plain,
)
from intercode.errors import (
    ActionError,
    CausedInsideError,
    EnvironmentStateError,
    ForkError,
    ImageError,
    RewardError,
    SandboxError,
    TaskError,
    TaskNotFoundError,
    UsageError,
)
from intercode.interpreters.base import Execution, Interpreter
from intercode.registry import Registry
from intercode.rewards.base import Reward
from intercode.rewards.own import Function, choose
from intercode.sandbox.images import hide
from intercode.sandbox.ownership import OneCaller
from intercode.task import Dataset, Task

if TYPE_CHECKING:
    from typing_extensions import Self

INTERPRETERS = Registry(
    "interpreter",
    {
        "bash": "intercode.interpreters.bash:BashInterpreter",
        "python": "intercode.interpreters.python:PythonInterpreter",
    },
)
"""Name → the function or class that opens one in a sandbox."""

VALUES = (SandboxError, ImageError, OSError, TaskError, RewardError)
"""The errors that ``errors="value"`` turns into values: no caller's, and no agent's."""
_SHOWN = ("timed_out", "restarted", "truncated")
"""The facts that `info` takes over from an execution: none that differs from run to run."""
_HAS_ENDED = "the sandbox has ended, by what ran in it"


class InterCodeEnv(gymnasium.Env[str, str], Remade, Outside[PlaceT]):
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
        kind = self.Options if options is None else type(options)
        self.options = options = kind.of(options, changes)
        opens = _opener(interpreter)
        if (language := getattr(opens, "language", "")) and language != self.traits.language:
            self.traits = of_language(language)
        if getattr(options, "keys", False):
            opens, self.traits = with_keys(opens, self.traits)
        reward = getattr(options, "reward", None) if reward is None else reward
        if stage is None or reward is None or isinstance(reward, str):
            reward = choose(self.name, reward, _no_reward)
        if stage is None:
            stage = cast("Stage[PlaceT]", _sandboxes(options, self.traits))
        self.dataset = tasks = load(dataset)
        hide(tasks.source, tasks.databases)
        if not tasks:
            raise TaskError(f"dataset {tasks.name!r} holds no tasks")
        self.max_turns = options.max_turns
        self.render_mode = options.render_mode
        self.reward_every_turn = options.reward_every_turn
        self.observation_space = Unicode()
        self.action_space = Unicode()
        self.stage = stage
        """Makes the places in which tasks are tried."""
        self._open = opens
        self._reward = cast("Reward[PlaceT]", reward)
        self._seed = options.seed
        self._order: Iterator[Task] | None = None  # the tasks to come
        self._calls = OneCaller("this environment")
        self._stopped = False
        self._task: Task | None = None
        self._place: PlaceT | None = None
        self._interpreter: Interpreter | None = None
        self._episode: Episode | None = None
        self._watch: Watch | None = None
        self._clock = 0.0
        self._is_wire = options.observations == "utf-8"
        self._untold: Exception | None = None  # why the last reset failed, for the next step
        self._scored: weakref.WeakSet[Any] = weakref.WeakSet()  # places that `score` has judged
        self._origin: EpisodeSnapshot | None = None  # of a fork, which has no place until it acts
        self._numbers: Iterator[int] = itertools.count()  # of the episode's forks

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
    def episode(self) -> Episode:
        """The episode since the last `reset`, finished or running.

        Raises:
            EnvironmentStateError: There is none yet.
        """
        if self._episode is None:
            raise EnvironmentStateError("there is no episode yet: call reset() first")
        return self._episode

    @property
    def place(self) -> PlaceT:
        """The current episode's sandbox or session, for a look from outside.

        Raises:
            EnvironmentStateError: There is none.
            ForkError, SandboxError: A fork's place is started now, and cannot be.
        """
        if self._asleep:
            with self._calls:
                self._awake()
        if self._place is None:
            raise EnvironmentStateError("there is no sandbox: call reset() first")
        return self._place

    @property
    def sandbox(self) -> PlaceT:
        """The place, by the name that it has in environments with a sandbox."""
        return self.place

    @property
    def language(self) -> str:
        """The language that actions are written in."""
        return self.traits.language

    def image(self, task: Task) -> str:
        """Name the image, or the database, that a task of this environment is tried in."""
        return self.stage.image(task)

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
        """Return actions that solve a task by its first gold, the last of them a submit."""
        return [*task.gold[:1], "submit"]

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
        """
        chosen = {"task_id": task_id, "index": index}
        given = {name: one for name, one in chosen.items() if one is not None}
        with self._calls, self._freed():
            if twice := sorted(given.keys() & (options or {}).keys()):
                raise UsageError(f"give {twice[0]!r} to reset once, not in its options as well")
            try:
                begun = self._begin(seed, {**(options or {}), **given})
            except VALUES as error:
                begun = self.episode.query, self._failed(error)
                self._untold = error
            return self._said(begun)

    def _begin(self, seed: int | None, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self._untold = None
        seed, self._seed = (self._seed if seed is None else seed), None
        super().reset(seed=seed)
        if seed is not None or self._order is None:
            self._order = self.dataset.shuffled(self.np_random)
        self._task = task = self.named(options) or next(self._order)
        self._clock = time.monotonic()
        self._episode = Episode(task.task_id, task.query, self.name, seed=seed, started=time.time())
        self._numbers = itertools.count()
        with self._failures_recorded():
            self._episode.metadata["image"] = self.stage.image(task)
            self._place = self.stage.open(task)
            self._refuse_stopped()
            self._interpreter = self._open(self._place)
        return task.query, self._first_info(task)

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
        with self._calls:
            return self._save(how, lossy)

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
            task = snapshot.task_in(self.dataset, self.name, self.max_turns)
            with self._freed():
                self._task = task
                self._episode = episode = snapshot.episode()
                self._untold = None
                self._numbers = itertools.count()
                self._origin = snapshot.held(episode, self._numbers)
            last = episode.turns[-1] if episode.turns else None
            observation = task.query if last is None else last.observation
            return self._said((observation, self._first_info(task, last)))

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
        if n < 1:
            raise UsageError(f"the number of forks must be at least 1, not {n}")
        with self._calls, ExitStack() as made, self._save(how, lossy) as snapshot:
            forks = []
            for _ in range(n):
                fork = made.enter_context(closing(self.another(self.dataset)))
                fork.max_turns, fork.reward_every_turn = self.max_turns, self.reward_every_turn
                fork.restore(snapshot)
                fork._seed = None
                fork._np_random_seed = self.np_random_seed
                fork._np_random = random_of(fork.episode, self.np_random_seed)
                forks.append(fork)
            made.pop_all()
            return forks

    def _save(self, how: How, lossy: bool) -> EpisodeSnapshot:
        task, episode, origin = self._task, self.episode, self._origin
        if how not in HOWS:
            raise UsageError(f"how must be one of {', '.join(HOWS)}, not {how!r}")
        running = self._asleep or self._interpreter is not None
        if task is None or episode.status != "running" or not running:
            raise ForkError("the episode has ended: take a snapshot while it is running")
        if self._asleep and origin is not None and how in ("auto", origin.how):
            return origin.held(episode, self._numbers)
        if not self._asleep:
            episode = replace(episode, seconds=time.monotonic() - self._clock)

        def interpreter() -> Interpreter:
            self._awake()
            assert self._interpreter is not None  # it is running
            return self._interpreter

        return take(task, episode, self._numbers, interpreter, how, lossy)

    @property
    def _asleep(self) -> bool:
        """Whether this is a fork that has not been used yet."""
        running = self._episode is not None and self._episode.status == "running"
        return running and self._origin is not None and self._place is None

    def _awake(self) -> None:
        """Start place and interpreter of a fork, before they are first used."""
        if not self._asleep:
            return
        assert self._origin is not None  # it is asleep
        self._clock = time.monotonic() - self.episode.seconds
        with self._failures_recorded():
            self._place, self._interpreter = self._origin.start(self._repeated)
            self._refuse_stopped()
        self._clock = time.monotonic() - self.episode.seconds

    def _repeated(self) -> tuple[PlaceT, Interpreter]:
        """Start a place, and take the actions of the episode in it."""
        assert self._task is not None  # the episode is running
        task = self._task
        with ExitStack() as opened:
            place = opened.enter_context(closing(self.stage.open(task)))
            interpreter = opened.enter_context(closing(self._open(place)))
            repeat(
                self.episode.turns,
                lambda action: _turn(action, _execute(interpreter, action, task.timeout)),
            )
            opened.pop_all()
        return place, interpreter

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take an action.

        Returns:
            Observation, reward, whether the episode was ended, whether it was truncated, info.

        Raises:
            EnvironmentStateError: There is no episode, or it has ended; or the environment was made
                by another process, or another thread is using it.
            ActionError: The action is not a text.
            SandboxError: The sandbox was lost, and not by what ran in it. The episode counts as an
                error, never as a reward.
            RewardError: The episode cannot be scored. With ``errors="value"`` this and the one
                before truncate the episode, with the reward NaN and ``info["error"]``.
        """
        with self._calls:
            try:
                self._awake()
                taken = self._step(self._meant(action))
            except VALUES as error:
                taken = "", float("nan"), False, True, self._failed(error)
            return self._said(taken)

    def _step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        task, interpreter = self._task, self._interpreter
        if (error := self._untold) is not None:  # of `reset`, which cannot truncate
            self._untold = None
            raise error
        if self.episode.status != "running" or task is None or interpreter is None:
            raise EnvironmentStateError("the episode has ended: call reset() first")
        if not isinstance(action, str):
            raise ActionError(f"an action must be a text, not {type(action).__name__}")
        with self._failures_recorded():
            status = self._ending(action)
            reply = self._reply(self.episode.answer) if status == "submitted" else None
            if status is not None and reply is None:
                score = self._finish(status)
                return "", score.value, True, False, self._info(score=score)
            watch = self._watching() if reply is None else None
            turn = _turn(action, reply or _execute(interpreter, action, task.timeout))
            if watch is not None and ENDED not in turn.info:
                with suppress(CausedInsideError):  # its next action is told
                    turn = replace(turn, changes=watch.turn())
            self.episode.turns.append(turn)
            ended = ENDED in turn.info
            truncated = not ended and len(self.episode.turns) >= self.max_turns
            if not ended and not truncated and not self.reward_every_turn:
                return turn.observation, 0.0, False, False, self._info(turn)
            if ended or truncated:
                score = self._finish("ended" if ended else "truncated")
            else:
                score = self._score()
            self.episode.turns[-1] = replace(turn, reward=score.value)
            info = self._info(turn, score)
            return turn.observation, score.value, ended, truncated, info

    def render(self) -> str | None:
        """Return the episode so far, as a terminal would show it."""
        return None if self.render_mode is None else self._said(self._rendered())

    def _rendered(self) -> str:
        episode = self.episode
        lines = [f"# {episode.query}"]
        for turn in episode.turns:
            lines += [f"{self.prompt}{turn.action}", turn.observation.rstrip("\n")]
        if episode.status != "running":
            lines.append(f"# {episode.status}, reward {episode.reward}")
        return "\n".join(line for line in lines if line) + "\n"

    def stop(self) -> None:
        """End the place for good, while another thread's call may run. `close` frees the rest.

        The running call fails, with `SandboxClosedError` or `EnvironmentStateError`. Idempotent.
        """
        self._stopped = True
        if (place := self._place) is not None:
            place.close()

    def _refuse_stopped(self) -> None:
        """Refuse a place that was opened while `stop` was called, which has not seen it."""
        if self._stopped and self._place is not None:
            self._place.close()
            raise EnvironmentStateError("this environment was stopped")

    def close(self) -> None:
        """End the episode and free its sandbox. Idempotent, and safe from any thread.

        In a fork of the process that made the environment it does nothing: all is the parent's.
        """
        if not self._calls.forked:
            with self._freed():
                pass

    def named(self, options: Mapping[str, Any]) -> Task | None:
        """Return the task that options of `reset` name; None: they name none.

        Raises:
            TaskNotFoundError: No task has that id or index.
            UsageError: There is another option, or both are given.
        """
        if unknown := sorted(set(options) - {"task_id", "index"}):
            raise UsageError(f"reset knows no option {unknown[0]!r}, only 'task_id' and 'index'")
        task_id, index = options.get("task_id"), options.get("index")
        if task_id is not None and index is not None:
            raise UsageError(f"which task: {task_id!r}, or that at index {index!r}?")
        if task_id is not None:
            with suppress(TaskNotFoundError):
                return self.dataset.by_id(task_id)
            return self.dataset.by_id(self._meant(task_id))  # as `info` has it
        return None if index is None else self.dataset.at(index)

    def _ending(self, action: str) -> Status | None:
        """Tell how the episode ends by this action; None if the action is to be executed."""
        word, _, answer = action.strip().partition(" ")
        if word == "submit" and (not answer or self.takes_answer):
            self.episode.answer = answer.strip() or None
            return "submitted"
        return "skipped" if word == "skip" and not answer else None

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

    def _score(self) -> Score:
        assert self._task is not None  # the episode is running
        return self._judge(self._task, self.episode, self.place)

    def _judge(self, task: Task, episode: Episode, place: PlaceT) -> Score:
        """Score an episode by the place that it left, after all that runs there has ended."""
        score, ended = Score(0.0), {}
        try:
            if episode.status != "running":
                place.kill()
        except CausedInsideError as error:  # some scores need no place that still answers
            ended = {ENDED: str(error)}
        try:
            score = self._reward(task, episode, place)
        except CausedInsideError as error:
            ended = {ENDED: str(error)}
        if self.stage.changed(task, place):
            # A package was installed, with the image `host`: gold may have met other programs.
            raise SandboxError(
                f"the content of {self.image(task)!r} changed while the episode ran: the "
                "episode and its gold did not run on the same thing"
            )
        return replace(score, detail={**score.detail, **ended}) if ended else score

    def _finish(self, status: Status) -> Score:
        """End the episode, with everything that the agent started, and score it."""
        assert self._interpreter is not None  # the episode is running
        self.episode.status = status
        self._interpreter.close()
        gate = getattr(self._place, "gate", None)  # of a sandbox with a policy for the network
        if gate is not None and (refused := gate.refused):
            self.episode.metadata["network_refused"] = dict(refused)
        score = Score(0.0) if status == "skipped" else self._score()
        self.episode.score = score
        self.episode.seconds = time.monotonic() - self._clock
        return score

    def _meant(self, action: str) -> str:
        """Return the action as it is executed."""
        is_escaped = self._is_wire and isinstance(action, str)
        return exact(action) if is_escaped and not isinstance(action, NoAction) else action

    def _said(self, data: DataT) -> DataT:
        """Return what leaves the environment, in the form that `observations` asks for."""
        return plain(data) if self._is_wire else data

    def _failed(self, error: Exception) -> dict[str, Any]:
        """Make the `info` of an episode that failed; or raise the error, where none is a value.

        Only that of the infrastructure has its message there: others may quote gold.
        """
        if self.options.errors != "value" or self.episode.status != "error":
            raise error
        kind, said = "infrastructure", str(error)
        if isinstance(error, (TaskError, RewardError)):
            kind, said = "task", "the task's own part failed: env.episode.error says why"
        about = {"kind": kind, "type": type(error).__name__, "message": said}
        return {**self._info(), "error": about}

    @contextmanager
    def _failures_recorded(self) -> Iterator[None]:
        """End the episode as an error, and raise it, where a failure is not the agent's fault."""
        try:
            yield
        except Exception as error:
            self.episode.status = "error"
            self.episode.error = f"{type(error).__name__}: {error}"
            self.episode.seconds = time.monotonic() - self._clock
            raise

    @contextmanager
    def _freed(self) -> Iterator[None]:
        """End the episode's place: begin to at once, and have ended it afterwards."""
        interpreter, self._interpreter = self._interpreter, None
        place, self._place = self._place, None
        origin, self._origin = self._origin, None  # what it holds is freed after the place
        try:
            if interpreter is not None:
                interpreter.close()
            if isinstance(place, EndsSlowly):
                place.kill_all()
            yield
        finally:
            if place is not None:
                place.close()
            del origin

    def _first_info(self, task: Task, turn: Turn | None = None) -> dict[str, Any]:
        """Make the `info` with which an episode or a fork begins."""
        return {**self._info(turn), "query": task.query, "tags": task.tags}

    def _info(self, turn: Turn | None = None, score: Score | None = None) -> dict[str, Any]:
        """Make the `info` of `reset` and `step`."""
        done = len(self.episode.turns)
        info: dict[str, Any] = {
            "task_id": self.episode.task_id,
            "turn": done,
            "turns_left": self.max_turns - done,
        }
        if "lost" in self.episode.metadata:
            info["lost"] = self.episode.metadata["lost"]
        if turn is not None:
            info["ok"] = turn.ok
            if turn.exit_code is not None:
                info["exit_code"] = turn.exit_code
            info.update({key: turn.info[key] for key in _SHOWN if key in turn.info})
        if score is not None:
            info["success"] = score.value == 1.0
            info["parts"] = dict(score.parts)
        return info


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


def act(interpreter: Interpreter, action: str, timeout: float | None) -> Turn:
    """Run an action, and record it; see `Interpreter.execute`."""
    return _turn(action, _execute(interpreter, action, timeout))


def _execute(interpreter: Interpreter, action: str, timeout: float | None) -> Execution:
    """Run an action. The agent is told of its mistakes; the end of its sandbox may be one.

    Raises:
        SandboxError: The sandbox died, and not by what ran in it.
    """
    if isinstance(action, NoAction):
        told = {"executed": False, "invalid": True}
        return Execution(b"", ok=False, notes=(action.note,), info=told)
    try:
        encode(action)  # half a surrogate pair has no bytes that could be executed
        return interpreter.execute(action, timeout)
    except (ActionError, UnicodeEncodeError) as error:
        note = f"not executed: {error}"
        return Execution(b"", ok=False, notes=(note,), info={"executed": False})
    except CausedInsideError:
        return Execution(b"", ok=False, notes=(_HAS_ENDED,), info={ENDED: True})


def _turn(action: str, execution: Execution) -> Turn:
    """Record an action and what came of it."""
    info = dict(execution.info)
    if execution.notes:
        info["output"] = decode(execution.output)  # what a reward compares
    return Turn(
        str(action),
        execution.observation,
        ok=execution.ok,
        exit_code=execution.exit_code,
        seconds=execution.seconds,
        info=info,
    )
