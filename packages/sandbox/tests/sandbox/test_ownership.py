"""Ownership: what belongs to a process that may have ended, and may only be hidden."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from intercode_sandbox.ownership import has_ended, is_gone, new_lease, start_time
from intercode_sandbox.privileges import is_root

QUESTION = """
import sys
from intercode_sandbox.ownership import is_gone, start_time
lease, pid = sys.argv[1:]
print(start_time(int(pid)), is_gone(lease))
"""


def ended() -> tuple[int, str]:
    """Return the pid of a process that has ended, and a lease of it."""
    command = "from intercode_sandbox import ownership; print(ownership.new_lease())"
    done = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True
    )
    lease = done.stdout.strip()
    return int(lease.partition("-")[0]), lease


def test_a_process_that_has_ended_is_gone() -> None:
    pid, lease = ended()
    assert is_gone(lease) and has_ended(pid, None) and has_ended(pid, 7)


def test_this_process_is_not() -> None:
    lease = new_lease()
    assert not is_gone(lease)
    pid, start, *rest = lease.split("-")
    assert is_gone("-".join([pid, str(int(start) + 1), *rest])), "another one has its pid now"
    assert not is_gone("-".join([pid, "None", *rest])), "its start was not to be seen"


@pytest.mark.parametrize("lease", ["", "1-2-3-4", "x-1-2-3", f"{10**30}-1-{{}}-x", "-1-1-{}-x"])
def test_of_what_is_no_lease_nothing_is_known(lease: str) -> None:
    assert not is_gone(lease.format(os.stat("/proc/self/ns/pid").st_ino))


@pytest.mark.skipif(not is_root(), reason="needs root")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
def test_a_process_that_proc_hides_is_not_gone() -> None:
    """As that of another user is with hidepid, and a process's own once it has given up root."""
    given = [new_lease(), str(os.getpid())]
    nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups"
    script = f'mount -t proc -o hidepid=invisible proc /proc && exec {nobody} "$@"'
    command = ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, "-c", QUESTION, *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip(f"this machine mounts no /proc: {done.stderr}")
    assert done.stdout.split() == ["None", "False"], done.stderr
    assert start_time(os.getpid()) is not None
