"""Several replies instead of one, and a choice among them: models around a model.

They work under any strategy, and the dialogue goes on with the chosen reply as if it had been the
only one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from intercode.agents.parser import find_code
from intercode.agents.prompt import Prompt
from intercode.models.base import Message, Reply, Settings, Tool
from intercode.models.transcript import Transcript


class SelfConsistency:
    """The reply whose action most of the samples agree on (Wang et al., 2022); the first of them.

    Args:
        model: The one that is asked.
        samples: How often.
        language: Of the actions that are compared; blanks at their ends do not count.
    """

    def __init__(self, model: Transcript, samples: int, language: str) -> None:
        self.name = model.name
        self._model = model
        self._samples = samples
        self._language = language

    def complete(
        self,
        messages: Sequence[Message],
        settings: Settings = Settings(),  # noqa: B008 - frozen
        tools: Sequence[Tool] = (),
    ) -> Reply:
        """The chosen reply."""
        replies = sample(self._model, self._samples, messages, settings, tools)
        votes = [self._vote(reply) for reply in replies]
        # None, for a reply without an action, wins only where all have none.
        counts = Counter(vote for vote in votes if vote is not None)
        chosen = votes.index(counts.most_common(1)[0][0]) if counts else 0
        self._model.note(chosen=chosen)
        return replies[chosen]

    def _vote(self, reply: Reply) -> str | None:
        if reply.tool_calls:
            return repr([(call.name, sorted(call.arguments.items())) for call in reply.tool_calls])
        code = find_code(reply.text, self._language, cut_off=reply.finish == "length")
        return None if code is None else code.strip()


class BestOf:
    """The reply that the model itself holds to be the best of the samples.

    Args:
        model: The one that is asked, and judges.
        samples: How often it is asked.
    """

    def __init__(self, model: Transcript, samples: int) -> None:
        self.name = model.name
        self._model = model
        self._samples = samples
        self._prompt = Prompt("judge")

    def complete(
        self,
        messages: Sequence[Message],
        settings: Settings = Settings(),  # noqa: B008 - frozen
        tools: Sequence[Tool] = (),
    ) -> Reply:
        """The chosen reply."""
        replies = sample(self._model, self._samples, messages, settings, tools)
        question = self._prompt.render("judge", candidates=[*map(_shown, replies)])
        verdict = self._model.complete(
            [*messages, Message("user", question)], replace(settings, temperature=0.0)
        )
        number = re.search(r"\d+", verdict.text)
        chosen = int(number[0]) - 1 if number and len(number[0]) < 4 else 0
        chosen = chosen if 0 <= chosen < len(replies) else 0
        self._model.note(chosen=chosen)
        return replies[chosen]


def sample(
    model: Transcript,
    samples: int,
    messages: Sequence[Message],
    settings: Settings,
    tools: Sequence[Tool],
) -> list[Reply]:
    """Several replies to the same messages, each with a seed of its own."""
    replies = []
    for number in range(samples):
        seed = None if settings.seed is None else settings.seed + number
        replies.append(model.complete(messages, replace(settings, seed=seed), tools))
        model.note(sample=number)
    return replies


def _shown(reply: Reply) -> str:
    calls = [f"{call.name}({dict(call.arguments)})" for call in reply.tool_calls]
    return "\n".join([reply.text, *calls]).strip()
