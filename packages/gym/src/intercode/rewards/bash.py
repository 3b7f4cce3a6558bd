"""The default Bash reward: the same effect as gold, exactly.

**1.0** means: every path that gold added, changed or deleted is as gold left it (type, mode,
owner, content), nothing else was changed, and the last executed action printed what gold prints
(after `normalise`). Times are not compared.

- What the task's own files and setup changed is in both file systems, so it cancels out; to undo
  or alter it is a change. A setup must therefore do the same every time.
- *Scratch* is not compared: what lies under ``/tmp``, ``/var/tmp`` or ``/dev/shm``, and the
  histories that programs drop in a home directory. But where the task itself works there (its
  files or its setup touch a path, or made a directory above it; or its words name a path that gold
  touches), it is compared. What gold alone leaves there is its own way, and no answer, unless it
  does nothing else.
- If gold changes files and prints nothing, the output is not compared: the files are the answer.
- A gold that neither changes nor prints anything asks for an action that prints nothing.
- Where a task says of which type its answer is (``metadata.answer``), outputs are compared by what
  they say in that type (`intercode.rewards.answer_types`), and archives by what is in them.
- Paths that the task expects an answer to change (`may_change`) are not compared.
- With a judge (`intercode.rewards.judge`), outputs that are not equal may still answer alike.

**Below 1.0**, never above 0.99, the mean of the parts that gold has: ``files``, the F1 of the
paths that were changed rightly, and ``output``, the words in common. Where gold changes no files,
changing some halves the value. Doing nothing is worth 0. Of several golds the best counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from intercode.episode import Episode, Score
from intercode.errors import TaskError
from intercode.rewards.aliases import TEMPORARY_FOLDERS, is_within_any
from intercode.rewards.answer_types import Answer, last_output, normalise, similarity
from intercode.rewards.gold import GoldResult, GoldRunner, archive_digest, differing_paths
from intercode.rewards.instruction_words import is_named, temporary_names
from intercode.rewards.judge import Judge
from intercode.task import Task
from intercode_sandbox.base import Change, SandboxBackend

MAX_INEXACT_VALUE = 0.99
"""The highest value below that of an exact result."""

_SCRATCH = re.compile(
    r"/(tmp|var/tmp|dev/shm)/."
    r"|/(root|home/[^/]+)/\.(bash_history|python_history|lesshst|viminfo|wget-hsts|sqlite_history)$"
)
NO_ARCHIVES: Mapping[str, str] = {}
_DIFFERENCE_KEYS = ("missing", "different", "extra")
"""Keys of a score's detail that list the paths that are not as gold leaves them."""
_QUOTE_LIMIT = 20
"""The number of paths, and of hundreds of characters, that a score's detail quotes."""


class BashReward:
    """Compares the effect of an episode with the effect of gold.

    Args:
        gold: Runs gold.
        judge: Is asked where the files are as gold's, and the output is not.
        ignore: Paths that are scratch, too, with all below them; ``*`` stands for any part of a
            name, and a path that does not begin with ``/`` lies in any directory.
    """

    VERSION = 1
    """Raise it when any score can differ."""

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
        answer = Answer.parse(task)
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
        assert best is not None  # there is at least one gold
        if self._judge is None or output is None or not gold_outputs:
            return best
        return self._judge.settle(task, episode, best, output, gold_outputs)


def compare(
    gold: GoldResult,
    changes: Mapping[str, Change],
    output: str | None,
    answer: Answer | None = None,
    archives: Mapping[str, str] = NO_ARCHIVES,
    expects: Callable[[str], bool] = lambda path: False,
    scratch: re.Pattern[str] = _SCRATCH,
    names: Collection[str] = (),
) -> Score:
    """Return the score of a result against one gold.

    Args:
        gold: The effect of gold.
        changes: By path, how the agent's file system differs from the image.
        output: The output of the last action, normalised; None if there was no action.
        answer: The type of the answer; None: text.
        archives: By path, the digests of the archives that the task names.
        expects: Whether a path may be changed, whatever gold does to it.
        scratch: The paths that are compared only where the task itself works.
        names: Names of scratch in the task's words.
    """
    if not gold.output and all(map(scratch.match, gold.changed_paths)):
        names = gold.changed_paths  # all that gold does is there

    def is_scratch(path: str) -> bool:
        return _is_scratch(path, gold, scratch, names)

    def is_compared(path: str) -> bool:
        is_same_archive = bool(archives.get(path)) and archives[path] == gold.archives[path]
        return not expects(path) and not is_same_archive and not is_scratch(path)

    wrong_paths = set(filter(is_compared, differing_paths(changes, gold.gold_changes)))
    agent_paths = set(filter(is_compared, differing_paths(changes, gold.setup_changes)))
    gold_paths = {path for path in gold.changed_paths if not is_scratch(path)}
    file_score = _f1_score(len(gold_paths - wrong_paths), len(gold_paths), len(agent_paths))
    # Where there is nothing to print, an empty output counts only after an action.
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
    parts = (
        {"files": file_score, "output": output_score} if compares_output else {"files": file_score}
    )
    return Score(value, parts, _detail(gold, changes, wrong_paths, output))


def _f1_score(right_count: int, gold_count: int, agent_count: int) -> float:
    """Return the F1 of changes: twice the right ones, over those wanted and those done."""
    return 2 * right_count / (gold_count + agent_count) if gold_count + agent_count else 1.0


def _scratch_pattern(paths: Sequence[str]) -> re.Pattern[str]:
    """Return the pattern of scratch, with further paths."""
    places = "|".join(
        ("" if path.startswith("/") else ".*/")
        + re.escape(path.rstrip("/")).replace(r"\*", "[^/]*")
        for path in paths
    )
    return re.compile(f"{_SCRATCH.pattern}|({places})(/|$)", re.DOTALL) if paths else _SCRATCH


def _is_scratch(
    path: str, gold: GoldResult, scratch: re.Pattern[str], names: Collection[str]
) -> bool:
    if not scratch.match(path):
        return False
    while scratch.match(path):
        is_its_own_way = is_within_any(path, TEMPORARY_FOLDERS) and not is_named(path, names)
        if path in gold.setup_changes or (path in gold.changed_paths and not is_its_own_way):
            return False
        path = path.rpartition("/")[0]
    return True


def _detail(
    gold: GoldResult, changes: Mapping[str, Change], wrong_paths: set[str], output: str | None
) -> dict[str, Any]:
    """List the differences that explain a score to a person."""

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
