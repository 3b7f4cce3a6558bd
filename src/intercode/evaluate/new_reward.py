"""The reward that recorded episodes are to be scored with: its name, and itself where it may do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from intercode.envs.traits import traits_of
from intercode.episode import Episode, Score
from intercode.registry import REWARDS
from intercode.rewards.base import Reward
from intercode.rewards.judge import Judge
from intercode.rewards.own import Function, choose
from intercode.task import Task
from intercode.user_code import digest, is_reference

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class NewReward:
    """What episodes are to be scored with."""

    name: str
    """As the record is to call it: ``bird-ex``, ``reward.py:score``, ``default``."""
    function: Reward[Any] | None
    """Itself, if it may be one that looks at no place: that is tried on the record first."""
    digest: str
    """Of its file; empty if it has none."""
    judge: Mapping[str, Any] = field(default_factory=dict)
    """The facts that identify it, if it is a judge."""

    @classmethod
    def of(cls, env: str, protocol: str, reward: str | Function | Judge | None) -> NewReward:
        """What an environment means by a reward; None: its own.

        Raises:
            UsageError: There is no such reward, or it does not take the arguments of one.
        """
        if isinstance(reward, Judge):
            return cls("judge", None, "", reward.facts())
        if isinstance(reward, str):
            function = _named(env, protocol, reward)
            return cls(reward, function, digest(reward) if is_reference(reward) else "")
        if reward is None:
            return cls(DEFAULT, _own(env, protocol), "")
        name = getattr(reward, "__qualname__", type(reward).__qualname__)
        return cls(name, choose(env, reward, _default(env, protocol)), "")

    def facts(self, run: Path) -> dict[str, Any]:
        """For the record of what it has scored: of which run, by what."""
        found = {"run": str(run.absolute()), "reward": self.name}
        more = {"digest": self.digest, "judge": dict(self.judge)}
        return found | {name: value for name, value in more.items() if value}


def _named(env: str, protocol: str, reward: str) -> Reward[Any] | None:
    if not is_reference(reward):
        name = f"{env}:{reward}"
        if name not in REWARDS or isinstance(REWARDS.get(name), type):
            return _own(env, protocol) if reward == DEFAULT else None
    return choose(env, reward, _default(env, protocol))


def _own(env: str, protocol: str) -> Reward[Any] | None:
    """The environment's own reward, if it is known to look at nothing but the record."""
    make = traits_of(env, protocol).pure_reward
    return None if make is None else make()


def _default(env: str, protocol: str) -> Callable[[], Reward[Any]]:
    """What makes the reward that a function may build upon."""
    return lambda: _own(env, protocol) or _of_place


def _of_place(task: Task, episode: Episode, place: Any) -> Score:
    """Stands for a reward that looks at the place."""
    score: Score = place.score
    return score
