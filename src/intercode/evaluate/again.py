"""Recorded episodes, done again: from the record alone, or in a fresh environment.

`FromRecord` has no sandbox: it gives back the recorded observations, and calls a reward that looks
at nothing else. `Compared` does the recorded actions again in another environment, for as long as
every observation comes out as it was recorded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, SupportsFloat

from intercode.episode import Episode, Score, Turn
from intercode.errors import EnvironmentStateError, RewardError
from intercode.evaluate.loop import EpisodeEnv
from intercode.records import Record, action_of, ending_of
from intercode.rewards.base import Reward

if TYPE_CHECKING:
    from intercode.agents.base import Agent
    from intercode.task import Dataset, Task

_SHOWN = 60
"""Characters of two observations that are shown from where they part."""
Step = tuple[str, SupportsFloat, bool, bool, dict[str, Any]]


class NotReproducibleError(RewardError):
    """The recorded actions no longer lead where they led: there is nothing to be scored."""


class NeedsPlaceError(RewardError):
    """A reward looks at the place that an episode has left, and the record does not have it."""


class NoPlace:
    """Stands for a place where there is none. Whoever looks at it is told, and is found out."""

    def __init__(self, on_look: Callable[[], None]) -> None:
        self._on_look = on_look

    def __getattribute__(self, name: str) -> NoReturn:
        object.__getattribute__(self, "_on_look")()
        raise NeedsPlaceError(f"the reward looks at the sandbox ({name}), which is not recorded")


class Follows(Protocol):
    """An environment that is told which recorded episode it is to be, once it was reset."""

    def follow(self, recorded: Episode) -> None:
        """Do this one."""


class Recorded:
    """Makes agents that act as it is recorded, in environments that follow the record."""

    needs_gold = True  # it tells the environment itself what to follow

    def __init__(self, recording: Record) -> None:
        self._recording = recording

    def __call__(self, task: Task) -> Agent:
        """Nothing: it must know the environment."""
        raise EnvironmentStateError(f"task {task.task_id!r}: what is recorded goes by epochs, too")

    def within(self, env: Any, task: Task) -> Agent:
        """The agent of one episode."""
        recorded = self._recording.read((env.episode.epoch, task.task_id))
        env.follow(recorded)
        return _Again(recorded)


class _Again:
    """Acts as one recorded episode did."""

    def __init__(self, recorded: Episode) -> None:
        self._recorded = recorded

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        """The next recorded action."""
        turns = self._recorded.turns
        if len(history) == len(turns):
            return ending_of(self._recorded)
        return action_of(turns[len(history)])


class FromRecord:
    """Needs no sandbox. A reward sees the episode as it would in one, and no place.

    Args:
        dataset: The tasks.
        reward: Scores an episode.
        every_turn: Score after every action.
    """

    def __init__(self, dataset: Dataset, reward: Reward[Any], every_turn: bool = False) -> None:
        self._dataset = dataset
        self._reward = reward
        self._every_turn = every_turn
        self._task: Task | None = None
        self._recorded: Episode | None = None
        self.episode = Episode("", "", "")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode; which one, `follow` says."""
        self._task = task = self._dataset.by_id((options or {})["task_id"])
        self.episode = Episode(task.task_id, task.query, "", seed=seed)
        return task.query, {}

    def follow(self, recorded: Episode) -> None:
        """Do this one."""
        self._recorded = recorded
        self.episode.env, self.episode.started = recorded.env, recorded.started
        if "image" in recorded.metadata:
            self.episode.metadata["image"] = recorded.metadata["image"]

    def step(self, action: str, /) -> Step:
        """The recorded next turn, or the recorded end.

        Raises:
            NeedsPlaceError: The reward looks at the place.
            RewardError: It failed.
        """
        recorded, episode = self._recorded, self.episode
        assert recorded is not None  # the agent has called `follow`
        if len(episode.turns) == len(recorded.turns):
            return self._end(recorded)
        turn = replace(recorded.turns[len(episode.turns)], reward=0.0)
        episode.turns.append(turn)
        cut = recorded.status == "truncated" and len(episode.turns) == len(recorded.turns)
        if cut:
            episode.status = "truncated"
        elif not self._every_turn:
            return turn.observation, 0.0, False, False, {}
        score = self._score()
        if cut:
            episode.score = score
        episode.turns[-1] = replace(turn, reward=score.value)
        return turn.observation, score.value, False, cut, {}

    def close(self) -> None:
        """Nothing to free."""

    def _end(self, recorded: Episode) -> Step:
        self.episode.status, self.episode.answer = recorded.status, recorded.answer
        self.episode.score = Score(0.0) if recorded.status == "skipped" else self._score()
        return "", self.episode.score.value, True, False, {}

    def _score(self) -> Score:
        assert self._task is not None  # the episode has begun
        looks: list[bool] = []
        score = self._reward(self._task, self.episode, NoPlace(lambda: looks.append(True)))
        if looks:  # and has gone on as if nothing were
            raise NeedsPlaceError("the reward looks at the sandbox, which is not recorded")
        return score


