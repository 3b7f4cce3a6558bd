from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from intercode.interpreters.python import PythonInterpreter
from intercode.interpreters.python_start import provider
from intercode_sandbox.base import Limits, SandboxBackend
from waiting import PATIENCE

OpenPython = Callable[..., PythonInterpreter]


@pytest.fixture(params=[None, "/usr/bin/python3"], ids=["forked", "image"])
def open_python(request: pytest.FixtureRequest) -> Iterator[OpenPython]:
    """Opens interpreters, with limits by keyword, each in a sandbox of its own."""
    sandboxes: list[SandboxBackend] = []
    opened: list[PythonInterpreter] = []

    def open_one(prelude: str = "", **limits: object) -> PythonInterpreter:
        sandboxes.append(provider().start("host", Limits(**limits)))  # type: ignore[arg-type]
        version = [request.param, "-V"]
        if request.param is not None and not sandboxes[-1].exec(version, timeout=PATIENCE).ok:
            pytest.skip("this machine's /usr has no python3")
        opened.append(PythonInterpreter(sandboxes[-1], request.param, prelude))
        return opened[-1]

    yield open_one
    for one in (*opened, *sandboxes):
        one.close()


@pytest.fixture
def python(open_python: OpenPython) -> PythonInterpreter:
    return open_python(timeout=PATIENCE)
