"""The exact Bash reward of 2023, including its rounding: 0.01 plus three parts of at most 0.33.

The parts compare the agent's container with gold's: the paths of changed files, the content of
added files, and the similarity of the outputs.
"""

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
from intercode_paper.bash_interpreter import GOLD_HOST, MALFORMED, run_gold, variables
from intercode_paper.container_images import IGNORED_NAMES, Pair, PaperImage, md5sum
from intercode_sandbox.base import SandboxBackend

COMPARED_STATUSES = frozenset({"A", "??", "C"})
"""Git statuses of files whose content is compared. In 2023 modified files were never compared."""


@dataclass(frozen=True, slots=True)
class ContainerOutcome:
    """The final state of one container, the agent's or gold's."""

    pairs: Sequence[Pair]
    """Paths and status codes from ``git status --short``, as the 2023 reward parsed them."""
    output: str
    """The output of the last action, or of gold."""
    md5: Callable[[str], str]
    """Function that returns the output of ``md5sum PATH`` in the container, including errors."""
    malformed: bool = False
    """Whether gold's output was not UTF-8, or gold could not be split; ignored for the agent."""


def has_same_content(path: str, agent: ContainerOutcome, gold: ContainerOutcome) -> bool:
    """Return whether a path that both agent and gold have added counts as equal.

    The 2023 release took a path without a dot for a directory, and called ``md5deep``. No image had
    this program, so both sides printed the same "not found".
    """
    return "." not in path or agent.md5(path) == gold.md5(path)


def score(agent: ContainerOutcome, gold: ContainerOutcome, executed: bool = True) -> Score:
    """Compute the reward, in [0.01, 1.0]. The score's detail is the ``info`` of 2023.

    Args:
        agent: The agent's outcome.
        gold: Gold's outcome.
        executed: Whether the last action was executed: the value of ``info["action_executed"]``.
    """
    agent_pairs, gold_pairs = set(agent.pairs), set(gold.pairs)
    missing_pairs, extra_pairs = sorted(gold_pairs - agent_pairs), sorted(agent_pairs - gold_pairs)
    diff_reward = round(0.33 * (1 - math.erf(len(missing_pairs) + len(extra_pairs))), 2)

    common_pairs = sorted(pair for pair in agent_pairs & gold_pairs if pair[1] in COMPARED_STATUSES)
    equal_count = sum(has_same_content(path, agent, gold) for path, _ in common_pairs)
    changes_reward = round(0.33 * equal_count / len(common_pairs), 2) if common_pairs else 0.33

    likeness = similarity(agent.output, gold.output)
    answer_reward = round(0.33 * likeness, 2)

    info: dict[str, Any] = {
        "reward": {
            "file_diff": diff_reward,
            "file_changes": changes_reward,
            "answer_similarity": answer_reward,
        },
        "diff_miss": missing_pairs,
        "diff_extra": extra_pairs,
        "agent_obs": agent.output,
        "eval_obs": gold.output,
        "answer_similarity": likeness,
        "corrupt_gold": gold.malformed,
        "action_executed": executed,
    }
    if common_pairs:
        info["diff_same"] = {
            "files": common_pairs,
            "correct": equal_count,
            "total": len(common_pairs),
        }
    return _total(info)


def early_score(released_score: Score) -> Score:
    """Compute the reward of an earlier version, which some runs before the release had.

    GPT-3.5's runs of 20 and 21 May 2023 have this version. The early reward cuts gold's output to
    the length of the agent's output, and keeps the end. If the agent's output is empty, gold's
    output stays whole.

    Args:
        released_score: The result of `score` for the same episode.
    """
    info: dict[str, Any] = dict(released_score.detail)
    info["eval_obs"] = info["eval_obs"][-len(info["agent_obs"]) :]
    info["answer_similarity"] = similarity(info["agent_obs"], info["eval_obs"])
    answer_reward = round(0.33 * info["answer_similarity"], 2)
    info["reward"] = {**info["reward"], "answer_similarity": answer_reward}
    return _total(info)


def _total(info: Mapping[str, Any]) -> Score:
    components: Mapping[str, float] = info["reward"]
    # The sum of floats depends on the order of the parts. 0.6900000000000001 is a recorded reward.
    value = (
        0.01
        + components["file_diff"]
        + components["file_changes"]
        + components["answer_similarity"]
    )
    return Score(value, components, info)


_VOLATILE = re.compile(
    r"\b(?:date|w|who|uptime|ps|pstree|top|free|df)\b|-[acm]min\b|-newer|/proc\b|\$\$"
)
"""Pattern of golds whose output may change within seconds. Such golds run at every score."""


@dataclass(frozen=True, slots=True)
class _GoldOutcomes:
    first_outcome: ContainerOutcome
    later_outcome: ContainerOutcome
    """The outcome of the second and later runs in the same container. The first run may have left
    changes that the reset by git does not undo, because git ignores them. A first run with other
    changes, too, counts as the later ones."""


