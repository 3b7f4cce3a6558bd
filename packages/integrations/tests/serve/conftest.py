"""A server that the tests share which do it no harm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

import intercode
from cli.conftest import warm as warm
from serve.served import Served, serving


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    with serving("bash", "sql") as found:
        yield found


@pytest.fixture(scope="module", params=["bash", "sql"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def both(kind: str, server: Served) -> Iterator[tuple[Any, Any]]:
    """An environment in process, and the same one of a server."""
    here, there = intercode.make(kind).unwrapped, intercode.connect(f"{server.url}/{kind}")
    with closing(here), closing(there):
        yield here, there
