"""Precision and recall of every reward, against labelled final states.

``measure.py RELEASE`` replays each labelled state, as ``collect.py`` has made it, and asks all
rewards about it. A reward says "right" by the value 1.0. RELEASE is a copy of 2023's data with its
recorded runs. States of other models are measured with ``--labels`` and ``--runs``.

Rules are made on one half of the tasks (`half`). Of the other half nothing but totals is printed.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from collect import RUNS, Find, commands, recorded, written

import intercode
from intercode.datasets import nl2bash, spider
from intercode.episode import ENDED, Episode, Score
from intercode.errors import RewardError
from intercode.evaluate.statistics import wilson
from intercode.rewards.answer_types import last_output
from intercode.task import CANNOT, Dataset, Task
from intercode_paper.bash_reward import GoldOutcomeCache
from intercode_paper.container_images import PaperImage
from intercode_paper.results_files import find_task
from intercode_sandbox import Provider, SandboxBackend, get_provider

HERE = Path(__file__).parent
LABELS = [HERE / "labels" / f"{name}.jsonl" for name in ("first", "second", "third")]
PARTS = ("bash", "sql", "golds", "constants")
HALVES = ("rules", "held out")
CONSTANTS = tuple(f"SELECT {number}" for number in range(6))
IDLE = (
    "true", "echo 0", "echo 1", "echo 2", "echo yes", "echo no", "nosuchcommand",
    "sh -c nosuchcommand", "awk '{ print'", "awk 'BEGIN { print } END {'", "python3 -c '1/0'",
)  # fmt: skip
"""Commands that look at nothing, some of which fail."""
WORKERS = 4
JUDGED = {"bash": "reviewed", "sql": "reviewed"}
"""The rewards of which misses are shown."""
ENDLESS = 10**6
"""Turns: an episode ends where its record does."""

Scores = dict[str, Score | None]
"""A reward's name → its score; None where it takes the task for no trial."""


@dataclass(frozen=True, slots=True)
class Label:
    """What a labeller said of a state."""

    right: str
    """``yes``, ``no`` or ``unclear``."""
    luck: bool
    why: str


@dataclass(frozen=True, slots=True)
class Figures:
    """How a reward agrees with the labels of some states; each pair is of so many, so many."""

    reward: str
    half: str
    states: int
    precision: tuple[int, int]
    recall: tuple[int, int]
    """Of all that are right, with those that are no trial as misses."""
    recall_of_trials: tuple[int, int]
    no_trial: int
    """States of which the reward says that they cannot be graded."""
    luck: int
    """Of the right ones that it accepts, those that are right by luck."""


# -- labels ----------------------------------------------------------------------------------------


def read_labels(path: Path) -> dict[str, Label]:
    """The labels of a file, by the names of their states."""
    rows = map(json.loads, path.read_text().splitlines())
    return {row["id"]: Label(row["right"], row["luck"], row["why"]) for row in rows if "id" in row}


def settled(one: Mapping[str, Label], *others: Mapping[str, Label]) -> dict[str, Label]:
    """The labels that count: where two labellers disagree, the third's, or none without one."""
    if not others:
        return dict(one)
    two, third = others[0], others[1] if len(others) > 1 else {}
    found = {}
    for name, first in one.items():
        second = two[name]
        if first.right != second.right:
            found[name] = third.get(name, replace(first, right="unclear"))
        else:
            found[name] = replace(first, luck=first.luck or second.luck)
    return found


def kappa(pairs: Sequence[tuple[str, str]]) -> float:
    """Cohen's: the agreement beyond that of two who choose by chance, as often as these do."""
    total = len(pairs)
    ones, twos = (Counter(pair[side] for pair in pairs) for side in (0, 1))
    observed = sum(one == two for one, two in pairs) / total
    chance = sum(ones[word] * twos[word] for word in ones) / total**2
    return 1.0 if chance == 1 else (observed - chance) / (1 - chance)


def half(name: str) -> str:
    """The half of a state: by its task, so that all states of a task are in one.

    >>> half("bash/react/2/17") == half("bash/multiturn/2/17")
    True
    """
    env, _, *task = name.split("/")
    identity = f"fs{'/'.join(task)}" if env == "bash" else f"sql/{task[0]}"
    return HALVES[zlib.crc32(identity.encode()) % 2]


