"""A MySQL dump is split as the server splits it, and its rows are read exactly."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given, strategies as st

from intercode.databases.convert.dump import parse, read, section, statements, strip_comments
from intercode.databases.convert.mysql_dump_to_sqlite import convert_table
from intercode.errors import TaskError

DUMP = r"""-- a dump; of two
CREATE USER 'admin'@'%' IDENTIFIED BY 'admin'; GRANT ALL ON *.* TO 'admin'@'%'; FLUSH PRIVILEGES;
/*!40101 SET NAMES utf8mb4 */;
SET @@GLOBAL.GTID_PURGED=/*!80000 '+'*/ '';
CREATE DATABASE /*!32312 IF NOT EXISTS*/ `one` /*!40100 DEFAULT CHARACTER SET utf8mb4 */;
USE `one`;
DROP TABLE IF EXISTS `t`;
CREATE TABLE `t` (`a;` int COMMENT 'it''s; \'fine\' -- really', # not; this
  b text);
INSERT INTO `t` VALUES (1,'a;b'),(2,'/* no; comment */');
DELIMITER ;;
/*!50003 CREATE*/ /*!50003 TRIGGER x BEFORE INSERT ON t FOR EACH ROW BEGIN SET @a=1; END */;;
CREATE PROCEDURE p() BEGIN SELECT 1; SELECT 2; END;;
DELIMITER ;
DROP USER 'somebody'; SET GLOBAL max_connections = 1; SET PASSWORD = 'x';
CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO DROP TABLE t;
/*!50001 CREATE ALGORITHM=UNDEFINED */
/*!50013 DEFINER=`root`@`localhost` SQL SECURITY DEFINER */
/*!50001 VIEW `v` AS select 1 AS `one` */;
CREATE DATABASE two; USE two;
CREATE TABLE t (a int);
INSERT INTO t VALUES (3)"""

values = st.one_of(
    st.none(),
    st.integers(),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.text(),
    st.binary(),
)


def literal(value: object) -> str:
    """As mysqldump writes it, with more escapes than it needs."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"0x{value.hex()}" if value else "_binary ''"
    if isinstance(value, str):
        named = {"\0": "\\0", "\n": "\\n", "\x1a": "\\Z", "\\": "\\\\", "'": "''", '"': '\\"'}
        return "'" + "".join(named.get(char, char) for char in value) + "'"
    return str(value)


def test_statements_end_where_the_server_ends_them() -> None:
    found = [strip_comments(statement) for statement in statements(DUMP)]
    assert len(found) == 21
    assert found[0].startswith("CREATE USER")
    assert "'it''s; \\'fine\\' -- really'" in found[8]
    assert "not; this" not in found[8]
    assert found[10].endswith("SET @a=1; END")
    assert found[11] == "CREATE PROCEDURE p() BEGIN SELECT 1; SELECT 2; END"
    assert found[-1] == "INSERT INTO t VALUES (3)"


def test_section_is_one_database_and_nothing_beyond_it() -> None:
    kinds = [" ".join(strip_comments(statement).split()[:2]) for statement in section(DUMP, "one")]
    assert kinds == [
        "SET NAMES",
        "DROP TABLE",
        "CREATE TABLE",
        "INSERT INTO",
        "CREATE ALGORITHM=UNDEFINED",
    ]
    assert [strip_comments(statement) for statement in section(DUMP, "two")][1:] == [
        "CREATE TABLE t (a int)",
        "INSERT INTO t VALUES (3)",
    ]
    with pytest.raises(TaskError, match="no database 'three'"):
        section(DUMP, "three")


def test_section_keeps_the_text() -> None:
    assert all(statement in DUMP for statement in section(DUMP, "one"))


@pytest.mark.parametrize("torn", ["INSERT INTO t VALUES ('a);\n", "/* never", "SELECT `a\nFROM"])
def test_torn(torn: str) -> None:
    with pytest.raises(TaskError, match="line 2 is never closed"):
        list(statements(f"SELECT 1;\n{torn}"))


@given(st.lists(st.text(), max_size=5))
def test_any_text_may_be_quoted(texts: list[str]) -> None:
    wanted = [f"SELECT {literal(text)} -- ' ;\n, `{text.replace('`', '``')}`" for text in texts]
    assert list(statements(";\n".join(wanted))) == wanted


