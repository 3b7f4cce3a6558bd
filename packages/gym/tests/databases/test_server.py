"""Private servers: started from the installed binaries, and gone whatever happens to us."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from intercode.databases.servers import supervisor
from intercode.databases.servers.private_server import (
    RECIPES,
    DatabaseServerRecipe,
    PrivateDatabaseServer,
    find_binary,
    start_mariadb,
    start_postgresql,
)
from intercode.errors import DatabaseError, UsageError
from intercode_sandbox.host_files import cache_root
from sources import path_of
from waiting import eventually, new_marker

from .conftest import there_is

START = {"mysql": start_mariadb, "postgresql": start_postgresql}
AS_USER = path_of("sandbox/as_user.py")
DATA = {"mysql": "mysql", "postgresql": "base"}
"""A folder in the data folder."""


@pytest.fixture(params=START)
def product(request: pytest.FixtureRequest) -> str:
    if not there_is(request.param):
        pytest.skip(f"{request.param} is not installed here")
    return str(request.param)


def processes(folder: Path) -> list[int]:
    """Those whose command line names a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(folder) in line:
                found.append(int(entry.name))
    return found


def nobody_is_in(folder: Path) -> bool:
    return not processes(folder)


def nothing_is_left(folder: Path) -> bool:
    return not folder.exists() and nobody_is_in(folder)


def test_two_servers_and_their_end(product: str) -> None:
    """The second takes its data folder from the cache, and leaves the first alone."""
    first = START[product]()
    # Without those that another process is about to keep.
    kept = [p for p in (cache_root() / "servers").glob("*-*") if ".tmp-" not in p.name]
    times = {path: path.stat().st_mtime_ns for path in kept}
    assert any((path / DATA[product]).is_dir() for path in kept)
    second = START[product]()
    assert {path: path.stat().st_mtime_ns for path in kept} == times
    for server in (first, second):
        assert server.alive
        assert processes(server.folder)
        assert server.folder.stat().st_mode & 0o777 == 0o700, "nobody else may enter"
    second.close()
    second.close()
    assert not second.alive
    assert nothing_is_left(second.folder)
    assert first.alive
    first.close()
    assert nothing_is_left(first.folder)


def test_a_cache_that_cannot_be_written(
    product: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "servers").touch()
    monkeypatch.setenv("INTERCODE_CACHE", str(tmp_path))
    with pytest.raises(DatabaseError, match=f"in {tmp_path}.*INTERCODE_CACHE"):
        START[product]()


def test_a_binary_that_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERCODE_CACHE", str(tmp_path))
    recipe = DatabaseServerRecipe(
        product="mysql",
        binary=Path("/bin/true"),
        users=(),
        memory=0,
        ending=signal.SIGKILL,
        initialise=lambda folder: (f"{tmp_path}/install",),
        command=lambda folder: ("/bin/true",),
        prepare=lambda folder, password: None,
        connect_args=lambda folder, password: {},
        probe=lambda arguments: None,
    )
    with pytest.raises(DatabaseError, match=f"created: {tmp_path}/install cannot run: "):
        PrivateDatabaseServer(recipe)


def test_nothing_is_left_after_a_kill(product: str) -> None:
    """Of the owner, of its supervisor, and of both."""
    script = (
        "import sys, time\n"
        f"from intercode.databases.servers.private_server import {START[product].__name__} as "
        "start\n"
        "server = start()\n"
        "print(server._process.pid, server.folder, flush=True)\n"
        "time.sleep(60)\n"
    )
    left: list[Path] = []
    for whom in ("owner", "supervisor", "both"):
        owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        assert owner.stdout is not None
        supervisor, _, path = owner.stdout.readline().strip().partition(" ")
        folder = Path(path)
        assert len(processes(folder)) > 1
        if whom in ("supervisor", "both"):
            os.kill(int(supervisor), signal.SIGKILL)
        if whom in ("owner", "both"):
            owner.kill()
            owner.wait()
        if whom == "owner":
            assert eventually(partial(nothing_is_left, folder))
        # With the supervisor the server dies; the folder is removed by the next start, when its
        # owner has ended, too.
        assert eventually(partial(nobody_is_in, folder))
        owner.kill()
        owner.wait()
        owner.stdout.close()
        left.append(folder)
    START[product]().close()
    assert all(map(nothing_is_left, left))


def test_what_a_server_has_started_ends_before_its_folder_goes(tmp_path: Path) -> None:
    folder, pid, seen = (tmp_path / name for name in ("folder", "pid", "seen"))
    folder.mkdir()
    child = f"echo $$ > {pid}; while test -e {folder}; do sleep 0.01; done; echo gone > {seen}"
    who = (folder, os.geteuid(), os.getegid(), 0, int(signal.SIGKILL))
    with subprocess.Popen(
        [
            *(sys.executable, "-I", "-S", supervisor.__file__, *map(str, who)),
            *("/bin/sh", "-c", f"setsid /bin/sh -c '{child}' & exec sleep {new_marker()}"),
        ],
        stdin=subprocess.PIPE,
    ):
        assert eventually(lambda: pid.exists() and pid.read_text().endswith("\n"))
    assert not folder.exists()
    assert not Path("/proc", pid.read_text().strip()).exists() and not seen.exists()


class Ended(subprocess.Popen[bytes]):
    """A process; of a supervisor its end is waited for before anybody goes on."""

    def __init__(self, command: Sequence[object], **options: Any) -> None:
        super().__init__(command, **options)
        if supervisor.__file__ in command:
            self.wait()


@pytest.mark.parametrize("popen", [subprocess.Popen, Ended])
def test_a_failed_start_quotes_the_log(
    product: str, popen: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = RECIPES[product]()
    before = set(folders())
    monkeypatch.setattr(subprocess, "Popen", popen)
    bad = replace(good, command=lambda folder: [*good.command(folder), "--no-such-option=1"])
    with pytest.raises(DatabaseError, match=r"no.such.option"):
        PrivateDatabaseServer(bad)
    assert set(folders()) == before


def folders() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"ic-db-{os.getpid()}-*"))


def test_what_is_not_installed_is_named() -> None:
    with pytest.raises(UsageError, match="apt-get install mariadb-server"):
        find_binary(("no-such-server",), ("/usr/sbin",), "mariadb-server")


@pytest.mark.timeout(600)  # seconds, where nobody else wants the processors
@pytest.mark.skipif(os.geteuid() != 0, reason="the tests run as an ordinary user already")
def test_as_an_ordinary_user() -> None:
    """Of those here that start one server; as a user with a name, for `initdb` asks for it."""
    uid = pwd.getpwnam("nobody").pw_uid
    with tempfile.TemporaryDirectory() as home:
        os.chown(home, uid, uid)
        done = subprocess.run(
            [
                *(sys.executable, str(AS_USER), str(uid)),
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
                *(
                    f"--basetemp={home}/pytest",
                    __file__,
                    "-k",
                    "their_end or log and not Ended",
                ),
            ],
            env={
                "PATH": os.environ["PATH"],
                "HOME": home,
                "INTERCODE_CACHE": f"{home}/cache",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
