"""The release's databases on a server: a private one, and somebody else's."""

import datetime
from contextlib import closing, contextmanager
from decimal import Decimal
from urllib.parse import quote

import pymysql
import pytest

from intercode.databases.servers.private_server import start_mariadb
from intercode.errors import UsageError
from intercode_paper.sql_server import MySQLDatabases, open_databases

from .conftest import needs_mariadb


@pytest.fixture(scope="module")
def server():
    """Somebody else's server, with something of theirs in it."""
    needs_mariadb()
    with closing(start_mariadb()) as started:
        with admin(started) as cursor:
            cursor.execute("CREATE DATABASE theirs")
            cursor.execute("CREATE TABLE theirs.secret (a int)")
        yield started


@contextmanager
def admin(server):
    connection = pymysql.connect(**server.connect_args, autocommit=True)
    with closing(connection), connection.cursor() as cursor:
        yield cursor


@pytest.fixture
def url(server):
    args = server.connect_args
    socket = quote(str(args["unix_socket"]), safe="")
    return f"mysql://{args['user']}:{quote(args['password'])}@localhost?unix_socket={socket}"


@pytest.fixture(scope="module")
def private(dump):
    """A server of its own; nobody changes what is in the dump."""
    needs_mariadb()
    with closing(MySQLDatabases(dump)) as databases:
        yield databases


@pytest.fixture
def connection(private):
    with closing(private.connect()) as opened:
        opened.use("Zoo")
        yield opened


def names(server):
    with admin(server) as cursor:
        cursor.execute("SHOW DATABASES")
        databases = {name for (name,) in cursor.fetchall()}
        cursor.execute("SELECT COUNT(*) FROM mysql.user")
        return databases, cursor.fetchone()


def test_by_url_nothing_is_left_and_nothing_is_touched(server, url, dump):
    before = names(server)
    with closing(open_databases(url, dump)) as databases:
        assert names(server)[0] == before[0] | {"zoo", "shop"}
        connection = databases.connect()
        connection.use("Zoo")
        assert connection.execute("SELECT COUNT(*) FROM animal") == [(4,)]
        for hostile in (
            "SELECT * FROM theirs.secret",
            "DROP DATABASE theirs",
            "CREATE DATABASE mine",
            "SELECT * FROM mysql.user",
            "SET GLOBAL max_connections = 1",
            "SELECT 1 INTO OUTFILE '/tmp/x'",
            "CREATE USER x",
        ):
            answer = connection.execute(hostile)
            assert "denied" in answer, hostile
        connection.execute("DROP DATABASE shop")  # theirs it is, for that long
        connection.close()
    assert names(server) == before


def test_a_database_of_that_name_is_never_overwritten(server, url, dump):
    with admin(server) as cursor:
        cursor.execute("CREATE DATABASE shop")
    before = names(server)
    with pytest.raises(UsageError, match="shop"):
        open_databases(url, dump)
    assert names(server) == before
    with admin(server) as cursor:
        cursor.execute("DROP DATABASE shop")


def test_the_private_server_can_be_seen_but_not_taken_over(connection):
    assert connection.execute("SELECT COUNT(*) FROM mysql.user")[0][0] > 0
    for hostile in (
        "DELETE FROM mysql.global_priv",
        "DROP DATABASE mysql",
        "SELECT 1 INTO OUTFILE '/tmp/x'",
        "CREATE USER x",
        "SHUTDOWN",
    ):
        assert "denied" in connection.execute(hostile), hostile
    assert connection.execute("SELECT LOAD_FILE('/etc/passwd')") == [(None,)]


