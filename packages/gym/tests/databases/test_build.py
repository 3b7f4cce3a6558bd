"""Whatever a source is, its content becomes an SQLite file: once, whole, and never changed."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from intercode.databases import find
from intercode.databases.convert import build, make_views
from intercode.databases.convert.build import as_duckdb, as_sqlite, get_cached_file
from intercode.databases.convert.dump import parse, read, section, strip_comments
from intercode.databases.convert.schema import read_schema
from intercode.databases.source import names
from intercode.errors import TaskError
from intercode_sandbox import host_files
from intercode_sandbox.host_files import cache_root

from .upstream import SPIDER, WIKISQL, needs_upstream


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("INTERCODE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "databases"


def script(folder: Path, text: str, name: str = "shop.sql") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    uri = f"file:{path}?mode=ro&immutable=1"
    with closing(sqlite3.connect(uri, uri=True)) as connection:
        return connection.execute(sql).fetchall()


def test_script(tmp_path: Path, cache: Path) -> None:
    told: list[str] = []
    source = find(
        script(
            tmp_path,
            "\ufeffBEGIN; CREATE TABLE t (a); INSERT INTO t VALUES ('é;'); "
            "CREATE TRIGGER x AFTER INSERT ON t BEGIN DELETE FROM t; END; COMMIT; "
            "PRAGMA journal_mode = WAL; CREATE VIEW v AS SELECT a FROM t;",
        )
    )
    path = as_sqlite(source, told.append)
    assert query(path, "SELECT * FROM v") == [("é;",)]
    assert [entry.name for entry in cache.iterdir()] == [path.name]
    assert not stat.S_IMODE(path.stat().st_mode) & 0o222
    assert path.read_bytes()[18:20] == b"\1\1"  # no write-ahead log
    assert len(told) == 1
    assert as_sqlite(source, told.append) == path
    assert len(told) == 1


@pytest.mark.parametrize(
    ("module", "row"),
    [("fts4(words)", "'a'"), ("fts5(words)", "'a'"), ("rtree(id, low, high)", "1, 0, 5")],
)
def test_a_script_may_make_virtual_tables(
    tmp_path: Path, cache: Path, module: str, row: str
) -> None:
    rows = f"CREATE VIRTUAL TABLE t USING {module}; INSERT INTO t VALUES ({row});"
    path = as_sqlite(find(script(tmp_path, rows)))
    assert len(query(path, "SELECT * FROM t")) == 1


@pytest.mark.defends("host DoS")
@pytest.mark.parametrize(
    "more",
    ["", "PRAGMA max_page_count = 100000000;", "PRAGMA main.PAGE_SIZE = 65536;"],
)
def test_a_script_fills_no_disk(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    """A short script that would make a database of 64 MiB."""
    monkeypatch.setattr(host_files, "free_space", lambda folder: (2 << 20, 1000))
    rows = f"{more} CREATE TABLE t (a); INSERT INTO t VALUES (zeroblob(1000000));"
    double = "INSERT INTO t SELECT a FROM t;"
    source = find(script(tmp_path, rows + 6 * double))
    with pytest.raises(TaskError, match="more than half of the free disk space"):
        as_sqlite(source)
    assert not [path for path in cache.iterdir() if path.suffix != ".lock"]


@pytest.mark.defends("host DoS")
def test_a_database_with_holes_fills_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy would have no holes."""
    path = tmp_path / "shop.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("PRAGMA journal_mode = WAL; CREATE TABLE t (a);")
    os.truncate(path, 64 << 20)
    monkeypatch.setattr(host_files, "free_space", lambda folder: (2 << 20, 1000))
    with pytest.raises(TaskError, match="more than half of what is free"):
        as_sqlite(find(path))


def test_another_content_is_another_file(tmp_path: Path) -> None:
    one = as_sqlite(find(script(tmp_path, "CREATE TABLE one (a)", "one.sql")))
    two = as_sqlite(find(script(tmp_path, "CREATE TABLE two (a)", "two.sql")))
    assert one != two
    assert query(two, "SELECT name FROM sqlite_master") == [("two",)]