class Compared:
    """Another environment, whose every turn is held against the recorded one.

    Args:
        env: Where the actions are done again; it is closed with this one.
    """

    def __init__(self, env: EpisodeEnv) -> None:
        self._env = env
        self._recorded: Episode | None = None

    @property
    def episode(self) -> Episode:
        """The environment's."""
        return self._env.episode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode in a fresh place."""
        return self._env.reset(seed=seed, options=options)

    def follow(self, recorded: Episode) -> None:
        """Do this one."""
        self._recorded = recorded

    def step(self, action: str, /) -> Step:
        """Take an action.

        Raises:
            NotReproducibleError: What came of it is not what is recorded.
        """
        recorded = self._recorded
        assert recorded is not None  # the agent has called `follow`
        result = self._env.step(action)
        turns, ended = self.episode.turns, result[2] or result[3]
        if turns and len(turns) <= len(recorded.turns):
            number = len(turns)
            if found := difference(recorded.turns[number - 1], turns[-1]):
                raise NotReproducibleError(f"not reproducible: turn {number} differs: {found}")
        at_end = len(turns) == len(recorded.turns)
        if ended and (not at_end or self.episode.status != recorded.status):
            raise NotReproducibleError(
                f"not reproducible: it ends after {len(turns)} turns, {self.episode.status}; "
                f"recorded: after {len(recorded.turns)}, {recorded.status}"
            )
        if not ended and (
            len(turns) > len(recorded.turns) or (at_end and recorded.status == "truncated")
        ):
            raise NotReproducibleError(
                f"not reproducible: it goes on after turn {len(recorded.turns)}; "
                f"recorded: {recorded.status}"
            )
        return result

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def difference(recorded: Turn, now: Turn) -> str:
    """What sets a turn apart from the recorded one, in words; nothing if nothing does."""
    if now.info.get("timed_out"):
        return "it ran into the time limit"
    if recorded.observation != now.observation:
        before, after = _from_where_they_part(recorded.observation, now.observation)
        return f"recorded {before}, now {after}"
    if (recorded.ok, recorded.exit_code) != (now.ok, now.exit_code):
        return f"exit code {recorded.exit_code} is now {now.exit_code}"
    info = json.loads(json.dumps(dict(now.info)))
    for name, value in recorded.info.items():
        if info.get(name) != value:
            return f"{name}: recorded {value!r:.{_SHOWN}}, now {info.get(name)!r:.{_SHOWN}}"
    return ""


def _from_where_they_part(one: str, other: str) -> tuple[str, str]:
    pairs = enumerate(zip(one, other, strict=False))
    parting = next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))
    start = max(0, parting - _SHOWN // 3)
    dots = "…" if start else ""
    first, second = (dots + text[start : start + _SHOWN] for text in (one, other))
    return repr(first), repr(second)
