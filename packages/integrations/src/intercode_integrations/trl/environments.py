"""Environments for ``GRPOTrainer(environment_factory=…)``.

TRL takes every public method of an environment's class for a tool, but for `reset` and
`get_reward`. So a class is made of the environment's own tools. TRL keeps the objects for later
batches and never closes one: each gives its sandbox back when it is scored, and the rest when it is
dropped, or at the end of the process.
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
from intercode.envs.tools import Function, Tools
from intercode.episode import Episode
from intercode.errors import UsageError
from intercode.project import create, share_gold
from intercode_integrations.trl.rows import as_dataset, dialogues
from intercode_integrations.trl.tokens import break_tokens

if TYPE_CHECKING:
    import datasets

log = logging.getLogger(__name__)


def environments(env: str | Path, *, tokenizer: Any = None, **options: Any) -> Environments:
    """Make what TRL calls a factory of environments.

    Args:
        env: As in `intercode.make`.
        tokenizer: The model's, whose control tokens are broken in what the tools return.
        **options: As in `intercode.make`, but ``errors``: failures are values.
    """
    return Environments(env, tokenizer=tokenizer, **options)


class Environments:
    """Makes the environments of a training run, each for one rollout at a time::

        bash = environments("bash", max_turns=8)
        GRPOTrainer(model, train_dataset=bash.dataset(), environment_factory=bash)

    It can be pickled.

    Args:
        env: As in `intercode.make`.
        tokenizer: The model's. TRL makes tokens of what the tools return, control tokens
            included; a space of no width breaks these. None: those of the form ``<|…|>``.
        **options: As in `intercode.make`, but ``errors``: failures are values.
    """

    def __init__(self, env: str | Path, *, tokenizer: Any = None, **options: Any) -> None:
        self._arguments = env, options
        self._tokenizer = tokenizer
        self._environments: weakref.WeakSet[_Environment] = weakref.WeakSet()

    def __reduce__(self) -> tuple[Callable[[], Environments], tuple[()]]:
        env, options = self._arguments
        return partial(Environments, env, tokenizer=self._tokenizer, **options), ()

    def __call__(self) -> _Environment:
        """Make an environment. Nothing is started for it before its `reset`."""
        environment = self._kind(self._create(), self._tokenizer)
        self._environments.add(environment)
        return environment

    def rows(self) -> list[dict[str, Any]]:
        """List the tasks as rows; TRL adds the text of `reset` to the last message of a prompt."""
        task_dialogues = dialogues(self._template, transcripts.tools)
        return [
            {"prompt": [system, {**user, "content": ""}], "task_id": task.task_id}
            for task, (system, user) in task_dialogues
        ]

    def dataset(self) -> datasets.Dataset:
        """Make a dataset of the tasks, for ``train_dataset``."""
        return as_dataset(self.rows())

    def close(self) -> None:
        """Close all environments that it has made. Idempotent."""
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
        """An environment that is only looked at."""
        return self._create()

    @cached_property
    def _kind(self) -> type[_Environment]:
        name = str(self._template.name).capitalize()  # the name of the reward in TRL's logs
        return type(
            name,
            (_Environment,),
            {function.__name__: _method(function) for function in Tools(self._template)},
        )


class _Environment:
    """An environment as TRL wants it; subclasses have the tools."""

    def __init__(self, env: Any, tokenizer: Any = None) -> None:
        self._env = env
        self._tokenizer = tokenizer
        self._tools = Tools(env)
        self._functions = {function.__name__: function for function in self._tools}
        self._close = weakref.finalize(self, env.close)

    def reset(self, task_id: str | None = None, index: int | None = None, **row: Any) -> str:
        """Begin an episode; return the task's text.

        Raises:
            UsageError: The row names no task.
            SandboxUnavailableError: This machine permits no sandbox. It ends the training.
        """
        if task_id is None and index is None:
            raise UsageError(
                "a row has neither 'task_id' nor 'index', so the episodes of a group would have "
                "different tasks: train_dataset=environments.dataset()"
            )
        self._env.reset(task_id=task_id, index=index if task_id is None else None)
        return break_tokens(str(self._env.messages("tools")[-1]["content"]), self._tokenizer)

    def get_reward(self) -> float | None:
        """End the episode, score it, and give its sandbox back.

        Returns:
            The reward; None if there is none, as the sandbox was lost or the task is at fault.
        """
        if not self._tools.done:
            self._env.step("submit")
        self._env.close()
        if (reward := self._tools.reward) is None:
            warn_of_loss(self._env.unwrapped.episode)
        return reward


def warn_of_loss(episode: Episode) -> None:
    """Log the reason why an attempt has no reward, of which TRL knows nothing."""
    log.warning("task %s: an attempt has no reward: %s", episode.task_id, episode.error)


def _method(function: Function) -> Callable[..., str]:
    """Make a method of a tool that is looked up by name in each object."""
    name = function.__name__

    @wraps(function)
    def method(self: _Environment, *args: Any, **kwargs: Any) -> str:
        return break_tokens(self._functions[name](*args, **kwargs), self._tokenizer)

    signature = inspect.signature(function)
    self_parameter = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[self_parameter, *signature.parameters.values()]
    )
    return method
