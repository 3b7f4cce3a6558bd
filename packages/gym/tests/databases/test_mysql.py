"""MySQL and MariaDB: ways around the read-only beginning, and what only they have."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import date, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from intercode.databases import DatabaseSource, find, get_engine
from intercode.databases.servers.mysql_client import MySQLConnection
from intercode.errors import TaskError
from waiting import eventually

from .conftest import there_is
from .test_engines import rows, value
from .upstream import SPIDER, needs_upstream

SNEAKY = [
    ["SET SESSION TRANSACTION READ WRITE; INSERT INTO artist VALUES (9, 'x', NULL, NULL); "
     "SET SESSION TRANSACTION READ ONLY"],
    ["SET STATEMENT tx_read_only = 0 FOR INSERT INTO artist VALUES (9, 'x', NULL, NULL)"],
    ["START TRANSACTION READ WRITE; DELETE FROM artist_song; COMMIT"],
    ["/*!50000 INSERT */ INTO artist VALUES (9, 'x', NULL, NULL)"],
    ["SELECT 1; /*! DELETE FROM artist_song */"],
    ["PREPARE s FROM 'DELETE FROM artist_song'", "EXECUTE s"],
    ["EXECUTE IMMEDIATE CONCAT('DEL', 'ETE FROM artist_song')"],
    ["SET autocommit = 0", "DELETE FROM artist_song", "COMMIT"],
    ["BEGIN NOT ATOMIC DELETE FROM artist_song; END"],
    ["LOCK TABLES artist_song WRITE; DELETE FROM artist_song"],
    ["XA START 'a'; DELETE FROM artist_song; XA END 'a'; XA PREPARE 'a'"],
    ["CREATE PROCEDURE p() DELETE FROM artist_song", "CALL p()"],
    ["CREATE FUNCTION f() RETURNS INT BEGIN DELETE FROM artist_song; RETURN 1; END", "SELECT f()"],
    ["SELECT * FROM artist FOR UPDATE", "DELETE FROM artist_song"],
    ["EXPLAIN DELETE FROM artist_song", "ANALYZE DELETE FROM artist_song"],
    ["SET PASSWORD = PASSWORD('mine')"],
    ["ALTER TABLE artist ORDER BY name DESC"],
    ["ANALYZE TABLE artist", "OPTIMIZE TABLE artist"],
    ["SELECT GET_LOCK('mine', 0)"],
    ["SET @x = 1", "SET sql_mode = 'ANSI_QUOTES'"],
    ["DROP DATABASE music", "CREATE DATABASE music"],
]  # fmt: skip


@pytest.fixture(scope="module")
def mysql() -> Iterator[Any]:
    if not there_is("mysql"):
        pytest.skip("mysql is not installed here")
    engine = get_engine("mysql")
    yield engine
    engine.close()


def seen(session: Any) -> Any:
    tables = {name: sorted(map(repr, t.rows)) for name, t in session.state().items()}
    settings = rows(session.execute("SELECT @x, @@sql_mode, @@autocommit, IS_FREE_LOCK('mine')"))
    return tables, settings, list(session.execute("SELECT * FROM artist").results[0].rows)


@pytest.mark.parametrize("actions", SNEAKY, ids=lambda actions: actions[0][:40])
def test_no_way_around_leaves_anything(
    mysql: Any, source: DatabaseSource, actions: list[str]
) -> None:
    session = mysql.open(source)
    pristine = seen(session)
    session.close()
    session = mysql.open(source)
    for action in actions:
        session.execute(action)
    session.close()
    for _ in range(2):
        session = mysql.open(source)
        assert seen(session) == pristine
        session.close()


def test_the_servers_own_count_tells_what_the_text_hides(
    mysql: Any, source: DatabaseSource
) -> None:
    """The last line of defence, tried by going around those before it."""
    session = mysql.open(source)
    session._connection.query("SET SESSION TRANSACTION READ WRITE")
    session._connection.query("DELETE FROM artist_song")
    session._connection.query("SET SESSION TRANSACTION READ ONLY")
    assert not session.is_written
    session.close()
    following = mysql.open(source)
    assert value(following, "SELECT count(*) FROM artist_song") == 4
    following.close()


def test_reading_is_not_taken_for_writing(mysql: Any, source: DatabaseSource) -> None:
    session = mysql.open(source)
    for action in (
        "SHOW TABLES; SHOW CREATE TABLE song; DESCRIBE artist",
        "USE music; SELECT REPLACE(name, 'a', 'b') FROM artist",
        "USE information_schema",
        "SELECT * FROM tables WHERE table_schema = 'music'; EXPLAIN SELECT * FROM music.song",
        "WITH a AS (SELECT 1) SELECT * FROM a -- INSERT",
        "(SELECT 1) UNION (SELECT 2); VALUES (1)",
    ):
        assert session.execute(action).failure is None
    assert not session.is_written
    assert session._is_pristine()
    session.close()


def test_the_nominal_name_in_and_out(mysql: Any, source: DatabaseSource) -> None:
    session = mysql.open(source)
    assert value(session, "SELECT DATABASE()") == "music"
    assert rows(session.execute("SHOW DATABASES LIKE 'music'")) == [("music",)]
    (result,) = session.execute("SHOW TABLES FROM music").results
    assert result.columns == ("Tables_in_music",)
    assert value(session, "SELECT count(*) FROM music.artist") == 4
    sql = "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'music'"
    assert value(session, sql) == 4
    failure = session.execute("SELECT * FROM music.nope").failure
    assert failure is not None
    assert failure.message == "Table 'music.nope' doesn't exist"
    assert failure.code == "1146 (42S02)"
    session.close()


def test_foreign_keys_and_views_are_cloned(mysql: Any, source: DatabaseSource) -> None:
    session = mysql.open(source)
    text = rows(session.execute("SHOW CREATE TABLE artist_song"))[0][1]
    assert text.count("FOREIGN KEY") == 2
    text = rows(session.execute("SHOW CREATE VIEW long_song"))[0][1]
    assert "`music`" in text or "`song`" in text
    assert session.name not in text
    failure = session.execute("INSERT INTO artist_song VALUES (99, 99)").failure
    assert failure is not None
    assert failure.code == "1452 (23000)"
    session.close()


def test_values_that_only_mysql_has(mysql: Any, source: DatabaseSource) -> None:
    session = mysql.open(source)
    found = rows(
        session.execute(
            "SELECT TIME '-30:00:01', DATE '2024-02-29', CAST(1 AS DECIMAL(5, 2)), 1e0, "
            "JSON_OBJECT('a', 1), YEAR('2024-01-01'), x'00ff', 18446744073709551615"
        )
    )
    assert found == [
        (-timedelta(hours=30, seconds=1), date(2024, 2, 29), Decimal("1.00"), 1.0, '{"a": 1}',
         2024, b"\x00\xff", 18446744073709551615)
    ]  # fmt: skip
    session.close()


def test_another_character_set_does_not_break_the_connection(
    mysql: Any, source: DatabaseSource
) -> None:
    session = mysql.open(source)
    session.execute("SET NAMES latin1")
    found = value(session, "SELECT name FROM artist WHERE id = 1")
    assert found.encode("utf-8", "surrogateescape") == "Björk".encode("latin1")
    session.execute("SET NAMES utf8mb4")
    assert value(session, "SELECT name FROM artist WHERE id = 1") == "Björk"
    session.close()


@pytest.mark.parametrize("size", [250, 251, 65_535, 65_536, 16_000_000])
def test_values_of_every_length(mysql: Any, source: DatabaseSource, size: int) -> None:
    session = mysql.open(source)
    sql = f"SELECT 1, REPEAT('x', {size}), NULL, ''"
    assert rows(session.execute(sql)) == [(1, "x" * size, None, "")]
    session.close()


@pytest.mark.skipif(not there_is("mysql"), reason="mysql is not installed here")
def test_everything_is_read_as_the_driver_reads_it(mysql: Any, source: DatabaseSource) -> None:
    """The data and the server's own tables, with every type and flag that they have."""
    session = mysql.open(source)
    with mysql.admin() as admin:
        names = admin.query(
            "SELECT CONCAT(table_schema, '.', table_name) FROM information_schema.tables "
            f"WHERE table_schema IN ('mysql', '{session.name}') AND table_type <> 'SEQUENCE'"
        )
        # What earlier sessions left is replaced behind our backs, and accounts come and go with it.
        admin.query("FLUSH TABLES WITH READ LOCK")
        with admin._driver_connection.cursor() as cursor:
            for (name,) in names:
                cursor.execute(f"SELECT * FROM {name}")
                expected = list(cursor.fetchall())
                (result,) = admin.run(f"SELECT * FROM {name}").results
                assert list(result.rows) == expected, name
                assert result.columns == tuple(column[0] for column in cursor.description)
        admin.query("UNLOCK TABLES")
    assert len(names) > 20
    session.close()


