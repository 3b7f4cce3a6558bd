"""Outcome kinds: the eight ends of an episode, each with its definition.

`intercode.episode.Episode.outcome` derives the kind from the record, so that records of earlier
versions have one as well. `info`, records, the wire, tables and reports take it from there.
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
"""Kind → its definition. The kinds exclude each other, and each episode that is over has one."""
UNSCORED: tuple[OutcomeKind, ...] = ("lost", "refused")
"""The kinds without a reward: no number stands for it, and no rate or mean counts the episode."""
KINDS_BY_CAUSE: Mapping[str, OutcomeKind] = {
    "seconds": "time-limit",
    **dict.fromkeys(("tokens", "cost", "calls", "context"), "token-limit"),
    **dict.fromkeys(("sandbox", "client"), "ended-by-agent"),
}
"""The reason for which an agent's work ended, in an episode's metadata → the kind."""

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
"""The names of such errors that are not in `intercode.errors`."""


def failure_kind(name: str) -> OutcomeKind:
    """Return the kind of an episode that an error ended; an unknown error is the infrastructure's.

    Args:
        name: The name of the error's class, which is all that a record has.
    """
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, _REFUSALS):
        return "lost" if issubclass(kind, errors.ModelUnavailableError) else "refused"
    return "refused" if name in _OTHER_REFUSALS else "lost"
