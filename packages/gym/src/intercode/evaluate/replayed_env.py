"""Recorded episodes, scored from the record alone or replayed in a fresh environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from intercode.agents.builtin import ScriptedAgent
from intercode.envs.snapshots import difference
from intercode.episode import Episode, Score
from intercode.errors import RewardError
from intercode.evaluate.loop import EpisodeEnv, Shared, Step, WrappedEnv, run_episode
from intercode.records import action_of, ending_of
from intercode.rewards.base import Reward
from intercode_sandbox.units import format_count

if TYPE_CHECKING:
    from intercode.task import Task


class NotReproducibleError(RewardError):
    """The recorded actions no longer lead where they led: there is nothing to be scored."""


class NeedsSandboxError(RewardError):
    """A reward looks at the sandbox, which a record does not have."""


class _NoSandbox:
    """Placeholder for a sandbox that is gone: access is noted, and raises `NeedsSandboxError`."""

    def __init__(self, on_access: Callable[[], None]) -> None:
        self._on_access = on_access

    def __getattribute__(self, name: str) -> NoReturn:
        object.__getattribute__(self, "_on_access")()
        raise NeedsSandboxError(f"the reward looks at the sandbox ({name}), which is not recorded")


def score_record(
    task: Task, recorded: Episode, reward: Reward[Any], every_turn: bool = False
) -> Episode:
    """Score an episode from its record alone.

    The reward sees the episode as it did in the run, and a placeholder for the sandbox.

    Args:
        task: The episode's task.
        recorded: The recorded episode.
        reward: The reward.
        every_turn: Whether to score every turn.

    Raises:
        NeedsSandboxError: The reward looks at the sandbox.
        RewardError: The reward failed.
    """
    episode = Episode(
        task.task_id,
        task.query,
        recorded.env,
        agent=recorded.agent,
        seed=recorded.seed,
        epoch=recorded.epoch,
        started=recorded.started,
    )
    for name in ("image", "tags"):
        if name in recorded.metadata:
            episode.metadata[name] = recorded.metadata[name]
    accessed: list[bool] = []

    def score() -> Score:
        found = reward(task, episode, _NoSandbox(lambda: accessed.append(True)))
        if accessed:  # and the reward has caught the exception
            raise NeedsSandboxError("the reward looks at the sandbox, which is not recorded")
        return found

    for turn in recorded.turns:
        episode.turns.append(replace(turn, reward=0.0))
        last = len(episode.turns) == len(recorded.turns)
        if last and recorded.status in ("truncated", "ended"):
            break
        if every_turn:
            episode.turns[-1] = replace(turn, reward=score().value)
    episode.status, episode.answer = recorded.status, recorded.answer
    episode.score = Score(0.0) if recorded.status == "skipped" else score()
    if episode.turns and episode.status in ("truncated", "ended"):
        episode.turns[-1] = replace(episode.turns[-1], reward=episode.score.value)
    return episode


def replay(
    open_env: Callable[[], EpisodeEnv], task: Task, recorded: Episode, shared: Shared
) -> Episode:
    """Take the recorded actions in a fresh environment, for as long as it behaves as recorded.

    Args:
        open_env: Gives the environment; called only if the episode can be replayed.
        task: The episode's task.
        recorded: The recorded episode.
        shared: See `run_episode`.

    Raises:
        NotReproducibleError: An observation differs, an action ran into the time limit then, or
            none of an agent from outside is recorded.
        InterCodeError: As for `run_episode`.
    """
    if "outside" in recorded.metadata and not recorded.turns:  # it may have edited files by itself
        raise NotReproducibleError("not reproducible: none of its agent's actions is recorded")
    for number, turn in enumerate(recorded.turns, 1):
        if turn.info.get("timed_out"):  # it may get further now, or less far
            raise NotReproducibleError(f"not reproducible: turn {number} ran into the time limit")
    actions = [*map(action_of, recorded.turns), ending_of(recorded)]
    return run_episode(
        ReplayedEnv(open_env(), recorded),
        lambda task: ScriptedAgent(actions),
        task,
        seed=recorded.seed,
        epoch=recorded.epoch,
        name=recorded.agent,
        shared=shared,
    )


class ReplayedEnv(WrappedEnv):
    """An environment whose every turn is compared with a recorded one.

    Args:
        env: The environment that acts.
        recorded: The episode that is replayed in it.
    """

    def __init__(self, env: EpisodeEnv, recorded: Episode) -> None:
        super().__init__(env)
        self._recorded = recorded

    def step(self, action: str, /) -> Step:
        """Take an action, and compare its turn with the recorded one.

        Raises:
            NotReproducibleError: They differ, or the episode ends at another turn.
        """
        result = self._env.step(action)
        recorded, turns, ended = self._recorded, self.episode.turns, result[2] or result[3]
        number, count = len(turns), len(recorded.turns)
        if 0 < number <= count and (found := difference(recorded.turns[number - 1], turns[-1])):
            raise NotReproducibleError(f"not reproducible: turn {number} differs: {found}")
        if ended and (number != count or self.episode.status != recorded.status):
            raise NotReproducibleError(
                f"not reproducible: it ends after {format_count(number, 'turn')}, "
                f"{self.episode.status}; recorded: after {count}, {recorded.status}"
            )
        if not ended and (number > count or (number == count and recorded.status == "truncated")):
            raise NotReproducibleError(
                f"not reproducible: it goes on after turn {count}; recorded: {recorded.status}"
            )
        return result
