"""Quotation of SQL identifiers."""

from __future__ import annotations


def quote_identifier(name: str, quote: str = '"') -> str:
    """Quote an SQL identifier, or an SQL string if `quote` is ``'``.

    Args:
        name: The identifier or the string.
        quote: The quotation mark, which is doubled within the result: ``"`` as in the SQL standard,
            a backtick for MySQL, or ``'``.
    """
    return f"{quote}{name.replace(quote, quote * 2)}{quote}"