def test_transaction_left_open_is_committed(tmp_path: Path) -> None:
    source = find(script(tmp_path, "CREATE TABLE t (a); BEGIN; INSERT INTO t VALUES (1);"))
    assert query(as_sqlite(source), "SELECT * FROM t") == [(1,)]


@pytest.mark.parametrize(
    "statement",
    [
        "ATTACH '{evil}' AS evil; CREATE TABLE evil.t (a);",
        "VACUUM INTO '{evil}';",
        "SELECT load_extension('{evil}');",
        "SELECT writefile('{evil}', 'x');",
    ],
)
def test_script_reaches_no_other_file(tmp_path: Path, cache: Path, statement: str) -> None:
    evil = tmp_path / "evil"
    with pytest.raises(TaskError, match=r"shop\.sql: database 'shop'"):
        as_sqlite(find(script(tmp_path, "CREATE TABLE t (a); " + statement.format(evil=evil))))
    assert not evil.exists()
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("text", ["CREATE TABLE t (a); SELEKT 1;", "SELECT 'open", "\ud800"])
def test_script_that_fails_leaves_nothing(tmp_path: Path, cache: Path, text: str) -> None:
    path = tmp_path / "bad.sql"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(TaskError, match=r"bad\.sql"):
        as_sqlite(find(path))
    assert list(cache.iterdir()) == []


def test_script_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "SCRIPT_SECONDS", 0.1)  # allow limit: the script has no end
    endless = (
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT MAX(i) FROM n"
    )
    with pytest.raises(TaskError, match=r"runs for over 0\.1 s"):
        as_sqlite(find(script(tmp_path, f"CREATE TABLE t (a); {endless};")))


def test_sqlite_file_is_itself(tmp_path: Path) -> None:
    path = tmp_path / "plain.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (a)")
    assert as_sqlite(find(path)) == path
    path.write_bytes(b"no database, but long enough to be one" * 100)
    with pytest.raises(TaskError, match="is not an SQLite database"):
        as_sqlite(find(path))


def test_write_ahead_log_is_part_of_the_content(tmp_path: Path) -> None:
    path = tmp_path / "live.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE t (a)")
        copies = [tmp_path / "copy.sqlite", tmp_path / "other" / "copy.sqlite"]
        copies[1].parent.mkdir()
        for number, copy in enumerate(copies):
            with connection:
                connection.execute("INSERT INTO t VALUES (?)", [number])
            for suffix in ("", "-wal"):
                shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
    before = [copy.read_bytes() for copy in copies]
    assert before[0] == before[1]  # what differs is in the log
    found = [query(as_sqlite(find(copy)), "SELECT a FROM t") for copy in copies]
    assert found == [[(0,)], [(0,), (1,)]]
    assert [copy.read_bytes() for copy in copies] == before
    assert as_sqlite(find(copies[0])).read_bytes()[18:20] == b"\1\1"


def test_what_a_killed_process_left_is_swept(tmp_path: Path, cache: Path) -> None:
    source = find(script(tmp_path, "CREATE TABLE t (a)"))
    path = as_sqlite(source)
    path.unlink()
    torn = path.with_name(f".{path.name}.new")
    torn.write_bytes(b"torn")
    assert as_sqlite(source) == path
    assert [entry.name for entry in cache.iterdir()] == [path.name]


def test_processes_build_it_once(tmp_path: Path, cache: Path) -> None:
    rows = ", ".join(f"({number})" for number in range(20_000))
    script(tmp_path, f"CREATE TABLE t (a); INSERT INTO t VALUES {rows};")
    code = (
        "import sys; from intercode.databases import find; "
        "from intercode.databases.convert.build import as_sqlite; "
        "print(as_sqlite(find(sys.argv[1]), print))"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, tmp_path / "shop.sql"], stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    said = [process.communicate()[0].splitlines() for process in started]
    assert {process.returncode for process in started} == {0}
    assert sorted(len(lines) for lines in said) == [1, 1, 1, 2]
    assert len({lines[-1] for lines in said}) == 1
    assert query(Path(said[0][-1]), "SELECT COUNT(*) FROM t") == [(20_000,)]
    assert len(list(cache.iterdir())) == 1


