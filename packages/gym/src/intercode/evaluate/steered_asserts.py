"""A search for asserts whose expected value a submission can change, for `validate`.

An example is ``xs = [3, 1]; assert f(xs) == sorted(xs)``. Python calls `f` first, and sorts what is
then left in `xs`. A submitted `f` that empties the list and returns ``[]`` passes. An expected
value must therefore not depend on a value that the submission has received before.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from intercode.python_source import parse

_CONSTANTS = (ast.Constant, ast.JoinedStr)


def find_steered_assert(source: str) -> str | None:
    """Return the source of the first assert whose expected value a submission can change.

    Args:
        source: The Python source of the test.

    Returns:
        The source of the assert; None: the test has no such assert.
    """
    try:
        tree = parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    reader = _TaintTracker(_find_defined_names(tree))
    for statement in tree.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Assert) and isinstance(node.test, ast.Compare):
                if reader.is_steered(node.test):
                    return ast.unparse(node)
            elif isinstance(node, ast.Assign):
                reader.bind(node)
            reader.record_passed_names(node)
    return None


class _TaintTracker:
    """A reader that follows which names of a test have values that depend on the submission.

    Args:
        defined_names: The names of Python's built-in objects, and of functions, classes and modules
            that the test defines or imports.
    """

    def __init__(self, defined_names: set[str]) -> None:
        self._defined_names = defined_names
        self._constants: set[str] = set()
        self._results: set[str] = set()
        self._passed_names: set[str] = set()

    def bind(self, node: ast.Assign) -> None:
        """Update the recorded names for an assignment, which gives its targets new values."""
        names = {name_node.id for target in node.targets for name_node in _names(target)}
        self._passed_names -= names
        for name_set, matches_kind in (
            (self._constants, isinstance(node.value, _CONSTANTS)),
            (self._results, any(self._calls(node.value))),
        ):
            name_set -= names
            name_set |= names if matches_kind else set()

    def record_passed_names(self, node: ast.AST) -> None:
        """Record the names that a call of the submission may change."""
        self._passed_names |= {
            name_node.id
            for call in self._calls(node)
            for argument in (*call.args, *(keyword.value for keyword in call.keywords))
            for name_node in ([argument] if isinstance(argument, ast.Name) else [])
            if name_node.id not in self._constants | self._defined_names
        }

    def is_steered(self, test: ast.Compare) -> bool:
        """Return whether the submission can change the expected value of a comparison.

        The submission can do so if one side depends on a value that was passed to the submission,
        and another side is the submission's result.
        """
        has_steered_side = has_judged_side = False
        for operand in (test.left, *test.comparators):
            # A side that is a single name counts as a result, not as an expected value. The name
            # may be that of a list that the submission sorts in place.
            has_passed_name = not isinstance(operand, ast.Name) and any(
                name_node.id in self._passed_names for name_node in _names(operand)
            )
            has_call = any(self._calls(operand)) or any(
                name_node.id in self._results for name_node in _names(operand)
            )
            has_steered_side |= has_passed_name and not has_call
            has_judged_side |= has_call or isinstance(operand, ast.Name)
            self.record_passed_names(operand)
        return has_steered_side and has_judged_side

    def _calls(self, node: ast.AST) -> Iterator[ast.Call]:
        calls = (child for child in ast.walk(node) if isinstance(child, ast.Call))
        for call in calls:
            if isinstance(call.func, ast.Name) and call.func.id not in self._defined_names:
                yield call


def _names(node: ast.AST) -> list[ast.Name]:
    return [child for child in ast.walk(node) if isinstance(child, ast.Name)]


def _find_defined_names(tree: ast.Module) -> set[str]:
    defined_names = set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            defined_names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            defined_names |= {
                (alias.asname or alias.name).partition(".")[0] for alias in node.names
            }
    return defined_names
