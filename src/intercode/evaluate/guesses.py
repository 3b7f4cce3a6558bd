"""Trials beside gold: doing nothing, a wrong answer, and constants, which look at nothing.

In SQL and Python a constant that solves a task is a problem: copies of the database, or further
tests, would refuse it. So is Bash's ``true``. What another Bash constant prints may be the right
answer by chance, and what a Python test expects, an agent must guess.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from intercode.syntax import parse
from intercode.task import Task

NOTHING, WRONG, FIRST_CONSTANT = 2, 3, 4
"""The trials of a task in which this is tried; those before them are gold's."""


@dataclass(frozen=True, slots=True)
class Guess:
    """Actions of an agent that has not looked."""

    name: str
    """For people."""
    actions: Callable[[Task], tuple[str, ...]]
    by_chance: bool = False
    """Whether it may be right, or fit the tests, by chance."""
    idle: bool = False
    """Whether it prints nothing and changes nothing."""


def _always(*actions: str) -> Callable[[Task], tuple[str, ...]]:
    return lambda task: actions


def _python(value: str) -> tuple[str, ...]:
    """A function that prints and returns this value, submitted as the one that was asked for."""
    return f"def answer(*given, **named):\n    print({value})\n    return {value}", "submit answer"


def _expected(task: Task) -> tuple[str, ...]:
    """The value that a task's first test compares with: if a constant solves it, this one does."""
    return next(map(_python, _literals(task)), ())


def _literals(task: Task) -> Iterator[str]:
    for case in task.metadata.get("stdio") or ():
        yield repr(case["stdout"])
    for case in task.metadata.get("cases") or ():
        yield repr(case.get("expected"))
    for test in task.tests:
        for node in ast.walk(parse(test)):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq):
                for side in (node.comparators[0], node.left):
                    with suppress(ValueError):
                        yield repr(ast.literal_eval(side))


_EQUALS_ALL = """class answer:
    def __init__(self, *given, **named): pass
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __call__(self, *given, **named): return self
    def __getattr__(self, name): return self
"""
_NOTHING = Guess("doing nothing", _always(), idle=True)
_WRONG: Mapping[str, tuple[str, ...]] = {
    "python": _python("42"),
    "sql": ("SELECT 42",),
    "ctf": ("submit intercode{42}",),
    "swe": ("echo 42 > intercode-42.txt",),
}
"""By environment; all others are asked to print 42."""
_EMPTY_SELECT = "SELECT x FROM (SELECT NULL AS x) AS t WHERE 1 = 0"
_CONSTANTS: Mapping[str, tuple[Guess, ...]] = {
    "bash": (
        Guess("true", _always("true"), idle=True),
        *(Guess(f"echo {n}", _always(f"echo {n}"), by_chance=True) for n in range(3)),
    ),
    "sql": (
        *(Guess(f"SELECT {value}", _always(f"SELECT {value}")) for value in (*range(6), "NULL")),
        Guess("an empty SELECT", _always(_EMPTY_SELECT)),
    ),
    "python": (
        *(Guess(value, _always(*_python(value))) for value in ("None", "True")),
        Guess("what the first test expects", _expected, by_chance=True),
        Guess("an object equal to all", _always(_EQUALS_ALL, "submit answer")),
    ),
}


def guesses(env: str) -> Mapping[int, Guess]:
    """Trial → what is tried in it, in the environment of this name."""
    wrong = Guess("a wrong answer", _always(*_WRONG.get(env, ("echo 42",))))
    constants = dict(enumerate(_CONSTANTS.get(env, ()), FIRST_CONSTANT))
    return {NOTHING: _NOTHING, WRONG: wrong, **constants}
