"""Environments for ``GRPOTrainer(environment_factory=…)``.

TRL exposes every public method of an environment's class as a tool, except `reset` and
`get_reward`. This module therefore builds a class whose methods are the tools of the environment.
TRL reuses the objects in later batches, and never closes them. Each object closes its sandbox when
its episode is scored, and everything else at garbage collection or at the end of the process.
"""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Callable
from functools import cached_property, partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intercode.agents import transcripts
from intercode.envs.tools import EnvTools, Function
from intercode.episode import Episode
from intercode.errors import UsageError
from intercode.project import create, share_gold
from intercode_integrations.trl.control_tokens import break_tokens
from intercode_integrations.trl.dataset_rows import as_dataset, dialogues

if TYPE_CHECKING:
    import datasets

log = logging.getLogger(__name__)


def environments(env: str | Path, *, tokenizer: Any = None, **options: Any) -> Environments:
    """Make a factory for the argument ``environment_factory`` of ``GRPOTrainer``.

    Args:
        env: As for `intercode.make`.
        tokenizer: The model's tokenizer. The texts of its control tokens are altered in the tools'
            results.
        **options: As for `intercode.make`, except ``errors``, which is always ``"value"``.
    """
    return Environments(env, tokenizer=tokenizer, **options)


class Environments:
    """A factory of environments for a training run, each for one rollout at a time::

        bash = environments("bash", max_turns=8)
        GRPOTrainer(model, train_dataset=bash.dataset(), environment_factory=bash)

    The factory can be pickled.

    Args:
        env: As for `intercode.make`.
        tokenizer: The model's tokenizer. TRL would encode the text of a control token in a tool's
            result as that token. Therefore a zero-width space is inserted into such texts. None:
            texts of the form ``<|…|>`` count as control tokens.
        **options: As for `intercode.make`, except ``errors``, which is always ``"value"``.
    """

    def __init__(self, env: str | Path, *, tokenizer: Any = None, **options: Any) -> None:
        self._arguments = env, options
        self._tokenizer = tokenizer
        self._environments: weakref.WeakSet[_TrlEnvironment] = weakref.WeakSet()

    def __reduce__(self) -> tuple[Callable[[], Environments], tuple[()]]:
        env, options = self._arguments
        return partial(Environments, env, tokenizer=self._tokenizer, **options), ()

    def __call__(self) -> _TrlEnvironment:
        """Make an environment. The environment starts its sandbox at `reset`."""
        environment = self._environment_class(self._create(), self._tokenizer)
        self._environments.add(environment)
        return environment

    def rows(self) -> list[dict[str, Any]]:
        """Return the tasks as rows of a dataset.

        At the start of an episode, TRL appends the text that `reset` returns to the last message of
        the prompt.
        """
        task_dialogues = dialogues(self._template, transcripts.tools)
        return [
            {"prompt": [system_message, {**user_message, "content": ""}], "task_id": task.task_id}
            for task, (system_message, user_message) in task_dialogues
        ]

    def dataset(self) -> datasets.Dataset:
        """Make a dataset of the tasks, for the trainer's argument ``train_dataset``."""
        return as_dataset(self.rows())

    def close(self) -> None:
        """Close all environments that this factory has made. Idempotent."""
        for environment in list(self._environments):
            environment._close()

    @cached_property
    def _options(self) -> tuple[str | Path, dict[str, Any]]:
        env, options = self._arguments
        return share_gold(env, options)

    def _create(self) -> Any:
        env, options = self._options
        return create(env, errors="value", **options)

    @cached_property
    def _template(self) -> Any:
        """An environment that is used only for its facts, without an episode."""
        return self._create()

    @cached_property
    def _environment_class(self) -> type[_TrlEnvironment]:
        class_name = str(
            self._template.name
        ).capitalize()  # TRL's logs name the reward by the class
        return type(
            class_name,
            (_TrlEnvironment,),
            {function.__name__: _make_method(function) for function in EnvTools(self._template)},
        )


class _TrlEnvironment:
    """An environment with TRL's interface; its subclass has a method for each tool."""

    def __init__(self, env: Any, tokenizer: Any = None) -> None:
        self._env = env
        self._tokenizer = tokenizer
        self._tools = EnvTools(env)
        self._functions = {function.__name__: function for function in self._tools}
        self._close = weakref.finalize(self, env.close)

    def reset(self, task_id: str | None = None, index: int | None = None, **row: Any) -> str:
        """Start an episode, and return the text of its task.

        Args:
            task_id: The task's id, from the row of the dataset.
            index: The task's index, if the row has no id.
            **row: Other columns of the row, which are ignored.

        Raises:
            UsageError: The row has neither an id nor an index.
            SandboxUnavailableError: This machine does not permit sandboxes. This error ends the
                training.
        """
        if task_id is None and index is None:
            raise UsageError(
                "a row has neither 'task_id' nor 'index', so the episodes of a group would have "
                "different tasks: train_dataset=environments.dataset()"
            )
        self._env.reset(task_id=task_id, index=index if task_id is None else None)
        return break_tokens(str(self._env.messages("tools")[-1]["content"]), self._tokenizer)

    def get_reward(self) -> float | None:
        """End the episode, score it, and close its sandbox.

        Returns:
            The reward in [0, 1]; None if the sandbox was lost or the task is broken.
        """
        if not self._tools.done:
            self._env.step("submit")
        self._env.close()
        if (reward := self._tools.reward) is None:
            warn_of_loss(self._env.unwrapped.episode)
        return reward


def warn_of_loss(episode: Episode) -> None:
    """Log the reason why an attempt has no reward, because TRL does not receive the reason."""
    log.warning("task %s: an attempt has no reward: %s", episode.task_id, episode.error)


def _make_method(function: Function) -> Callable[..., str]:
    """Make a method that calls the tool of the same name in the object's own environment."""
    name = function.__name__

    @wraps(function)
    def method(self: _TrlEnvironment, *args: Any, **kwargs: Any) -> str:
        return break_tokens(self._functions[name](*args, **kwargs), self._tokenizer)

    signature = inspect.signature(function)
    self_parameter = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[self_parameter, *signature.parameters.values()]
    )
    return method