def figures(
    reward: str, labels: Mapping[str, Label], scores: Mapping[str, Scores]
) -> list[Figures]:
    """A reward's figures: of all states, and of each half."""
    found = []
    for part in ("all", *HALVES):
        names = [name for name in scores if part in ("all", half(name))]
        names = [name for name in names if labels[name].right != "unclear"]
        given = {name: scores[name].get(reward) for name in names}
        accepted = [name for name, one in given.items() if one is not None and one.value == 1.0]
        right = [name for name in names if labels[name].right == "yes"]
        hits = [name for name in accepted if labels[name].right == "yes"]
        tried = sum(given[name] is not None for name in right)
        found.append(
            Figures(
                reward,
                part,
                len(names),
                (len(hits), len(accepted)),
                (len(hits), len(right)),
                (len(hits), tried),
                sum(one is None for one in given.values()),
                sum(labels[name].luck for name in hits),
            )
        )
    return found


# -- replays ---------------------------------------------------------------------------------------


def played(env: Any, task_id: str, actions: Iterable[str]) -> Episode:
    """An episode of these actions, submitted."""
    env.reset(options={"task_id": task_id})
    for action in (*actions, "submit"):
        if env.episode.status == "running":
            env.step(action)
    episode: Episode = env.episode
    return episode


class Asked:
    """What several rewards say of a state: a score with theirs as its detail."""

    def __init__(self) -> None:
        self._failed: set[tuple[str, str]] = set()

    def __call__(self, task: Task, **rewards: Callable[[], Score]) -> Score:
        """The rewards' scores; None where gold fails, which is not tried again."""
        found: Scores = {}
        for name, reward in rewards.items():
            found[name] = None
            if (name, task.task_id) in self._failed:
                continue
            try:
                found[name] = reward()
            except RewardError as error:
                print(f"{name}: {error}", file=sys.stderr)
                self._failed.add((name, task.task_id))
        return Score(0.0, detail=found)


class Paper:
    """2023's Bash reward of a state that was reached otherwise.

    Args:
        provider: Where its golds run.
    """

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._known: dict[str, GoldOutcomeCache] = {}

    def __call__(self, task: Task, episode: Episode, sandbox: SandboxBackend) -> Score:
        """Its score."""
        name = str(task.image)
        if name not in self._known:
            self._known[name] = GoldOutcomeCache(PaperImage(self._provider, name))
        return self._known[name].score(task, last_output(episode) or "", sandbox)

    def close(self) -> None:
        """Free what was prepared."""
        for golds in self._known.values():
            golds.image.close()


def bash_scores(release: Path, names: Sequence[str], find: Find) -> Iterator[tuple[str, Scores]]:
    """What 2023's, the default and the reviewed reward say of states of Bash."""
    tasks = {task.task_id: task for task in nl2bash.load(release)}
    reviewed = {task.task_id: task for task in nl2bash.load(release, reviewed=True)}
    provider, asked = get_provider(), Asked()

    def reward(task: Task, episode: Episode, sandbox: SandboxBackend, default: Any) -> Score:
        rewards = {
            "2023": partial(paper, task, episode, sandbox),
            "default": partial(default, task, episode, sandbox),
        }
        if CANNOT not in (known := reviewed[task.task_id]).metadata:
            rewards["reviewed"] = partial(default, known, episode, sandbox)
        return asked(task, **rewards)

    data = Dataset(list(tasks.values()))
    with (
        closing(Paper(provider)) as paper,
        closing(_env("bash", data, sandbox=provider, reward=reward)) as env,
    ):
        for name in names:
            episode = find(name)
            task = find_task([tasks[f"fs{'-'.join(name.split('/')[2:])}"]], episode)
            found = played(env, task.task_id, commands(episode)).score
            detail = {} if found is None else dict(found.detail)
            if ENDED in detail:  # the recorded actions left what no reward can read
                print(f"{name}: {detail[ENDED]}", file=sys.stderr)
                graded = CANNOT not in reviewed[task.task_id].metadata
                detail = dict.fromkeys(("2023", "default", *["reviewed"] * graded), Score(0.0))
            yield name, detail


def sql_scores(release: Path, names: Sequence[str], find: Find) -> Iterator[tuple[str, Scores]]:
    """Return the verdict of each SQL reward on each state: 2023's, and ours by rule on columns."""
    tasks, asked = _spider(release), Asked()
    reviewed = {task.task_id: task for task in _spider(release, reviewed=True)}

    def reward(task: Task, episode: Episode, session: Any, default: Any) -> Score:
        def ruled(**rules: Any) -> Callable[[], Score]:
            changed = replace(task, metadata={**task.metadata, **rules})
            return partial(default, changed, episode, session)

        rewards = {
            "default": ruled(),
            "columns in order": ruled(permute_columns=False),
            "explained": ruled(columns="explained"),
        }
        if CANNOT not in (known := reviewed[task.task_id]).metadata:
            rewards["reviewed"] = partial(default, known, episode, session)
        return asked(task, **rewards)

    with (
        closing(_env("sql", tasks, engine="mysql", reward=reward)) as env,
        closing(_env("sql", tasks, engine="mysql", protocol="paper")) as paper,
    ):
        for name in names:
            episode = find(name)
            task = find_task([tasks[int(name.split("/")[2])]], episode)
            before = played(paper, task.task_id, commands(episode)).score
            found = played(env, task.task_id, commands(episode)).score
            yield name, {"2023": before, **({} if found is None else found.detail)}


