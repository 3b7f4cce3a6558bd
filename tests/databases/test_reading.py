"""Which texts are tried read-only first: no text may hide in them what does more than read."""

from __future__ import annotations

import pytest

from intercode.databases.servers.session import plainly_reads


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
    assert plainly_reads(text)


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

    assert not plainly_reads(text)
