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
  they say in that type (`intercode.rewards.answer`), and archives by what is in them.
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
from intercode.rewards.aliases import TEMPORARY, lies_in
from intercode.rewards.answer import Answer, last_output, normalise, similarity
from intercode.rewards.gold import GoldResult, GoldRunner, content, differing
from intercode.rewards.judge import Judge
from intercode.rewards.words import is_named, temporary_names
from intercode.task import Task
from intercode_sandbox.base import Change, SandboxBackend

NOT_EXACT = 0.99
"""The highest value below that of an exact result."""

_SCRATCH = re.compile(
    r"/(tmp|var/tmp|dev/shm)/."
    r"|/(root|home/[^/]+)/\.(bash_history|python_history|lesshst|viminfo|wget-hsts|sqlite_history)$"
)
NO_ARCHIVES: Mapping[str, str] = {}
_WRONG = ("missing", "different", "extra")
"""Keys of a score's detail that list the paths that are not as gold leaves them."""
_SHOWN = 20
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
        self._scratch = _with(ignore)

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
        answer = Answer.of(task)
        archives = {} if answer is None else answer.archives
        contents = {path: content(sandbox, path, kind) for path, kind in archives.items()}
        names = temporary_names(task, sandbox)
        best: Score | None = None
        met: list[str] = []
        for gold in task.gold:
            done = self._gold.run(task, gold)
            score = compare(
                done, changes, output, answer, contents, task.expects, self._scratch, names
            )
            if best is None or score.value > best.value:
                best = score
            if best.value == 1.0:
                return best
            if not any(score.detail[kind] for kind in _WRONG):
                met.append(done.output)
        assert best is not None  # there is at least one gold
        if self._judge is None or output is None or not met:
            return best
        return self._judge.settle(task, episode, best, output, met)


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
    if not gold.output and all(map(scratch.match, gold.touched)):
        names = gold.touched  # all that gold does is there

    def is_scratch(path: str) -> bool:
        return _is_scratch(path, gold, scratch, names)

    def counts(path: str) -> bool:
        same = bool(archives.get(path)) and archives[path] == gold.archives[path]
        return not expects(path) and not same and not is_scratch(path)

    wrong = set(filter(counts, differing(changes, gold.after)))
    done = set(filter(counts, differing(changes, gold.before)))
    touched = {path for path in gold.touched if not is_scratch(path)}
    files = _f1(len(touched - wrong), len(touched), len(done))
    # Where there is nothing to print, an empty output counts only after an action.
    said = 0.0 if output is None else similarity(output, gold.output)
    if answer is None:
        compares_output, agrees = bool(gold.output) or not touched, output == gold.output
    else:
        compares_output = answer.printed
        agrees = output is not None and answer.agree(gold.output, output)
    exact = not wrong and (not compares_output or agrees)
    if exact:
        value = 1.0
    elif not touched:
        value = min(said / 2 if wrong else said, NOT_EXACT)
    else:
        value = min((files + said) / 2 if compares_output else files, NOT_EXACT)
    parts = {"files": files, "output": said} if compares_output else {"files": files}
    return Score(value, parts, _detail(gold, changes, wrong, output))


def _f1(right: int, wanted: int, done: int) -> float:
    """Return the F1 of changes: twice the right ones, over those wanted and those done."""
    return 2 * right / (wanted + done) if wanted + done else 1.0


def _with(paths: Sequence[str]) -> re.Pattern[str]:
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
        is_its_own_way = lies_in(path, TEMPORARY) and not is_named(path, names)
        if path in gold.before or (path in gold.touched and not is_its_own_way):
            return False
        path = path.rpartition("/")[0]
    return True


def _detail(
    gold: GoldResult, changes: Mapping[str, Change], wrong: set[str], output: str | None
) -> dict[str, Any]:
    """List the differences that explain a score to a person."""

    def shown(paths: set[str] | frozenset[str]) -> list[str]:
        return sorted(paths)[:_SHOWN]

    untouched = {path for path in wrong if changes.get(path) == gold.before.get(path)}
    detail: dict[str, Any] = {
        "missing": shown(wrong & untouched),
        "different": shown((wrong & gold.touched) - untouched),
        "extra": shown(wrong - gold.touched - untouched),
    }
    if output != gold.output:
        detail["output"] = None if output is None else output[: _SHOWN * 100]
        detail["gold_output"] = gold.output[: _SHOWN * 100]
    return detail