def test_cache_that_cannot_be_written(tmp_path: Path, cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    with pytest.raises(TaskError, match="INTERCODE_CACHE"):
        get_cached_file("key", lambda path: None)


def test_duckdb(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "CREATE TABLE item (id INTEGER PRIMARY KEY, name VARCHAR UNIQUE, made TIMESTAMP, "
            "day DATE, price DECIMAL(8, 2), big HUGEINT, tags VARCHAR[], ok BOOLEAN, data BLOB, "
            "other UUID)"
        )
        connection.execute(
            "CREATE TABLE sale (item INTEGER REFERENCES item (id), n INTEGER NOT NULL)"
        )
        connection.execute("CREATE VIEW names AS SELECT name || '!' AS shout FROM item")
        connection.execute(
            "INSERT INTO item VALUES (1, 'é', '2020-01-02 03:04:05', '2020-01-02', 1.25, "
            "170141183460469231731687303715884105727, ['a', 'b'], true, '\\x00\\xFF'::BLOB, "
            "'00000000-0000-0000-0000-000000000001')"
        )
        connection.execute("INSERT INTO sale VALUES (1, 2)")
    built = as_sqlite(find(path))
    assert query(built, "SELECT * FROM item") == [
        (
            1,
            "é",
            "2020-01-02 03:04:05",
            "2020-01-02",
            1.25,
            float(2**127),
            '["a", "b"]',
            1,
            b"\0\xff",
            "00000000-0000-0000-0000-000000000001",
        )
    ]
    assert query(built, "SELECT * FROM names") == [("é!",)]
    assert query(built, "PRAGMA foreign_key_list(sale)")[0][2:5] == ("item", "item", "id")


DUMP = """
CREATE DATABASE IF NOT EXISTS `shop`; USE `shop`;
CREATE TABLE `child` (`id` int NOT NULL AUTO_INCREMENT, `name` text,
  `exact` text COLLATE utf8mb4_bin, `n` bigint unsigned,
  PRIMARY KEY (`id`)) COLLATE=utf8mb4_general_ci;
INSERT INTO `child` (`id`, `name`, `exact`, `n`) VALUES (1,'Bj\\'örk','a',18446744073709551615);
INSERT INTO child VALUES (2,'\udce9','A',NULL);
CREATE TABLE `v` (`name` int);
CREATE OR REPLACE VIEW `v2` AS select 1 AS `name`;
/*!50001 DROP VIEW IF EXISTS `v2` */; /*!50001 CREATE VIEW `v2` AS select concat(`name`,'?') AS
`asked` from `child` where `child`.`id` = 1 */;
CREATE VIEW `bad` AS select json_table(1);
ALTER TABLE `child` DISABLE KEYS; ALTER TABLE child ADD COLUMN more int;
"""


def test_dump(tmp_path: Path) -> None:
    path = tmp_path / "dump.sql"
    path.write_bytes(DUMP.encode("utf-8", "surrogateescape"))
    told: list[str] = []
    built = as_sqlite(find(path), told.append)
    assert query(built, "SELECT name FROM child WHERE name = 'bJ''örk'") == [("Bj'örk",)]
    assert query(built, "SELECT id FROM child WHERE exact = 'A'") == [(2,)]
    assert query(built, "SELECT n, typeof(n) FROM child WHERE id = 1") == [(2.0**64, "real")]
    assert query(built, "SELECT hex(name), typeof(name) FROM child WHERE id = 2") == [
        ("E9", "text")
    ]
    assert query(built, "SELECT * FROM v2") == [("Bj'örk?",)]
    left_out = [line for line in told if "left out" in line]
    assert len(left_out) == 2
    assert any("ADD COLUMN" in line for line in left_out)
    assert any("view bad" in line for line in left_out)


@pytest.mark.parametrize("end", ["PRIMARY", "Bj", "184467"])
def test_torn_dump(tmp_path: Path, cache: Path, end: str) -> None:
    path = tmp_path / "dump.sql"
    path.write_text(DUMP[: DUMP.index(end)], encoding="utf-8")
    with pytest.raises(TaskError):
        as_sqlite(find(path))
    assert list(cache.iterdir()) == []


@needs_upstream
@pytest.mark.parametrize(("dump", "count"), [(SPIDER, 20), (WIKISQL, 1)])
def test_every_database_of_the_release(dump: Path, count: int) -> None:
    text = read(dump)
    databases = names(dump)
    assert len(databases) == count
    for name in databases:
        wanted: dict[str, int] = {}
        for statement in map(strip_comments, section(text, name)):
            if made := re.match(r"CREATE TABLE `([^`]+)`", statement):
                wanted[made[1]] = 0
            elif statement.startswith("INSERT"):
                insert = parse(statement)
                wanted[insert.table] += len(insert.rows)
        path = as_sqlite(find(dump, name))
        found = {
            table: query(path, f'SELECT COUNT(*) FROM "{table}"')[0][0]
            for (table,) in query(path, "SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        assert found == wanted
        assert query(path, "PRAGMA integrity_check") == [("ok",)]
    assert str(path).startswith(str(cache_root()))


def test_a_file_that_has_gone_is_an_error_of_the_task(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    sqlite3.connect(path).close()
    source = find(path)
    path.unlink()
    with pytest.raises(TaskError, match=r"a\.sqlite: the database cannot be read: No such file"):
        as_sqlite(source)
    with pytest.raises(TaskError, match="cannot be read"):
        names(path)


def test_names_are_those_that_can_be_found(tmp_path: Path) -> None:
    for name in ("a.sqlite", "b/b.db", "b/other.db", "c/d.sql"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert names(tmp_path) == ("a", "b")
    assert all(find(tmp_path, name).name == name for name in names(tmp_path))


def test_names_of_a_folder_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(TaskError, match=f"{tmp_path}: cannot be read: Permission denied"):
        names(tmp_path)


def test_a_view_that_reads_a_later_one(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    script = (
        'CREATE TABLE t (x INTEGER); CREATE VIEW a AS SELECT x FROM "b c"; '
        'CREATE VIEW "b c" AS SELECT x FROM d; CREATE VIEW d AS SELECT x FROM t; '
        "INSERT INTO t VALUES (1)"
    )
    (tmp_path / "v.sql").write_text(script)
    lines: list[str] = []
    built = as_duckdb(find(tmp_path / "v.sql"), lines.append)
    with duckdb.connect(str(built), read_only=True) as connection:
        assert connection.execute("SELECT x FROM a").fetchall() == [(1,)]
    assert not any("left out" in line for line in lines)


def test_a_view_whose_name_is_a_column_of_an_earlier_one(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    text = (
        "CREATE TABLE t (x INTEGER); CREATE VIEW total AS SELECT sum(x) AS report FROM t; "
        "CREATE VIEW report AS SELECT report FROM total; INSERT INTO t VALUES (1), (2)"
    )
    built = as_duckdb(find(script(tmp_path, text)))
    with duckdb.connect(str(built), read_only=True) as connection:
        assert connection.execute("SELECT report FROM report").fetchall() == [(3,)]


def test_a_long_chain_of_views(tmp_path: Path) -> None:
    views = [f"CREATE VIEW v{n} AS SELECT * FROM v{n + 1}" for n in range(1200)]
    path = as_sqlite(find(script(tmp_path, "; ".join([*views, "CREATE VIEW v1200 AS SELECT 1"]))))
    assert [view.name for view in read_schema(path).views] == [f"v{n}" for n in range(1201)]


def test_a_chain_of_views_needs_few_passes() -> None:
    created_views: list[int] = []
    tries: list[int] = []

    def make(view: int) -> str | None:
        tries.append(view)
        if view != 1199 and view + 1 not in created_views:
            return f"no view {view + 1}"
        created_views.append(view)
        return None

    assert make_views([*range(1200), 2000], make) == {2000: "no view 2001"}
    assert created_views == [*reversed(range(1200))]
    assert len(tries) < 3 * 1201
