"""A stand-in for a language model: scripted, and it knows gold.

It looks around, is wrong, and mends what it did, by the throw of dice; it speaks through a real
strategy, with the prompts, the parser and the record of one. So it shows what a run and its report
look like where there is no model. Its rate is that of its dice, and tells nothing of any model.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from intercode.agents.base import Agent
from intercode.agents.language import LanguageAgents
from intercode.agents.scene import Scene
from intercode.agents.try_again import TRY_AGAIN
from intercode.models.base import Message
from intercode.models.prices import Price
from intercode.models.remote import Around, RemoteModel
from intercode.models.scripted import Line, Script, ScriptedClient

if TYPE_CHECKING:
    from intercode.task import Task

NAME = "scripted"
"""What it calls itself, so that nobody takes it for a model."""
KNOWS, GIVES_UP = 0.2, 0.25
"""How likely it is, before each turn, to be right from then on; and after each, to stop wrongly."""

LOOK, TRY, MEND, DONE = (
    "Let me look around first.",
    "This should be it.",
    "Now I see what is asked for.",
    "That is it.",
)
_LOOKS: Mapping[str, tuple[str, ...]] = {
    "bash": ("ls -la {place}", "find {place} | head -n 5"),
    "ctf": ("ls -la", "head -c 200 *"),
    "python": ("import os; sorted(os.listdir())", "import sys; sys.version"),
    "sql": (
        "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name",
        "SELECT COUNT(*) AS tables FROM sqlite_master WHERE type = 'table'",
    ),
    "swe": ("git log --oneline | head -n 3", "ls -R | head -n 12"),
}
"""Environment → ways to look around."""
_PATH = re.compile(r"(?<![\w.])/[\w-]+(?:/[\w.-]*\w)*")
_CLAUSE = re.compile(r" (?=(?:WHERE|GROUP BY|HAVING|ORDER BY|LIMIT) )")

Step = tuple[str, str]
"""What it says, and the action that goes with it."""


class StandIn:
    """Makes the agents: a strategy's, with a model that is made anew for each episode."""

    name = TRY_AGAIN.name
    needs_gold = True

    def facts(self) -> dict[str, Any]:
        """What identifies them, for a run's record."""
        return {**_agents([]).facts(), "knows": KNOWS, "gives_up": GIVES_UP}

    def __call__(self, task: Task) -> Agent:
        """The agent of one episode, in a shell."""
        return self.within(None, task)

    def within(self, env: object, task: Task) -> Agent:
        """The agent of one episode in this environment."""
        scene = Scene.of(env, task)
        solution = getattr(env, "solution", lambda task: [*task.gold[:1], "submit"])(task)
        steps = plan(scene, solution, random.Random(scene.seed or 0))
        return _agents(replies(steps, scene.language)).within(env, task)


def plan(scene: Scene, solution: Sequence[str], dice: random.Random) -> list[Step]:
    """What it will say and do in an episode.

    Args:
        scene: Where it is.
        solution: Actions that solve the task, the last of them a submit.
        dice: Decide when it knows, and whether it gives up.
    """
    looks = dice.sample(_LOOKS.get(scene.env, _LOOKS["bash"]), dice.randint(1, 2))
    detours = [(LOOK, look.format(place=_place(scene.query))) for look in looks]
    # Each is a little less wrong than the one before.
    detours += [(TRY, wrong) for wrong in reversed([*mistakes(scene.env, solution, dice)])]
    steps: list[Step] = []
    for detour in detours:
        if dice.random() < KNOWS:
            break
        if steps and dice.random() < GIVES_UP:
            return [*steps, (DONE, "submit")]
        steps.append(detour)
    return [*steps, *((DONE if a.startswith("submit") else MEND, a) for a in solution)]


def mistakes(env: str, solution: Sequence[str], dice: random.Random) -> Iterator[str]:
    """Wrong actions that are tempting, the least wrong first: gold with a piece of it missing."""
    if env == "ctf":
        yield f"submit intercode{{{dice.randrange(16**6):06x}}}"
    elif solution:
        yield from _SPOILT.get(env, _without_a_stage)(solution[0])


def _without_a_stage(action: str) -> Iterator[str]:
    """A pipeline that ends too early."""
    while " | " in action:
        action = action.rpartition(" | ")[0]
        yield action


def _without_a_clause(action: str) -> Iterator[str]:
    """A query that asks for less. What changes data is left alone: that could not be mended."""
    parts = _CLAUSE.split(action)
    if action.startswith(("SELECT ", "WITH ")):
        yield from (" ".join(parts[:count]) for count in range(len(parts) - 1, 0, -1))


def _without_a_result(action: str) -> Iterator[str]:
    """A function that returns nothing."""
    before, found, rest = action.rpartition("return ")
    if found:
        yield f"{before}return None{''.join(rest.partition(chr(10))[1:])}"


def _without_an_end(action: str) -> Iterator[str]:
    """A patch that is cut off, as models' often are."""
    first, *lines = action.split("\n")
    if len(lines) > 2:
        yield "\n".join([first, *lines[: 2 * len(lines) // 3], lines[-1]])


_SPOILT: Mapping[str, Callable[[str], Iterator[str]]] = {
    "sql": _without_a_clause,
    "python": _without_a_result,
    "swe": _without_an_end,
}


def _place(query: str) -> str:
    """The first path that a task names."""
    found = _PATH.search(query)
    return found[0] if found else "."


def replies(steps: Iterable[Step], language: str) -> list[str]:
    """What it says at each step: a few words, and the action in a fence that it does not end."""
    said = []
    for words, action in steps:
        longest = max(map(len, re.findall("`+", action)), default=0)
        fence = "`" * max(3, longest + 1)
        said.append(f"{words}\n\n{fence}{language}\n{action}\n{fence}")
    return said


def _agents(said: Sequence[str]) -> LanguageAgents:
    around = Around(price=Price(0.0, 0.0))
    return TRY_AGAIN(RemoteModel(NAME, ScriptedClient(_script(said), NAME), around))


def _script(said: Sequence[str]) -> Script:
    def say(messages: Sequence[Message]) -> Line:
        spoken = sum(message.role == "assistant" for message in messages)
        return Line(said[min(spoken, len(said) - 1)])

    return say
