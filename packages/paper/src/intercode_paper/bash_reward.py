"""The 2023 Bash reward, to the last rounding: 0.01 and three parts of at most 0.33."""

from __future__ import annotations

import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from intercode.episode import Score
from intercode.errors import RewardError
from intercode.task import Task
from intercode_paper.bash import GOLD_HOST, MALFORMED, run_gold, variables
from intercode_paper.container import IGNORED, Pair, PaperImage, md5sum
from intercode_sandbox.base import SandboxBackend

COMPARED = frozenset({"A", "??", "C"})
"""The statuses of which the content is compared; modified files never were."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state in which one side, the agent or gold, left its container."""

    pairs: Sequence[Pair]
    """Paths and codes of ``git status --short``, as the reward read them."""
    output: str
    """The output of the last action, or of gold."""
    md5: Callable[[str], str]
    """The text that ``md5sum PATH`` prints there, errors included."""
    malformed: bool = False
    """For gold only: its output was not text, or it could not be run."""


def has_same_content(path: str, agent: Outcome, gold: Outcome) -> bool:
    """Whether a path that both added counts as the same.

    A path without a dot was taken for a directory and given to ``md5deep``, which no image had:
    the same "not found" on both sides.
    """
    return "." not in path or agent.md5(path) == gold.md5(path)


def score(agent: Outcome, gold: Outcome, executed: bool = True) -> Score:
    """Compute the reward, with the 2023 ``info`` as its detail.

    Args:
        agent: The agent's side.
        gold: Gold's side.
        executed: The value of ``info["action_executed"]``.
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
    """Compute the reward of the runs before the release (GPT-3.5's of 20 and 21 May 2023).

    It differs in one point: of gold's output only the end was compared, as much of it as the
    agent's output is long (all of it, if that is empty).

    Args:
        released: A result of `score`.
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


_VOLATILE = re.compile(
    r"\b(?:date|w|who|uptime|ps|pstree|top|free|df)\b|-[acm]min\b|-newer|/proc\b|\$\$"
)
"""Golds of which the output may differ from one second to the next: run every time."""


@dataclass(frozen=True, slots=True)
class _Runs:
    first: Outcome
    later: Outcome
    """The outcome of every further run in the same container, where the first left something
    behind that git's reset does not see."""


class GoldRuns:
    """The outcomes of golds in one image, each run once where that is enough. Thread-safe.

    Args:
        image: The image; shared with the agent's sandboxes.
    """

    def __init__(self, image: PaperImage) -> None:
        self.image = image
        self._environment = variables(GOLD_HOST, image.name)
        self._lock = threading.Lock()
        self._known: dict[str, _Runs] = {}

    def score(
        self, task: Task, observation: str, sandbox: SandboxBackend, again: bool = False
    ) -> Score:
        """Score the state of a sandbox.

        Args:
            task: The task.
            observation: The output of the agent's last action.
            sandbox: The agent's sandbox.
            again: Whether the episode was scored before: gold then runs for another time.

        Raises:
            RewardError: The task has no gold.
            SandboxError: The sandbox failed.
        """
        pairs = self.image.status(sandbox)
        agent = Outcome(pairs, observation, lambda path: md5sum(sandbox, path))
        return score(agent, self.outcome(task, again))

    def outcome(self, task: Task, again: bool = False) -> Outcome:
        """Return the state in which a task's gold leaves its container.

        Args:
            task: The task.
            again: Whether gold was run in this episode before.

        Raises:
            RewardError: The task has no gold.
            SandboxError: The sandbox failed.
        """
        if not task.gold:
            raise RewardError(f"task {task.task_id!r} has no gold")
        command = task.gold[0]
        with self._lock:
            runs = self._known.get(command)
        if runs is None:
            # Two threads may run the same gold at once: it costs little, and no lock is held.
            runs = self._run(command)
            if not _VOLATILE.search(command):
                with self._lock:
                    self._known[command] = runs
        return runs.later if again else runs.first

    def _run(self, command: str) -> _Runs:
        sandbox = self.image.start()
        try:
            first = self._once(sandbox, command)
            if first.pairs or not _changes_ignored(sandbox):
                return _Runs(first, first)
            # Nothing for a reset to undo, but something it would not: the next run sees it.
            return _Runs(first, self._once(sandbox, command))
        finally:
            sandbox.close()

    def _once(self, sandbox: SandboxBackend, command: str) -> Outcome:
        output = run_gold(sandbox, command, self._environment)
        pairs = self.image.status(sandbox)
        sums = {
            path: md5sum(sandbox, path) for path, code in pairs if code in COMPARED and "." in path
        }
        return Outcome(pairs, output.text, sums.__getitem__, output.text == MALFORMED)


def _changes_ignored(sandbox: SandboxBackend) -> bool:
    return any(change.path.split("/")[1] in IGNORED for change in sandbox.changes())


_WORD = re.compile(r"(?u)\b\w\w+\b")


def cosine(first: str, second: str) -> float | None:
    """Return the similarity of two texts in [0, 1], or None if neither has a word.

    That is the cosine of their TF-IDF vectors, as scikit-learn's `TfidfVectorizer` has them by
    default, fitted on the two texts: a word is two or more word characters, in lower case; its
    weight is its count times ``ln((1 + 2) / (1 + df)) + 1``; both vectors have length 1.

    >>> cosine("5 files found", "7 files found")
    1.0
    >>> cosine("", "!") is None
    True
    """
    one = Counter(_WORD.findall(first.lower()))
    two = Counter(_WORD.findall(second.lower()))
    words = one.keys() | two.keys()
    if not words:
        return None
    # ln(3/3) + 1 for a word that both have, ln(3/2) + 1 for a word that one has.
    weight = {w: 1.0 if w in one and w in two else math.log(1.5) + 1.0 for w in words}
    length_one = math.sqrt(math.fsum((n * weight[w]) ** 2 for w, n in one.items()))
    length_two = math.sqrt(math.fsum((n * weight[w]) ** 2 for w, n in two.items()))
    if not length_one or not length_two:
        return 0.0
    product = math.fsum(n * weight[w] * two[w] * weight[w] for w, n in one.items())
    return min(1.0, product / (length_one * length_two))


def similarity(observed: str, expected: str) -> float:
    """Return `cosine`; for two texts without a word, 1 if they are equal, else 0."""
    value = cosine(observed, expected)
    return float(observed == expected) if value is None else value
