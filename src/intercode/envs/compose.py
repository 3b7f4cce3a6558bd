"""An environment put together by hand: image, interpreter and reward by their names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from intercode.envs.stage import SandboxStage
from intercode.errors import UsageError
from intercode.interpreters.base import Interpreter
from intercode.registry import Registry
from intercode.rewards.base import PlaceT, Reward
from intercode.rewards.own import Function, choose
from intercode.sandbox import Limits, Provider, get_provider

Open = Callable[[Any], Interpreter]

INTERPRETERS = Registry(
    "interpreter",
    {
        "bash": "intercode.interpreters.bash:BashInterpreter",
        "python": "intercode.interpreters.python:PythonInterpreter",
    },
)
"""Name → what opens one in a sandbox."""


def opener(interpreter: str | Open) -> Open:
    """What opens an interpreter in a place.

    Raises:
        UsageError: There is no interpreter of that name.
    """
    if not isinstance(interpreter, str):
        return interpreter
    if interpreter == "sql":
        raise UsageError("SQL needs no image: intercode.make('sql', data=…, databases=…)")
    found: Open = INTERPRETERS.get(interpreter)
    return found


def sandboxes(
    interpreter: str | Open,
    image: str | Path | None,
    provider: str | Provider,
    limits: Limits | None,
    network: bool,
) -> SandboxStage:
    """What starts the sandboxes for such an interpreter.

    Raises:
        UsageError: There is no such provider.
    """
    if isinstance(provider, str):
        provider = _provider(provider, interpreter)
    return SandboxStage(provider, _named(image), limits, network)


def own_reward(env: str, reward: str | Function | Reward[PlaceT] | None) -> Reward[PlaceT]:
    """The reward that was given; such an environment has none of its own.

    Raises:
        UsageError: None was given, or there is no such reward.
    """
    return choose(env, reward, _no_reward)


def _no_reward() -> NoReturn:
    raise UsageError("say how well an episode went: reward=FUNCTION, or reward='reward.py:score'")


def _provider(name: str, interpreter: str | Open) -> Provider:
    if interpreter != "python":
        return get_provider(name)
    from intercode.interpreters.python_start import provider  # which has our Python preloaded

    return provider(name)


def _named(image: str | Path | None) -> str | None:
    """The image's name: a file or folder of this directory may be given without ``./``."""
    if image is None or (isinstance(image, str) and not Path(image).exists()):
        return image
    return str(Path(image).absolute())
