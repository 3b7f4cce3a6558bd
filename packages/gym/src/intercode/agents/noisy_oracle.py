"""The scripted agent: a script that knows gold gives the replies, in place of a language model.

The script lists files or tables, makes random errors, and fixes the errors. The replies pass
through a real strategy, with the strategy's prompts, parser and record. The agent demonstrates a
run and its report without a model. The agent's success rate follows from random numbers alone, and
is not an estimate for a model.
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
from intercode.models.prices import ModelPrice
from intercode.models.remote import ModelCallContext, RemoteModel
from intercode.models.scripted import Line, Script, ScriptedModelClient

if TYPE_CHECKING:
    from intercode.task import Task

NAME = "scripted"
"""The model's name in records of scripted agents. No real model has this name."""
KNOW_RATE, GIVE_UP_RATE = 0.2, 0.25
"""Probabilities. `KNOW_RATE`: before each detour, the probability that the script drops all further
detours and takes the solution. `GIVE_UP_RATE`: between two detours, the probability that the script
submits without the solution."""

LOOK, TRY, FIX, DONE = (
    "Let me look around first.",
    "This should be it.",
    "Now I see what is asked for.",
    "That is it.",
)
_PATH = re.compile(r"(?<![\w.])/[\w-]+(?:/[\w.-]*\w)*")

Step = tuple[str, str]
"""The words of a reply, and its action."""


class NoisyOracleAgents:
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
    """Return the words and actions of the script in an episode.

    Args:
        scene: The facts of the episode.
        solution: Actions that solve the task; the last action submits.
        dice: The random numbers for the choice of detours, knowing and giving up.
    """
    look_templates = dice.sample(scene.traits.looks or SHELL.looks, dice.randint(1, 2))
    detours = [
        (LOOK, look_template.format(place=_first_path(scene.query)))
        for look_template in look_templates
    ]
    # The mistakes are in reverse order, so each is a little closer to the solution than the
    # previous one.
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
    """Return the first path in a query; ``.`` if the query names no path."""
    match = _PATH.search(query)
    return match[0] if match else "."


def replies(steps: Iterable[Step], language: str) -> list[str]:
    """Return one reply for each step: the words, and the action as a fenced block."""
    return [f"{words}\n\n{fence_action(action, language)}" for words, action in steps]


def _scripted_agents(reply_texts: Sequence[str]) -> LanguageAgents:
    call_context = ModelCallContext(price=ModelPrice(0.0, 0.0))
    return TRY_AGAIN(
        RemoteModel(NAME, ScriptedModelClient(_sequential_script(reply_texts), NAME), call_context)
    )


def _sequential_script(reply_texts: Sequence[str]) -> Script:
    def say(messages: Sequence[Message]) -> Line:
        reply_count = sum(message.role == "assistant" for message in messages)
        return Line(reply_texts[min(reply_count, len(reply_texts) - 1)])

    return say
