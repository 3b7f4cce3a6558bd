"""An action on its way to a server: the clone's name in it, and whether it plainly reads."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from intercode.databases.servers.database_names import original_position, rewrite
from intercode.databases.servers.session import has_only_reads


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("USE music", "USE clone"),
        ("use `Music`;", "use `clone`;"),
        ("USE music; SELECT * FROM music", "USE clone; SELECT * FROM music"),
        ("SELECT * FROM music.song", "SELECT * FROM clone.song"),
        ("SELECT * FROM `music`.`song` s", "SELECT * FROM `clone`.`song` s"),
        ("SELECT * FROM MUSIC . song", "SELECT * FROM clone . song"),
        ("SELECT 1 FROM a, music.b JOIN music.c", "SELECT 1 FROM a, clone.b JOIN clone.c"),
        ("SELECT 1 FROM (a, music.b)", "SELECT 1 FROM (a, clone.b)"),
        ("SELECT music.song.id FROM song", "SELECT clone.song.id FROM song"),
        ("INSERT INTO music.song VALUES (1)", "INSERT INTO clone.song VALUES (1)"),
        ("UPDATE music.song SET id = 1", "UPDATE clone.song SET id = 1"),
        ("DESC music.song", "DESC clone.song"),
        ("DESCRIBE music.song", "DESCRIBE clone.song"),
        ("DROP TABLE IF EXISTS music.song", "DROP TABLE IF EXISTS clone.song"),
        ("DROP DATABASE IF EXISTS music", "DROP DATABASE IF EXISTS clone"),
        ("CREATE DATABASE IF NOT EXISTS music", "CREATE DATABASE IF NOT EXISTS clone"),
        ("SHOW CREATE DATABASE music", "SHOW CREATE DATABASE clone"),
        ("SHOW TABLES FROM music", "SHOW TABLES FROM clone"),
        ("show full tables in music", "show full tables in clone"),
        ("SHOW COLUMNS FROM music FROM music", "SHOW COLUMNS FROM music FROM clone"),
        ("SHOW COLUMNS FROM music", "SHOW COLUMNS FROM music"),
        (
            "SELECT 1 FROM information_schema.tables WHERE table_schema = 'music'",
            "SELECT 1 FROM information_schema.tables WHERE table_schema = 'clone'",
        ),
        ('SELECT 1 WHERE table_schema = "music"', 'SELECT 1 WHERE table_schema = "clone"'),
        ("SHOW DATABASES LIKE 'music'", "SHOW DATABASES LIKE 'clone'"),
    ],
)
def test_the_database_gets_its_clones_name(sql: str, wanted: str) -> None:
    assert rewrite(sql, "music", "clone", "mysql")[0] == wanted


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM music",
        "SELECT music.id FROM music",
        "SELECT a, music.id FROM music",
        "SELECT COUNT(music.id), f(a, music.id) FROM music",
        "SELECT 1 FROM song JOIN music ON song.id = music.id WHERE music.id > 1",
        "SELECT 1 FROM music ORDER BY a DESC, music.id",
        "SELECT 1 FROM music GROUP BY a, music.id HAVING music.id > 1",
        "UPDATE music SET music.id = 1",
        "SELECT 1 FROM music WHERE id IN (music.a, music.b)",
        "SELECT 'music' FROM song WHERE title = 'music'",
        "SELECT 'FROM music.song' -- FROM music.song",
        "SELECT 1 FROM s.music",
        "SELECT 'FROM music.song",
        "SELECT musical.a FROM musical.b",
    ],
)
def test_anything_else_is_left_as_it_is(sql: str) -> None:
    assert rewrite(sql, "music", "clone", "mysql") == (sql, [])


def test_postgresql() -> None:
    sql = "SELECT 1 FROM music.public.song WHERE table_catalog = 'music'"
    wanted = "SELECT 1 FROM clone.public.song WHERE table_catalog = 'clone'"
    assert rewrite(sql, "music", "clone", "postgres")[0] == wanted
    sql = 'SELECT "music".id FROM "music"'
    assert rewrite(sql, "music", "clone", "postgres")[0] == sql


@given(
    st.lists(st.sampled_from([" FROM music.a ", " x ", "'é' ", " JOIN `music`.b ", " 🎸 "])),
    st.integers(0, 200),
)
def test_positions_go_back(parts: list[str], position: int) -> None:
    sql = "SELECT" + "".join(parts)
    text, edits = rewrite(sql, "music", "the_clone_of_it", "mysql")
    position %= len(text)
    back = original_position(position, edits)
    assert 0 <= back < len(sql)
    inside = [start for start, _, _ in edits if start == back]
    assert inside or sql[back] == text[position]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "select 1",
        "-- why\n /* not */ (SELECT 1) UNION (SELECT 2);",
        "WITH a AS (SELECT 1) SELECT * FROM a -- DELETE",
        "SHOW search_path; EXPLAIN SELECT 1; TABLE t; VALUES (1); USE x",
    ],
)
def test_what_plainly_reads(text: str) -> None:
    assert has_only_reads(text)


@pytest.mark.parametrize(
    "text",
    [
        "DELETE FROM t",
        "SELECTED",
        "SELECT 1; COMMIT; SELECT 2",
        "SELECT '/*'; COMMIT; SELECT '*/'",
        "SELECT $$--$$; COMMIT",
        "/* /* */ SELECT */ COMMIT",
        "--\rCOMMIT",
        "/*! DELETE FROM t */",
        "/*M! DELETE FROM t */",
    ],
)
def test_what_may_do_more(text: str) -> None:
    assert not has_only_reads(text)
