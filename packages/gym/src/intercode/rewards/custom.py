"""Custom rewards: user functions ``score(task, episode, workspace)``.

The function returns a `Score` or a number in [0, 1]. An option names the function by its file, such
as ``reward.py:score``. A fourth parameter, ``default``, receives the environment's default reward,
a function of the first three parameters.

The signature is checked before anything is started. A failure of the function is an error, not a
score.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, Generic

from intercode.episode import Episode, Score, not_json
from intercode.errors import InterCodeError, RewardError, UsageError
from intercode.registry import REWARDS
from intercode.rewards.base import Reward, WorkspaceT
from intercode.task import Task
from intercode_sandbox.interruption import is_handlers
from intercode_sandbox.user_code import error_location, is_reference

Function = Callable[..., "Score | float"]


class CustomReward(Generic[WorkspaceT]):
    """A wrapper that calls a custom reward function and validates its result.

    Args:
        function: A function as the module's docstring describes it.
        default: The factory of the environment's default reward; called only if the function has
            the parameter ``default``.

    Raises:
        UsageError: The object is not a function, is async, or does not accept a reward's arguments.
    """

    def __init__(
        self, function: Function, default: Callable[[], Reward[WorkspaceT]] | None = None
    ) -> None:
        self._function = function
        self._extra_arguments: dict[str, Any] = {}
        if "default" in _check_signature(function) and default is not None:
            self._extra_arguments["default"] = default()

    def __call__(self, task: Task, episode: Episode, workspace: WorkspaceT) -> Score:
        """Return the score of an episode.

        Raises:
            RewardError: The function failed, or its result is not a score.
            InterCodeError: The function propagated an error of InterCode, such as the end of the
                sandbox.
        """
        try:
            result = self._function(task, episode, workspace, **self._extra_arguments)
        except InterCodeError:
            raise
        except BaseException as error:  # a reward's sys.exit() must not end the run
            if is_handlers(error):
                raise
            location = error_location(error, _file(self._function)) or _name(self._function)
            raise RewardError(
                f"task {task.task_id!r}: its reward failed: {location}: "
                f"{type(error).__name__}: {error}"
            ) from error
        value: object = result.value if isinstance(result, Score) else result
        if not isinstance(value, Real) or not 0 <= float(value) <= 1:  # rejects NaN, too
            raise RewardError(
                f"task {task.task_id!r}: a reward must be a number from 0 to 1, or a Score with "
                f"one: {_name(self._function)} gave {result!r}"
            )
        if not isinstance(result, Score):
            return Score(float(value))
        if flaw := _flaw(result):
            raise RewardError(f"task {task.task_id!r}: {_name(self._function)} gave {flaw}")
        return result


def _flaw(score: Score) -> str:
    """Return a description of a part of a score that no record can store; empty: no such part."""
    if not isinstance(score.parts, Mapping) or not all(
        isinstance(part_score, Real) for part_score in score.parts.values()
    ):
        return f"a Score whose parts are not names with numbers: {score.parts!r}"
    if not isinstance(score.detail, Mapping):
        return f"a Score whose detail is not a dictionary: {score.detail!r}"
    if field_path := not_json(score):
        return f"a Score that is not JSON: its {field_path.lstrip('.')}"
    return ""


def choose_reward(
    env: str,
    reward: str | Function | Reward[WorkspaceT] | None,
    default: Callable[[], Reward[WorkspaceT]],
    **components: Any,
) -> Reward[WorkspaceT]:
    """Return the reward that the environment's option selects.

    Args:
        env: The environment's short name.
        reward: The option. A function, a `Reward`, or the name of a function or class. A name has
            the form ``file.py:name``, or is registered under ``env:name``. The value None selects
            the environment's default.
        default: The factory of the environment's default reward.
        **components: Parts of the environment, such as ``databases`` and ``cache`` of SQL. A
            class receives the parts that its parameters name.

    Raises:
        UsageError: No such reward exists, or the function does not accept a reward's arguments.
    """
    if reward is None:
        return default()
    if not isinstance(reward, str):
        return CustomReward(reward, default)
    target = REWARDS.resolve(reward if is_reference(reward) else f"{env}:{reward}")
    if not isinstance(target, type):
        return CustomReward(target, default)
    parameters = inspect.signature(target).parameters
    result: Reward[WorkspaceT] = target(
        **{name: components[name] for name in parameters if name in components}
    )
    return CustomReward(result, default) if is_reference(reward) else result


def _check_signature(function: Function) -> set[str]:
    """Return a function's parameter names, after a check that it accepts the arguments of a reward.

    Raises:
        UsageError: The object is not a function, is async, or does not accept the arguments.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise UsageError(f"a reward must be a function, not {function!r}") from None
    call = getattr(function, "__call__", None)  # noqa: B004 - of an object that can be called
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
        raise UsageError(f"reward {_name(function)} is async; write a plain function")
    names = set(signature.parameters)
    extra_arguments = {"default": None} if "default" in names else {}
    try:
        signature.bind(None, None, None, **extra_arguments)
    except TypeError as error:
        raise UsageError(
            f"reward {_name(function)}{signature} must take (task, episode, sandbox), and may "
            f"take default: {error}"
        ) from None
    return names


def _file(function: Function) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return getattr(code, "co_filename", "")


def _name(function: Function) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)
