"""Spider's test-suite accuracy: agreement of an answer with gold on every database of a suite.

Source: Zhong, Yu and Klein, "Semantic evaluation for text-to-SQL with distilled test suites"
(2020), and its evaluation (github.com/taoyds/test-suite-sql-eval):

- Two results are equal if some order of the answer's columns makes them equal. The rows are
  compared as multisets, or as lists if gold's text contains ORDER BY. Values are compared by
  Python's ``==``, without a float tolerance.
- Before execution, ``> =`` becomes ``>=``, and ``YEAR(CURDATE())`` becomes 2020. DISTINCT is
  removed from both statements, unless `keep_distinct` is set.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence

import sqlglot
from sqlglot.errors import SqlglotError

from intercode.databases.base import DatabaseSession, Row, StatementResult
from intercode.databases.source import DatabaseSource, find
from intercode.episode import Episode, Score
from intercode.errors import UsageError
from intercode.rewards.gold import GoldCache
from intercode.rewards.sql_gold import DIALECTS
from intercode.rewards.sql_run import SqlGrader, TaskDatabases, golds, last_answer
from intercode.task import Task

Suite = Callable[[Task, DatabaseSource], Sequence[DatabaseSource]]
_THIS_YEAR = re.compile(r"YEAR\s*\(\s*CURDATE\s*\(\s*\)\s*\)\s*", re.IGNORECASE)


def sibling_databases(task: Task, source: DatabaseSource) -> Sequence[DatabaseSource]:
    """Return a suite in its authors' layout: the SQLite files beside the task's database.

    Raises:
        UsageError: The folder holds no SQLite file.
    """
    paths = sorted(source.path.parent.glob("*.sqlite"))
    if not paths:
        raise UsageError(f"{source.path.parent}: has no .sqlite files, so it is not a test suite")
    return [find(path) for path in paths]


def equal(gold: StatementResult, answer: StatementResult, ordered: bool) -> bool:
    """Return whether two results are equal in some order of the answer's columns.

    Two results without rows are equal, whatever their columns.

    Args:
        gold: The result of gold.
        answer: The result of the answer.
        ordered: Whether the order of the rows counts.
    """
    if not gold.rows and not answer.rows:
        return gold.complete and answer.complete
    if not (gold.complete and answer.complete) or len(gold.rows) != len(answer.rows):
        return False
    if len(gold.columns) != len(answer.columns):
        return False
    gold_columns, answer_columns = _hashable_columns(gold.rows), _hashable_columns(answer.rows)
    return _match_columns(gold_columns, answer_columns, ordered, ())


def prepare(sql: str, dialect: str, keep_distinct: bool = False) -> str:
    """Return a statement in the form that the original evaluation runs: see the module."""
    for split_operator, joined_operator in (("> =", ">="), ("< =", "<="), ("! =", "!=")):
        sql = sql.replace(split_operator, joined_operator)
    sql = _THIS_YEAR.sub("2020", sql)
    return sql if keep_distinct else _remove_distinct(sql, dialect)


class SqlTestSuiteReward:
    """The reward by test-suite accuracy: 1.0 if answer and gold agree on all databases, else 0.0.

    ``parts`` holds ``databases``, the share of databases on which they agree.

    Args:
        databases: The opener of the databases, for the grader.
        cache: The cache of golds' results; None: no cache.
        suite: Returns the databases of a task's suite; default: those beside the task's database.
        keep_distinct: Whether DISTINCT counts. The paper's figures were computed without DISTINCT.
    """

    VERSION = 1
    """The version of the scores: raise the number when any score can differ."""

    def __init__(
        self,
        databases: TaskDatabases,
        cache: GoldCache | None = None,
        *,
        suite: Suite = sibling_databases,
        keep_distinct: bool = False,
    ) -> None:
        self._grader = SqlGrader(databases, cache)
        self._suite = suite
        self._keep_distinct = keep_distinct

    def __call__(self, task: Task, episode: Episode, session: DatabaseSession) -> Score:
        """Return the score against the best gold.

        Raises:
            TaskError: The task has no gold.
            RewardError: Gold could not be run on a database of the suite.
            UsageError: The task has no suite.
            DatabaseError: The engine failed.
        """
        sql = last_answer(episode)
        suite = self._suite(task, self._grader.databases.source(task))
        scores = [self._score(task, gold, sql, suite) for gold in golds(task)]
        return max(scores, key=lambda score: (score.value, score.parts["databases"]))

    def _score(
        self, task: Task, gold: str, sql: str | None, suite: Sequence[DatabaseSource]
    ) -> Score:
        agreeing_names = [
            source.path.name for source in suite if self._agrees(task, gold, sql, source)
        ]
        differing_names = [
            source.path.name for source in suite if source.path.name not in agreeing_names
        ]
        part_scores = {"databases": len(agreeing_names) / len(suite)}
        return Score(float(not differing_names), part_scores, {"differing": differing_names[:20]})

    def _agrees(self, task: Task, gold: str, sql: str | None, source: DatabaseSource) -> bool:
        gold_answer = self._grader.gold(task, self._prepare(task, gold), source)
        if sql is None:
            return False
        answer = self._grader.answer(task, self._prepare(task, sql), source)
        is_ordered = "order by" in gold.lower()
        return answer.result is not None and equal(gold_answer.result, answer.result, is_ordered)

    def _prepare(self, task: Task, sql: str) -> str:
        return prepare(sql, self._grader.dialect(task), self._keep_distinct)


def _match_columns(
    gold_columns: Sequence[Sequence[Hashable]],
    answer_columns: Sequence[Sequence[Hashable]],
    is_ordered: bool,
    matched_indices: tuple[int, ...],
) -> bool:
    """Return whether the unmatched columns can be matched such that all rows are equal.

    If the matched columns already differ, no further column can make the rows equal. The search
    therefore ends early for most orders.

    Args:
        gold_columns: The columns of gold's result.
        answer_columns: The columns of the answer's result.
        is_ordered: Whether the order of the rows counts.
        matched_indices: For gold's first columns, the positions of the matched columns of the
            answer.
    """
    if not _are_same_rows(
        gold_columns[: len(matched_indices)],
        [answer_columns[index] for index in matched_indices],
        is_ordered,
    ):
        return False
    if len(matched_indices) == len(gold_columns):
        return True
    tried_columns: set[tuple[Hashable, ...]] = set()
    for index in range(len(answer_columns)):
        column = tuple(answer_columns[index])
        if index not in matched_indices and column not in tried_columns:
            tried_columns.add(column)  # an equal column would give the same result
            if _match_columns(gold_columns, answer_columns, is_ordered, (*matched_indices, index)):
                return True
    return False


def _are_same_rows(
    first_columns: Sequence[Sequence[Hashable]],
    second_columns: Sequence[Sequence[Hashable]],
    is_ordered: bool,
) -> bool:
    if is_ordered:
        return [tuple(column) for column in first_columns] == [
            tuple(column) for column in second_columns
        ]
    return Counter(zip(*first_columns, strict=True)) == Counter(zip(*second_columns, strict=True))


def _hashable_columns(rows: Sequence[Row]) -> list[list[Hashable]]:
    return [[_hashable(value) for value in column] for column in zip(*rows, strict=True)]


def _hashable(value: object) -> Hashable:
    return value if isinstance(value, Hashable) else repr(value)


def _remove_distinct(sql: str, dialect: str) -> str:
    try:
        tokens = sqlglot.tokenize(sql, read=DIALECTS.get(dialect, dialect))
    except SqlglotError:
        return sql
    return "".join(
        _split_at_tokens(sql, [t for t in tokens if sql[t.start : t.end + 1].lower() == "distinct"])
    )


def _split_at_tokens(sql: str, removed_tokens: Sequence[sqlglot.Token]) -> Iterator[str]:
    position = 0
    for token in removed_tokens:
        yield sql[position : token.start]
        position = token.end + 1
    yield sql[position:]
