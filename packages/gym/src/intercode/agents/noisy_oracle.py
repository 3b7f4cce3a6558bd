"""The scripted agent: a stand-in for a language model, which knows gold.

The script lists files or tables, makes random errors, and fixes them. Its replies pass through a
real strategy, with its prompts, parser and record. The agent demonstrates a run and its report
without a model. Its success rate follows from random numbers alone, and is not an estimate for a
model.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from intercode.agents.base import Agent
from intercode.agents.conversation import PromptContext, fence_action
from intercode.agents.language import LanguageAgents
from intercode.agents.strategies import TRY_AGAIN
from intercode.envs.traits import SHELL
from intercode.models.base import Message
from intercode.models.prices import Price
from intercode.models.remote import CallContext, RemoteModel
from intercode.models.scripted import Line, Script, ScriptedClient

if TYPE_CHECKING:
    from intercode.task import Task

NAME = "scripted"
"""The model name of the stand-in, distinct from the name of any real model."""
KNOW_RATE, GIVE_UP_RATE = 0.2, 0.25
"""Probabilities: before each turn, of being right from then on; after each, of stopping wrongly."""

LOOK, TRY, FIX, DONE = (
    "Let me look around first.",
    "This should be it.",
    "Now I see what is asked for.",
    "That is it.",
)
_PATH = re.compile(r"(?<![\w.])/[\w-]+(?:/[\w.-]*\w)*")

Step = tuple[str, str]
"""The words of a reply, and its action."""


class ScriptedAgents:
    """A factory of agents: the strategy try-again with a new scripted model for each episode."""

    name = TRY_AGAIN.name
    needs_gold = True

    def facts(self) -> dict[str, Any]:
        """Return the identity of these agents, for a run's record."""
        return {**_scripted_agents([]).facts(), "knows": KNOW_RATE, "gives_up": GIVE_UP_RATE}

    def __call__(self, task: Task) -> Agent:
        """Make the agent of one episode in a shell."""
        return self.make_agent(None, task)

    def make_agent(self, env: object, task: Task) -> Agent:
        """Make the agent of one episode in this environment."""
        scene = PromptContext.from_env(env, task)
        solution = getattr(env, "solution", lambda task: [*task.gold[:1], "submit"])(task)
        steps = plan(scene, solution, random.Random(scene.seed or 0))
        return cast("Agent", _scripted_agents(replies(steps, scene.language)).make_agent(env, task))


def plan(scene: PromptContext, solution: Sequence[str], dice: random.Random) -> list[Step]:
    """Return the stand-in's words and actions in an episode.

    Args:
        scene: The scene of the episode.
        solution: Actions that solve the task; the last action submits.
        dice: The random numbers for the choice of detours, knowing and giving up.
    """
    look_templates = dice.sample(scene.traits.looks or SHELL.looks, dice.randint(1, 2))
    detours = [
        (LOOK, look_template.format(place=_first_path(scene.query)))
        for look_template in look_templates
    ]
    # The mistakes are reversed: each is a little closer to the solution than the previous one.
    detours += [(TRY, action) for action in reversed([*scene.traits.mistakes(solution, dice)])]
    steps: list[Step] = []
    for detour in detours:
        if dice.random() < KNOW_RATE:
            break
        if steps and dice.random() < GIVE_UP_RATE:
            return [*steps, (DONE, "submit")]
        steps.append(detour)
    return [
        *steps,
        *(
            (DONE if solution_action.startswith("submit") else FIX, solution_action)
            for solution_action in solution
        ),
    ]


def _first_path(query: str) -> str:
    """Return the first path in a query; ``.`` without any."""
    match = _PATH.search(query)
    return match[0] if match else "."


def replies(steps: Iterable[Step], language: str) -> list[str]:
    """Return the reply of each step: its words, and its action as a fenced block."""
    return [f"{words}\n\n{fence_action(action, language)}" for words, action in steps]


def _scripted_agents(reply_texts: Sequence[str]) -> LanguageAgents:
    call_context = CallContext(price=Price(0.0, 0.0))
    return TRY_AGAIN(
        RemoteModel(NAME, ScriptedClient(_sequential_script(reply_texts), NAME), call_context)
    )


def _sequential_script(reply_texts: Sequence[str]) -> Script:
    def say(messages: Sequence[Message]) -> Line:
        reply_count = sum(message.role == "assistant" for message in messages)
        return Line(reply_texts[min(reply_count, len(reply_texts) - 1)])

    return say
