"""An environment put together by hand: an image and an interpreter by their names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from intercode.envs.stage import SandboxStage
from intercode.errors import UsageError
from intercode.interpreters.base import Interpreter
from intercode.registry import Registry
from intercode.sandbox import Limits, Provider, Sandbox, get_provider

Open = Callable[[Any], Interpreter]

INTERPRETERS = Registry(
    "interpreter",
    {
        "bash": "intercode.interpreters.bash:BashInterpreter",
        "python": "intercode.interpreters.python:PythonInterpreter",
    },
)
"""Name → what opens one in a sandbox."""


def compose(
    interpreter: str | Open,
    image: str | Path | None,
    provider: str | Provider,
    limits: Limits | None,
    network: bool,
) -> tuple[SandboxStage, Callable[[Sandbox], Interpreter]]:
    """What starts the sandboxes, and what opens an interpreter in one.

    Raises:
        UsageError: There is no such interpreter or provider.
    """
    if interpreter == "sql":
        raise UsageError("SQL needs no image: intercode.make('sql', data=…, databases=…)")
    if isinstance(provider, str):
        provider = _provider(provider, interpreter)
    opens: Open = INTERPRETERS.get(interpreter) if isinstance(interpreter, str) else interpreter
    return SandboxStage(provider, _named(image), limits, network), opens


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
