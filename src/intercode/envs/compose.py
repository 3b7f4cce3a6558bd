"""An environment put together by hand: an image and an interpreter by their names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from intercode.envs.stage import SandboxStage
from intercode.errors import UsageError
from intercode.interpreters.base import Interpreter
from intercode.registry import Registry
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
