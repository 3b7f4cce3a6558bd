"""Strategies: ways of prompting a language model to act in an episode.

- *Try Again*: code, its output, and code again, until the model submits.
- *Single turn*: one reply, whose code is executed and submitted.
- *ReAct*: thought, action and observation in every turn (Yao et al., 2023).
- *Plan & Solve*: first a plan, then one step of the plan per turn (Wang et al., 2023). With
  *refine* the model may continue after the last step, until it submits.
- *Tool calling*: actions are the model's function calls.

In the experiments of 2023, Try Again and Plan & Solve showed the model the true reward of every
turn. An episode ended at the reward 1. Only an oracle can give such feedback. The agents that
repeat these experiments therefore have the suffix ``-oracle``.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile

from intercode.agents.conversation import CUT_OFF, Conversation, fence_action, turn_values
from intercode.agents.examples import ExampleStep
from intercode.agents.language import PromptStrategy
from intercode.agents.parser import leading_block, strip_thoughts
from intercode.envs.tools import list_tools, read_action
from intercode.episode import NoAction, Turn
from intercode.failure_modes import changes_nothing
from intercode.models.base import Reply
from intercode.tool_calls import ToolCall


def is_repeated_failure(action: str, history: Sequence[Turn]) -> bool:
    """Return whether an action repeats a failed action word for word, or submits after a failure.

    Only failures after the last successful action that may have changed the workspace count.
    """
    recent_turns = takewhile(lambda turn: not turn.ok or changes_nothing(turn), reversed(history))
    failed_actions = {
        turn.action.strip() for turn in recent_turns if not turn.ok and not turn.info.get("invalid")
    }
    if history and history[-1].action.strip() in failed_actions:
        failed_actions.add("submit")
    return action.strip() in failed_actions


def next_action(
    talk: Conversation, history: Sequence[Turn], read: Callable[[str], str] | None = None
) -> str:
    """Request the next action from the model.

    If the model repeats a failed action, or submits after a failure, the function requests the
    action once more with a recap. The second reply may choose an action that failed in both of the
    last two turns. Then the function submits the episode, because further turns would be the same.

    Args:
        talk: The conversation; see `Conversation.ask_again` for recaps.
        history: The turns so far.
        read: As in `Conversation.ask`.
    """
    action = talk.ask(read)
    if not talk.recaps or not is_repeated_failure(action, history):
        return action
    second_action = talk.ask_again(history, read)
    action = action if second_action is None else second_action
    recent_actions = [turn.action.strip() for turn in history[-2:] if not turn.ok]
    if recent_actions != [action.strip()] * 2:
        return action
    talk.note(gave_up=True)
    return "submit"


class TryAgainAgent:
    """An agent that shows the model each action's output, and with oracle feedback the reward."""

    _read: Callable[[str], str] | None = None
    """Returns the part of a reply that holds the action; None: the whole reply."""

    def __init__(self, talk: Conversation) -> None:
        self._talk = talk

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        """Return the model's next action."""
        if not history:
            self._talk.begin(self._write_step)
        else:
            self._talk.add_observation("observation", observation, **turn_values(history))
        return next_action(self._talk, history, self._read)

    def _write_step(self, step: ExampleStep) -> Reply:
        return Reply(fence_action(step.action, self._talk.scene.language))


TRY_AGAIN = PromptStrategy("try-again", "try_again", TryAgainAgent, examples="local", recaps=True)
TRY_AGAIN_ORACLE = PromptStrategy(
    "try-again-oracle", "try_again", TryAgainAgent, sees_reward=True, examples="local"
)


class SingleTurnAgent:
    """An agent that requests one reply, executes its action, and submits."""

    def __init__(self, talk: Conversation) -> None:
        self._talk = talk

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        """Return the model's action, then ``submit``."""
        if history:
            return "submit"
        self._talk.begin()
        return self._talk.ask()


SINGLE_TURN = PromptStrategy("single-turn", "single_turn", SingleTurnAgent)


_THOUGHT = re.compile(r"^[*_ ]*Thought(?: \d+)?[*_]*:[*_]*[ \t]*", re.MULTILINE)
_ACTION = re.compile(r"^[*_ ]*Action(?: \d+)?[*_]*:[*_]*[ \t]*", re.MULTILINE)
_LABEL = re.compile(r"^[*_ ]*(?:Action|Observation|Thought)(?: \d+)?[*_]*:", re.MULTILINE)
_EXECUTE = re.compile(r"\s*execute\[(.*)\]\s*", re.DOTALL)
"""The form of actions in the prompts of 2023, and in prompts derived from them."""


class ReactAgent(TryAgainAgent):
    """A ReAct agent, which uses the first thought and the first action of each reply.

    Text after the first action, such as an observation that the model imagined, is dropped.
    """

    def _write_step(self, step: ExampleStep) -> Reply:
        action = fence_action(step.action, self._talk.scene.language)
        return Reply(f"Thought: {step.thought}\nAction:\n{action}")

    def _read(self, text: str) -> str:
        thought, action = split(text, self._talk.scene.language)
        self._talk.note(thought=thought)
        return action


