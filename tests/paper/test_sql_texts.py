"""Observations of two servers, compared as texts."""

import pytest

from intercode.paper.sql_replay import same_answer as same

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
