"""New grades for the recorded runs of 2023, under three gradings: see `rescore`.

The gradings are rules on a final state. ``2023`` is the released reward; ``default`` is InterCode's
reward on the data of 2023. ``reviewed`` is InterCode's reward on the reviewed data.

The recorded commands run again in a fresh environment of the default protocol, and every grading
scores the final state. Runs of Python and CTF are replayed under the protocol of 2023 instead,
because their rewards depend on the recorded submissions.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import intercode
from intercode import datasets
from intercode.datasets import nl2bash, spider
from intercode.episode import Episode, Score
from intercode.errors import RecordError, RewardError, TaskError
from intercode.evaluate.run_setup import find_provider
from intercode.rewards.answer_types import last_output
from intercode.task import CANNOT, Dataset, Task
from intercode_paper.bash_reward import GoldOutcomeCache
from intercode_paper.container_images import PaperImage
from intercode_paper.ctf_env import replay_ctf
from intercode_paper.paper_tables import (
    RecordedExperiment,
    ResultsFile,
    SkippedResultsFile,
    list_experiments,
)
from intercode_paper.python_env import default_rewards, replay_python
from intercode_paper.replay_report import RegradedReplayReport
from intercode_paper.results_files import RecordedEpisode, find_task, update_queries
from intercode_paper.sql_server import default_engine
from intercode_sandbox.base import SandboxBackend

GRADINGS = ("2023", "default", "reviewed")
_UNLIMITED_TURNS = 10**6
"""The limit of turns: an episode ends at the end of its record."""

Scores = dict[str, Score | None]
"""Grading → score; None: the grading cannot grade the task. Absent: no such grading exists."""


@dataclass(frozen=True, slots=True)
class GradeChange:
    """The number of episodes whose result changes for one reason, from a grading to the next."""

    grading: str
    """The later grading; the earlier grading is the previous name, or the record before ``2023``.
    """
    kind: str
    """``gained``, ``lost``, or ``excluded``: solved before, and now without a grade."""
    reason: str
    episodes: int


@dataclass(frozen=True, slots=True)
class GradeCounts:
    """The episodes under one grading."""

    success_count: int
    episodes: int
    """Number of episodes that the grading can grade."""
    success_count_2023: int | None = None
    """Number of those episodes that are solved under ``2023``; None: not counted."""


@dataclass(frozen=True, slots=True)
class RescoredRun:
    """One experiment of 2023, as recorded and under each grading."""

    env: str
    model: str
    strategy: str
    episodes: int
    recorded: int
    """Number of recorded successes: a reward of 1 at any turn, as in the paper."""
    counts: Mapping[str, GradeCounts]
    """Grading → counts."""
    changes: Sequence[GradeChange] = ()
    """The changes by reason; empty if they were not counted."""
    source: str = ""
    """The date of the rescoring, the version of InterCode, and the engine of SQL."""


@dataclass(frozen=True, slots=True)
class RescoreOptions:
    """The options of a rescoring."""

    release: Path
    """A checkout of the release, with data and recorded results."""
    engine: str | None = None
    """The engine of SQL; None: `default_engine`."""
    workers: int = 1
    """Number of concurrent episodes. SQL has one connection, and ignores the number."""
    limit: int | None = None
    """Maximum number of episodes of each file; None: all."""


@dataclass(slots=True)
class _EpisodeGrades:
    """The result of one episode: success under each grading, and the reason of each change."""

    recorded: bool
    success: dict[str, bool | None]
    reasons: dict[str, str]

    def changes(self) -> Iterator[tuple[str, str, str]]:
        """Yield grading, kind and reason of each change."""
        earlier_success: bool | None = self.recorded
        for grading, success in self.success.items():
            if success is None:
                if earlier_success:
                    yield grading, "excluded", "the task cannot be graded"
                continue
            if earlier_success is not None and success != earlier_success:
                yield grading, "gained" if success else "lost", self.reasons.get(grading, "")
            earlier_success = success


def rescore(
    options: RescoreOptions,
    results: Path | None = None,
    envs: Sequence[str] = (),
    skip: Callable[[SkippedResultsFile], None] = lambda file: None,
    report_line: Callable[[str], None] = lambda line: None,
) -> list[RescoredRun]:
    """Rescore all recorded runs of a release.

    Args:
        options: The options.
        results: The folder of the recorded runs; None: the release.
        envs: The names of the environments to rescore; empty: all.
        skip: A function to call with each omitted file. Its episodes cannot be read, or belong to
            tasks that the release lacks.
        report_line: A function to call with a line about each finished experiment.

    Raises:
        RecordError: No file can be read as a recorded run, or no run can be scored.
        SandboxError, ImageError, DatabaseError: The infrastructure failed.
    """
    rescored_runs = []
    for recorded_experiment in list_experiments(results or options.release, skip):
        env = recorded_experiment.experiment.env
        if envs and env not in envs:
            continue
        if env not in _GRADERS:
            for file in recorded_experiment.files:
                skip(SkippedResultsFile(file.run.path, f"no grading exists for {env!r}"))
            continue
        start_time = time.monotonic()
        try:
            grades = [
                episode_grades
                for file in recorded_experiment.files
                for episode_grades in _GRADERS[env](
                    options, recorded_experiment, _cut(file, options)
                )
            ]
        except (RecordError, TaskError) as error:
            # Other experiments have other files, except that first turns belong to two of them.
            for file in () if recorded_experiment.is_first_turn else recorded_experiment.files:
                skip(SkippedResultsFile(file.run.path, str(error)))
            continue
        source = f"{time.strftime('%Y-%m-%d')}, InterCode {intercode.__version__}"
        if env == "sql":
            source += f", {options.engine or default_engine()}".partition("://")[0]
        rescored_runs.append(_summarize(recorded_experiment, grades, source))
        experiment = recorded_experiment.experiment
        report_line(
            f"{env}: {experiment.model}, {experiment.strategy}: {len(grades)} episodes in "
            f"{time.monotonic() - start_time:.0f} s"
        )
    if not rescored_runs:
        raise RecordError(
            f"{results or options.release} has no run of {', '.join(envs or _GRADERS)} that can be "
            "scored"
        )
    return rescored_runs


def _cut(file: ResultsFile, options: RescoreOptions) -> ResultsFile:
    """Return a file with at most as many episodes as the options allow."""
    return replace(file, run=replace(file.run, episodes=file.run.episodes[: options.limit]))


def _summarize(
    recorded_experiment: RecordedExperiment, grades: Sequence[_EpisodeGrades], source: str
) -> RescoredRun:
    counts = {}
    for grading in GRADINGS:
        entries = [entry for entry in grades if entry.success.get(grading) is not None]
        if entries:
            counts[grading] = GradeCounts(
                success_count=sum(entry.success[grading] is True for entry in entries),
                episodes=len(entries),
                success_count_2023=sum(entry.success["2023"] is True for entry in entries),
            )
    changes = Counter(change for entry in grades for change in entry.changes())
    experiment = recorded_experiment.experiment
    return RescoredRun(
        env=experiment.env,
        model=experiment.model,
        strategy=experiment.strategy,
        episodes=len(grades),
        recorded=sum(entry.recorded for entry in grades),
        counts=counts,
        changes=[
            GradeChange(*change, count)
            for change, count in sorted(
                changes.items(), key=lambda item: (GRADINGS.index(item[0][0]), *item[0][1:])
            )
        ],
        source=source,
    )


# Bash and SQL: the final state under each grading


def _commands(recorded_experiment: RecordedExperiment, episode: RecordedEpisode) -> list[str]:
    """Return the commands that the environment executed in an episode."""
    turns = episode.turns[:1] if recorded_experiment.is_first_turn else episode.turns
    commands = [turn.command for turn in turns if turn.command is not None]
    commands = [command for command in commands if not command.startswith(("submit", "skip"))]
    if episode.react and recorded_experiment.experiment.env == "sql":
        # The ReAct parser of 2023 executed only the first statement of a command.
        return [command.partition(";")[0] for command in commands]
    return commands


def _play(env: Any, task: Task, commands: Sequence[str]) -> Episode:
    """Run commands in an environment, submit, and return the episode."""
    env.reset(options={"task_id": task.task_id})
    for action in (*commands, "submit"):
        if env.episode.status == "running":
            env.step(action)
    episode: Episode = env.episode
    return episode


def _score_or_none(score: Callable[[], Score]) -> Score | None:
    """Return a score; None if gold itself fails."""
    try:
        return score()
    except RewardError:
        return None


def _grade_bash(
    options: RescoreOptions, recorded_experiment: RecordedExperiment, file: ResultsFile
) -> list[_EpisodeGrades]:
    suite = f"nl2bash_{file.system}"
    tasks = nl2bash.load(options.release, suite)
    reviewed_tasks = {
        task.task_id: task for task in nl2bash.load(options.release, suite, reviewed=True)
    }
    recorded_run, _ = update_queries(tasks, file.run)
    pairs = [(episode, find_task(tasks, episode)) for episode in recorded_run.episodes]
    provider = find_provider("bash")

    def grade(pairs: Sequence[tuple[RecordedEpisode, Task]]) -> list[_EpisodeGrades]:
        scores: Scores = {}

        def reward(task: Task, episode: Episode, sandbox: SandboxBackend, default: Any) -> Score:
            reviewed_task = reviewed_tasks[task.task_id]
            output = last_output(episode) or ""
            scores["2023"] = _score_or_none(lambda: golds.score(task, output, sandbox))
            scores["default"] = _score_or_none(lambda: default(task, episode, sandbox))
            if scores["reviewed"] is not None:
                scores["reviewed"] = _score_or_none(
                    lambda: default(reviewed_task, episode, sandbox)
                )
            return Score(0.0)

        entries = []
        with ExitStack() as stack:
            golds = GoldOutcomeCache(
                stack.enter_context(closing(PaperImage(provider, str(tasks[0].image))))
            )
            env = stack.enter_context(
                closing(_make("bash", tasks, reward=reward, sandbox=provider))
            )
            for episode, task in pairs:
                # If the commands end the sandbox, no reward is called, and these values remain.
                scores |= dict.fromkeys(GRADINGS, Score(0.0))
                if CANNOT in reviewed_tasks[task.task_id].metadata:
                    scores["reviewed"] = None
                _play(env, task, _commands(recorded_experiment, episode))
                reviewed_task = reviewed_tasks[task.task_id]
                entries.append(
                    _compare(
                        recorded_experiment, episode, scores, task, reviewed_task, _bash_reason
                    )
                )
        return entries

    share_count = max(1, min(options.workers, len(pairs)))
    size = -(-len(pairs) // share_count)
    with ThreadPoolExecutor(share_count, "rescore") as pool:
        shares = [pairs[start : start + size] for start in range(0, len(pairs), size)]
        return [entry for entries in pool.map(grade, shares) for entry in entries]


def _grade_sql(
    options: RescoreOptions, recorded_experiment: RecordedExperiment, file: ResultsFile
) -> list[_EpisodeGrades]:
    folder = options.release / "data" / "sql" / "spider"
    tasks = spider.load(folder)
    reviewed_tasks = {task.task_id: task for task in spider.load(folder, reviewed=True)}
    recorded_run, _ = update_queries(tasks, file.run)
    engine = options.engine or default_engine()
    scores: Scores = {}

    def reward(task: Task, episode: Episode, session: Any, default: Any) -> Score:
        reviewed_task = reviewed_tasks[task.task_id]
        scores["default"] = _score_or_none(lambda: default(task, episode, session))
        if CANNOT not in reviewed_task.metadata:
            scores["reviewed"] = _score_or_none(lambda: default(reviewed_task, episode, session))
        return Score(0.0)

    entries = []
    with (
        closing(_make("sql", tasks, reward=reward, engine=engine)) as env,
        closing(_make("sql", tasks, engine=engine, protocol="paper")) as paper_env,
    ):
        for episode in recorded_run.episodes:
            task, commands = find_task(tasks, episode), _commands(recorded_experiment, episode)
            scores |= dict.fromkeys(GRADINGS)
            scores["2023"] = _play(paper_env, task, commands).score
            _play(env, task, commands)
            reviewed_task = reviewed_tasks[task.task_id]
            entries.append(
                _compare(recorded_experiment, episode, scores, task, reviewed_task, _sql_reason)
            )
    return entries


def _make(name: str, tasks: Dataset, **options: Any) -> Any:
    return intercode.make(name, data=tasks, max_turns=_UNLIMITED_TURNS, **options)


Reason = Callable[[Score, Score], str]
"""Returns the reason of a change, by the score of 2023 and the default score."""


def _compare(
    recorded_experiment: RecordedExperiment,
    episode: RecordedEpisode,
    scores: Scores,
    task: Task,
    reviewed_task: Task,
    default_reason: Reason,
) -> _EpisodeGrades:
    """Return the results of an episode, with a reason for each grading."""
    last_reward = next((turn.reward for turn in reversed(episode.turns) if turn.is_compared), None)
    recorded = recorded_experiment.is_success(episode)
    reasons = {
        "2023": "solved before the last turn only"
        if recorded and not recorded_experiment.is_first_turn and last_reward != 1
        else "other shell, machine, or version of the reward"
    }
    score_2023, default_score, review_score = (scores[grading] for grading in GRADINGS)
    if score_2023 is not None and default_score is not None:
        reasons["default"] = default_reason(score_2023, default_score)
    if review_score is not None:
        reasons["reviewed"] = _review_reason(task, reviewed_task, review_score)
    return _EpisodeGrades(
        recorded,
        {grading: None if score is None else score.value == 1 for grading, score in scores.items()},
        reasons,
    )


def _bash_reason(score_2023: Score, default_score: Score) -> str:
    if default_score.value != 1:
        return (
            "the output is similar to gold's, but not equal"
            if default_score.parts.get("output", 1) < 1
            else "files differ that the rules of 2023 do not compare"
        )
    if score_2023.parts.get("answer_similarity", 0.33) >= 0.33:
        return "changed files count as gold's"
    agent_words, gold_words = (
        str(score_2023.detail.get(name, "")).split() for name in ("agent_obs", "eval_obs")
    )
    if agent_words == gold_words:
        return "only blanks differ, which the rules of 2023 compare"
    return "gold prints another output in the shell of 2023"


def _sql_reason(score_2023: Score, default_score: Score) -> str:
    if default_score.value == 1:
        return (
            "rows in another order, which the query leaves open"
            if score_2023.parts.get("overlap") == 1
            else "equal values or columns in another form or order"
        )
    reason = str(default_score.detail.get("reason", ""))
    if reason.startswith("on a mutated copy"):
        return "right on the original data only"
    return "other columns than gold's" if "column" in reason else "other rows than gold's"


def _review_reason(task: Task, reviewed_task: Task, score: Score) -> str:
    if task.gold[0] not in reviewed_task.gold:
        return "the published gold is wrong"
    if "explained" in score.detail:
        return "a further column explains the answer"
    return "another form or reading of the answer"


# Python and CTF: the recorded submissions under each protocol


def _grade_python(
    options: RescoreOptions, recorded_experiment: RecordedExperiment, file: ResultsFile
) -> list[_EpisodeGrades]:
    tasks = datasets.load("mbpp", root=options.release)
    reviewed_tasks = datasets.load("mbpp", root=options.release, reviewed=True)
    recorded_run, _ = update_queries(tasks, file.run)
    provider = find_provider("python")
    report = replay_python(tasks, recorded_run, provider, workers=options.workers)
    # Several tasks have one query, so an episode's task is the task in the row of its id.
    pairs = [(episode, reviewed_tasks[int(episode.task_id)]) for episode in recorded_run.episodes]
    graded_pairs = [pair for pair in pairs if CANNOT not in pair[1].metadata]
    rewards = {
        episode.task_id: reward
        for (episode, _), reward in zip(
            graded_pairs, default_rewards(graded_pairs, provider), strict=True
        )
    }
    entries = _report_grades(
        report,
        recorded_run.episodes,
        loss_reason="the submitted name is gold's, not the agent's",
        gain_reason="the tests call another function than gold's first",
    )
    for entry, (episode, _) in zip(entries, pairs, strict=True):
        reward = rewards.get(episode.task_id)
        entry.success["reviewed"] = None if reward is None else reward == 1
        entry.reasons["reviewed"] = "further tests"
    return entries


def _grade_ctf(
    options: RescoreOptions, recorded_experiment: RecordedExperiment, file: ResultsFile
) -> list[_EpisodeGrades]:
    tasks = datasets.load("ic-ctf", root=options.release)
    recorded_run, _ = update_queries(tasks, file.run)
    report = replay_ctf(tasks, recorded_run, find_provider("bash"), workers=options.workers)
    return _report_grades(
        report,
        recorded_run.episodes,
        loss_reason="the flag has other capitals or comes after the third wrong one",
        gain_reason="the flag has blanks",
    )


def _report_grades(
    report: RegradedReplayReport,
    episodes: Sequence[RecordedEpisode],
    loss_reason: str,
    gain_reason: str,
) -> list[_EpisodeGrades]:
    """Return the results of the episodes of a replay, with the reasons of both kinds of change."""
    changed_ids = {*report.success_lost, *report.success_gained}
    entries = []
    for episode in episodes:
        task_id = episode.task_id
        replayed = episode.success == report.by_task[task_id].success_agree
        success: dict[str, bool | None] = {
            "2023": replayed,
            "default": replayed != (task_id in changed_ids),
        }
        reasons = {
            "2023": "other shell, machine, or version of the reward",
            "default": loss_reason if replayed else gain_reason,
        }
        entries.append(_EpisodeGrades(episode.success, success, reasons))
    return entries


_GRADERS: Mapping[
    str, Callable[[RescoreOptions, RecordedExperiment, ResultsFile], list[_EpisodeGrades]]
] = {"bash": _grade_bash, "sql": _grade_sql, "python": _grade_python, "ctf": _grade_ctf}
