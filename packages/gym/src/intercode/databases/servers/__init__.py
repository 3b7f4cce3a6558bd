"""Engines on a database server, which has a URL or is private: MySQL, MariaDB, PostgreSQL."""

from __future__ import annotations

import importlib
from typing import Any

from intercode.errors import UsageError

_DRIVERS = {"MySQL": "pymysql", "PostgreSQL": "psycopg"}


def driver(product: str) -> Any:
    """Import the driver of ``MySQL`` or ``PostgreSQL``: the module `pymysql` or `psycopg`.

    Raises:
        UsageError: The driver is not installed.
    """
    try:
        return importlib.import_module(_DRIVERS[product])
    except ImportError:
        extra = f"pip install 'intercode-gym[{product.lower()}]'"
        raise UsageError(f"{product} needs a driver: {extra}") from None
