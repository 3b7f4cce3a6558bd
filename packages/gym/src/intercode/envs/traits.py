"""Traits: the facts about an environment class that the rest of the package uses.

An environment's class defines its traits: ``traits = Traits(…)``. Agents, prompts, tools, the
checks of `validate`, rescoring and the command line read the traits, and depend on no environment's
name. `find_traits` returns the traits without starting an environment.
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
    from intercode.tool_calls import ActionTool

Dice = random.Random
_CLAUSE = re.compile(r" (?=(?:WHERE|GROUP BY|HAVING|ORDER BY|LIMIT) )")


def constant_actions(*actions: str) -> Callable[[Task], tuple[str, ...]]:
    """Return a function that returns the same actions for every task."""
    return lambda task: actions


@dataclass(frozen=True, slots=True)
class GuessedSolution:
    """Actions that `validate` tries on a task, and that do not depend on any observation.

    If a guess of the role ``constant`` or ``trick`` solves a task, and not by chance, the task is
    broken.
    """

    name: str
    """The name, for people."""
    actions: Callable[[Task], tuple[str, ...]]
    by_chance: bool = False
    """Whether the guess may be correct, or pass the tests, by chance."""
    idle: bool = False
    """Whether the actions print nothing and change nothing."""
    role: Literal["constant", "trick", "alternative", "clock"] = "constant"
    """The origin of the actions. ``constant``: the actions ignore the task. ``trick``: the actions
    use words from the task's verification. ``alternative``: the actions solve the task.
    ``clock``: the actions move the clock; `validate` runs gold after them."""


def shorter_pipelines(solution: Sequence[str], dice: Dice) -> Iterator[str]:
    """Yield a solution's pipeline without its last command, the last two, and so on."""
    action = solution[0]
    while " | " in action:
        action = action.rpartition(" | ")[0]
        yield action


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """The facts about an environment class; only the language has no default.

    For example::

        traits = Traits(
            language="awk",
            parameter="program",
            does="Run an awk program.",
            random_actions=("BEGIN { print 42 }",),
            wrong=("BEGIN { print 42 }",),
        )
    """

    language: str
    """The language of actions, which is also the tool's name and the tag of code blocks."""
    setting: str = ""
    """The interpreter and its system in prompts, such as ``Bash on Linux``; empty: the language."""
    briefing: str = ""
    """The description of the workspace in prompts; empty: the language's description. The result
    of `InterCodeEnv.setting` replaces ``{setting}``."""
    parameter: str = "code"
    """The name of the tool's parameter."""
    parameter_description: str = "The code."
    """The parameter's description for models."""
    does: str = "Run code."
    """The tool's description for models."""
    shows: str = "What it printed."
    """The description of the tool's result."""
    answer: str = ""
    """The word for the answer in ``submit ANSWER``, such as ``flag``, if an answer is required."""
    may_answer: str = ""
    """The word for the answer in ``submit ANSWER``, if the answer is optional."""
    answer_description: str = ""
    """The answer's description for models; empty: a sentence with the word for the answer."""
    hint: str = ""
    """A sentence on the other tools, for prompts."""
    more: Sequence[ActionTool] = ()
    """The tools in addition to ``submit`` and the tool that runs code. The interpreter executes the
    actions of these tools, too."""
    random_actions: Sequence[str] = ()
    """Actions of the random agent."""
    where: str = ""
    """The action that prints the line of `InterCodeEnv.setting`, such as version and user; empty:
    the line is the attribute `setting`."""
    overview: str = ""
    """The action that lists the workspace's content, for ``--context schema``; empty: none."""
    looks: Sequence[str] = ()
    """Exploratory actions of the scripted model; ``{place}`` stands for a path of the task."""
    mistakes: Callable[[Sequence[str], Dice], Iterator[str]] = shorter_pipelines
    """Generates plausible wrong actions from a solution's actions, the least wrong first."""
    wrong: Sequence[str] = ("echo 42",)
    """Actions that solve a task only by chance; `validate` tries them."""
    constants: Sequence[GuessedSolution] = ()
    """Additional guesses for `validate`."""
    prediction: Callable[[str], str] | None = None
    """Converts a prediction to an action; None: the prediction's code is the action."""
    fields: Sequence[str] = ()
    """The task metadata fields that only this environment reads."""
    secret_gold: bool = False
    """Whether gold is secret, such as a flag: no file and no process may expose it."""
    pure_reward: Callable[[], Reward[Any] | Function] | None = None
    """Constructs the environment's own reward, if that reward needs only an episode's record."""
    programs: Sequence[str] = ()
    """The programs of the image that the interpreter and its actions need."""
    rules: Sequence[str] = ()
    """The rules of the environment's own reward, by their names in `intercode.registry.RULES`."""
    separable: bool = True
    """Whether an episode can be repeated alone. False: the episode depends on earlier episodes."""
    provider: Callable[[str], Provider] = field(default=get_provider)
    """Returns a sandbox provider by name."""
    is_remote: bool = False
    """Whether episodes run on a remote system, without InterCode's sandboxes."""
    recognises: Callable[[Sequence[Task]], bool] | None = None
    """Returns whether tasks belong to this environment, judged by the tasks alone."""


