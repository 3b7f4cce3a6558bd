"""What is tried beside gold: nothing, a wrong answer, and constants, which look at nothing.

In SQL and Python a constant that solves a task is a problem: copies of the database, or further
tests, would refuse it. So is Bash's ``true``. What another Bash constant prints may be the right
answer by chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NOTHING, WRONG, FIRST_CONSTANT = 2, 3, 4
"""The trials of a task in which this is tried; those before them are gold's."""


@dataclass(frozen=True, slots=True)
class Guess:
    """What an agent might do that has not looked."""

    name: str
    """For people."""
    actions: tuple[str, ...] = ()
    by_chance: bool = False
    """Whether it may be right by chance."""
    idle: bool = False
    """Whether it prints nothing and changes nothing."""


def _python(value: str) -> Guess:
    """A function that prints and returns this value, submitted as the one that was asked for."""
    code = f"def answer(*given, **named):\n    print({value})\n    return {value}"
    return Guess(value, (code, "submit answer"))


_EQUALS_ALL = """class answer:
    def __init__(self, *given, **named): pass
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __call__(self, *given, **named): return self
    def __getattr__(self, name): return self
"""
_NOTHING = Guess("doing nothing", idle=True)
_WRONG: Mapping[str, tuple[str, ...]] = {
    "python": _python("42").actions,
    "sql": ("SELECT 42",),
    "ctf": ("submit intercode{42}",),
    "swe": ("echo 42 > intercode-42.txt",),
}
"""By environment; all others are asked to print 42."""
_EMPTY_SELECT = "SELECT x FROM (SELECT NULL AS x) AS t WHERE 1 = 0"
_CONSTANTS: Mapping[str, tuple[Guess, ...]] = {
    "bash": (
        Guess("true", ("true",), idle=True),
        *(Guess(f"echo {n}", (f"echo {n}",), by_chance=True) for n in range(3)),
    ),
    "sql": (
        *(Guess(f"SELECT {value}", (f"SELECT {value}",)) for value in (*range(6), "NULL")),
        Guess("an empty SELECT", (_EMPTY_SELECT,)),
    ),
    "python": (
        *map(_python, ("None", "0", "1", "True", "''", "[]")),
        Guess("an object equal to all", (_EQUALS_ALL, "submit answer")),
    ),
}


def guesses(env: str) -> Mapping[int, Guess]:
    """Trial → what is tried in it, in the environment of this name."""
    wrong = Guess("a wrong answer", _WRONG.get(env, ("echo 42",)))
    constants = dict(enumerate(_CONSTANTS.get(env, ()), FIRST_CONSTANT))
    return {NOTHING: _NOTHING, WRONG: wrong, **constants}
