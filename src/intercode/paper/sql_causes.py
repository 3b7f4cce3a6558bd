"""Why a replayed SQL turn differs from the recorded one: a guess from its texts, for people."""

from __future__ import annotations

import re

from intercode.paper.sql_connection import ERROR
from intercode.paper.sql_reward import Answer
from intercode.paper.sql_texts import SHOWN_ROWS, plain, row_texts

LEAK = "leak: a table that an earlier run had made"
ORDER = "order of rows where none was asked for"
TIES = "ties cut by LIMIT"
GROUP = "a column that its group does not determine"
SYSTEM = "the server's own tables and descriptions"
TYPES = "types of values"
CHANCE = "date or chance"
ANOTHER_ERROR = "another error of the same statement"
DIALECT = "the engine's dialect"
TIME = "time limit"
COMPARISON = "how the engine compares values (spaces, text with numbers); or unknown"

_SYSTEM = re.compile(
    r"\b(?:information_schema|performance_schema|mysql|sys)\s*\.|@@"
    r"|\b(?:VERSION|USER|CONNECTION_ID)\s*\(",
    re.IGNORECASE,
)
_DESCRIBES = re.compile(r"\s*(?:SHOW|DESC|DESCRIBE|EXPLAIN|HELP)\b", re.IGNORECASE)
_NOW = re.compile(
    r"\b(?:NOW|CURDATE|CURRENT_\w+|SYSDATE|UNIX_TIMESTAMP|RAND|UUID)\b", re.IGNORECASE
)
_LIMIT = re.compile(r"\bLIMIT\b", re.IGNORECASE)
_GROUPED = re.compile(
    r"\bGROUP\s+BY\b|\b(?:COUNT|SUM|AVG|MIN|MAX|GROUP_CONCAT)\s*\(", re.IGNORECASE
)
_MISSING = re.compile(r"Table '[^']+' doesn't exist|no such table")
_NAME = re.compile(r"\('\w+',\)")
_INTERRUPTED = re.compile(
    r"interrupted|max_statement_time|time limit|Lost connection", re.IGNORECASE
)
_NUMBER = re.compile(r"Decimal\('(-?[\d.]+)'\)|(?<![\w'.])(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?![\w'])")
_DATE = re.compile(
    r"datetime\.\w+\(([\d, ]+)\)|'(\d{4}-\d\d-\d\d(?: \d\d:\d\d(?::\d\d)?)?)(?:\.0+)?'"
)


def cause_of(
    command: str,
    recorded: str,
    replayed: str,
    *,
    same_observation: bool,
    gold: Answer,
    gold_command: str,
) -> str:
    """The likely cause of a mismatch.

    Args:
        command: What was run last.
        recorded: What it showed in 2023.
        replayed: What it showed now.
        same_observation: Whether the two agree, so that only the reward differs.
        gold: What gold gave now.
        gold_command: Gold itself.
    """
    if same_observation:
        return f"gold: {_of_gold(gold, gold_command)}"
    if _INTERRUPTED.search(replayed) and replayed.startswith(ERROR):
        return TIME
    if _SYSTEM.search(command):
        return SYSTEM
    if _has_more(recorded, replayed) or _has_more(replayed, recorded):
        return LEAK
    if _DESCRIBES.match(command):
        return SYSTEM
    if _NOW.search(command):
        return CHANCE
    if recorded.startswith(ERROR) or replayed.startswith(ERROR):
        return DIALECT if recorded[:6] != replayed[:6] else ANOTHER_ERROR
    return _of_rows(command, row_texts(recorded), row_texts(replayed))


def _has_more(one: str, other: str) -> bool:
    """Whether one side has a table, or a column, that the other has not."""
    if _MISSING.search(other) and not _MISSING.search(one):
        return True
    rows, fewer = row_texts(one), row_texts(other)
    if not rows or fewer is None or not all(_NAME.fullmatch(row) for row in (*rows, *fewer)):
        return False
    return set(fewer) < set(rows)


def _of_gold(gold: Answer, command: str) -> str:
    if not isinstance(gold, list) or (len(gold) < 2 and not _LIMIT.search(command)):
        return "it failed in one of the two"
    if _LIMIT.search(command):
        return TIES
    return ORDER


def _of_rows(command: str, recorded: list[str] | None, replayed: list[str] | None) -> str:
    if recorded is None or replayed is None:
        return COMPARISON
    one, two = _comparable(recorded), _comparable(replayed)
    if sorted(one) == sorted(two):
        return ORDER if one != two else TYPES
    if _LIMIT.search(command):
        return TIES
    if len(one) == len(two) and len(one) in SHOWN_ROWS:
        return ORDER  # and then it was cut
    return GROUP if len(one) == len(two) and _GROUPED.search(command) else COMPARISON


def _comparable(rows: list[str]) -> list[str]:
    """Rows with numbers as numbers and dates as dates, whatever their type."""
    return [_NUMBER.sub(_number, _DATE.sub(_date, plain(row))) for row in rows]


def _date(found: re.Match[str]) -> str:
    parts = [int(part) for part in re.findall(r"\d+", found[1] or found[2])]
    while parts and parts[-1] == 0:
        parts.pop()  # the hour of a date, the seconds of a time
    return f"<{'/'.join(map(str, parts))}>"


def _number(found: re.Match[str]) -> str:
    return f"{float(found[1] or found[2]):.4g}"
