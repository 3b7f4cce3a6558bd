"""Several environments stepped together on threads, in one shared order of the tasks."""

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
from intercode.envs.remote import StandIn
from intercode.envs.snapshots import EpisodeSnapshot, How
from intercode.errors import ActionError, EnvironmentStateError, UsageError, VectorError
from intercode.outcomes import failure_kind
from intercode.task import Task
from intercode_sandbox.interruption import is_callers
from intercode_sandbox.ownership import OneCaller
from intercode_sandbox.units import format_count

Texts = tuple[str, ...]
Flags = NDArray[np.bool_]
Result = tuple[str, float, bool, bool, dict[str, Any]]
Batch = tuple[Texts, NDArray[np.float64], Flags, Flags, dict[str, Any]]
Seed = int | np.integer[Any]
ResultsT = TypeVar("ResultsT")


class ThreadVectorEnv(VectorEnv[Texts, Sequence[str], NDArray[Any]]):
    """Environments that wait for sandboxes rather than for Python, each on a thread of its own.

    Observations and actions are tuples of texts, one for each environment. An environment whose
    episode ended begins the next one as Gymnasium's autoreset modes have it: ``NextStep`` at the
    next step (whose action it ignores), ``SameStep`` at once (the end's observation and info are
    in ``final_obs`` and ``final_info``), ``Disabled`` by ``reset(options={"reset_mask": …})``.

    All share one order of the tasks: the order that a single environment has with the first seed.
    Each reset takes the next task; resets of one call take theirs by the environments' indices. So
    an epoch meets every task once, and the same seed and actions give the same episodes.

    `fork` puts the running episode of one into others.

    `send` and `recv` step some of the environments, so that a slow one does not hold up the others.

    Args:
        envs: The environments, with the same tasks; closed with this one.
        autoreset_mode: A value of `gymnasium.vector.AutoresetMode`.
        seed: Seed of the first `reset` without one.

    Raises:
        UsageError: One of them is not an environment of ours, or has other tasks.
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
        self._calls = OneCaller("this vector of environments")
        self._is_closed = False
        self._seed = seed
        self._order: Iterator[Task] | None = None
        self._futures: dict[int, Future[Result]] = {}
        """Steps and resets that were begun and not yet received, by the environments' indices."""
        self._unread_ids: set[int] = set()
        """Indices of steps and resets whose wait an exception of the caller has interrupted."""
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
            seed: The first one's, counted on for the others; or a seed for each. The order of the
                tasks starts again, by the first of them.
            options: For each environment; a list, tuple or array has one value for each, in which
                None leaves the choice to the order. ``reset_mask`` (an array of truth values)
                chooses those to reset, the others stay as they are.

        Raises:
            UsageError, TaskNotFoundError: An option cannot be; no episode was begun.
            EnvironmentStateError: Results of `send` have not been received. Those whose wait was
                interrupted are given up.
            VectorError: Environments failed, after all have ended their reset.
        """
        with self._calls, self._interruptible():
            seeds = self._seeds(self._seed if seed is None else seed)
            options = choices(options)
            ids = self._masked_ids(options.pop("reset_mask", np.ones(self.num_envs)))
            self._give_up(self._unread_ids.intersection(ids))
            self._refuse_running(ids)
            shares = self._shares(options)
            selected_tasks = {
                index: self._base_envs[index].select_task(shares[index]) for index in ids
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
        how: How = "auto",
        lossy: bool = False,
    ) -> tuple[Texts, dict[str, Any]]:
        """Fork the running episode of one environment into others, in place of theirs.

        A group of attempts at one task then has the first turns in common. The order of the tasks
        is left alone: whose episode ends begins the next one as always.

        Args:
            index: The environment that has the episode; there it goes on.
            into: The environments that get a fork each; None: all others.
            how: See `InterCodeEnv.snapshot`.
            lossy: See `InterCodeEnv.snapshot`.

        Returns:
            As `reset`: for the forks what the episode's last step has returned; the observations of
            other environments are their last ones.

        Raises:
            UsageError: There is no such environment, or one is named twice.
            EnvironmentStateError: Results of `send` have not been received from one of them.
            ForkError, SandboxError: The episode cannot be forked; no environment was touched.
            VectorError: Environments failed to end their episodes.
        """
        ids = [n for n in range(self.num_envs) if n != index] if into is None else list(into)
        self._refuse_unknown([index, *ids])
        with self._calls, self._interruptible():
            self._refuse_running([index, *ids])
            with self._base_envs[index].snapshot(how, lossy) as snapshot:
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
        """Take an action in every environment, and wait for all of them.

        Raises:
            ActionError, EnvironmentStateError: As `send` does; no environment has stepped.
            VectorError: Environments failed, after all have ended their step. Its `results` are
                what this method would have returned.

        After an exception of the caller's own, such as Ctrl-C, `recv` returns the results that were
        not awaited, and `reset` gives them up.
        """
        with self._calls, self._interruptible(range(self.num_envs)):
            self._send(actions, range(self.num_envs))
            return _raise_errors(self._gather(range(self.num_envs)))

    def send(self, actions: Sequence[str], env_ids: Iterable[int] | None = None) -> None:
        """Begin a step in some environments, and return at once; `recv` returns the results.

        An environment whose episode has ended begins the next one, and ignores its action; the
        tasks are given out in the order of `env_ids`.

        Args:
            actions: One for each of those environments.
            env_ids: Their indices; None: all.

        Raises:
            ActionError: The actions are not as many texts; no environment has stepped.
            UsageError: There is no such environment, or one is named twice.
            EnvironmentStateError: An environment has not been received yet, has had no `reset`, or
                under ``Disabled`` has ended.
        """
        ids = range(self.num_envs) if env_ids is None else [int(index) for index in env_ids]
        self._refuse_unknown(ids)
        with self._calls, self._interruptible(ids):
            self._send(actions, ids)

    def recv(self, at_least: int = 1) -> Batch:
        """Wait until some steps of `send` have ended, and return the results of all that have.

        Args:
            at_least: The number of results to wait for.

        Returns:
            As `step`, with one entry for each result; ``infos["env_id"]`` has the indices, sorted.

        Raises:
            UsageError: So many steps are not running.
            VectorError: Environments failed. Its `results` are what this method would have
                returned, those that failed among them.
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
        """Note the results that an exception of the caller leaves unread, or loses.

        Args:
            ids: The environments that take an action, beside those whose results are awaited.
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
        """End steps and resets, and discard their results."""
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
        """Begin resets, each with the task that is named for it, or the next one of the order."""
        for index in ids:
            assert self._order is not None  # there was a reset
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
        """Wait for environments; return their results, and the errors of those that failed."""
        results, errors = self._collect(ids)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            ended_ids = [index for index in ids if index not in errors and any(results[index][2:4])]
            self._begin(ended_ids)
            new_results, new_errors = self._collect(ended_ids)
            errors |= new_errors
            for index in ended_ids:
                observation, reward, terminal, cut, info = results[index]
                final = {"final_obs": observation, "final_info": info}
                merged_info = {**new_results[index][4], **final}
                results[index] = new_results[index][0], reward, terminal, cut, merged_info
        rewards = np.zeros(self.num_envs, dtype=np.float64)
        terminated: Flags = np.zeros(self.num_envs, dtype=np.bool_)
        truncated: Flags = np.zeros(self.num_envs, dtype=np.bool_)
        infos: dict[str, Any] = {}
        for index, (observation, reward, terminal, cut, info) in results.items():
            self._observations[index] = observation
            rewards[index], terminated[index], truncated[index] = reward, terminal, cut
            infos = self._add_info(infos, info, index)
        return (tuple(self._observations), rewards, terminated, truncated, infos), errors

    def _collect(self, ids: Sequence[int]) -> tuple[dict[int, Result], dict[int, BaseException]]:
        """Wait for all of them, before any result is taken: Ctrl-C loses none."""
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
                if self._base_envs[index].options.errors == "value":  # as the others' have it
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
        """Give each environment its own of the options."""
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
        """Each environment's attribute of that name, called if it can be."""
        self._refuse_closed()
        attributes = [env.get_wrapper_attr(name) for env in self.envs]
        return tuple(item(*args, **kwargs) if callable(item) else item for item in attributes)

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
        """Close the environments, after their running steps."""
        self._pool.shutdown()
        for env in self.envs:
            env.close()


_SEQUENCE_TYPES = (list, tuple, np.ndarray)


def _unwrap(env: gymnasium.Env[str, str]) -> Any:
    base_env = env.unwrapped
    if not isinstance(base_env, (EpisodeEnv, StandIn)):
        raise UsageError(f"a vector takes InterCode's environments, not {type(base_env).__name__}")
    return base_env


def _raise_errors(results: tuple[ResultsT, dict[int, BaseException]]) -> ResultsT:
    """Return a batch, or the first observations of episodes; or raise what failed in them."""
    batch, errors = results
    if errors:
        raise VectorError(errors, batch) from next(iter(errors.values()))
    return batch


def _select_infos(infos: Mapping[str, Any], ids: list[int]) -> dict[str, Any]:
    """Keep of each array in infos the entries of some environments."""
    return {
        key: _select_infos(value, ids) if isinstance(value, dict) else value[ids]
        for key, value in infos.items()
    }
