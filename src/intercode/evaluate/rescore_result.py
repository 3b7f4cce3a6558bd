"""What a rescored run is: what it takes over from the recording, and how it is told apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from intercode.episode import Episode
from intercode.errors import RecordError
from intercode.evaluate import manifest
from intercode.evaluate.again import NotReproducibleError
from intercode.evaluate.runner import RunResult
from intercode.records import MANIFEST, Key, Outcome, latest, read_manifest

Way = Literal["record", "again", "not reproducible", "no result", "failed"]
"""Which way an episode went.

- ``record``: its reward looks at nothing but what is recorded, and was worked out from that.
- ``again``: its actions were done again in a fresh environment, every observation came out as it
  was recorded, and the state that they led to was scored.
- ``not reproducible``: one did not. It has no new score, and counts as an error.
- ``no result``: it had none in the recording, and has none now.
- ``failed``: the new reward, or the sandbox, gave no result.
"""
FIELD = "rescored"
"""In a rescored run's ``run.json``, and in the metadata of its episodes."""


@dataclass(frozen=True, slots=True)
class Result:
    """One rescored episode."""

    before: Outcome
    after: Outcome
    way: Way

    @property
    def final(self) -> bool:
        """Whether it is not to be tried again."""
        return not self.after.failed or self.way == "no result"


@dataclass(slots=True)
class Rescored(RunResult):
    """What came of it: the new outcomes, in the order of the recording, and what they were."""

    results: list[Result] = field(default_factory=list)
    """The same, each with what it was before and which way it went."""

    @property
    def before(self) -> list[Outcome]:
        """The recorded outcomes of the same episodes."""
        return [result.before for result in self.results]

    @property
    def ways(self) -> dict[Way, int]:
        """How many went which way."""
        return dict(Counter(result.way for result in self.results))

    @property
    def changes(self) -> list[Result]:
        """Those that have another reward now."""
        scored = (r for r in self.results if not (r.before.failed or r.after.failed))
        return [result for result in scored if result.before.reward != result.after.reward]

    @property
    def lost(self) -> list[Result]:
        """Those that had a result, and have none under the new reward."""
        return [r for r in self.results if r.after.failed and not r.before.failed]


def describe(recorded: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The first ``run.json`` of a rescored run.

    Args:
        recorded: That of the recording.
        facts: Which ``run`` that is, and the new ``reward``, with its file's ``digest``, or what
            identifies the ``judge``.
    """
    of_reward = {"reward": "reward", "reward_digest": "digest", "judge": "judge"}
    env = {name: value for name, value in recorded["env"].items() if name not in of_reward}
    env |= {name: facts[said] for name, said in of_reward.items() if said in facts}
    return {**recorded, "env": env, FIELD: dict(facts), "sessions": []}


def resumed(
    folder: Path | None, wanted: dict[str, Any], before: Mapping[Key, Outcome]
) -> tuple[dict[str, Any], dict[Key, Result]]:
    """The ``run.json`` to go on with, and what is done already.

    Raises:
        RecordError: The folder holds another run.
    """
    if folder is None or not (folder / MANIFEST).exists():
        return wanted, {}
    recorded = read_manifest(folder)
    manifest.check_format(recorded, folder)
    manifest.check_same(recorded, wanted, folder)
    known = latest(folder, lambda episode: (Outcome.of(episode), way_of(episode)))
    if strange := known.keys() - before.keys():
        raise RecordError(f"{folder} has episodes that {wanted[FIELD]['run']} has not: {strange}")
    results = {key: Result(before[key], *found) for key, found in known.items()}
    return recorded, {key: result for key, result in results.items() if result.final}


def way_of(episode: Episode) -> Way:
    """Which way a rescored episode went."""
    way: Way = episode.metadata[FIELD]["way"]
    return way


def complete(episode: Episode, recorded: Episode, facts: Mapping[str, Any], way: Way) -> None:
    """Give a rescored episode what its recording knows: all but its score, and its turns' rewards.

    What an agent was told and took (messages, tokens, cost, time) is as it was; what was said to a
    judge belongs to the score.

    Args:
        episode: The new one; it is changed.
        recorded: The recorded one.
        facts: As for `describe`.
        way: Which way it went, if it has a score.
    """
    failed = episode.status == "error"
    kind = episode.metadata.get("error_type")
    if failed and way != "no result":
        way = "not reproducible" if kind == NotReproducibleError.__name__ else "failed"
    rewards = [0.0] * len(recorded.turns) if failed else [turn.reward for turn in episode.turns]
    episode.turns = [
        replace(turn, reward=reward) for turn, reward in zip(recorded.turns, rewards, strict=True)
    ]
    episode.env, episode.agent = recorded.env, recorded.agent
    episode.seed, episode.answer = recorded.seed, recorded.answer
    episode.started, episode.seconds = recorded.started, recorded.seconds
    was = recorded.to_dict()
    of_error = {"error_type": kind} if failed and kind else {}
    now = {**facts, "way": way, "was": {"status": was["status"], "score": was["score"]}}
    judge = {"judge": episode.metadata["judge"]} if "judge" in episode.metadata else {}
    kept = {name: value for name, value in recorded.metadata.items() if name != "judge"}
    episode.metadata = {**kept, **judge, **of_error, FIELD: now}
