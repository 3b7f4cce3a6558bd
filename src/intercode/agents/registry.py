"""Agents by name, or from a reader's own file."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from intercode.agents.base import AgentFactory
from intercode.errors import UsageError
from intercode.registry import Registry

AGENTS = Registry(
    "agent",
    {
        "oracle": "intercode.agents.scripted:Oracle",
        "noop": "intercode.agents.scripted:noop",
        "replay": "intercode.agents.scripted:Replay",
    },
)
"""Name → what takes the agent's options and gives its factory."""


def get(name: str, **options: Any) -> AgentFactory:
    """The factory of an agent.

    Args:
        name: A registered name, or ``path/to/file.py:function``, where the function is itself
            the factory: it takes a task and gives an object with `act`.
        options: For a registered agent, for instance ``recording`` for ``replay``.

    Raises:
        UsageError: There is no such agent, or it does not take these options.
    """
    if ".py:" in name:
        if options:
            raise UsageError(f"agent {name} takes no option {', '.join(options)}")
        return cast(AgentFactory, _from_file(name))
    if name not in AGENTS:
        raise UsageError(
            f"there is no agent {name!r}: choose one of {', '.join(AGENTS.names())}, "
            "or your own as path/to/file.py:function"
        )
    make: Callable[..., AgentFactory] = AGENTS.get(name)
    try:
        inspect.signature(make).bind(**options)
    except TypeError as error:
        raise UsageError(f"agent {name}: {error}") from error
    return make(**options)


def digest(name: str) -> str:
    """What identifies the code of an agent from a file, for a run's record; else empty."""
    if ".py:" not in name:
        return ""
    path = Path(name.rpartition(":")[0])
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def _from_file(name: str) -> Callable[..., Any]:
    file, _, attribute = name.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"agent {name}: there is no file {file}")
    module_name = f"intercode_agent_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None  # a .py file always has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle look a class's module up there
    # As for a script: its folder is importable; but last, so that it shadows nothing.
    if (folder := str(path.parent.resolve())) not in sys.path:
        sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(
            f"agent {name}: {file} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, attribute, None)
    if not callable(found):
        raise UsageError(f"agent {name}: {file} has no function {attribute!r}")
    return cast("Callable[..., Any]", found)
