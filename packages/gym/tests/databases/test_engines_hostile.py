"""What an agent may try: to get out of its database, to fill the machine, to poison others."""

from __future__ import annotations

import pytest

from intercode.databases import DatabaseEngine, DatabaseSession
from intercode.errors import DatabaseError
from waiting import PATIENCE

from .conftest import Open
from .test_engines import rows, value

REFUSED = {
    "sqlite": [
        "ATTACH '/tmp/other.sqlite' AS other",
        "ATTACH ':memory:' AS other",
        "ATTACH '/proc/self/fd/3' AS other",
        "VACUUM INTO '/copy.sqlite'",
        "SELECT load_extension('/usr/lib/x.so')",
        "SELECT writefile('/written', 'x')",
        "SELECT readfile('/proc/self/environ')",
        "SELECT edit('x')",
        "SELECT fts3_tokenizer('simple', x'0000000000000000')",
        "PRAGMA writable_schema = ON",
        "PRAGMA temp_store_directory = '/proc'",
        "PRAGMA hard_heap_limit = 1",
        "SELECT randomblob(1000000000)",
        "SELECT zeroblob(1 << 40)",
        "CREATE VIRTUAL TABLE x USING csv(filename = '/proc/self/status')",
    ],
    "duckdb": [
        "ATTACH '/tmp/other.duckdb'",
        "COPY artist TO '/written.csv'",
        "COPY artist FROM '/proc/self/status'",
        "EXPORT DATABASE '/exported'",
        "IMPORT DATABASE '/exported'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/proc/self/environ')",
        "SELECT * FROM read_blob('/proc/self/mem')",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM '/proc/self/status'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SELECT * FROM 'http://127.0.0.1/x.csv'",
        "SET enable_external_access = true",
        "SET memory_limit = '1TB'",
        "SELECT getenv('PATH')",
    ],
    "mysql": [
        "SELECT * FROM mysql.user",
        "UPDATE mysql.global_priv SET Priv = '{}'",
        "LOAD DATA INFILE '/etc/passwd' INTO TABLE artist",
        "LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE artist",
        "SELECT * FROM artist INTO OUTFILE '/tmp/intercode-written'",
        "SET GLOBAL max_connections = 1",
        "SET GLOBAL general_log = ON",
        "CREATE DATABASE another",
        "DROP DATABASE mysql",
        "CREATE USER another",
        "GRANT ALL ON *.* TO CURRENT_USER()",
        "SHUTDOWN",
        "INSTALL PLUGIN x SONAME 'x.so'",
        "CREATE FUNCTION x RETURNS STRING SONAME 'x.so'",
        "FLUSH TABLES",
        "RESET MASTER",
    ],
    "postgresql": [
        "COPY artist TO PROGRAM 'id'",
        "COPY artist FROM PROGRAM 'id'",
        "COPY artist FROM '/etc/passwd'",
        "COPY artist TO '/tmp/intercode-written'",
        "SELECT pg_read_file('/etc/passwd')",
        "SELECT pg_ls_dir('/')",
        "SELECT lo_import('/etc/passwd')",
        "CREATE DATABASE another",
        "DROP DATABASE template1",
        "CREATE ROLE another",
        "ALTER ROLE CURRENT_USER SUPERUSER",
        "SET ROLE postgres",
        "SET SESSION AUTHORIZATION postgres",
        "ALTER SYSTEM SET max_connections = 1",
        "CREATE EXTENSION dblink",
        "CREATE EXTENSION file_fdw",
        "SELECT * FROM pg_authid",
        "SELECT pg_reload_conf()",
        "CREATE TABLESPACE x LOCATION '/tmp'",
    ],
}
BOMBS = {
    "sqlite": [
        "WITH RECURSIVE c (x) AS (SELECT 1 UNION SELECT x + 1 FROM c) SELECT count(*) FROM c",
        "WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 1000) "
        "SELECT group_concat(hex(zeroblob(100000000))) FROM c",
        "WITH RECURSIVE c (x) AS (SELECT zeroblob(1000) UNION ALL SELECT randomblob(10000) FROM c) "
        "SELECT * FROM c ORDER BY 1",
        "CREATE TABLE bomb AS WITH RECURSIVE c (x) AS "
        "(SELECT randomblob(10000) UNION ALL SELECT randomblob(10000) FROM c) SELECT * FROM c",
    ],
    "duckdb": [
        "SELECT list(range) FROM range(1000000000000)",
        "SELECT repeat('x', 1000000000) || repeat('y', 1000000000)",
        "CREATE TABLE bomb AS SELECT hash(a.range), b.range FROM range(1000000000) a, range(9) b",
    ],
}
"""What would fill the memory or the disk."""


