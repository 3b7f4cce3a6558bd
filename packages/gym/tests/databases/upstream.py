"""The dumps of the 2023 release, if there is a copy of it. They are read, never copied."""

import pytest

from sources import ROOT

UPSTREAM = ROOT.parent / "shared" / "upstream"
SPIDER = UPSTREAM / "data" / "sql" / "spider" / "ic_spider_dbs.sql"
WIKISQL = UPSTREAM / "data" / "sql" / "wikisql" / "ic_wikisql_dev.sql"
needs_upstream = pytest.mark.skipif(
    not (SPIDER.is_file() and WIKISQL.is_file()), reason=f"no recorded runs in {UPSTREAM}"
)
