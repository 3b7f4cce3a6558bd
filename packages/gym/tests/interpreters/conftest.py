from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from intercode.interpreters.bash import BashInterpreter
from intercode.interpreters.python import PythonInterpreter
from intercode.interpreters.python_start import provider
from intercode_sandbox import Limits, Provider, SandboxBackend
from intercode_sandbox.docker.provider import DockerProvider
from intercode_sandbox.images import list_images
from sandbox.fixtures import Start
from waiting import PATIENCE

Shell = Callable[..., BashInterpreter]
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


def shell_images() -> list[str]:
    """Images with other versions of bash are used if they are there; none is built for it."""
    built = {image.spec for image in list_images()} if os.geteuid() == 0 else set()
    return ["host", *sorted(built & {"nl2bash", "debian:bullseye"})[:1]]


@pytest.fixture(params=shell_images())
def shell(request: pytest.FixtureRequest, provider: Provider, start: Start) -> Iterator[Shell]:
    """Opens shells, with limits by keyword, in a sandbox of their own."""
    if isinstance(provider, DockerProvider) and request.param != "host":
        pytest.skip("not for docker: one bash will do, the others were native's to find out about")
    opened: list[BashInterpreter] = []

    def open_one(**limits: object) -> BashInterpreter:
        sandbox = start(request.param, **limits)
        assert sandbox.exec(["mkdir", "-p", "/tmp/w"], timeout=PATIENCE).ok
        opened.append(BashInterpreter(sandbox))
        assert opened[-1].execute("cd /tmp/w", PATIENCE).ok
        return opened[-1]

    yield open_one
    for bash in opened:
        bash.close()


@pytest.fixture
def bash(shell: Shell) -> BashInterpreter:
    return shell()