def test_a_dump_is_loaded_as_it_is(mysql: Any, tmp_path: Any) -> None:
    path = tmp_path / "all.sql"
    path.write_text(
        "CREATE USER 'admin'@'%' IDENTIFIED BY 'admin';\n"
        "GRANT ALL PRIVILEGES ON *.* TO 'admin'@'%';\n"
        "CREATE DATABASE `one`;\nUSE `one`;\n"
        "CREATE TABLE `b` (`id` int PRIMARY KEY, `a` int, KEY (`a`),"
        " CONSTRAINT `to_a` FOREIGN KEY (`a`) REFERENCES `a` (`id`)) ENGINE=InnoDB;\n"
        "CREATE TABLE `a` (`id` int NOT NULL AUTO_INCREMENT PRIMARY KEY, `t` text) "
        "ENGINE=InnoDB AUTO_INCREMENT=7;\n"
        "INSERT INTO `a` VALUES (1,'x\\'y'),(2,NULL);\nINSERT INTO `b` VALUES (1,2);\n"
        "/*!50001 CREATE ALGORITHM=UNDEFINED */\n"
        "/*!50013 DEFINER=`root`@`localhost` SQL SECURITY DEFINER */\n"
        "/*!50001 VIEW `v` AS select `a`.`t` AS `t` from `a` */;\n"
        "CREATE DATABASE `two`;\nUSE `two`;\nCREATE TABLE `c` (`id` int);\n",
        encoding="utf-8",
    )
    path.write_text("SET foreign_key_checks = 0;\n" + path.read_text(), encoding="utf-8")
    session = mysql.open(find(path, "one"))
    state = session.state()
    assert {name: len(table.rows) for name, table in state.items()} == {"a": 2, "b": 1, "v": 2}
    assert list(state["a"].rows) == [(1, "x'y"), (2, None)]
    assert "to_a" in rows(session.execute("SHOW CREATE TABLE b"))[0][1]
    session.execute("INSERT INTO a (t) VALUES ('next')")
    assert value(session, "SELECT max(id) FROM a") == 7
    with mysql.admin() as admin:
        assert admin.query("SELECT User FROM mysql.user WHERE User = 'admin'") == []
    session.close()


