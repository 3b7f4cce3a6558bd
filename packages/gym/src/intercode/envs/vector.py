"""Vector environments: several environments on threads, with one shared order of the tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from intercode.envs.episode_state import EpisodeEnv, choices
from intercode.envs.remote import ProxyEnv
from intercode.envs.snapshots import EpisodeSnapshot, ForkMode
from intercode.errors import ActionError, EnvironmentStateError, UsageError, VectorError
from intercode.outcomes import failure_kind
from intercode.task import Task
from intercode_sandbox.interruption import is_callers
from intercode_sandbox.ownership import CallGuard
from intercode_sandbox.units import format_count

Texts = tuple[str, ...]
Flags = NDArray[np.bool_]
Result = tuple[str, float, bool, bool, dict[str, Any]]
Batch = tuple[Texts, NDArray[np.float64], Flags, Flags, dict[str, Any]]
Seed = int | np.integer[Any]
ResultsT = TypeVar("ResultsT")


class ThreadVectorEnv(VectorEnv[Texts, Sequence[str], NDArray[Any]]):
    """A vector environment with one thread for each environment.

    Threads suffice because environments mostly wait for sandboxes, not for Python.

    Observations and actions are tuples of texts, one for each environment. After the end of an
    episode, Gymnasium's autoreset mode decides when the next one begins:

    - ``NextStep``: at the environment's next step, which ignores its action.
    - ``SameStep``: at once; ``final_obs`` and ``final_info`` hold the last observation and info.
    - ``Disabled``: by ``reset(options={"reset_mask": …})``.

    All environments share one order of the tasks: the order of a single environment with the first
    seed. Each reset takes the next task. If one call resets several environments, these take the
    next tasks in the order of the environments' indices. An epoch therefore contains every task
    once, and equal seeds and actions lead to equal episodes.

    `fork` copies the running episode of one environment into others.

    `send` and `recv` step a subset of the environments, so a slow one does not delay the others.

    Args:
        envs: The environments, with equal tasks; `close` closes them.
        autoreset_mode: A value of `gymnasium.vector.AutoresetMode`.
        seed: The seed of the first `reset` without a seed.

    Raises:
        UsageError: An environment is not InterCode's, or has other tasks.
    """

    def __init__(
        self,
        envs: Sequence[gymnasium.Env[str, str]],
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        seed: int | None = None,
    ) -> None:
        self.envs = list(envs)
        self.num_envs = len(self.envs)
        self._pool = ThreadPoolExecutor(self.num_envs, thread_name_prefix="intercode-env")
        self._base_envs = [_unwrap(env) for env in self.envs]
        self._tasks = self._base_envs[0].dataset
        ids = [task.task_id for task in self._tasks]
        for index, env in enumerate(self._base_envs):
            tasks = env.dataset
            if tasks is not self._tasks and [task.task_id for task in tasks] != ids:
                raise UsageError(f"environment {index} has other tasks than environment 0")
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {**self.envs[0].metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = self.envs[0].render_mode
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._calls = CallGuard("this vector of environments")
        self._is_closed = False
        self._seed = seed
        self._order: Iterator[Task] | None = None
        self._futures: dict[int, Future[Result]] = {}
        """Environment's index → the environment's pending step or reset. An entry remains until a
        call receives the result."""
        self._unread_ids: set[int] = set()
        """The indices of environments with unread results, after an exception of the caller, such
        as Ctrl-C, interrupted the call that waited for these results."""
        self._observations = [""] * self.num_envs
        self._begun_mask: Flags = np.zeros(self.num_envs, dtype=np.bool_)
        self._ended_mask: Flags = np.zeros(self.num_envs, dtype=np.bool_)

    def reset(
        self,
        *,
        seed: Seed | Sequence[Seed | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Texts, dict[str, Any]]:
        """Begin an episode in every environment.

        Args:
            seed: A seed, to which each environment's index is added, or one seed per environment.
                The first seed restarts the order of the tasks.
            options: The options of each environment's `reset`. A list, tuple or array holds one
                value per environment; None takes the next task of the order. ``reset_mask`` (a
                boolean array of shape ``(num_envs,)``) selects the environments to reset. The
                others remain unchanged.

        Returns:
            A tuple of observations, one per environment, and the batched infos.

        Raises:
            UsageError, TaskError, TaskNotFoundError: An option is invalid, or selects a task that
                does not exist or cannot run here; no episode was started.
            EnvironmentStateError: Results of `send` have not been received. Results whose wait was
                interrupted are discarded instead.
            VectorError: Environments failed. The error is raised after the end of all resets.
        """
        with self._calls, self._interruptible():
            seeds = self._seeds(self._seed if seed is None else seed)
            options = choices(options)
            ids = self._masked_ids(options.pop("reset_mask", np.ones(self.num_envs)))
            self._give_up(self._unread_ids.intersection(ids))
            self._refuse_running(ids)
            options_by_env = self._shares(options)
            selected_tasks = {
                index: self._base_envs[index].select_task(options_by_env[index]) for index in ids
            }
            self._seed = None
            if (
                first_seed := next((env_seed for env_seed in seeds if env_seed is not None), None)
            ) is not None:
                super().reset(seed=first_seed)
                self._order = None
            if self._order is None:
                self._order = self._tasks.iterate_shuffled(self.np_random)
            self._begin(ids, selected_tasks, seeds)
            (observations, *_, infos), errors = self._gather(ids)
        return _raise_errors(((observations, infos), errors))

    def fork(
        self,
        index: int,
        into: Iterable[int] | None = None,
        mode: ForkMode = "auto",
        lossy: bool = False,
    ) -> tuple[Texts, dict[str, Any]]:
        """Fork the running episode of one environment into others, replacing their episodes.

        A group of attempts at one task then shares its first turns. The order of the tasks does
        not advance; each environment takes the next task after its fork ends.

        Args:
            index: The environment with the episode, which continues there.
            into: The environments that receive one fork each; None: all others.
            mode: See `InterCodeEnv.snapshot`.
            lossy: See `InterCodeEnv.snapshot`.

        Returns:
            Observations and infos, as from `reset`. A fork's observation is the last one of the
            episode; other environments repeat their own last observations.

        Raises:
            UsageError: An environment does not exist, or is named twice.
            EnvironmentStateError: Results of `send` have not been received from an environment
                involved.
            ForkError, SandboxError: The episode cannot be forked; all environments are unchanged.
            VectorError: Environments failed to end their episodes.
        """
        ids = [n for n in range(self.num_envs) if n != index] if into is None else list(into)
        self._refuse_unknown([index, *ids])
        with self._calls, self._interruptible():
            self._refuse_running([index, *ids])
            with self._base_envs[index].snapshot(mode, lossy) as snapshot:
                for target_index in ids:
                    self._futures[target_index] = self._pool.submit(
                        self._restore, target_index, snapshot.reserve_fork()
                    )
                (observations, *_, infos), errors = self._gather(ids)
        return _raise_errors(((observations, infos), errors))

    def _restore(self, index: int, snapshot: EpisodeSnapshot) -> Result:
        observation, info = self._base_envs[index].restore(snapshot)
        return observation, 0.0, False, False, info

    def step(self, actions: Sequence[str]) -> Batch:
        """Execute an action in every environment, and wait for all of them.

        After an exception of the caller, such as Ctrl-C, `recv` still returns the pending results,
        and `reset` discards them.

        Args:
            actions: One text per environment.

        Returns:
            A tuple of observations, float64 rewards, boolean arrays of terminations and
            truncations (each of shape ``(num_envs,)``), and the batched infos.

        Raises:
            ActionError, EnvironmentStateError: As for `send`; no environment has stepped.
            VectorError: Environments failed. The error is raised after the end of all steps, and
                the error's `results` hold this method's return value.
        """
        with self._calls, self._interruptible(range(self.num_envs)):
            self._send(actions, range(self.num_envs))
            return _raise_errors(self._gather(range(self.num_envs)))

    def send(self, actions: Sequence[str], env_ids: Iterable[int] | None = None) -> None:
        """Begin a step in some environments without waiting; `recv` returns the results.

        An environment whose episode has ended ignores its action and begins the next episode. Such
        environments take their tasks in the order of `env_ids`.

        Args:
            actions: One text for each index in `env_ids`.
            env_ids: The environments' indices; None: all.

        Raises:
            ActionError: An action is not a text, or the number of actions is wrong; no environment
                has stepped.
            UsageError: An environment does not exist, or is named twice.
            EnvironmentStateError: An environment has unreceived results, has had no `reset`, or
                has ended under ``Disabled``.
        """
        ids = range(self.num_envs) if env_ids is None else [int(index) for index in env_ids]
        self._refuse_unknown(ids)
        with self._calls, self._interruptible(ids):
            self._send(actions, ids)

    def recv(self, at_least: int = 1) -> Batch:
        """Wait for some steps of `send`, and return the results of all that have ended.

        Args:
            at_least: The minimum number of results, from 1 to the number of pending steps.

        Returns:
            A batch as from `step`, with one entry per result; ``infos["env_id"]`` holds the
            environments' indices in ascending order.

        Raises:
            UsageError: `at_least` is below 1 or above the number of pending steps.
            VectorError: Environments failed. The error's `results` hold this method's return value,
                including the failed environments.
        """
        with self._calls, self._interruptible():
            if not 1 <= at_least <= len(self._futures):
                raise UsageError(
                    f"{at_least} results were requested, but only {len(self._futures)} steps are "
                    "running: send more actions first"
                )
            pending_futures = set(self._futures.values())
            while len(self._futures) - len(pending_futures) < at_least:
                pending_futures = wait(pending_futures, return_when=FIRST_COMPLETED)[1]
            ids = sorted(
                index for index, step in self._futures.items() if step not in pending_futures
            )
            (texts, rewards, terminated, truncated, infos), errors = self._gather(ids)
            batch = (
                tuple(texts[index] for index in ids),
                rewards[ids],
                terminated[ids],
                truncated[ids],
                {**_select_infos(infos, ids), "env_id": np.array(ids)},
            )
            return _raise_errors((batch, errors))

    @contextmanager
    def _interruptible(self, ids: Iterable[int] = ()) -> Iterator[None]:
        """Handle an exception of the caller, such as Ctrl-C, that interrupts the block.

        Results that a later call can still receive are recorded as unread. If the result of an
        action is lost, the environment's episode ends as an error.

        Args:
            ids: The environments that execute an action, in addition to those with pending results.
        """
        self._refuse_closed()
        awaited_ids = {*ids, *self._futures}
        try:
            yield
        except BaseException as error:
            if is_callers(error):
                self._unread_ids = set(self._futures)
                for index in awaited_ids - self._unread_ids:
                    self._base_envs[index].interrupt(error)
            raise

    def _give_up(self, ids: Iterable[int]) -> None:
        """Abort pending steps and resets, and discard their results."""
        for index in ids:
            getattr(self._base_envs[index], "abort", bool)()
        for index in ids:
            self._futures[index].exception()
            del self._futures[index]
            self._unread_ids.discard(index)

    def _send(self, actions: Sequence[str], ids: Sequence[int]) -> None:
        self._refuse_running(ids)
        for index in ids:
            if not self._begun_mask[index]:
                raise EnvironmentStateError(f"environment {index} has no episode: call reset()")
        ended_ids = [index for index in ids if self._ended_mask[index]]
        if ended_ids and self.autoreset_mode is AutoresetMode.DISABLED:
            raise EnvironmentStateError(
                f"environments that have ended must be reset first: {ended_ids}"
            )
        if isinstance(actions, (str, bytes)):
            raise ActionError(f"a single text was given: give one for each of {len(ids)}")
        if len(actions) != len(ids):
            raise ActionError(f"{len(actions)} actions were given for {len(ids)} environments")
        for index, action in zip(ids, actions, strict=True):
            if not isinstance(action, str) and not self._ended_mask[index]:
                raise ActionError(
                    f"environment {index}: an action must be a text, not {type(action).__name__}"
                )
        self._begin(ended_ids)
        for index, action in zip(ids, actions, strict=True):
            if not self._ended_mask[index]:
                self._futures[index] = self._pool.submit(self._step, index, action)

    def _begin(
        self,
        ids: Sequence[int],
        selected_tasks: Mapping[int, Task | None] | None = None,
        seeds: Sequence[int | None] | None = None,
    ) -> None:
        """Begin a reset in each environment, on threads, without waiting for the end.

        Args:
            ids: The environments' indices.
            selected_tasks: The tasks by index; an environment without a task takes the next task
                of the order.
            seeds: The seeds, one per index; None: no seeds.
        """
        for index in ids:
            assert self._order is not None  # `reset` has set the order
            task = (selected_tasks or {}).get(index) or next(self._order)
            seed = seeds[index] if seeds else None
            self._futures[index] = self._pool.submit(self._reset, index, task.task_id, seed)

    def _reset(self, index: int, task_id: str, seed: int | None) -> Result:
        observation, info = self.envs[index].reset(seed=seed, options={"task_id": task_id})
        return observation, 0.0, False, False, info

    def _step(self, index: int, action: str) -> Result:
        observation, reward, terminated, truncated, info = self.envs[index].step(action)
        return observation, float(reward), terminated, truncated, info

    def _gather(self, ids: Sequence[int]) -> tuple[Batch, dict[int, BaseException]]:
        """Wait for environments, and return their results and the errors of failed ones.

        Under ``SameStep`` the environments whose episodes ended are reset, too.
        """
        results, errors = self._collect(ids)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            ended_ids = [index for index in ids if index not in errors and any(results[index][2:4])]
            self._begin(ended_ids)
            new_results, new_errors = self._collect(ended_ids)
            errors |= new_errors
            for index in ended_ids:
                observation, reward, terminal, is_truncated, info = results[index]
                final = {"final_obs": observation, "final_info": info}
                merged_info = {**new_results[index][4], **final}
                results[index] = new_results[index][0], reward, terminal, is_truncated, merged_info
        rewards = np.zeros(self.num_envs, dtype=np.float64)
        terminated: Flags = np.zeros(self.num_envs, dtype=np.bool_)
        truncated: Flags = np.zeros(self.num_envs, dtype=np.bool_)
        infos: dict[str, Any] = {}
        for index, (observation, reward, terminal, is_truncated, info) in results.items():
            self._observations[index] = observation
            rewards[index], terminated[index], truncated[index] = reward, terminal, is_truncated
            infos = self._add_info(infos, info, index)
        return (tuple(self._observations), rewards, terminated, truncated, infos), errors

    def _collect(self, ids: Sequence[int]) -> tuple[dict[int, Result], dict[int, BaseException]]:
        """Wait for all environments before reading any result, so Ctrl-C loses no result."""
        for index in ids:
            self._futures[index].exception()
        results: dict[int, Result] = {}
        errors: dict[int, BaseException] = {}
        for index in ids:
            step = self._futures.pop(index)
            self._unread_ids.discard(index)
            error = step.exception()
            if error is not None:
                errors[index] = error
                error_info: dict[str, Any] = {"error": f"{type(error).__name__}: {error}"}
                # The entry has the form of `EpisodeState.failure_info`.
                if self._base_envs[index].options.errors == "value":
                    description = {"type": type(error).__name__, "message": str(error)}
                    error_info = {"error": {"kind": "fault", **description}}
                error_info["outcome"] = failure_kind(type(error).__name__)
                results[index] = "", float("nan"), False, True, error_info
            else:
                results[index] = step.result()
            self._begun_mask[index] = True
            self._ended_mask[index] = any(results[index][2:4])
        return results, errors

    def _seeds(self, seed: Seed | Sequence[Seed | None] | None) -> list[int | None]:
        if seed is None or isinstance(seed, (int, np.integer)):
            return [None if seed is None else int(seed) + n for n in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise UsageError(f"{len(seed)} seeds were given for {self.num_envs} environments")
        return [None if env_seed is None else int(env_seed) for env_seed in seed]

    def _masked_ids(self, mask: Any) -> list[int]:
        mask = np.asarray(mask, dtype=np.bool_)
        if mask.shape != (self.num_envs,) or not mask.any():
            raise UsageError(f"reset_mask must choose among {self.num_envs} environments: {mask}")
        return [int(index) for index in np.flatnonzero(mask)]

    def _shares(self, options: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return one dictionary of options for each environment.

        A sequence holds one value per environment. Any other value applies to every environment.

        Raises:
            UsageError: A sequence's length is not the number of environments.
        """
        for name, value in options.items():
            if isinstance(value, _SEQUENCE_TYPES) and len(value) != self.num_envs:
                raise UsageError(
                    f"option {name!r} has {format_count(len(value), 'value')} for "
                    f"{self.num_envs} environments"
                )
        return [
            {name: v[index] if isinstance(v, _SEQUENCE_TYPES) else v for name, v in options.items()}
            for index in range(self.num_envs)
        ]

    def _refuse_unknown(self, ids: Sequence[int]) -> None:
        if len(set(ids)) < len(ids) or not set(ids) <= set(range(self.num_envs)):
            raise UsageError(
                f"the indices of environments must be different and below {self.num_envs}, not "
                f"{list(ids)}"
            )

    def _refuse_running(self, ids: Iterable[int]) -> None:
        if running_ids := sorted(set(ids) & set(self._futures)):
            raise EnvironmentStateError(
                f"environments {running_ids} were sent actions: call recv() first"
            )

    def render(self) -> tuple[Any, ...]:
        """Return each environment's rendering."""
        self._refuse_closed()
        return tuple(env.render() for env in self.envs)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return each environment's attribute of that name; a callable attribute is called."""
        self._refuse_closed()
        attributes = [env.get_wrapper_attr(name) for env in self.envs]
        return tuple(
            attribute(*args, **kwargs) if callable(attribute) else attribute
            for attribute in attributes
        )

    def close(self, **kwargs: Any) -> None:
        """Close the environments. Idempotent, and safe from any thread.

        A call that runs on another thread fails with an `EnvironmentStateError`.
        """
        if not self.closed and not self._calls.forked:
            self._calls.cut()
            self._is_closed = True
        super().close(**kwargs)

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise EnvironmentStateError("the vector was closed: make another one")

    def close_extras(self, **kwargs: Any) -> None:
        """Wait for the running steps, then close the environments."""
        self._pool.shutdown()
        for env in self.envs:
            env.close()


_SEQUENCE_TYPES = (list, tuple, np.ndarray)


def _unwrap(env: gymnasium.Env[str, str]) -> Any:
    base_env = env.unwrapped
    if not isinstance(base_env, (EpisodeEnv, ProxyEnv)):
        raise UsageError(f"a vector takes InterCode's environments, not {type(base_env).__name__}")
    return base_env


def _raise_errors(results: tuple[ResultsT, dict[int, BaseException]]) -> ResultsT:
    """Return the results, or raise a `VectorError` that holds the results and the errors."""
    batch, errors = results
    if errors:
        raise VectorError(errors, batch) from next(iter(errors.values()))
    return batch


def _select_infos(infos: Mapping[str, Any], ids: list[int]) -> dict[str, Any]:
    """Return infos whose arrays hold only the entries of the given environments."""
    return {
        key: _select_infos(value, ids) if isinstance(value, dict) else value[ids]
        for key, value in infos.items()
    }
