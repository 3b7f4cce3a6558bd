"""ReAct: a thought, an action, an observation, and so on (Yao et al., 2023)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from intercode.agents.fences import leading_block
from intercode.agents.language import Strategy
from intercode.agents.talk import Talk
from intercode.episode import Turn

_THOUGHT = re.compile(r"^[*_ ]*Thought(?: \d+)?[*_]*:[*_]*[ \t]*", re.MULTILINE)
_ACTION = re.compile(r"^[*_ ]*Action(?: \d+)?[*_]*:[*_]*[ \t]*", re.MULTILINE)
_NEXT = re.compile(r"^[*_ ]*(?:Action|Observation|Thought)(?: \d+)?[*_]*:", re.MULTILINE)
_EXECUTE = re.compile(r"\s*execute\[(.*)\]\s*", re.DOTALL)
"""How actions were written in 2023, and in prompts that follow it."""


class React:
    """Takes the first thought and action of each reply; what it imagines after them is dropped."""

    def __init__(self, talk: Talk, *, few_shot: bool = True) -> None:
        self._talk = talk
        self._few_shot = few_shot

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        """The model's next action."""
        if not history:
            self._talk.begin(few_shot=self._few_shot)
        else:
            self._talk.tell("observation", observation)
        return self._talk.ask(self._action)

    def _action(self, text: str) -> str:
        thought, action = split(text, self._talk.scene.language)
        self._talk.note(thought=thought)
        return action


def split(text: str, language: str = "") -> tuple[str, str]:
    """The first thought of a reply and its action; without any label all of it is the action.

    Args:
        text: The reply.
        language: Of a block that does not name any.
    """
    label = _ACTION.search(text)
    if label is None:
        return "", text
    thought = _THOUGHT.sub("", text[: label.start()], count=1).strip()
    action = text[label.end() :]
    if block := leading_block(action, language):
        return thought, block
    if imagined := _NEXT.search(action):
        action = action[: imagined.start()]
    executed = _EXECUTE.fullmatch(action)
    return thought, f"```\n{executed[1]}\n```" if executed else action


def _zero_shot(talk: Talk) -> React:
    return React(talk, few_shot=False)


REACT = Strategy("react", "react", React)
REACT_ZERO_SHOT = Strategy("react-zero-shot", "react", _zero_shot)
