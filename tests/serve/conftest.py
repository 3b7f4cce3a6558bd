"""A server that the tests share which do it no harm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cli.conftest import warm as warm
from serve.served import Served, serving


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    with serving("bash", "sql") as found:
        yield found
