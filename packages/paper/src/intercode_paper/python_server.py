"""The server in the container of 2023: one dictionary of names, for agent and gold alike.

This runs in the sandbox, as the prelude of a `PythonInterpreter`, which sends it its requests as
source. Every request prints one line of JSON.
"""

from __future__ import annotations

import ast
import builtins
import json
import sys
import warnings
from io import StringIO
from typing import Any

FAILED = "Error executing action: "
"""The beginning of the observation when an action did not come as far as the server."""


class Server:
    """An executor of source in names that live until the next reset."""

    def __init__(self) -> None:
        # Python 3.9 did not show this one, and later ones would put it into observations.
        warnings.filterwarnings("ignore", ".*invalid escape sequence")
        self.names: dict[str, Any] = {}
        self.reset()

    def answer(self, request: str, source: str) -> None:
        """Do one of `step`, `execute` and `reset`, and print its result."""
        stdout = sys.stdout
        result: dict[str, str] | str | None = getattr(self, request)(source)
        # On a line of its own: a process of the action's may have printed, too.
        stdout.write("\n" + json.dumps(result) + "\n")

    def reset(self, source: str = "") -> None:
        """Delete all names but the server's own, as they were in 2023."""
        self.names = {
            "__name__": "__main__",
            "__builtins__": builtins,
            "sys": sys,
            "StringIO": StringIO,
        }

    def step(self, action: str) -> dict[str, str] | str:
        """Execute an action, wrapped in `print` where that was done; return the observation."""
        try:
            if not action.strip().startswith("def "):
                action = wrap_in_print(action)
        except Exception as error:  # noqa: BLE001 - it is the observation
            return f"{FAILED}{error}"
        return self.execute(action)

    def execute(self, source: str) -> dict[str, str]:
        """Execute source; return its output, or its error without any output."""
        streams = sys.stdout, sys.stderr
        output, error = StringIO(), StringIO()
        sys.stdout, sys.stderr = output, error
        try:
            exec(compile(source, "<string>", "exec", dont_inherit=True), self.names)
            return {"output": output.getvalue().strip(), "error": error.getvalue().strip()}
        except (Exception, SystemExit) as exception:  # noqa: BLE001 - it is the observation
            # An exit reached the client in 2023, and ended the experiment.
            return {"error": f"Error: {exception}"}
        finally:
            sys.stdout, sys.stderr = streams


def wrap_in_print(action: str) -> str:
    """Return the action as the argument of a `print`, unless it looked like a statement.

    >>> wrap_in_print("1 + 1"), wrap_in_print("x = 1")
    ('print(1 + 1)', 'x = 1')

    Raises:
        SyntaxError, ValueError: It is not Python.
    """
    nodes = list(ast.walk(ast.parse(action.strip())))
    stays = any(isinstance(node, (ast.Assign, ast.Import)) for node in nodes)
    prints = any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        for node in nodes
    )
    if stays or prints or action.strip().startswith("assert"):
        return action
    return f"print({action})"
