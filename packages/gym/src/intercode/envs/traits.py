"""Traits: the facts about an environment that the rest of the package needs.

An environment's class states them: ``traits = Traits(…)``. Agents, prompts, tools, the checks of
`validate`, rescoring and the command line use the traits; none knows environments by name.
`find_traits` finds them without starting anything.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from intercode.envs.options import SandboxOptions
from intercode.errors import TrustError, UsageError
from intercode.registry import ENVS, SOURCES, environment
from intercode_sandbox import Provider, get_provider

if TYPE_CHECKING:
    from intercode.rewards.base import Reward
    from intercode.rewards.custom import Function
    from intercode.task import Task
    from intercode.tool_calls import Verb

Dice = random.Random
_CLAUSE = re.compile(r" (?=(?:WHERE|GROUP BY|HAVING|ORDER BY|LIMIT) )")


def constant_actions(*actions: str) -> Callable[[Task], tuple[str, ...]]:
    """Make the function that answers every task with the same actions."""
    return lambda task: actions


@dataclass(frozen=True, slots=True)
class Guess:
    """Constant actions, chosen without looking."""

    name: str
    """For people."""
    actions: Callable[[Task], tuple[str, ...]]
    by_chance: bool = False
    """Whether it may be right, or fit the tests, by chance."""
    idle: bool = False
    """Whether it prints nothing and changes nothing."""
    role: Literal["constant", "trick", "alternative", "clock"] = "constant"
    """Whether it ignores the task, uses the words of its verification, solves it, or moves the
    clock for gold, whose actions follow."""


def shorter_pipelines(solution: Sequence[str], dice: Dice) -> Iterator[str]:
    """Yield a solution's pipeline without its last commands."""
    action = solution[0]
    while " | " in action:
        action = action.rpartition(" | ")[0]
        yield action


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """The facts that an environment class states about itself; all but the language have defaults::

    traits = Traits(
        language="awk",
        parameter="program",
        does="Run an awk program.",
        random_actions=("BEGIN { print 42 }",),
        wrong=("BEGIN { print 42 }",),
    )
    """

    language: str
    """The language of actions: the name of the tool, and the tag of blocks of code."""
    setting: str = ""
    """The setting's name in prompts, as ``Bash on Linux``; empty: the language."""
    briefing: str = ""
    """The description of the place in prompts; ``{setting}`` stands for the setting. Empty: that of
    the language."""
    parameter: str = "code"
    """The name of the tool's parameter."""
    parameter_description: str = "The code."
    """The parameter's description for models."""
    does: str = "Run code."
    """The tool's description for models."""
    shows: str = "What it printed."
    """The description of what the tool returns."""
    answer: str = ""
    """The name of the answer in ``submit ANSWER``, as ``flag``, if a model always submits one."""
    may_answer: str = ""
    """The name of the answer, if ``submit`` is complete without it."""
    answer_description: str = ""
    """The answer's description for models; empty: its name says it."""
    hint: str = ""
    """A sentence on the other tools, for prompts."""
    more: Sequence[Verb] = ()
    """More tools than the language and ``submit``; the interpreter knows their actions."""
    random_actions: Sequence[str] = ()
    """Actions for an agent that acts at random."""
    where: str = ""
    """The action that prints the setting's name in a line, with version and user; empty:
    `setting` says all."""
    overview: str = ""
    """The action that shows what there is, for ``--context schema``; empty: no action does."""
    looks: Sequence[str] = ()
    """Actions that look around, for the scripted stand-in of a model; ``{place}`` stands for a path
    of the task's."""
    mistakes: Callable[[Sequence[str], Dice], Iterator[str]] = shorter_pipelines
    """Wrong actions that are tempting, the least wrong first, from the actions of a solution."""
    wrong: Sequence[str] = ("echo 42",)
    """Actions that solve no task unless by chance; `validate` tries them."""
    constants: Sequence[Guess] = ()
    """More constant actions for `validate`, independent of the task."""
    prediction: Callable[[str], str] | None = None
    """Makes an action of a prediction; None: the code that is found in it."""
    fields: Sequence[str] = ()
    """The fields of a task's metadata that the environment reads, beside those of all tasks."""
    secret_gold: bool = False
    """Whether gold is a secret, as a flag is: then no file and no process may show it."""
    pure_reward: Callable[[], Reward[Any] | Function] | None = None
    """Makes the environment's own reward, if it needs nothing but the record of an episode."""
    programs: Sequence[str] = ()
    """The programs of the image that the interpreter and its actions need."""
    rules: Sequence[str] = ()
    """The rules of the environment's own reward, by their names in `intercode.registry.RULES`."""
    separable: bool = True
    """Whether an episode can be repeated by itself. False: it finds what others have left."""
    provider: Callable[[str], Provider] = field(default=get_provider)
    """Gives the provider of its sandboxes by name."""
    is_remote: bool = False
    """Whether its tasks are tried elsewhere: it has no sandboxes of ours."""
    recognises: Callable[[Sequence[Task]], bool] | None = None
    """Tells from tasks alone whether they are for this environment."""


