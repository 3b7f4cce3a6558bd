"""The command that runs a real model, as far as this machine's environment tells which."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from intercode.models.keys import check_url
from intercode.models.keys import find as find_key

_OPENAI, _ANTHROPIC = "openai/gpt-5-mini", "anthropic/claude-haiku-4-5"
"""Models that cost little, whose price is known: the budget holds."""
_LOCAL, _LOCAL_URL = "ollama/qwen2.5-coder:7b", "--base-url http://localhost:11434/v1"
"""A model that many have on a server of their own."""
_COST, _TOKENS = "--max-cost 1", "--max-tokens 1000000"
"""What it may take: dollars where the price is known."""


@dataclass(frozen=True, slots=True)
class Next:
    """What to run next."""

    why: str
    """What proposes it."""
    command: str


def find() -> Next:
    """The command, by which variables are set; what is secret is not in it.

    Raises:
        UsageError: A variable holds what can be no key or URL.
    """
    openai, anthropic = find_key("OPENAI_API_KEY"), find_key("ANTHROPIC_API_KEY")
    if url := find_key("OPENAI_BASE_URL"):
        url = check_url(url)
        why = "as OPENAI_BASE_URL is set (put the name that the server gives it for NAME)"
        if openai:
            return Next(why, _run("openai/NAME", "openai", _TOKENS))
        options = f"--base-url {shlex.quote(url)} {_TOKENS}"
        return Next(why, _run("openai-compatible/NAME", "openai", options))
    if openai:
        return Next("as OPENAI_API_KEY is set", _run(_OPENAI, "openai", _COST))
    if anthropic:
        return Next("as ANTHROPIC_API_KEY is set", _run(_ANTHROPIC, "anthropic", _COST))
    why = "on a server of your own (or set OPENAI_API_KEY or ANTHROPIC_API_KEY)"
    return Next(why, _run(_LOCAL, "openai", _LOCAL_URL))


def program() -> str:
    """How this program is called from here."""
    called = Path(sys.argv[0])
    if called.name != "intercode":
        return f"{_python()} -m intercode.cli"
    found = shutil.which("intercode")
    if found is not None and Path(found).resolve() == called.resolve():
        return "intercode"
    return _from_here(called)


def _run(model: str, package: str, options: str) -> str:
    run = f"{program()} run bash --agent try-again --model {model} {options} --limit 20"
    if importlib.util.find_spec(package) is None:
        run = f"{_python()} -m pip install {package} && {run}"
    return run


def _python() -> str:
    found = shutil.which("python3")
    same = found is not None and Path(found) == Path(sys.executable)
    return "python3" if same else _from_here(Path(sys.executable))


def _from_here(path: Path) -> str:
    """A path for a shell, as short as it can be."""
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - a virtual environment's python is a link
    here = Path.cwd()
    return shlex.quote(str(absolute.relative_to(here) if absolute.is_relative_to(here) else path))
