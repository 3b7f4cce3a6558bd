"""Schemas of tables on a server, read from its catalogue: constraints, definitions, triggers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from intercode.databases.base import DatabaseTrigger, Row, TableConstraint
from intercode.sql_identifiers import quote_identifier

Query = Callable[..., list[Row]]
"""The type of a connection's method `DatabaseConnection.query`, which runs statements."""

_POSTGRESQL_CONSTRAINTS = r"""
SELECT CASE contype WHEN 'p' THEN 'primary key' WHEN 'f' THEN 'foreign key' WHEN 'c' THEN 'check'
ELSE 'unique' END, (
    SELECT json_agg(a.attname ORDER BY k.place) FROM unnest(conkey) WITH ORDINALITY k(number, place)
    JOIN pg_attribute a ON a.attrelid = conrelid AND a.attnum = k.number WHERE contype <> 'c'
)::text, CASE contype WHEN 'c' THEN pg_get_expr(conbin, conrelid) WHEN 'x' THEN
pg_get_constraintdef(oid) ELSE regexp_replace(pg_get_constraintdef(oid), '^[^)]*\) ?', '') END
FROM pg_constraint WHERE conrelid = {0} AND contype IN ('p', 'u', 'f', 'c', 'x')
UNION ALL SELECT 'not null', json_build_array(attname)::text, '' FROM pg_attribute
WHERE attrelid = {0} AND attnum > 0 AND NOT attisdropped AND attnotnull
UNION ALL SELECT CASE attgenerated WHEN '' THEN 'default' ELSE 'generated' END,
json_build_array(attname)::text, pg_get_expr(adbin, adrelid)
FROM pg_attrdef JOIN pg_attribute ON attrelid = adrelid AND attnum = adnum WHERE adrelid = {0}
UNION ALL SELECT 'unique', (
    SELECT json_agg(attname) FROM pg_attribute WHERE attrelid = indrelid AND attnum = ANY(indkey)
)::text, regexp_replace(
    regexp_replace(pg_get_indexdef(indexrelid), '^.*? USING \w+ ', ''), '^\([^()]*\) ?', '')
FROM pg_index WHERE indrelid = {0} AND indisunique
AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)
"""
_POSTGRESQL_DEFINITION = """
SELECT CASE relkind WHEN 'v' THEN 'CREATE VIEW ' WHEN 'm' THEN 'CREATE MATERIALIZED VIEW ' END
|| oid::regclass || coalesce(' WITH (' || array_to_string(reloptions, ', ') || ')', '') || ' AS '
|| pg_get_viewdef(oid), (
    SELECT string_agg(format('%I COLLATE %I', attname, collname), ', ' ORDER BY attname)
    FROM pg_attribute JOIN pg_collation c ON c.oid = attcollation
    WHERE attrelid = {0} AND attnum > 0 AND NOT attisdropped AND collname <> 'default'
) FROM pg_class WHERE oid = {0}
"""
_POSTGRESQL_TRIGGERS = """
SELECT tgname, pg_get_triggerdef(t.oid), format('DROP TRIGGER %I ON %s', tgname, tgrelid::regclass),
CASE WHEN pronamespace = 'pg_catalog'::regnamespace THEN '' ELSE pg_get_functiondef(tgfoid) END
FROM pg_trigger t JOIN pg_proc p ON p.oid = tgfoid
WHERE tgrelid = {0} AND NOT tgisinternal AND tgenabled <> 'D'
UNION ALL SELECT rulename, pg_get_ruledef(oid),
format('DROP RULE %I ON %s', rulename, ev_class::regclass), '' FROM pg_rewrite
WHERE ev_class = {0} AND rulename <> '_RETURN' AND ev_enabled <> 'D' ORDER BY 1
"""
_MYSQL_COLUMNS = (
    "SELECT column_name, is_nullable, column_default, generation_expression, extra "
    "FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
)
_MYSQL_KEYS = (
    "SELECT c.constraint_name, c.constraint_type, k.column_name, k.referenced_table_name, "
    "k.referenced_column_name, r.update_rule, r.delete_rule "
    "FROM information_schema.table_constraints c JOIN information_schema.key_column_usage k "
    "ON k.constraint_schema = c.constraint_schema AND k.constraint_name = c.constraint_name "
    "AND k.table_name = c.table_name LEFT JOIN information_schema.referential_constraints r "
    "ON r.constraint_schema = c.constraint_schema AND r.constraint_name = c.constraint_name "
    "AND r.table_name = c.table_name WHERE c.table_schema = %s AND c.table_name = %s "
    "ORDER BY c.constraint_name, k.ordinal_position"
)
_MYSQL_TRIGGERS = (
    "SELECT trigger_name, action_timing, event_manipulation, action_statement "
    "FROM information_schema.triggers WHERE event_object_schema = %s AND event_object_table = %s "
    "ORDER BY trigger_name"
)
_DEFINER = re.compile(r"\bDEFINER\s*=\s*(`[^`]*`|\S+?)@(`[^`]*`|\S+)\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RelationSchema:
    """The schema of a table or view, without its columns."""

    constraints: tuple[TableConstraint, ...] = ()
    definition: str = ""
    triggers: tuple[DatabaseTrigger, ...] = ()


def postgresql_schema(query: Query, relation_id: str) -> RelationSchema:
    """Read the schema of a table or view on PostgreSQL.

    Args:
        query: Runs statements. The search path of its session must be ``pg_catalog``.
        relation_id: The object id of the table or view.
    """
    constraints = [
        TableConstraint(
            cast(Any, kind), tuple(json.loads(str(names))) if names else (), str(text or "")
        )
        for kind, names, text in query(_POSTGRESQL_CONSTRAINTS.format(relation_id))
    ]
    [(view, collations)] = query(_POSTGRESQL_DEFINITION.format(relation_id)) or [("", "")]
    triggers = [
        DatabaseTrigger(*map(str, row)) for row in query(_POSTGRESQL_TRIGGERS.format(relation_id))
    ]
    return RelationSchema(tuple(constraints), str(view or collations or ""), tuple(triggers))


def mysql_schema(query: Query, database: str, name: str, kind: str) -> RelationSchema:
    """Read the schema of a table or view on MySQL or MariaDB.

    Args:
        query: Runs statements.
        database: The name of the clone on the server. This name, as a prefix of other names, is
            removed from definitions.
        name: The name of the table or view.
        kind: ``table`` or ``view``.
    """
    qualified_name = f"{quote_identifier(database, '`')}.{quote_identifier(name, '`')}"
    _, text, *_ = query(f"SHOW CREATE {kind.upper()} {qualified_name}")[0]
    triggers = []
    for trigger, timing, event, body in query(_MYSQL_TRIGGERS, database, name):
        trigger_name = quote_identifier(str(trigger), "`")
        table_name = quote_identifier(name, "`")
        definition = (
            f"CREATE TRIGGER {trigger_name} {timing} {event} ON {table_name} FOR EACH ROW {body}"
        )
        triggers.append(
            DatabaseTrigger(
                str(trigger), _remove_database(definition, database), f"DROP TRIGGER {trigger_name}"
            )
        )
    constraints = _mysql_constraints(query, database, name) if kind == "table" else ()
    return RelationSchema(
        tuple(constraints), _remove_database(without_definer(str(text)), database), tuple(triggers)
    )


def without_definer(text: str) -> str:
    """Return a statement without ``DEFINER``, the account with whose privileges a view runs."""
    return _DEFINER.sub("", text, count=1)


def _remove_database(text: str, database: str) -> str:
    return text.replace(f"{quote_identifier(database, '`')}.", "")


def _mysql_constraints(query: Query, database: str, name: str) -> Iterator[TableConstraint]:
    for column, nullable, default, expression, extra in query(_MYSQL_COLUMNS, database, name):
        names = (str(column),)
        if nullable == "NO":
            yield TableConstraint("not null", names)
        if expression:
            yield TableConstraint("generated", names, str(expression))
        elif default is not None:
            yield TableConstraint("default", names, str(default))
        if "on update" in str(extra).lower():
            yield TableConstraint("default", names, str(extra))
    keys: dict[str, list[Row]] = {}
    for key, *row in query(_MYSQL_KEYS, database, name):
        keys.setdefault(str(key), []).append(tuple(row))
    for rows in keys.values():
        kind, _, table, _, update_rule, delete_rule = rows[0]
        text = ""
        if table is not None:
            targets = ", ".join(str(row[3]) for row in rows)
            text = f"{table} ({targets}), update {update_rule}, delete {delete_rule}"
        yield TableConstraint(
            cast(Any, str(kind).lower()), tuple(str(row[1]) for row in rows), text
        )
