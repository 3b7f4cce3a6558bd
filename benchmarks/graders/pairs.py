"""Which of NL2SH-ALFA's golds the Bash reward accepts that knows another of them.

``pairs.py [FOLDER]``: the package ``icalfa`` is in the folder, or installed. Each task there has
two golds. Two numbers are printed, for outputs that are compared as text and for those compared
by the type of the answer: how many second golds a reward accepts that knows the first one alone,
which should be many; and how many golds of other tasks, which should be none.

Every gold is run once in its file system, and what they did is compared. Nothing of it is kept.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from intercode.datasets import nl2sh_alfa
from intercode.envs.stage import SandboxStage
from intercode.errors import RewardError
from intercode.interpreters.bash import BashInterpreter
from intercode.rewards.answer_types import AnswerType
from intercode.rewards.bash import compare
from intercode.rewards.gold import GoldResult, GoldRunner
from intercode.rewards.instruction_words import names_in_text
from intercode.task import CANNOT, Task

SAME_ANSWER = (
    {"fs1-16", "fs1-66", "fs1-67"},  # no line comes twice, so that the unique ones are all
    {"fs1-112", "fs1-127"},
    {"fs1-123", "fs1-124"},  # all such files are below that folder
    {"fs2-5", "fs2-16"},
    {"fs3-5", "fs3-6"},
    {"fs3-28", "fs3-29"},
    {"fs3-38", "fs3-40", "fs3-48"},  # one line, one line and one percent
)
"""Tasks that ask for the same, or have the same answer in another form: looked through by hand."""
_AT_ONCE = 2

Results = Mapping[tuple[str, str], GoldResult | None]
"""By image and gold; None: it ran into a limit."""


def run(tasks: Sequence[Task]) -> Results:
    """What every gold does in the file system of its task."""
    archives: dict[str, dict[str, str]] = defaultdict(dict)
    for task in tasks:
        archives[image(task)].update(answer.archives if (answer := AnswerType.parse(task)) else {})
    jobs = {
        (image(task), gold): replace(
            task, metadata={"answer": {"type": "state", "archives": archives[image(task)]}}
        )
        for task in tasks
        for gold in task.gold
    }
    stage = SandboxStage("native")
    runner = GoldRunner(stage.open, BashInterpreter, stage.identify)

    def one(job: tuple[tuple[str, str], Task]) -> GoldResult | None:
        try:
            return runner.run(job[1], job[0][1])
        except RewardError:
            return None

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(jobs, pool.map(one, jobs.items()), strict=True))


def image(task: Task) -> str:
    assert task.image is not None
    return task.image


def accepts(task: Task, gold: GoldResult | None, given: GoldResult | None, typed: bool) -> bool:
    """Whether a reward that knows this gold alone takes what another command did for right."""
    if gold is None or given is None:
        return False
    answer = AnswerType.parse(task) if typed else None
    archives = {path: given.archives[path] for path in (answer.archives if answer else ())}
    expects = task.expects if typed else lambda path: False
    names = names_in_text(task)
    found = compare(gold, given.gold_changes, given.output, answer, archives, expects, names=names)
    return found.value == 1.0


def difference(task: Task, gold: GoldResult | None, given: GoldResult | None) -> str:
    """What sets two golds of a task apart that are not equal."""
    if gold is None or given is None:
        return "one ran into a limit"
    if gold.changed_paths != given.changed_paths:
        return "they change other files"
    answer = AnswerType.parse(task)
    if not gold.output.strip() or not given.output.strip():
        return "one prints nothing" if answer and answer.is_printed else "they leave other content"
    return f"other {answer.type if answer else 'output'}"


@dataclass(frozen=True, slots=True)
class Stranger:
    """A gold of one task that is accepted for another."""

    task: Task
    other: Task
    gold: str
    exact: bool
    """Whether it did to the letter what one of the task's own golds does."""

    @property
    def same_answer(self) -> bool:
        return any({self.task.task_id, self.other.task_id} <= group for group in SAME_ANSWER)


def strangers(tasks: Sequence[Task], done: Results, typed: bool) -> Iterator[Stranger]:
    """The golds of other tasks of the same file system that a task's reward accepts."""
    for task in tasks:
        own = [done[image(task), gold] for gold in task.gold]
        for other in tasks:
            if other is task or image(other) != image(task):
                continue
            for gold in dict.fromkeys(other.gold):
                given = done[image(task), gold]
                if any(accepts(task, one, given, typed) for one in own):
                    exact = any(accepts(task, one, given, False) for one in own)
                    yield Stranger(task, other, gold, exact)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", nargs="?", help="where the package or a checkout is")
    folder = parser.parse_args().folder
    every = list(nl2sh_alfa.load(folder, every_gold=True))
    graded = [task for task in nl2sh_alfa.load(folder) if CANNOT not in task.metadata]
    reasons = Counter(str(task.metadata.get(CANNOT, "")).partition(":")[0] for task in every)
    del reasons[""]
    done = run([task for task in every if reason(task) != "network"])
    print(f"{len(every)} tasks; {len(every) - len(graded)} cannot be graded here: {dict(reasons)}")
    names = {task.task_id for task in graded}
    pairs_of([task for task in every if reason(task) != "network"], done, "of all that run")
    pairs_of([task for task in every if task.task_id in names], done, "of those that are graded")
    both = [task for task in every if task.task_id in names and both_right(task, graded)]
    pairs_of(both, done, "of those where both are what the words ask for")
    for typed in (False, True):
        found = list(strangers(graded, done, typed))
        same, exact = (
            sum(one.same_answer for one in found),
            sum(one.exact and not one.same_answer for one in found),
        )
        print(
            f"golds of other tasks, {'typed' if typed else 'default'}: {len(found)} accepted; "
            f"{same} for the same answer, {exact} with the same outcome to the letter, "
            f"{len(found) - same - exact} more"
        )
        for one in found:
            if typed or not one.exact:
                word = (
                    "the same answer"
                    if one.same_answer
                    else "the same outcome"
                    if one.exact
                    else "MORE"
                )
                print(f"  {one.task.task_id} takes {one.other.task_id}: {word}: {one.gold[:100]}")


def reason(task: Task) -> str:
    """Why a task cannot be graded, in a word; empty if it can."""
    return str(task.metadata.get(CANNOT, "")).partition(":")[0]


def both_right(task: Task, graded: Sequence[Task]) -> bool:
    return next(one for one in graded if one.task_id == task.task_id).gold == task.gold


def pairs_of(tasks: Sequence[Task], done: Results, what: str) -> None:
    """Print how many second golds are accepted, and what sets the rest apart."""
    for typed in (False, True):
        refused: dict[str, list[str]] = defaultdict(list)
        for task in tasks:
            first, second = (done[image(task), gold] for gold in task.gold)
            if not accepts(task, first, second, typed):
                refused[difference(task, first, second)].append(task.task_id)
        right = len(tasks) - sum(map(len, refused.values()))
        name = "typed" if typed else "default"
        print(f"second golds, {name}: {right} of {len(tasks)} = {right / len(tasks):.3f} {what}")
        for why, ids in sorted(refused.items(), key=lambda one: -len(one[1])):
            print(f"  {len(ids):3} {why}: {' '.join(ids)}")


if __name__ == "__main__":
    main()
