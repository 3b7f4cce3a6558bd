"""Machines that forbid sandboxes: the error names the rule and the command that mends it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from ordinary import OrdinaryUser, ordinary_user

ASK = """
from intercode.errors import SandboxUnavailableError
from intercode.sandbox import get_provider
try:
    get_provider().start("host").close()
except SandboxUnavailableError as error:
    print(error)
    print("fix:", error.fix)
else:
    print("started")
"""
# Our own filter forbids namespaces as Docker's default profile does.
UNDER_SECCOMP = """
import os, sys
from intercode.sandbox.native import seccomp, syscalls
syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
syscalls.set_seccomp(seccomp.build())
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
"""


Ask = Callable[..., str]


@pytest.fixture
def user() -> Iterator[OrdinaryUser]:
    """The machine's root is refused in a user namespace of its own; an ordinary user is not."""
    with ordinary_user() as found:
        yield found


@pytest.fixture
def ask(user: OrdinaryUser) -> Ask:
    """Tells what a process says that is started under a restriction."""

    def ask(*prefix: str, command: str = '"$0" -c "$1"') -> str:
        shell = ["sh", "-c", command, sys.executable, ASK]
        done = subprocess.run(
            [*user.prefix, *prefix, *shell],
            env=user.env,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout + done.stderr

    return ask


def test_permitted_in_a_user_namespace_of_ones_own(ask: Ask) -> None:
    assert ask("unshare", "-Urm") == "started\n"


def test_no_user_namespaces(ask: Ask) -> None:
    command = 'echo 0 > /proc/sys/user/max_user_namespaces; "$0" -c "$1"'
    said = ask("unshare", "-Urm", command=command)
    assert "max_user_namespaces is 0 or used up" in said
    assert "fix: sysctl -w user.max_user_namespaces=" in said


def test_seccomp_profile() -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNDER_SECCOMP, ASK], capture_output=True, text=True, timeout=60
    )
    said = done.stdout + done.stderr
    assert "seccomp profile forbids namespaces" in said
    assert "fix: docker run --security-opt seccomp=unconfined" in said


def test_masked_proc(ask: Ask) -> None:
    command = 'mount -t tmpfs none /proc/fs; "$0" -c "$1"'
    said = ask("unshare", "-Urmpf", "--mount-proc", command=command)
    assert "/proc is masked" in said
    assert "systempaths=unconfined" in said


def test_doctor_says_the_same(user: OrdinaryUser) -> None:
    command = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$0" -m intercode.cli doctor'
    done = subprocess.run(
        [*user.prefix, "unshare", "-Urm", "sh", "-c", command, sys.executable],
        env=user.env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "sysctl -w user.max_user_namespaces=" in done.stdout


def test_without_cgroups_it_still_starts(ask: Ask) -> None:
    said = ask("unshare", "-Urm", command='mount -t tmpfs none /sys; "$0" -c "$1"')
    assert said == "started\n", "a missing /sys only costs the memory limit"
