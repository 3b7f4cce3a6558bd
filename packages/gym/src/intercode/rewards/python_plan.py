"""Analysis of a Python task's tests and of a submission, by their source alone, without running it.

A test may use builtins, its own imports, imports of the task's code, and names of the submission.
The submission supplies only the names of the last kind. No name of the submission replaces a
builtin, a module of the standard library or an import of gold. Exceptions are names that gold
defines, and the task's ``entry_point``. A submission's own ``sorted`` therefore cannot affect a
test.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from intercode.episode import Episode
from intercode.errors import TaskError
from intercode.python_source import parse
from intercode.rewards.harmless_tests import is_harmless
from intercode.task import Task


@dataclass(frozen=True, slots=True)
class PythonGradingPlan:
    """The facts that the tests' process needs (`intercode.interpreters.inside.grader`)."""

    tests: tuple[Mapping[str, Any], ...]
    """The tests: each a ``source``, or the ``input`` of a case and its expected output."""
    names: tuple[str, ...]
    """The names of the submission that the tests use."""
    imports: tuple[str, ...]
    """Import statements, from gold if possible, for names that the tests use but do not import."""
    modules: tuple[str, ...]
    """The modules among the task's files that the tests import."""
    functions: tuple[str, ...]
    """The functions that the task's code defines."""
    classes: tuple[str, ...]
    """The classes, defined by the task's code, whose objects keep their type in a test."""
    operators: tuple[str, ...]
    """The special methods, such as ``__mul__``, that the classes of the task's code define."""
    setup: str
    """The source that runs before the tests."""
    entry: str | None
    """The task's ``entry_point``, or the only name of the submission that all tests call."""
    harmless: bool
    """Whether the tests leave their process unchanged, so other tests may run in it afterwards."""

    def message(self, answer: str | None) -> dict[str, Any]:
        """Return the message to the grader, as `intercode.interpreters.inside.grader` reads it.

        Args:
            answer: The name under which the submission defines `entry`; None: the same name.
        """
        submitted_names = {name: name for name in self.names}
        if answer is not None and self.entry is not None:
            submitted_names[self.entry] = answer
        fields = ("imports", "modules", "functions", "classes", "operators", "setup")
        return {"names": submitted_names, **{name: getattr(self, name) for name in fields}}


def has_tests(task: Task) -> bool:
    """Return whether a task has tests or cases that grade a submission."""
    return bool(task.tests or task.metadata.get("cases") or task.metadata.get("stdio"))


def make_plan(task: Task) -> PythonGradingPlan:
    """Return the plan of a task's tests.

    Raises:
        TaskError: The task has no tests, its code is not Python, or its cases are malformed.
    """
    facts = task.metadata
    setup = facts.get("test_setup_code") or ""
    gold_source = _SourceNames(task, [facts.get("setup_code") or "", *task.gold[:1]])
    setup_source = _SourceNames(task, [setup])
    tests = [_SourceNames(task, [test]) for test in task.tests]
    cases = _test_cases(task)
    free_names = [name for name in setup_source.used_names if name not in setup_source.bound_names]
    for test in tests:
        free_names += [
            name
            for name in test.used_names
            if name not in test.bound_names | setup_source.bound_names | {*free_names}
        ]
    entry_point = facts.get("entry_point")
    entry = entry_point or _find_entry(tests, gold_source, free_names)
    if entry_point and entry_point not in free_names:
        free_names.append(entry_point)
    imports = {name: gold_source.imports.get(name) or _library_import(name) for name in free_names}
    names = [name for name in free_names if _is_submitted(name, entry_point, gold_source)]
    import_lines = tuple(text for name, text in imports.items() if text and name not in names)
    modules = tuple(_task_module_names(task, [setup_source, *tests]))
    checkers = _SourceNames(task, [case["checker"] for case in cases if "checker" in case])
    run = (setup_source, *tests, checkers, _SourceNames(task, import_lines))
    if not has_tests(task):
        raise TaskError(
            f"task {task.task_id!r} has neither 'tests' nor 'cases', so it cannot be scored"
        )
    if cases and entry is None:
        raise TaskError(f"task {task.task_id!r}: 'cases' need an 'entry_point', a function's name")
    return PythonGradingPlan(
        tests=(*({"source": test} for test in task.tests), *({**c, "entry": entry} for c in cases)),
        names=tuple(names),
        imports=import_lines,
        modules=modules,
        functions=tuple(gold_source.functions),
        classes=(*gold_source.classes, *facts.get("classes", ())),
        operators=tuple(gold_source.operators),
        setup=setup,
        entry=entry,
        harmless=not modules and all(source.harmless for source in run),
    )


