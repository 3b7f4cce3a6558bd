"""One episode's talk with a model: prompts go to it, actions come back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from intercode.agents.dialogue import Dialogue
from intercode.agents.parser import find_code, said
from intercode.agents.prompt import Prompt
from intercode.agents.scene import Scene
from intercode.episode import NoAction
from intercode.models.base import Reply
from intercode.models.transcript import Transcript

NO_CODE = "no {language} code in your reply: give it in one block fenced by ```{language} and ```"
CUT_OFF = "your reply was cut off before its code was complete: be shorter"
LEFT_OUT = "\n[… {} characters are left out here …]\n"


@dataclass(frozen=True, slots=True)
class Clip:
    """How much of an observation a model is shown.

    Attributes:
        limit: Characters.
        tail: Whether its end is shown, too, and how much is left out between; in 2023 it was not.
    """

    limit: int = 10_000
    tail: bool = True

    def __call__(self, text: str) -> str:
        """The text, or what is shown of it."""
        if len(text) <= self.limit:
            return text
        if not self.tail:
            return text[: self.limit]
        head = self.limit // 2
        rest = len(text) - self.limit
        return text[:head] + LEFT_OUT.format(rest) + text[len(text) - (self.limit - head) :]


@dataclass(frozen=True, slots=True)
class Talk:
    """What strategies are made of."""

    dialogue: Dialogue
    prompt: Prompt
    scene: Scene
    transcript: Transcript
    clip: Clip = Clip()
    sees_reward: bool = False

    def begin(self, **values: Any) -> None:
        """Say where the model is, and what the task is."""
        self.dialogue.say("system", self._text("system", **values))
        self.dialogue.say("user", self._text("task", **values))

    def tell(
        self, block: str, observation: str | None, call_id: str | None = None, **values: Any
    ) -> None:
        """Say a piece of the prompt that has an observation in it."""
        shown = None if observation is None else self.clip(observation.rstrip("\n"))
        text = self._text(block, observation=shown, **values)
        self.dialogue.say("user" if call_id is None else "tool", text, call_id)

    def ask(self, read: Callable[[str], str] | None = None) -> str:
        """The model's next action; a `NoAction` if there is none in what it says.

        Args:
            read: The part of what it says in which to look for the action.
        """
        reply = self.reply()
        text = reply.text if read is None else read(said(reply.text))
        language, cut_off = self.scene.language, reply.finish == "length"
        code = find_code(text, language, cut_off=cut_off)
        if code is None:
            return NoAction(CUT_OFF if cut_off else NO_CODE.format(language=language))
        return code

    def reply(self) -> Reply:
        """What the model says next."""
        return self.dialogue.ask()

    def note(self, **facts: Any) -> None:
        """Say more of the last reply, for the record."""
        self.transcript.note(**facts)

    def _text(self, block: str, **values: Any) -> str:
        known = {**self.scene.values(), "show_reward": self.sees_reward}
        return self.prompt.render(block, **{**known, **values})
