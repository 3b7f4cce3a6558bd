"""A Python server like that in the container of 2023, with one namespace for agent and gold.

This module runs in the sandbox, before the first action of a `PythonInterpreter`. The interpreter
sends each request as a line of source code, and each request prints one line of JSON.
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
"""Start of the observation if an action could not be executed."""


class PythonServer:
    """An executor of source code, in a namespace that persists until `reset`."""

    def __init__(self) -> None:
        # Python 3.9 hid this warning. Python 3.12 and later would print it into observations.
        warnings.filterwarnings("ignore", ".*invalid escape sequence")
        self.names: dict[str, Any] = {}
        self.reset()

    def answer(self, request: str, source: str) -> None:
        """Call the method `request`, and print the result as a line of JSON.

        Args:
            request: ``step``, ``execute`` or ``reset``.
            source: The argument of the method.
        """
        stdout = sys.stdout
        result: dict[str, str] | str | None = getattr(self, request)(source)
        # The result starts a new line, because a child process of the action may have printed text.
        stdout.write("\n" + json.dumps(result) + "\n")

    def reset(self, source: str = "") -> None:
        """Make a new namespace, with only the names that the 2023 server had.

        Args:
            source: A text that is ignored; each request has one.
        """
        self.names = {
            "__name__": "__main__",
            "__builtins__": builtins,
            "sys": sys,
            "StringIO": StringIO,
        }

    def step(self, action: str) -> dict[str, str] | str:
        """Execute an action, and return the answer; `wrap_in_print` is applied first.

        Returns:
            The result of `execute`; a text if the action is not Python.
        """
        try:
            if not action.strip().startswith("def "):
                action = wrap_in_print(action)
        except Exception as error:  # noqa: BLE001 - it is the observation
            return f"{FAILED}{error}"
        return self.execute(action)

    def execute(self, source: str) -> dict[str, str]:
        """Execute source code; return output and error stream, or the exception without output."""
        previous_streams = sys.stdout, sys.stderr
        output_stream, error_stream = StringIO(), StringIO()
        sys.stdout, sys.stderr = output_stream, error_stream
        try:
            exec(compile(source, "<string>", "exec", dont_inherit=True), self.names)
            return {
                "output": output_stream.getvalue().strip(),
                "error": error_stream.getvalue().strip(),
            }
        except (Exception, SystemExit) as exception:  # noqa: BLE001 - it is the observation
            # In 2023 a SystemExit reached the client, and ended the experiment.
            return {"error": f"Error: {exception}"}
        finally:
            sys.stdout, sys.stderr = previous_streams


def wrap_in_print(action: str) -> str:
    """Return an action as the argument of `print`, by the rule of 2023.

    An action stays unchanged if it contains an assignment with ``=``, an ``import`` without
    ``from`` or a call of `print`, or starts with ``assert``. All other actions are wrapped. An
    expression is then printed, and a statement becomes invalid.

    >>> wrap_in_print("1 + 1"), wrap_in_print("x = 1")
    ('print(1 + 1)', 'x = 1')

    Raises:
        SyntaxError, ValueError: The action is not Python.
    """
    nodes = list(ast.walk(ast.parse(action.strip())))
    is_statement = any(isinstance(node, (ast.Assign, ast.Import)) for node in nodes)
    has_print = any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        for node in nodes
    )
    if is_statement or has_print or action.strip().startswith("assert"):
        return action
    return f"print({action})"