class GoldOutcomeCache:
    """A cache of golds' outcomes in one image. Thread-safe.

    Golds whose output may change within seconds are not cached.

    Args:
        image: The image, which the agent's sandboxes use, too.
    """

    def __init__(self, image: PaperImage) -> None:
        self.image = image
        self._environment = variables(GOLD_HOST, image.name)
        self._lock = threading.Lock()
        self._runs_by_command: dict[str, _GoldOutcomes] = {}

    def score(
        self, task: Task, observation: str, sandbox: SandboxBackend, is_repeat: bool = False
    ) -> Score:
        """Compare the state of a sandbox and the last observation with gold's outcome.

        Args:
            task: The task.
            observation: The output of the agent's last action.
            sandbox: The agent's sandbox.
            is_repeat: Whether this episode was scored before. In 2023, gold then ran a second time
                in the same container.

        Raises:
            RewardError: The task has no gold.
            SandboxError: The sandbox failed.
        """
        pairs = self.image.status(sandbox)
        agent_outcome = ContainerOutcome(pairs, observation, lambda path: md5sum(sandbox, path))
        return score(agent_outcome, self.outcome(task, is_repeat))

    def outcome(self, task: Task, is_repeat: bool = False) -> ContainerOutcome:
        """Return gold's outcome for a task, from the cache or by running gold.

        Args:
            task: The task.
            is_repeat: Whether gold has run before in this episode.

        Raises:
            RewardError: The task has no gold.
            SandboxError: The sandbox failed.
        """
        if not task.gold:
            raise RewardError(f"task {task.task_id!r} has no gold")
        gold_command = task.gold[0]
        with self._lock:
            runs = self._runs_by_command.get(gold_command)
        if runs is None:
            # The lock is free while gold runs. Two threads may run the same gold, at a low cost.
            runs = self._run(gold_command)
            if not _VOLATILE.search(gold_command):
                with self._lock:
                    self._runs_by_command[gold_command] = runs
        return runs.later_outcome if is_repeat else runs.first_outcome

    def _run(self, command: str) -> _GoldOutcomes:
        sandbox = self.image.start()
        try:
            first_outcome = self._run_once(sandbox, command)
            if first_outcome.pairs or not _has_ignored_changes(sandbox):
                return _GoldOutcomes(first_outcome, first_outcome)
            # The reset by git undoes nothing here, but ignored changes remain for the next run.
            return _GoldOutcomes(first_outcome, self._run_once(sandbox, command))
        finally:
            sandbox.close()

    def _run_once(self, sandbox: SandboxBackend, command: str) -> ContainerOutcome:
        output = run_gold(sandbox, command, self._environment)
        pairs = self.image.status(sandbox)
        checksums = {
            path: md5sum(sandbox, path)
            for path, status_code in pairs
            if status_code in COMPARED_STATUSES and "." in path
        }
        return ContainerOutcome(pairs, output.text, checksums.__getitem__, output.text == MALFORMED)


def _has_ignored_changes(sandbox: SandboxBackend) -> bool:
    return any(change.path.split("/")[1] in IGNORED_NAMES for change in sandbox.changes())


_WORD = re.compile(r"(?u)\b\w\w+\b")


def cosine(first_text: str, second_text: str) -> float | None:
    """Return the similarity of two texts, in [0, 1]; None if neither text has a word.

    The similarity is the cosine of the texts' TF-IDF vectors. The vectors are those of
    scikit-learn's ``TfidfVectorizer`` with default settings, fitted on the two texts. A word
    consists of two or more word characters, in lower case. The weight of a word is its count times
    ``ln((1 + 2) / (1 + df)) + 1``; both vectors have length 1.

    >>> cosine("5 files found", "7 files found")
    1.0
    >>> cosine("", "!") is None
    True
    """
    first_counts = Counter(_WORD.findall(first_text.lower()))
    second_counts = Counter(_WORD.findall(second_text.lower()))
    words = first_counts.keys() | second_counts.keys()
    if not words:
        return None
    # A word of both texts has the weight ln(3/3) + 1, a word of one text ln(3/2) + 1.
    weights = {
        word: 1.0 if word in first_counts and word in second_counts else math.log(1.5) + 1.0
        for word in words
    }
    first_length = math.sqrt(
        math.fsum((count * weights[word]) ** 2 for word, count in first_counts.items())
    )
    second_length = math.sqrt(
        math.fsum((count * weights[word]) ** 2 for word, count in second_counts.items())
    )
    if not first_length or not second_length:
        return 0.0
    dot_product = math.fsum(
        count * weights[word] * second_counts[word] * weights[word]
        for word, count in first_counts.items()
    )
    return min(1.0, dot_product / (first_length * second_length))


def similarity(agent_text: str, gold_text: str) -> float:
    """Return `cosine`, or for two texts without words, 1 if they are equal and otherwise 0."""
    cosine_value = cosine(agent_text, gold_text)
    return float(agent_text == gold_text) if cosine_value is None else cosine_value
