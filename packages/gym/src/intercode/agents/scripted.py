"""A stand-in for a language model: scripted, and it knows gold.

It looks around, makes random errors, and fixes them; it speaks through a real
strategy, with the prompts, the parser and the record of one. So it shows what a run and its report
look like where there is no model. Its rate is that of its dice, and tells nothing of any model.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from intercode.agents.base import Agent
from intercode.agents.conversation import Scene, fence_action
from intercode.agents.language import LanguageAgents
from intercode.agents.strategies import TRY_AGAIN
from intercode.envs.traits import SHELL
from intercode.models.base import Message
from intercode.models.prices import Price
from intercode.models.remote import Around, RemoteModel
from intercode.models.scripted import Line, Script, ScriptedClient

if TYPE_CHECKING:
    from intercode.task import Task

NAME = "scripted"
"""The stand-in's name, which no one takes for a model's."""
KNOW_RATE, GIVE_UP_RATE = 0.2, 0.25
"""How likely it is, before each turn, to be right from then on; and after each, to stop wrongly."""

LOOK, TRY, FIX, DONE = (
    "Let me look around first.",
    "This should be it.",
    "Now I see what is asked for.",
    "That is it.",
)
_PATH = re.compile(r"(?<![\w.])/[\w-]+(?:/[\w.-]*\w)*")

Step = tuple[str, str]
"""A reply's words, and the action that goes with them."""


class ScriptedAgents:
    """Factory of agents: a strategy's, with a new scripted model for each episode."""

    name = TRY_AGAIN.name
    needs_gold = True

    def facts(self) -> dict[str, Any]:
        """Return the identity of these agents, for a run's record."""
        return {**_agents([]).facts(), "knows": KNOW_RATE, "gives_up": GIVE_UP_RATE}

    def __call__(self, task: Task) -> Agent:
        """The agent of one episode, in a shell."""
        return self.within(None, task)

    def within(self, env: object, task: Task) -> Agent:
        """The agent of one episode in this environment."""
        scene = Scene.of(env, task)
        solution = getattr(env, "solution", lambda task: [*task.gold[:1], "submit"])(task)
        steps = plan(scene, solution, random.Random(scene.seed or 0))
        return cast("Agent", _agents(replies(steps, scene.language)).within(env, task))


def plan(scene: Scene, solution: Sequence[str], dice: random.Random) -> list[Step]:
    """Return the stand-in's words and actions in an episode.

    Args:
        scene: Where it is.
        solution: Actions that solve the task, the last of them a submit.
        dice: Decide when it knows, and whether it gives up.
    """
    looks = dice.sample(scene.traits.looks or SHELL.looks, dice.randint(1, 2))
    detours = [(LOOK, look.format(place=_place(scene.query))) for look in looks]
    # Each is a little less wrong than the one before.
    detours += [(TRY, action) for action in reversed([*scene.traits.mistakes(solution, dice)])]
    steps: list[Step] = []
    for detour in detours:
        if dice.random() < KNOW_RATE:
            break
        if steps and dice.random() < GIVE_UP_RATE:
            return [*steps, (DONE, "submit")]
        steps.append(detour)
    return [*steps, *((DONE if a.startswith("submit") else FIX, a) for a in solution)]


def _place(query: str) -> str:
    """The first path that a task names."""
    match = _PATH.search(query)
    return match[0] if match else "."


def replies(steps: Iterable[Step], language: str) -> list[str]:
    """Return the reply of each step: a few words, and the action in a fence."""
    return [f"{words}\n\n{fence_action(action, language)}" for words, action in steps]


def _agents(reply_texts: Sequence[str]) -> LanguageAgents:
    call_context = Around(price=Price(0.0, 0.0))
    return TRY_AGAIN(RemoteModel(NAME, ScriptedClient(_script(reply_texts), NAME), call_context))


def _script(reply_texts: Sequence[str]) -> Script:
    def say(messages: Sequence[Message]) -> Line:
        reply_count = sum(message.role == "assistant" for message in messages)
        return Line(reply_texts[min(reply_count, len(reply_texts) - 1)])

    return say
