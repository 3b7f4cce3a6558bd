"""Snapshots: saved running episodes from which forks begin.

A snapshot has one of two modes. *State*: the interpreter has saved the state of interpreter and
workspace, and a fork starts from the saved state. *Replay*: a fork repeats the recorded actions in
a fresh workspace, and fails at the first action with a different result. In both modes a fork
starts at its first use.
"""

from __future__ import annotations

import copy
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn, Self

import numpy as np

from intercode.envs.episode_state import EpisodeState
from intercode.episode import Episode, Fork, Turn
from intercode.errors import EnvironmentStateError, ForkError, TaskNotFoundError
from intercode.interpreters.base import Interpreter, SavedInterpreterState, SupportsInterpreterSave
from intercode.task import Dataset, Task
from intercode_sandbox.ownership import register_finalizer

ForkMode = Literal["auto", "state", "replay"]
"""The mode of a fork; ``auto``: the saved state if possible, and a replay otherwise."""
FORK_MODES = ("auto", "state", "replay")
_EXCERPT_LENGTH = 60
"""Maximum characters quoted from each of two observations, in a message about the first difference
between them."""


class _SavedStateHolder:
    """A holder of a saved state.

    The saved state is freed when the last snapshot or fork that refers to the holder is freed.
    """

    def __init__(self, saved_state: SavedInterpreterState) -> None:
        self.saved_state = saved_state
        register_finalizer(self, saved_state.close)


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeSnapshot:
    """The state of a running episode between two turns, without running processes.

    `InterCodeEnv.restore` begins any number of forks from a snapshot, in any environment of the
    same kind with the same task. A snapshot outlives its source environment. The saved state is
    freed after `close`, or after the deletion of this object, as soon as no fork needs the state.
    """

    mode: Literal["state", "replay"]
    """Whether a fork starts from the saved state, or repeats the actions."""
    carried: tuple[str, ...]
    """The parts of the state that a fork receives: ``files``, ``variables``, …"""
    lost: tuple[str, ...]
    """The parts that a fork does not receive, in words; empty unless ``lossy=True``."""
    _task: Task = field(repr=False)
    _episode: Episode = field(repr=False)
    _fork_numbers: Iterator[int] = field(repr=False)
    """The numbers of the episode's next forks, shared by all snapshots of the episode."""
    _shared_states: list[_SavedStateHolder | None] = field(repr=False)
    """The saved state, or None for a replay; empty after `close`."""
    submissions: Any = field(repr=False, default=None)
    """The submission counts, shared by the episode and all its forks."""

    @property
    def task_id(self) -> str:
        """The task's id."""
        return self._task.task_id

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns so far, which every fork receives."""
        return tuple(self._episode.turns)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse to be copied or pickled.

        Raises:
            EnvironmentStateError: Always.
        """
        raise EnvironmentStateError(
            "a snapshot cannot be copied or pickled, because its state is in this process: "
            "restore() starts any number of forks from it here"
        )

    def close(self) -> None:
        """Release the saved state, which is freed as soon as no fork needs it.

        The method is idempotent, and safe from any thread.
        """
        self._shared_states.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def with_episode(self, episode: Episode, fork_numbers: Iterator[int]) -> Self:
        """Return a snapshot with the same saved state for a fork that has executed no action.

        The returned snapshot stays valid when this snapshot is closed.

        Args:
            episode: The fork's episode.
            fork_numbers: The numbers for forks of that fork.
        """
        return replace(
            self,
            _episode=_copy_episode(episode),
            _fork_numbers=fork_numbers,
            _shared_states=list(self._shared_states),
        )

    def reserve_fork(self) -> Self:
        """Return a snapshot for a single fork, and reserve the fork's number.

        The number then does not depend on the order in which concurrent forks begin.
        """
        fork_number = next(self._fork_numbers)
        return replace(
            self, _fork_numbers=iter((fork_number,)), _shared_states=list(self._shared_states)
        )

    def find_task(self, tasks: Dataset, env: str, max_turns: int) -> Task:
        """Return the snapshot's task from the tasks of the environment that restores it.

        Args:
            tasks: The environment's tasks.
            env: The environment's short name.
            max_turns: The environment's turn limit.

        Raises:
            ForkError: The snapshot is of another kind of environment or of other tasks, has no
                remaining turn, or was closed.
        """
        if not self._shared_states:
            raise ForkError("the snapshot was closed: take another one")
        if env != self._episode.env:
            raise ForkError(f"a snapshot of {self._episode.env!r} cannot be restored in {env!r}")
        try:
            task = tasks.by_id(self.task_id)
        except TaskNotFoundError as error:
            raise ForkError(f"the snapshot is of another dataset: {error}") from error
        if task != self._task:
            raise ForkError(f"{tasks.where(task)} is not the snapshot's task with this id")
        if (count := len(self._episode.turns)) >= max_turns:
            raise ForkError(f"the snapshot has {count} turns, and max_turns is {max_turns} here")
        return task

    def episode(self) -> Episode:
        """Return the episode record of a new fork, with the next fork number."""
        parent = self._episode
        parent_branch = () if parent.fork is None else parent.fork.branch
        origin = Fork(parent.id, len(parent.turns), (*parent_branch, next(self._fork_numbers)))
        episode = replace(_copy_episode(parent), fork=origin)
        if self.lost:
            episode.metadata["lost"] = list(self.lost)
        return episode

    def start(self, repeat: Callable[[], tuple[Any, Interpreter]]) -> tuple[Any, Interpreter]:
        """Start the workspace and the interpreter of a fork.

        Args:
            repeat: A function that opens a workspace and an interpreter, and repeats the episode's
                actions; called if the snapshot has no saved state.
        """
        shared_state = self._shared_states[0]
        return repeat() if shared_state is None else shared_state.saved_state.open()