class _SourceNames:
    """The names that pieces of source define and use."""

    def __init__(self, task: Task, pieces: Iterable[str]) -> None:
        self.used_names: list[str] = []
        self.bound_names: set[str] = set()
        self.defined_names: set[str] = set()
        """Names that the top level of the source defines, without imports."""
        self.imports: dict[str, str] = {}
        self.modules: list[str] = []
        self.functions: list[str] = []
        self.classes: list[str] = []
        self.operators: list[str] = []
        self.called_names: set[str] = set()
        self.harmless = True
        for source in pieces:
            try:
                tree = parse(source)
            except (SyntaxError, ValueError, RecursionError) as error:
                raise TaskError(
                    f"task {task.task_id!r}: this is not valid Python ({error}): {source}"
                ) from None
            for node in ast.walk(tree):
                self._take(node)
                self.harmless = self.harmless and is_harmless(node)
            for statement in tree.body:
                self._take_statement(statement)

    def _take(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Load):
                self.bound_names.add(node.id)
            elif node.id not in self.used_names:
                self.used_names.append(node.id)
        elif isinstance(node, ast.arg):
            self.bound_names.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self.bound_names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._take_import(node)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            self.bound_names.add(node.name)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            self.called_names.add(node.func.id)

    def _take_import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            self.bound_names.add(name)
            if isinstance(node, ast.Import):
                statement: ast.stmt = ast.Import([alias])
                self.modules.append(alias.name)
            else:
                statement = ast.ImportFrom(node.module, [alias], node.level)
                self.modules.append(node.module or "")
            self.imports[name] = ast.unparse(ast.fix_missing_locations(statement))

    def _take_statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self.functions.append(node.name)
            self.defined_names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            self.classes.append(node.name)
            self.defined_names.add(node.name)
            names = (name for child in node.body for name in _method_names(child))
            self.operators += [name for name in names if name.startswith("__")]
        else:
            name_nodes = (child for child in ast.walk(node) if isinstance(child, ast.Name))
            self.defined_names |= {
                child.id for child in name_nodes if isinstance(child.ctx, ast.Store)
            }
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            # Such an assignment may define a class: Point = namedtuple("Point", "x y")
            self.classes += [child.id for child in node.targets if isinstance(child, ast.Name)]


