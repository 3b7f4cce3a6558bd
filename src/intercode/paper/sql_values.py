"""Values as the 2023 driver, mysql-connector, gave them, where PyMySQL gives others."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from typing import Any


def conversions() -> dict[Any, Any]:
    """PyMySQL's table of conversions, changed to mysql-connector's."""
    from pymysql.constants import FIELD_TYPE
    from pymysql.converters import conversions as usual

    changed: dict[Any, Any] = dict(usual)
    changed[FIELD_TYPE.BIT] = _bits
    for kind, wanted in (
        (FIELD_TYPE.DATE, date),
        (FIELD_TYPE.DATETIME, datetime),
        (FIELD_TYPE.TIMESTAMP, datetime),
    ):
        changed[kind] = _real_date(usual[kind], wanted)
    return changed


def _bits(value: bytes | str) -> int:
    data = value.encode("latin-1") if isinstance(value, str) else value
    return int.from_bytes(data, "big")


def _real_date(convert: Callable[[Any], Any], wanted: type) -> Callable[[Any], Any]:
    """None for a date that there is not, such as ``0000-00-00``."""

    def converted(value: Any) -> Any:
        made = convert(value)
        return made if isinstance(made, wanted) else None

    return converted