@pytest.mark.defends("escape", "host leak")
def test_what_is_refused(engine: DatabaseEngine, session: DatabaseSession) -> None:
    done = [sql for sql in REFUSED[engine.name] if session.execute(sql).failure is None]
    assert done == []
    assert value(session, "SELECT count(*) FROM artist") == 4, "the session goes on"


@pytest.mark.defends("self DoS", "host DoS")
def test_what_fills_the_machine(engine: DatabaseEngine, start: Open) -> None:
    if engine.name not in BOMBS:
        pytest.skip(f"not for {engine.name}: a server's memory is its administrator's to limit")
    for sql in BOMBS[engine.name]:
        session = start(memory=256 << 20, disk=32 << 20)
        outcome = session.execute(sql, timeout=2)  # allow limit: else it has no end
        assert outcome.failure is not None, sql
        ((found,),) = rows(session.execute("SELECT count(*) FROM artist", timeout=PATIENCE))
        assert found == 4, "the session goes on"
        session.close()


@pytest.mark.defends("peer DoS")
def test_the_files_and_settings_of_others(engine: DatabaseEngine, start: Open) -> None:
    """What one session could set for all is as it was in the next."""
    settings = {
        "sqlite": ["PRAGMA foreign_keys = ON", "PRAGMA user_version = 7", "PRAGMA query_only = 1",
                   "PRAGMA case_sensitive_like = ON", "PRAGMA journal_mode = WAL"],
        "duckdb": ["CREATE MACRO abs(x) AS 42", "SET VARIABLE x = 1", "CREATE SCHEMA other",
                   "USE system"],
        "mysql": ["SET sql_mode = 'ANSI_QUOTES'", "SET @x = 1", "SET autocommit = 0",
                  "USE information_schema", "SET SESSION TRANSACTION READ WRITE"],
        "postgresql": ["SET search_path = pg_catalog", "SET TIME ZONE 'Asia/Tokyo'",
                       "CREATE SCHEMA other", "PREPARE p AS SELECT 1"],
    }  # fmt: skip
    session = start()
    for sql in settings[engine.name]:
        session.execute(sql)
    session.close()
    session = start()
    assert value(session, "SELECT count(*) FROM artist WHERE name = 'Nobody'") == 1
    assert value(session, "SELECT abs(-1)") == 1
    assert session.execute("INSERT INTO artist VALUES (5, 'New', NULL, NULL)").failure is None
    assert value(session, "SELECT count(*) FROM artist WHERE name LIKE 'New'") == 1
    if engine.name == "sqlite":
        for name, default in (("foreign_keys", 0), ("user_version", 0), ("query_only", 0)):
            assert value(session, f"PRAGMA {name}") == default


@pytest.mark.defends("peer DoS")
def test_a_grader_reads_what_no_agent_touched(engine: DatabaseEngine, start: Open) -> None:
    agent = start()
    agent.execute("DROP VIEW long_song; CREATE VIEW long_song AS SELECT 'mine' AS title")
    agent.execute("UPDATE artist SET name = 'mine'")
    grader = start(role="grader")
    assert value(grader, "SELECT title FROM long_song") == "Jóga"
    assert value(grader, "SELECT name FROM artist WHERE id = 1") == "Björk"
    assert value(agent, "SELECT title FROM long_song") == "mine"


def test_a_closed_engine_opens_nothing(engine: DatabaseEngine, start: Open) -> None:
    from intercode.databases import get_engine

    if engine.name not in BOMBS:
        pytest.skip(f"not for {engine.name}: see the servers' own tests")
    other = get_engine(engine.name)
    session = other.open(start().source)
    other.close()
    other.close()
    for use in (lambda: session.execute("SELECT 1"), lambda: other.open(session.source)):
        with pytest.raises(DatabaseError):
            use()
    session.close()
