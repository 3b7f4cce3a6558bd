"""Observations of recorded and of replayed runs, compared as texts.

Two servers word the same thing otherwise; what is only wording is put aside. Rewards never see it.
"""

from __future__ import annotations

import re

from intercode.paper.causes import CUT
from intercode.paper.sql_reward import Answer

SHOWN_ROWS = (25, 30, 10)
"""So many rows ReAct's runs kept of an observation: most of them the first number."""
_CLAUSES = {
    "field list": "SELECT",
    "from clause": "FROM",
    "where clause": "WHERE",
    "on clause": "ON",
    "group statement": "GROUP BY",
    "having clause": "HAVING",
    "order clause": "ORDER BY",
    "IN/ALL/ANY subquery": "IN/ALL/ANY",
}
"""What MySQL calls a clause, and MariaDB."""
_CLAUSE = re.compile(rf" in '?({'|'.join([*_CLAUSES, *_CLAUSES.values()])})'?(?= is ambiguous|$)")
_WORDINGS = (
    (re.compile(r"\b((?:tiny|small|medium|big)?int)\(\d+\)"), r"\1"),
    (re.compile(r"\bb(?='(?:[^'\\]|\\.)*')"), ""),
    (re.compile(r"\b(?:MariaDB|MySQL) server version"), "server version"),
)
_BETWEEN_ROWS = re.compile(r"(?<=\)), (?=\()")


def shown(answer: Answer, react: bool = False) -> str:
    """What a run kept of an answer.

    Args:
        answer: The answer.
        react: Whether it is ReAct's run, which cut long ones.
    """
    if react and isinstance(answer, list):
        return str(answer[: SHOWN_ROWS[0]])
    text = str(answer)
    return text[:CUT] if react else text


def same(recorded: str, answer: Answer, react: bool = False) -> bool:
    """Whether an observation says what was recorded, but for its wording."""
    kept = plain(recorded)
    if kept in (plain(shown(answer, react)), plain(str(answer))):
        return True
    if react and isinstance(answer, list):
        return any(kept == plain(str(answer[:count])) for count in SHOWN_ROWS[1:])
    if react and len(recorded) == CUT:
        return plain(str(answer)).startswith(kept)
    # Some files hold the rows as lists.
    return isinstance(answer, list) and recorded == str([list(row) for row in answer])


def plain(text: str) -> str:
    """An observation without what differs from server to server in wording alone."""
    for pattern, replacement in _WORDINGS:
        text = pattern.sub(replacement, text)
    return _CLAUSE.sub(lambda found: f" in {_CLAUSES.get(found[1], found[1])}", text)


def row_texts(observation: str) -> list[str] | None:
    """The rows of an observation, each as text; None if it is no list of rows."""
    if not (observation.startswith("[") and observation.endswith("]")):
        return None
    inner = observation[1:-1]
    return _BETWEEN_ROWS.split(inner) if inner else []