def test_values_are_those_of_the_driver_of_2023(connection):
    assert connection.execute("SELECT * FROM animal WHERE Animal_ID = 1") == [
        (1, "Zoe", "lion", Decimal("190.50"), datetime.date(2020, 2, 29))
    ]
    connection.execute("CREATE TABLE odd (b bit(3), t time, d datetime, y year)")
    connection.execute("SET sql_mode = ''")
    connection.execute("INSERT INTO odd VALUES (5, '25:00:01', '0000-00-00', 1999)")
    span = datetime.timedelta(hours=25, seconds=1)
    assert connection.execute("SELECT * FROM odd") == [(5, span, None, 1999)]
    assert connection.execute("") == []
    assert connection.execute("CREATE TABLE odd2 (a int)") is None
    assert connection.execute("") is None


def test_groups_come_unsorted_and_ties_in_order(connection):
    by_kind = "SELECT Kind FROM animal GROUP BY Kind"
    assert connection.execute(by_kind) == [("lion",), ("ape",)]
    tied = "SELECT Kind FROM animal GROUP BY Kind ORDER BY COUNT(*) LIMIT 1"
    assert connection.execute(tied) == [("lion",)]


def test_a_subquery_that_intersects_keeps_its_rows(connection):
    sql = (
        "SELECT Name FROM animal WHERE Animal_ID IN "
        "(SELECT Animal_ID FROM animal WHERE Kind = 'ape' INTERSECT "
        "SELECT Animal_ID FROM animal WHERE Born IS NOT NULL)"
    )
    assert connection.execute(sql) == [("Bob",)]


def test_the_mode_is_seen_and_set_as_on_mysql(connection):
    refused = "SELECT Kind, Name FROM animal GROUP BY Kind"
    assert "only_full_group_by" in connection.execute(refused)
    ((mode,),) = connection.execute("SELECT @@sql_mode")
    assert "ONLY_FULL_GROUP_BY" in mode and "STRICT_TRANS_TABLES" in mode
    assert (
        connection.execute("SET sql_mode = REPLACE(@@sql_mode, 'ONLY_FULL_GROUP_BY', '')") is None
    )
    assert len(connection.execute(refused)) == 2
    assert connection.execute("SET sql_mode = 'ONLY_FULL_GROUP_BY'") is None
    assert "only_full_group_by" in connection.execute(refused)


def test_a_name_that_is_not_there_is_told_of_first(connection):
    answer = connection.execute("SELECT Kind, Name, nothing FROM animal GROUP BY Kind")
    assert answer.startswith("Error executing query: Unknown column 'nothing'")


def test_what_was_not_committed_goes_with_the_connection(dump):
    needs_mariadb()
    with closing(MySQLDatabases(dump)) as databases:
        for rows in ([(0,)], [(0,)]):
            with closing(databases.connect()) as connection:
                connection.use("Zoo")
                connection.execute("DELETE FROM animal")
                assert connection.execute("SELECT COUNT(*) FROM animal") == rows
                connection.execute("CREATE TABLE IF NOT EXISTS made (a int)")
                connection.execute("INSERT INTO made VALUES (1)")
        with closing(databases.connect()) as connection:
            connection.use("Zoo")
            # CREATE commits what came before it; the INSERT after it is gone.
            assert connection.execute("SELECT COUNT(*) FROM animal") == [(0,)]
            assert connection.execute("SELECT COUNT(*) FROM made") == [(0,)]


def test_a_connection_that_the_agent_kills_comes_back(connection):
    assert "killed" in connection.execute("KILL CONNECTION_ID()")
    assert connection.execute("SELECT COUNT(*) FROM animal") == [(4,)]


def test_a_statement_without_end_is_interrupted(connection, monkeypatch):
    endless = "SELECT COUNT(*) FROM seq_1_to_1000000 AS a, seq_1_to_1000000 AS b"
    count = "SELECT COUNT(*) FROM animal"
    assert connection.execute(count) == [(4,)]
    # Only for what has no end: on a busy machine a moment is too short for anything else.
    monkeypatch.setattr("intercode_paper.sql_server.TIMEOUT", 0.3)  # allow limit: see above
    connection._reopen()
    assert "interrupted" in connection.execute(endless)
    assert connection.execute("SET max_statement_time = 0") is None
    assert connection.execute(count) == [(4,)]