def test_a_dump_that_cannot_be_loaded_names_itself(mysql: Any, tmp_path: Any) -> None:
    path = tmp_path / "broken.sql"
    path.write_text("CREATE DATABASE x;\nUSE x;\nCREATE TABLE t (a no_such_type);\n")
    with pytest.raises(TaskError, match=r"broken\.sql"):
        mysql.open(find(path, "x"))


@needs_upstream
def test_a_database_and_its_table_of_one_name(mysql: Any) -> None:
    session = mysql.open(find(SPIDER, "poker_player"))
    found = value(session, "SELECT count(poker_player.Poker_Player_ID) FROM poker_player")
    assert found == value(session, "SELECT count(*) FROM poker_player.poker_player") > 0
    assert rows(session.execute("SHOW COLUMNS FROM poker_player"))
    session.close()


def test_a_process_that_was_stopped_does_not_take_that_for_a_restart(
    mysql: Any, source: DatabaseSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was for five seconds, once it had asked how long the server runs."""
    session = mysql.open(source)
    query, stopped = MySQLConnection.query, 0.0

    def late(connection: MySQLConnection, sql: str, *arguments: Any) -> Any:
        nonlocal stopped
        found = query(connection, sql, *arguments)
        stopped = 5.0 if "Uptime" in sql else stopped
        return found

    with mysql.admin() as admin:
        uptime = int(str(admin.query("SHOW GLOBAL STATUS LIKE 'Uptime'")[0][1]))
    # As if it were as old as the server.
    session._connection.connect_time = time.monotonic() - uptime
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + stopped)
    monkeypatch.setattr("intercode.databases.servers.mysql.time", clock)
    monkeypatch.setattr(MySQLConnection, "query", late)
    assert session.execute("KILL CONNECTION_ID()").restarted
    monkeypatch.undo()
    assert stopped
    session.close()


def test_a_prepared_transaction_keeps_no_clone(mysql: Any, source: DatabaseSource) -> None:
    """It outlives its connection, and holds locks."""
    session = mysql.open(source)
    session.execute("XA START 'z'; DELETE FROM artist_song; XA END 'z'; XA PREPARE 'z'")
    session.close()
    with mysql.admin() as admin:
        assert eventually(lambda: not admin.query(f"SHOW DATABASES LIKE '{session.name}'"))