def take_snapshot(
    state: EpisodeState,
    episode: Episode,
    interpreter: Callable[[], Interpreter],
    fork_mode: ForkMode,
    lossy: bool,
) -> EpisodeSnapshot:
    """Take a snapshot of a running episode.

    Args:
        state: The episode's state.
        episode: The episode, with its elapsed seconds.
        interpreter: Returns the interpreter; called only to save the state.
        fork_mode: See `ForkMode`.
        lossy: See `SupportsInterpreterSave.save`.

    Raises:
        ForkError: The episode cannot be forked in this mode.
    """
    saved_state, refusal = None, ""
    if fork_mode != "replay":
        try:
            saved_state = _save(interpreter(), lossy)
        except ForkError as error:
            if fork_mode == "state":
                raise
            refusal = f"; and its state cannot be saved: {error}"
    for turn_number, turn in enumerate(episode.turns, 1):
        # A repetition of an action that timed out may have other effects, because the action gets
        # further, or less far, before the time limit.
        if saved_state is None and turn.info.get("timed_out"):
            raise ForkError(
                f"turn {turn_number} ran into the time limit: it cannot be repeated "
                f"exactly{refusal}"
            )
    state_parts = ("whatever its actions do again",) if saved_state is None else saved_state.carried
    return EpisodeSnapshot(
        "replay" if saved_state is None else "state",
        (*state_parts, *_CONSTANT_PARTS),
        () if saved_state is None else saved_state.lost,
        state.task,
        _copy_episode(episode),
        state.fork_numbers,
        [None if saved_state is None else _SavedStateHolder(saved_state)],
        state.submissions,
    )


_CONSTANT_PARTS = ("turns", "elapsed time", "limits")


def _save(interpreter: Interpreter, lossy: bool) -> SavedInterpreterState:
    if isinstance(interpreter, SupportsInterpreterSave):
        return interpreter.save(lossy)
    raise ForkError(
        f"{type(interpreter).__name__} cannot save its state: fork it with mode='replay'"
    )


def _copy_episode(episode: Episode) -> Episode:
    return replace(episode, turns=list(episode.turns), metadata=copy.deepcopy(episode.metadata))


def make_fork_generator(episode: Episode, seed: int) -> np.random.Generator:
    """Return the random generator of a new environment whose first episode is a fork.

    Args:
        episode: The fork. Siblings have different ids, and therefore different generators, because
            an id includes the branch.
        seed: The seed of the source environment.
    """
    assert episode.fork is not None
    entropy = [max(seed, 0), zlib.crc32(episode.id.encode("utf-8", "surrogatepass"))]
    return np.random.Generator(np.random.PCG64(entropy))


def repeat(turns: Iterable[Turn], take_action: Callable[[str], Turn]) -> None:
    """Execute recorded actions again.

    Args:
        turns: The recorded turns.
        take_action: Executes an action.

    Raises:
        ForkError: A turn differs; the message contains its number and the difference.
    """
    for turn_number, turn in enumerate(turns, 1):
        # The interpreter ran no code in this turn. The fork copies the reply from the record.
        if turn.info.get("executed") is False:
            continue
        if mismatch := difference(turn, take_action(turn.action)):
            raise ForkError(
                f"the episode cannot be forked by its actions: turn {turn_number} differs: "
                f"{mismatch}"
            )


def difference(recorded_turn: Turn, replayed_turn: Turn) -> str:
    """Describe how a replayed turn differs from the recorded turn; empty if both are equal."""
    if replayed_turn.info.get("timed_out"):
        return "it ran into the time limit"
    if recorded_turn.observation != replayed_turn.observation:
        recorded_excerpt, current_excerpt = _diverging_excerpts(
            recorded_turn.observation, replayed_turn.observation
        )
        return f"recorded {recorded_excerpt}, now {current_excerpt}"
    # A recorded turn may lack an exit code, if an external agent acted without `step`. Only a known
    # exit code is compared.
    is_known = recorded_turn.exit_code is not None or replayed_turn.exit_code is None
    if is_known and (recorded_turn.ok, recorded_turn.exit_code) != (
        replayed_turn.ok,
        replayed_turn.exit_code,
    ):
        return f"exit code {recorded_turn.exit_code} is now {replayed_turn.exit_code}"
    recorded_info, info = (
        json.loads(json.dumps(dict(turn.info))) for turn in (recorded_turn, replayed_turn)
    )
    for name, value in recorded_info.items():
        if info.get(name) != value:
            current_value = info.get(name)
            return (
                f"{name}: recorded {value!r:.{_EXCERPT_LENGTH}}, "
                f"now {current_value!r:.{_EXCERPT_LENGTH}}"
            )
    return ""


def _diverging_excerpts(first_text: str, second_text: str) -> tuple[str, str]:
    pairs = enumerate(zip(first_text, second_text, strict=False))
    divergence = next((n for n, (a, b) in pairs if a != b), min(len(first_text), len(second_text)))
    start = max(0, divergence - _EXCERPT_LENGTH // 3)
    ellipsis = "…" if start else ""
    first_excerpt, second_excerpt = (
        ellipsis + text[start : start + _EXCERPT_LENGTH] for text in (first_text, second_text)
    )
    return repr(first_excerpt), repr(second_excerpt)
