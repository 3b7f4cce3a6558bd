"""Tasks that ask for a change, on servers: what their catalogues say of it is compared, too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from databases.conftest import there_is
from intercode.databases import get_engine

from .sql_store import Store
from .test_sql_change import DEAR, INDEX, MOVE, VIEW

KEYED = (
    "CREATE TABLE note (id INTEGER PRIMARY KEY, words VARCHAR(40) NOT NULL UNIQUE, "
    "city VARCHAR(40), CHECK (id > 0))"
)
LINKED = "CREATE TABLE note (x INTEGER, FOREIGN KEY (x) REFERENCES purchase (id) ON DELETE CASCADE)"
UNIQUE = "ALTER TABLE voucher ADD CONSTRAINT q UNIQUE (used, code)"
DEFAULT = "ALTER TABLE purchase ALTER amount SET DEFAULT 5"
CALL = (
    "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {}; RETURN NULL; END $$; "
    "CREATE TRIGGER log AFTER {} ON {} FOR EACH ROW EXECUTE FUNCTION note()"
)
PLAIN = "CREATE TRIGGER log AFTER {1} ON {2} FOR EACH ROW {0}"
TRIGGERS = {"postgresql": CALL, "mysql": PLAIN}


@pytest.fixture(scope="module", params=TRIGGERS)
def kind(request: pytest.FixtureRequest) -> str:
    if not there_is(request.param):
        pytest.skip(f"{request.param} is not installed here")
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def server_store(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with closing(get_engine(kind)) as engine:
        yield Store(engine, tmp_path_factory.mktemp("store"))


@pytest.mark.parametrize(
    ("gold", "action", "right"),
    [
        (KEYED, KEYED.replace("CHECK (id > 0)", "CONSTRAINT c CHECK (NOT id <= 0)"), True),
        (KEYED, KEYED.replace("INTEGER PRIMARY KEY", "INTEGER NOT NULL"), False),
        (KEYED, KEYED.replace("id > 0", "id > 1"), False),
        (KEYED, KEYED.replace(" UNIQUE", ""), False),
        (KEYED, KEYED.replace(" NOT NULL", ""), False),
        (KEYED, KEYED.replace(", CHECK (id > 0)", ""), False),
        (LINKED, LINKED.replace("FOREIGN", "CONSTRAINT z FOREIGN"), True),
        (LINKED, LINKED.replace(" ON DELETE CASCADE", ""), False),
        (UNIQUE, "CREATE UNIQUE INDEX q ON voucher (code, used)", True),
        (UNIQUE, "CREATE INDEX q ON voucher (code, used)", False),
        (DEFAULT, DEFAULT.replace("5", "6"), False),
        (VIEW, VIEW.replace("=", "IN (") + ")", True),
        (VIEW, "CREATE VIEW oslo AS SELECT 'Ann' AS name UNION SELECT '李'", False),
        (DEAR, DEAR.replace("> 5", "> 4"), False),
        (MOVE, MOVE, True),
        (MOVE, f"{MOVE}; CREATE UNIQUE INDEX one ON purchase (id, day)", False),
        (MOVE, f"{MOVE}; DROP VIEW spent; CREATE VIEW spent AS SELECT 1 AS customer_id, 10.5 AS "
               "total UNION SELECT 2, 13.75 UNION SELECT 4, 0.0", False),
    ],
)  # fmt: skip
def test_constraints_and_views(server_store: Store, gold: str, action: str, right: bool) -> None:
    assert (server_store.value(gold, action) == 1.0) is right


@pytest.mark.parametrize(
    ("edits", "right"),
    [
        ({"log": "other", "note()": "mark()", " (code, used)": ""}, True),
        ({"'gone '": "'lost '"}, False),
        ({"AFTER DELETE": "AFTER UPDATE"}, False),
        ({" WHERE used = 0": " WHERE used = 1"}, False),
        ({" WHERE used = 0": ""}, False),
    ],
)
def test_triggers(server_store: Store, kind: str, edits: dict[str, str], right: bool) -> None:
    body = (
        "INSERT INTO voucher (code, used) SELECT CONCAT('gone ', OLD.id, used), 7 FROM "
        "(SELECT 0 AS used UNION SELECT 1) AS two WHERE used = 0"
    )
    gold = action = TRIGGERS[kind].format(body, "DELETE", "purchase")
    for old, new in edits.items():
        action = action.replace(old, new)
    assert server_store.value(gold, gold) == 1.0
    assert (server_store.value(gold, action) == 1.0) is right


@pytest.mark.parametrize("event", ["INSERT", "UPDATE", "DELETE"])
def test_a_trigger_that_nobody_asked_for(server_store: Store, kind: str, event: str) -> None:
    trigger = TRIGGERS[kind].format("DELETE FROM city", event, "voucher")
    assert server_store.value(MOVE, f"{MOVE}; {trigger}") < 1.0


@pytest.mark.parametrize(
    "more",
    [
        "CREATE RULE r AS ON DELETE TO voucher DO INSTEAD NOTHING",
        "CREATE UNIQUE INDEX one ON customer (lower(name))",
        "CREATE UNIQUE INDEX one ON customer (name) WHERE city IS NULL",
        "ALTER TABLE customer ADD EXCLUDE (name WITH =)",
        "CREATE MATERIALIZED VIEW kept AS SELECT name FROM customer",
    ],
)
def test_what_postgresql_alone_has(server_store: Store, kind: str, more: str) -> None:
    if kind != "postgresql":
        pytest.skip(f"not for {kind}: PostgreSQL has it")
    assert server_store.value(MOVE, f"{MOVE}; {more}") < 1.0


def test_a_view_that_is_kept(server_store: Store, kind: str) -> None:
    if kind != "postgresql":
        pytest.skip(f"not for {kind}: PostgreSQL has it")
    gold = DEAR.replace("VIEW", "MATERIALIZED VIEW")
    assert server_store.value(gold, gold.replace("> 5", "> CAST(5 AS REAL)")) == 1.0
    assert server_store.value(gold, gold.replace("> 5", "> 4")) < 1.0


def test_a_trigger_that_was_switched_off(server_store: Store, kind: str) -> None:
    if kind != "postgresql":
        pytest.skip(f"not for {kind}: PostgreSQL has it")
    log = CALL.format("DELETE FROM city", "DELETE", "voucher")
    task = server_store.task(f"{INDEX}; ALTER TABLE voucher DISABLE TRIGGER log", setup=log)
    assert server_store.value(task, INDEX) < 1.0
    assert server_store.value(task, INDEX, "ALTER TABLE voucher DISABLE TRIGGER ALL") == 1.0
