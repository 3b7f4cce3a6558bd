from __future__ import annotations

from collections.abc import Iterator

import pytest

from intercode.databases import Engine, get_engine

from .sql_store import Store


@pytest.fixture(scope="session")
def sqlite_engine() -> Iterator[Engine]:
    engine = get_engine("sqlite")
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def store(sqlite_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(sqlite_engine, tmp_path_factory.mktemp("store"))