def _python_provider(name: str) -> Provider:
    """Return the provider whose sandboxes have our Python loaded."""
    from intercode.interpreters.python_start import provider

    return provider(name)


def _drop_clauses(solution: Sequence[str], dice: Dice) -> Iterator[str]:
    """Yield queries that ask for less; a wrong change of data could not be undone."""
    if solution[0].startswith(("SELECT ", "WITH ")):
        parts = _CLAUSE.split(solution[0])
        yield from (" ".join(parts[:count]) for count in range(len(parts) - 1, 0, -1))


def _drop_result(solution: Sequence[str], dice: Dice) -> Iterator[str]:
    """Yield the function that returns None."""
    prefix, separator, suffix = solution[0].rpartition("return ")
    if separator:
        yield f"{prefix}return None{''.join(suffix.partition(chr(10))[1:])}"


def python_answer(value: str) -> tuple[str, ...]:
    """Define a function that prints and returns a value, and submit it as the one asked for."""
    return f"def answer(*given, **named):\n    print({value})\n    return {value}", "submit answer"


SETTING_COMMAND = """(
. /etc/os-release
printf '%s' "Bash ${BASH_VERSION%%[!0-9.]*} on ${PRETTY_NAME:-Linux}"
printf '%s' ", as $(id -un || echo "$UID") in $PWD"
and=', with '
for program in awk python3 perl jq git curl sqlite3 gcc make; do
    command -v "$program" >/dev/null && printf '%s' "$and$program" && and=', '
done
:
) 2>/dev/null"""
"""The command that names a shell's machine, user, folder and some of its programs."""

SHELL = Traits(
    language="bash",
    programs=("bash",),
    setting="Bash on Linux",
    parameter="command",
    parameter_description="The command, or several, as typed at a prompt.",
    does="Run a command in the shell.",
    shows="What a terminal would show.",
    random_actions=(
        "ls -la",
        "pwd",
        "find . -type f | head -n 20",
        "cat *",
        "wc -l *",
        "du -sh .",
        "date",
        "whoami",
        "touch new.txt",
        "mkdir -p new",
        "sort * | uniq -c | head",
        "echo 42",
    ),
    where=SETTING_COMMAND,
    overview="pwd; ls -lA",
    looks=("ls -la {place}", "find {place} | head -n 5"),
)
"""An environment whose actions are commands of a shell."""

