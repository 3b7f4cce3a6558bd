"""Trials beside gold: doing nothing, a wrong answer, and constants, which look at nothing.

In SQL and Python a constant that solves a task is a problem: copies of the database, or further
tests, would refuse it. So is Bash's ``true``. Another Bash constant may print the right answer by
chance, and an agent must guess the value that a Python test expects.
"""

from __future__ import annotations

from collections.abc import Mapping

from intercode.envs.traits import Guess, always, traits_of

NOTHING, WRONG, FIRST_CONSTANT = 2, 3, 4
"""The trials of a task in which this is tried; those before them are gold's."""


def guesses(env: str) -> Mapping[int, Guess]:
    """Return the trials in the environment of this name: number → what is tried in it."""
    traits = traits_of(env)
    wrong = Guess("a wrong answer", always(*traits.wrong))
    constants = dict(enumerate(traits.constants, FIRST_CONSTANT))
    return {NOTHING: Guess("doing nothing", always(), idle=True), WRONG: wrong, **constants}
