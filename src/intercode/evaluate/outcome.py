"""What the statistics need to know of an episode."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from intercode.episode import ENDED, Episode, Status

LEVELS = (
    *("introductory", "interview", "competition"),  # APPS
    *("simple", "moderate", "challenging"),  # BIRD
    *("easy", "medium", "hard", "extra"),  # Spider, and the bundled tasks
)
"""The tags that say how hard a task is, in each set from the easiest on."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A judge's part in an episode: see `intercode.rewards.judge`."""

    model: str
    asked: bool = False
    """Whether it was asked in the end; else it only took something."""
    same: bool = False
    """Whether the success is its word."""
    split: bool = False
    """Whether its votes, or the two orders of one, disagreed."""
    steered: bool = False
    """Whether it did not tell a decoy from the output, and was not believed."""
    malformed: int = 0
    """Replies that were none."""
    tokens_in: int | None = None
    tokens_out: int | None = None
    cost: float | None = None

    @classmethod
    def of(cls, episode: Episode) -> Judged | None:
        """That of an episode; None if none was there."""
        talks = [talk for talk in episode.metadata.get("judge", ()) if isinstance(talk, Mapping)]
        if not talks:
            return None
        detail = {} if episode.score is None else episode.score.detail.get("judge", {})
        compared = [one for one in detail.get("golds", ()) if "votes" in one]
        said = [{*chain(*one["votes"])} for one in compared]
        replies = chain(*(chain(*one["votes"], one.get("control", ())) for one in compared))
        return cls(
            model=str(talks[0].get("name", "")),
            asked=bool(compared),
            same=bool(detail.get("same")),
            split=any({"same", "different"} <= words for words in said),
            steered=any("control" in one and not one["same"] for one in compared),
            malformed=[*replies].count("malformed"),
            tokens_in=_sum(talks, "input_tokens"),
            tokens_out=_sum(talks, "output_tokens"),
            cost=_sum(talks, "cost"),
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the statistics need to know of an episode; small enough to keep of each."""

    task_id: str
    epoch: int
    status: Status
    reward: float | None
    success: bool
    turns: int
    seconds: float
    error: str | None = None
    error_type: str | None = None
    tags: tuple[str, ...] = ()
    place: str = ""
    """The image or the database that it took place in: what its interval is clustered by."""
    solved_at: int | None = None
    """After how many turns the state was reached that solves the task; None: never."""
    invalid: int = 0
    """Turns whose action could not be executed, or failed: what 2023 called not admissible."""
    unexecuted: int = 0
    """Those of them whose action could not even be executed: a reply without code, for instance."""
    action_seconds: float = 0.0
    """Wall time of its actions."""
    model_seconds: float = 0.0
    """Wall time of the model's replies; the rest went to the sandbox and to the reward."""
    tokens_in: int | None = None
    """Tokens of the prompts; None: not recorded."""
    tokens_out: int | None = None
    cost: float | None = None
    """US dollars; None: not recorded, or the price is not known."""
    ended: bool = False
    """Whether what the agent ran has ended its sandbox, or left in it what cannot be read."""
    restarts: int = 0
    """How often it was begun again, after its sandbox was lost by no fault of the agent's."""
    permuted: bool = False
    """Of an answer in SQL: whether it is right but for the order of its columns, which is free."""
    hard_coded: bool = False
    """Of an answer in SQL: whether it reads no table, where gold does."""
    judged: Judged | None = None
    """A judge's part in it, with its cost, which is in no other field."""

    @classmethod
    def of(cls, episode: Episode) -> Outcome:
        """The outcome of an episode."""
        metadata, turns = episode.metadata, episode.turns
        detail = {} if episode.score is None else episode.score.detail
        # What was said before a sandbox died was paid for, too.
        talks = [*metadata.get("earlier", ()), metadata.get("model")]
        talks = [
            talk for talk in talks if isinstance(talk, Mapping)
        ]  # an agent's own may be a name
        return cls(
            task_id=episode.task_id,
            epoch=episode.epoch,
            status=episode.status,
            reward=episode.reward,
            success=episode.success,
            turns=len(turns),
            seconds=episode.seconds,
            error=episode.error,
            error_type=metadata.get("error_type"),
            tags=tuple(metadata.get("tags", ())),
            place=str(metadata.get("image", "")),
            solved_at=_solved_at(episode),
            invalid=sum(not turn.ok for turn in turns),
            unexecuted=sum(turn.info.get("executed") is False for turn in turns),
            action_seconds=math.fsum(turn.seconds for turn in turns),
            model_seconds=math.fsum(
                call.get("seconds", 0.0) for talk in talks for call in talk.get("calls", ())
            ),
            tokens_in=_sum(talks, "input_tokens"),
            tokens_out=_sum(talks, "output_tokens"),
            cost=_sum(talks, "cost"),
            ended=episode.status == "ended" or ENDED in detail,
            restarts=metadata.get("attempts", 1) - 1,
            permuted="columns" in detail,
            hard_coded="hard_coded" in detail,
            judged=Judged.of(episode),
        )

    @property
    def failed(self) -> bool:
        """Whether there is no result: an error is counted apart, never as a reward of 0."""
        return self.status == "error"

    @property
    def level(self) -> str | None:
        """How hard the task is, if a tag says so."""
        return next((tag for tag in self.tags if tag in LEVELS), None)


def _sum(talks: Sequence[Mapping[str, Any]], name: str) -> Any:
    """None where one of them does not know."""
    values = [talk.get(name) for talk in talks]
    return sum(values) if values and None not in values else None


def _solved_at(episode: Episode) -> int | None:
    if not episode.success:
        return None
    for number, turn in enumerate(episode.turns, 1):
        if turn.reward == 1.0:
            return number
    return len(episode.turns)