def split(text: str, language: str = "") -> tuple[str, str]:
    """Split a reply into its first thought and action.

    Without the label ``Action:`` the thought is empty, and the action is the whole reply.

    Args:
        text: The reply.
        language: The language of a fenced block without a tag.
    """
    label = _ACTION.search(text)
    if label is None:
        return "", text
    thought = _THOUGHT.sub("", text[: label.start()], count=1).strip()
    action = text[label.end() :]
    if block := leading_block(action, language):
        return thought, block
    if next_label := _LABEL.search(action):
        action = action[: next_label.start()]
    execute_match = _EXECUTE.fullmatch(action)
    return thought, f"```\n{execute_match[1]}\n```" if execute_match else action


REACT = PromptStrategy("react", "react", ReactAgent, examples="always", recaps=True)
REACT_ZERO_SHOT = PromptStrategy("react-zero-shot", "react", ReactAgent, recaps=True)


_STEP = re.compile(r"^[ \t*_#]*(?:step[ \t]+)?\d+[.):][*_]*[ \t]+", re.MULTILINE | re.IGNORECASE)


class PlanSolveAgent:
    """An agent that requests a plan from the model, then an action for each step of the plan.

    Args:
        talk: The conversation.
        refine: Whether the model may continue after the last step, until it submits.
    """

    def __init__(self, talk: Conversation, *, refine: bool = False) -> None:
        self._talk = talk
        self._refine = refine
        self._plan: list[str] | None = None
        self._completed_steps = 0

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        """Return the action of the next step; after the last step, a refinement or ``submit``."""
        last_observation = observation if history else None
        values = turn_values(history) if history else {}
        if self._plan is None:
            self._plan = self._make_plan()
        if self._completed_steps < len(self._plan):
            step = self._plan[self._completed_steps]
            self._completed_steps += 1
            values |= {"step": step, "number": self._completed_steps, "steps": len(self._plan)}
            self._talk.add_observation("step", last_observation, **values)
            action = self._talk.ask()
            self._talk.note(step=step)
            return action
        if not self._refine:
            return "submit"
        self._talk.add_observation("refine", last_observation, **values)
        return self._talk.ask()

    def _make_plan(self) -> list[str]:
        self._talk.begin(max_steps=self._talk.scene.max_turns)
        reply = self._talk.reply()
        self._talk.dialogue.keep()
        return read_plan(strip_thoughts(reply.text)) or [self._talk.scene.query]


def read_plan(text: str) -> list[str]:
    """Parse the steps of a numbered list; text before and after the list is dropped."""
    steps = [step.strip() for step in _STEP.split(text)[1:]]
    if steps:  # the text after an empty line does not belong to the last step
        steps[-1] = steps[-1].partition("\n\n")[0].rstrip()
    return [step for step in steps if step]


PLAN_SOLVE = PromptStrategy("plan-solve", "plan_solve", PlanSolveAgent)
PLAN_SOLVE_REFINE = PromptStrategy(
    "plan-solve-refine", "plan_solve", partial(PlanSolveAgent, refine=True)
)
PLAN_SOLVE_REFINE_ORACLE = PromptStrategy(
    "plan-solve-refine-oracle", "plan_solve", partial(PlanSolveAgent, refine=True), sees_reward=True
)


NO_CALL = "you called no tool; every reply must call one"


class ToolCallingAgent:
    """An agent whose actions are tool calls.

    Each turn executes one call of a reply. The next reply is requested after all calls of the
    previous reply have their results.
    """

    def __init__(self, talk: Conversation) -> None:
        self._talk = talk
        self._calls: deque[ToolCall] = deque()
        self._open: str | None = None
        """The id of the call whose result is the next observation."""
        self._cut_off = False
        """Whether the last reply hit the token limit."""
        talk.dialogue.tools = list_tools(talk.scene.traits)

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        """Return the action of the next call."""
        if not history:
            self._talk.begin()
        else:
            self._talk.add_observation(
                "observation", observation, call_id=self._open, **turn_values(history)
            )
        if not self._calls:
            reply = self._talk.reply()
            self._calls.extend(reply.tool_calls)
            self._cut_off = reply.finish == "length"
        if not self._calls:
            self._open = None
            return NoAction(CUT_OFF if self._cut_off else NO_CALL)
        call = self._calls.popleft()
        self._open = call.call_id
        action = read_action(call, self._talk.scene.traits)
        if isinstance(action, NoAction) and self._cut_off and not self._calls:
            return NoAction(CUT_OFF)
        return action


TOOL_CALLING = PromptStrategy("tool-calling", "tool_calling", ToolCallingAgent)
