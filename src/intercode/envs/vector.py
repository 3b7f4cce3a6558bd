"""Several environments stepped together on threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

Texts = tuple[str, ...]
Flags = NDArray[np.bool_]
_T = TypeVar("_T")


class ThreadVectorEnv(VectorEnv[Texts, Sequence[str], NDArray[Any]]):
    """Environments that wait for sandboxes rather than for Python, each on a thread of its own.

    Observations and actions are tuples of texts, one for each environment. An environment whose
    episode ended begins the next one as Gymnasium's autoreset modes have it: ``NextStep`` at the
    next step (whose action it ignores), ``SameStep`` at once (the end's observation and info are
    in ``final_obs`` and ``final_info``), ``Disabled`` by ``reset(options={"reset_mask": …})``.

    Args:
        envs: The environments; closed with this one.
        autoreset_mode: A value of `gymnasium.vector.AutoresetMode`.
    """

    def __init__(
        self,
        envs: Sequence[gymnasium.Env[str, str]],
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    ) -> None:
        self.envs = list(envs)
        self.num_envs = len(self.envs)
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {**self.envs[0].metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = self.envs[0].render_mode
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._pool = ThreadPoolExecutor(self.num_envs, thread_name_prefix="intercode-env")
        self._observations = [""] * self.num_envs
        self._ended: Flags = np.zeros(self.num_envs, dtype=np.bool_)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Texts, dict[str, Any]]:
        """Begin an episode in every environment.

        Args:
            seed: The first one's, counted on for the others; or a seed for each.
            options: For each environment; ``reset_mask`` (an array of truth values) chooses
                those to reset, the others stay as they are.
        """
        seeds = (
            [None if seed is None else seed + index for index in range(self.num_envs)]
            if seed is None or isinstance(seed, int)
            else list(seed)
        )
        if len(seeds) != self.num_envs:
            raise ValueError(f"{len(seeds)} seeds were given for {self.num_envs} environments")
        options = dict(options or {})
        mask = np.asarray(options.pop("reset_mask", np.ones(self.num_envs)), dtype=np.bool_)
        if mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(f"reset_mask must choose among {self.num_envs} environments: {mask}")

        def reset(index: int) -> tuple[str, dict[str, Any]]:
            return self.envs[index].reset(seed=seeds[index], options=options or None)

        infos: dict[str, Any] = {}
        chosen = [int(index) for index in np.flatnonzero(mask)]
        for index, (observation, info) in zip(chosen, self._each(reset, chosen), strict=True):
            self._observations[index] = observation
            self._ended[index] = False
            infos = self._add_info(infos, info, index)
        return tuple(self._observations), infos

    def step(
        self, actions: Sequence[str]
    ) -> tuple[Texts, NDArray[np.float64], Flags, Flags, dict[str, Any]]:
        """Take an action in every environment.

        Raises:
            ValueError: There are more or fewer actions than environments, or under ``Disabled``
                an environment's episode has ended.
        """
        if len(actions) != self.num_envs:
            raise ValueError(f"{len(actions)} actions were given for {self.num_envs} environments")
        if self.autoreset_mode is AutoresetMode.DISABLED and self._ended.any():
            raise ValueError(f"environments that have ended must be reset first: {self._ended}")
        rewards = np.zeros(self.num_envs, dtype=np.float64)
        terminated: Flags = np.zeros(self.num_envs, dtype=np.bool_)
        truncated: Flags = np.zeros(self.num_envs, dtype=np.bool_)
        infos: dict[str, Any] = {}
        results = self._each(lambda index: self._step(index, actions[index]), range(self.num_envs))
        for index, (observation, reward, terminal, cut, info) in enumerate(results):
            self._observations[index] = observation
            rewards[index], terminated[index], truncated[index] = reward, terminal, cut
            infos = self._add_info(infos, info, index)
        self._ended = terminated | truncated
        return tuple(self._observations), rewards, terminated, truncated, infos

    def _step(self, index: int, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        env = self.envs[index]
        if self.autoreset_mode is AutoresetMode.NEXT_STEP and self._ended[index]:
            observation, info = env.reset()
            return observation, 0.0, False, False, info
        observation, reward, terminated, truncated, info = env.step(action)
        if self.autoreset_mode is AutoresetMode.SAME_STEP and (terminated or truncated):
            final = {"final_obs": observation, "final_info": info}
            observation, info = env.reset()
            info = {**info, **final}
        return observation, float(reward), terminated, truncated, info

    def _each(self, work: Callable[[int], _T], indices: Sequence[int]) -> list[_T]:
        """Do it for all of them at once; all have ended when the first error is raised."""
        futures = [self._pool.submit(work, index) for index in indices]
        errors = [future.exception() for future in futures]
        if failed := [error for error in errors if error is not None]:
            raise failed[0]
        return [future.result() for future in futures]

    def render(self) -> tuple[Any, ...]:
        """Return each environment's rendering."""
        return tuple(env.render() for env in self.envs)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Each environment's attribute of that name, called if it can be."""
        found = [env.get_wrapper_attr(name) for env in self.envs]
        return tuple(item(*args, **kwargs) if callable(item) else item for item in found)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments."""
        self._pool.shutdown()
        for env in self.envs:
            env.close()
