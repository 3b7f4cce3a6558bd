"""What PostgreSQL sends, as Python's values."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from intercode.databases.base import Row
from intercode.databases.servers.private_postgresql import driver

psycopg = driver()
pq = psycopg.pq

_AS_TEXT = (
    *("uuid", "inet", "cidr", "record", "int4range", "int8range", "numrange", "daterange"),
    *("tsrange", "tstzrange", "int4multirange", "int8multirange", "nummultirange"),
    *("datemultirange", "tsmultirange", "tstzmultirange"),
)
"""Types that psycopg has classes of its own for; here they are text, as the server writes it."""
_DEEPEST = 64
"""Levels of a JSON value. A deeper one is text, for what handles values calls itself."""


def adapters() -> Any:
    """What makes Python's values of the server's."""
    made = psycopg.adapt.AdaptersMap(psycopg.adapters)
    for name in _AS_TEXT:
        made.register_loader(name, psycopg.types.string.TextLoader)
    psycopg.types.json.set_json_loads(_read_json, made)
    return made


def _read_json(text: str | bytes) -> Any:
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [value]
    for _ in range(_DEEPEST):
        level = [item for value in level for item in _items(value)]
    if level:
        raise ValueError("it is nested too deeply")
    return value


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def load(transformer: Any, result: Any) -> list[Row]:
    """The rows of a chunk."""
    transformer.set_pgresult(result)
    try:
        return list(transformer.load_rows(0, result.ntuples, tuple))
    except (psycopg.Error, ValueError, OverflowError):
        loaders = [
            transformer.get_loader(result.ftype(column), pq.Format.TEXT)
            for column in range(result.nfields)
        ]
        return [
            tuple(_cell(loader, result.get_value(row, i)) for i, loader in enumerate(loaders))
            for row in range(result.ntuples)
        ]


def _cell(loader: Any, value: bytes | None) -> Any:
    """A value, or as text what Python has no such value for (``infinity``, the year 4713 BC)."""
    if value is None:
        return None
    try:
        return loader.load(value)
    except (psycopg.Error, ValueError, OverflowError):
        return value.decode("utf-8", "surrogateescape")
