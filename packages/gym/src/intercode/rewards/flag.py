"""The reward of a CTF task: whether its flag was submitted.

**1.0**: the agent submitted one of the accepted flags, exactly. Surrounding blanks do not count;
everything else does, case included.

**Below 1.0**: if the task has subtasks, the share of answered subtasks, times `MAX_UNSOLVED_VALUE`.
Subtasks are ``metadata.subtasks``, a list of objects with a ``name`` and the ``answer`` to submit.
The flag alone is worth 1.0, with or without answers to the subtasks.

The reward reads only the submissions that the environment recorded, and nothing in the sandbox.
"""

from __future__ import annotations

from collections.abc import Iterator

from intercode.episode import Episode, Score
from intercode.errors import TaskError
from intercode.task import Task
from intercode_sandbox.base import SandboxBackend

MAX_UNSOLVED_VALUE = 0.99
"""The highest value of an episode in which the flag was not submitted."""

SUBMITTED_KEY = "submitted"
"""The key of a turn's `info` that holds the answer submitted in that turn."""
NO_ATTEMPT_KEY = "attempts_used_up"
"""The key of an episode's `metadata` that marks an answer beyond the permitted number of attempts.
"""


def is_flag(task: Task, answer: str) -> bool:
    """Return whether an answer is one of the task's flags."""
    return answer.strip() in {flag.strip() for flag in task.gold}


def subtasks(task: Task) -> dict[str, str]:
    """Return the answers of the task's subtasks by name; most tasks have no subtasks.

    Raises:
        TaskError: The subtasks are malformed.
    """
    rows = task.metadata.get("subtasks") or []
    error = TaskError(
        f"task {task.task_id!r}: 'metadata.subtasks' must be a list of objects with a 'name' "
        f"and an 'answer', the names different"
    )
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise error
    answers = {row.get("name"): row.get("answer") for row in rows}
    if len(answers) != len(rows):
        raise error
    for text in (*answers, *answers.values()):
        if not isinstance(text, str) or not text.strip():
            raise error
    return {str(name): str(answer).strip() for name, answer in answers.items()}


def solved_subtasks(task: Task, answers: set[str]) -> list[str]:
    """List the names of the subtasks that these answers solve, in the task's order."""
    return [name for name, answer in subtasks(task).items() if answer in answers]


def submissions(episode: Episode) -> Iterator[str]:
    """Yield every permitted submission, in order, without surrounding blanks."""
    for turn in episode.turns:
        if SUBMITTED_KEY in turn.info:
            yield str(turn.info[SUBMITTED_KEY]).strip()
    if episode.answer is not None and NO_ATTEMPT_KEY not in episode.metadata:
        yield episode.answer.strip()


class FlagReward:
    """The flag reward: 1.0 for the flag, otherwise the share of answered subtasks, below 1.0.

    The module's docstring has the rules.
    """

    VERSION = 1
    """The version of the scores: raise the number when any score can differ."""

    def __call__(self, task: Task, episode: Episode, sandbox: SandboxBackend) -> Score:
        """Return the score of an episode.

        Raises:
            TaskError: The task has no flag, or its subtasks are malformed.
        """
        if not task.gold:
            raise TaskError(f"task {task.task_id!r}: field 'gold' is missing")
        answers = set(submissions(episode))
        flag = any(is_flag(task, answer) for answer in answers)
        part_scores = {"flag": float(flag)}
        solved_share = 0.0
        solved_names = solved_subtasks(task, answers)
        if subtask_count := len(subtasks(task)):
            part_scores["subtasks"] = solved_share = len(solved_names) / subtask_count
        return Score(
            1.0 if flag else MAX_UNSOLVED_VALUE * solved_share,
            part_scores,
            {"subtasks": solved_names},
        )
