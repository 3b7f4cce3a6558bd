"""The 2023 Bash reward, to the last rounding: 0.01 and three parts of at most 0.33."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from intercode.episode import Score
from intercode.paper.git_status import Pair
from intercode.paper.tfidf import similarity

COMPARED = frozenset({"A", "??", "C"})
"""The statuses of which the content is compared; modified files never were."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one side, the agent's or gold's, left things."""

    pairs: Sequence[Pair]
    """What ``git status --short`` said of its file system."""
    output: str
    """Its last output, or gold's."""
    md5: Callable[[str], str]
    """The text that ``md5sum PATH`` prints there, errors included."""
    malformed: bool = False
    """Gold alone: its output was not text, or it could not be run."""


def has_same_content(path: str, agent: Outcome, gold: Outcome) -> bool:
    """Whether a path that both added counts as the same.

    A path without a dot was taken for a directory and given to ``md5deep``, which no image had:
    the same "not found" on both sides.
    """
    return "." not in path or agent.md5(path) == gold.md5(path)


def score(agent: Outcome, gold: Outcome, executed: bool = True) -> Score:
    """The reward, with the 2023 ``info`` as its detail.

    Args:
        agent: The agent's side.
        gold: Gold's side.
        executed: What ``info["action_executed"]`` says.
    """
    one, two = set(agent.pairs), set(gold.pairs)
    missing, extra = sorted(two - one), sorted(one - two)
    file_diff = round(0.33 * (1 - math.erf(len(missing) + len(extra))), 2)

    common = sorted(pair for pair in one & two if pair[1] in COMPARED)
    same = sum(has_same_content(path, agent, gold) for path, _ in common)
    file_changes = round(0.33 * same / len(common), 2) if common else 0.33

    alike = similarity(agent.output, gold.output)
    answer = round(0.33 * alike, 2)

    info: dict[str, Any] = {
        "reward": {
            "file_diff": file_diff,
            "file_changes": file_changes,
            "answer_similarity": answer,
        },
        "diff_miss": missing,
        "diff_extra": extra,
        "agent_obs": agent.output,
        "eval_obs": gold.output,
        "answer_similarity": alike,
        "corrupt_gold": gold.malformed,
        "action_executed": executed,
    }
    if common:
        info["diff_same"] = {"files": common, "correct": same, "total": len(common)}
    return _total(info)


def early(released: Score) -> Score:
    """The reward of the runs before the release (GPT-3.5's of 20 and 21 May 2023).

    They differ in one thing: of gold's output only the end was compared, as much of it as the
    agent's output is long (all of it, if that is empty).

    Args:
        released: What `score` gave.
    """
    info: dict[str, Any] = dict(released.detail)
    info["eval_obs"] = info["eval_obs"][-len(info["agent_obs"]) :]
    info["answer_similarity"] = similarity(info["agent_obs"], info["eval_obs"])
    answer = round(0.33 * info["answer_similarity"], 2)
    info["reward"] = {**info["reward"], "answer_similarity": answer}
    return _total(info)


def _total(info: Mapping[str, Any]) -> Score:
    parts: Mapping[str, float] = info["reward"]
    # In this order: the sum of floats depends on it (0.6900000000000001 is recorded).
    value = 0.01 + parts["file_diff"] + parts["file_changes"] + parts["answer_similarity"]
    return Score(value, parts, info)