def _python_provider(name: str) -> Provider:
    """Return the provider whose sandboxes have InterCode's Python loaded."""
    from intercode.interpreters.python_start import provider

    return provider(name)


def _drop_clauses(solution: Sequence[str], dice: Dice) -> Iterator[str]:
    """Yield an SQL query without its last clause, without its last two, and so on.

    A statement that changes data yields nothing, because a wrong change could not be undone.
    """
    if solution[0].startswith(("SELECT ", "WITH ")):
        clauses = _CLAUSE.split(solution[0])
        yield from (" ".join(clauses[:count]) for count in range(len(clauses) - 1, 0, -1))


def _drop_result(solution: Sequence[str], dice: Dice) -> Iterator[str]:
    """Yield the solution's function with ``return None`` as its last return statement."""
    prefix, separator, suffix = solution[0].rpartition("return ")
    if separator:
        yield f"{prefix}return None{''.join(suffix.partition(chr(10))[1:])}"


def python_answer(value: str) -> tuple[str, ...]:
    """Return the actions of a Python guess: define a function `answer`, and submit the function.

    Args:
        value: The Python expression whose value the function prints and returns.
    """
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
"""The command that prints a shell's version, system, user, working directory and programs."""

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
"""The traits of an environment whose actions are shell commands."""

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
"""The traits of an environment whose actions are SQL statements."""

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
"""The traits of an environment whose actions are input at a Python prompt."""

TRAITS_BY_LANGUAGE: Mapping[str, Traits] = {
    traits.language: traits for traits in (SHELL, SQL, PYTHON)
}


def language_traits(language: str) -> Traits:
    """Return the traits that follow from an environment's language alone."""
    return TRAITS_BY_LANGUAGE.get(language) or Traits(language=language)


def find_traits(name: str, protocol: str = "default") -> Traits:
    """Return the traits of an environment: its class is imported, but no instance is made.

    Args:
        name: The registered name; an unknown name has the traits of a shell.
        protocol: As in `intercode.make`.
    """
    return getattr(_class(name, protocol), "traits", SHELL)


def resolve_traits(env: object) -> Traits:
    """Return the traits of an environment, or of an object with only a name or a language."""
    if isinstance(traits := getattr(env, "traits", None), Traits):
        return traits
    if (name := str(getattr(env, "name", ""))) in ENVS:
        return find_traits(name)
    return language_traits(str(getattr(env, "language", SHELL.language)))


def find_prompt(name: str) -> str:
    """Return the prompt before an action, for the display of a recorded environment.

    Args:
        name: The environment's name in a record. The record may be untrusted. The name must
            therefore not cause the import of an installed package.
    """
    env_class = _class(name) if ENVS.is_trusted(name) else None
    return str(getattr(env_class, "prompt", "$ "))


def find_max_turns(name: str, protocol: str = "default") -> int:
    """Return the default turn limit of the environment with this name."""
    options = getattr(_class(name, protocol), "Options", SandboxOptions)
    return int(options().max_turns)


def check_imported(name: str, protocol: str = "default", *, trust: bool = False) -> None:
    """Refuse a recorded environment of an installed package that is not imported yet.

    Args:
        name: The environment's name in the record.
        protocol: As in `intercode.make`.
        trust: Whether the record is trusted.

    Raises:
        TrustError: The record alone would cause the import of the package's module.
    """
    for entry in (name, f"{name}:{protocol}"):
        for registry in (ENVS, SOURCES):
            if not trust and entry in registry and not registry.is_trusted(entry):
                raise TrustError(
                    f"the record names the environment {entry!r} of an installed package: import "
                    "the package first, or trust the record (--trust; trust=True)"
                )


def _class(name: str, protocol: str = "default") -> object:
    """Return an environment's class; None if this installation lacks the class.

    A record from another machine may name such an environment.
    """
    try:
        return environment(name, protocol)
    except (UsageError, ImportError):
        return None


def detect_environment(tasks: Sequence[Task]) -> str:
    """Return the name of the environment that recognises the tasks; ``bash`` if none does."""
    for name in ENVS.names():
        recognises = find_traits(name).recognises
        if ":" not in name and recognises is not None and recognises(tasks):
            return name
    return "bash"