Replay = Callable[[Path, Sequence[str], Find], Iterator[tuple[str, Scores]]]
REPLAYS: Mapping[str, Replay] = {"bash": bash_scores, "sql": sql_scores}


def _together(
    replay: Replay, release: Path, names: Sequence[str], find: Find
) -> Iterator[tuple[str, Scores]]:
    """The scores of all states; replays mostly wait, so that several go on at a time."""
    with ThreadPoolExecutor(WORKERS) as pool:
        shares = [names[first::WORKERS] for first in range(min(WORKERS, len(names)))]
        jobs = [pool.submit(lambda share: [*replay(release, share, find)], one) for one in shares]
        scores = dict(pair for job in jobs for pair in job.result())
    yield from ((name, scores[name]) for name in names)


def _env(name: str, data: Dataset, **options: Any) -> Any:
    return intercode.make(name, data=data, max_turns=ENDLESS, **options)


def _spider(release: Path, *, reviewed: bool = False) -> Dataset:
    return spider.load(release / "data" / "sql" / "spider", reviewed=reviewed)


# -- tasks by themselves ---------------------------------------------------------------------------


def gradable(release: Path) -> list[Task]:
    """The reviewed tasks that can be graded."""
    return [one for one in nl2bash.load(release, reviewed=True) if CANNOT not in one.metadata]


def solved(env: Any, task: Task, action: str) -> bool:
    """Whether an action alone solves a task."""
    found = played(env, task.task_id, [action]).score
    return found is not None and found.value == 1.0


def golds(release: Path) -> dict[str, Any]:
    """Which golds of the reviewed tasks do not solve them, run twice each, and which `IDLE` do."""
    tasks = gradable(release)
    failing: list[str] = []
    idle: dict[str, list[str]] = {command: [] for command in IDLE}
    with closing(_env("bash", Dataset(tasks), cache_gold=True)) as env:
        for task in _counted("golds", tasks):
            for number, gold in enumerate(task.gold):
                failing += [f"{task.task_id}: {number}"] * any(
                    not solved(env, task, gold) for _ in range(2)
                )
            for command in IDLE:
                idle[command] += [task.task_id] * solved(env, task, command)
    total = sum(len(task.gold) for task in tasks)
    print(f"NL2Bash, reviewed: {len(tasks)} of 200 tasks can be graded, by {total} golds")
    print(f"  golds that do not solve their task: {len(failing)} {' '.join(failing)}")
    for command, names in idle.items():
        print(f"  tasks that `{command}` solves: {len(names)} {' '.join(names)}")
    print()
    return {"tasks": len(tasks), "golds": total, "failing": failing, "idle": idle}


def constants(release: Path) -> dict[str, Any]:
    """How many of Spider's tasks queries solve that read no table."""
    tasks = _spider(release)
    found: dict[str, list[str]] = {query: [] for query in CONSTANTS}
    failed: set[str] = set()
    with closing(_env("sql", tasks)) as env:
        for task in _counted("constants", tasks):
            for query in CONSTANTS:
                try:
                    found[query] += [task.task_id] * solved(env, task, query)
                except RewardError:  # gold fails
                    failed.add(task.task_id)
    union = {task for solved_ones in found.values() for task in solved_ones}
    counts = {query: len(tasks) for query, tasks in found.items()}
    print(
        f"Spider: constants solve {len(union)} of {len(tasks)} tasks; gold of {len(failed)} fails"
    )
    print(f"  {', '.join(f'{query}: {count}' for query, count in counts.items())}\n")
    return {"tasks": len(tasks), "solved": sorted(union), "of each": counts, "failed": len(failed)}


# -- the report ------------------------------------------------------------------------------------


