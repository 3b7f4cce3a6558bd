"""The default Bash reward: the effect of an episode, compared with the exact effect of gold.

**1.0** requires three facts. Every path that gold added, changed or deleted has gold's final type,
mode, owner and content. Nothing else was changed. The last executed action printed gold's output
(after `normalise`). Times are not compared.

- The task's files and setup make the same changes in the agent's and in gold's file system. These
  changes cancel out; an agent that undoes or alters them makes a change. A setup must therefore be
  deterministic.
- *Scratch* is not compared: paths under ``/tmp``, ``/var/tmp`` or ``/dev/shm``, and histories that
  programs write to a home directory. A scratch path is compared nevertheless if the task's files,
  the setup or gold touch the path or a directory above it. A temporary path that gold alone touches
  is compared only if the task's words name the path. Without a name, the path is an intermediate
  file, not an answer, unless gold does nothing else.
- If gold changes files and prints nothing, the output is not compared: the files are the answer.
- If gold neither changes files nor prints, the task asks for an action that prints nothing.
- If a task declares the type of its answer (``metadata.answer``), outputs are compared by their
  values of that type (`intercode.rewards.answer_types`), and archives by their members.
- Paths that the task allows an answer to change (`may_change`) are not compared.
- With a judge (`intercode.rewards.judge`), unequal outputs may still count as the same answer.

**Below 1.0**, the value is at most 0.99: the mean of two scores. ``files`` is the F1 score of the
correctly changed paths, and ``output`` the share of common words. If the output is not compared,
``files`` is the value. If gold changes no files, ``output`` is the value, and any changed file
halves it. Doing nothing is worth 0. Of several golds, the best match counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from intercode.episode import Episode, Score
from intercode.errors import TaskError
from intercode.rewards.answer_types import AnswerType, last_output, normalise, similarity
from intercode.rewards.file_links import TEMPORARY_FOLDERS, is_within_any
from intercode.rewards.gold import GoldResult, GoldRunner, archive_digest, differing_paths
from intercode.rewards.instruction_words import is_named, temporary_names
from intercode.rewards.judge import Judge
from intercode.task import Task
from intercode_sandbox.base import Change, SandboxBackend

MAX_INEXACT_VALUE = 0.99
"""The highest value of an inexact result."""

_SCRATCH = re.compile(
    r"/(tmp|var/tmp|dev/shm)/."
    r"|/(root|home/[^/]+)/\.(bash_history|python_history|lesshst|viminfo|wget-hsts|sqlite_history)$"
)
NO_ARCHIVES: Mapping[str, str] = {}
_DIFFERENCE_KEYS = ("missing", "different", "extra")
"""Keys of a score's detail that list the paths that differ from gold's state."""
_QUOTE_LIMIT = 20
"""The most paths of a list in a score's detail, and the most characters of an output, in hundreds.
"""


class BashReward:
    """The reward that compares the effect of an episode with the effect of gold.

    Args:
        gold: The runner of gold.
        judge: The judge, asked only if the files match gold's and the output does not.
        ignore: Further scratch paths, with all paths below them. ``*`` matches any part of a name;
            a path without a leading ``/`` matches in any directory.
    """

    VERSION = 1
    """The version of the scores: raise the number when any score can differ."""

    def __init__(
        self, gold: GoldRunner, judge: Judge | None = None, ignore: Sequence[str] = ()
    ) -> None:
        self._gold = gold
        self._judge = judge
        self._scratch = _scratch_pattern(ignore)

    def __call__(self, task: Task, episode: Episode, sandbox: SandboxBackend) -> Score:
        """Return the score against the best gold.

        Raises:
            TaskError: The task has no gold.
            RewardError: Gold could not be run.
            SandboxError: The sandbox died.
            ModelError: The judge gave no answer.
        """
        if not task.gold:
            raise TaskError(f"task {task.task_id!r}: field 'gold' is missing")
        output = last_output(episode)
        output = None if output is None else normalise(output)
        changes = {change.path: change for change in sandbox.changes()}
        answer = AnswerType.parse(task)
        archives = {} if answer is None else answer.archives
        contents = {path: archive_digest(sandbox, path, kind) for path, kind in archives.items()}
        names = temporary_names(task, sandbox)
        best: Score | None = None
        gold_outputs: list[str] = []
        for gold in task.gold:
            gold_result = self._gold.run(task, gold)
            score = compare(
                gold_result, changes, output, answer, contents, task.expects, self._scratch, names
            )
            if best is None or score.value > best.value:
                best = score
            if best.value == 1.0:
                return best
            if not any(score.detail[kind] for kind in _DIFFERENCE_KEYS):
                gold_outputs.append(gold_result.output)
        assert best is not None  # a task has at least one gold
        if self._judge is None or output is None or not gold_outputs:
            return best
        return self._judge.settle(task, episode, best, output, gold_outputs)


def compare(
    gold: GoldResult,
    changes: Mapping[str, Change],
    output: str | None,
    answer: AnswerType | None = None,
    archives: Mapping[str, str] = NO_ARCHIVES,
    expects: Callable[[str], bool] = lambda path: False,
    scratch: re.Pattern[str] = _SCRATCH,
    names: Collection[str] = (),
) -> Score:
    """Return the score of a result against one gold.

    Args:
        gold: The effect of gold.
        changes: The differences between the agent's file system and the image, by path.
        output: The output of the last action, normalised; None if no action was executed.
        answer: The type of the answer; None: text.
        archives: The digests of the agent's archives that the task names, by path.
        expects: Returns whether a path may change, whatever gold does to it.
        scratch: The pattern of paths that are compared only if the task or gold uses them.
        names: The prefixes of temporary paths that belong to the task (`temporary_names`).
    """
    if not gold.output and all(map(scratch.match, gold.changed_paths)):
        names = gold.changed_paths  # gold changes scratch only: its paths are the answer

    def is_scratch(path: str) -> bool:
        return _is_scratch(path, gold, scratch, names)

    def is_compared(path: str) -> bool:
        is_same_archive = bool(archives.get(path)) and archives[path] == gold.archives[path]
        return not expects(path) and not is_same_archive and not is_scratch(path)

    wrong_paths = set(filter(is_compared, differing_paths(changes, gold.gold_changes)))
    agent_paths = set(filter(is_compared, differing_paths(changes, gold.setup_changes)))
    gold_paths = {path for path in gold.changed_paths if not is_scratch(path)}
    file_score = _f1_score(len(gold_paths - wrong_paths), len(gold_paths), len(agent_paths))
    # If gold prints nothing, an empty output counts only after an action.
    output_score = 0.0 if output is None else similarity(output, gold.output)
    if answer is None:
        compares_output, agrees = bool(gold.output) or not gold_paths, output == gold.output
    else:
        compares_output = answer.is_printed
        agrees = output is not None and answer.is_equivalent(gold.output, output)
    is_exact = not wrong_paths and (not compares_output or agrees)
    if is_exact:
        value = 1.0
    elif not gold_paths:
        value = min(output_score / 2 if wrong_paths else output_score, MAX_INEXACT_VALUE)
    else:
        value = min(
            (file_score + output_score) / 2 if compares_output else file_score, MAX_INEXACT_VALUE
        )
    part_scores = (
        {"files": file_score, "output": output_score} if compares_output else {"files": file_score}
    )
    return Score(value, part_scores, _detail(gold, changes, wrong_paths, output))


def _f1_score(right_count: int, gold_count: int, agent_count: int) -> float:
    """Return the F1 score of changes: twice the correct ones, over gold's plus the agent's."""
    return 2 * right_count / (gold_count + agent_count) if gold_count + agent_count else 1.0


def _scratch_pattern(paths: Sequence[str]) -> re.Pattern[str]:
    """Return the scratch pattern, extended by further paths."""
    path_patterns = "|".join(
        ("" if path.startswith("/") else ".*/")
        + re.escape(path.rstrip("/")).replace(r"\*", "[^/]*")
        for path in paths
    )
    return (
        re.compile(f"{_SCRATCH.pattern}|({path_patterns})(/|$)", re.DOTALL) if paths else _SCRATCH
    )


def _is_scratch(
    path: str, gold: GoldResult, scratch: re.Pattern[str], names: Collection[str]
) -> bool:
    if not scratch.match(path):
        return False
    while scratch.match(path):
        is_unnamed_temporary = is_within_any(path, TEMPORARY_FOLDERS) and not is_named(path, names)
        if path in gold.setup_changes or (path in gold.changed_paths and not is_unnamed_temporary):
            return False
        path = path.rpartition("/")[0]
    return True


def _detail(
    gold: GoldResult, changes: Mapping[str, Change], wrong_paths: set[str], output: str | None
) -> dict[str, Any]:
    """Return the differences that explain a score to a person."""

    def list_paths(paths: set[str] | frozenset[str]) -> list[str]:
        return sorted(paths)[:_QUOTE_LIMIT]

    untouched_paths = {
        path for path in wrong_paths if changes.get(path) == gold.setup_changes.get(path)
    }
    detail: dict[str, Any] = {
        "missing": list_paths(wrong_paths & untouched_paths),
        "different": list_paths((wrong_paths & gold.changed_paths) - untouched_paths),
        "extra": list_paths(wrong_paths - gold.changed_paths - untouched_paths),
    }
    if output != gold.output:
        detail["output"] = None if output is None else output[: _QUOTE_LIMIT * 100]
        detail["gold_output"] = gold.output[: _QUOTE_LIMIT * 100]
    return detail
