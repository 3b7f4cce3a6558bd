"""The Python server in the container of 2023: one namespace for agent and gold.

The module runs in the sandbox, as the prelude of a `PythonInterpreter`, which sends requests as
source code. Every request prints one line of JSON.
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
"""The prefix of the observation if an action did not reach the server."""


class Server:
    """An executor of source code in a namespace that persists until the next reset."""

    def __init__(self) -> None:
        # Python 3.9 hid this warning; later versions would add it to observations.
        warnings.filterwarnings("ignore", ".*invalid escape sequence")
        self.names: dict[str, Any] = {}
        self.reset()

    def answer(self, request: str, source: str) -> None:
        """Call `step`, `execute` or `reset`, and print the result as JSON."""
        stdout = sys.stdout
        result: dict[str, str] | str | None = getattr(self, request)(source)
        # On a new line: a child process of the action may have printed, too.
        stdout.write("\n" + json.dumps(result) + "\n")

    def reset(self, source: str = "") -> None:
        """Delete all names except those of the 2023 server."""
        self.names = {
            "__name__": "__main__",
            "__builtins__": builtins,
            "sys": sys,
            "StringIO": StringIO,
        }

    def step(self, action: str) -> dict[str, str] | str:
        """Execute an action, wrapped in `print` by the rule of 2023; return the observation."""
        try:
            if not action.strip().startswith("def "):
                action = wrap_in_print(action)
        except Exception as error:  # noqa: BLE001 - it is the observation
            return f"{FAILED}{error}"
        return self.execute(action)

    def execute(self, source: str) -> dict[str, str]:
        """Execute source code; return its output, or its error without output."""
        streams = sys.stdout, sys.stderr
        output, error = StringIO(), StringIO()
        sys.stdout, sys.stderr = output, error
        try:
            exec(compile(source, "<string>", "exec", dont_inherit=True), self.names)
            return {"output": output.getvalue().strip(), "error": error.getvalue().strip()}
        except (Exception, SystemExit) as exception:  # noqa: BLE001 - it is the observation
            # In 2023 a SystemExit reached the client, and ended the experiment.
            return {"error": f"Error: {exception}"}
        finally:
            sys.stdout, sys.stderr = streams


def wrap_in_print(action: str) -> str:
    """Return the action as the argument of a `print`, unless it looks like a statement.

    >>> wrap_in_print("1 + 1"), wrap_in_print("x = 1")
    ('print(1 + 1)', 'x = 1')

    Raises:
        SyntaxError, ValueError: The action is not Python.
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
