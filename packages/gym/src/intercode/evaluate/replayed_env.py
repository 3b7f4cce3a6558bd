"""Recorded episodes, scored from the record alone or replayed in a fresh environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from intercode.agents.builtin import ScriptedAgent
from intercode.envs.snapshots import difference
from intercode.episode import Episode, Score
from intercode.errors import RewardError
from intercode.evaluate.episode_loop import (
    PlayableEnv,
    SharedRunResources,
    Step,
    WrappedEnv,
    run_episode,
)
from intercode.records import ending_action, turn_action
from intercode.rewards.base import Reward
from intercode_sandbox.units import format_count

if TYPE_CHECKING:
    from intercode.task import Task


class NotReproducibleError(RewardError):
    """The failure of a replay whose observations differ from the record.

    The replay's final state is then not that of the recorded episode, and cannot be scored.
    """


class NeedsSandboxError(RewardError):
    """The failure of a reward that accesses the sandbox, because a record contains no sandbox."""


class _NoSandbox:
    """A placeholder for a sandbox, for rewards that score a record.

    Each access to an attribute calls `on_access`, and raises `NeedsSandboxError`.
    """

    def __init__(self, on_access: Callable[[], None]) -> None:
        self._on_access = on_access

    def __getattribute__(self, name: str) -> NoReturn:
        object.__getattribute__(self, "_on_access")()
        raise NeedsSandboxError(f"the reward reads the sandbox ({name}), which is not recorded")


def score_record(
    task: Task, recorded_episode: Episode, reward: Reward[Any], every_turn: bool = False
) -> Episode:
    """Score an episode from its record alone.

    The reward receives the episode as in the run, and a placeholder for the sandbox.

    Args:
        task: The episode's task.
        recorded_episode: The recorded episode.
        reward: The reward.
        every_turn: Whether to score every turn.

    Raises:
        NeedsSandboxError: The reward needs the sandbox.
        RewardError: The reward failed.
    """
    episode = Episode(
        task.task_id,
        task.query,
        recorded_episode.env,
        agent=recorded_episode.agent,
        seed=recorded_episode.seed,
        epoch=recorded_episode.epoch,
        started=recorded_episode.started,
    )
    for name in ("image", "tags"):
        if name in recorded_episode.metadata:
            episode.metadata[name] = recorded_episode.metadata[name]
    access_log: list[bool] = []

    def score() -> Score:
        new_score = reward(task, episode, _NoSandbox(lambda: access_log.append(True)))
        if access_log:  # the reward accessed the sandbox, and caught the exception
            raise NeedsSandboxError("the reward reads the sandbox, which is not recorded")
        return new_score

    for turn in recorded_episode.turns:
        episode.turns.append(replace(turn, reward=0.0))
        is_last = len(episode.turns) == len(recorded_episode.turns)
        if is_last and recorded_episode.status in ("truncated", "ended"):
            break
        if every_turn:
            episode.turns[-1] = replace(turn, reward=score().value)
    episode.status, episode.answer = recorded_episode.status, recorded_episode.answer
    episode.score = Score(0.0) if recorded_episode.status == "skipped" else score()
    if episode.turns and episode.status in ("truncated", "ended"):
        episode.turns[-1] = replace(episode.turns[-1], reward=episode.score.value)
    return episode


def replay(
    open_env: Callable[[], PlayableEnv],
    task: Task,
    recorded_episode: Episode,
    resources: SharedRunResources,
) -> Episode:
    """Replay the recorded actions in a fresh environment, and score the final state.

    The replay ends at the first turn that differs from the record.

    Args:
        open_env: Returns the environment; called only if a replay is possible.
        task: The episode's task.
        recorded_episode: The recorded episode.
        resources: The limits on concurrency; see `run_episode`.

    Raises:
        NotReproducibleError: An observation or the episode's end differs, a recorded action ran
            into the time limit, or the record contains no action of an external agent.
        InterCodeError: As for `run_episode`.
    """
    # An external agent acts in the sandbox by itself, so a record without turns may hide changes.
    if "outside" in recorded_episode.metadata and not recorded_episode.turns:
        raise NotReproducibleError("not reproducible: none of its agent's actions is recorded")
    for turn_number, turn in enumerate(recorded_episode.turns, 1):
        # An action that timed out may get further in a replay, or less far.
        if turn.info.get("timed_out"):
            raise NotReproducibleError(
                f"not reproducible: turn {turn_number} ran into the time limit"
            )
    actions = [*map(turn_action, recorded_episode.turns), ending_action(recorded_episode)]
    return run_episode(
        ReplayCheckEnv(open_env(), recorded_episode),
        lambda task: ScriptedAgent(actions),
        task,
        seed=recorded_episode.seed,
        epoch=recorded_episode.epoch,
        name=recorded_episode.agent,
        resources=resources,
    )


class ReplayCheckEnv(WrappedEnv):
    """An environment that compares every turn with a recorded turn.

    Args:
        env: The wrapped environment, which executes the actions.
        recorded_episode: The episode to replay.
    """

    def __init__(self, env: PlayableEnv, recorded_episode: Episode) -> None:
        super().__init__(env)
        self._recorded_episode = recorded_episode

    def step(self, action: str, /) -> Step:
        """Take an action, and compare its turn with the recorded turn.

        Raises:
            NotReproducibleError: The turns differ, or the episode ends at another turn.
        """
        result = self._env.step(action)
        reference, turns, is_over = (
            self._recorded_episode,
            self.episode.turns,
            result[2] or result[3],
        )
        turn_number, count = len(turns), len(reference.turns)
        if 0 < turn_number <= count and (
            difference_text := difference(reference.turns[turn_number - 1], turns[-1])
        ):
            raise NotReproducibleError(
                f"not reproducible: turn {turn_number} differs: {difference_text}"
            )
        if is_over and (turn_number != count or self.episode.status != reference.status):
            raise NotReproducibleError(
                f"not reproducible: the episode ended after {format_count(turn_number, 'turn')}, "
                f"{self.episode.status}; recorded: after {count}, {reference.status}"
            )
        if not is_over and (
            turn_number > count or (turn_number == count and reference.status == "truncated")
        ):
            raise NotReproducibleError(
                f"not reproducible: the episode continued after turn {count}; recorded: "
                f"{reference.status}"
            )
        return result
