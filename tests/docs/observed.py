"""Run a Python program, then print each action that failed in its environments.

``python observed.py block.py``: the program's own process and threads are observed. An action has
failed if ``info["ok"]`` is false: an unknown command, an SQL error, a Python traceback, a wrong
flag.
"""

from __future__ import annotations

import functools
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from intercode.envs.base import InterCodeEnv
from intercode.envs.remote import RemoteEnvironment

FAILED_ACTION = "failed action: "
"""The beginning of a line of the report."""
Step = Callable[[Any, str], tuple[str, float, bool, bool, dict[str, Any]]]


def observe(step: Step, failed: list[str]) -> Step:
    """Return a `step` that notes failed actions."""

    @functools.wraps(step)
    def observed_step(env: Any, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        result = step(env, action)
        if not result[-1].get("ok", True):
            failed.append(f"{FAILED_ACTION}{action!r}: {result[0]!r}")
        return result

    return observed_step


def main(program: str, *arguments: str) -> None:
    failed: list[str] = []
    for env in (InterCodeEnv, RemoteEnvironment):
        env.step = observe(env.step, failed)
    sys.argv = [program, *arguments]
    sys.path[0] = str(Path(program).resolve().parent)
    runpy.run_path(program, run_name="__main__")
    sys.stdout.flush()
    if failed:
        print(*failed, sep="\n", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
