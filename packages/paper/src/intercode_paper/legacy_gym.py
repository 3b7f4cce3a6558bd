"""An adapter for legacy ``gym`` 0.26, whose development ended in 2022.

``import gym`` calls `register` through an entry point of the group ``gym.envs``. The order of the
imports of gym and InterCode does not matter. ``gym.make`` then returns an environment of
`intercode.make` in a wrapper whose `step` returns four values.
"""

from __future__ import annotations

from typing import Any

import gymnasium

from intercode.project import create
from intercode.registry import ENVS


class LegacyGymEnv(gymnasium.Env[str, str]):
    """A wrapper of an environment. The wrapper's `step` returns observation, reward, done and info.

    Args:
        env: The environment to wrap.
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
        """Start an episode; return the observation and `info`, as in gym 0.26."""
        return self.env.reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:  # type: ignore[override]
        """Execute an action, and return observation, reward, done and `info`.

        At an episode's end, ``info["TimeLimit.truncated"]`` is whether the turn limit ended it.
        """
        observation, reward, terminated, truncated, info = self.env.step(action)
        limit_info = {"TimeLimit.truncated": truncated} if terminated or truncated else {}
        return observation, float(reward), terminated or truncated, {**info, **limit_info}

    def render(self) -> Any:
        """Return the episode so far as terminal text; None without a `render_mode`."""
        return self.env.render()

    def close(self) -> None:
        """End the episode and free its sandbox. Idempotent."""
        self.env.close()


def make(env: str, **options: Any) -> LegacyGymEnv:
    """Make a wrapped environment from the arguments of `intercode.make`, for ``gym.make``."""
    return LegacyGymEnv(create(env, **options))


def register() -> None:
    """Register the environments of `intercode.registry` with ``gym``."""
    from gym.envs.registration import register as add

    for env in ENVS.names(packages=False):
        if ":" not in env:
            add(
                f"intercode-{env}-v0",
                "intercode_paper.legacy_gym:make",
                kwargs={"env": env},
                # gym's own wrappers expect five values, and use names that NumPy 2 removed.
                order_enforce=False,
                disable_env_checker=True,
            )
