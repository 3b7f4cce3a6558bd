"""Rollouts for ``GRPOTrainer(rollout_func=…)``, in a vector of environments.

All attempts of a batch take their turns together: one model call for all running attempts, then one
parallel step of their environments. A reply's block of code is its action, like for the agent
``try-again``, so any chat template works.

A group may share its first turns: the first attempt plays them, and the others are forks of its
episode. Shared turns are in the prompt of all attempts, and therefore outside the loss.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from intercode.agents import transcripts
from intercode.envs.vector import ThreadVectorEnv
from intercode.errors import UsageError
from intercode.project import create, create_vec
from intercode_integrations.trl.attempt_log import AttemptLog
from intercode_integrations.trl.batch import Batch, Rollout
from intercode_integrations.trl.environments import warn_of_loss
from intercode_integrations.trl.rows import as_dataset, dialogues

if TYPE_CHECKING:
    import datasets


def env_reward(**row: Any) -> list[float | None]:
    """Return the environments' rewards, for ``reward_funcs``; None without a reward."""
    return [None if math.isnan(reward) else reward for reward in row["env_reward"]]


class Rollouts:
    """A rollout function that plays the attempts of each batch::

        rollouts = Rollouts("bash", max_turns=8, shared_turns=1)
        GRPOTrainer(model, [env_reward], train_dataset=rollouts.dataset(), rollout_func=rollouts)
        …
        rollouts.close()

    Args:
        env: As in `intercode.make_vec`.
        shared_turns: The number of first turns that the attempts of a group share.
        record: A folder for a run record of all attempts: ``intercode export --to parquet
            --tokens`` returns the tokens of each, as the trainer received them.
        **options: As in `intercode.make_vec`, except ``errors`` and ``autoreset_mode``.

    Raises:
        UsageError: The environment does not exist, or no turn is left after the shared ones.
    """

    def __init__(
        self,
        env: str | Path,
        *,
        shared_turns: int = 0,
        record: str | Path | None = None,
        **options: Any,
    ) -> None:
        options["errors"] = "value"
        self._arguments = env, options
        self._template = cast("Any", create(env, **options))  # used only for its facts
        if not 0 <= shared_turns < self._template.max_turns:
            raise UsageError(
                f"shared_turns must be at least 0 and below max_turns, {self._template.max_turns}, "
                f"not {shared_turns}"
            )
        self._shared_turns = shared_turns
        self._log = None if record is None else AttemptLog(Path(record), self._template)
        self._envs: ThreadVectorEnv | None = None
        self._finalizer: weakref.finalize[[], Rollouts] | None = None

    def rows(self) -> list[dict[str, Any]]:
        """Return the tasks as rows. The last message of a prompt names its task."""
        return [
            {"prompt": [system, {**user, "task_id": task.task_id}]}
            for task, (system, user) in dialogues(self._template, transcripts.chat)
        ]

    def dataset(self) -> datasets.Dataset:
        """Make a dataset of the tasks, for ``train_dataset``."""
        return as_dataset(self.rows())

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any] | None]:
        """Play an attempt for each prompt; adjacent prompts with equal tasks form a group.

        Args:
            prompts: Lists of messages, from `dataset`; the last message of each names its task.
            trainer: TRL's trainer, which generates the replies.

        Returns:
            One entry per attempt in each list: ``prompt_ids`` and ``completion_ids`` (tokens),
                ``logprobs`` (one per token of the completion; the whole value is None if the
                trainer returns none), ``env_mask`` (1 for tokens of the model, 0 for the
                environment's) and ``env_reward`` (NaN without a reward).

        Raises:
            UsageError: A prompt names no task.
        """
        tasks = [prompt[-1].get("task_id") for prompt in prompts]
        if None in tasks:
            raise UsageError("a prompt does not name its task: train_dataset=rollouts.dataset()")
        prompt_ids, *_ = trainer._tokenize_prompts(prompts)
        attempts = [
            Rollout(attempt_number, task, list(prompt))
            for attempt_number, (task, prompt) in enumerate(zip(tasks, prompt_ids, strict=True))
        ]
        envs = self._vector(len(attempts))
        try:
            Batch(envs, attempts, trainer).play(self._shared_turns)
            for attempt in attempts:
                if math.isnan(attempt.reward):
                    warn_of_loss(cast("Any", envs.envs[attempt.number].unwrapped).episode)
            if self._log is not None:
                self._log.add(envs, attempts)
        finally:
            for env in envs.envs:  # the next batch may be far away
                env.close()
        logprobs = [rollout.logprobs for rollout in attempts]
        return {
            "prompt_ids": [rollout.prompt for rollout in attempts],
            "completion_ids": [rollout.completion for rollout in attempts],
            "logprobs": None if None in logprobs else logprobs,
            "env_mask": [rollout.mask for rollout in attempts],
            "env_reward": [rollout.reward for rollout in attempts],
        }

    def close(self) -> None:
        """Close the environments and the record. Idempotent; also done at the process's end."""
        if self._log is not None:
            self._log.close()
        self._close_envs()

    def _close_envs(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._envs = None

    def _vector(self, size: int) -> ThreadVectorEnv:
        if self._envs is None or self._envs.num_envs < size:
            self._close_envs()
            env, options = self._arguments
            self._envs = create_vec(env, size, autoreset_mode="Disabled", **options)
            self._finalizer = weakref.finalize(self, self._envs.close)
        return self._envs