def measured(
    env: str, labels: Sequence[Mapping[str, Label]], release: Path, find: Find, misses: bool
) -> dict[str, Any]:
    """The figures of one environment's rewards, printed."""
    mine = [{n: one for n, one in each.items() if n.startswith(f"{env}/")} for each in labels]
    final = settled(*mine)
    scores = dict(_together(REPLAYS[env], release, list(final), find))
    names = list(dict.fromkeys(name for given in scores.values() for name in given))
    rows = [row for name in names for row in figures(name, final, scores)]
    facts: dict[str, Any] = {"states": len(final)}
    if len(mine) > 1:
        pairs = [(one.right, mine[1][name].right) for name, one in mine[0].items()]
        same = sum(one == two for one, two in pairs)
        facts |= {"agreed": same, "kappa": kappa(pairs), "settled": len(pairs) - same}
    facts |= {"unclear": sum(label.right == "unclear" for label in final.values())}
    print(f"{env}: " + ", ".join(f"{word} {_shown(fact)}" for word, fact in facts.items()))
    print(f"  {'reward':18}{'half':10}{'states':>6}  {'precision':31}{'recall':31}", end="")
    print(f"{'recall of trials':31}{'no trial':>8}{'luck':>6}")
    for row in rows:
        rates = map(proportion, (row.precision, row.recall, row.recall_of_trials))
        print(f"  {row.reward:18}{row.half:10}{row.states:6}  ", end="")
        print("".join(f"{text:31}" for text in rates) + f"{row.no_trial:8}{row.luck:6}")
    print()
    if misses:
        _show_misses(JUDGED[env], final, scores)
    return {**facts, "rewards": [asdict(row) for row in rows]}


def proportion(counts: tuple[int, int]) -> str:
    """A rate, with its numbers and its interval of 95 %.

    >>> proportion((3, 4))
    '0.750 3/4 [0.301, 0.954]'
    """
    hits, total = counts
    low, high = wilson(hits, total)
    return f"{hits / total if total else 0:.3f} {hits}/{total} [{low:.3f}, {high:.3f}]"


def _shown(fact: float) -> str:
    return f"{fact:.3f}" if isinstance(fact, float) else str(fact)


def _show_misses(reward: str, labels: Mapping[str, Label], scores: Mapping[str, Scores]) -> None:
    """Where a reward disagrees with a label, in the rules' half alone."""
    for name, given in scores.items():
        found, label = given.get(reward), labels[name]
        accepted = found is not None and found.value == 1.0
        if (
            half(name) != HALVES[0]
            or label.right == "unclear"
            or accepted == (label.right == "yes")
        ):
            continue
        said = "no trial" if found is None else f"{found.value:.2f}"
        print(f"{name}: {reward}: {said}; label: {label.right}: {label.why}")
        if found is not None:
            print(json.dumps(dict(found.detail), indent=1, default=str), "\n")


def _counted(what: str, items: Iterable[Any], total: int = 0) -> Iterator[Any]:
    """The items, counted on standard error."""
    for number, item in enumerate(items, 1):
        yield item
        if number % 20 == 0:
            print(f"{what}: {number} of {total or '…'}", file=sys.stderr)


def main() -> None:
    """Measure, print, and write ``results.json``."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("release", type=Path, help="a copy of 2023's data, with data/results in it")
    parser.add_argument("--only", choices=PARTS, action="append", help="repeat for several")
    parser.add_argument("--labels", type=Path, nargs="+", default=LABELS, metavar="FILE",
                        help="one labeller's, two, or two and a third who settles")  # fmt: skip
    parser.add_argument("--runs", action="append", default=[], metavar="ENV/KIND=PATH",
                        help="results that states ENV/KIND/… are of; {suite} stands for the file "
                        "system's number")  # fmt: skip
    parser.add_argument(
        "--answers",
        type=Path,
        metavar="FILE",
        help="commands that were written for the tasks, which the labels are of",
    )
    parser.add_argument("--misses", action="store_true", help="show those in the rules' half")
    parser.add_argument("--results", type=Path, default=HERE / "results.json")
    args = parser.parse_args()
    release = args.release.resolve()
    if not (release / "data" / "nl2bash").is_dir():
        parser.exit(2, f"{release} has no data/nl2bash: give a copy of 2023's release, as in "
                    "make graders RELEASE=path\n")  # fmt: skip
    runs = {**RUNS, **dict(one.split("=", 1) for one in args.runs)}
    find: Find = partial(recorded, release, runs=runs)
    if args.answers is not None:
        _, find = written(release, args.answers)
    labels = [read_labels(path) for path in args.labels]
    results = json.loads(args.results.read_text()) if args.results.is_file() else {}
    for part in args.only or PARTS:
        if part in REPLAYS:
            results[part] = measured(part, labels, release, find, args.misses)
        else:
            results[part] = {"golds": golds, "constants": constants}[part](release)
        args.results.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
