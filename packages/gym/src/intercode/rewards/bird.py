"""BIRD's scores by the definitions of its benchmark: execution accuracy, soft F1 and R-VES.

Source: the evaluation of BIRD's mini-dev (github.com/bird-bench/mini_dev, ``evaluation/``, 2024).
The scores compare Python values of the driver, without a float tolerance, and count repeated rows
once. The order of rows matters for soft F1 alone. The scores complement the default reward by
figures that others can compare. They are weaker: a guess that gives the right rows on one database
passes them, though the default reward may detect the guess.

Two things differ from the original. First, gold and answer run on fresh copies, on the
environment's own engine: timing includes the engine's round trip but no connection setup. Second,
gold that fails is an error, not a 0.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import closing
from typing import Any

from intercode.databases.base import DatabaseSession, Row, StatementFailure
from intercode.episode import Episode, Score
from intercode.errors import RewardError
from intercode.rewards.gold import GoldCache
from intercode.rewards.sql_run import (
    AgentAnswerResult,
    SqlGrader,
    TaskDatabases,
    golds,
    last_answer,
)
from intercode.task import Task

ITERATIONS = 100
"""The number of times that R-VES runs each of the two queries, gold's and the answer's."""
_REWARDS = ((2.0, 1.25), (1.0, 1.0), (0.5, 0.75), (0.25, 0.5))
"""R-VES: (least ratio of gold's time to the answer's, reward). Smaller ratios get 0.25."""


def execution_accuracy(gold: Sequence[Row], answer: Sequence[Row]) -> float:
    """Return execution accuracy (EX): 1.0 if both results have the same set of rows, else 0.0."""
    return float(set(map(_hashable, gold)) == set(map(_hashable, answer)))


def soft_f1(gold: Sequence[Row], answer: Sequence[Row]) -> float:
    """Return soft F1: the agreement of cells, row by row in the given order without repeated rows.

    A cell of the answer matches if its value is anywhere in gold's row at the same position. The
    cells of a row are counted as shares of the number of gold's columns. The order of the columns
    does not matter. Two empty results agree: 1.0.
    """
    if not gold and not answer:
        return 1.0
    gold_rows = list(dict.fromkeys(map(_hashable, gold)))
    answer_rows = list(dict.fromkeys(map(_hashable, answer)))
    true_positives = false_positives = false_negatives = 0.0
    for gold_row, answer_row in zip(gold_rows, answer_rows, strict=False):
        true_positives += sum(value in gold_row for value in answer_row) / len(gold_row)
        false_positives += sum(value not in gold_row for value in answer_row) / len(gold_row)
        false_negatives += sum(value not in answer_row for value in gold_row) / len(gold_row)
    false_positives += max(len(answer_rows) - len(gold_rows), 0)
    false_negatives += max(len(gold_rows) - len(answer_rows), 0)
    precision = (
        true_positives / (true_positives + false_positives)
        if true_positives + false_positives
        else 0.0
    )
    recall = (
        true_positives / (true_positives + false_negatives)
        if true_positives + false_negatives
        else 0.0
    )
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def time_ratio(ratios: Sequence[float]) -> float:
    """Return the mean of ratios, without those three or more standard deviations from the mean."""
    mean, deviation = statistics.fmean(ratios), statistics.pstdev(ratios)
    retained_ratios = [ratio for ratio in ratios if abs(ratio - mean) < 3 * deviation]
    return statistics.fmean(retained_ratios or ratios)  # equal ratios are all retained


def ves_reward(ratio: float) -> float:
    """Return R-VES's reward for a right answer, between 0.25 and 1.25.

    The ratio is gold's time divided by the answer's time. A ratio of 0 gives 0.0.
    """
    if ratio == 0:
        return 0.0
    return next((reward for min_ratio, reward in _REWARDS if ratio >= min_ratio), 0.25)


def r_ves(rewards: Sequence[float]) -> float:
    """Return R-VES of a dataset: 100 times the mean of the square roots of its tasks' rewards."""
    return 100 * statistics.fmean(map(math.sqrt, rewards)) if rewards else 0.0


