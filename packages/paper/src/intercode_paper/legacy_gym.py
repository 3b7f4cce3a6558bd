"""The environments in legacy ``gym`` 0.26, which was given up in 2022.

``import gym`` finds `register` by an entry point of the group ``gym.envs``, whichever is imported
first. What is made is an environment of `intercode.make`, with the four values of old loops.
"""

from __future__ import annotations

from typing import Any

import gymnasium

from intercode.project import create
from intercode.registry import ENVS


class GymEnv(gymnasium.Env[str, str]):
    """An environment whose `step` returns observation, reward, done and info.

    Args:
        env: The environment.
    """

    def __init__(self, env: gymnasium.Env[str, str]) -> None:
        self.env = env
        self.metadata = env.metadata
        self.render_mode = env.render_mode
        self.observation_space = env.observation_space
        self.action_space = env.action_space

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode; return the observation and info, as gym 0.26 does."""
        return self.env.reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:  # type: ignore[override]
        """Take an action; ``info["TimeLimit.truncated"]`` tells that the turns were used up."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        limit_info = {"TimeLimit.truncated": truncated} if terminated or truncated else {}
        return observation, float(reward), terminated or truncated, {**info, **limit_info}

    def render(self) -> Any:
        """Return the episode so far, as a terminal would show it."""
        return self.env.render()

    def close(self) -> None:
        """End the episode and free its sandbox. Idempotent."""
        self.env.close()


def make(env: str, **options: Any) -> GymEnv:
    """Make an environment, as `intercode.make` does: what ``gym.make`` calls."""
    return GymEnv(create(env, **options))


def register() -> None:
    """Register the environments of `intercode.registry` with ``gym``."""
    from gym.envs.registration import register as add

    for env in ENVS.names(packages=False):
        if ":" not in env:
            add(
                f"intercode-{env}-v0",
                "intercode_paper.legacy_gym:make",
                kwargs={"env": env},
                # gym's wrappers expect five values, and names that NumPy 2 no longer has.
                order_enforce=False,
                disable_env_checker=True,
            )
