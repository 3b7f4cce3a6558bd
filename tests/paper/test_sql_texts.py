"""Observations as texts, and the guess at a mismatch's cause."""

import pytest

from intercode.paper.sql_causes import cause_of
from intercode.paper.sql_texts import row_texts, same

E = "Error executing query: "


@pytest.mark.parametrize(
    ("recorded", "answer"),
    [
        ("[(1, 'a')]", [(1, "a")]),
        ("None", None),
        ("[]", []),
        (E + "Unknown column 'x' in 'field list'", E + "Unknown column 'x' in 'SELECT'"),
        (E + "Unknown column 'x' in 'order clause'", E + "Unknown column 'x' in 'ORDER BY'"),
        (E + "Column 'x' in field list is ambiguous", E + "Column 'x' in 'SELECT' is ambiguous"),
        (
            E + "Unknown column 'i' in 'IN/ALL/ANY subquery'",
            E + "Unknown column 'i' in 'IN/ALL/ANY'",
        ),
        ("[('Id', b'int', 'NO')]", [("Id", "int(11)", "NO")]),
        (E + "your MySQL server version for", E + "your MariaDB server version for"),
        ("[[1, 'a'], [2, 'b']]", [(1, "a"), (2, "b")]),
    ],
)
def test_only_the_wording_differs(recorded, answer):
    assert same(recorded, answer)


@pytest.mark.parametrize(
    ("recorded", "answer"),
    [
        ("[(1,)]", [(2,)]),
        ("[(1,)]", [(1,), (1,)]),
        ("[]", None),
        (E + "Unknown column 'x' in 'field list'", E + "Unknown column 'x' in 'WHERE'"),
        (str([(n,) for n in range(25)]), [(n,) for n in range(26)]),
    ],
)
def test_more_than_wording_differs(recorded, answer):
    assert not same(recorded, answer)


def test_react_cut_what_it_kept():
    many = [(n,) for n in range(26)]
    for kept in (10, 25, 26):
        assert same(str(many[:kept]), many, react=True)
    assert not same(str(many[:24]), many, react=True)
    error = E + "near your MySQL server version " + "x" * 400
    assert same(error[:350], error.replace("MySQL", "MariaDB"), react=True)


def test_rows_of_an_observation():
    assert row_texts("[(1,), (2, None)]") == ["(1,)", "(2, None)"]
    assert row_texts("[]") == []
    assert row_texts("None") is None


@pytest.mark.parametrize(
    ("command", "recorded", "replayed", "cause"),
    [
        (
            "SELECT 1",
            "[(1,)]",
            E + "Table 'd.t' doesn't exist",
            "leak: a table that an earlier run",
        ),
        ("SHOW TABLES", "[('a',), ('b',)]", "[('a',)]", "leak: a table that an earlier run"),
        ("DESC t", "[('a', 'int')]", "[('a', 'bigint')]", "the server's own tables"),
        ("SELECT NOW()", "[(1,)]", "[(2,)]", "date or chance"),
        ("SELECT a", E + "x", E + "y", "another error"),
        ("SELECT a", E + "x", "[]", "the engine's dialect"),
        ("SELECT a", "[]", E + "interrupted (max_statement_time exceeded)", "time limit"),
        ("SELECT a FROM t", "[(1,), (2,)]", "[(2,), (1,)]", "order of rows"),
        ("SELECT a FROM t", "[(Decimal('1.50'),)]", "[(1.5,)]", "types of values"),
        ("SELECT a FROM t LIMIT 1", "[(1,)]", "[(2,)]", "ties cut by LIMIT"),
        ("SELECT a, COUNT(*) FROM t", "[(1, 5)]", "[(2, 5)]", "a column that its group"),
        ("SELECT a FROM t", "[(1,)]", "[(2,)]", "how the engine compares"),
        ("SELECT a", "[(datetime.datetime(2018, 3, 1, 0, 0),)]", "[('2018-03-01',)]", "types of"),
        ("SELECT * FROM information_schema.x", "[]", E + "no such table: x", "the server's own"),
    ],
)
def test_causes(command, recorded, replayed, cause):
    found = cause_of(
        command, recorded, replayed, same_observation=False, gold=[], gold_command="SELECT 1"
    )
    assert found.startswith(cause)


@pytest.mark.parametrize(
    ("gold", "command", "cause"),
    [
        (E + "x", "SELECT 1", "gold: it failed in one of the two"),
        ([], "SELECT a FROM t ORDER BY b LIMIT 1", "gold: ties cut by LIMIT"),
        ([(1,), (2,)], "SELECT a FROM t", "gold: order of rows where none was asked for"),
        ([(1,)], "SELECT a FROM t", "gold: it failed in one of the two"),
    ],
)
def test_if_only_the_reward_differs_gold_is_the_cause(gold, command, cause):
    found = cause_of("SELECT 1", "[]", "[]", same_observation=True, gold=gold, gold_command=command)
    assert found == cause
