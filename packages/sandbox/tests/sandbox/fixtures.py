"""Markers, and fixtures for the conformance suite: sandboxes of every provider."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from intercode_sandbox import Completed, Limits, Provider, SandboxBackend, get_provider
from intercode_sandbox.base import SupportsFork
from intercode_sandbox.docker.provider import DockerProvider
from intercode_sandbox.images import host
from intercode_sandbox.images.cache import ImageCache
from private_engine import PrivateEngine
from same_machine import sitecustomize as same_machine
from suites.table import CORE
from waiting import PATIENCE

PROVIDERS = ["native", "docker"] if os.geteuid() == 0 else ["native"]
"""An ordinary user can start no engine."""
MARKERS = (
    "attack(*numbers): which attacks of November 2026 it repeats (ATTACKS in test_coverage.py)",
    "case(*numbers): which of the 83 cases of a hostile command (CASES in test_coverage.py) it is",
    "defends(*classes): what it defends from: escape, host leak, exfiltration, lateral, host DoS, "
    "peer DoS, self DoS",
    "inspect(name): which of Inspect AI's self-check cases for sandboxes it is",
    "ordinary: also run as an ordinary user, where the tests run as root",
)

LONG = 900
"""Seconds: a test that may take more is begun first; and one that may take any time (0)."""

Start = Callable[..., SandboxBackend]
Run = Callable[..., Completed]


def pytest_configure(config: pytest.Config) -> None:
    temporary_files_of_our_own(config)
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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with a long test first: begun last, they would run when all else has ended."""
    marks = [(item.path, item.get_closest_marker("timeout")) for item in items]
    long = {path for path, mark in marks if mark is not None and not 0 < mark.args[0] < LONG}
    items.sort(key=lambda item: item.path not in long)


def temporary_files_of_our_own(config: pytest.Config) -> None:
    """Have this process and all that it starts keep them in a folder that nobody else uses.

    So a test can tell what is left of it. What pytest keeps to be looked at is where it always is.
    In the folder is also how this machine is now.
    """
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    # A short name: the paths of sockets below it may have 107 bytes. Below that of who started
    # this process, so that of one that is killed, too, nothing is left.
    folder = tempfile.mkdtemp(prefix="ic-")
    os.chmod(folder, 0o1777)  # as /tmp is: servers run as users of their own
    os.environ["TMPDIR"], tempfile.tempdir = folder, None
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    same_machine.save(host, f"{folder}/host")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What the image ``host`` is made of, where no package manager is at work: ``bin`` and ``etc``.

    For who compares two images that were made one after the other. Programs still run from /usr.
    """
    place = tmp_path / "machine"
    (place / "bin").mkdir(parents=True)
    for program in host._PROGRAMS:
        (place / "bin" / program).touch(0o755)
    (place / "etc").mkdir()
    shutil.copy("/etc/ld.so.cache", place / "etc")
    shutil.copytree("/etc/alternatives", place / "etc/alternatives", symlinks=True)
    monkeypatch.setattr(host, "SEARCH_PATH", str(place / "bin"))
    monkeypatch.setattr(host, "_ETC", place / "etc")
    for name, function in host.unpinned.items():  # type: ignore[attr-defined]
        monkeypatch.setattr(host, name, function)
    ImageCache.default()._memory.clear()
    yield place
    ImageCache.default()._memory.clear()


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> Iterator[PrivateEngine]:
    """A Docker engine of the tests' own, which ``DOCKER_HOST`` names for as long as it runs."""
    suites = request.config.getoption("--suite")
    assert CORE not in suites, f"{CORE} needs no engine: tests/suites.toml has a suite that does"
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
        found: Provider = DockerProvider()
    else:
        found = get_provider(request.param)
    yield found
    found.close()


@pytest.fixture
def origin() -> str:
    """``image`` or ``fork``: what the sandboxes of a test begin from; see `of_both_origins`."""
    return "image"


def of_both_origins(metafunc: pytest.Metafunc) -> None:
    """Have each test that starts sandboxes do so in forks, too: as `pytest_generate_tests`."""
    if "origin" in metafunc.fixturenames:
        metafunc.parametrize("origin", ["image", "fork"])


@pytest.fixture
def start(provider: Provider, origin: str) -> Iterator[Start]:
    """Starts sandboxes, with limits by keyword, that are closed when the test ends.

    Without a limit of its own nothing in them takes too long, however slow the machine is. Root
    has the capabilities that ``INTERCODE_TESTS_GRANT`` names. Forks of one image share a frozen
    layer, in which there are files.
    """
    if origin == "fork" and isinstance(provider, DockerProvider):
        pytest.skip("not for docker: it begins forks from images, as all sandboxes")
    started: list[SandboxBackend] = []
    frozen: dict[object, object] = {}
    ours = {"timeout": PATIENCE, "capabilities": os.environ.get("INTERCODE_TESTS_GRANT", "")}

    def snapshot_of(image: object, limits: Limits) -> object:
        if (image, limits) not in frozen:
            source = provider.start(image, limits)  # type: ignore[arg-type]
            started.append(source)
            assert isinstance(source, SupportsFork)
            assert source.exec(["cp", "-r", "/etc", "/var/frozen"]).exit_code is not None
            frozen[image, limits] = source.freeze()
        return frozen[image, limits]

    def start_one(image: object = "host", **limits: object) -> SandboxBackend:
        given = Limits(**{**ours, **limits})  # type: ignore[arg-type]
        if origin == "fork":
            image = snapshot_of(image, given)
        started.append(provider.start(image, given))  # type: ignore[arg-type]
        return started[-1]

    yield start_one
    for sandbox in started:
        sandbox.close()


@pytest.fixture
def sandbox(start: Start) -> SandboxBackend:
    return start()


@pytest.fixture
def sh(sandbox: SandboxBackend) -> Run:
    """Runs a script in the sandbox."""

    def run(script: str, **options: object) -> Completed:
        return sandbox.exec(["bash", "-c", script], **options)  # type: ignore[arg-type]

    return run
