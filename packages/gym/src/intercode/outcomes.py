"""Outcome kinds: the eight kinds of an episode's end, with their definitions.

The property `intercode.episode.Episode.outcome` derives the kind from the other fields of an
episode, so episodes recorded by earlier versions have a kind, too. The `info` of `step`, records,
server protocols, tables and reports use that property.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import intercode.errors as errors

OutcomeKind = Literal[
    "solved",
    "not-solved",
    "turn-limit",
    "time-limit",
    "token-limit",
    "ended-by-agent",
    "lost",
    "refused",
]
OUTCOMES: Mapping[OutcomeKind, str] = {
    "solved": "the reward is 1.0, whatever ended the episode",
    "not-solved": "the agent submitted, or its environment ended, with a lower reward",
    "turn-limit": "the agent had no turns left",
    "time-limit": "the agent had no time left",
    "token-limit": "the agent had no tokens, dollars, calls or context left",
    "ended-by-agent": "the agent skipped the task, left it, or its code ended the sandbox",
    "lost": "the infrastructure failed, or the caller interrupted the episode",
    "refused": "caused by the task, an option, the agent's code or the model's provider",
}
"""Outcome kind → its definition. Every finished episode has exactly one kind."""
UNSCORED: tuple[OutcomeKind, ...] = ("lost", "refused")
"""The kinds of episodes without a reward. No number replaces the missing reward, and no rate or
mean counts such an episode."""
KINDS_BY_CAUSE: Mapping[str, OutcomeKind] = {
    "seconds": "time-limit",
    **dict.fromkeys(("tokens", "cost", "calls", "context"), "token-limit"),
    **dict.fromkeys(("sandbox", "client"), "ended-by-agent"),
}
"""Value of ``ended_by`` in an episode's metadata → the outcome kind."""

_REFUSALS = (
    errors.UsageError,
    errors.TaskError,
    errors.TaskNotFoundError,
    errors.DockerfileError,
    errors.ActionError,
    errors.RewardError,
    errors.ModelError,
)
_OTHER_REFUSALS = frozenset(
    {"AgentError", "DriftError", "LateError", "NeedsSandboxError", "NotReproducibleError"}
)
"""Names of exception classes that count as refusals, but are not in `intercode.errors`."""


def failure_kind(name: str) -> OutcomeKind:
    """Return the outcome kind of an episode that ended with an error; an unknown error is ``lost``.

    Args:
        name: The name of the error's class. The argument is not a class, because a record contains
            only the name.
    """
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, _REFUSALS):
        return "lost" if issubclass(kind, errors.ModelUnavailableError) else "refused"
    return "refused" if name in _OTHER_REFUSALS else "lost"