SQL = Traits(
    language="sql",
    setting="SQL",
    parameter="statement",
    parameter_description="The statement, or several with semicolons between them.",
    does="Run a statement in the database.",
    shows="The result as a table, or the error.",
    random_actions=(
        "SELECT 1",
        "SELECT 42",
        "SELECT NULL",
        "SELECT CURRENT_DATE",
        "SELECT COUNT(*) FROM (SELECT 1 AS one) AS rows_",
        "SELECT 'yes'",
        "SELECT 0 WHERE 1 = 0",
    ),
    overview=".schema",
    looks=(
        "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name",
        "SELECT COUNT(*) AS tables FROM sqlite_master WHERE type = 'table'",
    ),
    mistakes=_drop_clauses,
    wrong=("SELECT 42",),
)
"""An environment whose actions are statements of SQL."""

PYTHON = Traits(
    language="python",
    setting="Python 3",
    parameter="code",
    parameter_description="The code, of one line or several.",
    does="Run code at the Python prompt.",
    shows="What the prompt would show.",
    random_actions=(
        "42",
        "print(dir())",
        "def answer(*given):\n    return given",
        "import math, random",
        "help",
        "[]",
    ),
    where="print('Python', __import__('platform').python_version())",
    looks=("import os; sorted(os.listdir())", "import sys; sys.version"),
    mistakes=_drop_result,
    wrong=python_answer("42"),
    may_answer="function",
    answer_description="The name of the function that is the answer, "
    "if it has another than the task says.",
    provider=_python_provider,
)
"""An environment whose actions are entered at a Python prompt."""

TRAITS_BY_LANGUAGE: Mapping[str, Traits] = {
    traits.language: traits for traits in (SHELL, SQL, PYTHON)
}


def language_traits(language: str) -> Traits:
    """Return what can be said of an environment by its language alone."""
    return TRAITS_BY_LANGUAGE.get(language) or Traits(language=language)


def find_traits(name: str, protocol: str = "default") -> Traits:
    """Find the traits of an environment, which is imported for that, and not started.

    Args:
        name: Its registered name; any other has the traits of a shell.
        protocol: As in `intercode.make`.
    """
    return getattr(_class(name, protocol), "traits", SHELL)


def resolve_traits(env: object) -> Traits:
    """Find the traits of an environment, or of an object that has no more than its name."""
    if isinstance(traits := getattr(env, "traits", None), Traits):
        return traits
    if (name := str(getattr(env, "name", ""))) in ENVS:
        return find_traits(name)
    return language_traits(str(getattr(env, "language", SHELL.language)))


def find_prompt(name: str) -> str:
    """Find the text before an action where people read it, in a recorded environment.

    The module of an installed package is not imported because a record names it.
    """
    env_class = _class(name) if ENVS.is_trusted(name) else None
    return str(getattr(env_class, "prompt", "$ "))


def find_max_turns(name: str, protocol: str = "default") -> int:
    """Find the most turns of an episode in an environment of this name, unless they are given."""
    options = getattr(_class(name, protocol), "Options", SandboxOptions)
    return int(options().max_turns)


def check_imported(name: str, protocol: str = "default", *, trust: bool = False) -> None:
    """Refuse a recorded environment that is an installed package's, and not imported yet.

    Args:
        name: Its name in the record.
        protocol: As in `intercode.make`.
        trust: Whether the record may name it.

    Raises:
        TrustError: Its module would be imported for no reason but the record.
    """
    for entry in (name, f"{name}:{protocol}"):
        for registry in (ENVS, SOURCES):
            if not trust and entry in registry and not registry.is_trusted(entry):
                raise TrustError(
                    f"the record names the environment {entry!r} of an installed package: import "
                    "the package first, or trust the record (--trust; trust=True)"
                )


def _class(name: str, protocol: str = "default") -> object:
    """Import an environment's class; None if there is none, as for a record from elsewhere."""
    try:
        return environment(name, protocol)
    except (UsageError, ImportError):
        return None


def detect_environment(tasks: Sequence[Task]) -> str:
    """Name the environment that tasks are for, by their looks: ``bash`` if none recognises them."""
    for name in ENVS.names():
        recognises = find_traits(name).recognises
        if ":" not in name and recognises is not None and recognises(tasks):
            return name
    return "bash"