@given(st.lists(st.tuples(values, values), min_size=1, max_size=5))
def test_rows_are_read_exactly(rows: list[tuple[object, object]]) -> None:
    written = ", ".join(f"({literal(a)},{literal(b)})" for a, b in rows)
    found = parse(f"INSERT INTO `t``x` (`a`, b) VALUES {written}")
    assert (found.table, found.columns) == ("t`x", ("a", "b"))
    assert found.rows == rows


def test_kinds_of_constants() -> None:
    statement = (
        r"REPLACE INTO db.`t` VALUES (0x0F,x'00ff',b'101',0b11,-1.50,1e3,.5,TRUE,false,NULL,"
        r"""_binary 'é\0',_utf8mb4'\%\_\n\t\Z\q',"it's ""it\"" ,'a\\''b')"""
    ).replace("db.", "`db`.")
    assert parse(statement).rows == [
        (
            b"\x0f",
            b"\0\xff",
            5,
            3,
            Decimal("-1.50"),
            Decimal("1e3"),
            Decimal("0.5"),
            1,
            0,
            None,
            b"\xc3\xa9\0",
            "\\%\\_\n\t\x1aq",
            'it\'s "it"',
            "a\\'b",
        )
    ]


@pytest.mark.parametrize(
    "rows", ["(1", "(1,)", "(1 2)", "(now())", "(1),", "(1)(2)", "1", "", "(1,(2))", "('a' 'b')"]
)
def test_what_is_no_row_of_constants(rows: str) -> None:
    with pytest.raises(TaskError):
        parse(f"INSERT INTO t VALUES {rows}")


def test_bytes_that_are_not_utf8(tmp_path) -> None:
    path = tmp_path / "dump.sql"
    path.write_bytes(b"\xef\xbb\xbfINSERT INTO t VALUES ('\xe9',_binary '\xff\xfe')")
    assert parse(read(path)).rows == [("\udce9", b"\xff\xfe")]


def test_definition_of_a_table() -> None:
    table, index = convert_table(
        """CREATE TABLE IF NOT EXISTS `x`.`t` (
  `id` int unsigned NOT NULL AUTO_INCREMENT COMMENT 'NOT; NULL, DEFAULT 5',
  `kind` enum('a,b','c)') CHARACTER SET latin1 NOT NULL DEFAULT 'a,b',
  `exact` varchar(9) COLLATE utf8mb4_bin DEFAULT 'it''s \\\\',
  `price` decimal(19,4) DEFAULT '0.00', at timestamp DEFAULT current_timestamp() ON UPDATE now(),
  `flag` bit(1) DEFAULT b'1', `where_` point, `born` year DEFAULT NULL, `data` longblob, j json,
  `twice` int GENERATED ALWAYS AS (`id` * 2) STORED,
  PRIMARY KEY (`id`), UNIQUE KEY `u` (`kind`(5),`price` DESC), KEY `k` (`exact`(3)) USING BTREE,
  KEY `computed` ((lower(`kind`))), UNIQUE KEY `v` ((lower(`kind`))), UNIQUE (`at`, (lower(kind))),
  FULLTEXT KEY `f` (`exact`), CHECK (`price` > 0),
  CONSTRAINT `c` FOREIGN KEY (`kind`) REFERENCES `other` (`a`) ON DELETE SET NULL
) ENGINE=InnoDB AUTO_INCREMENT=9 DEFAULT CHARSET=utf8mb4 COMMENT='a) COLLATE x_bin';"""
    )
    assert [line.strip(" ,") for line in table.splitlines()[1:-1]] == [
        '"id" INTEGER PRIMARY KEY',
        "\"kind\" text NOT NULL DEFAULT 'a,b' COLLATE NOCASE",
        "\"exact\" varchar(9) DEFAULT 'it''s \\'",
        "\"price\" decimal(19,4) DEFAULT '0.00'",
        '"at" timestamp DEFAULT CURRENT_TIMESTAMP',
        '"flag" bit DEFAULT 1',
        '"where_" blob',
        '"born" int',
        '"data" blob',
        '"j" text COLLATE NOCASE',
        '"twice" int',
        'UNIQUE ("kind", "price")',
        'FOREIGN KEY ("kind") REFERENCES "other" ("a") ON DELETE SET NULL',
    ]
    assert index == 'CREATE INDEX "t_k" ON "t" ("exact")'


@pytest.mark.parametrize("text", ["CREATE TABLE t (a int", "CREATE VIEW v AS SELECT 1", "t (a)"])
def test_no_definition_of_a_table(text: str) -> None:
    with pytest.raises(TaskError):
        convert_table(text)