class ExReward:
    """The reward by execution accuracy (EX). ``parts``: ``ex``.

    Args:
        databases: The opener of the tasks' databases, for the grader.
        cache: The cache of golds' results; None: no cache.
    """

    VERSION = 1
    """The version of the scores: raise the number when any score can differ."""

    def __init__(self, databases: TaskDatabases, cache: GoldCache | None = None) -> None:
        self._grader = SqlGrader(databases, cache)

    def __call__(self, task: Task, episode: Episode, session: DatabaseSession) -> Score:
        """Return the score against the best gold.

        Raises:
            TaskError: The task has no gold.
            RewardError: Gold could not be run.
            DatabaseError: The engine failed.
        """
        return max(self._scores(task, episode), key=lambda score: score.value)

    def _scores(self, task: Task, episode: Episode) -> Iterator[Score]:
        sql = last_answer(episode)
        source = self._grader.databases.source(task)
        answer = AgentAnswerResult(None) if sql is None else self._grader.answer(task, sql, source)
        for gold in golds(task):
            gold_rows = self._grader.gold(task, gold, source).result.rows
            if sql is None or answer.result is None or not answer.result.complete:
                yield self._score(task, "", gold, [], None)
            else:
                yield self._score(task, sql, gold, gold_rows, answer.result.rows)

    def _score(
        self,
        task: Task,
        sql: str,
        gold: str,
        gold_rows: Sequence[Row],
        answer_rows: Sequence[Row] | None,
    ) -> Score:
        """Return the score of an answer's rows; `answer_rows` is None without a complete result."""
        value = 0.0 if answer_rows is None else execution_accuracy(gold_rows, answer_rows)
        return Score(value, {"ex": value})


class SoftF1Reward(ExReward):
    """The reward by soft F1. ``parts``: ``soft_f1``."""

    def _score(
        self,
        task: Task,
        sql: str,
        gold: str,
        gold_rows: Sequence[Row],
        answer_rows: Sequence[Row] | None,
    ) -> Score:
        value = 0.0 if answer_rows is None else soft_f1(gold_rows, answer_rows)
        return Score(value, {"soft_f1": value})


class _AnswerFailedError(Exception):
    """An error: a right answer fails when it runs again."""


class RVesReward(ExReward):
    """The reward by R-VES: it is full if the answer is right, and not slower than gold.

    The value is the task's reward, cut at 1.0; ``parts`` holds ``reward`` (up to 1.25, for `r_ves`)
    and ``time_ratio``. The reward measures time, so its value differs from run to run.

    Args:
        databases: The opener of the tasks' databases, for the grader.
        cache: The cache of golds' results; None: no cache.
        iterations: The number of times that each of the two queries runs.
    """

    def __init__(
        self,
        databases: TaskDatabases,
        cache: GoldCache | None = None,
        *,
        iterations: int = ITERATIONS,
    ) -> None:
        super().__init__(databases, cache)
        self._iterations = iterations

    def _score(
        self,
        task: Task,
        sql: str,
        gold: str,
        gold_rows: Sequence[Row],
        answer_rows: Sequence[Row] | None,
    ) -> Score:
        if answer_rows is None or not execution_accuracy(gold_rows, answer_rows):
            return Score(0.0, {"reward": 0.0, "time_ratio": 0.0})
        try:
            ratio = time_ratio([self._ratio(task, sql, gold) for _ in range(self._iterations)])
        except _AnswerFailedError as error:
            return Score(0.0, {"reward": 0.0, "time_ratio": 0.0}, {"reason": str(error)})
        reward = ves_reward(ratio)
        return Score(min(reward, 1.0), {"reward": reward, "time_ratio": ratio})

    def _ratio(self, task: Task, sql: str, gold: str) -> float:
        answer_time = self._seconds(task, sql)
        if isinstance(answer_time, StatementFailure):
            raise _AnswerFailedError(f"the answer failed when timed: {answer_time.message}")
        gold_time = self._seconds(task, gold)
        if isinstance(gold_time, StatementFailure):
            raise RewardError(
                f"task {task.task_id!r}: failed when timed: {gold_time.message}: {gold}"
            )
        return gold_time / answer_time

    def _seconds(self, task: Task, sql: str) -> float | StatementFailure:
        databases = self._grader.databases
        with closing(databases.open(task, "grader")) as session:
            start_time = time.perf_counter()
            outcome = session.execute(sql, timeout=task.timeout)
            seconds = time.perf_counter() - start_time
        return outcome.failure or seconds


def _hashable(row: Row) -> tuple[Any, ...]:
    """Return the row with unhashable values (lists, objects) replaced by their texts."""
    return tuple(value if isinstance(value, Hashable) else repr(value) for value in row)