def _method_names(statement: ast.stmt) -> list[str]:
    """List the names that a statement in a class body defines by ``def`` or by an assignment.

    Example of an assignment: ``__rmul__ = __mul__``.
    """
    if isinstance(statement, ast.FunctionDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _is_submitted(name: str, entry: str | None, gold_source: _SourceNames) -> bool:
    if name == entry or name in gold_source.defined_names:
        return True
    return (
        name not in gold_source.imports
        and not hasattr(builtins, name)
        and not _library_import(name)
    )


def _library_import(name: str) -> str:
    return f"import {name}" if name in sys.stdlib_module_names else ""


def _find_entry(
    tests: Iterable[_SourceNames], gold_source: _SourceNames, free_names: list[str]
) -> str | None:
    """Return the name of the submission that every test calls; among several, the only function."""
    common = [
        name
        for name in free_names
        if all(name in test.called_names for test in tests)
        and _is_submitted(name, None, gold_source)
    ]
    functions = [name for name in common if name in gold_source.functions] or common
    return functions[0] if len(functions) == 1 else None


def _task_module_names(task: Task, sources: Iterable[_SourceNames]) -> Iterator[str]:
    """Yield the modules that these sources import and that are among the task's files."""
    task_modules = {name for path in task.files for name in _module_names(PurePosixPath(path))}
    for name in dict.fromkeys(name for source in sources for name in source.modules):
        name_parts = name.split(".")
        yield from (
            module_name
            for depth in range(len(name_parts))
            if (module_name := ".".join(name_parts[: depth + 1])) in task_modules
        )


def _module_names(path: PurePosixPath) -> Iterator[str]:
    path_parts = path.parts if path.name != "__init__.py" else path.parent.parts
    if path.suffix == ".py" and path_parts and path_parts[0] != "/":
        yield ".".join(path_parts).removesuffix(".py")


def _test_cases(task: Task) -> list[dict[str, Any]]:
    cases = []
    for index, case in enumerate(task.metadata.get("cases") or ()):
        location = f"task {task.task_id!r}: case {index} of 'cases'"
        if not isinstance(case, Mapping) or not isinstance(case.get("input"), list | dict):
            raise TaskError(f"{location} must be an object with a list or an object as its 'input'")
        if ("expected" in case) == ("checker" in case):
            raise TaskError(f"{location} must have either an 'expected' output or a 'checker'")
        cases.append({"tolerance": 0.0, **case})
    return cases


# -- the submission --------------------------------------------------------------------------------


_DEFINITIONS = (
    ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef
)  # fmt: skip


def session_source(episode: Episode) -> list[str]:
    """List the sources that restore the state of an episode's Python session, in order.

    Each source runs again unchanged, including the actions that failed: later actions relied on
    their effects before the failure. After a restart of the session, only later actions count. Of
    an interrupted action only the definitions count, because the whole action would again take as
    long.
    """
    sources: list[str] = []
    for turn in episode.turns:
        if turn.info.get("restarted"):
            sources = []
        elif not turn.info.get("executed", True):
            continue
        elif turn.info.get("interrupted"):
            sources.append(definitions(turn.action))
        else:
            sources.append(turn.action)
    return sources


def definitions(source: str) -> str:
    """Return the imports, functions and classes at the top level of a source, if it is Python."""
    try:
        tree = parse(source)
        tree.body = [node for node in tree.body if isinstance(node, _DEFINITIONS)]
        return ast.unparse(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""


@dataclass(frozen=True, slots=True)
class PythonSubmission:
    """A submitted program."""

    earlier_sources: Sequence[str]
    """The sources that run before `program`: the setup, and the session's earlier actions."""
    program: str


def stdio_cases(task: Task) -> list[Mapping[str, str]]:
    """Return the cases under ``metadata.stdio``, each with ``stdin`` and ``stdout``; [] if none.

    Raises:
        TaskError: The cases are malformed, or the task also has tests of another kind.
    """
    cases = task.metadata.get("stdio") or []
    location = f"task {task.task_id!r}: 'stdio'"
    if not isinstance(cases, list):
        raise TaskError(f"{location} must be a list of cases")
    for index, case in enumerate(cases):
        texts = [case.get(name) for name in ("stdin", "stdout")] if isinstance(case, dict) else []
        if not texts or not all(isinstance(text, str) for text in texts):
            raise TaskError(f"{location}: case {index} must be an object with 'stdin' and 'stdout'")
    if cases and (task.tests or task.metadata.get("cases")):
        raise TaskError(f"{location} excludes 'tests' and 'cases': choose one")
    return cases


def submission(episode: Episode, setup: str | None) -> PythonSubmission | None:
    """Return the program that an episode has submitted; None: no program was submitted.

    The program is the last action, or with ``submit NAME`` a call of that function.
    """
    executed_indices = [
        n for n, turn in enumerate(episode.turns) if turn.info.get("executed", True)
    ]
    if not executed_indices:
        return None
    setup_sources = [setup] if setup else []
    if episode.answer is not None:
        if not episode.answer.isidentifier():
            return None
        return PythonSubmission([*setup_sources, *session_source(episode)], f"{episode.answer}()")
    last_index = executed_indices[-1]
    earlier_sources = session_source(replace(episode, turns=episode.turns[:last_index]))
    return PythonSubmission([*setup_sources, *earlier_sources], episode.turns[last_index].action)
