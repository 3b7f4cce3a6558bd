"""Rollouts for ``GRPOTrainer(rollout_func=…)``, in a vector of environments.

All attempts of a batch advance together. Each turn is one model call for all running attempts, and
then one parallel step of their environments. As for the agent ``try-again``, the action is the
block of code in the model's reply. Therefore any chat template works.

The attempts of a group may share their first turns. The first attempt then plays these turns, and
forks of its episode continue as the other attempts. The shared turns become part of every prompt,
and are therefore excluded from the loss.
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
from intercode_integrations.trl.dataset_rows import as_dataset, dialogues
from intercode_integrations.trl.environments import warn_of_loss
from intercode_integrations.trl.rollout_batch import Rollout, RolloutBatch

if TYPE_CHECKING:
    import datasets


def env_reward(**row: Any) -> list[float | None]:
    """Return the rewards of a batch, for the trainer's argument ``reward_funcs``.

    Args:
        **row: The columns of the batch, which contain the list ``env_reward`` of a rollout.

    Returns:
        Each attempt's reward; None for an attempt without a reward.
    """
    return [None if math.isnan(reward) else reward for reward in row["env_reward"]]


class Rollouts:
    """A function for the trainer's argument ``rollout_func``, which plays a batch's attempts::

        rollouts = Rollouts("bash", max_turns=8, shared_turns=1)
        GRPOTrainer(model, [env_reward], train_dataset=rollouts.dataset(), rollout_func=rollouts)
        …
        rollouts.close()

    Args:
        env: As for `intercode.make_vec`.
        shared_turns: The number of first turns that the attempts of a group share.
        record: A new run folder in which all attempts are recorded. ``intercode export --to parquet
            --tokens`` then returns the tokens of each attempt, as the trainer received them.
        **options: As for `intercode.make_vec`, except ``errors`` and ``autoreset_mode``.

    Raises:
        UsageError: The environment does not exist, `shared_turns` covers all turns, or the folder
            `record` already holds a run.
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
        """Return the tasks as rows of a dataset. Each prompt's last message has the task's id."""
        return [
            {"prompt": [system_message, {**user_message, "task_id": task.task_id}]}
            for task, (system_message, user_message) in dialogues(self._template, transcripts.chat)
        ]

    def dataset(self) -> datasets.Dataset:
        """Make a dataset of the tasks, for the trainer's argument ``train_dataset``."""
        return as_dataset(self.rows())

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any] | None]:
        """Play one attempt for each prompt. Adjacent prompts with the same task form a group.

        Args:
            prompts: Lists of messages, from `dataset`; the last message of each names its task.
            trainer: TRL's trainer, which generates the replies.

        Returns:
            Lists with one entry per attempt. ``prompt_ids`` and ``completion_ids`` are tokens.
                ``logprobs`` has a number for each completion token; the whole value is None if the
                trainer returns none. ``env_mask`` is 1 for the model's tokens and 0 for the
                environment's. ``env_reward`` is NaN for an attempt without a reward.

        Raises:
            UsageError: A prompt does not contain its task's id.
        """
        task_ids = [prompt[-1].get("task_id") for prompt in prompts]
        if None in task_ids:
            raise UsageError("a prompt does not name its task: train_dataset=rollouts.dataset()")
        prompt_ids, *_ = trainer._tokenize_prompts(prompts)
        attempts = [
            Rollout(attempt_number, task_id, list(prompt))
            for attempt_number, (task_id, prompt) in enumerate(
                zip(task_ids, prompt_ids, strict=True)
            )
        ]
        envs = self._vector(len(attempts))
        try:
            RolloutBatch(envs, attempts, trainer).play(self._shared_turns)
            for attempt in attempts:
                if math.isnan(attempt.reward):
                    warn_of_loss(cast("Any", envs.envs[attempt.number].unwrapped).episode)
            if self._log is not None:
                self._log.add(envs, attempts)
        finally:
            for env in envs.envs:  # frees sandboxes: the next batch may start much later
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
        """Close the environments and the record. Idempotent.

        The end of the process closes the environments, too.
        """
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
