"""Worked examples for prompts. Their tasks belong to no benchmark.

The examples show exploration, an action, an error, its correction, and a submission.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExampleStep:
    """A turn of a worked example."""

    thought: str
    action: str
    observation: str | None = None
    """The output of the action; None: the action ends the episode."""
    failed: bool = False


@dataclass(frozen=True, slots=True)
class WorkedExample:
    """A worked example: a task, and the turns that solve the task."""

    task: str
    steps: tuple[ExampleStep, ...]


_BASH = (
    WorkedExample(
        "In /srv there is a list of clients. How many of them live in Rome? Print only the number.",
        (
            ExampleStep(
                "I count the lines with Rome.",
                "grep -c Rome /srv/clients",
                "grep: /srv/clients: No such file or directory",
                failed=True,
            ),
            ExampleStep("It has another name. I look.", "ls /srv", "clients.txt\nreports"),
            ExampleStep(
                "It is clients.txt.",
                "grep Rome /srv/clients.txt",
                "Ada Bianchi, Rome\nLeo Conti, Rome",
            ),
            ExampleStep(
                "These are the lines, but only their number is asked for. I print just that.",
                "grep -c Rome /srv/clients.txt",
                "2",
            ),
            ExampleStep("That is the number, and nothing else.", "submit"),
        ),
    ),
    WorkedExample(
        "Copy the report in /srv/reports to /srv, with the name last.txt.",
        (
            ExampleStep("I do not know its name. I look.", "ls /srv/reports", "march.txt"),
            ExampleStep("It is march.txt.", "cp /srv/reports/march.txt /srv/last.txt", ""),
            ExampleStep("It succeeded. The task is done.", "submit"),
        ),
    ),
)
_CTF = (
    WorkedExample(
        "A note was encoded before it was left here. What does it say?",
        (
            ExampleStep("I look at what there is.", "ls -la", "-rw-r--r-- 1 root root 33 note.txt"),
            ExampleStep("One file. I read it.", "cat note.txt", "ZmxhZ3t0ZWFfYXRfZml2ZX0="),
            ExampleStep("This looks like base64.", "base64 -d note.txt", "flag{tea_at_five}"),
            ExampleStep("That is a flag.", "submit flag{tea_at_five}"),
        ),
    ),
)
_SWE = (
    WorkedExample(
        "area() of a circle gives the circumference.",
        (
            ExampleStep(
                "I look for the function.",
                "grep -rn 'def area' .",
                "./shapes/circle.py:12:def area(radius):",
            ),
            ExampleStep(
                "I read it.",
                "sed -n 10,16p shapes/circle.py",
                "def area(radius):\n    return 2 * math.pi * radius",
            ),
            ExampleStep(
                "The formula is wrong. I correct it and try it.",
                "sed -i '13s/.*/    return math.pi * radius ** 2/' shapes/circle.py\n"
                "python3 -c 'from shapes.circle import area; print(area(2))'",
                "12.566370614359172",
            ),
            ExampleStep("That is right.", "submit"),
        ),
    ),
)
_TREES = (
    "CREATE TABLE trees (\n  tree_id INTEGER PRIMARY KEY,\n  species TEXT NOT NULL,\n"
    "  planted_in INTEGER\n);"
)
_SQL = (
    WorkedExample(
        "How many oaks are in the park?",
        (
            ExampleStep(
                "There may be a table of trees.",
                "SELECT COUNT(*) FROM trees WHERE kind = 'oak'",
                "Error SQLITE_ERROR: no such column: kind",
                failed=True,
            ),
            ExampleStep("I look what the columns are called.", ".schema", _TREES),
            ExampleStep(
                "The column is called species.",
                "SELECT COUNT(*) FROM trees WHERE species = 'oak'",
                "COUNT(*)\n--------\n      17\n(1 row)",
            ),
            ExampleStep("That is what was asked for, and it is the last query.", "submit"),
        ),
    ),
    WorkedExample(
        "Which species was planted last?",
        (
            ExampleStep("I do not know the tables. I look at them.", ".schema", _TREES),
            ExampleStep(
                "The year is in planted_in; only the species is asked for.",
                "SELECT species FROM trees ORDER BY planted_in DESC LIMIT 1",
                "species\n-------\nbirch\n(1 row)",
            ),
            ExampleStep("That is it.", "submit"),
        ),
    ),
)
_PYTHON = (
    WorkedExample(
        "Write initials(name): the first letters of all words of a name, in capitals.",
        (
            ExampleStep(
                "I write the function and try it at once.",
                'def initials(name):\n    return "".join(word[0].upper() for word in '
                'name.split(" "))\n\ninitials("ada  lovelace")',
                "Traceback (most recent call last):\n  …\nIndexError: string index out of range",
                failed=True,
            ),
            ExampleStep(
                "Two blanks give an empty word. split() without an argument leaves none.",
                'def initials(name):\n    return "".join(word[0].upper() for word in '
                'name.split())\n\ninitials("ada  lovelace")',
                "'AL'",
            ),
            ExampleStep("It works.", "submit"),
        ),
    ),
)
_EXAMPLES_BY_ENVIRONMENT: Mapping[str, tuple[WorkedExample, ...]] = {"ctf": _CTF, "swe": _SWE}
_EXAMPLES_BY_LANGUAGE: Mapping[str, tuple[WorkedExample, ...]] = {
    "bash": _BASH,
    "sql": _SQL,
    "python": _PYTHON,
}


def find_examples(env: str, language: str) -> tuple[WorkedExample, ...]:
    """Return the worked examples for an environment; empty for a user-defined language."""
    return _EXAMPLES_BY_ENVIRONMENT.get(env) or _EXAMPLES_BY_LANGUAGE.get(language, ())
