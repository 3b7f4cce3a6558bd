"""`doctor` on machines whose filter refuses one system call, or which lack something else.

Whatever it says "ok" to is played, and else the cause is named, with what lifts it where something
does; there is no traceback. `sandbox/test_static_refused.py` is about promises of a
sandbox.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from ordinary import ordinary_user
from sources import path_of
from waiting import PATIENCE

SOURCE = path_of("sandbox/static/refusing.c")
NO_ENGINE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}
PROBE = """
import json
from intercode.cli import doctor
from intercode_sandbox.doctor import check_native
checks = check_native()
if doctor._all_pass(checks):
    plays = [play for play in doctor._PLAY_CASES if play[0] in ("bash", "sql")]
    checks += [check for play in plays for check in doctor._check_environment(*play)]
print("checks:", json.dumps([[check.name, check.ok, check.detail, check.fix] for check in checks]))
"""
"""The checks of `doctor`: the native sandbox, then an episode of two environments."""
CONSOLE = """
import sys, intercode_console
sys.argv = ["intercode", "doctor"]
sys.exit(intercode_console.main())
"""
REFUSED = (
    *("memfd_create", "pidfd_open", "pidfd_send_signal", "prlimit64", "mount", "move_mount"),
    *("umount2", "pivot_root", "sethostname", "prctl", "setns", "openat2", "statx", "symlinkat"),
    *("landlock_restrict_self", "mount_setattr", "open_tree", "unshare", "clone", "socket"),
    *("capset", "setgroups", "waitid"),
)
"""Calls without which no sandbox starts."""
SPARED = ("clone3", "close_range", "seccomp", "keyctl", "name_to_handle_at", "getxattr")
"""Calls that a sandbox can do without, where the kernel does not have them."""
OF_ROOT = ("setgroups", "mount_setattr", "capset")
"""Calls that are made as root alone."""

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder with the program that installs the filter, and the file that it reads."""
    with TemporaryDirectory() as name:  # pytest's own are closed to ordinary users
        folder = Path(name)
        folder.chmod(0o755)
        words = [f'-DFOLDER="{folder}"', '-DPROGRAM="/bin/false"', "-o", str(folder / "refusing")]
        subprocess.run(["gcc", "-O1", "-Wall", "-Werror", *words, str(SOURCE)], check=True)
        yield folder


def number(call: str) -> int:
    header = subprocess.run(
        ["gcc", "-E", "-dM", "-"],
        input="#include <asm/unistd.h>",
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(rf"^#define __NR_{call} (\d+)$", header.stdout, re.M)
    if found is None:
        pytest.skip(f"this architecture has no {call}")
    return int(found[1])


def ask(argv: Sequence[str], env: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [*argv, sys.executable, "-c", PROBE],
        env={**env, **NO_ENGINE},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    found = re.search(r"^checks: (.*)$", done.stdout, re.M)
    assert found and "Traceback" not in done.stderr, done.stdout + done.stderr
    return {name: (ok, detail, fix) for name, ok, detail, fix in json.loads(found[1])}


def refuse(folder: Path, call: str, error: int) -> list[str]:
    (folder / "refused").write_bytes(struct.pack("=II", number(call), error))
    return [str(folder / "refusing")]


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS])
@pytest.mark.parametrize("call", REFUSED)
def test_a_call_that_a_sandbox_needs(folder: Path, call: str, error: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("not for ordinary users: the filter is root's")
    ok, detail, fix = ask(refuse(folder, call, error), dict(os.environ))["sandbox"]
    assert ok is False and "seccomp profile forbids" in detail, detail
    assert fix.startswith(("docker run --security-opt seccomp=", "systemctl edit ", "start this"))


@pytest.mark.parametrize("call", [call for call in REFUSED if call not in OF_ROOT])
def test_a_call_that_an_ordinary_user_needs(folder: Path, call: str) -> None:
    with ordinary_user() as user:
        argv = [*user.prefix, "setpriv", "--no-new-privs", *refuse(folder, call, errno.EPERM)]
        ok, detail, fix = ask(argv, user.env)["sandbox"]
    assert ok is False and "seccomp profile forbids" in detail and fix, detail


@pytest.mark.parametrize("call", SPARED)
def test_a_call_that_a_sandbox_can_do_without(folder: Path, call: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("not for ordinary users: the filter is root's")
    checks = ask(refuse(folder, call, errno.ENOSYS), dict(os.environ))
    assert [name for name, (ok, _, _) in checks.items() if ok is False] == []
    assert checks["env bash"][0] and checks["env sql"][0]


def console(*prefix: str, **changes: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **NO_ENGINE, **changes}
    argv = [*prefix, sys.executable, "-c", CONSOLE]
    return subprocess.run(
        argv, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def test_no_threads(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("not for ordinary users: the filter is root's")
    done = console(*refuse(folder, "clone3", errno.EPERM))
    assert done.returncode == 1 and "this machine permits no threads" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has an account")
def test_no_home() -> None:
    """A user whom no account names."""
    script = "env -u HOME -u INTERCODE_CACHE -u XDG_CACHE_HOME"
    with ordinary_user() as user:
        done = console(*user.prefix, *script.split())
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "has no home folder" in done.stdout
    assert "export INTERCODE_CACHE=/a/folder/of/yours" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="not for ordinary users: they mount no /proc")
def test_a_proc_of_processes_alone() -> None:
    mount = 'mount -t proc -o subset=pid proc /proc; exec "$@"'
    done = console("unshare", "-m", "sh", "-c", mount, "sh")
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stdout + done.stderr
    assert "does not show the maximum number" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="not for ordinary users: they mount nothing")
def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    mount = f'mount -t tmpfs -o ro none {tmp_path}; exec "$@"'
    done = console(*("unshare", "-m", "sh", "-c", mount, "sh"), INTERCODE_CACHE=f"{tmp_path}/cache")
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stdout + done.stderr
    assert "FAIL  image cache" in done.stdout and "export INTERCODE_CACHE=" in done.stdout
