"""ONLY_FULL_GROUP_BY as MySQL 8 decides it; and MySQL 8 made of MariaDB."""

import pytest
from hypothesis import example, given, settings, strategies as st

from intercode_paper.sql_group_by import QueryRelation, refusal
from intercode_paper.sql_server import remove_group_order, to_mysql8

TABLES = {
    "t": QueryRelation("t", {"id": "Id", "a": "A", "b": "B"}, (frozenset({"id"}),)),
    "u": QueryRelation("u", {"uid": "uid", "t_id": "t_id", "c": "c"}, (frozenset({"uid"}),)),
}


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a FROM t",
        "SELECT a, COUNT(*) FROM t GROUP BY a",
        "SELECT a AS x, COUNT(*) FROM t GROUP BY x ORDER BY x",
        "SELECT a, COUNT(*) FROM t GROUP BY 1",
        "SELECT UPPER(a), COUNT(*) FROM t GROUP BY UPPER(a)",
        # A key determines its table's columns, an equality the other side's.
        "SELECT a, b, COUNT(*) FROM t GROUP BY id",
        "SELECT t.a, COUNT(*) FROM t JOIN u ON t.id = u.t_id GROUP BY t.id",
        "SELECT t.a, COUNT(*) FROM t JOIN u ON t.id = u.t_id GROUP BY u.t_id",
        "SELECT t.a, COUNT(*) FROM t, u WHERE t.id = u.t_id GROUP BY u.t_id",
        "SELECT u.t_id, t.a FROM u LEFT JOIN t ON u.t_id = t.id GROUP BY u.t_id",
        "SELECT a, MAX(b) FROM t WHERE a = 'x'",
        "SELECT x.n FROM (SELECT a, COUNT(*) AS n FROM t GROUP BY a) AS x GROUP BY x.a",
        "SELECT ANY_VALUE(a), MAX(b) FROM t",
        "SELECT COUNT(*) FROM t HAVING COUNT(*) > 1 ORDER BY COUNT(*)",
        "SELECT DISTINCT a FROM t ORDER BY a",
        "SELECT DISTINCT a AS x FROM t ORDER BY x",
        "SELECT RANK() OVER (ORDER BY a), SUM(b) OVER (PARTITION BY a) FROM t",
        # What is not understood is for the engine to say.
        "SELECT zz, COUNT(*) FROM nowhere",
        "SELECT COUNT(* FROM",
        "this is no SQL, COUNT(",
        "INSERT INTO t SELECT MAX(id), a FROM t",
    ],
)
def test_accepted(sql):
    assert refusal(sql, TABLES, "db") is None


GROUPED = (
    "Expression #{} of {} is not in GROUP BY clause and contains nonaggregated column '{}' which "
    "is not functionally dependent on columns in GROUP BY clause; this is incompatible with "
    "sql_mode=only_full_group_by"
)
WHOLE = (
    "In aggregated query without GROUP BY, expression #{} of SELECT list contains nonaggregated "
    "column '{}'; this is incompatible with sql_mode=only_full_group_by"
)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT b, COUNT(*) FROM t GROUP BY a", GROUPED.format(1, "SELECT list", "db.t.B")),
        ("SELECT a, b FROM t x GROUP BY a", GROUPED.format(2, "SELECT list", "db.x.B")),
        ("SELECT * FROM t GROUP BY a", GROUPED.format(1, "SELECT list", "db.t.Id")),
        (
            "SELECT COUNT(*) FROM t GROUP BY a ORDER BY b",
            GROUPED.format(1, "ORDER BY clause", "db.t.B"),
        ),
        # A column goes before an alias, in GROUP BY.
        ("SELECT UPPER(b) AS a FROM t GROUP BY a", GROUPED.format(1, "SELECT list", "db.t.B")),
        # An outer join determines its own side alone.
        (
            "SELECT u.c FROM t LEFT JOIN u ON u.uid = t.a GROUP BY u.t_id",
            GROUPED.format(1, "SELECT list", "db.u.c"),
        ),
        ("SELECT a, MAX(b) FROM t", WHOLE.format(1, "db.t.A")),
        ("SELECT MAX(x.n), x.a FROM (SELECT a, b AS n FROM t) x", WHOLE.format(2, "x.a")),
        ("SELECT 1 FROM t WHERE b IN (SELECT MAX(a), b FROM t)", WHOLE.format(2, "db.t.B")),
        (
            "SELECT DISTINCT a FROM t ORDER BY b",
            "Expression #1 of ORDER BY clause is not in SELECT list, references column 'db.t.B' "
            "which is not in SELECT list; this is incompatible with DISTINCT",
        ),
    ],
)
def test_refused_in_mysqls_words(sql, message):
    assert refusal(sql, TABLES, "db") == message


@settings(deadline=None)
@given(st.text() | st.text("SELECT COUNT(*) GROUP BY a, b FROM t'`\"();--\n", max_size=60))
@example("SELECT COUNT(*), " + "1 + " * 5000 + "a FROM t")
@example("SELECT COUNT(*), " + "(" * 5000)
@example("SHOW TABLE COUNT(*)")
def test_any_text_is_taken(text):
    refusal(text, TABLES, "db")
    to_mysql8(text)


@pytest.mark.parametrize(
    ("sql", "changed"),
    [
        ("SELECT a FROM t", "SELECT a FROM t"),
        ("SELECT a FROM t GROUP BY a", "SELECT a FROM t GROUP BY a ORDER BY NULL"),
        (
            "SELECT a FROM t GROUP BY a HAVING COUNT(*) > 1 LIMIT 2",
            "SELECT a FROM t GROUP BY a HAVING COUNT(*) > 1 ORDER BY NULL LIMIT 2",
        ),
        ("SELECT a FROM t GROUP BY a;", "SELECT a FROM t GROUP BY a ORDER BY NULL ;"),
        *(
            (kept, kept)
            for kept in (
                "SELECT a FROM t GROUP BY a ORDER BY b",
                "SELECT a FROM t GROUP BY a WITH ROLLUP",
                "SELECT a FROM t GROUP BY a UNION SELECT 1",
                "SELECT a FROM (SELECT a FROM t GROUP BY a) x",
                "SELECT 'GROUP BY' FROM t",
                "SELECT a FROM t GROUP BY 'torn",
            )
        ),
    ],
)
def test_groups_are_left_unsorted(sql, changed):
    assert remove_group_order(sql) == changed


def test_any_value_is_the_value():
    assert to_mysql8("SELECT ANY_VALUE (a), b FROM t") == "SELECT (a), b FROM t"
