"""What MariaDB's own ``mariadb-dump`` writes, made in SQLite."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from intercode.databases import find
from intercode.databases.convert.build import as_sqlite
from intercode.databases.servers.private_server import PrivateDatabaseServer, start_mariadb
from intercode.errors import TaskError

from .conftest import there_is

pymysql = pytest.importorskip("pymysql")

STATEMENTS = [
    "CREATE DATABASE shop",
    "USE shop",
    r"""CREATE TABLE parent (
        id INT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(20) NOT NULL DEFAULT 'it''s \\',
        code CHAR(2) COLLATE utf8mb4_bin UNIQUE COMMENT 'a, (b', kind ENUM('a,b','c)'),
        bits BIT(4), price DECIMAL(8,2), big BIGINT UNSIGNED, f FLOAT, d DOUBLE, day DATE,
        made DATETIME(3), at TIMESTAMP NULL DEFAULT CURRENT_TIMESTAMP, dur TIME, y YEAR,
        data BLOB, js JSON, twice INT AS (price * 2) STORED, KEY k (name(5), day),
        CHECK (price < 1e6))""",
    "CREATE TABLE child (parent INT, note TEXT, "
    "FOREIGN KEY (parent) REFERENCES parent (id) ON DELETE CASCADE)",
    "CREATE VIEW v AS SELECT p.name, COUNT(*) AS n FROM parent p JOIN child c ON c.parent = p.id "
    "GROUP BY p.name",
    "CREATE VIEW a_before_v AS SELECT UPPER(name) AS loud, n FROM v",
    "CREATE TRIGGER t BEFORE INSERT ON child FOR EACH ROW SET NEW.note = CONCAT(NEW.note, ';')",
    r"""INSERT INTO parent (name, code, kind, bits, price, big, f, d, day, made, at, dur, y, data,
        js) VALUES ('é\\ \' \n;-- x', 'Aa', 'a,b', b'101', 12.5, 18446744073709551615, 1.5, 1e100,
        '2020-02-29', '2020-01-02 03:04:05.678', '2020-01-02 03:04:05', '-12:00:01', 2001,
        x'00ff27225c0d0a', '{"a": 1}')""",
    "INSERT INTO parent (name, code, big, data) VALUES ('🎸', 'aA', 1, '')",
    "INSERT INTO child VALUES (1, 'a'), (1, 'b'), (2, NULL)",
    "CREATE DATABASE other",
    "CREATE TABLE other.t (a INT)",
]
PARENTS = [
    (
        *(1, "é\\ ' \n;-- x", "Aa", "a,b", 5, 12.5, 2.0**64, 1.5, 1e100, "2020-02-29"),
        *("2020-01-02 03:04:05.678", "2020-01-02 03:04:05", "-12:00:01", 2001),
        *(b"\0\xff'\"\\\r\n", '{"a": 1}', 25),
    ),
    (2, "🎸", "aA", None, None, None, 1, *[None] * 7, b"", None, None),
]


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateDatabaseServer]:
    if not there_is("mysql") or shutil.which("mariadb-dump") is None:
        pytest.skip("mariadb-server and mariadb-client are not installed here")
    with closing(start_mariadb()) as started:
        connection = pymysql.connect(**started.connect_args, autocommit=True)
        with closing(connection), connection.cursor() as cursor:
            for statement in STATEMENTS:
                cursor.execute(statement)
            cursor.execute("UPDATE parent SET at = NULL WHERE id = 2")
        yield started


def dump(server: PrivateDatabaseServer, path: Path, *options: str) -> Path:
    known = server.connect_args
    command = ["mariadb-dump", "--socket", known["unix_socket"], "-u", known["user"], *options]
    env = {**os.environ, "MYSQL_PWD": known.get("password", "")}
    path.write_bytes(subprocess.run(command, env=env, capture_output=True, check=True).stdout)
    return path


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--hex-blob --complete-insert --skip-extended-insert",
        "--compact --replace",
        "--add-drop-database --routines --events --insert-ignore",
    ],
)
def test_as_it_was(
    server: PrivateDatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    monkeypatch.setenv("INTERCODE_CACHE", str(tmp_path))
    path = dump(server, tmp_path / "all.sql", "--databases", "shop", "other", *options.split())
    told: list[str] = []
    with closing(sqlite3.connect(as_sqlite(find(path, "shop"), told.append))) as connection:

        def query(sql: str) -> list[tuple[object, ...]]:
            return connection.execute(sql).fetchall()

        assert query("SELECT * FROM parent") == PARENTS
        assert query("SELECT * FROM child") == [(1, "a;"), (1, "b;"), (2, None)]
        assert query("SELECT * FROM a_before_v") == [("é\\ ' \n;-- X", 2), ("🎸", 1)]
        key = ("parent", "parent", "id", "NO ACTION", "CASCADE")
        assert [row[2:7] for row in query("PRAGMA foreign_key_list(child)")] in (
            [key],
            [(*key[:3], "RESTRICT", "CASCADE")],
        )
        default = query("SELECT dflt_value FROM pragma_table_info('parent') WHERE name = 'name'")
        assert default == [("'it''s \\'",)]
    assert len(told) == 1  # nothing is left out


def test_a_dump_must_say_its_database(
    server: PrivateDatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERCODE_CACHE", str(tmp_path))
    with pytest.raises(TaskError, match="databases: write the dump with --databases"):
        as_sqlite(find(dump(server, tmp_path / "shop.sql", "shop")))
