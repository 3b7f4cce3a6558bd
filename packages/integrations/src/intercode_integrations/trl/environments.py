"""Environments for ``GRPOTrainer(environment_factory=…)``.

TRL exposes every public method of an environment's class as a tool, except `reset` and
`get_reward`. This module therefore builds a class with the environment's own tools. TRL keeps the
objects for later batches and never closes them. Each object closes its sandbox when it is scored,
and everything else when it is collected or the process ends.
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
    """Make a factory of environments in TRL's sense.

    Args:
        env: As in `intercode.make`.
        tokenizer: The model's tokenizer, whose control tokens are broken in the tools' results.
        **options: As in `intercode.make`, except ``errors``: failures are values.
    """
    return Environments(env, tokenizer=tokenizer, **options)


class Environments:
    """A factory of a training run's environments, each for one rollout at a time::

        bash = environments("bash", max_turns=8)
        GRPOTrainer(model, train_dataset=bash.dataset(), environment_factory=bash)

    The factory can be pickled.

    Args:
        env: As in `intercode.make`.
        tokenizer: The model's tokenizer. TRL encodes the tools' results, including control tokens;
            a zero-width space breaks these. None: tokens of the form ``<|…|>`` are broken.
        **options: As in `intercode.make`, except ``errors``: failures are values.
    """

    def __init__(self, env: str | Path, *, tokenizer: Any = None, **options: Any) -> None:
        self._arguments = env, options
        self._tokenizer = tokenizer
        self._environments: weakref.WeakSet[_Environment] = weakref.WeakSet()

    def __reduce__(self) -> tuple[Callable[[], Environments], tuple[()]]:
        env, options = self._arguments
        return partial(Environments, env, tokenizer=self._tokenizer, **options), ()

    def __call__(self) -> _Environment:
        """Make an environment. Its sandbox starts at its `reset`."""
        environment = self._environment_class(self._create(), self._tokenizer)
        self._environments.add(environment)
        return environment

    def rows(self) -> list[dict[str, Any]]:
        """Return the tasks as rows; TRL appends the text of `reset` to a prompt's last message."""
        task_dialogues = dialogues(self._template, transcripts.tools)
        return [
            {"prompt": [system, {**user, "content": ""}], "task_id": task.task_id}
            for task, (system, user) in task_dialogues
        ]

    def dataset(self) -> datasets.Dataset:
        """Make a dataset of the tasks, for ``train_dataset``."""
        return as_dataset(self.rows())

    def close(self) -> None:
        """Close all environments of this factory. Idempotent."""
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
        """Environment that is used only for its facts."""
        return self._create()

    @cached_property
    def _environment_class(self) -> type[_Environment]:
        name = str(self._template.name).capitalize()  # the reward's name in TRL's logs
        return type(
            name,
            (_Environment,),
            {function.__name__: _make_method(function) for function in Tools(self._template)},
        )


class _Environment:
    """An environment with TRL's interface; subclasses have the tools."""

    def __init__(self, env: Any, tokenizer: Any = None) -> None:
        self._env = env
        self._tokenizer = tokenizer
        self._tools = Tools(env)
        self._functions = {function.__name__: function for function in self._tools}
        self._close = weakref.finalize(self, env.close)

    def reset(self, task_id: str | None = None, index: int | None = None, **row: Any) -> str:
        """Start an episode; return the task's text.

        Raises:
            UsageError: The row names no task.
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
            The reward; None if the sandbox was lost or the task is broken.
        """
        if not self._tools.done:
            self._env.step("submit")
        self._env.close()
        if (reward := self._tools.reward) is None:
            warn_of_loss(self._env.unwrapped.episode)
        return reward


def warn_of_loss(episode: Episode) -> None:
    """Log the reason why an attempt has no reward, which TRL cannot know."""
    log.warning("task %s: an attempt has no reward: %s", episode.task_id, episode.error)


def _make_method(function: Function) -> Callable[..., str]:
    """Make a method for a tool that each object resolves by name."""
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
