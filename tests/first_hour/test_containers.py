"""In containers of each kind: `doctor` says what to change, and with that change it works."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from intercode_sandbox.privileges import STAND_IN_ID
from private_engine import PrivateEngine
from waiting import PATIENCE

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="not for ordinary users: they start no engine"
)

PLAIN = ("--security-opt", "seccomp=unconfined", "--security-opt", "systempaths=unconfined")
USER = ("--user", "1000:1000", "-e", "HOME=/tmp")
RANGES = ("SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE")
# All that the engine and this machine know: --privileged asks for those that a machine may lack.
ALL = (
    *("AUDIT_CONTROL", "AUDIT_READ", "BLOCK_SUSPEND", "DAC_READ_SEARCH", "IPC_LOCK", "IPC_OWNER"),
    *("LEASE", "LINUX_IMMUTABLE", "MAC_ADMIN", "MAC_OVERRIDE", "NET_BROADCAST", "SYSLOG"),
    *("SYS_BOOT", "SYS_MODULE", "SYS_NICE", "SYS_PACCT", "SYS_RAWIO", "SYS_TIME"),
    *("SYS_TTY_CONFIG", "WAKE_ALARM", *RANGES),
)
STAND_INS = f"all with the unused id {STAND_IN_ID}"


def adding(*capabilities: str) -> tuple[str, ...]:
    return tuple(word for name in capabilities for word in ("--cap-add", name))


@dataclass(frozen=True)
class Found:
    """What `doctor` said in a container."""

    usable: bool
    checks: dict[str, dict[str, Any]]

    def __getattr__(self, name: str) -> Any:
        return self.checks[name.replace("_", " ")]

    def options(self, name: str) -> tuple[str, ...]:
        """The options of a fix that is a `docker run`."""
        words = shlex.split(self.checks[name]["fix"])
        assert words[:2] == ["docker", "run"] and words[-1] == "…", words
        return tuple(words[2:-1])


Run = Callable[..., str]
Doctor = Callable[..., Found]


@contextmanager
def containers(engine: PrivateEngine, place: Path, venv: Path) -> Iterator[Run]:
    """Runs a command in a container of an image with this machine's programs and the wheel."""
    image = "intercode-tests-first-hour"
    docker = ("docker", "--host", engine.url)
    subprocess.run([*docker, "import", "-", image], input=_image(), check=True, timeout=PATIENCE)
    seen = {"/usr", "/etc/alternatives", sys.base_prefix, str(place)}
    fixed = [word for path in sorted(seen) for word in ("-v", f"{path}:{path}:ro")]
    fixed += ["--network", "none", "-w", "/tmp", "-e", f"PATH={venv}/bin:/usr/bin:/bin"]

    def run(options: tuple[str, ...], *command: str) -> str:
        done = subprocess.run(
            [*docker, "run", "--rm", *fixed, *options, image, *command],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr
        return done.stdout

    yield run
    subprocess.run([*docker, "rmi", "--force", image], check=True, timeout=PATIENCE)


def _image() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        modes = {"tmp": 0o1777, "root": 0o711, "closed": 0o700}
        for name in ("usr", "etc", "var", "var/cache", "proc", "sys", "dev", *modes):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, modes.get(name, 0o755)
            tar.addfile(folder)
        for path in Path("/").iterdir():
            if path.is_symlink() and str(path.readlink()).startswith("usr/"):
                tar.add(path, path.name)
        for name in ("etc/passwd", "etc/group", "etc/ld.so.cache"):
            tar.add(f"/{name}", name)
    return data.getvalue()


@pytest.fixture(scope="module")
def run(engine: PrivateEngine, place: Path, venv: Path) -> Iterator[Run]:
    """Runs a command in a container."""
    with containers(engine, place, venv) as run:
        yield run


@pytest.fixture(scope="module")
def doctor(run: Run) -> Doctor:
    """Asks `doctor` in a container."""
    return asking(run)


def asking(run: Run) -> Doctor:
    def doctor(*options: str, before: str = "true") -> Found:
        said = json.loads(run(options, "sh", "-c", f"{before} && exec intercode doctor --json"))
        return Found(said["usable"], {check["name"]: check for check in said["checks"]})

    return doctor


def test_a_plain_container(doctor: Doctor, run: Run) -> None:
    found = doctor()
    assert not found.usable and "seccomp profile forbids" in found.sandbox["detail"]
    options = found.options("sandbox")
    assert options == PLAIN
    found = doctor(*options)
    assert found.usable and STAND_INS in found.sandbox["detail"]
    limited = doctor(*options, *found.options("memory limit"))
    assert "the 8.0 GiB of this container" in limited.memory_limit["detail"]
    assert not limited.memory_limit["fix"]
    assert "100.0 %" in run(options, "intercode", "run", "bash", "--limit", "2", "--quiet")


def test_with_proc_masked_as_usual(doctor: Doctor) -> None:
    found = doctor(*PLAIN[:2])
    assert not found.usable and "/proc is masked" in found.sandbox["detail"]
    assert doctor(*found.options("sandbox")).usable


def test_an_ordinary_user(doctor: Doctor, run: Run) -> None:
    found = doctor(*USER)
    assert not found.usable
    found = doctor(*USER, *found.options("sandbox"))
    assert found.usable and "all with your id, 1000" in found.sandbox["detail"]
    assert found.options("memory limit")
    options = (*USER, *PLAIN)
    assert "100.0 %" in run(options, "intercode", "run", "bash", "--limit", "2", "--quiet")


@pytest.mark.parametrize(
    ("capabilities", "why"),
    [
        (("SYS_ADMIN",), "root has no CAP_NET_ADMIN, CAP_SYS_PTRACE here"),
        (ALL, "/root/.cache/intercode is on an overlay"),
    ],
    ids=["one", "all"],
)
def test_more_rights_than_needed(
    doctor: Doctor, run: Run, capabilities: tuple[str, ...], why: str
) -> None:
    options = (*PLAIN, *adding(*capabilities))
    found = doctor(*options)
    assert found.usable and STAND_INS in found.sandbox["detail"] and why in found.sandbox["detail"]
    assert "100.0 %" in run(options, "intercode", "run", "bash", "--limit", "2", "--quiet")


def test_a_range_of_ids_for_each(doctor: Doctor) -> None:
    options = (*PLAIN, *adding(*RANGES), "-v", "intercode:/root/.cache/intercode")
    found = doctor(*options)
    assert found.usable and "each with ids of its own" in found.sandbox["detail"]
    assert found.memory_limit["fix"].startswith("mount -o remount,bind,rw ")
    assert doctor(*options, before=found.memory_limit["fix"]).memory_limit["ok"]


def test_root_without_any_right(doctor: Doctor) -> None:
    options = (*PLAIN, "--cap-drop", "ALL")
    found = doctor(*options)
    assert not found.usable and "CAP_SETUID" in found.sandbox["detail"]
    assert doctor(*options, *found.options("sandbox")).usable


def test_where_the_engine_maps_ids(place: Path, venv: Path) -> None:
    with (
        TemporaryDirectory(prefix="intercode-engine-", ignore_cleanup_errors=True) as folder,
        PrivateEngine(Path(folder), remap=True) as engine,
        containers(engine, place, venv) as run,
    ):
        doctor = asking(run)
        found = doctor(*PLAIN)
        assert found.usable and "the id that this root has outside" in found.sandbox["detail"]
        found = doctor(*PLAIN, "--cap-drop", "ALL")
        assert not found.usable and "CAP_SETFCAP" in found.sandbox["detail"]
        assert doctor(*PLAIN, "--cap-drop", "ALL", *found.options("sandbox")).usable


def test_few_open_files(doctor: Doctor) -> None:
    found = doctor(*PLAIN, "--ulimit", "nofile=512")
    assert not found.usable
    assert doctor(*PLAIN, *found.options("sandbox")).open_files["ok"]


def test_a_cache_that_the_sandboxes_cannot_enter(doctor: Doctor) -> None:
    options = (*PLAIN, "-e", "INTERCODE_CACHE=/closed/cache")
    found = doctor(*options)
    assert not found.usable and found.sandbox["fix"].startswith("export INTERCODE_CACHE=/var/")
    assert doctor(*options, before=found.sandbox["fix"]).usable
