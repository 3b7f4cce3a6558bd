"""PostgreSQL: ways around the read-only beginning, and what only it has."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest

from intercode.databases import DatabaseSource, get_engine
from intercode.databases.servers.private_server import start_postgresql

from .conftest import there_is
from .test_engines import rows, value

WRITE = "INSERT INTO artist VALUES (9, 'x', NULL, NULL)"
ON = "SELECT set_config('default_transaction_read_only', 'on', false)"
OFF = "SELECT set_config('default_transaction_read_only', 'off', false)"
CTE = "WITH gone AS (DELETE FROM artist_song RETURNING *) SELECT count(*) FROM gone"
SNEAKY = [
    [f"SET default_transaction_read_only = off; {WRITE}; SET default_transaction_read_only = on"],
    [OFF, CTE, ON],
    [f"{OFF}; {CTE}; {ON}"],
    [CTE],
    ["SELECT set_config('transaction_read_only', 'off', true)", CTE],
    [f"BEGIN READ WRITE; {WRITE}; COMMIT"],
    [f"SELECT 1; COMMIT; BEGIN READ WRITE; {CTE}; COMMIT"],
    ["START TRANSACTION READ WRITE", WRITE, "COMMIT"],
    [f"DO $$ BEGIN PERFORM set_config('default_transaction_read_only', 'off', false); COMMIT; "
     f"{WRITE}; COMMIT; PERFORM set_config('default_transaction_read_only', 'on', false); "
     "RAISE 'x'; END $$"],
    ["SELECT query_to_xml('SELECT set_' || 'config(''default_transaction_read_only'', ''off'', "
     "false)', true, true, '')", CTE, ON],
    ["PREPARE s AS DELETE FROM artist_song", "EXECUTE s"],
    ["EXPLAIN ANALYZE DELETE FROM artist_song"],
    ["SELECT * INTO another FROM artist"],
    ["CREATE SEQUENCE s", "SELECT nextval('s')"],
    ["SELECT lo_from_bytea(0, 'x')"],
    ["CLUSTER artist_song USING artist_song_pkey"],
    ["CREATE INDEX by_name ON artist (name DESC)", "CLUSTER artist USING by_name"],
    ["VACUUM FULL artist", "ANALYZE", "REINDEX TABLE artist"],
    ["ALTER ROLE CURRENT_USER SET search_path = pg_catalog"],
    ["ALTER DATABASE music SET search_path = pg_catalog"],
    ["SELECT set_config('search_path', 'pg_catalog', false)"],
    ["SELECT set_config('role', 'pg_database_owner', false)"],
    ["SELECT pg_advisory_lock(1)", "LISTEN mine", "NOTIFY mine"],
    ["CREATE TEMP TABLE artist (id int)", "SELECT * FROM artist"],
    ["DECLARE c CURSOR WITH HOLD FOR SELECT 1"],
    ["CREATE EVENT TRIGGER t ON ddl_command_start EXECUTE FUNCTION f()"],
    ["CREATE RULE r AS ON SELECT TO artist DO INSTEAD SELECT * FROM artist"],
    [f"{OFF}, '/*'; COMMIT; {WRITE}; {ON}, '*/'"],
    [f"{OFF}; /* /* */ SELECT */ COMMIT; /* /* */ SELECT */ {WRITE}; /* /* */ {ON} */ {ON}"],
    [f"{OFF}; --\rCOMMIT; --\r{WRITE}; {ON}"],
    ["COMMENT ON TABLE artist IS 'mine'", "GRANT ALL ON artist TO PUBLIC"],
]  # fmt: skip


@pytest.fixture(scope="module")
def postgresql() -> Iterator[Any]:
    if not there_is("postgresql"):
        pytest.skip("postgresql is not installed here")
    engine = get_engine("postgresql")
    yield engine
    engine.close()


def seen(session: Any) -> Any:
    tables = {name: sorted(map(repr, t.rows)) for name, t in session.state().items()}
    asks = [
        "SELECT name FROM artist",
        "SELECT * FROM artist_song",
        "SHOW search_path",
        "SELECT current_user",
        "SELECT count(*) FROM pg_largeobject_metadata",
        # Of this database: another's connection may still be about to end.
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database IN "
        "(SELECT database FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation')",
        "SELECT count(*) FROM pg_cursors",
        "SELECT count(*) FROM pg_prepared_statements",
        "SELECT obj_description('artist'::regclass)",
    ]
    return tables, [rows(session.execute(sql)) for sql in asks]


@pytest.mark.parametrize("actions", SNEAKY, ids=lambda actions: actions[0][:40])
def test_no_way_around_leaves_anything(
    postgresql: Any, source: DatabaseSource, actions: list[str]
) -> None:
    session = postgresql.open(source)
    pristine = seen(session)
    session.close()
    session = postgresql.open(source)
    for action in actions:
        session.execute(action)
    session.close()
    for _ in range(2):
        session = postgresql.open(source)
        assert seen(session) == pristine
        session.close()


def test_a_select_that_writes_is_run(postgresql: Any, source: DatabaseSource) -> None:
    session = postgresql.open(source)
    assert value(session, CTE) == 4
    assert session.is_written
    assert value(session, "SELECT count(*) FROM artist_song") == 0
    session.close()


def test_reading_is_not_taken_for_writing(postgresql: Any, source: DatabaseSource) -> None:
    session = postgresql.open(source)
    for action in (
        "SELECT * FROM information_schema.columns; SHOW search_path",
        "WITH a AS (SELECT 1) SELECT * FROM a -- INSERT",
        "EXPLAIN ANALYZE SELECT * FROM artist; TABLE song",
        "SELECT count(*) FROM pg_class",
    ):
        assert session.execute(action).failure is None
    assert not session.is_written
    assert session._is_pristine()
    session.close()


def test_the_nominal_name_in_and_out(postgresql: Any, source: DatabaseSource) -> None:
    session = postgresql.open(source)
    assert rows(session.execute("SELECT current_database(), current_user")) == [("music", "music")]
    assert value(session, "SELECT count(*) FROM music.public.artist") == 4
    sql = "SELECT count(*) FROM information_schema.tables WHERE table_catalog = 'music' AND "
    assert value(session, sql + "table_schema = 'public'") == 4
    sql = "SELECT id FROM music.public.artist WHERE nope = 1"
    failure = session.execute(sql).failure
    assert failure is not None
    assert failure.message.startswith('column "nope" does not exist\nHINT:')
    assert failure.code == "42703"
    assert failure.position == sql.index("nope")
    session.close()


@pytest.mark.parametrize("what", ["pg_database", "pg_stat_activity", "pg_roles"])
def test_other_databases_are_not_seen(postgresql: Any, source: DatabaseSource, what: str) -> None:
    session = postgresql.open(source)
    failure = session.execute(f"SELECT * FROM {what}").failure
    assert failure is not None
    assert failure.code == "42501"
    session.close()


def test_values_that_only_postgresql_has(postgresql: Any, source: DatabaseSource) -> None:
    session = postgresql.open(source)
    found = rows(
        session.execute(
            "SELECT DATE '2024-02-29', 'infinity'::date, '4713-01-01 BC'::date, 1.50::numeric, "
            "'NaN'::float8::text, INTERVAL '1 day 2 hours', true, ARRAY[1, NULL], "
            "'{\"a\": [1]}'::jsonb, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid, "
            "int4range(1, 5), ROW(1, 'x'), '\\x00ff'::bytea, "
            "TIMESTAMPTZ '2024-01-01 00:00+01', '10.0.0.1'::inet"
        )
    )
    assert found == [
        (date(2024, 2, 29), "infinity", "4713-01-01 BC", Decimal("1.50"), "NaN",
         timedelta(days=1, hours=2), True, [1, None], {"a": [1]},
         "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "[1,5)", "(1,x)", b"\x00\xff",
         datetime(2023, 12, 31, 23, tzinfo=UTC), "10.0.0.1")
    ]  # fmt: skip
    session.close()


def test_copy_does_not_break_the_connection(postgresql: Any, source: DatabaseSource) -> None:
    session = postgresql.open(source)
    assert session.execute("COPY artist TO STDOUT").failure is None
    failure = session.execute("COPY artist FROM STDIN").failure
    assert failure is not None
    assert "no input" in failure.message
    assert value(session, "SELECT count(*) FROM artist") == 4
    session.close()


def test_names_are_found_however_they_are_written(postgresql: Any, source: DatabaseSource) -> None:
    session = postgresql.open(source)
    assert rows(session.execute("SELECT Name FROM Artist WHERE ID = 4")) == [("Nobody",)]
    session.close()


def test_rows_hidden_from_their_owner_are_in_the_state(
    postgresql: Any, source: DatabaseSource
) -> None:
    session = postgresql.open(source)
    outcome = session.execute(
        "ALTER TABLE artist ENABLE ROW LEVEL SECURITY; ALTER TABLE artist FORCE ROW LEVEL SECURITY"
    )
    assert outcome.failure is None
    assert value(session, "SELECT count(*) FROM artist") == 0
    assert len(session.state()["artist"].rows) == 4
    assert value(session, "SELECT count(*) FROM artist") == 0, "looking changes nothing"
    session.close()


def test_a_view_that_fails_has_no_rows(postgresql: Any, source: DatabaseSource) -> None:
    session = postgresql.open(source)
    session.execute("CREATE VIEW bad AS SELECT 1 / (id - id) AS x FROM artist")
    table = session.state()["bad"]
    assert (table.kind, table.columns, list(table.rows)) == ("view", (), [])
    session.close()


def test_memory_is_limited(postgresql: Any, source: DatabaseSource) -> None:
    session = postgresql.open(source)
    session.execute("SET work_mem = '1000GB'")
    sql = "SELECT array_agg(repeat('x', 1000)) FROM generate_series(1, 10000000)"
    failure = session.execute(sql, timeout=100).failure
    assert failure is not None
    assert failure.message.startswith("out of memory")
    assert value(session, "SELECT 1") == 1
    session.close()


def test_an_administrator_who_is_no_superuser(source: DatabaseSource) -> None:
    """May make databases and roles, as those of a hosted server may."""
    if not there_is("postgresql"):
        pytest.skip("postgresql is not installed here")
    running = start_postgresql()
    with psycopg.connect(**running.connect_args, autocommit=True) as connection:
        connection.execute("CREATE ROLE hosted LOGIN CREATEDB CREATEROLE")
        connection.execute("CREATE DATABASE hosted OWNER hosted")
    host = running.connect_args["host"]
    engine: Any = get_engine(f"postgresql://hosted@/hosted?{urlencode({'host': host})}")
    session = engine.open(source)
    assert session.execute(WRITE).failure is None
    assert len(session.state()["artist"].rows) == 5
    session.close()
    session = engine.open(source)
    assert value(session, "SELECT count(*) FROM artist") == 4
    session.close()
    engine.close()
    with psycopg.connect(**running.connect_args) as connection:
        left = "SELECT datname FROM pg_database WHERE datname LIKE 'ic%'"
        assert connection.execute(left).fetchall() == []
        left = "SELECT rolname FROM pg_roles WHERE rolname LIKE 'ic%' AND rolname <> 'intercode'"
        assert connection.execute(left).fetchall() == []
        connection.execute("SELECT 1")
    running.close()
