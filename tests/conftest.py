"""Markers, and sandboxes for the conformance suite: every provider, every image with a bash."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from intercode.interpreters.bash import BashInterpreter
from intercode.sandbox import Completed, Limits, Provider, Sandbox, get_provider
from intercode.sandbox.docker.provider import DockerProvider
from intercode.sandbox.images import list_images
from private_engine import PrivateEngine
from waiting import PATIENCE

PROVIDERS = ["native", "docker"] if os.geteuid() == 0 else ["native"]
"""An ordinary user can start no engine."""
MARKERS = (
    "case(*numbers): which of the 83 cases of a hostile command (CASES in test_coverage.py) it is",
    "defends(*classes): what it defends from: escape, host leak, exfiltration, lateral, host DoS, "
    "peer DoS, self DoS",
    "inspect(name): which of Inspect AI's self-check cases for sandboxes it is",
    "ordinary: also run as an ordinary user, where the tests run as root",
)

Start = Callable[..., Sandbox]
Run = Callable[..., Completed]
Shell = Callable[..., BashInterpreter]


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    # How long an example takes is the machine's affair: as Hypothesis has it where CI is set.
    calm = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("intercode", **calm)
    settings.load_profile("intercode")
    for name in ("no_proxy", "NO_PROXY"):  # servers of the tests' own are on this machine
        given = os.environ.get(name)
        os.environ[name] = ",".join(filter(None, (given, "127.0.0.1,localhost")))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # So a shell starts what is to run in the background; what the tests start inherits it.
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def engine() -> Iterator[PrivateEngine]:
    """A Docker engine of the tests' own, which ``DOCKER_HOST`` names for as long as it runs."""
    with (
        # Not pytest's folder: what an engine keeps is large, and goes at once.
        tempfile.TemporaryDirectory(prefix="intercode-engine-", ignore_cleanup_errors=True) as name,
        PrivateEngine(Path(name)) as private,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("DOCKER_HOST", private.url)
        yield private


@pytest.fixture(scope="session", params=PROVIDERS)
def provider(request: pytest.FixtureRequest) -> Iterator[Provider]:
    if request.param == "docker":
        request.getfixturevalue("engine")
        # Containers that were put back are quick to have, and each test finds out whether they are.
        found: Provider = DockerProvider(reuse="restored")
    else:
        found = get_provider(request.param)
    yield found
    found.close()


@pytest.fixture
def start(provider: Provider) -> Iterator[Start]:
    """Starts sandboxes, with limits by keyword, that are closed when the test ends."""
    started: list[Sandbox] = []

    def start_one(image: object = "host", **limits: object) -> Sandbox:
        started.append(provider.start(image, Limits(**limits)))  # type: ignore[arg-type]
        return started[-1]

    yield start_one
    for sandbox in started:
        sandbox.close()


@pytest.fixture
def sandbox(start: Start) -> Sandbox:
    return start()


@pytest.fixture
def sh(sandbox: Sandbox) -> Run:
    """Runs a script in the sandbox."""

    def run(script: str, **options: object) -> Completed:
        return sandbox.exec(["bash", "-c", script], **options)  # type: ignore[arg-type]

    return run


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
